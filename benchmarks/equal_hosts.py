"""Inner steps without a plan of the swarm, for benchmarks in one process: the work of one of several equal hosts, and rows in
memory."""

from collections.abc import Sequence

import torch

from adloco_p2p.core.model.effects import RunInner
from adloco_p2p.core.model.instance_plan import HostShare, InstancePlan
from adloco_p2p.core.model.scalars import InstanceId, PeerId
from adloco_p2p.numerics.batch import Batch

ME = PeerId("benchmark")
LENGTH, BATCH = 16, 2
"""Length and number of the rows of `zeros`."""


def work_of(
    host: int,
    number: int,
    *,
    hosts: Sequence[PeerId],
    instance: InstanceId,
    batch: int,
    inner_steps: int,
    rounds: int,
    micro: int = 0,
) -> RunInner:
    """Return round `number` of `rounds` as the host at this place has it, with `batch` rows of its own in every inner step,
    `micro` at a time or all at once."""
    before = number * len(hosts) * batch * inner_steps
    shares = tuple(
        HostShare(
            peer=peer,
            batch_samples=batch,
            inner_steps=inner_steps,
            micro_batch_size=micro or batch,
            accumulation_steps=-(-batch // (micro or batch)),
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


def round_of(instance: InstanceId) -> RunInner:
    """Return one inner step of one host."""
    return work_of(0, 0, hosts=[ME], instance=instance, batch=BATCH, inner_steps=1, rounds=10)


class InMemory:
    """A feed that gives the same rows from memory again and again."""

    def __init__(self, rows: Batch, *, vocab_size: int) -> None:
        self.vocab_size, self.sequence_length = vocab_size, rows.input_ids.shape[1]
        self._rows = rows

    def open(self, *, instance: InstanceId, peer: PeerId, round: int, first_sample: int) -> "InMemory":  # noqa: ARG002
        return self

    def take(self, num_samples: int) -> Batch:
        return self._rows.rows(0, num_samples)

    def read_ahead(self, num_samples: int) -> None:
        """Do nothing: the rows are in memory."""

    def heldout(self, num_rows: int) -> Batch:
        return self.take(num_rows)

    def drawn(self, lot: str, num_rows: int) -> Batch:  # noqa: ARG002
        return self.take(num_rows)

    def of(self, reads: tuple[InstanceId, ...]) -> "InMemory":  # noqa: ARG002
        return self

    def state(self, instance: InstanceId) -> dict[str, object]:  # noqa: ARG002
        return {}

    def restore(self, instance: InstanceId, state: dict[str, object]) -> None:
        """Do nothing: there is no place to go on from."""


def zeros() -> InMemory:
    ids = torch.zeros(BATCH, LENGTH, dtype=torch.int64)
    return InMemory(Batch(input_ids=ids, labels=ids), vocab_size=259)
