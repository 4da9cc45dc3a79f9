"""What holds for every plan of an honest swarm, said independently of how plans are made."""

from math import floor, fsum

from adloco_p2p.core.model.instance_plan import InstancePlan
from adloco_p2p.core.model.lineage import Merge
from adloco_p2p.core.model.plan import RoundPlan, keepers_of
from adloco_p2p.core.model.rules import Rules
from adloco_p2p.core.model.scalars import MAX_HOSTS, MAX_INSTANCES
from adloco_p2p.core.planning.apportionment import MIN_HOSTS
from adloco_p2p.core.planning.batch_sizing import window_length
from adloco_p2p.core.planning.link_periods import PERIODS, TRIAL_ROUNDS


def check_plan(plan: RoundPlan, rules: Rules) -> list[str]:
    """Everything that is wrong with a plan, in words; nothing for the plans of `genesis` and `next_plan`."""
    ids = [item.instance for item in plan.instances]
    peers = [roster_entry.peer for roster_entry in plan.roster]
    facts = {
        "no instance": bool(ids),
        "instances are not sorted": ids == sorted(set(ids)),
        "roster is not sorted": peers == sorted(set(peers)),
        "wrong number of inner steps": plan.inner_steps == rules.work.inner_steps
        or (rules.work.samples is not None and plan.inner_steps < rules.work.inner_steps),
        "round beyond the run": plan.round >= 0 and (rules.work.rounds is None or plan.round <= rules.work.rounds),
        "wrongly first or last": rules.work.rounds is None or plan.is_last == (plan.round == rules.work.rounds),
        "training after the last sample": rules.work.samples is None
        or plan.is_last
        or plan.samples_before < rules.work.samples,
        "several instances at the end": not plan.is_last or len(ids) == 1,
        "a probe at the end": not plan.is_last or plan.probe is None,
        "forks or merges before the first round": plan.round > 0 or not (plan.forks or plan.merges or plan.pending),
        "branches are not sorted": [item.branch_state.key for item in plan.branches]
        == sorted({item.branch_state.key for item in plan.branches}),
        "branches of instances that do not live": all(item.target in ids for item in plan.branches),
        "too many instances": len(ids) <= max(1, min(rules.instances.count, MAX_INSTANCES)),
    }
    problems = [text for text, holds in facts.items() if not holds]
    for fork in plan.forks:
        if not {fork.source, *fork.targets} <= set(ids):
            problems.append(f"fork of {fork.source} into instances that do not live")
    for index, merge in enumerate(plan.merges):
        problems += _check_merge(merge, "merge")
        merged_later = {source for later in plan.merges[index + 1 :] for source in later.sources}
        lives = merge.target in ids or merge.target in merged_later  # at the end of a run one merge may follow the other
        if not lives or any(source in ids for source in merge.sources if source != merge.target):
            problems.append(f"merge into {merge.target}: its sources live on, or it does not")
    if plan.probe is not None:
        problems += _check_merge(plan.probe, "probe")
        keys = {item.branch_state.key for item in plan.branches}
        if not set(plan.probe.sources) <= {*ids, *keys} or plan.pending is not None:
            problems.append("probe of instances that do not live, or while another is pending")
    read = [instance for item in plan.instances for instance in item.reads]
    if all(item.reads for item in plan.instances) and sorted(read) != list(range(len(rules.instances.data))):
        problems.append(f"data that no instance trains on, or two: {read}")
    for item in plan.instances:
        problems += [f"instance {item.instance}: {problem}" for problem in _check_instance(item, plan, rules)]
    return problems


def _check_merge(merge: Merge, name: str) -> list[str]:
    facts = {
        "sources are not sorted": list(merge.sources) == sorted(set(merge.sources)),
        "fewer than two sources": len(merge.sources) >= 2,
        "target is no source": merge.target in merge.sources,
        "weights are not one per source": len(merge.weights) == len(merge.sources),
        "weights do not sum to one": abs(fsum(merge.weights) - 1.0) < 1e-9 and min(merge.weights) >= 0.0,
    }
    return [f"{name}: {text}" for text, holds in facts.items() if not holds]


def _check_instance(item: InstancePlan, plan: RoundPlan, rules: Rules) -> list[str]:
    roster_entries = {roster_entry.peer: roster_entry for roster_entry in plan.roster}
    hosts = [share.peer for share in item.hosts]
    trainers = [share for share in item.hosts if share.batch_samples > 0]
    most_steps = floor(rules.work.max_step_ratio * rules.work.inner_steps)
    everybody_leaves = all(roster_entry.capacity.is_leaving for roster_entry in plan.roster)
    facts = {
        "no host trains it": bool(trainers),
        "no host contributes to its average": any(share.contributes(plan.round) for share in item.hosts),
        "a link period that there is not": {share.averages_every for share in item.hosts} <= {1, *PERIODS, TRIAL_ROUNDS},
        "hosts are not sorted": hosts == sorted(set(hosts)),
        "too many hosts": len(hosts) <= MAX_HOSTS,
        "more hosts than the run allows, or than the batch feeds": plan.is_last
        or (
            len(set(hosts) - keepers_of(plan)) <= rules.work.max_hosts
            and len(trainers) <= min(rules.work.max_hosts, max(MIN_HOSTS, item.requested_batch))
        ),
        "hosts outside the roster": all(peer in roster_entries for peer in hosts),
        "a leaving host": everybody_leaves
        or not any(roster_entries[peer].capacity.is_leaving for peer in hosts if peer in roster_entries),
        "request beyond the limit": item.requested_batch <= rules.batch.max_batch,
        "effective batch is not the sum": item.effective_batch == sum(share.effective_batch for share in item.hosts),
        "history too long": len(item.history) <= window_length(rules.batch),
        "a share of nothing with work": all(
            share.samples == share.micro_batch_size == share.accumulation_steps == 0
            for share in item.hosts
            if share.batch_samples == 0
        ),
        "work before its time, or none when it has come": all(
            (share.batch_samples > 0) == (share.works_from <= plan.round) for share in item.hosts
        ),
        "steps out of range": all(1 <= share.inner_steps <= most_steps for share in trainers),
        "passes that are empty or do not fit": all(
            1 <= share.micro_batch_size <= roster_entries[share.peer].capacity.micro_batch_limit
            and share.accumulation_steps >= 1
            for share in trainers
            if share.peer in roster_entries
        ),
        "the device capped what its mode does not": item.mode == "capped"
        or item.mode == "accumulate"
        or all(share.effective_batch == share.batch_samples for share in trainers),
    }
    problems = [text for text, holds in facts.items() if not holds]
    expected = item.first_sample
    for share in item.hosts:
        if share.first_sample != expected:
            problems.append(f"samples of {share.peer} do not follow those of the host before it")
        expected += share.samples
    return problems
