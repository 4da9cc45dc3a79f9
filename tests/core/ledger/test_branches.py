"""What is accepted of lost histories, and what it weighs."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from adloco_p2p.core.ledger.branch_claims import accepted_claims
from adloco_p2p.core.ledger.ledger import Ledger
from adloco_p2p.core.model import canonical
from adloco_p2p.core.model.branches import ROUNDS_OPEN, BranchState, GivenWeight, PendingBranch
from adloco_p2p.core.model.certificate import Ballot, BranchProof, CastVote, Certificate
from adloco_p2p.core.model.ledger_entry import LedgerEntry, SignedReport, Value, Vote
from adloco_p2p.core.model.lineage import Fork, Merge, ProbeVerdict
from adloco_p2p.core.model.plan import RosterChange, RoundPlan, roster_of
from adloco_p2p.core.model.report import Report
from adloco_p2p.core.model.rules import MergeRules
from adloco_p2p.core.model.run_progress import given_samples, trained_samples
from adloco_p2p.core.model.scalars import Digest, InstanceId
from adloco_p2p.core.planning.branch_merge import Settlement, settle
from adloco_p2p.core.planning.round_plan import next_plan
from adloco_p2p.sim.identities import sign, verify
from tests.core.core_values import capacity, peer
from tests.core.plan_check import check_plan
from tests.core.planning.test_round_plan import ONE, honest_reports, start

INSTANCE = InstanceId(0)


def history(rounds: int, *, unreported: int | None = 3, unseated: Sequence[int] = (0, 1, 2)) -> Ledger:
    """Plans that follow each other, each from honest reports. In the plan of round 3, the first after the fork of most tests,
    these peers have no seats, and no peer reports its round: so all of them may have been apart."""
    ledger = Ledger(start(ONE), recall=dict[Digest, LedgerEntry]().__getitem__)
    parent = ledger.plans[-1]
    for _ in range(rounds):
        reported = ledger.reported
        reports = honest_reports(reported) if reported is not None and reported.round != unreported else []
        parent = replace(next_plan(parent, reports, ONE), parent=ledger.digests[-1])
        gone = [peer(index) for index in unseated] if parent.round == 3 else []
        grow(ledger, replace(parent, roster=tuple(seat for seat in parent.roster if seat.peer not in gone)), reports)
    return ledger


def grow(ledger: Ledger, plan: RoundPlan, reports: list[Report]) -> None:
    value = Value(round=plan.round, parent=plan.parent, reports=(), joined=(), departed=(), plan=canonical.digest(plan))
    certificate = Certificate(ballot=Ballot(attempt=0, peer=peer(0)), absent=(), votes=())
    signed = tuple(SignedReport(report=report, signature="") for report in reports)
    ledger.append(LedgerEntry(plan=plan, value=value, reports=signed, certificate=certificate))


def proof_by(ledger: Ledger, claim: BranchState, *voters: int, voted: int | None = None) -> BranchProof:
    """A certificate of the claim's branch by these peers, all others absent; `voted`: only so many of them, the first ones."""
    names = [peer(index) for index in voters]
    position = ledger.position.get(claim.fork, 2)
    ballot, absent = Ballot(attempt=0, peer=names[0]), tuple(p for p in roster_of(ledger.plan(position)) if p not in names)
    unsigned = [
        Vote(peer=p, parent=claim.fork, ballot=ballot, absent=absent, value=claim.branch, abstains=False, signature="")
        for p in names[:voted]
    ]
    votes = tuple(CastVote(peer=vote.peer, abstains=False, signature=sign(vote.peer, vote.payload)) for vote in unsigned)
    return BranchProof(branch=claim.branch, certificate=Certificate(ballot=ballot, absent=absent, votes=votes))


def accepted(ledger: Ledger, reports: Sequence[Report]) -> tuple[PendingBranch, ...]:
    return accepted_claims(ledger, reports, verify)


def branch_state(ledger: Ledger, *, fork: int = 2, samples: int = 100, **changes: object) -> BranchState:
    known = BranchState(
        fork=ledger.digests[fork],
        fork_round=fork,
        branch=Digest("e" * 64),
        instance=INSTANCE,
        round=fork + 3,
        state=Digest("f" * 64),
        samples=samples,
    )
    return replace(known, **changes)  # type: ignore[arg-type]


