"""Turns bytes from outside into values, or refuses them: the only way in, for the wire, the disk and the control API."""

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError
from pydantic_core import SchemaValidator

from adloco_p2p.core.model import canonical
from adloco_p2p.core.model.ledger_entry import LedgerEntry
from adloco_p2p.core.model.messages import Entries
from adloco_p2p.core.model.telemetry import EVENTS, Stamped
from adloco_p2p.errors import RemoteProtocolError

T = TypeVar("T")

_COLLECTIONS = frozenset({"tuple", "list", "set", "frozenset", "dict"})
_OPAQUE = frozenset({"cls", "metadata", "serialization"})
"""Parts of a schema that are no schemas."""
MAX_NESTED_SHARE = 1 / 16
"""Opening brackets and braces over bytes: the most of a value from outside, since each makes an object of some hundred bytes
before anything is checked. Messages of honest peers have less than half of it (`tests/fuzz/test_cost_of_refusal.py`)."""
_FREE_BYTES = 1024
"""Shorter values may have any share."""


@cache
def _validator(kind: Any) -> SchemaValidator:
    """Return a validator that stops at the first fault of every collection. Otherwise pydantic goes on to collect the faults of
    all elements: gigabytes, and seconds of the event loop, for a message of a few hundred compressed bytes."""
    return SchemaValidator(_stopping(TypeAdapter(kind).core_schema))


def _stopping(schema: Any) -> Any:
    if isinstance(schema, dict):
        found = {key: part if key in _OPAQUE else _stopping(part) for key, part in schema.items()}
        return found | {"fail_fast": True} if found.get("type") in _COLLECTIONS else found
    if isinstance(schema, list | tuple):
        return type(schema)(_stopping(part) for part in schema)
    return schema


def decode(kind: type[T], data: bytes, *, max_bytes: int) -> T:
    """Return the value of type `kind` whose canonical form is `data`.

    Types, ranges and lengths are those of the dataclass. Anything but the canonical form is refused, so that unknown keys,
    doubled keys and a second spelling of the same value cannot exist. Raises RemoteProtocolError.
    """
    if len(data) > max_bytes:
        raise RemoteProtocolError(f"{kind.__name__}: {len(data)} bytes, at most {max_bytes} accepted")
    if len(data) > _FREE_BYTES and data.count(b"[") + data.count(b"{") > MAX_NESTED_SHARE * len(data):
        raise RemoteProtocolError(f"{kind.__name__}: more brackets than any value has")
    try:
        value: T = _validator(kind).validate_json(data, strict=True)  # type: ignore[arg-type]
    except ValidationError as error:
        raise RemoteProtocolError(f"{kind.__name__}: {_first_fault(error)}") from None
    try:
        is_canonical = (_encoded(value) if isinstance(value, Entries) else canonical.encode(value)) == data
    except ValueError:
        raise RemoteProtocolError(f"{kind.__name__}: a number is not finite") from None
    if not is_canonical:
        raise RemoteProtocolError(f"{kind.__name__}: not in canonical form")
    return value


def _encoded(message: Entries) -> bytes:
    """Encode the message in parts, and keep these for the digests that are checked next and for storing: encoding the parts of
    a large entry once more takes milliseconds."""
    texts = [_encoded_entry(entry) for entry in message.entries]
    for entry, text in zip(message.entries, texts, strict=True):
        canonical.hold(entry, text)
    return b'{"entries":[%s]}' % b",".join(texts)


def _encoded_entry(entry: LedgerEntry) -> bytes:
    return b'{"certificate":%s,"plan":%s,"reports":[%s],"value":%s}' % (
        canonical.encode(entry.certificate),
        canonical.note(entry.plan, canonical.encode(entry.plan)),
        b",".join(canonical.note(signed, canonical.encode(signed)) for signed in entry.reports),
        canonical.note(entry.value, canonical.encode(entry.value)),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Begun:
    """The settings that a run's configuration has in every version."""

    protocol: int


def peek_protocol(manifest: bytes) -> int | None:
    """Return the protocol that a run's configuration names, even if its other settings may be of a newer version; None where
    there is none."""
    with suppress(ValidationError):
        begun: _Begun = _validator(_Begun).validate_json(manifest, strict=True)
        return begun.protocol
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Head:
    """The fields of every line in an event file."""

    event: str
    time: float


class EventOfAnotherVersion(ValueError):
    """An event whose form is not the one that this version writes."""


def decode_event(line: str | bytes) -> Stamped | None:
    """Decode a line of an event file, without its end; None for an event unknown to this version. Unknown fields are left out.
    Raises ValueError where the line is no event, and EventOfAnotherVersion where it does not have the form of this one."""
    try:
        head: _Head = _validator(_Head).validate_json(line, strict=True)
    except ValidationError:
        raise ValueError(f"not an event (a JSON object with `event` and `time`): {line[:80]!r}") from None
    kind = EVENTS.get(head.event)
    if kind is None:
        return None
    try:
        return Stamped(time=head.time, event=_validator(kind).validate_json(line, strict=True))  # type: ignore[arg-type]
    except ValidationError as error:
        raise EventOfAnotherVersion(
            f"the event `{head.event}` does not have the form that this version writes ({_first_fault(error)})"
        ) from None


def decode_events(lines: Iterable[str | bytes]) -> list[Stamped]:
    """Return the events in these lines that this version can read."""
    events = []
    for line in lines:
        with suppress(ValueError):
            events.append(decode_event(line))
    return [event for event in events if event is not None]


def _first_fault(error: ValidationError) -> str:
    first = error.errors(include_url=False, include_input=False)[0]
    where = ".".join(str(part) for part in first["loc"]) or "value"
    return f"{where}: {first['msg']}"
