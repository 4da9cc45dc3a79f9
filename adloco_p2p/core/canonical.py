"""One byte form per value: JSON with sorted keys, no spaces, ASCII, shortest round-trip floats, no NaN.

What is hashed, signed, stored and sent is always this form, so two peers that hold equal values hold equal bytes.
"""

import dataclasses
import hashlib
import json
from typing import Any

from adloco_p2p.core.types import Digest


def to_plain(value: Any) -> Any:
    """Dataclasses become dicts and tuples lists, recursively; scalars stay."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: to_plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, (tuple, list)):
        return [to_plain(item) for item in value]
    if isinstance(value, dict):
        return {key: to_plain(item) for key, item in value.items()}
    assert value is None or isinstance(value, (str, int, float, bool)), f"no canonical form for {type(value)}"
    return value


def encode(value: Any) -> bytes:
    """The canonical bytes of a value. Raises ValueError for a number that is not finite."""
    text = json.dumps(to_plain(value), sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
    return text.encode("ascii")


def digest(value: Any) -> Digest:
    """SHA-256 of the canonical bytes, as hex."""
    return Digest(hashlib.sha256(encode(value)).hexdigest())
