"""The time that a ballot gets before the next proposer takes over, and proposers that take more than their turn."""

from collections.abc import Sequence

from adloco_p2p.core.agreement.slot import Context, Slot
from adloco_p2p.core.model.ledger_entry import Ballot
from adloco_p2p.core.model.types import PeerId

MAX_OVERTAKEN = 16
"""Ballots by which one proposer may take more than its turn in a slot."""


class BallotTimer:
    """Of one slot; instants are seconds of the peer's own clock. Acceptor and proposer report to it what begins a ballot."""

    def __init__(self, context: Context, slot: Slot) -> None:
        self._context = context
        self._base_seconds = context.timing.ballot_timeout(len(slot.roster))
        self._begun_at: float | None = None
        """When a ballot was last begun or received."""
        self._timeout_seconds = 0.0
        """The time that this ballot gets."""
        self._overtaken: dict[PeerId, int] = {}
        """Ballots of each proposer that came while another was under way, or after its own."""

    def begin(self, now: float) -> None:
        """A ballot begins and gets its time, of a random length so that two proposers do not collide again and again."""
        self._begun_at = now
        self._timeout_seconds = self._base_seconds * (1 + self._context.draw() / 2)

    def cut_short(self, now: float) -> None:
        """The ballot under way is dropped; the next one begins within half its time."""
        self._begun_at = now - self._timeout_seconds * (0.5 + self._context.draw() / 2)

    def admit(self, ballot: Ballot, promised: Ballot | None, now: float) -> bool:
        """Give the ballot its time if it may be answered. A proposer that takes more than its turn again and again overtakes
        no other any more, and the others do not wait for it."""
        is_over = self._begun_at is None or now >= self._begun_at + self._timeout_seconds
        is_own_again = promised is not None and promised.peer == ballot.peer
        overtaken = self._overtaken.get(ballot.peer, 0)
        if is_over and not is_own_again:
            self.begin(now)
            return True
        self._overtaken[ballot.peer] = overtaken + 1
        if overtaken < MAX_OVERTAKEN:
            self.begin(now)
            return True
        return is_own_again

    def turn(self, order: Sequence[PeerId], *, ready_at: float, promised: Ballot | None) -> float:
        """When this peer may begin a ballot if no other peer does: at once for the first of `order`, later for the others."""
        me = self._context.me
        if self._begun_at is None:
            return ready_at + order.index(me) * self._base_seconds
        last = promised.peer if promised is not None else None
        rank = [peer for peer in order if peer == me or peer != last].index(me)
        return self._begun_at + self._timeout_seconds * (1 + rank)
