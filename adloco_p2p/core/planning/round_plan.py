"""The next plan, from the previous one and the reports of a round (docs/mathematics.md, 2 and 6).

plan(r + 1) is decided while round r computes, from the reports of round r - 1. It is a pure function of those values: all
holders of the same plan and the same set of reports get the same bytes, in whatever order the reports came. Reports are claims
of strangers: those of another round, of peers outside the roster, and about instances that the peer does not host are passed
over, and nothing in a report can lead to a plan to which `tests/core/plan_check.py` objects.

A guarded merge takes three plans: plan(r) has the probe, which is measured after round r; plan(r + 1) carries it on as
`pending`; plan(r + 2) finds the verdicts in the reports of round r and acts on them.
"""

from collections import Counter
from collections.abc import Mapping, Sequence, Sized
from dataclasses import replace
from statistics import median_low

from adloco_p2p.core.model import canonical
from adloco_p2p.core.model.course import in_words, work_at
from adloco_p2p.core.model.electorate import SILENT_ROUNDS, deciding_hosts, is_majority, silent_rounds
from adloco_p2p.core.model.gradient_statistics import NoiseSample
from adloco_p2p.core.model.instance_plan import InstancePlan
from adloco_p2p.core.model.lineage import Fork, Merge
from adloco_p2p.core.model.measurers import PAIR
from adloco_p2p.core.model.plan import GENESIS_PARENT, RosterChange, RoundPlan, keepers_of
from adloco_p2p.core.model.protocol import FIRST_UPGRADABLE, SIZE_OF_MOST, STANDINGS_IN_NOISE, VERDICT_OF_MOST
from adloco_p2p.core.model.report import Report
from adloco_p2p.core.model.roster_entry import Capacity, RosterEntry
from adloco_p2p.core.model.rules import Rules
from adloco_p2p.core.model.run_progress import end_after, progress_at, samples_after, steps_within
from adloco_p2p.core.model.scalars import MAX_INSTANCES, MAX_ROSTER, Digest, InstanceId, PeerId, shortened
from adloco_p2p.core.model.words import plural
from adloco_p2p.core.planning.assessment import with_scores
from adloco_p2p.core.planning.batch_ramp import scheduled_request
from adloco_p2p.core.planning.batch_sizing import is_untestable, next_request, pool_round, window_length
from adloco_p2p.core.planning.bench import take_turns
from adloco_p2p.core.planning.branch_merge import settle
from adloco_p2p.core.planning.branch_verdict import is_of_branches
from adloco_p2p.core.planning.claims import Claims, HostReports, received_reports, reports_by_instance
from adloco_p2p.core.planning.end_of_run import (
    growth_to_come,
    has_time_before_the_end,
    is_probed_for_the_end,
    last_merge,
    reported_on,
)
from adloco_p2p.core.planning.guard import judged, kept_apart
from adloco_p2p.core.planning.host_backoff import update_miss_counts
from adloco_p2p.core.planning.link_periods import ALL_IN_EVERY_AVERAGE, LinkPeriods, link_periods
from adloco_p2p.core.planning.merge_policy import choose_merge, final_merge, judge, keep_only, merged_batch
from adloco_p2p.core.planning.own_data import joined_data, own_data
from adloco_p2p.core.planning.placement import InstanceDraft, Turns, place_hosts, volunteers
from adloco_p2p.core.planning.pseudo_gradient_noise import ALL_EQUAL
from adloco_p2p.core.planning.roster import next_roster, put_on_probation
from adloco_p2p.core.planning.standing import remembered
from adloco_p2p.core.planning.suspension import with_complaints
from adloco_p2p.core.planning.upgrade import protocol_after

ORPHANED_ROUNDS = 3
"""An instance ends after this many rounds in which no peer reported its state although each of its hosts reported, or has not
reported since it got its seat at least SILENT_ROUNDS ago: seats that only exist must not keep an instance that nobody holds."""


