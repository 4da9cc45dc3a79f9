"""Plans: one test per rule, then whole runs from invented and from absurd reports."""

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from adloco_p2p.core.model import canonical
from adloco_p2p.core.model.gradient_statistics import PseudoGradientStatistics
from adloco_p2p.core.model.instance_plan import HostShare
from adloco_p2p.core.model.lineage import Fork, Merge, ProbeVerdict
from adloco_p2p.core.model.plan import RosterChange, RoundPlan
from adloco_p2p.core.model.protocol import FIRST_UPGRADABLE, VERDICT_OF_MOST
from adloco_p2p.core.model.report import Report
from adloco_p2p.core.model.report_form import bits_of
from adloco_p2p.core.model.roster_entry import Capacity
from adloco_p2p.core.model.rules import BatchRules, InstanceRules, MergeRules, Rules, SwitchRules, WorkRules
from adloco_p2p.core.model.scalars import LARGEST_COUNT, Digest, InstanceId, PeerId
from adloco_p2p.core.planning.round_plan import genesis, next_plan
from adloco_p2p.decode import decode
from tests.core.core_values import RUN, STATE, capacity, half_batch, instance_report, peer
from tests.core.plan_check import check_plan

THREE = Rules(
    work=WorkRules(inner_steps=8, rounds=12),
    instances=InstanceRules(count=3, start="same"),
    batch=BatchRules(initial_batch=12),
    merge=MergeRules(guard=False),
)
ONE = replace(THREE, instances=InstanceRules(count=1))


def start(rules: Rules, num_peers: int = 3, *, protocol: int = FIRST_UPGRADABLE, **offer: object) -> RoundPlan:
    roster = [(peer(i), capacity(**offer)) for i in range(num_peers)]  # type: ignore[arg-type]
    return genesis(RUN, roster, rules, protocol=protocol)


def honest_reports(
    done: RoundPlan, *, verdict: ProbeVerdict | None = None, noise: float = 4.0, speed: float = 10.0
) -> list[Report]:
    """What the peers of a plan say after carrying it out. Pseudo-gradients of unit signal and the given noise per host."""
    reports = []
    for roster_entry in done.roster:
        items = []
        for plan in done.instances:
            names = tuple(share.peer for share in plan.hosts if share.samples > 0)
            for share in plan.hosts:
                if share.peer != roster_entry.peer:
                    continue
                averaged = 1.0 + noise / len(names)
                statistics = PseudoGradientStatistics(own_sqnorm=1.0 + noise, inner_product=averaged, averaged_sqnorm=averaged)
                item = instance_report(
                    instance=plan.instance,
                    batch=share.effective_batch,
                    inner_steps=share.inner_steps,
                    pseudo_gradient=statistics if share.samples > 0 else None,
                    half=half_batch(batch=share.effective_batch) if share.effective_batch > 1 else None,
                    heldout_loss=2.0 + 0.1 * plan.instance,
                    state=canonical.digest([done.round, plan.instance]),
                )
                items.append(replace(item, contributors=bits_of(names, [host.peer for host in plan.hosts])))
        offer = replace(roster_entry.capacity, samples_per_second=speed)
        reports.append(
            Report(
                peer=roster_entry.peer,
                round=done.round,
                plan=canonical.digest(done),
                capacity=offer,
                instances=tuple(items),
                verdict=verdict,
            )
        )
    return reports


def run(
    rules: Rules,
    *,
    num_peers: int = 3,
    until: int | None = None,
    say: Callable[[RoundPlan], list[Report]] = honest_reports,
    joins: Mapping[int, RosterChange] | None = None,
    max_instances: int = 8,
    protocol: int = FIRST_UPGRADABLE,
) -> list[RoundPlan]:
    """Plans of a run in which every plan is decided from the reports of the round before the last; all are checked.
    `max_instances`: that each founder offers to host."""
    plans = [start(rules, num_peers, protocol=protocol, max_instances=max_instances)]
    last = rules.work.rounds if until is None else until
    assert last is not None
    while plans[-1].round < last:
        reports = say(plans[-2]) if len(plans) > 1 else []
        plans.append(next_plan(plans[-1], reports, rules, roster=(joins or {}).get(plans[-1].round + 1)))
    for plan in plans:
        assert check_plan(plan, rules) == []
        assert decode(RoundPlan, canonical.encode(plan), max_bytes=1 << 24) == plan
    return plans


