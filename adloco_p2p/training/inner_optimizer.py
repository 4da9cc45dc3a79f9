"""Inner optimizers over one flat vector of parameters; each knows the places of the values that it steps.

| kind | state, bytes per parameter | what |
|---|---|---|
| `adamw` | 8 | torch's AdamW: element by element, so one step on the whole vector steps every parameter |
| `adamw8bit` | 2.1 | torchao's AdamW, its moments as 8-bit codes with a scale per block |
| `muon` | 4 for matrices, 8 for the rest | torch's Muon for the matrices of blocks, AdamW for embeddings, head, vectors |

Weight decay is decoupled in all three. With `decayed: all` torch's optimizers apply it. With `matrices` it is applied here,
before their step: pieces of the 8-bit state are whole blocks, which do not end where a parameter does.
"""

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Protocol

import torch

from adloco_p2p.config.run_config import InnerConfig
from adloco_p2p.errors import ConfigError
from adloco_p2p.numerics.layout import Layout, joined
from adloco_p2p.training.compiling import can_compile

State = dict[str, torch.Tensor]
"""Flat tensors on the device, by their names in a checkpoint."""

_BLOCK = 256
"""Values that share a scale in torchao's 8-bit state."""
_PIECE = 1 << 20
"""Values of the 8-bit state that are stepped at a time, which bounds the fp32 scratch."""
_MUON_SCRATCH, _CODED_SCRATCH = 16, 40
"""Bytes per value. For Muon: the update in fp32 and the products of its iteration in bf16. For 8-bit AdamW: parameters,
moments, update and codes of a piece."""
_LEAST_CODED = 4096
"""Below this number of values torchao keeps the state in fp32."""


class InnerOptimizer(Protocol):
    """An optimizer that steps the vector that it was made for. Its state is allocated at once, so its memory is known before
    training."""

    @property
    def state(self) -> State:
        """The live tensors, or, where other processes hold them, tensors of the same shapes without values ("meta")."""

    @property
    def steps(self) -> int:
        """Inner steps since the state was zero, for AdamW's bias correction."""

    def copied(self) -> State:
        """Return a copy of the state, on the CPU."""

    def load(self, state: Mapping[str, torch.Tensor], steps: int) -> None:
        """Copy state and steps of the same kind of optimizer into this one, after a check by `has_shape_of`."""

    def forget(self) -> None:
        """Set state and steps to zero."""

    def step(self, gradient: torch.Tensor, learning_rate: float) -> None:
        """Do one step with a gradient [P]. Changes nothing where it raises torch.OutOfMemoryError."""


def inner_optimizer(
    inner: InnerConfig, parameters: torch.Tensor, layout: Layout, *, matrices: frozenset[str]
) -> InnerOptimizer:
    """Return the run's optimizer, with zero state, for local parameters [P]. `matrices`: names of the parameters that Muon may
    step."""
    decay = None
    if inner.decayed == "matrices":
        decay = _Decay(inner.weight_decay, parameters, layout)
        inner = replace(inner, weight_decay=0.0)
    match inner.kind:
        case "adamw":
            parts = [_adamw(inner, parameters, [slice(0, len(parameters))])]
        case "adamw8bit":
            parts = [_adamw8bit(inner, parameters)]
        case "muon":
            parts = _muon_and_adamw(inner, parameters, layout, matrices)
    return _Stepped(parameters, parts, decay)


class _Decay:
    """The weight decay of the matrices in the vector; allocates nothing."""

    def __init__(self, weight_decay: float, parameters: torch.Tensor, layout: Layout) -> None:
        self._weight_decay = weight_decay
        places = joined(slice(e.offset, e.offset + e.size) for e in layout.entries if len(e.shape) >= 2)
        self._matrices = [parameters.detach()[place] for place in places]

    def apply(self, learning_rate: float) -> None:
        if self._matrices:
            torch._foreach_mul_(self._matrices, 1 - learning_rate * self._weight_decay)