def genesis(
    run: Digest,
    roster: Sequence[tuple[PeerId, Capacity]],
    rules: Rules,
    *,
    signers: Sequence[PeerId] = (),
    protocol: int = FIRST_UPGRADABLE,
) -> RoundPlan:
    """Return the plan of round 0. Every host makes the initial state by itself, so all train at once. Without signers there are
    no invitations, so everybody may join. All founders are assumed to follow the `protocol` of the run."""
    assert roster
    offers = {peer: replace(offer, newest_protocol=max(offer.newest_protocol, protocol)) for peer, offer in roster}
    roster_entries = tuple(RosterEntry(peer=peer, joined_round=0, capacity=offer) for peer, offer in sorted(offers.items()))
    count = min(rules.instances.count, MAX_INSTANCES)
    warms_up = rules.instances.start == "fork" and count > 1
    requested = min(rules.batch.initial_batch, rules.batch.max_batch)
    drafts = [
        InstanceDraft(
            plan=InstancePlan(
                instance=InstanceId(instance),
                requested_batch=requested,
                effective_batch=requested,
                mode="single",
                reason=f"starts at {requested}",
                hosts=(),
                first_sample=0,
                inner_steps_before=0,
                measurers=PAIR if rules.guard.enabled else 0,
                reads=() if warms_up else own_data(InstanceId(instance), rules.instances),
            ),
            holders=(),
            ready=(),
        )
        for instance in range(1 if warms_up else count)
    ]
    turns = take_turns(drafts, roster_entries[:MAX_ROSTER], run=run, round=0, work=rules.work, protocol=protocol)
    instances, seconds = place_hosts(drafts, turns, 0, rules)
    later = f"one instance, copied to {count} before round {rules.instances.fork_round},"
    what = later if warms_up else plural(count, "instance")
    plan = RoundPlan(
        run=run,
        round=0,
        parent=GENESIS_PARENT,
        inner_steps=rules.work.inner_steps,
        instances=instances,
        roster=turns.roster,
        expected_seconds=seconds,
        progress=0.0,
        reason="; ".join(
            text for text in (f"start with {what} on {plural(len(roster_entries), 'peer')}", turns.reason) if text
        ),
        signers=tuple(sorted(signers)),
        is_ticketed=bool(signers) and rules.admission.kind == "tickets",
        price=rules.admission.price,
        protocol=protocol,
    )
    growth = growth_to_come(instances, rules, protocol)
    if not is_probed_for_the_end(end_after(plan, rules.work), len(drafts), rules.merge, growth=growth):
        return plan
    return replace(plan, probe=final_merge(instances, rules=rules.merge))


def next_plan(previous: RoundPlan, reports: Sequence[Report], rules: Rules, *, roster: RosterChange | None = None) -> RoundPlan:
    """Return the plan after `previous`, from the reports of the round before it. The new roster must not be empty.

    In a run that counts samples, the round that would take too many is cut to the inner steps that are left; if not even one is
    left, the run is over.
    """
    assert not previous.is_last, "the run is over"
    change = roster or RosterChange()
    course, round = change.course or previous.course, previous.round + 1
    rules = replace(rules, work=work_at(rules.work, course, round))
    end = end_after(previous, rules.work)
    if course.last_round is not None:
        end = min(end, course.last_round + 1)
    plan = _planned(previous, reports, rules, change, end=end)
    steps = plan.inner_steps if plan.is_last else steps_within(plan, rules.work)
    if steps == plan.inner_steps:
        return plan
    if steps == 0:
        return _planned(previous, reports, rules, change, end=plan.round)
    cut = replace(rules, work=replace(rules.work, inner_steps=steps))
    return _planned(previous, reports, cut, change, end=plan.round + 1)


