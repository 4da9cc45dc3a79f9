"""One byte form per value: JSON with sorted keys, no spaces, ASCII, shortest round-trip floats, no NaN.

Values are always hashed, signed, stored and sent in this form, so two peers that hold equal values hold equal bytes.
"""

import dataclasses
import hashlib
from collections import OrderedDict
from collections.abc import Callable
from functools import cache
from json.encoder import encode_basestring_ascii as quoted
from math import isfinite
from operator import attrgetter
from typing import Any

from adloco_p2p.core.model.once import PerObject
from adloco_p2p.core.model.scalars import Digest

ADDED = {"added": True}
"""Metadata of a field that was added to a kind of value of which ledgers exist: it is written only where it is not its default,
so the bytes of values that do not use it stay."""
_noted = PerObject[tuple[Digest, int]]()
"""The digest of a value, and the length of its canonical bytes."""


@cache
def _names(kind: Any) -> tuple[str, ...]:
    """Field names of a dataclass."""
    assert dataclasses.is_dataclass(kind), f"no canonical form for {kind}"
    return tuple(f.name for f in dataclasses.fields(kind))


@cache
def _added(kind: Any) -> dict[str, Any]:
    """Fields that are left out where they have this default."""
    return {f.name: f.default for f in dataclasses.fields(kind) if "added" in f.metadata} if _names(kind) else {}


def _unused(kind: Any, value: Any) -> tuple[str, ...]:
    """Added fields that are not written for this value."""
    return tuple(name for name, default in _added(kind).items() if getattr(value, name) == default)


def to_plain(value: Any) -> Any:
    """Dataclasses become dicts and tuples lists, recursively; scalars stay."""
    if value is None or isinstance(value, (str, int, float, bool)):
        return value
    if isinstance(value, (tuple, list)):
        return [to_plain(item) for item in value]
    if isinstance(value, dict):
        return {key: to_plain(item) for key, item in value.items()}
    kind: Any = type(value)
    names, unused = _names(kind), _unused(kind, value)
    return {name: to_plain(getattr(value, name)) for name in names if name not in unused}


# --- writing ---------------------------------------------------------------------------------------------------------


def _float(value: float) -> str:
    if not isfinite(value):
        raise ValueError(f"not JSON compliant: {value!r}")
    return float.__repr__(value)


def _sequence(value: list[Any] | tuple[Any, ...]) -> str:
    return "[" + ",".join([_text[type(item)](item) for item in value]) + "]"


def _mapping(value: dict[str, Any]) -> str:
    return "{" + ",".join([f"{quoted(key)}:{_text[type(item)](item)}" for key, item in sorted(value.items())]) + "}"


_PLAIN: dict[type, Callable[[Any], str]] = {
    type(None): lambda _: "null",
    bool: lambda value: "true" if value else "false",
    str: quoted,
    int: int.__repr__,
    float: _float,
    tuple: _sequence,
    list: _sequence,
    dict: _mapping,
}


def _of_fields(kind: type) -> Callable[[Any], str]:
    """For one kind of dataclass. In a large swarm a peer writes most of its input once more, for its hash."""
    if not _added(kind):
        return _of_names(_names(kind))
    return lambda value: _of_names_but(kind, _unused(kind, value))(value)


@cache
def _of_names_but(kind: type, unused: tuple[str, ...]) -> Callable[[Any], str]:
    return _of_names(tuple(name for name in _names(kind) if name not in unused))


def _of_names(unsorted: tuple[str, ...]) -> Callable[[Any], str]:
    names = sorted(unsorted)
    form = "{" + ",".join(f'"{name}":%s' for name in names) + "}"
    if len(names) < 2:
        return lambda value: form % tuple(_text[type(item)](item) for item in (getattr(value, name) for name in names))
    values = attrgetter(*names)
    return lambda value: form % tuple([_text[type(item)](item) for item in values(value)])


class _Text(dict[type, Callable[[Any], str]]):
    """Type -> how its values are written."""

    def __missing__(self, kind: type) -> Callable[[Any], str]:
        plain = next((plain for plain in _PLAIN if issubclass(kind, plain)), None)
        self[kind] = made = _of_fields(kind) if plain is None else _PLAIN[plain]
        return made


_text = _Text(_PLAIN)


def encode(value: Any) -> bytes:
    """The canonical bytes of a value. Raises ValueError for a number that is not finite."""
    return _held.get(value) or _text[type(value)](value).encode("ascii")


def size(value: Any) -> int:
    """How many canonical bytes a value has."""
    return len(encode(value))


def digest(value: Any) -> Digest:
    """SHA-256 of the canonical bytes, as hex."""
    return Digest(hashlib.sha256(encode(value)).hexdigest())


# --- once per object -------------------------------------------------------------------------------------------------


def digest_once(value: Any) -> Digest:
    """The same for a value that nothing can change (frozen all the way down): computed once per object, however often asked,
    and forgotten with it."""
    return (_noted.get(value) or _note(value, encode(value)))[0]


def size_once(value: Any) -> int:
    """`size`, remembered as `digest_once` remembers."""
    return (_noted.get(value) or _note(value, encode(value)))[1]


def note(value: Any, data: bytes) -> bytes:
    """`data` are the canonical bytes of the value: `digest_once` and `size_once` encode it no more. Returns the bytes."""
    _note(value, data)
    return data


def _note(value: Any, data: bytes) -> tuple[Digest, int]:
    return _noted.put(value, (Digest(hashlib.sha256(data).hexdigest()), len(data)))


MAX_HELD_BYTES = 2 << 20
"""Of the canonical bytes that `hold` remembers."""


class _Held:
    """Values and their canonical bytes, the latest at the end."""

    def __init__(self) -> None:
        self._held: OrderedDict[int, tuple[Any, bytes]] = OrderedDict()
        """By the identity of the value, which lives as long as it is here."""
        self._num_bytes = 0

    def get(self, value: Any) -> bytes | None:
        known = self._held.get(id(value))
        return known[1] if known is not None else None

    def put(self, value: Any, data: bytes) -> None:
        _, before = self._held.pop(id(value), (None, b""))
        self._held[id(value)] = value, data
        self._num_bytes += len(data) - len(before)
        while self._num_bytes > MAX_HELD_BYTES:
            _, (_, dropped) = self._held.popitem(last=False)  # in one step: two swarms of one process have a thread each
            self._num_bytes -= len(dropped)


_held = _Held()


def hold(value: Any, data: bytes) -> None:
    """`data` are the canonical bytes of a value that nothing can change: `encode` gives them back for some time. An entry of
    the ledger is written down as soon as it is read and checked."""
    _held.put(value, data)