def bringing(ledger: Ledger, *claims: tuple[int, BranchState], voters: Sequence[int] = (0, 1, 2)) -> list[Report]:
    """The reports that decide the next plan; some of them bring branch states, with a certificate by the voters."""
    assert ledger.reported is not None
    brought = {peer(index): item for index, item in claims}
    return [
        replace(report, branches=(item,), proof=proof_by(ledger, item, *voters) if voters else None)
        if (item := brought.get(report.peer)) is not None
        else report
        for report in honest_reports(ledger.plans[-2])
    ]


def test_a_claim_is_believed_only_of_who_was_there() -> None:
    ledger = history(5)
    good = branch_state(ledger)
    (item,) = accepted(ledger, bringing(ledger, (0, good)))
    assert (item.branch_state, item.target, item.claimants, item.since) == (good, INSTANCE, (peer(0),), 6)
    newcomer = Report(peer=peer(77), round=4, plan=ledger.digests[4], capacity=capacity(), branches=(good,))
    own_state = ledger.entries[-2].reports[0].report.instances[0].state_digest
    assert accepted(ledger, [newcomer]) == ()
    for wrong in (
        branch_state(ledger, fork_round=1),
        branch_state(ledger, round=2),
        branch_state(ledger, branch=canonical.digest(ledger.entries[2].value)),
        replace(good, fork=Digest("9" * 64)),
        branch_state(ledger, state=own_state),
    ):
        assert accepted(ledger, bringing(ledger, (0, wrong))) == ()


def test_a_branch_of_a_branch_is_refused() -> None:
    """A lost history that left another lost one: its fork is no plan of this history."""
    ledger = history(5)
    other = replace(ledger.plans[3], reason="of a history that lost")
    nested = branch_state(ledger, fork=3, round=6)
    assert len(accepted(ledger, bringing(ledger, (0, replace(nested, fork=ledger.digests[2], fork_round=2))))) == 1
    nested = replace(nested, fork=canonical.digest(other))
    assert accepted(ledger, bringing(ledger, (0, nested))) == ()


def test_a_branch_counts_once_and_one_branch_per_peer() -> None:
    ledger = history(5)
    good = branch_state(ledger)
    reports = bringing(ledger, (0, good))
    grow(
        ledger,
        next_plan(ledger.plans[-1], reports, ONE, roster=RosterChange(branches=accepted(ledger, reports))),
        reports,
    )
    assert [item.branch_state for item in ledger.plans[-1].branches] == [good]
    assert accepted(ledger, bringing(ledger, (1, good))) == ()
    invented = replace(good, branch=Digest("d" * 64))
    assert accepted(ledger, bringing(ledger, (0, invented))) == ()
    assert len(accepted(ledger, bringing(ledger, (1, invented)))) == 1


def test_a_claim_without_a_certificate_of_its_side_is_nothing() -> None:
    ledger = history(5)
    good = branch_state(ledger)
    assert accepted(ledger, bringing(ledger, (0, good), voters=())) == ()
    proof = proof_by(ledger, good, 0, 1)
    (vote, other), certificate = proof.certificate.votes, proof.certificate
    for wrong in (
        replace(proof, branch=Digest("d" * 64)),
        replace(proof, certificate=replace(certificate, absent=())),
        replace(proof, certificate=replace(certificate, votes=(replace(vote, signature=other.signature), other))),
        replace(proof, certificate=replace(certificate, votes=(replace(vote, abstains=True), other))),
        replace(proof, certificate=replace(certificate, votes=(vote, vote))),
        proof_by(ledger, branch_state(ledger, fork=1), 0, 1),
        proof_by(ledger, good, 0, 1, voted=1),
        proof_by(ledger, good, 7, 8),
    ):
        (first, *others) = bringing(ledger, (0, good))
        assert accepted(ledger, [replace(first, proof=wrong), *others]) == (), wrong
    (item,) = accepted(ledger, [replace(first, proof=proof), *others])
    assert item.backing == pytest.approx(2 / 3)


