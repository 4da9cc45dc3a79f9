"""Whether this machine can ask the hub at all: without a network its libraries retry for half a minute for every file."""

import os
import socket
from urllib.parse import urlsplit
from urllib.request import getproxies

_DEFAULT_ENDPOINT = "https://huggingface.co"
_YES = ("1", "ON", "YES", "TRUE")
"""As the hub's libraries read their environment."""


def is_hub_reachable() -> bool:
    """False where the user asked to stay offline, or the hub's name cannot be resolved: what is in the cache is all there is.
    A proxy resolves names itself."""
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
