"""Checks whether this machine can ask the hub at all, because without a network its libraries retry for half a minute for every
file."""

import os
import socket
from urllib.parse import urlsplit
from urllib.request import getproxies

_DEFAULT_ENDPOINT = "https://huggingface.co"
_YES = ("1", "ON", "YES", "TRUE")
"""The words that the hub's libraries read as true in their environment."""


def is_hub_reachable() -> bool:
    """Return False where the user asked to stay offline, or the hub's name cannot be resolved; the cache is then all there is.
    True behind a proxy, which resolves names itself."""
    if os.environ.get("HF_HUB_OFFLINE", "").upper() in _YES:
        return False
    endpoint = urlsplit(os.environ.get("HF_ENDPOINT") or _DEFAULT_ENDPOINT)
    if getproxies():
        return True
    try:
        socket.getaddrinfo(endpoint.hostname, endpoint.port or endpoint.scheme)
    except OSError:
        return False
    return True
