"""Searches for the largest micro-batch that a device holds (docs/mathematics.md, 8)."""

from collections.abc import Callable, Set

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from adloco_p2p.errors import DeviceError
from adloco_p2p.numerics.batch import Batch
from adloco_p2p.training.accumulation import accumulate_gradient
from adloco_p2p.training.instance import Instance, NewOptimizer
from adloco_p2p.training.shell import ModelShell

_FIRST_PATIENCE, _MOST_PATIENCE = 8, 512
"""Rounds without an out-of-memory before a larger micro-batch is tried again: at first, and at most. Every out-of-memory
doubles the number."""


class MicroBatchLimit:
    """The micro-batch limit of a device: the probed one, lowered by an out-of-memory and carefully raised again, because
    another program may have held the memory, or fragmentation may be over."""

    def __init__(self, probed: int) -> None:
        self.samples = self._probed = probed
        self._patience = 0
        self._rounds = 0

    def note_round(self, fitting: int) -> None:
        """Note the end of a round in which `fitting` samples were the limit."""
        if fitting < self.samples:
            self.samples, self._rounds = fitting, 0
            self._patience = min(_MOST_PATIENCE, 2 * self._patience) if self._patience else _FIRST_PATIENCE
        elif self.samples < self._probed:
            self._rounds += 1
            if self._rounds == self._patience:
                self.samples, self._rounds = min(self._probed, self.samples + max(1, self.samples // 4)), 0


def largest_fitting(fits: Callable[[int], bool], *, limit: int) -> int:
    """Return the largest size up to `limit` that fits, or 0 where none does, by doubling and then bisection. Wherever a size
    fits, all smaller ones must fit, too."""
    assert limit >= 1
    good, size = 0, 1
    while size <= limit and fits(size):
        good, size = size, size * 2
    bad = min(size, limit + 1)
    while bad - good > 1:
        middle = (good + bad) // 2
        if fits(middle):
            good = middle
        else:
            bad = middle
    return good


def search_cpu(shell: ModelShell, *, sequence_length: int, vocab_size: int, budget_bytes: int, limit: int) -> int:
    """Search within a budget for activations and gradients, by counting what autograd saves for one sample and for two.

    The machine has no hard limit to run into, and the count is the same every time. Raises DeviceError where the budget does
    not hold one sample.
    """
    shell.module.train()
    with shell.keeping_activations():  # so with activation checkpointing the result is far below what would fit
        own = {parameter.untyped_storage()._cdata for parameter in shell.module.parameters()}  # also those of a frozen base
        one, two = (step_bytes(shell, synthetic_rows(n, sequence_length, vocab_size).to(shell.device), own) for n in (1, 2))
    shell.free_cache()
    return fitting_samples(one, two, gradient_bytes=shell.gradient.nbytes, budget_bytes=budget_bytes, limit=limit)


def fitting_samples(one: int, two: int, *, gradient_bytes: int, budget_bytes: int, limit: int) -> int:
    """Return the number of samples that fit the budget, from the `step_bytes` of one sample and of two."""
    per_sample = two - one
    assert per_sample > 0, (one, two)
    fixed = one - per_sample + gradient_bytes
    fitting = (budget_bytes - fixed) // per_sample
    if fitting < 1:
        raise DeviceError(f"memory_budget_bytes: {budget_bytes} given, one sample needs {fixed + per_sample}", code="E502")
    return min(limit, fitting)


def step_bytes(shell: ModelShell, rows: Batch, own: Set[int]) -> int:
    """Return the bytes that a forward and backward need beside parameters and gradients: the tensors that autograd saves and,
    as an estimate of backward's logits and their gradient, twice the largest of them. Logits that are made in chunks are not
    saved; those of a chunk and their gradients count instead.

    `own`: the storages of the parameters.
    """
    saved: dict[StorageWeakRef, int] = {}  # weak references: only one layer stays in memory, and no identity is used twice

    nothing = torch.empty(0)

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        # Nothing is handed back: an output that its own operation saved would keep itself and the weights alive for ever.
        storage = tensor.untyped_storage()
        if storage._cdata not in own:
            saved[StorageWeakRef(storage)] = storage.nbytes()  # type: ignore[no-untyped-call]
        return nothing

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        shell.weighted_loss(rows)
    if shell.is_loss_chunked:
        return sum(saved.values()) + shell.logits_bytes(rows.input_ids.numel())
    return sum(saved.values()) + 2 * max(saved.values())


def search_cuda(
    shell: ModelShell,
    *,
    sequence_length: int,
    vocab_size: int,
    clip_norm: float,
    is_measured: bool,
    new_optimizer: NewOptimizer,
    num_instances: int,
    num_documents: int,
    limit: int,
) -> int:
    """Search by trying: an inner step, twice per size, beside the memory that `num_instances` instances keep. `num_documents`:
    documents in each row.

    The process's memory limit (`training.device`) leaves the margin. Raises DeviceError where one sample does not fit.
    """
    num_parameters = shell.layout.num_parameters
    try:
        instance = Instance(torch.zeros(num_parameters), momentum=None, device=shell.device, new_optimizer=new_optimizer)
        own_bytes = instance.local.nbytes + sum(tensor.nbytes for tensor in instance.optimizer.state.values())
        others = torch.empty(own_bytes * (num_instances - 1), dtype=torch.uint8, device=shell.device)
    except torch.OutOfMemoryError as error:
        one = f"memory_fraction: {shell.device} does not hold the model, its gradient and moments; raise it, or choose a larger"
        several = f"max_instances: {num_instances} instances do not fit {shell.device}; host fewer"
        raise DeviceError(
            several if num_instances > 1 else f"{one} device, or a run with adapters (model.lora) or inner.kind adamw8bit",
            code="E502",
        ) from error

    def fits(num_samples: int) -> bool:
        rows = synthetic_rows(num_samples, sequence_length, vocab_size, num_documents=num_documents)
        try:
            for _ in range(2):  # the second time the allocator holds what the first one left
                accumulate_gradient(shell, rows, micro_batch=num_samples, is_measured=False)
                if is_measured and num_samples > 1:
                    accumulate_gradient(shell, rows, micro_batch=num_samples, is_measured=True)
                torch.nn.utils.clip_grad_norm_(shell.parameters, clip_norm)
                instance.inner_step(shell.gradient, 0.0)
                torch.cuda.synchronize(shell.device)
        except torch.OutOfMemoryError:
            return False
        finally:
            shell.free_cache()
        return True

    shell.bind(instance.local)
    shell.module.train()
    fitting = largest_fitting(fits, limit=limit)
    del others
    shell.unbind()  # otherwise the probe's parameters stay on the device until a round has made those of its instance
    shell.free_cache()
    if fitting < 1:
        raise DeviceError(
            f"one sample of {sequence_length} tokens does not fit {shell.device} beside {num_instances} instances;"
            " raise memory_fraction or lower max_instances",
            code="E502",
        )
    return fitting


def synthetic_rows(num_samples: int, sequence_length: int, vocab_size: int, *, num_documents: int = 1) -> Batch:
    """Return full rows of different tokens, each of `num_documents` documents, or of one document per token where that is
    fewer."""
    ids = torch.arange(num_samples * sequence_length).remainder(vocab_size).view(num_samples, sequence_length)
    if num_documents == 1:
        return Batch(input_ids=ids, labels=ids)
    positions = torch.arange(sequence_length).remainder(-(-sequence_length // num_documents)).repeat(num_samples, 1)
    return Batch(input_ids=ids, labels=ids, positions=positions)
