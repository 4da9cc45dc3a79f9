"""The memory of one more hosted instance, beside the shared model, gradient and activations.

python -m benchmarks.memory_per_instance        a model of about 13 million parameters on the CPU; under a minute

Expected, in bytes per parameter: 4 local parameters, 8 AdamW moments, 4 outer parameters, 4 outer momentum; 4 more while its
pseudo-gradient is being averaged.
"""

import sys
from dataclasses import replace

import psutil
import torch

from adloco_p2p.config.peer_config import PeerConfig
from adloco_p2p.config.run_config import ModelConfig, RunConfig
from adloco_p2p.core.model.events import RunInner
from adloco_p2p.core.model.scalars import InstanceId, PeerId
from adloco_p2p.numerics.batch import Batch
from adloco_p2p.training.hosting import Hosting
from benchmarks.equal_hosts import work_of

ME = PeerId("benchmark")
LENGTH, BATCH = 16, 2
ARCHITECTURE = RunConfig().model.architecture | {"hidden_size": 480, "intermediate_size": 1296}
NUM_INSTANCES = 4


class InMemory:
    """A feed whose rows are there: the same ones, again and again."""

    def __init__(self, rows: Batch, *, vocab_size: int) -> None:
        self.vocab_size, self.sequence_length = vocab_size, rows.input_ids.shape[1]
        self._rows = rows

    def open(self, *, instance: InstanceId, peer: PeerId, round: int, first_sample: int) -> "InMemory":  # noqa: ARG002
        return self

    def take(self, num_samples: int) -> Batch:
        return self._rows.rows(0, num_samples)

    def read_ahead(self, num_samples: int) -> None:
        """They are there."""

    def heldout(self, num_rows: int) -> Batch:
        return self.take(num_rows)

    def drawn(self, lot: str, num_rows: int) -> Batch:  # noqa: ARG002
        return self.take(num_rows)

    def of(self, reads: tuple[InstanceId, ...]) -> "InMemory":  # noqa: ARG002
        return self

    def state(self, instance: InstanceId) -> dict[str, object]:  # noqa: ARG002
        return {}

    def restore(self, instance: InstanceId, state: dict[str, object]) -> None:
        """Nothing to go on from."""


def zeros() -> InMemory:
    ids = torch.zeros(BATCH, LENGTH, dtype=torch.int64)
    return InMemory(Batch(input_ids=ids, labels=ids), vocab_size=259)


def main() -> None:
    run = replace(RunConfig(), model=ModelConfig(architecture=ARCHITECTURE))
    peer = Hosting(run, PeerConfig(device="cpu", num_threads=1), ME, zeros())
    num_parameters = peer.num_parameters
    peer.start([InstanceId(0)])
    _round(peer, InstanceId(0))  # from here on activations and library buffers are there
    sys.stdout.write(f"{num_parameters} parameters\ninstances  resident MiB  bytes per parameter of the last instance\n")
    before = _resident_bytes()
    sys.stdout.write(f"{1:9d}  {before / 2**20:12.0f}\n")
    for number in range(1, NUM_INSTANCES):
        peer.start([InstanceId(number)])
        _round(peer, InstanceId(number))
        after = _resident_bytes()
        sys.stdout.write(f"{number + 1:9d}  {after / 2**20:12.0f}  {(after - before) / num_parameters:39.1f}\n")
        before = after


def round_of(instance: InstanceId) -> RunInner:
    """One inner step of one host."""
    return work_of(0, 0, hosts=[ME], instance=instance, batch=BATCH, inner_steps=1, rounds=10)


def _round(peer: Hosting, instance: InstanceId) -> None:
    peer.run_inner(round_of(instance), should_stop=lambda: False, on_progress=lambda *_: None)
    peer.apply_outer(instance, peer.pseudo_gradient(instance), round=0)


def _resident_bytes() -> int:
    return int(psutil.Process().memory_info().rss)


if __name__ == "__main__":
    main()