def _planned(previous: RoundPlan, reports: Sequence[Report], rules: Rules, change: RosterChange, *, end: int) -> RoundPlan:
    """Return the next plan of a run whose plan of round `end` is the last."""
    round = previous.round + 1
    is_last = round >= end
    received = received_reports(previous, reports)
    claims = reports_by_instance(previous, received)
    decisive = {instance: found.decisive for instance, found in claims.items()}
    left_out = put_on_probation(previous, claims)
    seats = next_roster(previous, received, change, rules, left_out=left_out)
    protocol, roster_entries = protocol_after(previous, seats, end=end)
    carried = [_carried(plan, previous, received, claims[plan.instance], rules) for plan in previous.instances]
    drafts, forks = _forked([draft for draft, _ in carried], round, end, rules)
    merges, probe, why = _merges(previous, drafts, received, decisive, is_forking=bool(forks), end=end, rules=rules)
    drafts = _merged(drafts, merges, rules)
    growth = growth_to_come([draft.plan for draft in drafts], rules, previous.protocol)
    may_probe = probe is None and previous.probe is None and has_time_before_the_end(end - round, growth=growth)
    names = [entry.peer for entry in roster_entries]
    branches = settle(
        previous, received, (forks, merges), names, change.branches, is_last=is_last, may_probe=may_probe, rules=rules.merge
    )
    is_plain = not (forks or merges or branches.merges)
    periods = _periods(previous, drafts, roster_entries, rules, is_last=is_last)
    turns = _turns(previous, drafts, roster_entries, rules, slow=periods.benched(round), is_last=is_last)
    instances, seconds = place_hosts(drafts, turns, round, rules, previous.protocol, periods=periods, is_plain=is_plain)
    changed = _changed(forks, (*merges, *branches.merges))
    instances = kept_apart(instances, changed, round)
    reasons = _first_reasons(previous, received, forks)
    reasons += [*branches.reasons, *(text for text in (turns.reason, periods.reason) if text)]
    reasons += [alarm for draft, alarm in carried if alarm and draft.plan.instance not in changed]
    reasons += [f"on probation, left out by the stricter rule: {', '.join(sorted(left_out))}"] if left_out else []
    course = change.course or previous.course
    reasons += [text for text in (in_words(course, round), protocol.reason) if text]
    return RoundPlan(
        run=previous.run,
        round=round,
        parent=canonical.digest_once(previous),
        inner_steps=rules.work.inner_steps,
        instances=instances,
        roster=turns.roster,
        forks=forks,
        merges=(*merges, *branches.merges),
        probe=probe or branches.probe,
        pending=_still_pending(previous.probe, merges),
        branches=branches.pending,
        is_last=is_last,
        expected_seconds=0.0 if is_last else seconds,
        progress=progress_at(round, samples_after(previous), rules.work),
        samples_before=samples_after(previous),
        reason=shortened("; ".join([*reasons, why])),
        signers=previous.signers if change.signers is None else change.signers,
        is_ticketed=previous.is_ticketed,
        price=previous.price,
        course=course,
        former=remembered(previous, roster_entries, rules.admission),
        protocol=protocol.number,
        upgrade_round=protocol.upgrade_round,
    )


def _first_reasons(previous: RoundPlan, received: Sized, forks: Sequence[Fork]) -> list[str]:
    """Describe how many peers reported, and a fork."""
    reported = f"{len(received)} of {plural(len(previous.roster), 'peer')} reported" if previous.round > 0 else "no reports yet"
    return [reported, *([f"{len(forks[0].targets)} copies of instance {forks[0].source}"] if forks else [])]


def _changed(forks: Sequence[Fork], merges: Sequence[Merge]) -> set[InstanceId]:
    """Return the instances whose state changes at the boundary."""
    changed = {source for merge in merges for source in merge.sources}
    return changed | {instance for fork in forks for instance in (fork.source, *fork.targets)}


def _turns(
    previous: RoundPlan,
    drafts: Sequence[InstanceDraft],
    roster: Sequence[RosterEntry],
    rules: Rules,
    *,
    slow: frozenset[PeerId],
    is_last: bool,
) -> Turns:
    """Return the turns in the plan after `previous`; `slow` members, which wait for their links, get no turn."""
    return take_turns(
        drafts,
        roster,
        run=previous.run,
        round=previous.round + 1,
        work=rules.work,
        protocol=previous.protocol,
        is_last=is_last,
        slow=slow,
    )


def _periods(
    previous: RoundPlan, drafts: Sequence[InstanceDraft], roster: Sequence[RosterEntry], rules: Rules, *, is_last: bool
) -> LinkPeriods:
    """Return how often each member of the roster takes part in averages, by the computing time of the plan before. After the
    last round all get the model."""
    if is_last:
        return ALL_IN_EVERY_AVERAGE
    return link_periods(
        volunteers(roster),
        vector_bytes=_common_vector_bytes(drafts, previous.protocol),
        compute_seconds=previous.expected_seconds,
        tolerance=rules.work.link_tolerance,
    )


# --- instances: carried on, forked, merged ---------------------------------------------------------------------------


