"""Connecting to peers, with retries where these help.

Two peers that dial each other at the same moment can both fail, because each takes itself for the caller. libp2p then refuses
to dial the other one again for some seconds. So a second and a third attempt follow after pauses of random length.
"""

import asyncio
import random
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from hivemind.p2p import P2P, PeerID
from hivemind.p2p.p2p_daemon_bindings.control import P2PDaemonError
from hivemind.utils.multiaddr import Multiaddr

from adloco_p2p.core.model.scalars import PeerId
from adloco_p2p.swarm.p2p.addresses import PeerAddress
from adloco_p2p.swarm.p2p.hivemind_patches import connect

DIAL_TIMEOUT_SECONDS = 10.0
"""The time limit for one attempt to reach one peer."""
PAUSES_SECONDS = (0.5, 6.0)
"""The least pauses before the second and the third attempt; a random part of up to half is added. libp2p refuses to dial for a
little more than five seconds."""
_BACKOFF = "dial backoff"
"""The answer of libp2p when it does not dial an address that failed a moment ago. It does not say why that failed."""
_OTHER_KEY = re.compile(r"peer id mismatch: .* remote key matches (\w+)")
_NO_PEER = "message did not have trailing newline"
"""libp2p's words for an answer that begins no handshake of libp2p, such as that of a web server."""
_P2P = b"\xa5\x03"
"""The code of /p2p/ in a binary multiaddress."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """Why a peer was not reached."""

    reason: str
    """In words."""
    is_another: bool = False
    """At every address another peer answers. Another attempt would find the same, unlike where nobody listens: there the peer
    may be about to start."""


async def dial(p2p: P2P, addresses: Iterable[PeerAddress]) -> dict[PeerId, str | None]:
    """Connect to all peers as `attempt` does. Return the problem of each peer in words, or None."""
    found = await attempt(p2p, addresses)
    return {peer: None if failure is None else failure.reason for peer, failure in found.items()}


async def attempt(
    p2p: P2P, addresses: Iterable[PeerAddress], *, timeout_seconds: float = DIAL_TIMEOUT_SECONDS
) -> dict[PeerId, Failure | None]:
    """Connect to all peers at once, each over any of its addresses. Return the failure of each peer, or None.

    Addresses that hivemind cannot encode are left out, because others announce them. Raises no error for any address.
    """
    transports: dict[PeerId, list[str]] = {}
    for address in addresses:
        transports.setdefault(address.peer, []).append(address.transport)

    async def dial_one(peer: PeerId) -> Failure | None:
        maddrs, problem = list[Multiaddr](), ""
        for text in transports[peer]:
            try:
                maddrs.append(dialable(text))
            except ValueError as error:
                problem = str(error)
        if not maddrs:
            return Failure(reason=problem[-200:], is_another=True)
        try:
            async with asyncio.timeout(timeout_seconds):
                await connect(p2p, peer, maddrs)
        except TimeoutError:
            return Failure(reason=f"no answer within {timeout_seconds:.3g} s")
        except (P2PDaemonError, OSError, asyncio.IncompleteReadError) as error:
            return _failure(str(error))
        return None

    peers = list(transports)
    return dict(zip(peers, await asyncio.gather(*(dial_one(peer) for peer in peers)), strict=True))


async def dial_with_retries(
    p2p: P2P, addresses: Iterable[PeerAddress], *, draw: Callable[[], float] = random.random
) -> dict[PeerId, str | None]:
    """Connect as `dial` does, but try peers that were not reached again. Return the first reason of each."""
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
    """Return the more telling of two problems with one peer: the earlier, unless it says only that libp2p did not dial."""
    return problem if earlier is None or _BACKOFF in earlier else earlier


def _failure(message: str) -> Failure:
    """Return the cause from libp2p's message, which has a line that says that all dials failed, and one for each address."""
    lines = [line.strip(" *") for line in message.splitlines() if line.strip()]
    causes = lines[1:] or lines or ["refused"]
    not_dialled = f"it failed a moment ago, and libp2p does not dial again so soon ({_BACKOFF})"
    return Failure(
        reason=next((_in_words(line)[-200:] for line in reversed(causes) if _BACKOFF not in line), not_dialled),
        is_another=all(_OTHER_KEY.search(line) for line in causes),
    )


def _in_words(line: str) -> str:
    """Return libp2p's reason for one address; where something else answers than the peer, in the words of this program."""
    address, _, reason = line.rpartition("] ")
    there = f"{address}] " if address else ""
    if found := _OTHER_KEY.search(reason):
        return f"{there}another peer answers there, {found[1]}: the address was changed on its way, or that peer began anew"
    return f"{there}what answers there is no peer, or a proxy is in between" if _NO_PEER in reason else line


def dialable(transport: str) -> Multiaddr:
    """Return the part before the last /p2p/ of an address in a form that p2pd reads. hivemind writes the PeerID of a relay as a
    CIDv1, for which p2pd refuses all addresses of the call. Raises ValueError where hivemind refuses it, as it does names of
    hosts with an underscore."""
    head, *hops = transport.split("/p2p/")
    encoded = Multiaddr(head).to_bytes()
    for hop in hops:
        relay, _, rest = hop.partition("/")
        identity = PeerID.from_base58(relay).to_bytes()
        encoded += _P2P + bytes([len(identity)]) + identity + (Multiaddr(f"/{rest}").to_bytes() if rest else b"")
    return Multiaddr(encoded)
