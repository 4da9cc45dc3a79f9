"""A device that a peer trains on, with its copy of the model and its micro-batch limit."""

import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol

import torch

from adloco_p2p.numerics.batch import Batch
from adloco_p2p.numerics.layout import Layout
from adloco_p2p.training.memory_search import MicroBatchLimit, synthetic_rows
from adloco_p2p.training.shell import ModelShell


class Shell(Protocol):
    """A model for everything that is computed without training: a `ModelShell`, or a divided model (`training/shards`)."""

    @property
    def device(self) -> torch.device: ...

    @property
    def layout(self) -> Layout: ...

    @property
    def matrices(self) -> frozenset[str]: ...

    def evaluating(self, flat: torch.Tensor) -> AbstractContextManager[None]: ...

    def token_losses(self, batch: Batch) -> torch.Tensor: ...

    def next_logits(self, ids: torch.Tensor) -> torch.Tensor: ...

    def unbind(self) -> None: ...

    def free_cache(self) -> None: ...


class DeviceShell:
    """A shell under the name of its device, lent to one thread at a time."""

    def __init__(self, name: str, shell: Shell) -> None:
        """`name`: the device's name in settings and views."""
        self.name = name
        self.shell = shell
        self.limit: MicroBatchLimit | None = None
        """The micro-batch limit; None until the device's memory is searched."""
        self.lent = threading.RLock()

    @property
    def device(self) -> torch.device:
        return self.shell.device


def model_of(device: DeviceShell) -> ModelShell:
    """Return the shell of a device that holds the whole model."""
    assert isinstance(device.shell, ModelShell)
    return device.shell


@contextmanager
def own_randomness(device: torch.device, seed: int | None = None) -> Iterator[None]:
    """Leave the random state of the device as it was, whatever is drawn inside; draws begin with the seed, if there is one. A
    GPU has a state of its own, which no thread of another device touches; all threads share the processor's."""
    if device.type != "cuda":
        with torch.random.fork_rng(devices=[]):
            if seed is not None:
                torch.default_generator.manual_seed(seed)  # `torch.manual_seed` would also seed GPUs
            if seed is not None and device.type == "mps":
                torch.mps.manual_seed(seed)
            yield
        return
    before = torch.cuda.get_rng_state(device)
    if seed is not None:
        torch.cuda.default_generators[device.index].manual_seed(seed)
    try:
        yield
    finally:
        torch.cuda.set_rng_state(before, device)


def draws_random_numbers(shell: ModelShell, *, sequence_length: int, vocab_size: int) -> bool:
    """Return whether a training forward draws random numbers, as dropout does."""
    shell.module.train()
    with own_randomness(shell.device), torch.no_grad():
        before = torch.get_rng_state()
        shell.token_losses(synthetic_rows(1, sequence_length, vocab_size).to(shell.device))
        return not torch.equal(before, torch.get_rng_state())
