"""Counters of network traffic: payload and our own framing, without what libp2p adds."""

from dataclasses import dataclass, field

from adloco_p2p.core.model.scalars import PeerId


@dataclass(slots=True)
class Meter:
    """Bytes of one kind of traffic since the process began."""

    sent_bytes: int = 0
    received_bytes: int = 0
    senders: set[PeerId] = field(default_factory=set)
    """The peers whose bytes have come since `take_senders`."""

    def take_senders(self) -> set[PeerId]:
        """Return the peers whose bytes have come since the last call."""
        taken, self.senders = self.senders, set()
        return taken


@dataclass(frozen=True, slots=True)
class Traffic:
    """The meters of all kinds of traffic. They include failed attempts, repeated messages and uploads to others."""

    averaging: Meter = field(default_factory=Meter)
    gossip: Meter = field(default_factory=Meter)
    state: Meter = field(default_factory=Meter)

    @property
    def total(self) -> tuple[int, int]:
        """Bytes sent and received, of all kinds."""
        totals = self.totals().values()
        return sum(sent for sent, _ in totals), sum(received for _, received in totals)

    def totals(self) -> dict[str, tuple[int, int]]:
        """Return the bytes sent and received, by kind."""
        meters = {"averaging": self.averaging, "gossip": self.gossip, "state": self.state}
        return {kind: (meter.sent_bytes, meter.received_bytes) for kind, meter in meters.items()}
