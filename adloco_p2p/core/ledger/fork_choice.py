"""The choice between two histories that met; the other one is collected, entry by checked entry, until it outranks our own.

The electors of the last common plan decide, because they were there before either side could invent members, reports or
samples. In a tie those count that followed one side alone since, and only then the samples that each history proves.
"""

from collections.abc import Sequence
from typing import Literal

from adloco_p2p.core.ledger.ledger import Ledger
from adloco_p2p.core.ledger.validation import check_entry
from adloco_p2p.core.model import canonical
from adloco_p2p.core.model.electorate import electorate, is_majority
from adloco_p2p.core.model.ledger_entry import LedgerEntry, Reorg, Verify
from adloco_p2p.core.model.plan import Decide, RoundPlan
from adloco_p2p.core.model.protocol import NEWEST
from adloco_p2p.core.model.scalars import Digest, PeerId

MAX_COLLECTED_BYTES = 256 << 20
"""The most encoded bytes of another history, which stays in memory until it outranks our own. A longer one is dropped."""


class CandidateChain:
    """The other history while it is collected, at most one at a time. Another one takes its place only if the electors prefer
    that: no other message of a peer makes it lose an entry."""

    def __init__(self, decide: Decide, verify: Verify, *, newest: int = NEWEST) -> None:
        """`newest` is the newest protocol whose rule `decide` knows."""
        self._decide = decide
        self._newest = newest
        self._verify = verify
        self._ledger: Ledger | None = None
        self._num_bytes = 0

    @property
    def tip(self) -> Sequence[Digest]:
        """The digest of the end of the collected chain, if there is one."""
        return self._ledger.digests[-1:] if self._ledger is not None else ()

    @property
    def ledger(self) -> Ledger | None:
        """The collected chain from the first plan on, if there is one."""
        return self._ledger

    def forget(self) -> None:
        self._ledger = None

    def follow(self, own: Ledger, entry: LedgerEntry) -> Ledger | None:
        """Take an entry if it is valid and continues the collected chain, or leaves our own ledger somewhere. Return the chain
        that it then ends, or already is in; None if it was of no use."""
        collected, parent = self._ledger, entry.value.parent
        if collected is not None and entry.value.plan in collected.position:
            return collected
        is_next = collected is not None and parent == collected.digests[-1]
        num_bytes = (self._num_bytes if is_next else 0) + len(canonical.encode(entry))
        if is_next and num_bytes > MAX_COLLECTED_BYTES:
            self._ledger = None
        if num_bytes > MAX_COLLECTED_BYTES or not (is_next or parent in own.position):
            return None
        ledger = collected if collected is not None and is_next else own.truncated(parent)
        if self.is_wrong(ledger, entry):
            return None
        ledger.append(entry)
        if collected is not None and not is_next and verdict(collected, ledger) != "other":
            return None
        self._ledger, self._num_bytes = ledger, num_bytes
        return ledger

    def is_wrong(self, ledger: Ledger, entry: LedgerEntry, *, is_old: bool = False) -> bool:
        """Return whether the entry is not a valid next one; `is_old` as for `check_entry`."""
        decide, verify, newest = self._decide, self._verify, self._newest
        return bool(check_entry(entry, ledger=ledger, decide=decide, verify=verify, is_old=is_old, newest=newest))


def _last_common(own: Ledger, other: Ledger) -> int:
    """Return the position of the last plan that both ledgers have."""
    return sum(ours == theirs for ours, theirs in zip(own.digests, other.digests, strict=False)) - 1


def verdict(own: Ledger, other: Ledger) -> Literal["own", "other", "tie"]:
    """Return which history the electors of the last common plan prefer by their votes for the first entry; a tie if one history
    continues the other. No later entry changes this."""
    common = _last_common(own, other)
    if common + 1 >= min(len(own.digests), len(other.digests)):
        return "tie"
    return _preferred(own.entry(common + 1), other.entry(common + 1), parent=own.plan(common))


def is_outvoted(own: Ledger, entry: LedgerEntry) -> bool:
    """Return whether the entry leaves our ledger at a plan whose electors prefer our next one, by votes that the entry only
    claims so far. Far cheaper than a check of the entry, which strangers may have made up."""
    position = own.position.get(entry.value.parent)
    if position is None or position + 1 == len(own.digests):
        return False
    return _preferred(own.entry(position + 1), entry, parent=own.plan(position)) == "own"


def _preferred(ours: LedgerEntry, theirs: LedgerEntry, *, parent: RoundPlan) -> Literal["own", "other", "tie"]:
    """Return which of two entries after a plan its electors prefer by their votes."""
    twice = ours.certificate.voters & theirs.certificate.voters
    kept, kept_there = (_proven_electors(entry, parent, without=twice) for entry in (ours, theirs))
    if kept == kept_there:
        return "tie"
    return "own" if kept > kept_there else "other"


def outranks(other: Ledger, own: Ledger) -> bool:
    """Return whether the electors prefer `other`; or are undecided and more of them followed it alone since; or it then proves
    more samples, then has more rounds, then the larger digest.

    Without those that followed, one elector could outrank a history that all others had joined since, by votes of its own.
    """
    decided = verdict(own, other)
    if decided != "tie":
        return decided == "other"
    common = _last_common(own, other)
    electors = electorate(own.plan(common))
    kept, kept_there = ({peer for peer in electors if ledger.has_voted_since(peer, common)} for ledger in (own, other))
    return (len(kept_there - kept), other.head.rank) > (len(kept - kept_there), own.head.rank)


def _proven_electors(entry: LedgerEntry, parent: RoundPlan, *, without: frozenset[PeerId]) -> tuple[bool, int]:
    """Return whether the electors behind an entry are a majority of all electors of the parent, and their number.

    Electors count that were not absent, as far as the votes prove that they were asked: a certificate has the votes of more
    than half of them. Peers of one side may hold different votes for one entry, so the votes alone would let two sides of equal
    size each prefer their own history for ever. `without` are electors that voted for both entries and count for neither.
    """
    full = electorate(parent)
    left_out = {*entry.certificate.absent, *entry.value.departed, *without}
    votes = len([peer for peer in full if peer in entry.certificate.voters and peer not in without])
    proven = max(0, min(len([peer for peer in full if peer not in left_out]), 2 * votes - 1))
    return is_majority(proven, len(full)), proven


def switch_between(own: Ledger, other: Ledger) -> Reorg:
    """Return the reorg from one chain to the other, with the entries that it drops and adds."""
    common = _last_common(own, other)
    return Reorg(
        fork=own.plan(common),
        lost=own.after(own.digests[common], len(own.digests)),
        won=other.after(own.digests[common], len(other.digests)),
    )


def is_backed(switched: Reorg) -> bool:
    """Return whether some voter for the first won entry did not also vote for the first lost one. An honest peer votes for one
    value of a slot, so without such a voter only liars certified the won entry. False if nothing is lost, since the votes show
    nothing then."""
    return bool(switched.lost) and not switched.won[0].certificate.voters <= switched.lost[0].certificate.voters
