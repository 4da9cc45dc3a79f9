"""Text from elsewhere on its way into Markdown, which holds HTML, pictures and links: none of them comes from such text."""

import re

_MARKUP = re.compile(r"[\\`*\[\]<&~$@|]|(?<!\w)_|_(?!\w)|:(?=//)|(?<=www)\.", re.IGNORECASE)


def escaped(text: str) -> str:
    """What shows `text` as it is, on one line. Names such as `acc_norm` stay as they are."""
    return _MARKUP.sub(r"\\\g<0>", " ".join(text.split()))


def code(text: str) -> str:
    """`text` on one line in code letters, in tables, too; what would end them becomes an apostrophe."""
    return f"`{' '.join(text.split()).translate({ord('`'): chr(39), ord('|'): '/'})}`"
