"""Which devices divide a model, how its rows are divided, and which runs allow it."""

import itertools
from typing import Any

import torch

from adloco_p2p.config.peer_config import PeerConfig
from adloco_p2p.config.run_config import RunConfig
from adloco_p2p.errors import ConfigError
from adloco_p2p.training.device import select_devices

_FLOAT = 4


def shard_devices(machine: PeerConfig) -> tuple[str, ...]:
    """Return the device of each process of a divided model: the GPUs that `device` names, the first ones of `auto`, or the
    processor for all. Where nothing is divided, these are all devices. Raises ConfigError where there are too few."""
    names = tuple(select_devices(machine))
    if machine.shards == 1:
        return names
    if all(torch.device(name).type == "cpu" for name in names):
        return ("cpu",) * machine.shards
    if any(torch.device(name).type != "cuda" for name in names):
        raise ConfigError(f"shards: {machine.shards}, but {', '.join(names)} cannot divide a model; leave it at 1", code="E210")
    if len(names) < machine.shards or (machine.devices != ("auto",) and len(names) > machine.shards):
        raise ConfigError(
            f"shards: {machine.shards}, but device gives {', '.join(names)}; set it to {len(names)}, or name as many devices",
            code="E210",
        )
    return names[: machine.shards]


def check_dividable(run: RunConfig, machine: PeerConfig) -> None:
    """Raise ConfigError, naming every obstacle, where the run's model cannot be divided."""
    if problems := obstacles(run):
        raise ConfigError(*(f"shards: {machine.shards}, but {problem}; leave it at 1" for problem in problems), code="E210")


def obstacles(run: RunConfig) -> list[str]:
    """Return what keeps the run's model from being divided, in phrases; empty where nothing does."""
    problems = []
    if run.inner.kind != "adamw":
        problems.append(f"this run has inner.kind {run.inner.kind}, and only adamw steps a part of a model")
    if run.model.lora.rank:
        problems.append(f"this run trains adapters (model.lora.rank {run.model.lora.rank}), and only whole models are divided")
    if run.outer.overlap == "streaming":
        problems.append("this run has outer.overlap streaming, and no process takes a fragment between its inner steps")
    return problems


def blocks_of(module: Any) -> list[torch.nn.Module]:
    """Return the layers that `transformers` names for division, which are gathered one after the other. Raises ConfigError
    where there are none."""
    names = set(getattr(module, "_no_split_modules", None) or ())
    blocks = [part for part in module.modules() if type(part).__name__ in names]
    if not blocks:  # as in a plugin's own class
        raise ConfigError(
            f"shards: {type(module).__name__} names no layers that could be divided over processes; leave shards at 1",
            code="E210",
        )
    return blocks


def undivided_bytes(run: RunConfig, module: Any) -> int | None:
    """Return `whole_bytes`; None where the run's model cannot be divided."""
    try:
        return None if obstacles(run) else whole_bytes(module)
    except ConfigError:
        return None


def whole_bytes(module: Any) -> int:
    """Return the bytes of parameters that a device holds undivided at a time, and of their gradients: those outside of blocks,
    and those of two blocks, since one is computed while the next one arrives. Also counts the copy in which the gradients
    outside of blocks are summed."""
    blocks = [_size(block) for block in blocks_of(module)]
    outside = _size(module) - sum(blocks)
    return _FLOAT * (3 * outside + 2 * 2 * max(blocks))


def _size(module: torch.nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def passes_of(num_samples: int, size: int, *, is_measured: bool) -> list[tuple[int, int]]:
    """Return the first and last row of each pass over the model, at most `size` rows each; a measured step has at least two
    passes."""
    bounds = [*range(0, num_samples, size), num_samples]
    if is_measured and len(bounds) == 2:
        bounds.insert(1, (num_samples + 1) // 2)
    return list(itertools.pairwise(bounds))


def part_of(start: int, stop: int, rank: int, size: int) -> tuple[int, int]:
    """Return the first and last row of one member; the first members get one row more."""
    first, last = (start + -(-(stop - start) * index // size) for index in (rank, rank + 1))
    return first, last
