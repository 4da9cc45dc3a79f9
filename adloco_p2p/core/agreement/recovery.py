"""The rebuilding of the agreement's state from the journal, in one pass over it."""

from collections import defaultdict
from collections.abc import Iterable, MutableMapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from adloco_p2p.core.agreement.lone_lives import LoneLives
from adloco_p2p.core.ledger.ledger import Ledger, Recall
from adloco_p2p.core.model.ledger_entry import LedgerEntry, Reorg
from adloco_p2p.core.model.messages import Accepted, AverageDigest, CommitVoted, Incarnation, Promised, Voted
from adloco_p2p.core.model.plan import RoundPlan
from adloco_p2p.core.model.scalars import Digest, InstanceId

COMMIT_VOTES_KEPT = 16
"""The number of rounds before the newest plan whose own commit votes are kept; no host averages an older round."""


@dataclass(slots=True, kw_only=True)
class SlotRecords:
    """What one peer wrote down about one slot. The slot may be open once more, if its plan is the end of a history that lost
    and then won."""

    promised: Promised | None = None
    accepted: Accepted | None = None
    voted: Voted | None = None
    lost: Digest | None = None
    """The plan that was final in this slot, in a history that lost."""

    def settle(self) -> None:
        """Note that a plan is final: only the vote is still needed."""
        self.promised = self.accepted = self.lost = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoveredState:
    """The state of the agreement that a journal holds."""

    incarnation: int
    """The last incarnation; 0 for a newcomer."""
    ledger: Ledger
    slots: dict[Digest, SlotRecords]
    """The records of all slots, by the plan whose successor each is about."""
    lone_lives: LoneLives
    written: frozenset[Digest]
    """The plans of all ledger entries of the journal, those of histories that lost included."""
    commit_votes: dict[tuple[Digest, InstanceId], AverageDigest]
    """This peer's own commit votes of the newest rounds, by plan and instance."""

    def switch_from(self, plan: Digest) -> Reorg | None:
        """Return the reorg from the history that ends with this plan to that of the ledger; None if the ledger has the plan, or
        the journal does not, or nothing followed the last common plan."""
        ledger, lost = self.ledger, list[LedgerEntry]()
        while plan not in ledger.position:
            if plan not in self.written:
                return None
            lost.append(ledger.recalled(plan))
            plan = lost[-1].value.parent
        won = ledger.after(plan, len(ledger.digests))
        return Reorg(fork=ledger.plan(ledger.position[plan]), lost=tuple(reversed(lost)), won=won) if lost and won else None


def recover(records: Iterable[object], genesis: RoundPlan, *, recall: Recall) -> RecoveredState:
    """Rebuild the state from the records. `recall` must return each ledger entry as soon as it was read from `records`."""
    incarnation, ledger, lone_lives, written = 0, Ledger(genesis, recall=recall), LoneLives(), set[Digest]()
    slots = defaultdict[Digest, SlotRecords](SlotRecords)
    commit_votes: dict[tuple[Digest, InstanceId], AverageDigest] = {}
    for record in records:
        if isinstance(record, LedgerEntry):
            written.add(record.value.plan)
        match record:
            case LedgerEntry(value=value) if value.parent in ledger.position:
                if value.parent != ledger.digests[-1]:
                    note_lost(slots, ledger.digests[ledger.position[value.parent] :])
                    ledger = ledger.truncated(value.parent)
                lone_lives.note(record, ledger.plans[-1])
                ledger.append(record)
                ledger.forget_old()
                slots[value.parent].settle()
            case LedgerEntry(value=value):  # of a history that lost, and whose first plans were written down again since
                slots[value.parent].lost = value.plan
            case Incarnation(number=number):
                incarnation = max(incarnation, number)
                lone_lives.note(record, genesis)
            case Promised(parent=parent):
                slots[parent].promised = record
            case Accepted(value=value):
                slots[value.parent].accepted = record
            case Voted(parent=parent):
                slots[parent].voted = record
            case CommitVoted(plan=plan, vote=vote):
                commit_votes[plan, vote.instance] = vote
    lone_lives.note(Incarnation(number=incarnation + 1), genesis)
    return RecoveredState(
        incarnation=incarnation,
        ledger=ledger,
        slots={slot: kept for slot, kept in slots.items() if kept != SlotRecords()},
        lone_lives=lone_lives,
        written=frozenset(written),
        commit_votes={
            key: vote for key, vote in commit_votes.items() if vote.round >= ledger.plans[-1].round - COMMIT_VOTES_KEPT
        },
    )


def note_lost(slots: MutableMapping[Digest, SlotRecords], chain: Sequence[Digest]) -> None:
    """Note that a history lost. `chain` has the last common plan and the plans that were lost after it."""
    for parent, plan in pairwise(chain):
        slots.setdefault(parent, SlotRecords()).lost = plan