def _carried(
    plan: InstancePlan,
    previous: RoundPlan,
    received: Mapping[PeerId, Report],
    reports: HostReports,
    rules: Rules,
) -> tuple[InstanceDraft, str]:
    """Return the instance one round later, with cursors moved, statistics pooled, the batch tested and the outer step judged;
    and the guard's alarm in words."""
    claims, places, decisive = reports.all, reports.places, reports.decisive
    has_standings = previous.protocol >= STANDINGS_IN_NOISE
    standings = {entry.peer: entry.standing for entry in previous.roster} if has_standings else ALL_EQUAL
    round, trained = previous.round - 1, reports.of_workers
    sample, basis = pool_round(plan, round, trained, rules.batch, places=places, standings=standings, deciding=decisive.keys())
    history = plan.history if sample is None else (*plan.history, sample)[-window_length(rules.batch) :]
    num_diverged = sum(claim.has_diverged for claim in claims.values())
    claimed = plural(len(claims), "host")
    basis += f"; round {round} led nowhere on {num_diverged} of {claimed}" if num_diverged else ""
    requested, shrink_streak, why = _request(plan, previous, decisive, sample, history, rules)
    having = {peer for peer, report in received.items() if any(item.instance == plan.instance for item in report.instances)}
    is_lost = not claims and having.isdisjoint({*keepers_of(previous), *plan.peers})
    settled = {*received, *_never_reported(previous)}
    is_orphaned = previous.round > 0 and is_lost and all(share.peer in settled for share in plan.hosts)
    moved = replace(
        plan,
        orphaned_rounds=0 if not is_lost else plan.orphaned_rounds + is_orphaned,
        requested_batch=requested,
        reason=f"{why} ({basis})",
        first_sample=plan.first_sample + sum(share.samples for share in plan.hosts),
        inner_steps_before=plan.inner_steps_before + previous.inner_steps,
        lineage_samples=plan.lineage_samples + sum(share.samples for share in plan.hosts),
        shrink_streak=shrink_streak,
        history=history,
        state_digest=_agreed_state(reports),
        vector_bytes=_vector_bytes(plan, decisive, previous.protocol),
        hosts=update_miss_counts(
            plan.hosts,
            decisive,
            joined={roster_entry.peer: roster_entry.joined_round for roster_entry in previous.roster},
            round=round,
            next_round=previous.round + 1,
        ),
    )
    hosts, roster = plan.peers, previous.roster
    moved = with_complaints(plan, moved, claims, roster, places, round=round)
    moved = with_scores(plan, moved, claims, roster, places, round=round, every=rules.assess_every)
    moved = replace(moved, measurers_before=plan.measurers)
    moved, alarm = judged(plan, moved, claims, roster, round=round, rules=rules.guard)
    return InstanceDraft(plan=moved, holders=hosts, ready=hosts), alarm


def _request(
    plan: InstancePlan,
    previous: RoundPlan,
    claims: Claims,
    sample: NoiseSample | None,
    history: tuple[NoiseSample, ...],
    rules: Rules,
) -> tuple[int, int, str]:
    """Return the next global batch of the instance, the new shrink streak, and why. `sample` is the newest of `history`, if
    any."""
    if rules.batch.test == "schedule":
        requested, why = scheduled_request(plan.requested_batch, previous, rules)
        return requested, 0, why
    is_futile = rules.switch.policy == "never" and plan.requested_batch > plan.effective_batch
    return next_request(
        requested=plan.requested_batch,
        effective=plan.effective_batch,
        shrink_streak=plan.shrink_streak,
        history=() if sample is None else history,  # without a new sample the old window does not decide a second time
        inner_steps=previous.inner_steps,
        rules=rules.batch,
        untestable=is_untestable(claims) and not is_futile,
    )


def _never_reported(previous: RoundPlan) -> set[PeerId]:
    """Return the members that have been silent since they joined, for so long that the states which they may hold are not
    awaited."""
    round = previous.round + 1
    silent = [entry for entry in previous.roster if entry.last_report is None]
    return {entry.peer for entry in silent if silent_rounds(entry, round) >= SILENT_ROUNDS}


def _agreed_state(reports: HostReports) -> Digest | None:
    """Return the state that more than half of the deciding hosts with work in the reported round report; hosts that did not
    report count in the total. None if there is no such state, so that neither a few hosts nor a tie can make the others fetch
    theirs."""
    named = Counter(reports.all[peer].state_digest for peer in reports.deciding if peer in reports.all)
    return next((digest for digest, count in sorted(named.items()) if is_majority(count, len(reports.deciding))), None)