def ids(plan: RoundPlan) -> list[int]:
    return [item.instance for item in plan.instances]


# --- the start -------------------------------------------------------------------------------------------------------


def test_a_forking_run_starts_with_one_instance_and_copies_it() -> None:
    rules = replace(THREE, instances=InstanceRules(count=3, start="fork", fork_round=4))
    plans = run(rules)
    assert [len(plan.instances) for plan in plans[:5]] == [1, 1, 1, 1, 3]
    (fork,) = plans[4].forks
    assert (fork.source, fork.targets) == (0, (1, 2))
    source, *copies = plans[4].instances
    for copy in copies:
        assert (copy.requested_batch, copy.history, copy.inner_steps_before) == (source.requested_batch, source.history, 32)
        assert copy.first_sample == 0 < source.first_sample == source.lineage_samples == copy.lineage_samples
        assert all(share.batch_samples > 0 for share in copy.hosts), "hosts of the source can train its copies at once"
    assert plans[4].merges == (), "copies that nobody has trained are not merged, though round 4 is a merge round"


def test_reports_of_the_source_count_for_fresh_copies() -> None:
    plans = run(replace(THREE, instances=InstanceRules(count=3, start="fork", fork_round=3)))
    first, *others = plans[4].instances
    assert plans[4].round == 4 and first.history[-1].round == 2
    assert all(item.history == first.history and item.state_digest == first.state_digest for item in others)


@pytest.mark.parametrize("start_kind", ["same", "different"])
def test_other_runs_start_with_all_instances(start_kind: str) -> None:
    rules = replace(THREE, instances=InstanceRules(count=3, start=start_kind))  # type: ignore[arg-type]
    plan = start(rules)
    assert ids(plan) == [0, 1, 2] and plan.round == 0
    assert check_plan(plan, rules) == []


# --- who is heard ----------------------------------------------------------------------------------------------------


def test_only_reports_of_the_round_before_by_peers_of_the_roster_about_their_instances_count() -> None:
    plans = run(ONE, until=2)
    good = honest_reports(plans[1])
    silent = next_plan(plans[2], [], ONE)
    stale = [replace(report, round=0) for report in good]
    strangers = [replace(report, peer=PeerId(f"x{report.peer}")) for report in good]
    elsewhere = [
        replace(report, instances=tuple(replace(item, instance=InstanceId(7)) for item in report.instances)) for report in good
    ]
    assert next_plan(plans[2], [*stale, *strangers], ONE) == silent
    assert [i.history for i in next_plan(plans[2], elsewhere, ONE).instances] == [i.history for i in silent.instances]
    assert next_plan(plans[2], good, ONE).instances[0].history[-1].round == 1


def test_of_two_reports_of_one_peer_the_same_one_always_counts() -> None:
    plans = run(ONE, until=2)
    good = honest_reports(plans[1])
    other = replace(good[0], capacity=capacity(speed=99.0))
    assert next_plan(plans[2], [other, *good], ONE) == next_plan(plans[2], [*good, other], ONE)


def test_seats_remember_the_last_five_speeds_and_share_by_their_median() -> None:
    speeds = iter([1000.0, 30.0, 30.0, 30.0, 30.0, 30.0, 30.0])

    def say(done: RoundPlan) -> list[Report]:
        fast = next(speeds)
        return [
            replace(report, capacity=capacity(speed=fast if report.peer == peer(0) else 10.0))
            for report in honest_reports(done)
        ]

    plans = run(replace(ONE, batch=BatchRules(initial_batch=50, test="constant")), until=7, say=say)
    roster_entry = plans[7].roster[0]
    assert roster_entry.speeds == (30.0,) * 5 and roster_entry.last_report == 5
    assert [share.batch_samples for share in plans[7].instances[0].hosts] == [30, 10, 10]
    assert [share.batch_samples for share in plans[1].instances[0].hosts] == [17, 17, 16], "nothing measured yet"


def test_expected_seconds_are_those_of_the_slowest_host() -> None:
    plans = run(replace(THREE, merge=MergeRules(policy="none", guard=False)), until=3)
    per_peer = {roster_entry.peer: 0.0 for roster_entry in plans[3].roster}
    for item in plans[3].instances:
        for share in item.hosts:
            per_peer[share.peer] += share.samples / 10.0
    assert plans[3].expected_seconds == pytest.approx(max(per_peer.values()))
    assert plans[0].expected_seconds == 0.0


