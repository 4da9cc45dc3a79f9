"""Counters of network traffic: payload and our own framing, without what libp2p adds."""

from dataclasses import dataclass, field

from adloco_p2p.core.model.scalars import PeerId

MAX_SENDERS = 1024
"""The most senders that are remembered where nobody takes them, as in a node that does not train."""


@dataclass(slots=True)
class Meter:
    """Bytes of one kind of traffic since the process began."""

    sent_bytes: int = 0
    received_bytes: int = 0
    senders: set[PeerId] = field(default_factory=set)
    """The peers whose bytes have come since `take_senders`, at most `MAX_SENDERS`."""

    def note_received(self, sender: PeerId, num_bytes: int) -> None:
        self.received_bytes += num_bytes
        if len(self.senders) < MAX_SENDERS:
            self.senders.add(sender)

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
