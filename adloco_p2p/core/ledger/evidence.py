"""Whether evidence bans: a pure function of the ledger and of the evidence itself, so every peer finds the same.

No peer's claim counts, and nothing that is only probable: two signatures of the accused exclude each other, or there is no ban.
Only a peer that had a seat in one of the newest plans can be accused, and once: made-up identities cannot fill the ledger with
evidence against themselves.
"""

from adloco_p2p.core.ledger.ledger import ENTRIES_KEPT, Ledger
from adloco_p2p.core.model.ledger_entry import Equivocation, Verify
from adloco_p2p.core.model.types import roster_of

EVIDENCE_ROUNDS = ENTRIES_KEPT // 2
"""Evidence is about one of so many newest plans, which every peer has in memory."""


def evidence_problem(evidence: Equivocation, ledger: Ledger, verify: Verify | None) -> str:
    """Why the evidence cannot stand in the value after the end of the ledger; empty where it can. `verify`: None where the
    pledges were checked before."""
    wrong = standing_problem(evidence, ledger)
    return wrong if wrong or verify is None else _equivocation_problem(evidence, verify)


def standing_problem(evidence: Equivocation, ledger: Ledger) -> str:
    """Why evidence, however sound, does not ban by the next plan; empty where it may."""
    about, what = evidence.first, f"the evidence about {evidence.subject}"
    if evidence.subject in ledger.admissions.bans():
        return f"{what} bans nobody: the peer is banned already"
    if ledger.admissions.has(evidence):
        return f"{what} is in the ledger already"
    position = ledger.position.get(about.plan)
    if position is None or position < len(ledger.digests) - EVIDENCE_ROUNDS:
        return f"{what} is about none of the last {EVIDENCE_ROUNDS} plans"
    plan = ledger.plan(position)
    if plan.round != about.round or evidence.subject not in roster_of(plan):
        return f"{what} is about round {about.round}, in which the peer had no seat by that plan"
    return ""


def _equivocation_problem(evidence: Equivocation, verify: Verify) -> str:
    """The two pledges are about one thing, say different things, and are signed by the accused."""
    first, second = evidence.first, evidence.second
    what = f"the evidence about {evidence.subject}"
    about = [(pledge.kind, pledge.peer, pledge.plan, pledge.round, pledge.key) for pledge in (first, second)]
    if about[0] != about[1]:
        return f"{what} names pledges about two things"
    if first.content >= second.content:
        return f"{what} names pledges that are equal, or not in order"
    if not all(verify(pledge.peer, pledge.payload, pledge.signature) for pledge in (first, second)):
        return f"{what} names a pledge that is not signed by that peer"
    return ""