def test_state_digest_is_what_more_than_half_of_the_planned_hosts_name() -> None:
    plans = run(ONE, until=2)
    first, *rest = honest_reports(plans[1])
    lie = replace(first, instances=(replace(first.instances[0], state_digest=Digest("0" * 64)),))
    assert next_plan(plans[2], [lie, *rest], ONE).instances[0].state_digest == rest[0].instances[0].state_digest
    assert plans[1].instances[0].state_digest is None
    assert next_plan(plans[2], [lie, rest[0]], ONE).instances[0].state_digest is None, "a tie decides nothing"
    assert next_plan(plans[2], [lie], ONE).instances[0].state_digest is None, "review B2: the only one that reported"
    two = next_plan(plans[2], rest[:2], ONE).instances[0].state_digest
    assert two == rest[0].instances[0].state_digest, "two of three, though the third did not report"


# --- batches and cursors ---------------------------------------------------------------------------------------------


def test_statistics_arrive_two_plans_later_and_the_batch_follows() -> None:
    """Three hosts: s2 = 4, V = 7/3, so signal 1; the request is b s2 / eta^2 = B / M * 4 / eta^2."""
    rules = replace(ONE, batch=BatchRules(initial_batch=12, eta=0.5, growth_cap=100.0))
    plans = run(rules, until=2)
    assert [plan.instances[0].requested_batch for plan in plans] == [12, 12, 64]
    assert plans[2].instances[0].history[0].noise == pytest.approx(4 / 3)


def test_the_window_of_statistics_is_bounded() -> None:
    plans = run(replace(ONE, work=WorkRules(inner_steps=8, rounds=10), batch=BatchRules(initial_batch=12, window_rounds=3)))
    assert [sample.round for sample in plans[9].instances[0].history] == [5, 6, 7]


def test_cursors_move_by_what_plans_gave() -> None:
    plans = run(ONE, until=4)
    for before, after in pairwise(plans):
        given_out = sum(share.samples for share in before.instances[0].hosts)
        assert after.instances[0].first_sample == before.instances[0].first_sample + given_out
        assert after.instances[0].inner_steps_before == before.instances[0].inner_steps_before + 8
    assert [plan.progress for plan in plans] == [index / 12 for index in range(5)]
    assert [after.parent for after in plans[1:]] == [canonical.digest(before) for before in plans[:-1]]


def test_a_silent_round_does_not_decide_a_second_time() -> None:
    rules = replace(ONE, batch=BatchRules(initial_batch=12, eta=0.5, growth_cap=1.5))
    plans = run(rules, until=3)
    assert plans[3].instances[0].requested_batch == 27
    assert next_plan(plans[3], [], rules).instances[0].requested_batch == 27


@pytest.mark.parametrize(
    ("policy", "limit", "mode", "effective"),
    [
        ("exact", 16, "accumulate", 33),
        ("paper", 16, "accumulate", 48),
        ("exact", 20, "capped", 20),
        ("exact", 40, "single", 33),
    ],
)
def test_switch_mode_is_decided_by_what_the_host_holds(policy: str, limit: int, mode: str, effective: int) -> None:
    rules = replace(ONE, batch=BatchRules(initial_batch=33), switch=SwitchRules(policy=policy))  # type: ignore[arg-type]
    plan = start(rules, 1, limit=limit)
    item = plan.instances[0]
    assert (item.mode, item.effective_batch, item.requested_batch) == (mode, effective, 33)
    assert check_plan(plan, rules) == []


# --- peers come and go -----------------------------------------------------------------------------------------------


def newcomer(plan: RoundPlan, number: int = 9) -> HostShare:
    (share,) = (share for share in plan.instances[0].hosts if share.peer == peer(number))
    return share


def test_a_newcomer_trains_from_its_first_plan_on_with_half_a_share() -> None:
    change = RosterChange(joined=((peer(9), capacity()),))
    plans = run(ONE, until=4, joins={2: change})
    others = [share.samples for share in plans[2].instances[0].hosts if share.peer != peer(9)]
    assert 0 < newcomer(plans[2]).samples < min(others) and newcomer(plans[2]).works_from == 2
    assert plans[2].roster[-1].joined_round == 2
    assert newcomer(plans[3]).samples > 0 and check_plan(plans[2], ONE) == []


