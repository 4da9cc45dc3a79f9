"""One peer's end of its traffic of one kind: how streams are opened, paced and counted, and which peers are strangers."""

from collections.abc import Callable, Collection
from dataclasses import KW_ONLY, dataclass, field

from hivemind.p2p import P2P

from adloco_p2p.core.model.scalars import PeerId
from adloco_p2p.swarm.transport.framed_stream import FramedStream, Pacing, open_stream
from adloco_p2p.swarm.transport.traffic import Meter


@dataclass(slots=True)
class Endpoint:
    """For one event loop."""

    p2p: P2P
    _: KW_ONLY
    pace: Pacing | None = None
    """Decides when data may be sent and read."""
    meter: Meter = field(default_factory=Meter)
    members: Callable[[], Collection[PeerId]] = frozenset
    """The peers that have a seat now."""

    @property
    def me(self) -> PeerId:
        return PeerId(str(self.p2p.peer_id))

    def is_stranger(self, peer: PeerId) -> bool:
        """Whether the peer has no seat: it gets few places and shares small budgets, so that free identities cost members
        nothing. A peer without a seat of its own has no roster yet and treats all alike: no peer is a stranger to it."""
        members = self.members()
        return peer not in members and self.me in members

    async def open_stream(self, peer: PeerId, handler: str, *, timeout_seconds: float) -> FramedStream:
        """A new stream to the peer's handler. Raises StreamLost."""
        return self.take_over(await open_stream(self.p2p, peer, handler, timeout_seconds=timeout_seconds))

    def take_over(self, stream: FramedStream) -> FramedStream:
        """The stream, paced and counted from its first byte on."""
        stream.count_into(self.meter)
        stream.pace = self.pace
        return stream
