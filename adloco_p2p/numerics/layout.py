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


Ranges = tuple[slice, ...]
"""Of a flat vector, in rising order and apart."""


def places(ranges: Ranges) -> Iterator[tuple[slice, slice]]:
    """Each range of a vector, and where its values lie in the vector of all of them, one range after the other."""
    end = 0
    for where in ranges:
        begin, end = end, end + where.stop - where.start
        yield where, slice(begin, end)


def num_values(ranges: Ranges) -> int:
    return sum(where.stop - where.start for where in ranges)


def strided_fragments(layout: Layout, count: int) -> tuple[Ranges, ...]:
    """A model's vector in `count` fragments that are averaged in turn; the same on all peers that build the same architecture.

    Layers are dealt out in strides (arXiv 2501.18512): 0, count, 2 count, ..., then 1, count + 1, ... Parameters of no layer
    come before them if they precede the first one, as embeddings do, else after them. That order is cut into fragments which
    are, to one value, equally large: every round sends the same number of bytes whatever the layers are.
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
    return tuple(_joined(ranges) for ranges in found)


def _layer_of(entry: Entry) -> int | None:
    """By the first number in the parameter's name, as in `model.layers.3.mlp.up_proj.weight`."""
    return next((int(part) for part in entry.name.split(".") if part.isdecimal()), None)


def _joined(ranges: Iterable[slice]) -> Ranges:
    """In rising order, neighbours as one."""
    joined: list[slice] = []
    for where in sorted(ranges, key=lambda one: one.start):
        if joined and joined[-1].stop == where.start:
            joined[-1] = slice(joined[-1].start, where.stop)
        else:
            joined.append(where)
    return tuple(joined)
