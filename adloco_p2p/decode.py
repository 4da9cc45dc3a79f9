"""Bytes from outside become values here, or are refused: the only way in, for the wire and for the disk."""

from functools import cache
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError

from adloco_p2p.core.model import canonical
from adloco_p2p.errors import RemoteProtocolError

T = TypeVar("T")


@cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind)


def decode(kind: type[T], data: bytes, *, max_bytes: int) -> T:
    """The value of type `kind` whose canonical form is `data`.

    Types, ranges and lengths are those of the dataclass. Anything but the canonical form is refused, so that unknown keys,
    doubled keys and a second spelling of the same value cannot exist. Raises RemoteProtocolError.
    """
    if len(data) > max_bytes:
        raise RemoteProtocolError(f"{kind.__name__}: {len(data)} bytes, at most {max_bytes} accepted")
    try:
        value: T = _adapter(kind).validate_json(data, strict=True)  # type: ignore[arg-type]
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(str(part) for part in first["loc"]) or "value"
        raise RemoteProtocolError(f"{kind.__name__}: {where}: {first['msg']}") from None
    try:
        is_canonical = canonical.encode(value) == data
    except ValueError:
        raise RemoteProtocolError(f"{kind.__name__}: a number is not finite") from None
    if not is_canonical:
        raise RemoteProtocolError(f"{kind.__name__}: not in canonical form")
    return value
