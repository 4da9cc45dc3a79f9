"""Messages between peers: one envelope for every kind, checked here and nowhere else before the core sees the value.

Who sent a message is known from the connection (libp2p proves the PeerID of the other end), so an envelope carries no
signature; what is passed on from third parties is signed inside the message, and checked by whoever reads it.
A refusal travels back as `Ack.reason`: the user at the other end learns why nobody answers.

Wire names: hivemind builds them from the servicer's class name, so `AdlocoGossip` is part of the protocol.
"""

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from types import MappingProxyType

from google.protobuf.message import DecodeError
from hivemind.p2p import P2P, P2PContext, PeerID, ServicerBase
from hivemind.p2p.p2p_daemon_bindings.control import P2PDaemonError, P2PHandlerError

from adloco_p2p.codec import decode
from adloco_p2p.config.run import PROTOCOL_VERSION
from adloco_p2p.core import canonical
from adloco_p2p.core.types import Digest, PeerId
from adloco_p2p.errors import RemoteProtocolError, SwarmError
from adloco_p2p.swarm.discovery import SignedManifest
from adloco_p2p.swarm.inbox import Inbox
from adloco_p2p.swarm.throttle import TokenBucket, try_take_all
from adloco_p2p.swarm.traffic import Meter
from adloco_p2p.v1 import gossip_pb2

MAX_PAYLOAD_BYTES = 1 << 20
MAX_CONCURRENT_SENDS = 32
"""Of one broadcast."""
SEND_TIMEOUT_SECONDS = 5.0
MESSAGES_PER_SECOND = 200.0
MESSAGE_BURST = 400.0
BYTES_PER_SECOND = 8.0 * (1 << 20)
BYTES_BURST = 16.0 * (1 << 20)
"""What one remote peer may send; the rest is refused."""
STRANGER_MESSAGES_PER_SECOND = 100.0
STRANGER_MESSAGE_BURST = 400.0
STRANGER_BYTES_PER_SECOND = 4.0 * (1 << 20)
STRANGER_BYTES_BURST = 16.0 * (1 << 20)
"""What all strangers together may send: identities cost nothing, so a rate for each of them would be no limit."""
STRANGER_SENT_BYTES_PER_SECOND = 2.0 * (1 << 20)
STRANGER_SENT_BYTES_BURST = 16.0 * (1 << 20)
"""What all strangers together may make us send."""
SENT_BYTES_PER_SECOND = 0.5 * (1 << 20)
SENT_BYTES_BURST = 8.0 * (1 << 20)
"""What one remote peer may make us send, however often it asks; the rest is lost, as on a bad link."""
MAX_REMOTES = 8192
"""Remote peers whose rates are remembered; the ones not heard of for longest are forgotten."""
MAX_REASON_CHARS = 300

_NETWORK_ERRORS = (TimeoutError, P2PDaemonError, P2PHandlerError, DecodeError, OSError, asyncio.IncompleteReadError)
_log = logging.getLogger(__name__)

OnMessage = Callable[[PeerId, object], Awaitable[None]]
OnRefused = Callable[[PeerId, str], None]


class AdlocoGossip(ServicerBase):  # type: ignore[misc]  # hivemind is not typed
    """The RPCs that a peer serves. The names of class and methods are the wire's."""

    def __init__(self, wire: "GossipWire") -> None:
        self._wire = wire

    async def rpc_gossip(self, request: gossip_pb2.Envelope, context: P2PContext) -> gossip_pb2.Ack:
        reason = self._wire.accept(PeerId(str(context.remote_id)), request)
        return gossip_pb2.Ack(accepted=reason is None, reason=(reason or "")[:MAX_REASON_CHARS])

    async def rpc_manifest(self, request: gossip_pb2.ManifestRequest, context: P2PContext) -> gossip_pb2.ManifestReply:
        manifest = self._wire.manifest
        if manifest is None or request.run.hex() != self._wire.run or not self._wire.may_ask(context.remote_id):
            return gossip_pb2.ManifestReply()
        return gossip_pb2.ManifestReply(manifest=manifest.to_proto())


