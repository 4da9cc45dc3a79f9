"""Gossip messages between peers, in one form of envelope for all kinds. They are checked here, before the core sees them.

The connection proves the sender of a message (libp2p authenticates the PeerID of the other end), so an envelope carries no
signature. Content of third parties is signed within the message, and its reader checks that. A refusal travels back as
`Ack.reason`, so that the user at the other end learns why no peer answers.

hivemind builds the names on the wire from the servicer's class name, so `AdlocoGossip` is part of the protocol.
"""

import asyncio
import hashlib
import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from google.protobuf.message import DecodeError
from hivemind.p2p import P2PContext, PeerID, ServicerBase
from hivemind.p2p.p2p_daemon_bindings.control import P2PDaemonError, P2PHandlerError

from adloco_p2p.core.model import canonical
from adloco_p2p.core.model.messages import MAX_MESSAGE_BYTES
from adloco_p2p.core.model.protocol import NEWEST, OLDEST, PROTOCOLS
from adloco_p2p.core.model.scalars import Digest, PeerId
from adloco_p2p.decode import decode
from adloco_p2p.errors import RemoteProtocolError
from adloco_p2p.swarm.transport.endpoint import Endpoint
from adloco_p2p.swarm.transport.inbox import Inbox
from adloco_p2p.swarm.transport.pieces import (
    MAX_PAYLOAD_BYTES,
    Assembly,
    check_plain_bytes,
    deflated,
    in_pieces,
    inflate,
    num_charged_bytes,
    num_plain_bytes,
)
from adloco_p2p.swarm.transport.token_bucket import TokenBucket, try_take_all
from adloco_p2p.v1 import gossip_pb2

MAX_CONCURRENT_SENDS = 32
"""Sends of one broadcast that run at the same time."""
SEND_TIMEOUT_SECONDS = 5.0
MESSAGES_PER_SECOND = 200.0
MESSAGE_BURST = 400.0
BYTES_PER_SECOND = 8.0 * (1 << 20)
BYTES_BURST = 16.0 * (1 << 20)
"""Messages and bytes that one remote peer may send; more are refused."""
OWN_MESSAGES_PER_SECOND = 20.0
OWN_MESSAGE_BURST = 100.0
OWN_BYTES_PER_SECOND = 64.0 * (1 << 10)
OWN_BYTES_BURST = 4.0 * (1 << 20)
COMMON_MESSAGES_PER_SECOND = 200.0
COMMON_MESSAGE_BURST = 800.0
COMMON_BYTES_PER_SECOND = BYTES_PER_SECOND
COMMON_BYTES_BURST = 32.0 * (1 << 20)
"""Of these, what each member may send in any case, and what all members together may send beyond that. The event loop reads
all messages, so rates for each alone would let a few members take all of its time. All that a member has to send is far within
its own share, except histories; while others use up the common one, those are lost as on a bad link, and asked for again."""
STRANGER_MESSAGES_PER_SECOND = 100.0
STRANGER_MESSAGE_BURST = 400.0
STRANGER_BYTES_PER_SECOND = 4.0 * (1 << 20)
STRANGER_BYTES_BURST = 16.0 * (1 << 20)
"""Messages and bytes that all strangers together may send: identities are free, so a rate for each would be no limit."""
STRANGER_SENT_BYTES_PER_SECOND = 2.0 * (1 << 20)
STRANGER_SENT_BYTES_BURST = 16.0 * (1 << 20)
"""Bytes of answers that all strangers together may cause."""
SENT_BYTES_PER_SECOND = 0.5 * (1 << 20)
SENT_BYTES_BURST = 8.0 * (1 << 20)
"""Bytes of answers that one remote peer may cause, however often it asks. More are lost, as on a bad link; only the pieces of
one message wait instead."""
SENT_PLAIN_BYTES_PER_SECOND = BYTES_PER_SECOND / 2
SENT_PLAIN_BYTES_BURST = BYTES_BURST / 2
"""The same in plain bytes, as the receiver counts them: well within its limit, so that no message in pieces is refused
midway."""
MAX_REMOTES = 8192
"""Remote peers whose rates are remembered; the least recent ones are forgotten."""
MAX_REASON_CHARS = 300
NETWORK_ERRORS = (TimeoutError, P2PDaemonError, P2PHandlerError, DecodeError, OSError, asyncio.IncompleteReadError)
logger = logging.getLogger(__name__)
OnMessage = Callable[[PeerId, Any], Awaitable[None]]
OnRefused = Callable[[PeerId, str], None]


