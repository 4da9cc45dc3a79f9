"""Escapes text from elsewhere for Markdown, where it could otherwise add HTML, pictures and links."""

import re

_MARKUP = re.compile(r"[\\`*\[\]<&~$@|]|(?<!\w)_|_(?!\w)|:(?=//)|(?<=www)\.", re.IGNORECASE)


def escaped(text: str) -> str:
    """Return Markdown that shows `text` as it is, on one line. Names such as `acc_norm` stay as they are."""
    return _MARKUP.sub(r"\\\g<0>", " ".join(text.split()))


def code(text: str) -> str:
    """Return `text` on one line as code, also for tables; characters that would end the code are replaced."""
    return f"`{' '.join(text.split()).translate({ord('`'): chr(39), ord('|'): '/'})}`"