class GossipWire:
    """Sends and receives the messages of one run. `start`, then run `pump` in the node's task group, then `stop`."""

    def __init__(
        self,
        p2p: P2P,
        *,
        run: Digest,
        me: PeerId,
        kinds: Mapping[str, type],
        on_message: OnMessage,
        on_refused: OnRefused,
        manifest: SignedManifest | None = None,
        meter: Meter | None = None,
        members: Callable[[], Collection[PeerId]] = frozenset,
        stranger_kinds: Mapping[str, float] = MappingProxyType({}),
        prices: Mapping[str, float] = MappingProxyType({}),
    ) -> None:
        """`kinds` are the message types by their names on the wire. `on_message` is awaited for one message after the other;
        while it waits the inbox fills, and then senders are refused. `on_refused` is called with what other peers refuse, and
        why.

        `members` gives the peers that have a seat now; every other one is a stranger, may send `stranger_kinds` only, and
        shares one budget with all other strangers. Where this peer has no seat itself it does not know who has one, and
        treats all alike. What a message costs, in messages, stands in `stranger_kinds` and, for the budget that
        each peer has, in `prices`; 1 where nothing is named.
        """
        self.run = run
        self.manifest = manifest
        self._p2p = p2p
        self._me = me
        self._kinds = dict(kinds)
        self._names = {kind: name for name, kind in kinds.items()}
        assert len(self._names) == len(self._kinds)
        self._on_message = on_message
        self._on_refused = on_refused
        self._servicer = AdlocoGossip(self)
        self._inbox = Inbox()
        self._meter = meter or Meter()
        self._members = members
        self._stranger_kinds = dict(stranger_kinds)
        self._prices = dict(prices)
        self._from_remote = _Rates((MESSAGES_PER_SECOND, MESSAGE_BURST), (BYTES_PER_SECOND, BYTES_BURST))
        self._to_remote = _Rates((SENT_BYTES_PER_SECOND, SENT_BYTES_BURST))
        self._from_strangers = (
            TokenBucket(STRANGER_MESSAGES_PER_SECOND, burst=STRANGER_MESSAGE_BURST),
            TokenBucket(STRANGER_BYTES_PER_SECOND, burst=STRANGER_BYTES_BURST),
        )
        self._to_strangers = TokenBucket(STRANGER_SENT_BYTES_PER_SECOND, burst=STRANGER_SENT_BYTES_BURST)

    async def start(self) -> None:
        """From now on others can send to this peer."""
        await self._servicer.add_p2p_handlers(self._p2p)

    async def stop(self) -> None:
        """Accept nothing more. What lies in the inbox is dropped."""
        if not self._p2p.is_alive:
            return
        try:
            async with asyncio.timeout(SEND_TIMEOUT_SECONDS):
                await self._servicer.remove_p2p_handlers(self._p2p)
        except _NETWORK_ERRORS as error:  # the daemon died
            _log.debug("gossip handlers not removed: %r", error)

    async def pump(self) -> None:
        """Hands the received messages to `on_message`, for ever. Raises what that raises."""
        while True:
            sender, message = await self._inbox.get()
            await self._on_message(sender, message)

    async def send(self, peer: PeerId, message: object) -> bool:
        """Whether the peer took the message. Gossip: no second try, and no error for anything that the network does."""
        return await self._send_envelope(peer, self._envelope(message))

    async def broadcast(self, peers: Iterable[PeerId], message: object) -> int:
        """Send to all of them, this peer left out; returns how many took it."""
        envelope = self._envelope(message)
        slots = asyncio.Semaphore(MAX_CONCURRENT_SENDS)

        async def send(peer: PeerId) -> bool:
            async with slots:
                return await self._send_envelope(peer, envelope)

        return sum(await asyncio.gather(*(send(peer) for peer in dict.fromkeys(peers) if peer != self._me)))

    def accept(self, remote: PeerId, envelope: gossip_pb2.Envelope) -> str | None:
        """Check an envelope that came from `remote` and put its message into the inbox; or the reason why not."""
        self._meter.received_bytes += envelope.ByteSize()
        kind = self._kinds.get(envelope.kind)
        is_stranger, num_bytes = self._is_stranger(remote), len(envelope.payload)
        if not self._from_remote.try_take(remote, self._prices.get(envelope.kind, 1.0), envelope.ByteSize()):
            return "too many messages"
        if envelope.protocol_version != PROTOCOL_VERSION:
            return f"protocol version {envelope.protocol_version} is not spoken here, but version {PROTOCOL_VERSION}"
        if envelope.run.hex() != self.run:
            return f"this peer takes part in run {self.run}, the message belongs to run {envelope.run.hex()[:64]}"
        if envelope.sender != remote:
            return f"the envelope names another sender than {remote}"
        if kind is None:
            return "unknown kind of message"
        if is_stranger and envelope.kind not in self._stranger_kinds:
            return f"only members send {envelope.kind}, and the newest plan that is known here gives no seat to the sender"
        if not self._inbox.has_room(remote, num_bytes, is_stranger=is_stranger, num_members=len(self._members())):
            return "the inbox is full"
        if is_stranger and not self._pay_as_stranger(self._stranger_kinds[envelope.kind], envelope.ByteSize()):
            return "too many messages of peers without a seat"
        try:
            message: object = decode(kind, envelope.payload, max_bytes=MAX_PAYLOAD_BYTES)
        except RemoteProtocolError as error:
            return str(error)
        self._inbox.put(remote, message, num_bytes, is_stranger=is_stranger)
        return None

    def may_ask(self, remote: object) -> bool:
        """Whether this remote peer may have the manifest now: it keeps to its rate, and strangers to theirs."""
        peer = PeerId(str(remote))
        return self._from_remote.try_take(peer, 1.0, 0.0) and (not self._is_stranger(peer) or self._pay_as_stranger(1.0, 0.0))

    def _is_stranger(self, peer: PeerId) -> bool:
        members = self._members()
        return self._me in members and peer not in members

    def _pay_as_stranger(self, price: float, num_bytes: float) -> bool:
        """Take from what all strangers have together. Nothing is left to take where the answers to them used up their share of
        the uplink: the work would be for nothing."""
        can_answer = self._to_strangers.has(MAX_PAYLOAD_BYTES)
        return can_answer and try_take_all(self._from_strangers, (price, num_bytes))

    def _envelope(self, message: object) -> gossip_pb2.Envelope:
        payload = canonical.encode(message)
        assert len(payload) <= MAX_PAYLOAD_BYTES, f"{type(message).__name__} of {len(payload)} bytes"
        return gossip_pb2.Envelope(
            protocol_version=PROTOCOL_VERSION,
            run=bytes.fromhex(self.run),
            sender=self._me,
            kind=self._names[type(message)],
            payload=payload,
        )

    async def _send_envelope(self, peer: PeerId, envelope: gossip_pb2.Envelope) -> bool:
        is_within = self._to_remote.try_take(peer, envelope.ByteSize())
        if not is_within or (self._is_stranger(peer) and not self._to_strangers.try_take(envelope.ByteSize())):
            _log.debug("%s to %s was not sent: it has had too much", envelope.kind, peer)
            return False
        self._meter.sent_bytes += envelope.ByteSize()
        try:
            ack = await AdlocoGossip.get_stub(self._p2p, _hivemind_id(peer)).rpc_gossip(envelope, timeout=SEND_TIMEOUT_SECONDS)
        except _NETWORK_ERRORS as error:
            _log.debug("%s to %s was lost: %r", envelope.kind, peer, error)
            return False
        if not ack.accepted:
            self._on_refused(peer, ack.reason[:MAX_REASON_CHARS])
        return bool(ack.accepted)