class AdlocoGossip(ServicerBase):  # type: ignore[misc]  # hivemind is not typed
    """The RPCs that a peer serves. The names of the class and its methods are part of the protocol."""

    def __init__(self, wire: "GossipWire") -> None:
        self._wire = wire

    async def rpc_gossip(self, request: gossip_pb2.Envelope, context: P2PContext) -> gossip_pb2.Ack:
        reason = self._wire.accept(PeerId(str(context.remote_id)), request)
        return gossip_pb2.Ack(accepted=reason is None, reason=(reason or "")[:MAX_REASON_CHARS])

    async def rpc_manifest(self, request: gossip_pb2.ManifestRequest, context: P2PContext) -> gossip_pb2.ManifestReply:
        return self._wire.manifest_for(PeerId(str(context.remote_id)), request)


class GossipWire:
    """Sends and receives the messages of one run. `start`, then run `pump` in the node's task group, then `stop`."""

    def __init__(
        self,
        endpoint: Endpoint,
        *,
        run: Digest,
        kinds: Mapping[str, type],
        on_message: OnMessage,
        on_refused: OnRefused,
        manifest: gossip_pb2.SignedManifest | None = None,
        stranger_kinds: Mapping[str, float] = MappingProxyType({}),
        prices: Mapping[str, float] = MappingProxyType({}),
        protocol: int = NEWEST,
    ) -> None:
        """`kinds` are the message types by their names on the wire. `on_message` is awaited for one message after the other;
        while it waits the inbox fills, and then messages are refused. `on_refused` is called with a peer that refuses a message
        and its reason.

        A stranger may send only `stranger_kinds`, and shares one budget with all other strangers. A message may cost as much as
        several: `stranger_kinds` has the prices for that budget, and `prices`, by default 1, those for the budget of each peer.
        Messages in pieces are taken from members, and from peers that this one has sent something. The endpoint's pace is not
        used. `protocol` is the one that the run begins with, in whose form all messages are sent.
        """
        self.run = run
        self.manifest = manifest
        self._protocol = protocol
        self._endpoint = endpoint
        self._p2p = endpoint.p2p
        self._me = endpoint.me
        self._kinds = dict(kinds)
        self._names = {kind: name for name, kind in kinds.items()}
        assert len(self._names) == len(self._kinds)
        self._on_message = on_message
        self._on_refused = on_refused
        self._servicer = AdlocoGossip(self)
        self._inbox = Inbox()
        self._stranger_kinds = dict(stranger_kinds)
        self._prices = dict(prices)
        self._assembly = Assembly()
        self._in_pieces: dict[PeerId, None] = {}
        """The peers that are being sent a message in pieces."""
        self._meter = endpoint.meter
        self._from_remote = _Rates((MESSAGES_PER_SECOND, MESSAGE_BURST), (BYTES_PER_SECOND, BYTES_BURST))
        self._to_remote = _Rates(
            (SENT_BYTES_PER_SECOND, SENT_BYTES_BURST), (SENT_PLAIN_BYTES_PER_SECOND, SENT_PLAIN_BYTES_BURST)
        )
        self._from_strangers = (
            TokenBucket(STRANGER_MESSAGES_PER_SECOND, burst=STRANGER_MESSAGE_BURST),
            TokenBucket(STRANGER_BYTES_PER_SECOND, burst=STRANGER_BYTES_BURST),
        )
        self._to_strangers = TokenBucket(STRANGER_SENT_BYTES_PER_SECOND, burst=STRANGER_SENT_BYTES_BURST)
        self._shares = _Rates((OWN_MESSAGES_PER_SECOND, OWN_MESSAGE_BURST), (OWN_BYTES_PER_SECOND, OWN_BYTES_BURST))
        self._from_members = (
            TokenBucket(COMMON_MESSAGES_PER_SECOND, burst=COMMON_MESSAGE_BURST),
            TokenBucket(COMMON_BYTES_PER_SECOND, burst=COMMON_BYTES_BURST),
        )

    async def start(self) -> None:
        """Begin to accept messages."""
        await self._servicer.add_p2p_handlers(self._p2p)

    async def stop(self) -> None:
        """Accept no more messages."""
        if not self._p2p.is_alive:
            return
        try:
            async with asyncio.timeout(SEND_TIMEOUT_SECONDS):
                await self._servicer.remove_p2p_handlers(self._p2p)
        except NETWORK_ERRORS as error:  # the daemon died
            logger.debug("gossip handlers not removed: %r", error)

    async def pump(self) -> None:
        """Hand the received messages to `on_message`, until cancelled. Raises as `on_message` does."""
        while True:
            sender, message = await self._inbox.get()
            await self._on_message(sender, message)

    async def send(self, peer: PeerId, message: object) -> bool:
        """Send a message, and return whether the peer took it. There is no second try, and no network error is raised."""
        if not self._to_remote.has_any(peer):
            logger.debug("%s to %s was not sent: it has had too much", type(message).__name__, peer)
            return False
        return await self._send_envelopes(peer, self._envelopes(message))

    async def broadcast(self, peers: Iterable[PeerId], message: object) -> int:
        """Send a message to all peers except this one; return how many took it."""
        envelopes = self._envelopes(message)
        slots = asyncio.Semaphore(MAX_CONCURRENT_SENDS)

        async def send(peer: PeerId) -> bool:
            async with slots:
                return await self._send_envelopes(peer, envelopes)

        return sum(await asyncio.gather(*(send(peer) for peer in dict.fromkeys(peers) if peer != self._me)))

    def accept(self, remote: PeerId, envelope: gossip_pb2.Envelope) -> str | None:
        """Check an envelope from `remote`, and put its message into the inbox once it is complete. Return the reason of a
        refusal, or None."""
        self._meter.received_bytes += envelope.ByteSize()
        self._assembly.drop_stale()
        num_bytes, price = num_charged_bytes(envelope), self._prices.get(envelope.kind, 1.0)
        if not self._from_remote.try_take(remote, price, num_bytes):
            return "too many messages"
        if not OLDEST <= envelope.protocol_version <= NEWEST:
            return f"a message of protocol {envelope.protocol_version} is not read here, but {PROTOCOLS}"
        if envelope.run.hex() != self.run:
            return f"this peer takes part in run {self.run}, the message belongs to run {envelope.run.hex()[:64]}"
        if envelope.sender != remote:
            return f"the envelope names another sender than {remote}"
        if envelope.kind not in self._kinds:
            return "unknown kind of message"
        is_stranger = self._endpoint.is_stranger(remote)
        if is_stranger and envelope.kind not in self._stranger_kinds:
            return f"only members send {envelope.kind}, and the newest plan that the receiver has gives no seat to the sender"
        try:
            check_plain_bytes(envelope)
        except RemoteProtocolError as error:
            return str(error)
        if not self._has_room(remote, num_plain_bytes(envelope), is_stranger=is_stranger):
            return "the inbox is full"
        if is_stranger and not self._pay_as_stranger(self._stranger_kinds[envelope.kind], num_bytes):
            return "too many messages of peers without a seat"
        if not is_stranger and not self._pay_as_member(remote, price, num_bytes):
            return "too many messages of all members together"
        return self._take(remote, envelope, is_stranger=is_stranger)

    def _take(self, remote: PeerId, envelope: gossip_pb2.Envelope, *, is_stranger: bool) -> str | None:
        """Put the decoded message into the inbox once it is complete. Return the reason of a refusal, or None."""
        try:
            inflate(envelope)
            payload = self._whole(remote, envelope) if envelope.num_pieces else envelope.payload
            if payload is None:
                return None
            if not self._has_room(remote, len(payload), is_stranger=is_stranger):
                return "the inbox is full"
            max_bytes = MAX_MESSAGE_BYTES if envelope.num_pieces else MAX_PAYLOAD_BYTES
            message: object = decode(self._kinds[envelope.kind], payload, max_bytes=max_bytes)
        except RemoteProtocolError as error:
            return str(error)
        self._inbox.put(remote, message, len(payload), is_stranger=is_stranger)
        return None

    def _has_room(self, remote: PeerId, num_bytes: int, *, is_stranger: bool) -> bool:
        return self._inbox.has_room(remote, num_bytes, is_stranger=is_stranger, num_members=len(self._endpoint.members()))

    def _whole(self, remote: PeerId, envelope: gossip_pb2.Envelope) -> bytes | None:
        """Return the message of which this is the last piece; None for earlier pieces. Raises RemoteProtocolError."""
        is_member = remote in self._endpoint.members()
        if not is_member and remote not in self._to_remote:
            raise RemoteProtocolError("messages in pieces are taken from members, and from peers that were asked")
        return self._assembly.take(remote, envelope, is_member=is_member)

    def manifest_for(self, remote: PeerId, request: gossip_pb2.ManifestRequest) -> gossip_pb2.ManifestReply:
        """Return the reply to a remote peer; an empty one if the manifest is not here, or the budget of the peer or of
        strangers is used up."""
        num_bytes = request.ByteSize()
        self._meter.received_bytes += num_bytes
        empty = gossip_pb2.ManifestReply()
        if self.manifest is None or request.run.hex() != self.run or not self._from_remote.try_take(remote, 1.0, num_bytes):
            return empty
        if self._endpoint.is_stranger(remote) and not self._pay_as_stranger(1.0, num_bytes):
            return empty
        reply = gossip_pb2.ManifestReply(manifest=self.manifest)
        if not self._pay_for_sending(remote, reply.ByteSize(), reply.ByteSize()):
            return empty
        self._meter.sent_bytes += reply.ByteSize()
        return reply

    def _pay_as_stranger(self, price: float, num_bytes: float) -> bool:
        """Take from the common budget of strangers, and return whether it sufficed. It counts as empty while the answers to
        strangers have used up their share of the uplink, because the work would be for nothing."""
        can_answer = self._to_strangers.has(MAX_PAYLOAD_BYTES)
        return can_answer and try_take_all(self._from_strangers, (price, num_bytes))

    def _pay_as_member(self, remote: PeerId, price: float, num_bytes: float) -> bool:
        """Take from the member's own share, else from what members have in common; return whether one of the two sufficed."""
        amounts = (price, num_bytes)
        return self._shares.try_take(remote, *amounts) or try_take_all(self._from_members, amounts)

    def _envelopes(self, message: object) -> list[gossip_pb2.Envelope]:
        """Return the envelopes of a message, one for each piece; none for a message that no peer would accept."""
        payload = canonical.encode(message)
        if len(payload) > MAX_MESSAGE_BYTES:
            logger.error("%s of %d bytes is too large to be sent", type(message).__name__, len(payload))
            return []
        head = gossip_pb2.Envelope(
            protocol_version=self._protocol,
            run=bytes.fromhex(self.run),
            sender=self._me,
            kind=self._names[type(message)],
        )
        pieces = in_pieces(payload)
        if len(pieces) > 1:
            head.num_pieces, head.digest = len(pieces), hashlib.sha256(payload).digest()
        envelopes = []
        for number, piece in enumerate(pieces):
            envelope = gossip_pb2.Envelope()
            envelope.CopyFrom(head)
            short = deflated(piece)
            envelope.piece, envelope.payload = number, short or piece
            envelope.plain_bytes = len(piece) if short else 0
            envelopes.append(envelope)
        return envelopes

    async def _send_envelopes(self, peer: PeerId, envelopes: Sequence[gossip_pb2.Envelope]) -> bool:
        """Send envelopes, and return whether the peer took all of them. A peer gets one message in pieces at a time; a further
        one is lost."""
        if len(envelopes) == 1:
            (envelope,) = envelopes
            if self._pay_for_sending(peer, envelope.ByteSize(), num_charged_bytes(envelope)):
                return await self._send_envelope(peer, envelope)
            logger.debug("%s to %s was not sent: it has had too much", envelope.kind, peer)
            return False
        if not envelopes or peer in self._in_pieces:
            return False
        self._in_pieces[peer] = None
        try:
            for envelope in envelopes:
                await self._to_remote.take(peer, envelope.ByteSize(), num_charged_bytes(envelope))
                if self._endpoint.is_stranger(peer):
                    await self._to_strangers.take(envelope.ByteSize())
                if not await self._send_envelope(peer, envelope):
                    return False
        finally:
            del self._in_pieces[peer]
        return True

    def _pay_for_sending(self, peer: PeerId, num_bytes: int, num_charged: int) -> bool:
        """Take from the budget of the peer, and from that of strangers if it is one; return whether both sufficed. Else none is
        charged."""
        is_stranger = self._endpoint.is_stranger(peer)
        if is_stranger and not self._to_strangers.has(num_bytes):
            return False
        has_paid = self._to_remote.try_take(peer, num_bytes, num_charged)
        if has_paid and is_stranger:
            self._to_strangers.try_take(num_bytes)
        return has_paid

    async def _send_envelope(self, peer: PeerId, envelope: gossip_pb2.Envelope) -> bool:
        self._meter.sent_bytes += envelope.ByteSize()
        try:
            ack = await AdlocoGossip.get_stub(self._p2p, hivemind_id(peer)).rpc_gossip(envelope, timeout=SEND_TIMEOUT_SECONDS)
        except NETWORK_ERRORS as error:
            logger.debug("%s to %s was lost: %r", envelope.kind, peer, error)
            return False
        if not ack.accepted:
            self._on_refused(peer, ack.reason[:MAX_REASON_CHARS])
        return bool(ack.accepted)


