"""The rebuilding of the agreement's state from the journal, in one pass over it."""

from collections.abc import Iterable
from dataclasses import dataclass

from adloco_p2p.core.agreement.lone_lives import LoneLives
from adloco_p2p.core.ledger.ledger import Ledger, Recall
from adloco_p2p.core.model.ledger_entry import LedgerEntry
from adloco_p2p.core.model.messages import Accepted, AverageDigest, CommitVoted, Incarnation, Promised, Voted
from adloco_p2p.core.model.plan import RoundPlan
from adloco_p2p.core.model.scalars import Digest, InstanceId

COMMIT_VOTES_KEPT = 16
"""The number of rounds before the newest plan whose own commit votes are kept; no host averages an older round."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoveredState:
    """The state of the agreement that a journal holds."""

    incarnation: int
    """The last incarnation; 0 for a newcomer."""
    ledger: Ledger
    promised: Promised | None
    accepted: Accepted | None
    voted: Voted | None
    """The last promise, acceptance and vote about the successor of the ledger's last plan."""
    lone_lives: LoneLives
    commit_votes: dict[tuple[Digest, InstanceId], AverageDigest]
    """This peer's own commit votes of the newest rounds, by plan and instance."""


def recover(records: Iterable[object], genesis: RoundPlan, *, recall: Recall) -> RecoveredState:
    """Rebuild the state from the records. `recall` must return each ledger entry as soon as it was read from `records`."""
    incarnation, ledger, lone_lives = 0, Ledger(genesis, recall=recall), LoneLives()
    promised: dict[Digest, Promised] = {}
    accepted: dict[Digest, Accepted] = {}
    voted: dict[Digest, Voted] = {}
    commit_votes: dict[tuple[Digest, InstanceId], AverageDigest] = {}
    for record in records:
        match record:
            case LedgerEntry(value=value) if value.parent in ledger.position:
                if value.parent != ledger.digests[-1]:
                    ledger = ledger.truncated(value.parent)
                lone_lives.note(record, ledger.plans[-1])
                ledger.append(record)
                ledger.forget_old()
                promised.pop(value.parent, None)  # the slot is final
                accepted.pop(value.parent, None)
            case Incarnation(number=number):
                incarnation = max(incarnation, number)
                lone_lives.note(record, genesis)
            case Promised(parent=parent):
                promised[parent] = record
            case Accepted(value=value):
                accepted[value.parent] = record
            case Voted(parent=parent):
                voted[parent] = record
            case CommitVoted(plan=plan, vote=vote):
                commit_votes[plan, vote.instance] = vote
    lone_lives.note(Incarnation(number=incarnation + 1), genesis)
    slot = ledger.digests[-1]
    return RecoveredState(
        incarnation=incarnation,
        ledger=ledger,
        lone_lives=lone_lives,
        promised=promised.get(slot),
        accepted=accepted.get(slot),
        voted=voted.get(slot),
        commit_votes={
            key: vote for key, vote in commit_votes.items() if vote.round >= ledger.plans[-1].round - COMMIT_VOTES_KEPT
        },
    )
