"""How bytes are damaged: anywhere, or inside the JSON that they are, in canonical form again so that only a later check can
refuse them. One `Random` decides everything."""

import json
from random import Random
from typing import Any

INTERESTING: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 2, 255, 1 << 31, (1 << 53) + 1, 1 << 63, 1 << 64, 1 << 4096, -(1 << 63),
    0.0, -0.0, 0.5, 1e30, 1e308, 5e-324, -1.5,
    "", "0" * 64, "f" * 64, "F" * 64, "0" * 65, "g" * 64, "a" * 52, "\u0000", "\ud800", "\u00e9" * 9, "x" * 5000,
    [], [[]], {}, {"": 0}, [0] * 5000,
)  # fmt: skip
MAX_NODES = 400
"""Places of a JSON value that are looked at."""


def mutated(data: bytes, other: bytes, random: Random) -> bytes:
    """`data`, damaged in one to four places; `other` lends pieces."""
    for _ in range(random.choice((1, 1, 1, 2, 4))):
        is_json = data[:1] in (b"{", b"[")
        data = mutated_json(data, other, random) if is_json and random.random() < 0.7 else mutated_bytes(data, other, random)
    return data


def mutated_bytes(data: bytes, other: bytes, random: Random) -> bytes:
    at, end = sorted((random.randint(0, len(data)), random.randint(0, len(data))))
    match random.randrange(8):
        case 0:
            return data[:at]
        case 1:
            return data[:at] + data[end:]
        case 2:
            return data[:end] + data[at:end] + data[end:]
        case 3:
            return data[:at] + random.randbytes(random.choice((1, 2, 4, 8, 64))) + data[at:]
        case 4:
            return data[:at] + other[random.randint(0, len(other)) :]
        case 5:
            return data[:at] + bytes(random.choice((0, 0, 255)) for _ in range(end - at)) + data[end:]
        case 6:
            return data[:at] + random.choice((b"\xff\xff\xff\xff", b"\x00" * 8, b"[" * 3000, b"1e999", b"NaN")) + data[at + 4 :]
    flipped = bytearray(data or b"\x00")
    for _ in range(random.choice((1, 1, 2, 8))):
        flipped[random.randrange(len(flipped))] ^= 1 << random.randrange(8)
    return bytes(flipped)


def mutated_json(data: bytes, other: bytes, random: Random) -> bytes:
    """One value inside is replaced, doubled, dropped or moved. Bytes that are no JSON come back damaged anywhere."""
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        return mutated_bytes(data, other, random)
    try:
        lender = json.loads(other)
    except (ValueError, RecursionError):
        lender = None
    places = _places(value)
    if not places:
        return json.dumps(random.choice(INTERESTING)).encode("ascii")
    holder, key = random.choice(places)
    lent = [inner[name] for inner, name in _places(lender)] or [None]
    match random.randrange(6):
        case 0 | 1:
            holder[key] = random.choice(INTERESTING)
        case 2:
            holder[key] = random.choice(lent)
        case 3:
            del holder[key]
        case 4 if isinstance(holder, list):
            holder.insert(random.randint(0, len(holder)), holder[key])
        case 4:
            holder[f"{key}x"] = holder[key]
        case 5 if isinstance(holder[key], int | float):
            holder[key] += random.choice((-1, 1, 1 << 20))
        case _:
            holder[key] = [holder[key]]
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True).encode("ascii")


def _places(value: Any) -> list[tuple[Any, Any]]:
    """Every (container, key or index) inside, nearest to the root first."""
    found: list[tuple[Any, Any]] = []
    waiting = [value]
    while waiting and len(found) < MAX_NODES:
        holder = waiting.pop(0)
        keys = list(holder) if isinstance(holder, dict) else range(len(holder)) if isinstance(holder, list) else ()
        found += [(holder, key) for key in keys]
        waiting += [holder[key] for key in keys]
    return found[:MAX_NODES]
