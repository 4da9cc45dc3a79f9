"""Inner steps without a plan of the swarm: the work of one of several equal hosts, for benchmarks in one process."""

from collections.abc import Sequence

from adloco_p2p.core.model.events import RunInner
from adloco_p2p.core.model.instance_plan import HostShare, InstancePlan
from adloco_p2p.core.model.scalars import InstanceId, PeerId


def work_of(
    host: int, number: int, *, hosts: Sequence[PeerId], instance: InstanceId, batch: int, inner_steps: int, rounds: int
) -> RunInner:
    """Round `number` of `rounds`, as the host at this place has it: `batch` rows of its own in every inner step."""
    before = number * len(hosts) * batch * inner_steps
    shares = tuple(
        HostShare(
            peer=peer,
            batch_samples=batch,
            inner_steps=inner_steps,
            micro_batch_size=batch,
            accumulation_steps=1,
            first_sample=before + place * batch * inner_steps,
        )
        for place, peer in enumerate(hosts)
    )
    plan = InstancePlan(
        instance=instance,
        requested_batch=len(hosts) * batch,
        effective_batch=len(hosts) * batch,
        mode="single",
        reason="benchmark",
        hosts=shares,
        first_sample=before,
        inner_steps_before=number * inner_steps,
        lineage_samples=before,
    )
    start, end = number / rounds, (number + 1) / rounds
    return RunInner(round=number, plan=plan, share=shares[host], progress_start=start, progress_end=end)