def test_newcomers_that_are_as_many_as_the_others_first_only_receive() -> None:
    """Of a step that counts with the votes of more than half, none may depend on states that may come too late."""
    founders = len(run(ONE, until=1)[1].roster)
    change = RosterChange(joined=tuple((peer(9 + number), capacity()) for number in range(founders)))
    plans = run(ONE, until=4, joins={2: change})
    working = [newcomer(plans[2], 9 + number).samples > 0 for number in range(founders)]
    assert working == [True] * (founders - 1) + [False]
    assert check_plan(plans[2], ONE) == []


def test_a_newcomer_only_receives_a_round_that_begins_with_copies() -> None:
    rules = replace(THREE, instances=InstanceRules(count=3, start="fork", fork_round=3))
    plans = run(rules, until=4, joins={3: RosterChange(joined=((peer(9), capacity()),))})
    shares = [share for item in plans[3].instances for share in item.hosts]
    assert plans[3].forks
    assert {share.samples for share in shares if share.peer == peer(9)} <= {0}


def test_who_departs_or_leaves_gets_nothing() -> None:
    plans = run(THREE, until=2)
    gone = next_plan(plans[2], [], THREE, roster=RosterChange(departed=(peer(0),)))
    assert [roster_entry.peer for roster_entry in gone.roster] == [peer(1), peer(2)]
    leaving = [replace(report, capacity=capacity(is_leaving=report.peer == peer(1))) for report in honest_reports(plans[1])]
    plan = next_plan(plans[2], leaving, THREE)
    assert all(share.peer != peer(1) for item in plan.instances for share in item.hosts)
    assert len(plan.roster) == 3
    for result in (gone, plan):
        assert check_plan(result, THREE) == []


def test_where_everybody_leaves_the_instances_are_still_held() -> None:
    plans = run(THREE, until=2)
    leaving = [replace(report, capacity=capacity(is_leaving=True)) for report in honest_reports(plans[1])]
    plan = next_plan(plans[2], leaving, THREE)
    assert check_plan(plan, THREE) == [] and all(item.hosts for item in plan.instances)


def test_an_instance_whose_hosts_all_departed_goes_to_others_that_train_it() -> None:
    rules = replace(THREE, batch=BatchRules(initial_batch=2))
    plan = next_plan(start(rules, 6, max_instances=1), [], rules)
    lost = plan.instances[1]
    departed = tuple(share.peer for share in lost.hosts)
    after = next_plan(plan, [], rules, roster=RosterChange(departed=departed))
    assert check_plan(after, rules) == []
    hosts = after.instance(lost.instance).hosts
    assert hosts and all(share.peer not in departed and share.samples > 0 for share in hosts)


def test_a_peer_in_both_lists_starts_again() -> None:
    plan = next_plan(start(ONE), [], ONE, roster=RosterChange(joined=((peer(0), capacity(limit=3)),), departed=(peer(0),)))
    roster_entry = plan.roster[0]
    assert (roster_entry.peer, roster_entry.joined_round, roster_entry.capacity.micro_batch_limit) == (peer(0), 1, 3)


# --- merges ----------------------------------------------------------------------------------------------------------


def test_unguarded_merges_happen_at_once_one_pair_per_period() -> None:
    """With pairs, k0 instances become one at round f (k0 - 1)."""
    plans = run(THREE)
    assert [len(plan.instances) for plan in plans] == [3, 3, 3, 3, 2, 2, 2, 2, 1, 1, 1, 1, 1]
    assert (plans[4].merges[0].sources, plans[4].merges[0].target) == ((0, 1), 1)
    assert ids(plans[4]) == [1, 2]
    before, after = plans[3].instance(InstanceId(1)), plans[4].instance(InstanceId(1))
    assert after.first_sample == before.first_sample + sum(share.samples for share in before.hosts)
    assert [sample.round for sample in after.history][:2] == [0, 1], "the target keeps its history"
    assert all(share.samples > 0 for share in after.hosts)


