"""DNS names in this peer's own addresses. Others cannot judge where a name leads, so they also get its IP addresses."""

import asyncio
import socket
from collections.abc import Sequence

from adloco_p2p.swarm.p2p.addresses import NAME_FAMILIES, shareable

LOOKUP_SECONDS = 5.0


async def with_numbers(addresses: Sequence[str]) -> tuple[str, ...]:
    """Return the addresses, and for each with a name also one for each IP address that the name has now."""
    named = [address for address in addresses if address.split("/")[1] in NAME_FAMILIES]
    found = await asyncio.gather(*map(_numbers, named))
    return shareable([*(number for numbers in found for number in numbers), *addresses])


async def _numbers(address: str) -> list[str]:
    _, protocol, name, *rest = address.split("/")
    lookup = asyncio.get_running_loop().getaddrinfo(name, None, family=NAME_FAMILIES[protocol], type=socket.SOCK_STREAM)
    try:
        found = await asyncio.wait_for(lookup, LOOKUP_SECONDS)
    except (OSError, UnicodeError, TimeoutError):
        return []
    hosts = sorted({(family, str(where[0])) for family, _, _, _, where in found if "%" not in str(where[0])})
    return ["/".join(["", "ip6" if family == socket.AF_INET6 else "ip4", host, *rest]) for family, host in hosts]