def _vector_bytes(plan: InstancePlan, claims: Claims, protocol: int) -> int:
    """Return the median size of a vector that the hosts report, the smaller one in a tie. It stays if none reports one; from
    the protocol SIZE_OF_MOST on, if no more than half of them do, as after a void round, of which only a liar reports one."""
    sizes = [claim.vector_bytes for claim in claims.values() if claim.vector_bytes]
    is_known = is_majority(len(sizes), len(claims)) if protocol >= SIZE_OF_MOST else bool(sizes)
    return median_low(sizes) if is_known else plan.vector_bytes


def _common_vector_bytes(drafts: Sequence[InstanceDraft], protocol: int) -> int:
    """Return the size of a vector, which is the same for all instances. From the protocol SIZE_OF_MOST on it is the median over
    the hosts, so that the hosts of one instance, which may be a single one, cannot make all links seem slow."""
    sizes = [draft.plan.vector_bytes for draft in drafts for _ in draft.plan.hosts]
    if protocol >= SIZE_OF_MOST and sizes:
        return median_low(sizes)
    return max(draft.plan.vector_bytes for draft in drafts)


def _forked(drafts: list[InstanceDraft], round: int, end: int, rules: Rules) -> tuple[list[InstanceDraft], tuple[Fork, ...]]:
    """Fork the warmed-up instance, if that is due. Each copy reads an order of its own, from its beginning, or data of its
    own."""
    count = min(rules.instances.count, MAX_INSTANCES)
    is_due = rules.instances.start == "fork" and round == rules.instances.fork_round and round < end
    if not is_due or count == 1 or len(drafts) > 1:
        return drafts, ()
    source = drafts[0]
    targets = tuple(InstanceId(index) for index in range(1, count))
    fresh = replace(source.plan, first_sample=0, is_assessed=False, looks=())  # the contributions are those of the source
    copies = [
        replace(source, plan=replace(fresh, instance=target, reads=own_data(target, rules.instances))) for target in targets
    ]
    kept = replace(source, plan=replace(source.plan, reads=own_data(source.plan.instance, rules.instances)))
    return [kept, *copies], (Fork(source=source.plan.instance, targets=targets),)


def _merges(
    previous: RoundPlan,
    drafts: Sequence[InstanceDraft],
    received: Mapping[PeerId, Report],
    claims: Mapping[InstanceId, Claims],
    *,
    is_forking: bool,
    end: int,
    rules: Rules,
) -> tuple[tuple[Merge, ...], Merge | None, str]:
    """Return the merges to do before the round, the probe to measure after it, and why."""
    merges, whys = _judged_merges(previous, received, rules)
    plans = [draft.plan for draft in drafts if draft.plan.instance not in _ended(merges)]
    if not merges and (orphans := _end_of_orphans(plans)) is not None:
        merges, whys = (orphans,), [*whys, orphans.reason]
        plans = [plan for plan in plans if plan.instance not in _ended(merges)]
        if previous.round + 1 < end:
            return merges, None, "; ".join(whys)
    chosen, probe, why = _chosen_merge(previous, plans, claims, is_forking=is_forking, end=end, rules=rules)
    return (*merges, chosen) if chosen is not None else merges, probe, "; ".join([*whys, why])


def _judged_merges(previous: RoundPlan, received: Mapping[PeerId, Report], rules: Rules) -> tuple[tuple[Merge, ...], list[str]]:
    """Return the merge that follows from the verdicts on the measured one, if there are any, and why."""
    if previous.pending is None or is_of_branches(previous.pending):
        return (), []
    hosts = _measuring(previous, previous.pending)
    verdicts = [report.verdict for peer, report in received.items() if report.verdict is not None and peer in hosts]
    num_deciding = len(hosts) if previous.protocol >= VERDICT_OF_MOST else None
    merge = judge(previous.pending, verdicts, rules=rules.merge, num_deciding=num_deciding)
    if merge is None:
        return (), ["there is no verdict on the merge that was to be tried"]
    return (merge,), [merge.reason]


