"""Connecting to peers, again and again where that helps.

Two peers that dial each other at the same moment can both fail: each takes itself for the caller. Then libp2p refuses to dial
the other one again for some seconds. So a second and a third attempt follow after pauses of random length.
"""

import asyncio
import random
from collections.abc import Callable, Iterable

from hivemind.p2p import P2P, PeerID
from hivemind.p2p.p2p_daemon_bindings.control import P2PDaemonError
from hivemind.utils.multiaddr import Multiaddr

from adloco_p2p.core.model.scalars import PeerId
from adloco_p2p.swarm.p2p.addresses import PeerAddress
from adloco_p2p.swarm.p2p.hivemind_patches import connect

DIAL_TIMEOUT_SECONDS = 10.0
"""For one attempt to reach one peer."""
PAUSES_SECONDS = (0.5, 6.0)
"""Before the second and the third attempt, and up to half as long again: libp2p refuses for five seconds and a little more."""
_BACKOFF = "dial backoff"
"""What libp2p answers in place of a dial, for an address that failed a moment ago: not why it failed."""
_P2P = b"\xa5\x03"
"""The code of /p2p/ in a binary multiaddress."""


async def dial(p2p: P2P, addresses: Iterable[PeerAddress]) -> dict[PeerId, str | None]:
    """Connect to every peer over any of its addresses, all at once. Peer -> the problem in words, or none."""
    transports: dict[PeerId, list[str]] = {}
    for address in addresses:
        transports.setdefault(address.peer, []).append(address.transport)

    async def dial_one(peer: PeerId) -> str | None:
        try:
            async with asyncio.timeout(DIAL_TIMEOUT_SECONDS):
                await connect(p2p, peer, [dialable(text) for text in transports[peer]])
        except TimeoutError:
            return f"no answer within {DIAL_TIMEOUT_SECONDS:g} s"
        except (P2PDaemonError, OSError, asyncio.IncompleteReadError) as error:
            return _last_words(str(error))
        return None

    peers = list(transports)
    return dict(zip(peers, await asyncio.gather(*(dial_one(peer) for peer in peers)), strict=True))


async def dial_with_retries(
    p2p: P2P, addresses: Iterable[PeerAddress], *, draw: Callable[[], float] = random.random
) -> dict[PeerId, str | None]:
    """As `dial`, but a peer that was not reached is tried again. The reason that is kept is the first."""
    wanted = tuple(addresses)
    problems: dict[PeerId, str | None] = {}
    for pause_seconds in (*PAUSES_SECONDS, None):
        for peer, problem in (await dial(p2p, wanted)).items():
            problems[peer] = None if problem is None else first_reason(problems.get(peer), problem)
        wanted = tuple(address for address in wanted if problems[address.peer] is not None)
        if not wanted or pause_seconds is None:
            break
        await asyncio.sleep(pause_seconds * (1 + draw() / 2))
    return problems


def first_reason(earlier: str | None, problem: str) -> str:
    """Of two problems with one peer the one that states why: the earlier, unless it is only that libp2p did not dial."""
    return problem if earlier is None or _BACKOFF in earlier else earlier


def _last_words(message: str) -> str:
    """The cause, out of libp2p's message: a line that states that all dials failed, and one about every address."""
    lines = [line.strip(" *") for line in message.splitlines() if line.strip()]
    causes = lines[1:] or lines or ["refused"]
    not_dialled = f"it failed a moment ago, and libp2p does not dial again so soon ({_BACKOFF})"
    return next((line[-200:] for line in reversed(causes) if _BACKOFF not in line), not_dialled)


def dialable(transport: str) -> Multiaddr:
    """The part before the last /p2p/ of an address, as p2pd reads it: hivemind writes the PeerID of a relay in a form (CIDv1)
    that p2pd refuses, together with all other addresses of the same call."""
    head, *hops = transport.split("/p2p/")
    encoded = Multiaddr(head).to_bytes()
    for hop in hops:
        relay, _, rest = hop.partition("/")
        identity = PeerID.from_base58(relay).to_bytes()
        encoded += _P2P + bytes([len(identity)]) + identity + (Multiaddr(f"/{rest}").to_bytes() if rest else b"")
    return Multiaddr(encoded)
