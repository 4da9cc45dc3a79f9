"""Ledger entries for peers that are behind, and from those that are ahead or on another history."""

from collections.abc import Sequence
from math import inf
from typing import Protocol

from adloco_p2p.core.agreement.entry_donors import EntryDonors, is_far, remember
from adloco_p2p.core.ledger.fork_choice import CandidateChain, outranks, verdict
from adloco_p2p.core.ledger.ledger import Ledger
from adloco_p2p.core.model import canonical
from adloco_p2p.core.model.events import Send
from adloco_p2p.core.model.ledger_entry import MAX_ENTRIES, Head, LedgerEntry, Verify
from adloco_p2p.core.model.messages import MAX_LOCATOR, Entries, PullEntries
from adloco_p2p.core.model.plan import Decide, members_of
from adloco_p2p.core.model.protocol import NEWEST
from adloco_p2p.core.model.scalars import Digest, PeerId

ENTRIES_BYTES = 1 << 20
"""Canonical bytes of the ledger entries in one message, or it is one entry."""
STRANGERS_PER_PERIOD = 8
"""Peers outside the roster, all together, that get entries in one period of gossip; members are served beside them."""
ROUNDS_VERIFIED_WHOLE = 32
"""The last rounds of the longest ledger that a peer named. In them the signatures of reports are checked, too."""
PERIODS_OF_REJECTION = 10
"""A peer whose history lost against ours is not asked for it again for this many periods of gossip. Then it is: another peer of
that side may hold a certificate with more votes."""
PERIODS_OF_COLLECTING = 10
"""Another history to which nothing was added for this many periods is dropped: its holders may be gone."""


class LedgerOwner(Protocol):
    """Has a ledger that follows those of others. `now` is in seconds of its own clock."""

    ledger: Ledger

    def follow_entry(self, entry: LedgerEntry, now: float) -> bool:
        """Append a valid next entry; false where it is not to be followed for now."""

    def follow_reorg(self, other: Ledger, now: float) -> None:
        """Take a history that outranks the own one, unless it is not to be followed for now."""


