"""Progress and end of a run, which ends after a number of rounds or once its plans have given out a number of samples
(`WorkRules`).

With a growing batch the number of rounds is not known beforehand, and runs of equally many rounds do not train on the same
amount of text. Samples are counted by the agreed plans, not by what hosts report: every peer counts alike, and a host that
fails cannot make a run longer.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace

from adloco_p2p.core.model.branches import BranchState, GivenWeight
from adloco_p2p.core.model.ledger_entry import LedgerEntry, SignedReport
from adloco_p2p.core.model.lineage import Fork, Merge
from adloco_p2p.core.model.plan import RoundPlan
from adloco_p2p.core.model.protocol import PROBED_IN_TIME
from adloco_p2p.core.model.rules import WorkRules
from adloco_p2p.core.model.scalars import Digest, InstanceId, PeerId, float_sum


def planned_samples(plan: RoundPlan) -> int:
    """Return the samples that all hosts of all instances are to train in the round."""
    return 0 if plan.is_last else sum(share.samples for item in plan.instances for share in item.hosts)


def samples_after(plan: RoundPlan) -> int:
    """Return the samples that the run was given by the end of the plan's round."""
    return plan.samples_before + planned_samples(plan)


def progress_at(round: int, samples_before: int, work: WorkRules) -> float:
    """Return the part of the run that lies behind when the round begins, in [0, 1]."""
    done, whole = (samples_before, work.samples) if work.samples is not None else (round, work.rounds)
    assert whole is not None
    return min(1.0, done / whole)


def progress_after(plan: RoundPlan, work: WorkRules) -> float:
    """Return the part of the run that lies behind when the plan's round has ended, in [0, 1]."""
    return progress_at(plan.round + 1, samples_after(plan), work)


def end_after(plan: RoundPlan, work: WorkRules) -> int:
    """Return the round of the plan with `is_last`, as far as this plan shows. In a run by samples it assumes that all rounds to
    come are like this one; if nothing is left, it is the next round. Samples that are too few for an inner step are no round
    (from the protocol PROBED_IN_TIME on)."""
    if work.samples is None:
        assert work.rounds is not None
        return work.rounds
    planned = max(1, planned_samples(plan))
    rounds, rest = divmod(max(0, work.samples - samples_after(plan)), planned)
    is_round = rest * plan.inner_steps >= planned if plan.protocol >= PROBED_IN_TIME else rest > 0
    return plan.round + 1 + rounds + is_round


def steps_within(plan: RoundPlan, work: WorkRules) -> int:
    """Return the whole inner steps of the plan's round for which the run still has samples, at most those of the plan."""
    planned = planned_samples(plan)
    if work.samples is None or plan.samples_before + planned <= work.samples:
        return plan.inner_steps
    return (work.samples - plan.samples_before) * plan.inner_steps // planned


def proven_samples(reported: RoundPlan | None, reports: Sequence[SignedReport]) -> int:
    """Return the samples that signed reports prove; each host's claim counts once, up to what the plan gave it."""
    if reported is None:
        return 0
    given = {(plan.instance, share.peer): share.samples for plan in reported.instances for share in plan.hosts}
    claimed: dict[tuple[InstanceId, PeerId], int] = {}
    for signed in reports:
        for item in signed.report.instances:
            claimed.setdefault((item.instance, signed.report.peer), item.samples)
    return sum(min(samples, given.get(key, 0)) for key, samples in claimed.items())


# --- counting --------------------------------------------------------------------------------------------------------


def given_samples(plan: RoundPlan, instance: InstanceId) -> int:
    """Return the samples that the plan gives to the hosts of the instance."""
    return sum(share.samples for item in plan.instances if item.instance == instance for share in item.hosts)


def trained_samples(fork: RoundPlan, entries: Sequence[LedgerEntry], instance: InstanceId, *, end: int) -> int:
    """Return the samples that went into the instance's state at the boundary before round `end`, from the round of `fork` on,
    including those of instances merged into it. `entries` follow `fork`. Rounds whose reports they have count as reported, each
    host up to what it was given; the last rounds, which no host could report yet, count as planned."""
    plans = {plan.round: plan for plan in (fork, *(entry.plan for entry in entries)) if plan.round < end}
    reports = {entry.plan.round - 2: entry.reports for entry in entries}
    total, names = 0, {instance}
    for round in sorted(plans, reverse=True):
        plan = plans[round]
        given = {(item.instance, share.peer): share.samples for item in plan.instances for share in item.hosts}
        if round in reports:
            claims = {(i.instance, s.report.peer): i.samples for s in reports[round] for i in s.report.instances}
            total += sum(min(claims.get(key, 0), samples) for key, samples in given.items() if key[0] in names)
        else:
            total += sum(samples for key, samples in given.items() if key[0] in names)
        names |= {source for merge in plan.merges if merge.target in names for source in merge.sources}
        names |= {copied.source for copied in plan.forks if names.intersection(copied.targets)}
    return total


def merged_into(instance: InstanceId, merges: Sequence[Merge]) -> InstanceId:
    """Return the instance that this one is part of after the merges of one plan."""
    for merge in merges:
        if instance in merge.sources:
            instance = merge.target
    return instance


def merged_weights(merges: Sequence[Merge], states: Iterable[BranchState]) -> dict[tuple[InstanceId, Digest], float]:
    """Return the weights that these merges gave to states of lost histories, by target and branch, and by target and fork."""
    known = {state.key: state for state in states}
    weights: dict[tuple[InstanceId, Digest], float] = {}
    for merge in merges:
        for source, weight in zip(merge.sources, merge.weights, strict=True):
            for about in (known[source].branch, known[source].fork) if source in known else ():
                weights[merge.target, about] = weights.get((merge.target, about), 0.0) + weight
    return weights


def given_after(
    given: Iterable[GivenWeight],
    state: BranchState,
    *,
    forks: Iterable[Fork],
    merges: Sequence[Merge],
    states: Iterable[BranchState],
) -> tuple[GivenWeight, ...]:
    """Return the weights that states of the branch and of the fork of `state` have in each instance after a plan with these
    forks and merges. `given` are the weights before; `states` are those that could be merged. A merged instance inherits the
    weights of its sources, and a copy those of its source."""
    copies = {fork.source: (fork.source, *fork.targets) for fork in forks}
    given = [replace(item, instance=copy) for item in given for copy in copies.get(item.instance, (item.instance,))]
    if not merges:
        return tuple(given)
    totals = [(merged_into(item.instance, merges), item.branch_weight, item.fork_weight) for item in given]
    for (instance, about), weight in merged_weights(merges, states).items():
        totals.append((instance, weight * (about == state.branch), weight * (about == state.fork)))
    return tuple(
        GivenWeight(
            instance=instance,
            branch_weight=min(1.0, float_sum(of_branch for other, of_branch, _ in totals if other == instance)),
            fork_weight=min(1.0, float_sum(of_fork for other, _, of_fork in totals if other == instance)),
        )
        for instance in sorted({instance for instance, of_branch, of_fork in totals if of_branch or of_fork})
    )