def verdict_on(probe: Merge, merged_loss: float) -> ProbeVerdict:
    losses = tuple(2.0 + 0.1 * source for source in probe.sources)
    return ProbeVerdict(sources=probe.sources, target=probe.target, source_losses=losses, merged_loss=merged_loss)


def probing(merged_loss: float) -> Callable[[RoundPlan], list[Report]]:
    return lambda done: honest_reports(done, verdict=verdict_on(done.probe, merged_loss) if done.probe else None)


GUARDED = replace(THREE, merge=MergeRules(guard=True, period_rounds=1, first_round=2))


def test_a_guarded_merge_is_probed_pending_and_done_two_plans_later() -> None:
    plans = run(GUARDED, say=probing(1.0))
    probed = plans[2].probe
    assert probed is not None and probed.sources == (0, 1) and plans[2].merges == ()
    assert plans[3].pending == probed and plans[3].probe is None and len(plans[3].instances) == 3
    (merge,) = plans[4].merges
    assert (merge.sources, merge.target, merge.weights) == (probed.sources, probed.target, probed.weights)
    assert "accepted" in merge.reason and ids(plans[4]) == [1, 2]
    assert plans[4].probe is not None, "the next pair is probed as soon as nothing is pending"
    assert not any(plan.probe and plan.pending for plan in plans)


def test_a_refused_merge_ends_the_worse_instance() -> None:
    plans = run(GUARDED, say=probing(9.0))
    (merge,) = plans[4].merges
    assert (merge.sources, merge.target, merge.weights) == ((0, 1), 0, (1.0, 0.0))
    assert ids(plans[4]) == [0, 2]


def test_a_probe_without_verdicts_merges_nothing_and_is_tried_again() -> None:
    plans = run(GUARDED)
    assert plans[4].merges == () and len(plans[4].instances) == 3
    assert "there is no verdict on the merge" in plans[4].reason
    assert plans[4].probe is not None


def test_no_pair_is_probed_too_late_for_the_probe_at_the_end() -> None:
    plans = run(replace(GUARDED, merge=replace(GUARDED.merge, first_round=3)))
    assert [plan.round for plan in plans if plan.probe] == [3, 5, 7, 10]


def test_a_host_of_both_sources_trains_after_a_merge_while_the_others_fetch() -> None:
    """Peer 0 holds two instances, peers 1 and 2 one each; its speed is split over its two."""
    rules = replace(THREE, instances=InstanceRules(count=2, start="same"), batch=BatchRules(initial_batch=12, test="constant"))
    plans = [genesis(RUN, [(peer(i), capacity(max_instances=2 if i == 0 else 1)) for i in range(3)], rules)]
    while plans[-1].round < 5:
        plans.append(next_plan(plans[-1], honest_reports(plans[-2]) if len(plans) > 1 else [], rules))
        assert check_plan(plans[-1], rules) == []
    assert [[share.batch_samples for share in item.hosts] for item in plans[3].instances] == [[4, 8], [4, 8]]
    assert [share.batch_samples for share in plans[4].instances[0].hosts] == [12, 0, 0]
    assert [share.batch_samples for share in plans[5].instances[0].hosts] == [4, 4, 4]


def test_verdicts_of_peers_that_host_none_of_the_sources_do_not_count() -> None:
    plans = run(replace(GUARDED, batch=BatchRules(initial_batch=2)), num_peers=6, until=3)
    probe = plans[2].probe
    assert probe is not None and plans[3].pending == probe
    hosts = {share.peer for source in probe.sources for share in plans[3].instance(source).hosts}
    reports = [
        replace(report, verdict=None if report.peer in hosts else verdict_on(probe, 1.0)) for report in honest_reports(plans[2])
    ]
    assert any(report.verdict for report in reports)
    assert next_plan(plans[3], reports, GUARDED).merges == ()


