"""Whether this machine can ask the hub at all: without a network its libraries retry for half a minute for every file."""

import os
import socket
from urllib.parse import urlsplit
from urllib.request import getproxies

_DEFAULT_ENDPOINT = "https://huggingface.co"


def is_hub_reachable() -> bool:
    """False where the hub's name cannot be resolved: what is in the cache is all there is. A proxy resolves names itself."""
    endpoint = urlsplit(os.environ.get("HF_ENDPOINT") or _DEFAULT_ENDPOINT)
    if getproxies():
        return True
    try:
        socket.getaddrinfo(endpoint.hostname, endpoint.port or endpoint.scheme)
    except OSError:
        return False
    return True
