"""The time that a ballot gets before the next proposer takes over, and proposers that take more than their turn."""

from collections.abc import Sequence
from math import inf

from adloco_p2p.core.agreement.slot import Context, Slot
from adloco_p2p.core.model.certificate import Ballot
from adloco_p2p.core.model.scalars import PeerId

MAX_OVERTAKEN = 16
"""Ballots by which one proposer may take more than its turn in a slot."""
RUN_OUT_SLOTS = 8
"""A proposer that let a ballot run out, as this peer saw it, comes last for so many slots, and has no turn but its own."""


class BallotTimer:
    """Of one slot; instants are seconds of the peer's own clock. Acceptor and proposer report to it what begins a ballot."""

    def __init__(self, context: Context, slot: Slot) -> None:
        self._context = context
        self._slot = slot
        self._base_seconds = context.timing.ballot_timeout(len(slot.roster))
        self._begun_at: float | None = None
        """When a ballot was last begun or received."""
        self._timeout_seconds = 0.0
        """The time that this ballot gets."""
        self._proposer: PeerId | None = None
        """Whose ballot that is."""
        self._overtaken: dict[PeerId, int] = {}
        """Ballots of each proposer that came before its turn, while another was under way, or after its own."""
        self._repeated_at = -inf
        """When a proposer that has taken more than its turn was last answered after a ballot of its own."""
        self.ready_at: float | None = None
        """When this peer could have proposed a value."""
        run_out = context.run_out
        for peer in [peer for peer, round in run_out.items() if peer not in slot.members or slot.round > round + RUN_OUT_SLOTS]:
            del run_out[peer]
        self._late = frozenset(run_out)
        """They come last in this slot: what is seen of it counts in the next ones."""

    def begin(self, proposer: PeerId, now: float) -> None:
        """A ballot begins and gets its time, of a random length so that two proposers do not collide again and again."""
        if self._proposer not in (None, self._context.me, proposer) and self._is_over(now):
            assert self._proposer is not None
            self._context.run_out[self._proposer] = self._slot.round
        self._proposer = proposer
        self._begun_at = now
        self._timeout_seconds = self._base_seconds * (1 + self._context.draw() / 2)

    def cut_short(self, now: float) -> None:
        """The ballot under way is dropped; the next one begins within half its time."""
        self._begun_at = now - self._timeout_seconds * (0.5 + self._context.draw() / 2)

    def admit(self, ballot: Ballot, promised: Ballot | None, now: float) -> bool:
        """Give the ballot its time if it may be answered. A proposer that takes more than its turn again and again overtakes
        no other any more, and the others do not wait for it; after a ballot of its own it is answered once in the time of two
        ballots: every promise is written to the disk, and another proposer needs up to one and a half to come through."""
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
        """No ballot is under way that has time left."""
        return self._begun_at is None or now >= self._begun_at + self._timeout_seconds

    def _is_early(self, proposer: PeerId, now: float) -> bool:
        """The slot has seen no ballot, and it is another one's turn. A peer that sees others ready, or alive, may be right: so
        this counts against its `MAX_OVERTAKEN` only."""
        order = self._in_turn(self._context.members.responsive(self._slot.order, now))
        if self._begun_at is not None or proposer not in order:
            return False
        rank = order.index(proposer)
        return rank > 0 and (self.ready_at is None or now < self.ready_at + (rank - 1) * self._base_seconds)

    def _in_turn(self, order: Sequence[PeerId]) -> list[PeerId]:
        """Those that let a ballot run out come last."""
        return sorted(order, key=lambda peer: peer in self._late) if self._late else list(order)

    def turn(self, order: Sequence[PeerId], *, ready_at: float, promised: Ballot | None) -> float:
        """When this peer may begin a ballot if no other peer does: at once for the first of `order`, later for the others."""
        me, order = self._context.me, self._in_turn(order)
        if self._begun_at is None:
            return ready_at + order.index(me) * self._base_seconds
        last = promised.peer if promised is not None else None
        rank = [peer for peer in order if peer == me or peer != last].index(me)
        return self._begun_at + self._timeout_seconds * (1 + rank)