def test_only_full_members_that_trained_the_target_have_a_verdict_on_the_merge() -> None:
    """Six hosts, three an instance: verdicts of the other instance's hosts, which measure nothing, and of one host alone make
    no merge; those of two of three do. Before protocol 22 each of them sufficed."""
    for protocol in (FIRST_UPGRADABLE, VERDICT_OF_MOST):
        rules = replace(
            GUARDED, instances=InstanceRules(count=2, start="same"), batch=BatchRules(initial_batch=6, test="constant")
        )
        plans = [start(rules, 6, protocol=protocol, max_instances=1)]
        while plans[-1].round < 3:
            plans.append(next_plan(plans[-1], honest_reports(plans[-2]) if len(plans) > 1 else [], rules))
        probe = plans[2].probe
        assert probe is not None and plans[3].pending == probe
        target, other = (plans[3].instance(InstanceId(i)).peers for i in (probe.target, 1 - probe.target))
        assert len(target) == len(other) == 3

        def merged_by(peers: Sequence[PeerId], plans: Sequence[RoundPlan] = plans, rules: Rules = rules) -> bool:
            verdict = verdict_on(plans[2].probe, 1.0) if plans[2].probe else None
            reports = [replace(r, verdict=verdict if r.peer in peers else None) for r in honest_reports(plans[2])]
            return bool(next_plan(plans[3], reports, rules).merges)

        assert merged_by(target[:2]) and merged_by(target)
        for peers in (other, target[:1], [*other, target[0]]):
            assert merged_by(peers) is (protocol < VERDICT_OF_MOST), peers


def test_the_last_plan_merges_what_is_left_and_is_unguarded_without_a_guard() -> None:
    plans = run(replace(THREE, merge=MergeRules(policy="none", guard=False)))
    assert plans[-1].is_last and len(plans[-1].instances) == 1
    assert plans[-1].merges[0].sources == (0, 1, 2)
    assert plans[-1].merges[0].weights == pytest.approx((1 / 3, 1 / 3, 1 / 3))


def test_the_end_of_a_guarded_run_is_probed_in_time() -> None:
    rules = replace(THREE, merge=MergeRules(policy="none", guard=True))
    plans = run(rules, say=probing(1.0))
    assert [plan.round for plan in plans if plan.probe] == [10]
    assert len(plans[-1].merges[0].sources) == 3 and "accepted" in plans[-1].merges[0].reason
    refused = run(rules, say=probing(9.0))[-1].merges[0]
    assert (refused.target, refused.weights) == (0, (1.0, 0.0, 0.0))


def test_a_guarded_run_without_a_last_verdict_keeps_the_lowest_loss() -> None:
    rules = replace(THREE, merge=MergeRules(policy="none", guard=True))
    (merge,) = run(rules)[-1].merges
    assert (merge.target, merge.weights) == (0, (1.0, 0.0, 0.0))
    assert "held-out" in merge.reason

    def training_only(done: RoundPlan) -> list[Report]:
        return [
            replace(
                report,
                instances=tuple(replace(item, heldout_loss=None, loss=3.0 - item.instance) for item in report.instances),
            )
            for report in honest_reports(done)
        ]

    (merge,) = run(rules, say=training_only)[-1].merges
    assert merge.target == 2 and "training" in merge.reason
    (merge,) = run(rules, say=lambda _: [])[-1].merges
    assert merge.target == 2 and "largest batch" in merge.reason


def test_a_run_that_ends_right_after_its_fork_names_no_loss_of_the_copies() -> None:
    instances = InstanceRules(count=2, start="fork", fork_round=1)
    plans = run(replace(THREE, instances=instances, work=WorkRules(inner_steps=8, rounds=2), merge=MergeRules(guard=True)))
    (merge,) = plans[-1].merges
    assert (merge.sources, merge.weights) == ((0, 1), (1.0, 0.0))
    assert merge.reason == "end of the run: instance 0 stays: the instances were not measured since they were forked"


@pytest.mark.parametrize("rounds", [1, 2, 3])
def test_very_short_runs_end_with_one_instance(rounds: int) -> None:
    plans = run(replace(GUARDED, work=WorkRules(inner_steps=8, rounds=rounds)), say=probing(1.0))
    assert plans[-1].is_last and len(plans[-1].instances) == 1
    assert ("accepted" in plans[-1].merges[0].reason) == (rounds >= 2)


def test_a_run_that_is_over_has_no_next_plan() -> None:
    plans = run(ONE)
    with pytest.raises(AssertionError):
        next_plan(plans[-1], [], ONE)


# --- whole runs ------------------------------------------------------------------------------------------------------