class _Part:
    """One of torch's optimizers over pieces of the vector."""

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        pieces: Sequence[tuple[slice, torch.nn.Parameter]],
        state: State,
        counts: Sequence[torch.Tensor],
        *,
        scratch: int = 0,
        is_compiled: bool = False,
    ) -> None:
        """`counts`: the tensors in which the optimizer counts its steps. `scratch`: the most that a step of a piece allocates,
        in bytes per value. `is_compiled`: the optimizer compiles its step where it may."""
        self.is_compiled = is_compiled
        self.optimizer, self.pieces, self.state, self.counts = optimizer, pieces, state, counts
        self.scratch_bytes = scratch * max(parameter.numel() for _, parameter in pieces)


class _Stepped:
    """Several parts as one `InnerOptimizer`."""

    def __init__(self, parameters: torch.Tensor, parts: Sequence[_Part], decay: _Decay | None) -> None:
        covered = sum(piece.stop - piece.start for part in parts for piece, _ in part.pieces)
        assert covered == len(parameters), (covered, len(parameters))
        self._parts, self._decay = parts, decay
        self._scratch_bytes = max(part.scratch_bytes for part in parts)
        self._steps = 0

    @property
    def state(self) -> State:
        return {name: tensor for part in self._parts for name, tensor in part.state.items()}

    @property
    def steps(self) -> int:
        return self._steps

    def copied(self) -> State:
        return {name: tensor.to("cpu", copy=True) for name, tensor in self.state.items()}

    def load(self, state: Mapping[str, torch.Tensor], steps: int) -> None:
        for name, tensor in self.state.items():
            tensor.copy_(state[name])
        self._set_steps(steps)

    def forget(self) -> None:
        for tensor in self.state.values():
            tensor.zero_()
        self._set_steps(0)

    def _set_steps(self, steps: int) -> None:
        self._steps = steps
        for part in self._parts:
            for count in part.counts:
                count.fill_(steps)

    def step(self, gradient: torch.Tensor, learning_rate: float) -> None:
        # Freed at once, but the allocator keeps the memory: either it is there, or its lack shows before any piece is stepped.
        torch.empty(self._scratch_bytes, dtype=torch.uint8, device=gradient.device)
        if self._decay is not None:
            self._decay.apply(learning_rate)
        for part in self._parts:
            for group in part.optimizer.param_groups:
                if isinstance(group["lr"], torch.Tensor):
                    group["lr"].fill_(learning_rate)
                else:
                    group["lr"] = learning_rate
            for piece, parameter in part.pieces:
                parameter.grad = gradient[piece].view(parameter.shape)
            if part.is_compiled and not can_compile(gradient.device):
                with _eager():
                    part.optimizer.step()
            else:
                part.optimizer.step()
            for _, parameter in part.pieces:
                parameter.grad = None
        self._steps += 1


_STANCE = threading.Lock()
"""Guards torch's stance on compiling, which is one for all threads."""


@contextmanager
def _eager() -> Iterator[None]:
    with _STANCE, torch.compiler.set_stance("force_eager"):
        yield


def _adamw(inner: InnerConfig, parameters: torch.Tensor, places: Sequence[slice]) -> _Part:
    pieces = [(place, torch.nn.Parameter(parameters[place])) for place in places]
    # Fused, the step is one pass and needs no temporaries as large as the parameters.
    optimizer = torch.optim.AdamW(
        [parameter for _, parameter in pieces],
        lr=0.0,
        betas=inner.betas,
        eps=inner.eps,
        weight_decay=inner.weight_decay,
        fused=True,
    )
    state = {name: _zeros(parameters, places) for name in ("exp_avg", "exp_avg_sq")}
    counts = [torch.zeros((), device=parameters.device) for _ in pieces]
    first = 0
    for (_, parameter), count in zip(pieces, counts, strict=True):
        last = first + parameter.numel()
        optimizer.state[parameter] = {"step": count, **{name: moments[first:last] for name, moments in state.items()}}
        first = last
    return _Part(optimizer, pieces, state, counts)


