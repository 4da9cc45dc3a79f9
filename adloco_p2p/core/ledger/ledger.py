"""The chain of final plans: in memory, and as a journal holds it. `validation.py` checks whether an entry is a valid next one,
`fork_choice.py` chooses between two chains."""

from collections.abc import Callable, Iterator, Mapping, Sequence

from adloco_p2p.core.ledger.admission import Admissions
from adloco_p2p.core.model import canonical
from adloco_p2p.core.model.ledger_entry import Head, LedgerEntry
from adloco_p2p.core.model.plan import REPORT_LAG, RoundPlan, roster_of
from adloco_p2p.core.model.run_progress import proven_samples
from adloco_p2p.core.model.scalars import Digest, PeerId

Recall = Callable[[Digest], LedgerEntry]
"""Returns the persisted entry of a plan by the plan's digest."""
ENTRIES_KEPT = 32
"""The number of newest entries that stay in memory at least, for peers that are a little behind."""


def chain(records: Sequence[object], genesis: RoundPlan) -> list[LedgerEntry]:
    """Return the ledger with which a journal ends. An entry whose parent is not the end of the chain cuts it back to that
    parent: in this form a reorg is written down, possibly cut short by a crash."""
    entries: list[LedgerEntry] = []
    position = {canonical.digest_once(genesis): 0}
    for record in records:
        if isinstance(record, LedgerEntry) and record.value.parent in position:
            length = position[record.value.parent]
            for cut in entries[length:]:
                position.pop(cut.value.plan, None)
            del entries[length:]
            entries.append(record)
            position[record.value.plan] = length + 1
    return entries


def unconnected(records: Sequence[object], genesis: RoundPlan) -> list[LedgerEntry]:
    """Return the entries of a journal that follow no plan of it: `chain` leaves them out, an honest peer has none. If a history
    came back after another one had won, a rewritten journal has each entry at its last place only, perhaps behind those that
    followed it before."""
    end, has_reorg = canonical.digest_once(genesis), False
    known, loose = {end: None}, dict[Digest, LedgerEntry]()
    for entry in (record for record in records if isinstance(record, LedgerEntry)):
        parent, plan = entry.value.parent, entry.value.plan
        if parent in known:
            has_reorg = has_reorg or parent != end
            known[plan], end = None, plan
        else:
            loose[plan] = entry
    return [entry for entry in loose.values() if not has_reorg or _first_parent(entry, loose) not in known]


def _first_parent(entry: LedgerEntry, loose: Mapping[Digest, LedgerEntry]) -> Digest:
    while (before := loose.get(entry.value.parent)) is not None:
        entry = before
    return entry.value.parent


