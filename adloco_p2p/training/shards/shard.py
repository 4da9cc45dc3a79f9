"""The part of a model that one process of a group holds: its rows of every parameter, their gradient and Adam's moments.

`torch.distributed.fsdp.fully_shard` gathers the parameters of one block while it is computed, and sums its gradient over the
group. All processes of a group get the same commands at the same time, with the same rows, and each computes its part of them.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor

from adloco_p2p.numerics.batch import IGNORED_LABEL, Batch
from adloco_p2p.numerics.grad_stats import half_products, sum_dtype
from adloco_p2p.training.device import configure_devices, is_bfloat16
from adloco_p2p.training.memory_search import step_bytes, synthetic_rows
from adloco_p2p.training.model import build_model
from adloco_p2p.training.plugins import plugin_loss
from adloco_p2p.training.seeds import derived_seed
from adloco_p2p.training.shards.division import blocks_of, part_of, passes_of, whole_bytes
from adloco_p2p.training.shards.messages import Values
from adloco_p2p.training.shards.setup import LOCAL, MOMENTS, Setup
from adloco_p2p.training.shell import ModelShell


@dataclass(frozen=True, slots=True)
class Piece:
    """The rows of one parameter that are here."""

    start: int
    """The place where they begin in the flat vector."""
    parameter: torch.nn.Parameter
    """The sharded parameter, which gets its gradient in backward."""
    values: torch.nn.Parameter
    """The values of the sharded parameter that are here, in the same memory."""

    def vector(self, name: str, moments: dict[str, torch.Tensor]) -> torch.Tensor:
        """Return the values that are here, of the parameters or of a moment, as a flat vector."""
        return (self.values if name == LOCAL else moments[name]).detach().view(-1)


class Shard:
    """One member of a group. Every public method is a command to the whole group; its arguments and its answer travel as
    `messages.Values`."""

    def __init__(self, setup: Setup, exchange: torch.Tensor) -> None:
        """`exchange`: memory shared with the parent, through which vectors pass a piece at a time."""
        self._setup, self._exchange = setup, exchange
        (self._device,) = configure_devices(setup.machine).values()
        self._aside: list[torch.Tensor] | None = None
        self._mesh: DeviceMesh | None = None

    def join(self) -> None:
        """Find the other members."""
        setup, is_cuda = self._setup, self._device.type == "cuda"
        if is_cuda:
            torch.cuda.set_device(self._device)
        dist.init_process_group(
            "nccl" if is_cuda else "gloo",
            init_method=f"file://{setup.meeting_place}",
            rank=setup.rank,
            world_size=setup.size,
            timeout=timedelta(seconds=setup.stall_seconds),
            device_id=self._device if is_cuda else None,
        )
        self._mesh = init_device_mesh(self._device.type, (setup.size,))

    def build(self) -> None:
        """Build the model on the host and keep a part of it. This needs no other member: they take turns, so that the host
        holds one whole model at a time. Raises ConfigError for a model that cannot be divided."""
        setup, run = self._setup, self._setup.run
        module = build_model(run.model, vocab_size=setup.vocab_size, sequence_length=setup.sequence_length, seed=0)
        is_half = is_bfloat16(run.model.precision, self._device)
        loss = plugin_loss(run.model.loss) if run.model.loss else None
        shell = ModelShell(module, device=torch.device("cpu"), is_bfloat16=is_half, loss=loss, is_divided=True)
        if setup.activation_checkpointing:
            shell.recompute_activations()
        self._shell, self._root = shell, _Root(shell.module)
        self._blocks, self._whole_bytes = blocks_of(module), whole_bytes(module)
        _shard(self._root, self._blocks, self._mesh, is_half=is_half)
        shell.device = self._device
        self._pieces = list(self._find_pieces())
        self._optimizer, self._moments = self._new_optimizer()

    def _find_pieces(self) -> Iterator[Piece]:
        """Yield the pieces by FSDP's rule, which deals out rows as torch.chunk does: equally many to each member but the last
        ones."""
        parameters = dict(self._shell.module.named_parameters())
        for entry in self._shell.layout.entries:
            parameter = parameters[entry.name]
            here = _here(parameter.detach())
            first = min(entry.shape[0], self._setup.rank * math.ceil(entry.shape[0] / self._setup.size))
            yield Piece(entry.offset + first * (entry.size // entry.shape[0]), parameter, torch.nn.Parameter(here))

    def _new_optimizer(self) -> tuple[torch.optim.Optimizer, list[dict[str, torch.Tensor]]]:
        """Return AdamW over the values that are here, with zero moments for each piece. AdamW works element by element, so a
        part needs no other one."""
        inner = self._setup.run.inner
        held = [piece for piece in self._pieces if piece.values.numel()]
        is_all = inner.decayed == "all"
        groups: list[dict[str, Any]] = [
            {"params": [piece.values for piece in held if is_all or piece.parameter.ndim >= 2]},
            {"params": [piece.values for piece in held if not is_all and piece.parameter.ndim < 2], "weight_decay": 0.0},
        ]
        optimizer = torch.optim.AdamW(
            groups, lr=0.0, betas=inner.betas, eps=inner.eps, weight_decay=inner.weight_decay, fused=True
        )
        moments = []
        for piece in self._pieces:
            own = {name: torch.zeros_like(piece.values) for name in MOMENTS}
            if piece.values.numel():
                optimizer.state[piece.values] = {"step": torch.zeros((), device=self._device), **own}
            moments.append(own)
        return optimizer, moments

    # --- vectors ----------------------------------------------------------------------------------------------------------

    def take(self, name: str, first: int, count: int) -> None:
        """Copy values `first` to `first + count` of a vector from the exchange, as far as they are here."""
        for own, shared in self._overlaps(name, first, count):
            own.copy_(shared)

    def give(self, name: str, first: int, count: int) -> None:
        """Copy values of a vector to the exchange, as far as they are here."""
        for own, shared in self._overlaps(name, first, count):
            shared.copy_(own)

    def _overlaps(self, name: str, first: int, count: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Yield matching views here and in the exchange, which holds values `first` to `first + count` of the whole vector."""
        for piece, moments in zip(self._pieces, self._moments, strict=True):
            begin, end = max(piece.start, first), min(piece.start + piece.values.numel(), first + count)
            if begin < end:
                own = piece.vector(name, moments)[begin - piece.start : end - piece.start]
                yield own, self._exchange[begin - first : end - first]

    def set_steps(self, steps: int) -> None:
        """Set the steps of AdamW's bias correction."""
        for state in self._optimizer.state.values():
            state["step"].fill_(steps)

    def forget_moments(self) -> None:
        for moments in self._moments:
            for tensor in moments.values():
                tensor.zero_()
        self.set_steps(0)

    def set_aside(self) -> None:
        """Keep the parameters on the host while others take their place."""
        self._aside = [piece.values.detach().to("cpu", copy=True) for piece in self._pieces]

    def take_back(self) -> None:
        assert self._aside is not None
        for piece, values in zip(self._pieces, self._aside, strict=True):
            piece.values.detach().copy_(values)
        self._aside = None

    # --- training ---------------------------------------------------------------------------------------------------------

    def begin_round(self, seed: int) -> None:
        """Begin a round with random numbers (dropout) from a seed of the round and the member."""
        torch.manual_seed(derived_seed(seed, "shard", self._setup.rank))
        self._shell.module.train()

    def accumulate(self, *, micro_batch: int, is_measured: bool, **batch: Any) -> Values:
        """Accumulate as `accumulate_gradient` does, with micro-batches of `micro_batch` rows per member. Each member returns
        its part of the sum of the token losses and, for a measured step, its part of the products and the samples of the two
        groups."""
        rows = Batch(**batch).to(self._device)
        num_samples = rows.num_samples
        passes = passes_of(num_samples, micro_batch * self._setup.size, is_measured=is_measured)
        predicted = (rows.labels[:, 1:] != IGNORED_LABEL).sum(dim=1, keepdim=True).clamp(min=1)  # [n, 1]
        loss_sum = torch.zeros((), dtype=sum_dtype(self._device), device=self._device)
        weights = (1.0 / (num_samples * predicted.to(loss_sum.dtype))).float()  # [n, 1]
        for piece in self._pieces:
            piece.parameter.grad = None
        for start, stop in passes[:-1]:
            loss_sum += self._backward(rows, weights, start, stop)
        start, stop = passes[-1]
        if not is_measured:
            loss_sum += self._backward(rows, weights, start, stop)
            return {"loss_sum": float(loss_sum)}
        earlier = [piece.parameter.grad for piece in self._pieces]
        for piece in self._pieces:
            piece.parameter.grad = None
        loss_sum += self._backward(rows, weights, start, stop)
        products = self._products(earlier).tolist()
        return {"loss_sum": float(loss_sum), "products": products, "groups": [start, num_samples - start]}

    def _backward(self, rows: Batch, weights: torch.Tensor, start: int, stop: int) -> torch.Tensor:
        """Do one pass over rows `start` to `stop`, of which each member computes its part. A member without a row computes one
        that does not count, because the others wait for it at every block."""
        first, last = part_of(start, stop, self._setup.rank, self._setup.size)
        counts = last > first
        own = rows.rows(first, last) if counts else rows.rows(start, start + 1)
        own_weights = weights[first:last] if counts else torch.zeros_like(weights[:1])
        loss, losses = self._root(lambda: self._shell.weighted_loss(own, own_weights))
        torch.autograd.backward(loss)
        total: torch.Tensor = losses.sum(dtype=sum_dtype(self._device))
        return total if counts else torch.zeros_like(total)

    def _products(self, earlier: list[Any]) -> torch.Tensor:
        """Return the `half_products` of the earlier gradient and the last one, for the values that are here, and add the
        earlier one to the gradient."""
        products = torch.zeros(3, dtype=sum_dtype(self._device), device=self._device)
        for piece, before in zip(self._pieces, earlier, strict=True):
            coming = piece.parameter.grad
            if before is None or coming is None:  # an expert without tokens
                one = coming if before is None else before
                if one is not None:
                    values = _here(one).reshape(-1)
                    products[0 if coming is None else 2] += half_products(values, values)[0]
                piece.parameter.grad = one
                continue
            products += half_products(_here(before).reshape(-1), _here(coming).reshape(-1))
            _here(coming).add_(_here(before))
        return products

    def clip(self, max_norm: float) -> None:
        """Scale the gradient down to this norm, if the norm over all members is larger."""
        held = self._with_gradients()
        local = torch.nn.utils.get_total_norm([piece.grad for piece in held if piece.grad is not None]).to(self._device)
        square = local.square()
        dist.all_reduce(square)
        torch.nn.utils.clip_grads_with_norm_(held, max_norm, square.sqrt())

    def step(self, learning_rate: float) -> None:
        """Do one step of AdamW with the accumulated gradient."""
        held = self._with_gradients()
        for group in self._optimizer.param_groups:
            group["lr"] = learning_rate
        self._optimizer.step()
        for values in held:
            values.grad = None

    def _with_gradients(self) -> list[torch.nn.Parameter]:
        """Return the local values of the parameters, each with the local part of its gradient."""
        for piece in self._pieces:
            gradient = piece.parameter.grad
            piece.values.grad = None if gradient is None or not piece.values.numel() else _here(gradient)
        return [piece.values for piece in self._pieces if piece.values.numel()]

    # --- without training -------------------------------------------------------------------------------------------------

    @torch.no_grad()
    def token_losses(self, **batch: Any) -> Values:
        """Return the losses of this member's part of the rows, [k, L] on the host, by the parameters that are here now."""
        rows = Batch(**batch)
        first, last = part_of(0, rows.num_samples, self._setup.rank, self._setup.size)
        own = rows.rows(first, max(last, first + 1)) if first < rows.num_samples else rows.rows(0, 1)
        losses: torch.Tensor = self._evaluated(lambda: self._shell.token_losses(own))
        return {"losses": losses[: last - first].cpu()}

    @torch.no_grad()
    def next_logits(self, ids: torch.Tensor) -> Values:
        """Return the logits of the token that follows ids [n]: [V], from one member only."""
        logits: torch.Tensor = self._evaluated(lambda: self._shell.next_logits(ids))
        return {"logits": logits} if self._setup.rank == 0 else {}

    def _evaluated(self, work: Callable[[], torch.Tensor]) -> Any:
        was_training = self._shell.module.training
        self._shell.module.eval()
        try:
            return self._root(work)
        finally:
            self._shell.module.train(was_training)

    # --- memory -----------------------------------------------------------------------------------------------------------

    def memory(self) -> Values:
        """Return the bytes of activations for one row and for two, the fixed bytes of the gradient and of undivided parameters,
        and the bytes that this process may still take of its GPU's memory; None on a CPU."""
        own: set[int] = set()  # storages of gathered parameters, which stay the same

        def note(module: torch.nn.Module, _: object) -> None:
            own.update(parameter.untyped_storage()._cdata for parameter in module.parameters())

        hooks = [module.register_forward_pre_hook(note) for module in (self._root, *self._blocks)]
        self._shell.module.train()
        counts = []
        with self._shell.keeping_activations():
            for count in (1, 1, 2):  # the first pass only finds the storages of gathered parameters
                rows = synthetic_rows(count, self._setup.sequence_length, self._setup.vocab_size).to(self._device)
                counts.append(self._root(lambda rows=rows: step_bytes(self._shell, rows, own)))
                _reshard(self._root)
        for hook in hooks:
            hook.remove()
        self._shell.free_cache()
        num_gradients = 1 + self._setup.run.batch.is_tested  # a measured step also holds the earlier gradient
        fixed = self._whole_bytes + num_gradients * sum(piece.values.nbytes for piece in self._pieces)
        return {"one": counts[1], "two": counts[2], "fixed": fixed, "free": self._free_bytes()}

    def _free_bytes(self) -> int | None:
        if self._device.type != "cuda":
            return None
        _, total = torch.cuda.mem_get_info(self._device)
        limit = total * torch.cuda.get_per_process_memory_fraction(self._device)
        return int(limit) - torch.cuda.memory_allocated(self._device)


