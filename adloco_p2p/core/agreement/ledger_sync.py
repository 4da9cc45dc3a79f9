"""The exchange of ledger entries: for peers that are behind, and from peers that are ahead or on another history."""

from collections.abc import Sequence
from math import inf
from typing import Protocol

from adloco_p2p.core.agreement.entry_donors import EntryDonors, is_far, remember
from adloco_p2p.core.ledger.fork_choice import CandidateChain, is_outvoted, outranks, verdict
from adloco_p2p.core.ledger.ledger import Ledger
from adloco_p2p.core.model import canonical
from adloco_p2p.core.model.effects import Send
from adloco_p2p.core.model.ledger_entry import MAX_ENTRIES, Head, LedgerEntry, Verify
from adloco_p2p.core.model.messages import MAX_LOCATOR, Entries, PullEntries
from adloco_p2p.core.model.plan import Decide, members_of
from adloco_p2p.core.model.protocol import NEWEST
from adloco_p2p.core.model.scalars import Digest, PeerId

ENTRIES_BYTES = 1 << 20
"""The most canonical bytes of the entries in one message, unless it has one entry only."""
STRANGERS_PER_PERIOD = 8
"""The number of peers outside the roster that get entries in one period of gossip; members are served beside them."""
ROUNDS_VERIFIED_WHOLE = 32
"""The number of last rounds, of the longest ledger that a peer named, in which the signatures of reports are checked, too."""
PERIODS_OF_REJECTION = 10
"""The number of periods of gossip for which a peer whose history lost is not asked for it again. Later it is, because another
peer of that side may hold a certificate with more votes."""
PERIODS_OF_COLLECTING = 10
"""The number of periods after which another history that has not grown is dropped: its holders may be gone."""


class LedgerOwner(Protocol):
    """The owner of a ledger that follows those of others. `now` is in seconds of its own clock."""

    ledger: Ledger

    def follow_entry(self, entry: LedgerEntry, now: float) -> bool:
        """Append a valid next entry; return false if it is not to be followed for now."""

    def follow_reorg(self, other: Ledger, now: float) -> None:
        """Switch to a history that outranks the own one, unless it is not to be followed for now."""


