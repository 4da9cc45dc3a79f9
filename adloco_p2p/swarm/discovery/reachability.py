"""Measurements of the paths between peers: clocks, reachability, throughput. Every peer serves them, even one that takes part
in no run.

A separate daemon with a throwaway identity dials back, because an open connection would prove nothing. It dials only the asker:
only addresses at the IP address from which the asker is connected, and libp2p accepts no other PeerID there. So a peer cannot
be made to probe third parties. All requests are limited per remote peer and in total.

hivemind builds the names on the wire from the servicer's class name, so `AdlocoReachability` is part of the protocol.
"""

import asyncio
import math
import os
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass

from hivemind.p2p import P2P, P2PContext, PeerID, ServicerBase

from adloco_p2p.core.model.protocol import NEWEST
from adloco_p2p.core.model.scalars import Digest, PeerId
from adloco_p2p.errors import ConfigError, SwarmError
from adloco_p2p.swarm.p2p.addresses import MAX_ADDRESSES, PeerAddress, check_address, parse_peer_address
from adloco_p2p.swarm.transport.gossip import NETWORK_ERRORS
from adloco_p2p.swarm.transport.token_bucket import TokenBucket
from adloco_p2p.v1 import gossip_pb2

TIMEOUT_SECONDS = 5.0
DIAL_BACK_SECONDS = 20.0
"""The time limit for dialling back, including the start of a daemon."""
SPEED_SECONDS = 20.0
CHUNK_BYTES = 256 * 1024
SPEED_BYTES = 2 << 20
"""Bytes that one measurement sends, and receives."""
SPEED_STREAMS = 4
"""Chunks in flight at the same time, so that a link with a long delay does not seem slow."""
PINGS_PER_SECOND, PING_BURST = 20.0, 100.0
DIALS_PER_SECOND, DIAL_BURST = 0.1, 5.0
SPEED_BYTES_PER_SECOND, SPEED_BURST_BYTES = 64.0 * 1024, 4.0 * SPEED_BYTES
"""The limits on the requests of all peers together."""
REMOTE_DIAL_SECONDS = 10.0
"""The least time between two requests of one remote peer to dial back."""
MAX_REMOTES = 1024

