"""Numbers as people read them. Pure; every function returns ASCII text."""

import math
import re
import unicodedata

from adloco_p2p.core.model.branches import FIRST_BRANCH_ID
from adloco_p2p.core.model.words import plural as plural

_DECIMAL = ("", "k", "M", "G", "T", "P", "E")
MAX_LINK_RATE = 1e9
"""Bytes per second. A faster measurement, as on one machine, is of memory and not of a link."""
_PEER_ID = re.compile(r"\b(12D3KooW|Qm)[1-9A-HJ-NP-Za-km-z]{40,50}\b")
MISSING = "-"
"""The text in place of an unknown value."""


def _scaled(value: float) -> tuple[str, str]:
    """Return three significant digits and the decimal prefix: 98400 -> ("98.4", "k")."""
    scale = 0
    while abs(value) >= 999.5 and scale < len(_DECIMAL) - 1:
        value /= 1000
        scale += 1
    digits = 0 if abs(value) >= 99.95 or (scale == 0 and value == int(value)) else 1 if abs(value) >= 9.995 else 2
    return f"{value:.{digits}f}", _DECIMAL[scale]


def finite(value: float | None) -> float | None:
    """Return the number; None where it is not finite."""
    return value if value is not None and math.isfinite(value) else None


def count(value: float | None) -> str:
    """Return a number with a decimal prefix: 98400 -> 98.4k; 12 -> 12."""
    if value is None or not math.isfinite(value):
        return MISSING
    number, prefix = _scaled(value)
    return number + prefix


def size(num_bytes: float | None) -> str:
    """Return bytes in decimal units: 34500000 -> 34.5 MB."""
    if num_bytes is None or not math.isfinite(num_bytes):
        return MISSING
    number, prefix = _scaled(num_bytes)
    return f"{number} {prefix}B"


def link_rate(bytes_per_second: float | None) -> str:
    """Return a rate as `size` does, up to the largest credible one: bytes that arrive in a buffer take no time."""
    if bytes_per_second is not None and bytes_per_second > MAX_LINK_RATE:
        return f"> {MAX_LINK_RATE / 1e9:.0f} GB"
    return size(bytes_per_second)


def duration(seconds: float | None) -> str:
    """Return a duration in two units at most: 9.8 s, 4m32s, 2h05m, 3d04h."""
    if seconds is None or not math.isfinite(seconds):
        return MISSING
    if seconds < 59.95:
        return f"{max(seconds, 0.0):.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes}m{rest:02d}s"
    hours, minutes = divmod(minutes, 60)
    if hours < 24:
        return f"{hours}h{minutes:02d}m"
    days, hours = divmod(hours, 24)
    return f"{days}d{hours:02d}h"


def milliseconds(seconds: float) -> str:
    """Return milliseconds: 0.0123 -> 12 ms."""
    return f"{1000 * seconds:.0f} ms" if seconds < 9.9995 else duration(seconds)


def loss(nats: float | None) -> str:
    """Return nats per token to three decimals; a diverged loss keeps its name."""
    return MISSING if nats is None else f"{nats:.3f}"


def perplexity(nats: float | None) -> str:
    """Return exp of the loss, to four digits."""
    if nats is None or not math.isfinite(nats):
        return MISSING
    return f"{math.exp(nats):.4g}" if nats < 20 else "over 1e8"


def percent(fraction: float | None) -> str:
    return MISSING if fraction is None else f"{100 * fraction:.0f}%"


def weights(values: tuple[float, ...]) -> str:
    """Return weights as a sum: (0.6, 0.4) -> 0.60 + 0.40."""
    return " + ".join(f"{value:.2f}" for value in values)


def short_digest(digest: str) -> str:
    """Return enough of a run's digest to distinguish it from others."""
    return digest[:8]


def short_peer(peer: str) -> str:
    """Return the end of a peer's id; the beginning is the same for all peers of one key type."""
    return peer if len(peer) <= 10 else ".." + peer[-8:]


def short_peers(text: str) -> str:
    """Return the text on one line, with peers' ids as in `short_peer`, because a whole id takes most of a line."""
    return _PEER_ID.sub(lambda found: short_peer(found[0]), one_line(text))


def instance(number: int) -> str:
    """Return the name of an instance: 2 -> 2. A branch that was trained apart during a partition has a long number: 1417042 ->
    apart-42."""
    return str(number) if number < FIRST_BRANCH_ID else f"apart-{number % 1000}"


def instances(ids: tuple[int, ...]) -> str:
    """Return instances as a sum: (1, 2) -> 1 + 2."""
    return " + ".join(map(instance, ids)) if ids else MISSING


def one_line(text: str) -> str:
    """Return text from elsewhere as one line of ASCII that is safe to print: a remote peer's reason might contain terminal
    control codes."""
    words = " ".join(text.split())
    return "".join(character if character.isascii() and character.isprintable() else "?" for character in words)


def printable(text: str) -> str:
    """Return text in any language, such as a model's, with its line ends, spaces and joined letters; what cannot be printed, or
    would turn the reading direction, becomes a replacement character. Line ends of Windows become plain ones."""
    return "".join(each if _is_shown(each) else "\N{REPLACEMENT CHARACTER}" for each in text.replace("\r\n", "\n"))


def _is_shown(character: str) -> bool:
    """Return whether the character changes nothing but its own place. Python counts the spaces of French and Japanese, and the
    joiners of Persian and of emoji, among those that cannot be printed."""
    return character.isprintable() or character in "\n\t\u200c\u200d" or unicodedata.category(character) == "Zs"


def shorten(text: str, width: int) -> str:
    """Cut at a word, so that the result has at most `width` characters and ends in `...`; a single long word is cut hard."""
    if len(text) <= width:
        return text
    if width <= 3:
        return text[: max(width, 0)]
    head = text[: width - 3]
    if text[width - 3] != " " and " " in head.rstrip():
        head = head.rstrip().rsplit(" ", 1)[0]
    return head.rstrip(" ,;:(") + "..."


def attempt_words(attempt: int) -> str:
    """The attempts of an average are numbered from 0; people count from 1."""
    return f"averaging attempt {attempt + 1}"