class LedgerExchange:
    """Asks, answers, and checks what comes; a `LedgerOwner` changes its ledger."""

    def __init__(self, decide: Decide, verify: Verify, *, period_seconds: float, newest: int = NEWEST) -> None:
        """`period_seconds`: of gossip. One peer gets entries at most once in a period, however often it asks. `newest`: the
        protocol whose rule `decide` knows."""
        self._other = CandidateChain(decide, verify, newest=newest)
        self._newest = newest
        self.beyond: PeerId | None = None
        """A peer with a history that goes over to a protocol which is unknown here, and neither won nor lost by the votes."""
        self._period_seconds = period_seconds
        self._served: dict[PeerId, float] = {}
        """The instants at which a peer was last sent entries; the latest at the end."""
        self._strangers_served: list[float] = []
        """The instants at which peers outside the roster were, in the last period."""
        self._asked: dict[PeerId, float] = {}
        """The instants at which a peer was last asked for entries because it is ahead; the latest at the end."""
        self._rejected: dict[PeerId, float] = {}
        """The instants at which a history of a peer lost against ours by the votes; the latest at the end."""
        self._collected_at = -inf
        """When something was added to the other history."""
        self._donors = EntryDonors(period_seconds=period_seconds)

    @property
    def is_collecting(self) -> bool:
        """Whether another history is being collected."""
        return bool(self._other.tip)

    def forget_other(self) -> None:
        self._other.forget()

    # --- ours to others ----------------------------------------------------------------------------------------------

    def answer(self, ledger: Ledger, peer: PeerId, message: PullEntries, *, now: float) -> list[Send]:
        """The entries after the newest plan that both have."""
        common = next((digest for digest in message.locator if digest in ledger.position), None)
        return self.serve(ledger, peer, after=common, now=now) if common is not None else []

    def serve(self, ledger: Ledger, peer: PeerId, *, after: Digest, now: float) -> list[Send]:
        """The next entries after a plan of our ledger; none where it is the newest, or where the peer, or strangers together,
        were served in this period. Entries are read after that is known only."""
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
        """A peer names the end of its ledger, which ours does not have: pull it. Whether it outranks ours is known when the two
        have been compared."""
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
        """Where ours, or the one that is collected, is far behind: ask the next donor, unless the answer of one is awaited."""
        rejected = frozenset(peer for peer in self._rejected if self._was_rejected(peer, now))
        donor = self._donors.choose(
            self._have(ledger), ledger.position, roster=members_of(ledger.plans[-1]), without=rejected, now=now
        )
        return [self.pull(ledger, donor)] if donor is not None else []

    def _is_far_ahead(self, peer: PeerId, ledger: Ledger) -> bool:
        end = self._donors.end_of(peer)
        return end is not None and is_far(end.round - self._have(ledger).round)

    def _have(self, ledger: Ledger) -> Head:
        """The end after which entries are wanted."""
        return self._other.ledger.head if self._other.ledger is not None else ledger.head

    def _was_rejected(self, peer: PeerId, now: float) -> bool:
        return now - self._rejected.get(peer, -inf) < PERIODS_OF_REJECTION * self._period_seconds

    def pull(self, ledger: Ledger, peer: PeerId) -> Send:
        return Send(peer=peer, message=PullEntries(locator=(*self._other.tip, *ledger.locator())[:MAX_LOCATOR]))

    def ask_for_help(self, ledger: Ledger, peer: PeerId, *, now: float) -> list[Send]:
        """Pull from a peer that works on the successor of a plan that is unknown here."""
        if self._is_far_ahead(peer, ledger):
            return self.pull_next(ledger, now=now)
        if now - self._asked.get(peer, -inf) < self._period_seconds / 4:
            return []
        remember(self._asked, peer, now)
        return [self.pull(ledger, peer)]

    def follow(self, owner: LedgerOwner, sender: PeerId, entries: Sequence[LedgerEntry], *, now: float) -> list[Send]:
        """Hand the owner what continues its ledger; collect another history until it outranks the ledger, then hand it that,
        or drop it where the electors prefer ours.
        More is asked for where these entries were of use: of the sender, or of the next donor where the sender is far ahead."""
        if now - self._collected_at > PERIODS_OF_COLLECTING * self._period_seconds:
            self.forget_other()
        before = owner.ledger.head, self._other.tip
        unknown = [entry for entry in entries if entry.value.plan not in owner.ledger.position]
        is_of_use = self._take(owner, sender, entries, now) and (owner.ledger.head, self._other.tip) != before
        self._donors.note_answer(sender, now, share=_share(unknown) if is_of_use else 0.0)
        if not is_of_use:
            return []  # pulled again when a heartbeat names it again
        if self._is_far_ahead(sender, owner.ledger):
            return self.pull_next(owner.ledger, now=now)
        return [self.pull(owner.ledger, sender)]

    def _take(self, owner: LedgerOwner, sender: PeerId, entries: Sequence[LedgerEntry], now: float) -> bool:
        """Whether all of them were new parts of a history that is followed, or known."""
        tip = self._other.tip
        for entry in entries:
            if entry.value.plan in owner.ledger.position:
                continue
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
        """Hand the owner another history that outranks its own and is as long, or ends here: what wins by votes is taken up at
        its end, not round by round. False where it has lost: the electors prefer ours, or it ends here and does not outrank it,
        by the word of the sender, for which nothing is dropped that others may add to. A plan of a protocol that is unknown
        here is an end, too: nothing after it can be checked."""
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
        """The ledger whose next entry this is: the given one, to be appended, or the other history, which has it now. None
        where the entry is not valid, or continues neither."""
        if entry.value.parent == ledger.digests[-1]:
            return None if self._other.is_wrong(ledger, entry, is_old=self._is_old(entry)) else ledger
        return self._other.follow(ledger, entry)

    def _is_old(self, entry: LedgerEntry) -> bool:
        """Whether a ledger goes on for long after the entry, as its holder named its end. A lie about that is of no use
        without the votes of a majority of the electors for the entry itself."""
        return self._donors.furthest_round >= entry.value.round + ROUNDS_VERIFIED_WHOLE


def _share(entries: Sequence[LedgerEntry]) -> float:
    """Of what one message may have, by bytes or by number."""
    num_bytes = sum(map(canonical.size_once, entries))
    return min(max(num_bytes / ENTRIES_BYTES, len(entries) / MAX_ENTRIES), 1.0)


def _next_entries(ledger: Ledger, after: Digest) -> tuple[LedgerEntry, ...]:
    """One entry, and as many more as fit into ENTRIES_BYTES. The plan that goes over to the next protocol is the last one:
    a peer that cannot read what follows it can still read it."""
    chosen: list[LedgerEntry] = []
    num_bytes, last = 0, ledger.position[after]
    protocol = ledger.plan(last).protocol
    for entry in ledger.between(last + 1, last + 1 + MAX_ENTRIES):
        num_bytes += canonical.size_once(entry)
        if chosen and (num_bytes > ENTRIES_BYTES or chosen[-1].plan.protocol != protocol):
            break
        chosen.append(entry)
    return tuple(chosen)