def test_claims_without_a_certificate_cost_no_reading_and_those_with_one_read_each_entry_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A report holds dozens of claims, and a read of the journal takes milliseconds."""
    ledger = history(10)
    read: list[int] = []
    entry = Ledger.entry

    def counted(self: Ledger, position: int) -> LedgerEntry:
        read.append(position)
        return entry(self, position)

    monkeypatch.setattr(Ledger, "entry", counted)
    claims = tuple(branch_state(ledger, fork=fork, branch=canonical.digest([fork])) for fork in range(2, 8))
    reports = honest_reports(ledger.plans[-2])
    reports[0] = replace(reports[0], branches=claims)
    assert accepted(ledger, reports) == ()
    assert len(read) <= len(claims), "the plan of each fork"
    reports = [replace(report, branches=claims, proof=proof_by(ledger, claims[0], 0, 1, 2)) for report in reports]
    read.clear()
    assert len(accepted(ledger, reports)) == 1
    assert len(read) == len(set(read))


def test_a_copy_of_a_ledger_knows_who_had_lost_a_seat_by_then() -> None:
    ledger = history(8)
    gone = {peer(index) for index in (0, 1, 2)}
    for position in range(len(ledger.digests)):
        seen = set(roster_of(ledger.plan(position)))
        later = [set(roster_of(ledger.plan(at))) for at in range(position, len(ledger.digests))]
        slow = {name for name in seen if any(name not in roster for roster in later)}
        assert ledger.lost_seats(position).intersection(seen) == slow, position
        copy = ledger.truncated(ledger.digests[position])
        assert copy.lost_seats(0) == (gone if position >= 3 else set()) and copy.lost_seats(position) == set()


def test_an_elector_that_kept_its_seat_was_not_apart() -> None:
    """Peer 0 keeps back its report of the round after the fork, and signs alone; peers 1 and 2 were cut off."""
    for unseated, part in (((), None), ((1,), 1 / 3), ((1, 2), 2 / 3)):
        ledger = history(5, unseated=unseated)
        good = branch_state(ledger)
        assert accepted(ledger, bringing(ledger, (0, good), voters=(0,))) == ()
        items = accepted(ledger, bringing(ledger, (0, good), voters=(0, 1, 2)))
        assert [item.backing for item in items] == ([] if part is None else [pytest.approx(part)])


@pytest.mark.parametrize("rounds", [4, 5, 9])
def test_an_elector_that_reported_the_winners_first_plan_was_not_apart(rounds: int) -> None:
    """Peers 0 and 1 were there: with the reports at hand, and with those of any plan since."""
    ledger = history(4)
    good = branch_state(ledger)
    signed = honest_reports(replace(ledger.plans[3], roster=ledger.plans[2].roster))[:2]
    if rounds > 4:
        grow(ledger, next_plan(ledger.plans[-1], signed, ONE), signed)
    for _ in range(rounds - 5):
        assert ledger.reported is not None
        grow(ledger, next_plan(ledger.plans[-1], reports := honest_reports(ledger.reported), ONE), reports)

    def backing(*voters: int) -> list[float]:
        (first, *others) = signed if rounds == 4 else bringing(ledger, voters=())
        first = replace(first, branches=(good,), proof=proof_by(ledger, good, *voters))
        return [item.backing for item in accepted(ledger, [first, *others])]

    assert backing(0) == backing(0, 1) == []
    assert backing(2) == backing(0, 1, 2) == [pytest.approx(1 / 3)]


def test_a_claim_waits_until_the_winners_first_plan_is_reported() -> None:
    ledger = history(3)
    claim = branch_state(ledger, state=Digest("f" * 64))
    assert accepted(ledger, bringing(ledger, (0, claim))) == ()


def test_one_certificate_serves_all_claims_of_its_branch_and_the_one_with_most_votes_counts() -> None:
    ledger = history(5)
    good = branch_state(ledger)
    first, second, third = bringing(ledger, (0, good), (1, good), (2, good), voters=())
    alone, both = proof_by(ledger, good, 0), proof_by(ledger, good, 1, 2)
    (item,) = accepted(ledger, [replace(first, proof=alone), replace(second, proof=both), third])
    assert item.claimants == (peer(0), peer(1), peer(2)) and item.backing == pytest.approx(2 / 3)
    (item,) = accepted(ledger, [first, second, replace(third, proof=alone)])
    assert len(item.claimants) == 3 and item.backing == pytest.approx(1 / 3)


@pytest.mark.parametrize(("backings", "weights"), [([0.125], [0.125]), ([0.125, 0.2], [1 / 11, 7 / 44]), ([0.05, 0.1], None)])
def test_a_branch_weighs_at_most_the_part_of_the_electors_that_signed_it(
    backings: list[float], weights: list[float] | None
) -> None:
    """By hand, in amounts against 1 of the winners: 1/8 of all is 1/7. With a fifth of all beside it, 1/4, that is 11/28; a
    quarter of all is 1/3, so both shrink by 28/33, to 4/33 and 7/33, of 4/3."""
    ledger = history(5)
    claims = [branch_state(ledger, branch=Digest(f"{number + 1:064x}"), samples=10**9) for number in range(len(backings))]
    items = [
        replace(accepted(ledger, bringing(ledger, (0, claim)))[0], backing=part)
        for claim, part in zip(claims, backings, strict=True)
    ]
    named = replace(ledger.plans[-1], branches=tuple(sorted(items, key=lambda item: item.branch_state.key)))
    holding = [replace(report, branches=tuple(claims)) for report in honest_reports(ledger.plans[-2])]
    (merge,) = next_plan(named, holding, ONE).merges
    weighed = dict(zip(merge.sources, merge.weights, strict=True))
    found = [weighed[claim.key] for claim in claims]
    assert (
        all(weight <= backing + 1e-12 for weight, backing in zip(found, backings, strict=True)) and sum(found) <= 0.25 + 1e-12
    )
    if weights is not None:
        assert found == pytest.approx(weights)


def grown(ledger: Ledger, *held: BranchState, named: Sequence[PendingBranch] = ()) -> RoundPlan:
    """One plan more: it names these states for the first time, and by its reports all hosts hold those."""
    assert ledger.reported is not None
    reports = [replace(report, branches=tuple(held)) for report in honest_reports(ledger.reported)]
    grow(ledger, next_plan(ledger.plans[-1], reports, ONE, roster=RosterChange(branches=tuple(named))), reports)
    return ledger.plans[-1]


@pytest.mark.parametrize(("first", "second"), [(0.125, 0.125), (0.2, 0.05), (0.25, None)])
def test_what_two_merges_give_to_one_fork_is_a_quarter(first: float, second: float | None) -> None:
    """Two branches of one fork, whose claims come a few rounds apart: the quarter is the fork's, not the merge's."""
    ledger = history(5)
    early, late = (branch_state(ledger, branch=Digest(name * 64), samples=10**9) for name in "de")
    (item,) = accepted(ledger, bringing(ledger, (0, early)))
    grown(ledger, named=[replace(item, backing=first)])
    plan = grown(ledger, early)
    assert plan.merges[0].weights[1] == pytest.approx(first)
    (item,) = accepted(ledger, bringing(ledger, (1, late)))
    assert (item.branch_weight, item.fork_weight) == (0.0, pytest.approx(first))
    grown(ledger, named=[item])
    plan = grown(ledger, late)
    if second is None:
        assert plan.merges == () and "its fork 0.25" in plan.reason
    else:
        assert plan.merges[0].weights[1] == pytest.approx(second)


def test_what_waits_while_another_state_of_its_fork_is_merged_gets_the_rest() -> None:
    ledger = history(5)
    ready, waiting = (branch_state(ledger, branch=Digest(name * 64), samples=10**9) for name in "de")
    first, second = (accepted(ledger, bringing(ledger, (0, claim)))[0] for claim in (ready, waiting))
    parent = grown(ledger, named=[replace(first, backing=0.2), second])
    reports = bringing(ledger, (0, ready), (1, ready), (2, ready))
    reports = [replace(reports[0], branches=(ready, waiting)), *reports[1:]]
    plan = next_plan(parent, reports, ONE)
    assert plan.merges[0].weights[1] == pytest.approx(0.2)
    (left,) = plan.branches
    assert (left.branch_state, left.branch_weight, left.fork_weight) == (waiting, 0.0, pytest.approx(0.2))


ONE_INTO_ZERO = Merge(sources=(InstanceId(0), InstanceId(1)), target=InstanceId(0), weights=(0.5, 0.5), reason="")


def two_targets() -> tuple[RoundPlan, PendingBranch, PendingBranch]:
    """A plan of two instances, and states of both, of one branch."""
    ledger = history(5)
    first, second = (branch_state(ledger, instance=InstanceId(number), samples=10**9) for number in (0, 1))
    (item,) = accepted(ledger, bringing(ledger, (0, first)))
    (only,) = ledger.plans[-1].instances
    plan = replace(ledger.plans[-1], instances=(only, replace(only, instance=InstanceId(1))))
    one, other = (replace(item, branch_state=state, target=state.instance, backing=0.5) for state in (first, second))
    return plan, one, other


def settled(
    plan: RoundPlan,
    *held: BranchState,
    forks: Sequence[Fork] = (),
    merges: Sequence[Merge] = (),
    is_guarded: bool = False,
    loss: float | None = None,
) -> Settlement:
    """The first host holds all states of the plan, the others these; `loss`: what all measured of the pending merge, and of its
    sources."""
    asked = plan.pending
    verdict = (
        ProbeVerdict(sources=asked.sources, target=asked.target, source_losses=(loss,) * len(asked.sources), merged_loss=loss)
        if asked is not None and loss is not None
        else None
    )
    everything = tuple(item.branch_state for item in plan.branches)
    received = {
        report.peer: replace(report, branches=everything if report.peer == peer(0) else held, verdict=verdict)
        for report in honest_reports(plan)
    }
    rules = MergeRules(guard=is_guarded)
    return settle(plan, received, (forks, merges), roster_of(plan), (), is_last=False, may_probe=True, rules=rules)


def test_a_target_that_is_merged_takes_along_what_its_fork_was_given() -> None:
    """The first state is merged into instance 0 with a quarter; then instance 1, the target of the second, into it, too."""
    plan, first, second = two_targets()
    after = settled(replace(plan, branches=(first, second)), first.branch_state)
    assert [merge.weights[1] for merge in after.merges] == [pytest.approx(0.25)]
    assert [(item.target, item.fork_weight) for item in after.pending] == [(1, 0.0)]
    later = settled(replace(plan, branches=after.pending), second.branch_state, merges=[ONE_INTO_ZERO])
    assert later.merges == () and later.pending == () and "its fork 0.25" in "".join(later.reasons)


@pytest.mark.parametrize("is_named_before", [True, False])
def test_a_copy_of_an_instance_takes_along_what_its_fork_was_given(is_named_before: bool) -> None:
    """A branch had a fifth of instance 0, which is then copied: another state of its fork has that less in the copy, whether
    plans named it when the copy was made or name it for the first time later."""
    ledger = history(5)
    early, late = (branch_state(ledger, branch=Digest(name * 64), samples=10**9) for name in "de")
    (item,) = accepted(ledger, bringing(ledger, (0, early)))
    grown(ledger, named=[replace(item, backing=0.2)])
    assert grown(ledger, early).merges[0].weights[1] == pytest.approx(0.2)
    copied = (Fork(source=INSTANCE, targets=(InstanceId(1),)),)
    if is_named_before:
        (item,) = accepted(ledger, bringing(ledger, (1, late)))
        (item,) = settled(replace(ledger.plans[-1], branches=(item,)), forks=copied).pending
    else:
        parent = ledger.plans[-1]
        reports = honest_reports(ledger.plans[-2])
        grow(ledger, replace(next_plan(parent, reports, ONE), forks=copied), reports)
        (item,) = accepted(ledger, bringing(ledger, (1, late)))
    assert [(given.instance, given.fork_weight) for given in item.given] == [(0, pytest.approx(0.2)), (1, pytest.approx(0.2))]


def test_a_measured_merge_that_weighs_too_much_by_now_is_measured_again() -> None:
    """Instance 0 took in instance 1, of which the fork has a tenth, while its own merge with a quarter was measured."""
    plan, item, _ = two_targets()
    item = replace(item, given=(GivenWeight(instance=InstanceId(1), branch_weight=0.1, fork_weight=0.1),))
    begun = settled(replace(plan, branches=(item,)), item.branch_state, is_guarded=True)
    assert begun.probe is not None and begun.probe.weights[1] == pytest.approx(0.25)
    waiting = replace(plan, branches=begun.pending, pending=begun.probe)
    same = settled(waiting, item.branch_state, is_guarded=True, loss=1.0)
    assert [merge.weights for merge in same.merges] == [begun.probe.weights]
    moved = settled(replace(plan, branches=begun.pending), merges=[ONE_INTO_ZERO], is_guarded=True).pending
    assert [item.fork_weight for item in moved] == [pytest.approx(0.1)]
    again = settled(replace(waiting, branches=moved), item.branch_state, is_guarded=True, loss=1.0)
    assert again.merges == () and again.probe is not None and again.probe.weights[1] == pytest.approx(0.15)


def test_states_of_one_branch_weigh_together_what_its_votes_allow() -> None:
    """One elector that names several instances of the history that it invented: at once, and one after another."""
    ledger = history(5)
    claims = [branch_state(ledger, instance=InstanceId(number), samples=10**9) for number in (0, 7, 9)]
    first, *others = bringing(ledger, (0, claims[0]))
    items = accepted(ledger, [replace(first, branches=tuple(claims[:2])), *others])
    grown(ledger, named=[replace(item, backing=0.125) for item in items])
    plan = grown(ledger, *claims[:2])
    assert len(plan.merges[0].sources) == 3 and sum(plan.merges[0].weights[1:]) == pytest.approx(0.125)
    (item,) = accepted(ledger, bringing(ledger, (0, claims[2])))
    grown(ledger, named=[replace(item, backing=0.125)])
    plan = grown(ledger, claims[2])
    assert plan.merges == () and "its branch has 0.12" in plan.reason


def test_what_most_claim_counts_and_of_their_samples_the_fewest() -> None:
    ledger = history(5)
    two, lie = branch_state(ledger), branch_state(ledger, round=9, state=Digest("9" * 64))
    (item,) = accepted(ledger, bringing(ledger, (0, lie), (1, replace(two, samples=90)), (2, two)))
    assert (item.branch_state.round, item.branch_state.samples, item.claimants) == (two.round, 90, (peer(1), peer(2)))


def test_of_one_report_one_branch_counts_and_all_together_weigh_a_quarter() -> None:
    """Review B4: 63 invented branches with one and the same state outweighed the true one by 63 to 1."""
    ledger = history(5)
    invented = tuple(branch_state(ledger, branch=Digest(f"{number + 1:064x}"), samples=10**9) for number in range(63))
    (first, *others) = honest_reports(ledger.plans[-2])
    lying = replace(first, branches=invented, proof=proof_by(ledger, min(invented, key=lambda claim: claim.key), 0, 1, 2))
    assert len(accepted(ledger, [lying, *others])) == 1
    items = [accepted(ledger, bringing(ledger, (0, claim)))[0] for claim in invented[:3]]
    named = replace(ledger.plans[-1], branches=tuple(sorted(items, key=lambda item: item.branch_state.key)))
    holding = [replace(report, branches=invented[:3]) for report in honest_reports(ledger.plans[-2])]
    (merge,) = next_plan(named, holding, ONE).merges
    assert len(merge.sources) == 4 and sum(merge.weights[1:]) == pytest.approx(0.25)


def test_samples_are_those_of_reports_and_at_the_end_those_of_plans() -> None:
    ledger = history(6, unreported=None, unseated=())
    fork, entries = ledger.plans[2], ledger.entries[2:]
    rounds = {number: given_samples(ledger.plans[number], INSTANCE) for number in range(2, 7)}
    assert trained_samples(fork, entries, INSTANCE, end=7) == sum(rounds.values())
    assert trained_samples(fork, entries, INSTANCE, end=4) == rounds[2] + rounds[3]


def merged(ledger: Ledger, item: PendingBranch, *, holders: range, round_later: int = 1) -> RoundPlan:
    """The plan after one that names the branch state, when these peers report that they hold it."""
    named = replace(ledger.plans[-1], branches=(replace(item, since=ledger.plans[-1].round + 1 - round_later),))
    reports = bringing(ledger, *((index, item.branch_state) for index in holders))
    return next_plan(named, reports, ONE)


@pytest.mark.parametrize(("samples", "weight"), [(100, None), (10**9, 0.25)])
def test_the_merge_is_ordered_once_all_hosts_hold_it_and_weighs_by_samples(samples: int, weight: float | None) -> None:
    ledger = history(5)
    (item,) = accepted(ledger, bringing(ledger, (0, branch_state(ledger, samples=samples))))
    size = len(ledger.plans[-1].roster)
    waiting = merged(ledger, item, holders=range(size - 1))
    assert waiting.merges == () and len(waiting.branches) == 1
    plan = merged(ledger, item, holders=range(size))
    (merge,) = plan.merges
    won = item.won_samples + given_samples(ledger.plans[-1], INSTANCE)
    assert merge.weights[1] == pytest.approx(weight or 100 / (100 + won))
    assert merge.sources == (INSTANCE, item.branch_state.key) and plan.branches == ()
    assert check_plan(plan, ONE) == []


def test_a_branch_state_that_no_peer_holds_or_that_takes_too_long_is_dropped_with_a_reason() -> None:
    ledger = history(5)
    (item,) = accepted(ledger, bringing(ledger, (0, branch_state(ledger))))
    lonely = merged(ledger, item, holders=range(0))
    assert lonely.branches == lonely.merges == () and "no peer that holds it is left" in lonely.reason
    late = merged(ledger, item, holders=range(1), round_later=ROUNDS_OPEN + 1)
    assert late.branches == late.merges == () and f"after {ROUNDS_OPEN} rounds" in late.reason
