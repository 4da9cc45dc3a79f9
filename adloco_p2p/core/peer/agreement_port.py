"""The peer's port to the agreement, implemented by gossip consensus and by a fixed roster."""

from collections.abc import Collection, Sequence
from typing import Protocol

from adloco_p2p.core.model.effects import Persist
from adloco_p2p.core.model.messages import AverageDigest
from adloco_p2p.core.model.outcomes import Outcome
from adloco_p2p.core.model.plan import RoundPlan
from adloco_p2p.core.model.report import Report
from adloco_p2p.core.model.roster_entry import Capacity
from adloco_p2p.core.model.scalars import Digest, InstanceId, PeerId


class Agreement(Protocol):
    """The agreement as `Peer`, its only caller, sees it. No call blocks."""

    @property
    def next_deadline(self) -> float | None:
        """The instant at which `tick` is to be called, or None."""

    @property
    def last_contact(self) -> float:
        """Time of the last sign of life from a peer that has or had a seat or is paused, not from a newcomer; at first, the
        start."""

    def start(self, plans: Sequence[RoundPlan], reports: Sequence[Report], now: float) -> list[Outcome]:
        """Begin after `plans`, the last of which is the newest known; `reports` are those that no known plan has used."""

    def reports_of(self, plan: Digest) -> Sequence[Report]:
        """Return the reports from which this plan was made; none for a plan without a recorded value, such as the first one."""

    def note_work(self, rounds: Collection[int]) -> None:
        """Note the rounds that this peer trains or averages, on which its reports are still to come."""

    def submit(self, report: Report, now: float) -> list[Outcome]:
        """Submit this peer's own report of a round."""

    def receive(self, sender: PeerId, message: object, now: float) -> list[Outcome]:
        """Receive a message that is not about averaging."""

    def note_data(self, peers: Collection[PeerId], now: float) -> None:
        """Note that data of averages or states comes from these peers, which is a sign of life to this peer alone."""

    def tick(self, now: float) -> list[Outcome]: ...

    def sign(self, payload: bytes) -> str:
        """Sign in this peer's name."""

    def verify(self, peer: PeerId, payload: bytes, signature: str) -> bool:
        """Return whether the peer signed the payload."""

    def keep_vote(self, plan: Digest, vote: AverageDigest) -> list[Persist]:
        """Record this peer's commit vote on the average of a round before it is sent; `plan` is that of the round."""

    def kept_vote(self, plan: Digest, instance: InstanceId) -> AverageDigest | None:
        """Return the commit vote recorded in this or an earlier start, or None."""

    def may_be_apart(self, *, is_alone: bool) -> bool:
        """Return whether most of the electors are gone since an emergency, and may have ended the run without this peer.
        `is_alone`: it is the only member at the end."""

    def leave(self, now: float) -> list[Outcome]:
        """Leave the roster, so that the others no longer wait for this peer. It may still follow their agreement."""

    def rejoin(self, capacity: Capacity, now: float) -> list[Outcome]:
        """Take part again after `leave`, with this capacity."""