class _Rates:
    """Token buckets of every remote peer, one for each limit (rate, burst)."""

    def __init__(self, *limits: tuple[float, float]) -> None:
        self._limits = limits
        self._buckets: OrderedDict[PeerId, tuple[TokenBucket, ...]] = OrderedDict()

    def try_take(self, peer: PeerId, *amounts: float) -> bool:
        """Take from every bucket, or from none where one of them has too little."""
        buckets = self._buckets.pop(peer, None)
        if buckets is None:
            buckets = tuple(TokenBucket(rate, burst=burst) for rate, burst in self._limits)
        self._buckets[peer] = buckets
        if len(self._buckets) > MAX_REMOTES:
            self._buckets.popitem(last=False)
        return try_take_all(buckets, amounts)


async def fetch_manifest(p2p: P2P, peers: Iterable[PeerId], run: Digest) -> SignedManifest:
    """The manifest of `run` from the first of `peers` that has it. Its digest and signature are verified; raises SwarmError."""
    problems = []
    for peer in peers:
        request = gossip_pb2.ManifestRequest(run=bytes.fromhex(run))
        try:
            reply = await AdlocoGossip.get_stub(p2p, _hivemind_id(peer)).rpc_manifest(request, timeout=SEND_TIMEOUT_SECONDS)
            if not reply.HasField("manifest"):
                raise RemoteProtocolError("does not hold it")
            manifest = SignedManifest.from_proto(reply.manifest)
            manifest.verified(run)
        except (RemoteProtocolError, *_NETWORK_ERRORS) as error:
            problems.append(f"  {peer}: {error or 'no answer'}")
        else:
            return manifest
    raise SwarmError(
        f"nobody could give the manifest of run {run}:\n" + "\n".join(problems or ["  no peer is known"]), code="E304"
    )


def _hivemind_id(peer: PeerId) -> PeerID:
    return PeerID.from_base58(peer)