Dial = Callable[[Sequence[PeerAddress]], Awaitable[Mapping[str, str | None]]]
"""Dials addresses of one peer from outside, up to the first that leads there; returns the problem of each, or None."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClockReading:
    """Another peer's answer to a ping: its wall clock, protocol and run, and the address under which it sees this one."""

    offset_seconds: float
    """The other clock minus ours; the error is at most half the round trip."""
    round_trip_seconds: float
    protocol: int
    run: Digest
    """The run of the other peer; empty if it takes part in none."""
    observed: str
    """The address under which the other peer sees this one, such as /ip4/203.0.113.7/tcp/4001; empty if it reports none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Speed:
    """The measured throughput between this peer and another; a lower bound, because little is sent."""

    up_bytes_per_second: float
    down_bytes_per_second: float


class AdlocoReachability(ServicerBase):  # type: ignore[misc]  # hivemind is not typed
    """The RPCs that a peer serves. The names of the class and its methods are part of the protocol."""

    def __init__(
        self,
        p2p: P2P,
        *,
        run: Digest | None,
        dial: Dial,
        wall_clock: Callable[[], float] = time.time,
        protocol: Callable[[], int] = lambda: NEWEST,
    ) -> None:
        """`protocol` returns the protocol that the run follows now."""
        self._protocol = protocol
        self._p2p = p2p
        self._run = run
        self._dial = dial
        self._wall_clock = wall_clock
        self._pings = TokenBucket(PINGS_PER_SECOND, burst=PING_BURST)
        self._dials = TokenBucket(DIALS_PER_SECOND, burst=DIAL_BURST)
        self._speed = TokenBucket(SPEED_BYTES_PER_SECOND, burst=SPEED_BURST_BYTES)
        self._dialled_at: OrderedDict[str, float] = OrderedDict()
        self._is_dialling = asyncio.Lock()

    async def start(self) -> None:
        await self.add_p2p_handlers(self._p2p)

    async def stop(self) -> None:
        if self._p2p.is_alive:
            try:
                async with asyncio.timeout(TIMEOUT_SECONDS):
                    await self.remove_p2p_handlers(self._p2p)
            except NETWORK_ERRORS:  # the daemon died, and the handlers with it
                return

    async def rpc_ping(self, request: gossip_pb2.PingRequest, context: P2PContext) -> gossip_pb2.PingReply:
        del request  # the asker compares the versions, because it can report to its user
        observed = await self._observed(context.remote_id) if self._pings.try_take(1) else ()
        return gossip_pb2.PingReply(
            protocol_version=self._protocol(),
            run=bytes.fromhex(self._run or ""),
            wall_clock_seconds=self._wall_clock(),
            observed=observed[0] if observed else "",
        )

    async def rpc_dial_back(self, request: gossip_pb2.DialBackRequest, context: P2PContext) -> gossip_pb2.DialBackReply:
        remote = str(context.remote_id)
        if self._is_dialling.locked() or not self._may_dial(remote):
            return gossip_pb2.DialBackReply(refusal="asked too often; ask again in a minute, or another peer")
        async with self._is_dialling:
            hosts = {_host(maddr) for maddr in await self._observed(context.remote_id)}
            wanted = dialable_for(remote, request.addresses[:MAX_ADDRESSES], hosts)
            try:
                problems = await self._dial(wanted) if wanted else {}
            except SwarmError as error:
                return gossip_pb2.DialBackReply(refusal=f"cannot dial: {error}"[:300])
        results = [gossip_pb2.DialBackResult(address=text, problem=problem or "") for text, problem in problems.items()]
        return gossip_pb2.DialBackReply(results=results)

    async def rpc_speed(self, request: gossip_pb2.SpeedRequest, context: P2PContext) -> gossip_pb2.SpeedReply:
        del context
        if request.num_bytes > CHUNK_BYTES or len(request.payload) > CHUNK_BYTES:
            return gossip_pb2.SpeedReply(refusal=f"more than {CHUNK_BYTES} bytes")
        if not self._speed.try_take(len(request.payload) + request.num_bytes):
            return gossip_pb2.SpeedReply(refusal="asked too often; ask again in some minutes, or another peer")
        return gossip_pb2.SpeedReply(payload=os.urandom(request.num_bytes))

    def _may_dial(self, remote: str) -> bool:
        now = time.monotonic()
        if now - self._dialled_at.get(remote, -REMOTE_DIAL_SECONDS) < REMOTE_DIAL_SECONDS or not self._dials.try_take(1):
            return False
        self._dialled_at[remote] = now
        if len(self._dialled_at) > MAX_REMOTES:
            self._dialled_at.popitem(last=False)
        return True

    async def _observed(self, remote: PeerID) -> tuple[str, ...]:
        """Return the addresses of the remote's direct connections."""
        try:
            infos = await self._p2p.list_peers()
        except NETWORK_ERRORS:
            return ()
        maddrs = [str(maddr) for info in infos if info.peer_id == remote for maddr in info.addrs]
        return tuple(maddr for maddr in maddrs if "/p2p-circuit" not in maddr)


def dialable_for(remote: str, addresses: Sequence[str], hosts: set[str]) -> list[PeerAddress]:
    """Return the addresses that are the remote's own and lie at an IP address from which it is connected. Pure."""
    wanted = []
    for text in addresses:
        try:
            address = parse_peer_address(text)
        except ConfigError:
            continue
        is_direct = "/p2p-circuit" not in address.transport
        if address.peer == remote and is_direct and _host(address.transport) in hosts - {""}:
            wanted.append(address)
    return wanted


# --- asking --------------------------------------------------------------------------------------------------------------


