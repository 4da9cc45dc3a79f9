"""DNS names in announced addresses: what a name leads to now decides whether to dial, so that is dialled, not the name."""

import asyncio
import random
import socket
from collections.abc import Iterable

MAX_LOOKUPS = 16
"""At a time: anybody may announce any number of names."""
LOOKUP_SECONDS = 3.0
_FAMILIES = {"dns": socket.AF_UNSPEC, "dns4": socket.AF_INET, "dns6": socket.AF_INET6}


def is_named(address: str) -> bool:
    """Whether the host that an address leads to first is a name."""
    return address.split("/")[1] in _FAMILIES


async def looked_up(addresses: Iterable[str]) -> dict[str, list[str]]:
    """Named addresses, and each of them by the numbers that its name has now: none where it has none, or none in time. Of more
    than MAX_LOOKUPS a random choice."""
    named = sorted({address for address in addresses if is_named(address)})
    chosen = random.SystemRandom().sample(named, min(MAX_LOOKUPS, len(named)))
    return dict(zip(chosen, await asyncio.gather(*map(_numbers, chosen)), strict=True))


async def _numbers(address: str) -> list[str]:
    _, protocol, name, *rest = address.split("/")
    lookup = asyncio.get_running_loop().getaddrinfo(name, None, family=_FAMILIES[protocol], type=socket.SOCK_STREAM)
    try:
        found = await asyncio.wait_for(lookup, LOOKUP_SECONDS)
    except (OSError, UnicodeError, TimeoutError):
        return []
    hosts = {(family, str(where[0])) for family, _, _, _, where in found if "%" not in str(where[0])}
    return ["/".join(["", "ip6" if family == socket.AF_INET6 else "ip4", host, *rest]) for family, host in sorted(hosts)]