COMMANDS: dict[str, Callable[..., Values | None]] = {
    "join": Shard.join,
    "build": Shard.build,
    "take": Shard.take,
    "give": Shard.give,
    "set_steps": Shard.set_steps,
    "forget_moments": Shard.forget_moments,
    "set_aside": Shard.set_aside,
    "take_back": Shard.take_back,
    "begin_round": Shard.begin_round,
    "accumulate": Shard.accumulate,
    "clip": Shard.clip,
    "step": Shard.step,
    "token_losses": Shard.token_losses,
    "next_logits": Shard.next_logits,
    "memory": Shard.memory,
}


class _Root(torch.nn.Module):
    """Runs work that computes with the model: inside, parameters outside of the blocks are gathered; those of a block only
    while it runs."""

    def __init__(self, module: torch.nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, work: Callable[[], Any]) -> Any:
        return work()


def _shard(root: torch.nn.Module, blocks: list[torch.nn.Module], mesh: DeviceMesh | None, *, is_half: bool) -> None:
    """Divide the model. Blocks travel and compute in bfloat16 where the model does, and their gradients are summed in float32.
    Embeddings, head and the last norm, which are outside of blocks, stay in float32 until autocast."""
    half = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32, cast_forward_inputs=False)
    plain = MixedPrecisionPolicy()
    for block in blocks:
        fully_shard(block, mesh=mesh, reshard_after_forward=True, mp_policy=half if is_half else plain)
    fully_shard(root, mesh=mesh, reshard_after_forward=True, mp_policy=plain)
    for part in root.modules():
        if isinstance(part, FSDPModule):
            # Sums, not means: every row has its weight already. And only kinds of sums that gloo supports.
            part.set_force_sum_reduction_for_comms(True)
            part.set_gradient_divide_factor(1.0)
            if hasattr(part, "set_reduce_scatter_unused_params"):  # an expert may have tokens on other members only; torch 2.13
                part.set_reduce_scatter_unused_params(True, recurse=False)


def _reshard(root: torch.nn.Module) -> None:
    """Divide the parameters again, after a forward without a backward."""
    for part in root.modules():
        if isinstance(part, FSDPModule):
            part.reshard()


def _here(tensor: torch.Tensor) -> torch.Tensor:
    """Return this process's part of a sharded tensor, in the same memory."""
    assert isinstance(tensor, DTensor)
    return tensor.to_local()