class Ledger:
    """The genesis and the entries after it. In memory are the digests and running counts of proven samples of all plans, and
    the newest `plans` and `entries`; `recall` reads an older entry from the journal."""

    def __init__(self, genesis: RoundPlan, *, recall: Recall) -> None:
        self.plans: list[RoundPlan] = [genesis]
        self.entries: list[LedgerEntry] = []
        self.digests: list[Digest] = [canonical.digest_once(genesis)]
        self.samples: list[int] = [0]
        self.position: dict[Digest, int] = {self.digests[0]: 0}
        self._members: dict[PeerId, int] = dict.fromkeys(roster_of(genesis), 0)
        """The position of the first roster on which each peer ever was."""
        self._last_votes: dict[PeerId, int] = {}
        """The position of the newest entry for which each peer voted."""
        self._seats_lost: dict[PeerId, list[int]] = {}
        """The positions of the rosters that no longer had each peer, ascending."""
        self.admissions = Admissions(roster_of(genesis))
        """The invitations, seats and bans by the entries."""
        self._genesis = genesis
        self._recall = recall

    @property
    def head(self) -> Head:
        return Head(round=self.plans[-1].round, digest=self.digests[-1], samples=self.samples[-1])

    @property
    def reported(self) -> RoundPlan | None:
        """The plan whose reports the next entry uses."""
        return self.plans[-REPORT_LAG] if len(self.plans) >= REPORT_LAG else None

    def append(self, entry: LedgerEntry) -> None:
        assert entry.value.parent == self.digests[-1]
        self.samples.append(self.samples[-1] + proven_samples(self.reported, entry.reports))
        for peer in sorted(set(roster_of(self.plans[-1])).difference(roster_of(entry.plan))):
            self._seats_lost.setdefault(peer, []).append(len(self.digests))
        self.entries.append(entry)
        self.plans.append(entry.plan)
        self.digests.append(entry.value.plan)
        self.position[entry.value.plan] = len(self.digests) - 1
        self._last_votes.update(dict.fromkeys(sorted(entry.certificate.voters), len(self.digests) - 1))
        self.admissions.note(entry.value, position=len(self.digests) - 1, members=self._members)
        if entry.plan.price:
            staying = frozenset(roster_of(entry.plan))
            ended = [seat for seat in self.plans[-2].roster if seat.peer not in staying]
            self.admissions.note_ended(ended, position=len(self.digests) - 1)
        for peer in roster_of(entry.plan):
            self._members.setdefault(peer, len(self.digests) - 1)

    def forget_old(self) -> None:
        """Keep only the newest entries in memory. To be called only when all appended entries are persisted."""
        if len(self.entries) >= 2 * ENTRIES_KEPT:  # not one by one, because cutting a list at its front copies the rest
            del self.entries[:-ENTRIES_KEPT], self.plans[:-ENTRIES_KEPT]

    def entry(self, position: int) -> LedgerEntry:
        """Return the entry that made the plan at this position, from 1 on."""
        from_end = len(self.digests) - position
        return self.entries[-from_end] if from_end <= len(self.entries) else self._recall(self.digests[position])

    def has_voted_since(self, peer: PeerId, position: int) -> bool:
        """Return whether the peer voted for an entry after this position."""
        return self._last_votes.get(peer, 0) > position

    def lost_seats(self, position: int) -> frozenset[PeerId]:
        """Return the peers that had a seat at this position or later, and lost it since."""
        return frozenset(peer for peer, lost in self._seats_lost.items() if lost[-1] > position)

    def recalled(self, plan: Digest) -> LedgerEntry:
        """Return the persisted entry of a plan, also of a history that lost."""
        return self._recall(plan)

    def plan(self, position: int) -> RoundPlan:
        return self.entry(position).plan if position else self._genesis

    def between(self, first: int, end: int) -> Iterator[LedgerEntry]:
        """Return the entries at positions `first` to `end - 1`."""
        return (self.entry(position) for position in range(first, min(end, len(self.digests))))

    def after(self, digest: Digest, limit: int) -> tuple[LedgerEntry, ...]:
        first = self.position[digest] + 1
        return tuple(self.between(first, first + limit))

    def since(self, round: int) -> Iterator[LedgerEntry]:
        """Return the entries of the plans from this round on."""
        return self.between(max(1, round - self._genesis.round), len(self.digests))

    def truncated(self, digest: Digest) -> "Ledger":
        """Return a copy that ends with this plan."""
        length = self.position[digest] + 1
        copy = Ledger(self._genesis, recall=self._recall)
        copy.digests, copy.samples = self.digests[:length], self.samples[:length]
        copy.position = {digest: position for position, digest in enumerate(copy.digests)}
        copy._last_votes = {peer: min(last, length - 1) for peer, last in self._last_votes.items()}
        lost = {peer: [place for place in places if place < length] for peer, places in self._seats_lost.items()}
        copy._seats_lost = {peer: places for peer, places in lost.items() if places}
        copy._members = {peer: first for peer, first in self._members.items() if first < length}
        copy.admissions = self.admissions.truncated(length)
        first = max(1, min(len(self.digests) - len(self.entries), length - REPORT_LAG))
        copy.entries = list(self.between(first, length))
        copy.plans = [*([self._genesis] if first == 1 else []), *(entry.plan for entry in copy.entries)]
        return copy

    def members(self) -> frozenset[PeerId]:
        """Return every peer that ever was on a roster."""
        return frozenset(self._members)

    def locator(self) -> tuple[Digest, ...]:
        """Return the block locator: digests from the head backwards, ever farther apart, ending with the first plan."""
        steps, position = [], len(self.digests) - 1
        stride = 1
        while position > 0:
            steps.append(self.digests[position])
            position -= stride
            stride *= 1 if len(steps) < 4 else 2
        return (*steps, self.digests[0])