class _Rates:
    """The token buckets of every remote peer, one for each limit (rate, burst)."""

    def __init__(self, *limits: tuple[float, float]) -> None:
        self._limits = limits
        self._buckets: OrderedDict[PeerId, tuple[TokenBucket, ...]] = OrderedDict()

    def __contains__(self, peer: PeerId) -> bool:
        return peer in self._buckets

    def try_take(self, peer: PeerId, *amounts: float) -> bool:
        """Take from every bucket, or from none if one of them has too little; return whether all had enough."""
        return try_take_all(self._of(peer), amounts)

    def has_any(self, peer: PeerId) -> bool:
        """Return whether every bucket has something left."""
        return all(bucket.has(1.0) for bucket in self._of(peer))

    async def take(self, peer: PeerId, *amounts: float) -> None:
        """Take from each bucket, and wait where it has too little."""
        for bucket, amount in zip(self._of(peer), amounts, strict=True):
            await bucket.take(amount)

    def _of(self, peer: PeerId) -> tuple[TokenBucket, ...]:
        buckets = self._buckets.pop(peer, None)
        if buckets is None:
            buckets = tuple(TokenBucket(rate, burst=burst) for rate, burst in self._limits)
        self._buckets[peer] = buckets
        if len(self._buckets) > MAX_REMOTES:
            self._buckets.popitem(last=False)
        return buckets


def hivemind_id(peer: PeerId) -> PeerID:
    return PeerID.from_base58(peer)
