"""A peer's instances where one model is divided over several devices (`shards`).

Outer parameters, averages and everything between rounds are vectors on the host, as usual. Local parameters are in the
processes of a `ShardGroup` during a round and return to the host at its end; the moments are always in the processes. Instances
take turns: while one is in these processes, the others wait on the host.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Self

import torch
import transformers

from adloco_p2p.config.peer_config import PeerConfig
from adloco_p2p.config.run_config import RunConfig
from adloco_p2p.core.model.lineage import Fork, Merge
from adloco_p2p.numerics.batch import Batch
from adloco_p2p.numerics.layout import Layout, layout_of
from adloco_p2p.training.accumulation import StepNoise
from adloco_p2p.training.device import configure_computing
from adloco_p2p.training.device_shell import DeviceShell
from adloco_p2p.training.hosting import Hosting
from adloco_p2p.training.inner_optimizer import InnerOptimizer, State
from adloco_p2p.training.memory_search import fitting_samples
from adloco_p2p.training.shards.division import check_dividable, passes_of, shard_devices
from adloco_p2p.training.shards.group import ShardGroup
from adloco_p2p.training.shards.messages import values_of
from adloco_p2p.training.shards.setup import LOCAL, MOMENTS, Setup
from adloco_p2p.training.shell import block_matrices

HOST = torch.device("cpu")


class ShardedShell:
    """The divided model, for everything that is computed without training, with the methods of `ModelShell`."""

    def __init__(self, module: transformers.PreTrainedModel, group: ShardGroup) -> None:
        self.layout: Layout = layout_of(module)
        self.matrices = block_matrices(module)
        self.group = group
        self.device = HOST
        self.is_training = False

    @contextmanager
    def evaluating(self, flat: torch.Tensor) -> Iterator[None]:
        """Compute with a vector [P] on the host, and restore the state of the shell afterwards."""
        if self.is_training:
            self.group.call("set_aside")
        try:
            self.group.write(LOCAL, flat)
            yield
        finally:
            if self.is_training and self.group.lives:
                self.group.call("take_back")

    def token_losses(self, batch: Batch) -> torch.Tensor:
        """Return the losses as `ModelShell.token_losses` does, on the host."""
        return torch.cat([each["losses"] for each in self.group.call("token_losses", **values_of(batch))])

    def next_logits(self, ids: torch.Tensor) -> torch.Tensor:
        """Return the logits as `ModelShell.next_logits` does."""
        logits: torch.Tensor = self.group.call("next_logits", ids=ids)[0]["logits"]
        return logits

    def unbind(self) -> None:
        """Do nothing: the processes hold parameters of their own."""

    def free_cache(self) -> None:
        """Do nothing: no cache is in this process."""


class ShardedTeam:
    """The processes that train one instance for a round, from its local parameters on the host, with the methods of `Team`."""

    def __init__(self, shell: ShardedShell, local: torch.Tensor, *, num_devices: int, seed: int) -> None:
        self._shell, self._group, self._local = shell, shell.group, local
        self.num_devices, self._seed = num_devices, seed
        self.device = HOST
        self.gradient = torch.empty(0)
        """Empty, because the processes hold the gradient."""

    def __enter__(self) -> Self:
        self._group.write(LOCAL, self._local)
        self._group.call("begin_round", seed=self._seed)
        self._shell.is_training = True
        return self

    def __exit__(self, *_: object) -> None:
        self._shell.is_training = False

    def free_cache(self) -> None:
        """Do nothing: a process that is short of memory ends the group."""

    def accumulate(self, rows: Batch, *, micro_batch: int, is_measured: bool) -> tuple[torch.Tensor, StepNoise | None]:
        """Accumulate as `Team.accumulate` does, in the processes, where the gradient stays. Raises DeviceError where one is
        short of memory."""
        num_waits = len(passes_of(rows.num_samples, micro_batch * self.num_devices, is_measured=is_measured))
        arguments = {**values_of(rows), "micro_batch": micro_batch, "is_measured": is_measured}
        each = self._group.call("accumulate", num_waits=num_waits, **arguments)
        loss_sum = torch.tensor(sum(one["loss_sum"] for one in each), dtype=torch.float64)
        if not is_measured:
            return loss_sum, None
        first, last = each[0]["groups"]
        return loss_sum, (torch.tensor([one["products"] for one in each], dtype=torch.float64).sum(dim=0), (first, last))

    def clip(self, max_norm: float) -> None:
        self._group.call("clip", max_norm=max_norm)

    def finish(self) -> None:
        """Copy the local parameters of the processes to the instance."""
        self._group.read(LOCAL, self._local)


class ShardedAdamW:
    """The optimizer of the instance that the processes train, whose moments they hold."""

    def __init__(self, group: ShardGroup, size: int) -> None:
        self._group, self._size = group, size
        self.steps = 0
        group.call("forget_moments")

    @property
    def state(self) -> State:
        return {name: torch.empty(self._size, device="meta") for name in MOMENTS}

    def copied(self) -> State:
        state = {name: torch.empty(self._size) for name in MOMENTS}
        for name, tensor in state.items():
            self._group.read(name, tensor)
        return state

    def load(self, state: Mapping[str, torch.Tensor], steps: int) -> None:
        for name in MOMENTS:
            self._group.write(name, state[name])
        self._group.call("set_steps", steps=steps)
        self.steps = steps

    def forget(self) -> None:
        self._group.call("forget_moments")
        self.steps = 0

    def step(self, gradient: torch.Tensor, learning_rate: float) -> None:  # noqa: ARG002 - the processes hold it
        self._group.call("step", learning_rate=learning_rate)
        self.steps += 1


class ShardedHosting(Hosting):
    """A peer's instances of one divided model, with one `ShardGroup` for all of them."""

    def _configured(self, run: RunConfig, peer_config: PeerConfig) -> dict[str, torch.device]:
        """Return one device for the runtime: the host, where the vectors are. This process keeps no tensor on a GPU, but has a
        context on each, because it asks for their memory (`gpu_use`)."""
        check_dividable(run, peer_config)
        configure_computing(peer_config)
        self._members = shard_devices(peer_config)
        return {_title(self._members): HOST}

    def _open(self, devices: Mapping[str, torch.device], module: transformers.PreTrainedModel) -> tuple[DeviceShell, ...]:
        machine = self._peer_config
        threads = max(1, (machine.num_threads or torch.get_num_threads()) // machine.shards)
        self._group = ShardGroup(
            [
                Setup(
                    run=self._run,
                    device=name,
                    num_threads=threads,
                    deterministic=machine.deterministic,
                    tf32=machine.tf32,
                    memory_fraction=machine.memory_fraction,
                    activation_checkpointing=machine.activation_checkpointing,
                    vocab_size=self._feed.vocab_size,
                    sequence_length=self._feed.sequence_length,
                    rank=rank,
                    size=machine.shards,
                )
                for rank, name in enumerate(self._members)
            ]
        )
        self._sharded = ShardedShell(module, self._group)
        (title,) = devices
        return (DeviceShell(title, self._sharded),)

    @property
    def devices(self) -> tuple[torch.device, ...]:
        return tuple(dict.fromkeys(torch.device(name) for name in self._members))

    @property
    def pids(self) -> tuple[int, ...]:
        """The ids of the processes that hold parts of the model, by rank."""
        return self._group.pids

    def release(self) -> None:
        """End the processes, which also end with this object."""
        self._group.close()

    def _check_randomness(self) -> None:
        """Accept any model: each process has a random state of its own."""

    def _team(self, devices: Sequence[DeviceShell], local: torch.Tensor, seed: int) -> ShardedTeam:  # noqa: ARG002
        return ShardedTeam(self._sharded, local, num_devices=self._peer_config.shards, seed=seed)

    def _new_optimizer(self, local: torch.Tensor) -> InnerOptimizer:
        for other in list(self._instances.values()):
            other.leave_device()
        return ShardedAdamW(self._group, len(local))

    def transition(self, forks: Sequence[Fork], merges: Sequence[Merge]) -> None:
        for fork in forks:  # the copy of a fork takes the place of its source in the processes
            self._get(fork.source).leave_device()
        super().transition(forks, merges)

    def _probe(self, one: DeviceShell) -> int:  # noqa: ARG002
        """Probe by counting, as on a CPU: a process that runs out of memory would end the group."""
        found = self._group.call("memory", num_waits=3)
        one_row, two_rows, fixed = (max(each[name] for each in found) for name in ("one", "two", "fixed"))
        free = [each["free"] for each in found if each["free"] is not None]
        budget = min(free) if free else self._peer_config.memory_budget_bytes // self._peer_config.shards
        limit = self._peer_config.max_micro_batch
        return fitting_samples(one_row, two_rows, gradient_bytes=fixed, budget_bytes=budget, limit=limit)


def _title(names: Sequence[str]) -> str:
    """Return the devices' names in one: `cuda:0+cuda:1`, or `cpu x2`."""
    return f"{names[0]} x{len(names)}" if len(set(names)) == 1 else "+".join(names)
