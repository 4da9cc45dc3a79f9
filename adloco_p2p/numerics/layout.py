"""A model's trainable parameters as one flat fp32 vector [P], in the module's own order, tied weights once."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """Where one parameter lies in the vector."""

    name: str
    shape: tuple[int, ...]
    offset: int
    size: int
    """Number of elements."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """The order of a model's parameters in a flat vector: equal on all peers that build the same architecture."""

    entries: tuple[Entry, ...]

    @property
    def num_parameters(self) -> int:
        """P."""
        return self.entries[-1].offset + self.entries[-1].size

    def views(self, flat: torch.Tensor) -> Iterator[tuple[str, torch.Tensor]]:
        """Names and shaped views of a flat vector [P]; writing to a view writes to the vector."""
        assert flat.shape == (self.num_parameters,), (flat.shape, self.num_parameters)
        for entry in self.entries:
            yield entry.name, flat[entry.offset : entry.offset + entry.size].view(entry.shape)


def trainable_parameters(module: torch.nn.Module) -> list[tuple[str, torch.nn.Parameter]]:
    """Trainable parameters in registration order; a tied weight counts once, under its first name."""
    return [(name, parameter) for name, parameter in module.named_parameters() if parameter.requires_grad]


def layout_of(module: torch.nn.Module) -> Layout:
    """The layout of a module with at least one trainable parameter, all of them fp32."""
    entries = []
    offset = 0
    for name, parameter in trainable_parameters(module):
        assert parameter.dtype == torch.float32, f"{name} is {parameter.dtype}"
        entries.append(Entry(name=name, shape=tuple(parameter.shape), offset=offset, size=parameter.numel()))
        offset += parameter.numel()
    assert entries, "the module has no trainable parameter"
    return Layout(entries=tuple(entries))


def gathered(parameters: Iterable[torch.nn.Parameter]) -> torch.Tensor:
    """A copy of their values as one vector [P], fp32 on the CPU."""
    return torch.cat([parameter.detach().to("cpu", torch.float32).reshape(-1) for parameter in parameters])


@torch.no_grad()
def scatter_(parameters: Iterable[torch.nn.Parameter], flat: torch.Tensor) -> None:
    """The parameters <- a flat vector [P]."""
    offset = 0
    for parameter in parameters:
        parameter.copy_(flat[offset : offset + parameter.numel()].view(parameter.shape))
        offset += parameter.numel()
    assert flat.shape == (offset,), (flat.shape, offset)


def flatten(module: torch.nn.Module) -> torch.Tensor:
    """`gathered` of a module's trainable parameters."""
    return gathered(parameter for _, parameter in trainable_parameters(module))


def unflatten_(module: torch.nn.Module, flat: torch.Tensor) -> None:
    """`scatter_` to a module's trainable parameters."""
    scatter_((parameter for _, parameter in trainable_parameters(module)), flat)


def fragment(round: int, *, size: int, count: int, rounds: int) -> slice:
    """Of a vector of `size` values in `count` fragments, the one whose turn it is; after the last of the run's `rounds` all of
    it, so that the model holds what every fragment was trained.

    Fragments are contiguous and, to one value, equally large: every round sends the same number of bytes whatever the
    model's layers are, and a fragment is a view. (The paper deals out whole layers, strided, and finds little between that
    and layers in a row.)
    """
    assert 0 <= round < rounds and 1 <= count <= size, (round, rounds, count, size)
    if round == rounds - 1:
        return slice(0, size)
    turn = round % count
    return slice(turn * size // count, (turn + 1) * size // count)
