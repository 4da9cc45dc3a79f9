"""The time that a ballot gets before the next proposer takes over, and the limits on proposers that exceed their turn."""

from collections.abc import Sequence
from math import inf

from adloco_p2p.core.agreement.slot import Context, Slot
from adloco_p2p.core.model.certificate import Ballot
from adloco_p2p.core.model.scalars import PeerId

MAX_OVERTAKEN = 16
"""The number of ballots by which one proposer may exceed its turn in a slot."""
RUN_OUT_SLOTS = 8
"""The number of slots for which a proposer that let a ballot run out, as this peer saw it, comes last and may exceed its turn
only once."""


class BallotTimer:
    """The ballot timer of one slot, which its acceptor and proposer inform of new ballots. Instants are seconds of the peer's
    own clock."""

    def __init__(self, context: Context, slot: Slot) -> None:
        self._context = context
        self._slot = slot
        self._base_seconds = context.timing.ballot_timeout(len(slot.roster))
        self._begun_at: float | None = None
        """When a ballot was last begun or received."""
        self._timeout_seconds = 0.0
        """The time that the ballot under way gets."""
        self._proposer: PeerId | None = None
        """The proposer of the ballot under way."""
        self._overtaken: dict[PeerId, int] = {}
        """The number of ballots of each proposer that came early, during another ballot, or right after one of its own."""
        self._repeated_at = -inf
        """When a proposer beyond its limit was last answered right after a ballot of its own."""
        self.ready_at: float | None = None
        """When this peer first had what it needs to propose a value."""
        run_out = context.run_out
        for peer in [peer for peer, round in run_out.items() if peer not in slot.members or slot.round > round + RUN_OUT_SLOTS]:
            del run_out[peer]
        self._late = frozenset(run_out)
        """Proposers that come last in this slot. Ballots that run out in this slot count from the next one on."""

    def begin(self, proposer: PeerId, now: float) -> None:
        """Start the time of a new ballot. Its length is random, so that two proposers do not collide again and again."""
        if self._proposer not in (None, self._context.me, proposer) and self._is_over(now):
            assert self._proposer is not None
            self._context.run_out[self._proposer] = self._slot.round
        self._proposer = proposer
        self._begun_at = now
        self._timeout_seconds = self._base_seconds * (1 + self._context.draw() / 2)

    def cut_short(self, now: float) -> None:
        """Shorten the time of the ballot that was dropped, so that the next one begins within half of it."""
        self._begun_at = now - self._timeout_seconds * (0.5 + self._context.draw() / 2)

    def admit(self, ballot: Ballot, promised: Ballot | None, now: float) -> bool:
        """Return whether a ballot may be answered, and give it its time if so. A proposer beyond its limit no longer overtakes
        others, and nobody waits for it. Right after a ballot of its own it is answered once per two ballot times only, because
        every promise is written to disk, and another proposer needs up to one and a half ballot times to get through."""
        is_over = self._is_over(now) and not self._is_early(ballot.peer, now)
        is_own_again = promised is not None and promised.peer == ballot.peer
        overtaken = self._overtaken.get(ballot.peer, 0)
        if is_over and not is_own_again:
            self.begin(ballot.peer, now)
            return True
        self._overtaken[ballot.peer] = overtaken + 1
        if overtaken < (1 if ballot.peer in self._late else MAX_OVERTAKEN):
            self.begin(ballot.peer, now)
            return True
        if is_own_again and ballot != promised and now >= self._repeated_at + 2 * self._base_seconds:
            self._repeated_at = now
            return True
        return ballot == promised

    def _is_over(self, now: float) -> bool:
        """Return whether no ballot has time left."""
        return self._begun_at is None or now >= self._begun_at + self._timeout_seconds

    def _is_early(self, proposer: PeerId, now: float) -> bool:
        """Return whether the slot has seen no ballot and it is another proposer's turn. The proposer may be right, because it
        may see others as ready or alive that this peer does not, so this counts only against its `MAX_OVERTAKEN`."""
        order = self._in_turn(self._context.members.responsive(self._slot.order, now))
        if self._begun_at is not None or proposer not in order:
            return False
        rank = order.index(proposer)
        return rank > 0 and (self.ready_at is None or now < self.ready_at + (rank - 1) * self._base_seconds)

    def _in_turn(self, order: Sequence[PeerId]) -> list[PeerId]:
        """Return the proposers with those that let a ballot run out at the end."""
        return sorted(order, key=lambda peer: peer in self._late) if self._late else list(order)

    def turn(self, order: Sequence[PeerId], *, ready_at: float, promised: Ballot | None) -> float:
        """Return when this peer may begin a ballot if no other does: at once for the first of `order`, later for the others."""
        me, order = self._context.me, self._in_turn(order)
        if self._begun_at is None:
            return ready_at + order.index(me) * self._base_seconds
        last = promised.peer if promised is not None else None
        rank = [peer for peer in order if peer == me or peer != last].index(me)
        return self._begun_at + self._timeout_seconds * (1 + rank)
