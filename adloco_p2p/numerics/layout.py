"""A model's trainable parameters as one flat fp32 vector [P], in the module's own order, with tied weights once, and the cut of
that vector into fragments."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """The place of one parameter in the vector."""

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
        """P, the number of values in the vector."""
        return self.entries[-1].offset + self.entries[-1].size

    def views(self, flat: torch.Tensor) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield the name and shaped view of every parameter in a flat vector [P]; writing to a view writes to the vector."""
        assert flat.shape == (self.num_parameters,), (flat.shape, self.num_parameters)
        for entry in self.entries:
            yield entry.name, flat[entry.offset : entry.offset + entry.size].view(entry.shape)


def trainable_parameters(module: torch.nn.Module) -> list[tuple[str, torch.nn.Parameter]]:
    """Return the trainable parameters in registration order; a tied weight counts once, under its first name."""
    return [(name, parameter) for name, parameter in module.named_parameters() if parameter.requires_grad]


def layout_of(module: torch.nn.Module) -> Layout:
    """Return the layout of a module with at least one trainable parameter, all of them fp32."""
    entries = []
    offset = 0
    for name, parameter in trainable_parameters(module):
        assert parameter.dtype == torch.float32, f"{name} is {parameter.dtype}"
        entries.append(Entry(name=name, shape=tuple(parameter.shape), offset=offset, size=parameter.numel()))
        offset += parameter.numel()
    assert entries, "the module has no trainable parameter"
    return Layout(entries=tuple(entries))


def gathered(parameters: Iterable[torch.nn.Parameter]) -> torch.Tensor:
    """Return a copy of the parameters' values as one vector [P], fp32 on the CPU."""
    given = list(parameters)
    flat, offset = torch.empty(sum(parameter.numel() for parameter in given)), 0
    for parameter in given:  # one by one: copies of all of them and their concatenation would take twice the memory
        flat[offset : offset + parameter.numel()].copy_(parameter.detach().reshape(-1))
        offset += parameter.numel()
    return flat


@torch.no_grad()
def scatter_(parameters: Iterable[torch.nn.Parameter], flat: torch.Tensor) -> None:
    """Write a flat vector [P] to the parameters."""
    offset = 0
    for parameter in parameters:
        parameter.copy_(flat[offset : offset + parameter.numel()].view(parameter.shape))
        offset += parameter.numel()
    assert flat.shape == (offset,), (flat.shape, offset)


def flatten(module: torch.nn.Module) -> torch.Tensor:
    """Return a copy of a module's trainable parameters as one vector [P], fp32 on the CPU."""
    return gathered(parameter for _, parameter in trainable_parameters(module))


def unflatten_(module: torch.nn.Module, flat: torch.Tensor) -> None:
    """Write a flat vector [P] to a module's trainable parameters."""
    scatter_((parameter for _, parameter in trainable_parameters(module)), flat)


Ranges = tuple[slice, ...]
"""Disjoint ranges of a flat vector, in rising order."""


def places(ranges: Ranges) -> Iterator[tuple[slice, slice]]:
    """Yield each range of a vector with the range of its values in the concatenation of all of them."""
    end = 0
    for where in ranges:
        begin, end = end, end + where.stop - where.start
        yield where, slice(begin, end)


def num_values(ranges: Ranges) -> int:
    return sum(where.stop - where.start for where in ranges)


def strided_fragments(layout: Layout, count: int) -> tuple[Ranges, ...]:
    """Cut a model's vector into `count` fragments that are averaged in turn, the same on all peers with the same architecture.

    Layers are ordered in strides (arXiv 2501.18512): 0, count, 2 count, ..., then 1, count + 1, ... Parameters outside the
    layers come first if they precede them, as embeddings do, otherwise last. That order is cut into fragments whose sizes
    differ by at most one value, so that every round sends the same number of bytes whatever the layers are.
    """
    size = layout.num_parameters
    assert 1 <= count <= size, (count, size)
    layers = list(dict.fromkeys(layer for entry in layout.entries if (layer := _layer_of(entry)) is not None))
    turns = {layer: (1 + place % count, place) for place, layer in enumerate(layers)}
    first = next((entry.offset for entry in layout.entries if _layer_of(entry) is not None), 0)

    def turn_of(entry: Entry) -> tuple[int, int]:
        layer = _layer_of(entry)
        return turns[layer] if layer is not None else (0, 0) if entry.offset < first else (1 + count, 0)

    found: list[list[slice]] = [[] for _ in range(count)]
    done = 0
    for entry in sorted(layout.entries, key=turn_of):  # stable: by offset in each layer
        for turn in range(count):
            begin, end = (max(done, min(done + entry.size, at * size // count)) - done for at in (turn, turn + 1))
            if begin < end:
                found[turn].append(slice(entry.offset + begin, entry.offset + end))
        done += entry.size
    return tuple(joined(ranges) for ranges in found)


def _layer_of(entry: Entry) -> int | None:
    """Return the layer's number, the first number in the parameter's name, as in `model.layers.3.mlp.up_proj.weight`."""
    return next((int(part) for part in entry.name.split(".") if part.isdecimal()), None)


def joined(ranges: Iterable[slice]) -> Ranges:
    """Return the ranges in rising order, with adjacent ones joined."""
    found: list[slice] = []
    for where in sorted(ranges, key=lambda one: one.start):
        if found and found[-1].stop == where.start:
            found[-1] = slice(found[-1].start, where.stop)
        else:
            found.append(where)
    return tuple(found)
