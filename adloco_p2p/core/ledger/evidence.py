"""Whether evidence bans a peer: a pure function of the ledger and the evidence, so that every peer comes to the same result.

No claim of a peer counts, and nothing that is only probable: there is a ban only if two signatures of the accused exclude each
other, or if one is under a sum that is wrong by the contributions that it names. Only a peer that had a seat in one of the
newest plans can be accused, and only once, so made-up identities cannot fill the ledger with evidence against themselves.
"""

import base64

from adloco_p2p.core.ledger import slice_sums
from adloco_p2p.core.ledger.ledger import ENTRIES_KEPT, Ledger
from adloco_p2p.core.model import canonical
from adloco_p2p.core.model.hash_tree import climb, leaf_hash, shard_hash
from adloco_p2p.core.model.ledger_entry import (
    MAX_EVIDENCE_BYTES,
    Equivocation,
    Evidence,
    ProvenSlice,
    Verify,
    WrongSum,
    inputs_digest,
    receipt_content,
)
from adloco_p2p.core.model.plan import roster_of

EVIDENCE_ROUNDS = ENTRIES_KEPT // 2
"""The number of newest plans about which evidence counts; every peer has them in memory."""


def evidence_problem(evidence: Evidence, ledger: Ledger, verify: Verify | None) -> str:
    """Return why the evidence cannot stand in the value after the end of the ledger; empty if it can. `verify` is None if the
    pledges were checked before."""
    wrong = standing_problem(evidence, ledger)
    if wrong or verify is None:
        return wrong
    if isinstance(evidence, WrongSum):
        return _sum_problem(evidence, verify)
    return _equivocation_problem(evidence, verify)


def standing_problem(evidence: Evidence, ledger: Ledger) -> str:
    """Return why the evidence, even if it is sound, does not ban by the next plan; empty if it may."""
    about, what = evidence.about, f"the evidence about {evidence.subject}"
    if evidence.subject in ledger.admissions.bans():
        return f"{what} bans nobody: the peer is banned already"
    if ledger.admissions.has(evidence):
        return f"{what} is in the ledger already"
    position = ledger.position.get(about.plan)
    if position is None or position < len(ledger.digests) - EVIDENCE_ROUNDS:
        return f"{what} is about none of the last {EVIDENCE_ROUNDS} plans"
    lifted = ledger.admissions.lifted().get(evidence.subject)
    if lifted is not None and position <= lifted.position:
        return f"{what} is about a plan before a signer lifted that peer's ban"
    plan = ledger.plan(position)
    if plan.round != about.round or evidence.subject not in roster_of(plan):
        return f"{what} is about round {about.round}, in which the peer had no seat by that plan"
    return ""


def _equivocation_problem(evidence: Equivocation, verify: Verify) -> str:
    """Return why the two pledges, which must be about one thing, differ, and be signed by the accused, prove nothing; empty if
    they do."""
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


def _sum_problem(evidence: WrongSum, verify: Verify) -> str:
    """Return why the evidence does not prove a wrong sum; empty if it does: the accused signed the receipt, which names these
    proven inputs and this proven result, and the inputs have another sum."""
    what, receipt = f"the evidence about {evidence.subject}", evidence.receipt
    if canonical.size_once(evidence) > MAX_EVIDENCE_BYTES:
        return f"{what} has more than {MAX_EVIDENCE_BYTES} bytes"
    taken = [root for root, factor in zip(evidence.roots, evidence.coefficients, strict=False) if factor != 0]
    is_whole = len(evidence.roots) == len(evidence.coefficients) and len(evidence.divisors) in (0, len(evidence.roots))
    if not is_whole or not taken or len(taken) != len(evidence.inputs):
        return f"{what} does not show one slice of each contribution that counts"
    try:
        result, shard = _shown(evidence.result, evidence.first)
        inputs = [_shown(item, evidence.first) for item in evidence.inputs]
        roots = [
            climb(shard_hash(evidence.subject, reached), base64.b64decode(item.to_root, validate=True)).hex()
            for item, (_, reached) in zip(evidence.inputs, inputs, strict=True)
        ]
    except ValueError as error:
        return f"{what} has a proof that is none: {error}"
    if roots != taken:
        return f"{what} shows values that are not in the contributions"
    made_from = inputs_digest(
        evidence.sent_codec, evidence.mean_codec, evidence.roots, evidence.coefficients, evidence.divisors
    )
    if receipt.kind != "reduction" or receipt.content != receipt_content(made_from, shard):
        return f"{what} has a receipt of other contributions, or of another result"
    if not verify(receipt.peer, receipt.payload, receipt.signature):
        return f"{what} names a receipt that is not signed by that peer"
    return "" if is_wrong_sum(evidence, [data for data, _ in inputs], result) else f"{what} shows a sum that may be right"


def is_wrong_sum(evidence: WrongSum, inputs: list[bytes], result: bytes) -> bool:
    """Return whether no honest reducer makes this result from these inputs. An honest one checks all inputs of its shard, and
    takes none that cannot be decoded."""
    if evidence.sent_codec not in slice_sums.CODES or evidence.mean_codec not in slice_sums.MEAN_CODES:
        return False
    try:
        sent = [slice_sums.decoded(evidence.sent_codec, data) for data in inputs]
        have = slice_sums.decoded(evidence.mean_codec, result)
    except ValueError:
        return True
    if any(len(vector) != len(have) for vector in sent):
        return True
    try:
        taken = [place for place, factor in enumerate(evidence.coefficients) if factor != 0]
        factors = [evidence.coefficients[place] for place in taken]
        exact = slice_sums.combined(sent, factors, [evidence.divisors[place] for place in taken if evidence.divisors])
        wanted = slice_sums.returned(evidence.mean_codec, exact)
    except (OverflowError, ValueError):
        return False
    return not slice_sums.are_equal(evidence.mean_codec, wanted, have)


def _shown(item: ProvenSlice, first: int) -> tuple[bytes, bytes]:
    """Return the bytes of the slice and the root of its shard. Raises ValueError for a malformed proof."""
    data = base64.b64decode(item.data, validate=True)
    return data, climb(leaf_hash(first, data), base64.b64decode(item.to_shard, validate=True))