RULES = st.builds(
    Rules,
    work=st.builds(
        WorkRules,
        inner_steps=st.just(8),
        rounds=st.just(50),
        share=st.sampled_from(["speed", "equal"]),
        step_tolerance=st.sampled_from([0.0, 0.25]),
        max_hosts=st.sampled_from([2, 3, 32]),
        turn_rounds=st.integers(1, 4),
    ),
    instances=st.builds(
        InstanceRules, count=st.integers(1, 5), start=st.sampled_from(["fork", "same"]), fork_round=st.sampled_from([1, 4, 49])
    ),
    batch=st.builds(
        BatchRules,
        test=st.sampled_from(["constant", "schedule", "norm", "inner_product", "augmented"]),
        level=st.sampled_from(["outer", "inner"]),
        statistic=st.sampled_from(["pseudo_gradient", "micro_batch"]),
        initial_batch=st.integers(1, 40),
        max_batch=st.sampled_from([20, 4096]),
        may_shrink=st.booleans(),
        window_rounds=st.sampled_from([1, 5, 40]),
    ),
    switch=st.builds(SwitchRules, policy=st.sampled_from(["exact", "paper", "always", "never"])),
    merge=st.builds(
        MergeRules,
        policy=st.sampled_from(["none", "worst_with_worst", "best_with_worst", "worst_group"]),
        group_size=st.integers(2, 4),
        period_rounds=st.integers(1, 9),
        batch_after=st.sampled_from(["max", "survivor", "sum"]),
        weights=st.sampled_from(["batch", "hosts_times_batch", "equal"]),
        guard=st.booleans(),
    ),
)


def random_reports(done: RoundPlan, chance: random.Random) -> list[Report]:
    """Reports of a bad day: lost, garbled, doubled, from strangers, about other rounds and instances, with absurd numbers."""

    def number(low: float = 0.0) -> float:
        return chance.choice([0.0, low, 1e-300, chance.uniform(0.0, 10.0), chance.uniform(low, 1e6), 1e30])

    def whole() -> int:
        return chance.choice([0, 1, chance.randrange(1, 100), LARGEST_COUNT])

    reports = []
    for honest in honest_reports(done):
        if chance.random() < 0.2:
            continue
        items = []
        for item in honest.instances:
            if chance.random() < 0.4:
                items.append(item)
                continue
            statistics = PseudoGradientStatistics(own_sqnorm=number(), inner_product=number(-1e30), averaged_sqnorm=number())
            garbled = replace(
                item,
                instance=InstanceId(chance.choice([item.instance, 0, 77])),
                samples=whole(),
                inner_steps=chance.choice([item.inner_steps, whole()]),
                batch_samples=whole(),
                loss=chance.choice([None, number()]),
                heldout_loss=chance.choice([None, number()]),
                contributors=chance.choice([item.contributors, 0, chance.getrandbits(5), chance.getrandbits(256)]),
                pseudo_gradient=chance.choice([None, item.pseudo_gradient, statistics]),
                half_batch=chance.choice(
                    [
                        None,
                        replace(
                            half_batch(), covariance_trace=number(-1e30), true_sqnorm=number(-1e30), num_steps=max(1, whole())
                        ),
                    ]
                ),
                state_digest=Digest(chance.choice("ab") * 64),
                vector_bytes=whole(),
            )
            items.append(garbled)
        offer = Capacity(
            samples_per_second=number(),
            micro_batch_limit=max(1, whole()),
            max_instances=max(1, whole()),
            is_leaving=chance.random() < 0.1,
            upload_bytes_per_second=number(),
            download_bytes_per_second=number(),
        )
        about = chance.choice([done.probe, done.pending, None])
        verdict = replace(verdict_on(about, number()), source_losses=tuple(number() for _ in about.sources)) if about else None
        report = replace(
            honest,
            round=chance.choice([honest.round] * 9 + [3]),
            capacity=chance.choice([honest.capacity, offer]),
            instances=tuple(items),
            verdict=verdict,
        )
        reports += [report] * chance.choice([1, 1, 2])
        if chance.random() < 0.1:
            reports.append(replace(report, peer=PeerId("stranger")))
            reports.append(replace(report, plan=STATE))
    return reports


def random_change(previous: RoundPlan, chance: random.Random) -> RosterChange:
    names = [roster_entry.peer for roster_entry in previous.roster]
    departed = tuple(name for name in names if chance.random() < 0.05)[: len(names) - 1]
    joined = tuple(
        (peer(chance.randrange(30)), capacity(max_instances=chance.randrange(1, 4))) for _ in range(chance.randrange(2))
    )
    return RosterChange(joined=joined, departed=departed)


