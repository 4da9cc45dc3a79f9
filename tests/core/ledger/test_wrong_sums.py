"""A sum that does not follow from its contributions bans its reducer, by evidence that a checker cannot make up."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from adloco_p2p.core.ledger.admission import in_order
from adloco_p2p.core.ledger.ledger import Ledger
from adloco_p2p.core.ledger.validation import verify_ledger
from adloco_p2p.core.model.hash_tree import leaf_hash, proof, tree_root
from adloco_p2p.core.model.ledger_entry import Pledge, WrongSum, inputs_digest, receipt_content
from adloco_p2p.core.model.plan import roster_of
from adloco_p2p.core.model.scalars import Digest, PeerId
from adloco_p2p.sim.identities import sign, verify
from tests.core.core_values import peer
from tests.core.ledger.test_admission import AUTHOR, agree, decide, invited, verdict
from tests.core.ledger.test_evidence import pledge, seated
from tests.core.ledger.wrong_sums import Tree, changed_input, packed, text, wrong_sum

LIAR, OTHER = peer(1), AUTHOR
ONE = Tree({OTHER: [packed(1, 2), packed(3, 4)], LIAR: [packed(5, 6), packed(7, 8), packed(9, 10)]})
TWO = Tree({OTHER: [packed(3, 2), packed(1, 0)], LIAR: [packed(7, 6), packed(5, 4), packed(3, 2)]})
HALVES = (0.5, 0.5)
MEAN = Tree({OTHER: [packed(2, 2), packed(2, 2)], LIAR: [packed(6, 6), packed(6, 6), packed(6, 6)]})
WRONG = Tree({OTHER: MEAN.shards[OTHER], LIAR: [packed(6, 6), packed(6, 6.5), packed(6, 6)]})


def evidence(ledger: Ledger, index: int, result: Tree = WRONG, *, by: PeerId = LIAR, **fields: Any) -> WrongSum:
    def receipt(content: Digest) -> Pledge:
        return pledge(ledger, content, by=by, kind="reduction")

    what: dict[str, Any] = {"contributions": (ONE, TWO), "coefficients": HALVES, "result": result, **fields}
    return wrong_sum(receipt, by, index, **what)


def test_a_sum_that_does_not_follow_ends_the_seat_of_its_reducer() -> None:
    ledger, entries = seated()
    first = ledger.plans[0]
    entries.append(agree(ledger, statements=[evidence(ledger, 1)]))
    assert roster_of(ledger.plans[-1]) == (AUTHOR,)
    assert list(ledger.admissions.bans()) == [LIAR]
    assert "does not follow" in ledger.admissions.bans()[LIAR].statement.reason
    assert verify_ledger(first, entries, decide, verify) == []


@pytest.mark.parametrize("index", [0, 2])
def test_a_right_slice_of_a_wrong_part_proves_nothing(index: int) -> None:
    ledger, _ = seated()
    assert "a sum that may be right" in verdict(ledger, statements=[evidence(ledger, index)])


def test_no_slice_of_an_honest_reducer_is_evidence() -> None:
    ledger, _ = seated()
    for index in range(3):
        assert "a sum that may be right" in verdict(ledger, statements=[evidence(ledger, index, MEAN)])


@pytest.mark.parametrize("mean_codec", range(256))
def test_a_receipt_of_any_codec_raises_no_error(mean_codec: int) -> None:
    """A member may sign one about itself that names a codec in which no mean is returned, with bytes of that codec."""
    ledger, _ = seated()
    two_of_topk2 = bytes((2, 0, 0, 0)) + bytes(4) + bytes([255] * 8) + bytes(16 + 40 + 16)
    result = Tree({OTHER: [packed(0, 0)], LIAR: [two_of_topk2]})
    sent = Tree({OTHER: [packed(0, 0)], LIAR: [packed(0, 0)]})
    made = evidence(ledger, 0, result, contributions=(sent,), coefficients=(1.0,))
    inputs = inputs_digest(made.sent_codec, mean_codec, made.roots, made.coefficients)
    receipt = pledge(ledger, receipt_content(inputs, result.shard(LIAR)), by=LIAR, kind="reduction")
    told = verdict(ledger, statements=[replace(made, mean_codec=mean_codec, receipt=receipt)])
    assert told == "" or "may be right" in told
    assert mean_codec != 9 or "may be right" in told, "of `topk2`, whose bytes these are"


def test_a_contribution_that_was_left_out_is_not_shown_and_does_not_count() -> None:
    ledger, _ = seated()
    alone = (1.0, 0.0)
    assert "may be right" in verdict(ledger, statements=[evidence(ledger, 1, ONE, coefficients=alone)])
    assert verdict(ledger, statements=[evidence(ledger, 1, MEAN, coefficients=alone)]) == ""


def test_a_contribution_that_cannot_be_decoded_shields_no_reducer() -> None:
    """An honest reducer takes none; two that are together might."""
    ledger, _ = seated()
    broken = Tree({OTHER: TWO.shards[OTHER], LIAR: [packed(7, 6), packed(5, float("nan")), packed(3, 2)]})
    assert verdict(ledger, statements=[evidence(ledger, 1, contributions=(ONE, broken))]) == ""


def _of_a_friend(ledger: Ledger) -> WrongSum:
    """Another vector than the contributor committed itself to."""
    found = evidence(ledger, 1, MEAN)
    return changed_input(found, 0, data=text(packed(700, 8)))


def _from_elsewhere(ledger: Ledger) -> WrongSum:
    """Values of another place of the same contribution."""
    found = evidence(ledger, 1, MEAN)
    return changed_input(found, 0, **{name: getattr(ONE.show(LIAR, 2), name) for name in ("data", "to_shard")})


def _hidden_in_another_shard(ledger: Ledger) -> WrongSum:
    """A contributor hides other values of the same place in the shard of a reducer that is its friend and checks nothing."""
    hidden = leaf_hash(MEAN.first(LIAR, 1), packed(700, 8))

    class Doubled(Tree):
        def _leaves(self, reducer: PeerId) -> list[bytes]:
            return [*super()._leaves(reducer), *([hidden] if reducer == OTHER else [])]

    doubled = Doubled(ONE.shards)
    found = evidence(ledger, 1, MEAN, contributions=(doubled, TWO))
    way = proof(doubled._leaves(OTHER), 2)
    assert tree_root(doubled._leaves(OTHER)) == doubled.shard(OTHER)
    shown = doubled.show(OTHER, 0)
    return changed_input(found, 0, data=text(packed(700, 8)), to_shard=text(way), to_root=shown.to_root)


def _with_other_factors(ledger: Ledger) -> WrongSum:
    return replace(evidence(ledger, 1, MEAN), coefficients=(0.25, 0.75))


def _read_as_float16(ledger: Ledger) -> WrongSum:
    return replace(evidence(ledger, 1, MEAN), sent_codec=2, mean_codec=2)


def _forged_receipt(ledger: Ledger) -> WrongSum:
    found = evidence(ledger, 1)
    return replace(found, receipt=replace(found.receipt, signature=sign(peer(2), found.receipt.payload)))


def _of_a_commitment(ledger: Ledger) -> WrongSum:
    found = evidence(ledger, 1)
    return replace(found, receipt=pledge(ledger, found.receipt.content, by=LIAR, kind="contribution"))


def _without_an_input(ledger: Ledger) -> WrongSum:
    found = evidence(ledger, 1)
    return replace(found, inputs=found.inputs[:1])


def _no_base64(ledger: Ledger) -> WrongSum:
    return changed_input(evidence(ledger, 1), 1, data="+")


def _a_way_without_end(ledger: Ledger) -> WrongSum:
    return changed_input(evidence(ledger, 1), 1, to_shard=text(bytes(33 * 41)))


@pytest.mark.parametrize(
    ("made_up", "why"),
    [
        (_of_a_friend, "not in the contributions"),
        (_from_elsewhere, "not in the contributions"),
        (_hidden_in_another_shard, "not in the contributions"),
        (_with_other_factors, "of other contributions"),
        (_read_as_float16, "of other contributions"),
        (_forged_receipt, "not signed by that peer"),
        (_of_a_commitment, "of other contributions"),
        (_without_an_input, "does not show one slice of each"),
        (_no_base64, "a proof that is none"),
        (_a_way_without_end, "a proof that is none"),
        (lambda ledger: evidence(ledger, 0, by=peer(7), **_of(peer(7))), "had no seat by that plan"),
    ],
)
def test_a_checker_that_lies_bans_no_reducer(made_up: Callable[[Ledger], WrongSum], why: str) -> None:
    ledger, _ = seated()
    assert why in verdict(ledger, statements=[made_up(ledger)])


def _of(reducer: PeerId) -> dict[str, Any]:
    shards = [Tree({OTHER: tree.shards[OTHER], reducer: tree.shards[LIAR]}) for tree in (ONE, TWO, WRONG)]
    return {"contributions": tuple(shards[:2]), "result": shards[2]}


def test_a_plan_carries_one_wrong_sum_and_the_next_one_the_next() -> None:
    ledger, _ = seated()
    agree(ledger, joined=[invited(peer(2))])
    found = [evidence(ledger, 1), evidence(ledger, 1, by=peer(2), **_of(peer(2)))]
    found.sort(key=lambda item: item.receipt.signature)
    assert "the second wrong sum" in verdict(ledger, statements=in_order(found))
    agree(ledger, statements=found[:1])
    assert verdict(ledger, statements=found[1:]) == ""