def _muon_and_adamw(inner: InnerConfig, parameters: torch.Tensor, layout: Layout, names: frozenset[str]) -> list[_Part]:
    """Return Muon for the named matrices, with stacked ones one by one, and AdamW for the values between them."""
    matrices: list[tuple[slice, tuple[int, ...]]] = []
    rest: list[slice] = []
    for entry in layout.entries:
        if entry.name not in names:
            rest.append(slice(entry.offset, entry.offset + entry.size))
            continue
        *_, height, width = entry.shape
        for first in range(entry.offset, entry.offset + entry.size, height * width):
            matrices.append((slice(first, first + height * width), (height, width)))
    parts = [_adamw(inner, parameters, rest)] if rest else []
    if not matrices:
        raise ConfigError("inner.kind: muon, but no trainable parameter of this model is a matrix; use adamw", code="E209")
    pieces = [(place, torch.nn.Parameter(parameters[place].view(shape))) for place, shape in matrices]
    # The adjusted rate makes an update as long as AdamW's, so that one learning rate and one decay serve both.
    muon = torch.optim.Muon(
        [parameter for _, parameter in pieces],
        lr=0.0,
        weight_decay=inner.weight_decay,
        momentum=inner.momentum,
        adjust_lr_fn="match_rms_adamw",
    )
    momentum = _zeros(parameters, [place for place, _ in matrices])
    first = 0
    for _, parameter in pieces:
        last = first + parameter.numel()
        muon.state[parameter] = {"momentum_buffer": momentum[first:last].view(parameter.shape)}
        first = last
    return [*parts, _Part(muon, pieces, {"momentum_buffer": momentum}, [], scratch=_MUON_SCRATCH)]


def _adamw8bit(inner: InnerConfig, parameters: torch.Tensor) -> _Part:
    """Return torchao's AdamW over pieces of whole blocks. The values behind the last whole block, fewer than 4,352, keep fp32
    moments."""
    try:
        from torchao.optim import AdamW8bit
        from torchao.optim.subclass_8bit import OptimState8bit
    except ImportError as error:
        raise ConfigError(
            "inner.kind: adamw8bit needs torchao; in the checkout: pip install -c constraints.txt '.[adamw8bit]'", code="E209"
        ) from error

    size = len(parameters)
    coded = size // _BLOCK * _BLOCK
    if coded % _PIECE < _LEAST_CODED:
        coded -= coded % _PIECE
    places = [slice(first, min(first + _PIECE, coded)) for first in range(0, coded, _PIECE)]
    places += [slice(coded, size)] if coded < size else []
    pieces = [(place, torch.nn.Parameter(parameters[place])) for place in places]
    optimizer = AdamW8bit(
        [parameter for _, parameter in pieces],
        lr=0.0,
        betas=inner.betas,
        eps=inner.eps,
        weight_decay=inner.weight_decay,
        block_size=_BLOCK,
    )
    device = parameters.device
    state: State = {}
    for name in ("exp_avg", "exp_avg_sq"):
        if coded:
            state[f"{name}.codes"] = torch.zeros(coded, dtype=torch.uint8, device=device)
            state[f"{name}.scales"] = torch.zeros(coded // _BLOCK, device=device)
        if coded < size:
            state[f"{name}.rest"] = torch.zeros(size - coded, device=device)
    counts = []
    for place, parameter in pieces:
        count = torch.zeros(())
        counts.append(count)
        held: dict[str, torch.Tensor] = {"step": count}
        for name, is_signed in (("exp_avg", True), ("exp_avg_sq", False)):
            if place.start == coded:
                held[name] = state[f"{name}.rest"]
                continue
            template = OptimState8bit.zeros(_BLOCK, signed=is_signed, block_size=_BLOCK, device=device)
            scales = state[f"{name}.scales"][place.start // _BLOCK : place.stop // _BLOCK]
            held[name] = OptimState8bit(state[f"{name}.codes"][place], scales, template.qmap, is_signed, dtype=torch.float32)
        optimizer.state[parameter] = held
    return _Part(optimizer, pieces, state, counts, scratch=_CODED_SCRATCH, is_compiled=True)


def _zeros(parameters: torch.Tensor, places: Sequence[slice]) -> torch.Tensor:
    """Return one zero vector for the state of all these pieces."""
    return torch.zeros(sum(place.stop - place.start for place in places), device=parameters.device)


def has_shape_of(tensor: torch.Tensor | None, own: torch.Tensor) -> bool:
    return tensor is not None and tensor.shape == own.shape and tensor.dtype == own.dtype
