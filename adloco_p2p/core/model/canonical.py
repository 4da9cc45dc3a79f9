"""The canonical bytes of a value: JSON with sorted keys, no spaces, ASCII, shortest round-trip floats, no NaN.

Values are always hashed, signed, stored and sent in this form, so peers that hold equal values hold equal bytes.
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
"""Metadata of a field added after ledgers with its class existed. The field is written only if it differs from its default, so
values that do not use it keep their bytes and digests."""
_noted = PerObject[tuple[Digest, int]]()
"""Digest and number of canonical bytes of each noted value."""


@cache
def _names(kind: Any) -> tuple[str, ...]:
    """Return the field names of a dataclass."""
    assert dataclasses.is_dataclass(kind), f"no canonical form for {kind}"
    return tuple(f.name for f in dataclasses.fields(kind))


@cache
def _added(kind: Any) -> dict[str, Any]:
    """Return the added fields of a dataclass, with their defaults."""
    return {f.name: f.default for f in dataclasses.fields(kind) if "added" in f.metadata} if _names(kind) else {}


def _unused(kind: Any, value: Any) -> tuple[str, ...]:
    """Return the added fields that this value leaves out."""
    return tuple(name for name, default in _added(kind).items() if getattr(value, name) == default)


def to_plain(value: Any) -> Any:
    """Convert a value to JSON types: dataclasses become dicts and tuples become lists, recursively."""
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
    """Return a writer for one dataclass. It is built once, because a large swarm makes a peer encode most of its input again to
    hash it."""
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
    """Maps a type to the function that writes its values."""

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
    """Return `digest` of a deeply frozen value, computed once per object and forgotten with it."""
    return (_noted.get(value) or _note(value, encode(value)))[0]


def size_once(value: Any) -> int:
    """Return `size` of a deeply frozen value, remembered like `digest_once`."""
    return (_noted.get(value) or _note(value, encode(value)))[1]


def note(value: Any, data: bytes) -> bytes:
    """Remember that `data` are the canonical bytes of the value, so that `digest_once` and `size_once` need not encode it.
    Return `data`."""
    _note(value, data)
    return data


def _note(value: Any, data: bytes) -> tuple[Digest, int]:
    return _noted.put(value, (Digest(hashlib.sha256(data).hexdigest()), len(data)))


MAX_HELD_BYTES = 2 << 20
"""Most canonical bytes that `hold` remembers in all."""


class _Held:
    """Values with their canonical bytes, newest last; the oldest are dropped first."""

    def __init__(self) -> None:
        self._held: OrderedDict[int, tuple[Any, bytes]] = OrderedDict()
        """Keyed by identity; holding the value keeps its `id` from being reused."""
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
    """Remember the canonical bytes of a deeply frozen value for a while, so that `encode` can return them: a ledger entry is
    written to disk soon after it was read and checked."""
    _held.put(value, data)