class LedgerExchange:
    """Asks for entries, serves them, and checks those that come; only the `LedgerOwner` changes the ledger."""

    def __init__(self, decide: Decide, verify: Verify, *, period_seconds: float, newest: int = NEWEST) -> None:
        """`period_seconds` is the period of gossip: one peer gets entries at most once in it, however often it asks. `newest`
        is the newest protocol whose rule `decide` knows."""
        self._other = CandidateChain(decide, verify, newest=newest)
        self._newest = newest
        self.beyond: PeerId | None = None
        """A peer with a history whose protocol is unknown here, and that neither won nor lost by the votes."""
        self._period_seconds = period_seconds
        self._served: dict[PeerId, float] = {}
        """When each peer was last sent entries, the latest last."""
        self._strangers_served: list[float] = []
        """When peers outside the roster were sent entries, within the last period."""
        self._asked: dict[PeerId, float] = {}
        """When each peer was last asked for entries because it works on a later slot, the latest last."""
        self._rejected: dict[PeerId, float] = {}
        """When the history of each peer last lost against ours, the latest last."""
        self._collected_at = -inf
        """When the other history last grew."""
        self._donors = EntryDonors(period_seconds=period_seconds)

    @property
    def is_collecting(self) -> bool:
        """Return whether another history is being collected."""
        return bool(self._other.tip)

    def forget_other(self) -> None:
        self._other.forget()

    # --- ours to others ----------------------------------------------------------------------------------------------

    def answer(self, ledger: Ledger, peer: PeerId, message: PullEntries, *, now: float) -> list[Send]:
        """Return the entries after the newest plan that both ledgers have."""
        common = next((digest for digest in message.locator if digest in ledger.position), None)
        return self.serve(ledger, peer, after=common, now=now) if common is not None else []

    def serve(self, ledger: Ledger, peer: PeerId, *, after: Digest, now: float) -> list[Send]:
        """Return the next entries after a plan of our ledger; none if it is the newest, or if the peer, or enough strangers,
        were served in this period. This is decided before any entry is read from disk."""
        is_member = peer in members_of(ledger.plans[-1])
        if after == ledger.digests[-1] or not self._may_serve(peer, now, is_member=is_member):
            return []
        remember(self._served, peer, now)
        if not is_member:
            self._strangers_served = [*self._strangers_since(now), now]
        return [Send(peer=peer, message=Entries(entries=_next_entries(ledger, after)))]

    def _may_serve(self, peer: PeerId, now: float, *, is_member: bool) -> bool:
        if self._served.get(peer, -inf) > now - self._period_seconds:
            return False
        return is_member or len(self._strangers_since(now)) < STRANGERS_PER_PERIOD

    def _strangers_since(self, now: float) -> list[float]:
        return [served for served in self._strangers_served if served > now - self._period_seconds]

    # --- theirs to us ------------------------------------------------------------------------------------------------

    def announced(self, owner: LedgerOwner, peer: PeerId, head: Head, *, now: float) -> list[Send]:
        """Pull from a peer that names a head which our ledger does not have. Whether that history outranks ours is known only
        after a comparison."""
        self._donors.note_end(peer, head, now)
        collected = self._other.ledger
        if collected is not None and collected.digests[-1] == head.digest:
            self._compare(owner, collected, peer, now)
            return []
        if self._is_far_ahead(peer, owner.ledger):
            return self.pull_next(owner.ledger, now=now)
        if self._was_rejected(peer, now):
            return []
        is_pulled = self._donors.takes_near(peer, roster=members_of(owner.ledger.plans[-1]), now=now)
        return [self.pull(owner.ledger, peer)] if is_pulled else []

    def pull_next(self, ledger: Ledger, *, now: float) -> list[Send]:
        """Ask the next donor if our history, or the collected one, is far behind, unless an answer is awaited."""
        rejected = frozenset(peer for peer in self._rejected if self._was_rejected(peer, now))
        donor = self._donors.choose(
            self._have(ledger), ledger.position, roster=members_of(ledger.plans[-1]), without=rejected, now=now
        )
        return [self.pull(ledger, donor)] if donor is not None else []

    def _is_far_ahead(self, peer: PeerId, ledger: Ledger) -> bool:
        end = self._donors.end_of(peer)
        return end is not None and is_far(end.round - self._have(ledger).round)

    def _have(self, ledger: Ledger) -> Head:
        """Return the head after which entries are wanted."""
        return self._other.ledger.head if self._other.ledger is not None else ledger.head

    def _was_rejected(self, peer: PeerId, now: float) -> bool:
        return now - self._rejected.get(peer, -inf) < PERIODS_OF_REJECTION * self._period_seconds

    def pull(self, ledger: Ledger, peer: PeerId) -> Send:
        return Send(peer=peer, message=PullEntries(locator=(*self._other.tip, *ledger.locator())[:MAX_LOCATOR]))

    def ask_for_help(self, ledger: Ledger, peer: PeerId, *, now: float) -> list[Send]:
        """Pull from a peer that works on the successor of a plan unknown here."""
        if self._is_far_ahead(peer, ledger):
            return self.pull_next(ledger, now=now)
        if now - self._asked.get(peer, -inf) < self._period_seconds / 4:
            return []
        remember(self._asked, peer, now)
        return [self.pull(ledger, peer)]

    def follow(self, owner: LedgerOwner, sender: PeerId, entries: Sequence[LedgerEntry], *, now: float) -> list[Send]:
        """Hand the owner the entries that continue its ledger, and collect those of another history until it outranks the
        ledger and is handed over, or is dropped because the electors prefer ours. If the entries were of use, ask for more: the
        sender, or the next donor if the sender is far ahead."""
        if now - self._collected_at > PERIODS_OF_COLLECTING * self._period_seconds:
            self.forget_other()
        before = owner.ledger.head, self._other.tip
        unknown = [entry for entry in entries if entry.value.plan not in owner.ledger.position]
        is_of_use = self._take(owner, sender, entries, now) and (owner.ledger.head, self._other.tip) != before
        self._donors.note_answer(sender, now, share=_share(unknown) if is_of_use else 0.0)
        if not is_of_use:
            return []  # the next heartbeat that names this history pulls it again
        if self._is_far_ahead(sender, owner.ledger):
            return self.pull_next(owner.ledger, now=now)
        return [self.pull(owner.ledger, sender)]

    def _take(self, owner: LedgerOwner, sender: PeerId, entries: Sequence[LedgerEntry], now: float) -> bool:
        """Take up the entries; return whether each was known or continued a history that is followed."""
        tip = self._other.tip
        for entry in entries:
            if entry.value.plan in owner.ledger.position:
                continue
            if is_outvoted(owner.ledger, entry):
                remember(self._rejected, sender, now)
                return False
            continued = self._continued_by(owner.ledger, entry)
            if self._other.tip != tip:
                tip, self._collected_at = self._other.tip, now
            if continued is None:
                return False
            if continued is owner.ledger:
                if not owner.follow_entry(entry, now):
                    return False
            elif not self._compare(owner, continued, sender, now):
                return False
        return True

    def _compare(self, owner: LedgerOwner, other: Ledger, sender: PeerId, now: float) -> bool:
        """Hand the owner another history that outranks its own, once that is complete or its head ranks higher: a history that
        wins by votes is taken up at its end, not round by round. Return false if it has lost: the electors prefer ours, which
        drops it, or it does not outrank ours at the end that the sender named, which drops nothing, because others may add to
        it. A plan of an unknown protocol is an end, too: nothing after it can be checked."""
        own, end = owner.ledger, self._donors.end_of(sender)
        is_beyond, wins = other.plans[-1].protocol > self._newest, outranks(other, own)
        is_end = is_beyond or (end is not None and end.digest == other.head.digest)
        has_lost = not wins and verdict(own, other) == "own"
        if is_beyond and not wins and not has_lost:
            self.beyond = sender
        if has_lost:
            self.forget_other()
        if has_lost or (is_end and not wins):
            remember(self._rejected, sender, now)
            return False
        if wins and (is_end or other.head.rank > own.head.rank):
            self.forget_other()
            owner.follow_reorg(other, now)
        return True

    def _continued_by(self, ledger: Ledger, entry: LedgerEntry) -> Ledger | None:
        """Return the ledger that the entry continues: the given one, which lacks it still, or the other history, which has it
        now. None if the entry is not valid, or continues neither."""
        if entry.value.parent == ledger.digests[-1]:
            return None if self._other.is_wrong(ledger, entry, is_old=self._is_old(entry)) else ledger
        return self._other.follow(ledger, entry)

    def _is_old(self, entry: LedgerEntry) -> bool:
        """Return whether some ledger goes on for long after the entry, by the head that its holder named. A lie about that is
        of no use without the votes of a majority of the electors for the entry itself."""
        return self._donors.furthest_round >= entry.value.round + ROUNDS_VERIFIED_WHOLE


def _share(entries: Sequence[LedgerEntry]) -> float:
    """Return the part of one message's limit that the entries take, by bytes or by number, in [0, 1]."""
    num_bytes = sum(map(canonical.size_once, entries))
    return min(max(num_bytes / ENTRIES_BYTES, len(entries) / MAX_ENTRIES), 1.0)


def _next_entries(ledger: Ledger, after: Digest) -> tuple[LedgerEntry, ...]:
    """Return the entry after the plan, and as many more as fit into ENTRIES_BYTES. The plan that goes over to the next protocol
    is the last of its message: a peer that cannot read the entries after it can still read that one."""
    chosen: list[LedgerEntry] = []
    num_bytes, last = 0, ledger.position[after]
    protocol = ledger.plan(last).protocol
    for entry in ledger.between(last + 1, last + 1 + MAX_ENTRIES):
        num_bytes += canonical.size_once(entry)
        if chosen and (num_bytes > ENTRIES_BYTES or chosen[-1].plan.protocol != protocol):
            break
        chosen.append(entry)
    return tuple(chosen)