async def ping(p2p: P2P, peer: PeerId, *, wall_clock: Callable[[], float] = time.time) -> ClockReading:
    """Ask another peer for its clock, protocol and run, and the address under which it sees this one. Raises SwarmError."""
    asked_at, started = wall_clock(), time.perf_counter()
    request = gossip_pb2.PingRequest(protocol_version=NEWEST)
    try:
        reply = await _stub(p2p, peer).rpc_ping(request, timeout=TIMEOUT_SECONDS)
    except NETWORK_ERRORS as error:
        raise SwarmError(f"{peer} does not answer: {error}") from error
    round_trip_seconds = time.perf_counter() - started
    if not math.isfinite(reply.wall_clock_seconds):
        raise SwarmError(f"{peer} names a time that is no number")
    return ClockReading(
        offset_seconds=reply.wall_clock_seconds - (asked_at + round_trip_seconds / 2),
        round_trip_seconds=round_trip_seconds,
        protocol=reply.protocol_version,
        run=Digest(reply.run.hex()),
        observed=_address_or_empty(reply.observed),
    )


def _address_or_empty(observed: str) -> str:
    """Return the address under which a peer claims to see this one; empty where it is none with the number of a host."""
    try:
        check_address(observed)
    except ConfigError:
        return ""
    return observed if observed.startswith(("/ip4/", "/ip6/")) else ""


async def ping_all(p2p: P2P, peers: Sequence[PeerId]) -> dict[PeerId, ClockReading]:
    """Ping all peers at once; return the answers of those that gave one."""

    async def ask(peer: PeerId) -> ClockReading | None:
        try:
            return await ping(p2p, peer)
        except SwarmError:
            return None

    answers = await asyncio.gather(*map(ask, peers))
    return {peer: answer for peer, answer in zip(peers, answers, strict=True) if answer is not None}


async def ask_to_dial_back(p2p: P2P, peer: PeerId, addresses: Sequence[str]) -> Mapping[str, str | None]:
    """Have `peer` dial these addresses of ours; return the problem, or None, of each that it tried. Raises SwarmError."""
    request = gossip_pb2.DialBackRequest(addresses=addresses[:MAX_ADDRESSES])
    try:
        reply = await _stub(p2p, peer).rpc_dial_back(request, timeout=DIAL_BACK_SECONDS)
    except NETWORK_ERRORS as error:
        raise SwarmError(f"{peer} does not answer: {error}") from error
    if reply.refusal:
        raise SwarmError(f"{peer}: {reply.refusal[:300]}")
    return {result.address: result.problem[:300] or None for result in reply.results if result.address in addresses}


async def measure_speed(p2p: P2P, peer: PeerId) -> Speed:
    """Measure the throughput by sending SPEED_BYTES, then receiving as many. Raises SwarmError."""
    up = [gossip_pb2.SpeedRequest(payload=os.urandom(CHUNK_BYTES))] * (SPEED_BYTES // CHUNK_BYTES)
    down = [gossip_pb2.SpeedRequest(num_bytes=CHUNK_BYTES)] * (SPEED_BYTES // CHUNK_BYTES)
    return Speed(
        up_bytes_per_second=SPEED_BYTES / await _timed(p2p, peer, up),
        down_bytes_per_second=SPEED_BYTES / await _timed(p2p, peer, down),
    )


async def _timed(p2p: P2P, peer: PeerId, requests: Sequence[gossip_pb2.SpeedRequest]) -> float:
    slots = asyncio.Semaphore(SPEED_STREAMS)

    async def exchange(request: gossip_pb2.SpeedRequest) -> None:
        async with slots:
            reply = await _stub(p2p, peer).rpc_speed(request, timeout=SPEED_SECONDS)
        if reply.refusal or len(reply.payload) != request.num_bytes:
            raise SwarmError(f"{peer}: {reply.refusal[:300] or 'sent another number of bytes'}")

    started = time.perf_counter()
    try:
        async with asyncio.timeout(SPEED_SECONDS):
            await asyncio.gather(*(exchange(request) for request in requests))
    except NETWORK_ERRORS as error:
        raise SwarmError(f"{peer} does not take part: {error or 'too slow'}") from error
    return time.perf_counter() - started


def _stub(p2p: P2P, peer: PeerId):  # type: ignore[no-untyped-def]
    return AdlocoReachability.get_stub(p2p, PeerID.from_base58(peer))


def _host(maddr: str) -> str:
    """Return the IP address in a multiaddress; empty for a name."""
    _, protocol, host, *_ = f"{maddr}//".split("/")
    return host if protocol in ("ip4", "ip6") else ""