def _measuring(previous: RoundPlan, probe: Merge) -> frozenset[PeerId]:
    """Return the hosts whose verdicts on the probe count: those of its target, which measure it."""
    if previous.protocol < VERDICT_OF_MOST:
        return frozenset(peer for plan in previous.instances if plan.instance in probe.sources for peer in plan.peers)
    target = previous.find(probe.target)
    return frozenset() if target is None else deciding_hosts(target.workers_before(previous.round - 1), previous)


def _chosen_merge(
    previous: RoundPlan,
    plans: Sequence[InstancePlan],
    claims: Mapping[InstanceId, Claims],
    *,
    is_forking: bool,
    end: int,
    rules: Rules,
) -> tuple[Merge | None, Merge | None, str]:
    """Return one merge of the `plans` that is due now, to do or to measure first, and why."""
    round = previous.round + 1
    if len(plans) < 2:
        return None, None, "one instance, nothing to merge"
    if round >= end:
        last = last_merge(plans, claims, rules.merge)
        return last, None, last.reason
    held = reported_on(plans, claims)
    growth = growth_to_come(held, rules, previous.protocol)
    # The end of a run that counts samples also moves as hosts come or go, so another probe may still be pending.
    if previous.probe is None and is_probed_for_the_end(end - round, len(held), rules.merge, growth=growth):
        return None, final_merge(held, rules=rules.merge), "the merge at the end of the run is measured first"
    if is_forking:
        return None, None, "no merge of fresh copies"
    if rules.merge.guard and previous.probe is not None:
        return None, None, "a merge is being measured"
    if rules.merge.guard and not has_time_before_the_end(end - round, growth=growth):
        return None, None, "too near the end to measure a merge of a pair"
    chosen, why = choose_merge(held, round=round, rules=rules.merge)
    if chosen is None or not rules.merge.guard:
        return chosen, None, why
    return None, chosen, f"to be measured first: {why}"


def _still_pending(probe: Merge | None, merges: Sequence[Merge]) -> Merge | None:
    """Return the probe that was to be measured after the round before, unless these merges end a source of it or, for a probe
    with branch states, change its target."""
    if probe is None:
        return None
    changed = {source for merge in merges for source in merge.sources} if is_of_branches(probe) else _ended(merges)
    return None if changed.intersection(probe.sources) else probe


def _ended(merges: Sequence[Merge]) -> set[InstanceId]:
    """Return the instances that are gone after the merges."""
    return {source for merge in merges for source in merge.sources if source != merge.target}


def _end_of_orphans(plans: Sequence[InstancePlan]) -> Merge | None:
    """End the instances that no peer holds any more. The last instance is awaited, however long that takes."""
    orphans = [plan.instance for plan in plans if plan.orphaned_rounds >= ORPHANED_ROUNDS]
    others = [plan for plan in plans if plan.orphaned_rounds == 0]
    if not orphans or not others:
        return None
    survivor = max(others, key=lambda plan: (plan.requested_batch, plan.instance)).instance
    names = ", ".join(map(str, orphans))
    reason = f"instance {names} ends: its hosts reported {ORPHANED_ROUNDS} rounds without it, or never, so its state is lost"
    return keep_only(survivor, [survivor, *orphans], reason=reason)


def _merged(drafts: Sequence[InstanceDraft], merges: Sequence[Merge], rules: Rules) -> list[InstanceDraft]:
    """Apply the merges: a target takes the merged request, and the other sources are gone. The target's own order of samples
    continues."""
    current = {draft.plan.instance: draft for draft in drafts}
    for merge in merges:
        sources = [current[source] for source in merge.sources]
        requested = merged_batch(merge, [draft.plan for draft in sources], rules=rules.merge, max_batch=rules.batch.max_batch)
        everywhere = [peer for peer in sources[0].ready if all(peer in draft.ready for draft in sources)]
        anywhere = sorted({peer for draft in sources for peer in draft.holders})
        target = current[merge.target]
        others = ", ".join(str(source) for source in merge.sources if source != merge.target)
        reason = f"{requested} after the merge with {others}; before it, {target.plan.reason}"
        reads = joined_data([draft.plan.reads for draft in sources], rules.instances)
        plan = replace(target.plan, requested_batch=requested, shrink_streak=0, reason=reason, reads=reads)
        current = {i: draft for i, draft in current.items() if i not in merge.sources}
        current[merge.target] = InstanceDraft(plan=plan, holders=tuple(anywhere), ready=tuple(everywhere or anywhere))
    return [current[instance] for instance in sorted(current)]