def check_step(before: RoundPlan, after: RoundPlan, rules: Rules) -> None:
    """What holds between a plan and the next."""
    lived, live = set(ids(before)), set(ids(after))
    born = {target for fork in after.forks for target in fork.targets}
    ended = {source for merge in after.merges for source in merge.sources if source != merge.target}
    assert live == (lived | born) - ended
    probe_is_void = before.probe is not None and not set(before.probe.sources) <= live
    assert after.pending == (None if probe_is_void else before.probe)
    for item in after.instances:
        if item.instance in born:
            continue
        old = before.instance(item.instance)
        merged = any(merge.target == item.instance for merge in after.merges)
        assert item.first_sample == old.first_sample + sum(share.samples for share in old.hosts)
        if rules.batch.test == "schedule":
            continue  # its batches are those of test_batch_ramp.py
        assert rules.batch.may_shrink or merged or item.requested_batch >= old.requested_batch
        assert merged or item.requested_batch <= max(int(1.5 * old.requested_batch), old.requested_batch + 1)


@given(RULES, st.integers(1, 7), st.integers(0, 10**9))
@settings(max_examples=6, deadline=None)
def test_fifty_rounds_of_absurd_reports_give_sound_plans(rules: Rules, num_peers: int, seed: int) -> None:
    chance = random.Random(seed)
    plans = [start(rules, num_peers, limit=chance.randrange(1, 20), max_instances=chance.randrange(1, 6))]
    while not plans[-1].is_last:
        reports = random_reports(plans[-2], chance) if len(plans) > 1 else []
        change = random_change(plans[-1], chance)
        plan = next_plan(plans[-1], reports, rules, roster=change)
        assert check_plan(plan, rules) == []
        assert decode(RoundPlan, canonical.encode(plan), max_bytes=1 << 24) == plan
        check_step(plans[-1], plan, rules)
        shuffled = chance.sample(reports, len(reports))
        assert canonical.encode(next_plan(plans[-1], shuffled, rules, roster=change)) == canonical.encode(plan)
        plans.append(plan)
    assert len(plans) == 51 and len(plans[-1].instances) == 1


def broken(plan: RoundPlan) -> Sequence[tuple[str, RoundPlan]]:
    item = plan.instances[0]
    share = item.hosts[0]

    def with_item(**changes: object) -> RoundPlan:
        return replace(plan, instances=(replace(item, **changes), *plan.instances[1:]))  # type: ignore[arg-type]

    def with_share(**changes: object) -> RoundPlan:
        return with_item(hosts=(replace(share, **changes), *item.hosts[1:]))  # type: ignore[arg-type]

    merge = Merge(sources=(InstanceId(0), InstanceId(1)), target=InstanceId(2), weights=(0.5, 0.6), reason="")
    return [
        ("instances are not sorted", replace(plan, instances=plan.instances[::-1])),
        ("roster is not sorted", replace(plan, roster=plan.roster[::-1])),
        ("no host trains it", with_item(hosts=())),
        ("effective batch is not the sum", with_item(effective_batch=99)),
        ("hosts outside the roster", with_share(peer=PeerId("a"))),
        ("steps out of range", with_share(inner_steps=99)),
        ("do not fit", with_share(micro_batch_size=99)),
        ("do not follow", with_share(first_sample=5)),
        ("instances that do not live", replace(plan, forks=(Fork(source=InstanceId(0), targets=(InstanceId(8),)),))),
        ("while another is pending", replace(plan, probe=replace(merge, target=InstanceId(0)), pending=merge)),
        ("wrongly first or last", replace(plan, is_last=True)),
        ("target is no source", replace(plan, merges=(merge,))),
        ("sum to one", replace(plan, probe=merge)),
        ("live on", replace(plan, merges=(replace(merge, target=InstanceId(0), weights=(1.0, 0.0)),))),
    ]


@pytest.mark.parametrize("index", range(14))
def test_the_check_finds_what_is_wrong(index: int) -> None:
    plan = run(THREE, until=1)[1]
    text, wrong = broken(plan)[index]
    assert any(text in problem for problem in check_plan(wrong, THREE))
