"""One byte form per value: JSON with sorted keys, no spaces, ASCII, shortest round-trip floats, no NaN.

Values are always hashed, signed, stored and sent in this form, so two peers that hold equal values hold equal bytes.
"""

import dataclasses
import hashlib
import json
import weakref
from functools import cache
from typing import Any

from adloco_p2p.core.model.scalars import Digest

_memo: dict[int, tuple[weakref.ref[Any], Digest, int]] = {}
"""Identity of a value that lives -> its digest, and the length of its canonical bytes."""


@cache
def _names(kind: Any) -> tuple[str, ...] | None:
    """Field names of a dataclass; none for other types."""
    return tuple(f.name for f in dataclasses.fields(kind)) if dataclasses.is_dataclass(kind) else None


def to_plain(value: Any) -> Any:
    """Dataclasses become dicts and tuples lists, recursively; scalars stay."""
    if value is None or isinstance(value, (str, int, float, bool)):
        return value
    if isinstance(value, (tuple, list)):
        return [to_plain(item) for item in value]
    if isinstance(value, dict):
        return {key: to_plain(item) for key, item in value.items()}
    return {name: to_plain(item) for name, item in _fields(value).items()}


def _fields(value: Any) -> dict[str, Any]:
    """Of a dataclass, by name."""
    kind: Any = type(value)
    names = _names(kind)
    assert names is not None, f"no canonical form for {kind}"
    return {name: getattr(value, name) for name in names}


_encoder = json.JSONEncoder(
    sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False, check_circular=False, default=_fields
)


def encode(value: Any) -> bytes:
    """The canonical bytes of a value. Raises ValueError for a number that is not finite."""
    return _encoder.encode(value).encode("ascii")


def size(value: Any) -> int:
    """How many canonical bytes a value has."""
    return len(encode(value))


def digest(value: Any) -> Digest:
    """SHA-256 of the canonical bytes, as hex."""
    return Digest(hashlib.sha256(encode(value)).hexdigest())


def digest_once(value: Any) -> Digest:
    """The same for a value that nothing can change (frozen all the way down): computed once per object, however often asked,
    and forgotten with it."""
    return _once(value)[1]


def size_once(value: Any) -> int:
    """`size`, remembered as `digest_once` remembers."""
    return _once(value)[2]


def _once(value: Any) -> tuple[weakref.ref[Any], Digest, int]:
    key = id(value)
    known = _memo.get(key)
    if known is not None and known[0]() is value:
        return known
    note(value, encode(value))
    return _memo[key]


def note(value: Any, data: bytes) -> bytes:
    """`data` are the canonical bytes of the value: `digest_once` and `size_once` encode it no more. Returns the bytes."""
    key, result = id(value), Digest(hashlib.sha256(data).hexdigest())
    _memo[key] = (weakref.ref(value, lambda _: _memo.pop(key, None)), result, len(data))
    return data
