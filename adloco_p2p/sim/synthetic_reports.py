"""Reports of a simulated trainer: plausible numbers, or a liar's."""

import hashlib
from dataclasses import replace
from random import Random

from adloco_p2p.core.model.types import (
    BranchState,
    Capacity,
    Digest,
    InstancePlan,
    InstanceReport,
    PeerId,
    ProbeVerdict,
    PseudoGradientStatistics,
    Report,
    RoundPlan,
)

CAPACITY = Capacity(samples_per_second=10.0, micro_batch_limit=8, max_instances=4)


def report_of(
    peer: PeerId, plan: RoundPlan, plan_digest: Digest, random: Random, *, is_liar: bool, branches: tuple[BranchState, ...] = ()
) -> Report:
    """The peer's report about the round of this plan."""
    capacity = replace(CAPACITY, samples_per_second=1e29 if is_liar else random.uniform(5.0, 15.0))
    items = [item for item in plan.instances if any(share.peer == peer for share in item.hosts)]
    probe = plan.probe
    verdict = None
    if probe is not None and any(item.instance == probe.target for item in items):
        losses = tuple(3.0 for _ in probe.sources)
        verdict = ProbeVerdict(sources=probe.sources, target=probe.target, source_losses=losses, merged_loss=2.9)
    return Report(
        peer=peer,
        round=plan.round,
        plan=plan_digest,
        capacity=capacity,
        instances=tuple(_instance_report(peer, plan_digest, item, random, is_liar=is_liar) for item in items),
        verdict=verdict,
        branches=(*branches, invented(plan, plan_digest, random)) if is_liar and random.random() < 0.2 else branches,
    )


def invented(plan: RoundPlan, plan_digest: Digest, random: Random) -> BranchState:
    """The end of a history that never was."""
    branch = Digest(hashlib.sha256(random.randbytes(8)).hexdigest())
    instance = random.choice(plan.instances).instance
    forks = ((plan_digest, plan.round), (plan.parent, plan.round - 1), (branch, 3))
    fork, fork_round = random.choice(forks if plan.round else forks[:1])
    return BranchState(
        fork=fork, fork_round=fork_round, branch=branch, instance=instance, round=plan.round + 2, state=branch, samples=10**12
    )


def _instance_report(peer: PeerId, plan_digest: Digest, item: InstancePlan, random: Random, *, is_liar: bool) -> InstanceReport:
    share = next(share for share in item.hosts if share.peer == peer)
    state = Digest(hashlib.sha256(f"{plan_digest} {item.instance}".encode("ascii")).hexdigest())
    noise = 1e29 if is_liar else random.uniform(0.5, 2.0)
    return InstanceReport(
        instance=item.instance,
        samples=share.samples * (1_000_000 if is_liar else 1),
        tokens=share.samples * 16,
        inner_steps=share.inner_steps,
        batch_samples=share.effective_batch,
        accumulation_steps=share.accumulation_steps,
        train_seconds=1.0,
        loss=3.0,
        heldout_loss=None,
        contributors=sum(1 << place for place, host in enumerate(item.hosts) if host.samples),
        pseudo_gradient=PseudoGradientStatistics(own_sqnorm=noise, inner_product=noise / 2, averaged_sqnorm=noise / 2),
        half_batch=None,
        digest=state,
        state_digest=state,
    )
