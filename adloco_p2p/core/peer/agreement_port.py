"""The port of the agreement for a peer, which gossip and a fixed roster implement."""

from collections.abc import Collection, Sequence
from typing import Protocol

from adloco_p2p.core.model.events import Outcome, Persist
from adloco_p2p.core.model.messages import AverageDigest
from adloco_p2p.core.model.plan import RoundPlan
from adloco_p2p.core.model.report import Report
from adloco_p2p.core.model.roster_entry import Capacity
from adloco_p2p.core.model.scalars import Digest, InstanceId, PeerId


class Agreement(Protocol):
    """Called by `Peer` only, never blocks."""

    @property
    def next_deadline(self) -> float | None:
        """The instant at which `tick` is to be called, or none."""

    @property
    def last_contact(self) -> float:
        """When a sign of life came last of a peer that has or had a seat, or is paused: no newcomer. At first, the start."""

    def start(self, plans: Sequence[RoundPlan], reports: Sequence[Report], now: float) -> list[Outcome]:
        """Begin after `plans`, the last of which is the newest known; `reports` are those it has not used."""

    def note_work(self, rounds: Collection[int]) -> None:
        """Rounds whose inner steps or average this peer is at: their reports are still to come."""

    def submit(self, report: Report, now: float) -> list[Outcome]:
        """This peer's own report of a round."""

    def receive(self, sender: PeerId, message: object, now: float) -> list[Outcome]:
        """A message that is not about averaging."""

    def tick(self, now: float) -> list[Outcome]: ...

    def sign(self, payload: bytes) -> str:
        """In this peer's name."""

    def verify(self, peer: PeerId, payload: bytes, signature: str) -> bool:
        """Whether the peer signed it."""

    def keep_vote(self, plan: Digest, vote: AverageDigest) -> list[Persist]:
        """Record this peer's vote on the average of a round, before it is sent; `plan` is that of the round."""

    def kept_vote(self, plan: Digest, instance: InstanceId) -> AverageDigest | None:
        """The recorded vote, of this start or an earlier one."""

    def may_be_apart(self, *, is_alone: bool) -> bool:
        """Whether most of those that decided are gone since an emergency, and may have ended the run without this peer.
        `is_alone`: it is at the end."""

    def leave(self, now: float) -> list[Outcome]:
        """Leave the roster: the others wait for this peer no longer. It may go on following what they agree on."""

    def rejoin(self, capacity: Capacity, now: float) -> list[Outcome]:
        """Take part again after `leave`, with this capacity."""
