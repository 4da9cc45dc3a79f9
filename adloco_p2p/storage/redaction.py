"""The redaction of everything that must not leave the machine in a support bundle: keys, tokens, addresses, the user's name.

Secrets are found by their form if they have one, and by value if they are known. It replaces too much rather than too little,
such as an `eos_token` of a tokenizer. PeerIDs stay, because they are public and needed to follow the events.
"""

import ipaddress
import json
import re
from collections.abc import Collection

MIN_SECRET_CHARS = 6
"""The least length of a secret that is replaced by value, because shorter ones occur in many words."""

_SHAPES = (
    (re.compile(r"(?i)adloco:[^\s\"'<>]+"), "<join link>"),
    (re.compile(r"(?<=://)[^\s/@\"']+(?=@)"), "<credentials>"),
    (re.compile(r"-----BEGIN [A-Z ]*KEY-----.*?(?:-----END [A-Z ]*KEY-----|\Z)", re.DOTALL), "<key>"),
    (re.compile(r"(?i)\bbearer\s+[^\s\"',]+"), "<token>"),
    (re.compile(r"\b(?:hf_|gh[pousr]_|github_pat_|glpat-|sk-|xox[abps]-|AKIA)[A-Za-z0-9_\-]{8,}"), "<token>"),
    (re.compile(r"(?<=/)(ip4|ip6|dns|dns4|dns6|dnsaddr)/[^/\s\"',\\]+"), r"\1/<address>"),
    (
        re.compile(
            r"(?i)(?<![a-z])(token|secret|password|passwd|passphrase|(?:api|private|access)[_-]?key|authorization)"
            r"(\\?[\"']?\s*[:=]\s*\\?[\"']?)([^\s\"',}\\<]{4,})"
        ),
        r"\1\2<secret>",
    ),
)
_MAYBE_IP = re.compile(  # IPv4 also behind a colon, as in `ipv4:192.0.2.1:80`
    r"(?<![\w.:])[0-9a-fA-F]{0,4}:[0-9a-fA-F:.]+(?![\w:])|(?<![\w.])(?:\d{1,3}\.){3}\d{1,3}(?!\w|\.\d)"
)


def redacted(text: str, *, secrets: Collection[str], home: str) -> str:
    """Return the text without anything that has the shape of a secret, without these secrets, and with `~` for `home`."""
    for secret in sorted(secrets, key=len, reverse=True):
        if len(secret) >= MIN_SECRET_CHARS:
            for spelt in _spellings(secret):
                text = text.replace(spelt, "<secret>")
    for shape, replacement in _SHAPES:
        text = shape.sub(replacement, text)
    text = _MAYBE_IP.sub(lambda found: "<address>" if _is_address(found[0]) else found[0], text)
    for spelt in _spellings(home) if len(home) > 1 else ():
        text = text.replace(spelt, "~")
    return text


def _spellings(value: str) -> set[str]:
    """Return the value as it is, and as JSON and Python's `repr` write it: the files of a bundle are JSON, which has no letters
    beyond ASCII."""
    return {value, json.dumps(value)[1:-1], repr(value)[1:-1]}


def _is_address(text: str) -> bool:
    """Return whether the text is an IP address of a host: `::2`, for one, is more often a slice."""
    try:
        ipaddress.ip_address(text.rstrip("."))
    except ValueError:
        return False
    return "." in text or sum(bool(group) for group in text.split(":")) > 1
