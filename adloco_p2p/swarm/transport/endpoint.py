"""One peer's endpoint for one kind of traffic: it opens, paces and counts streams, and tells strangers from members."""

from collections.abc import Callable, Collection
from dataclasses import KW_ONLY, dataclass, field

from hivemind.p2p import P2P

from adloco_p2p.core.model.scalars import PeerId
from adloco_p2p.swarm.transport.framed_stream import FramedStream, Pacing, open_stream
from adloco_p2p.swarm.transport.traffic import Meter


@dataclass(slots=True)
class Endpoint:
    """The endpoint of one kind of traffic. Belongs to one event loop."""

    p2p: P2P
    _: KW_ONLY
    pace: Pacing | None = None
    """The rate limiter of sent and received data, if there is one."""
    meter: Meter = field(default_factory=Meter)
    members: Callable[[], Collection[PeerId]] = frozenset
    """Returns the peers that have a seat now."""

    @property
    def me(self) -> PeerId:
        return PeerId(str(self.p2p.peer_id))

    def is_stranger(self, peer: PeerId) -> bool:
        """Return whether the peer has no seat. Strangers get few places and share small budgets, because identities are free.
        To a peer without a seat of its own, which may have no roster yet, no peer is a stranger."""
        members = self.members()
        return peer not in members and self.me in members

    async def open_stream(self, peer: PeerId, handler: str, *, timeout_seconds: float) -> FramedStream:
        """Open a new stream to the peer's handler. Raises StreamLost."""
        return self.take_over(await open_stream(self.p2p, peer, handler, timeout_seconds=timeout_seconds))

    def take_over(self, stream: FramedStream) -> FramedStream:
        """Pace the stream and count its bytes from the first one on; return it."""
        stream.count_into(self.meter)
        stream.pace = self.pace
        return stream
