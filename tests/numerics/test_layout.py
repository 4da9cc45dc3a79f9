"""Flat views of a module's parameters."""

import torch

from adloco_p2p.numerics.layout import flatten, layout_of, unflatten_


class Tied(torch.nn.Module):
    """Two uses of one weight, and one that is frozen."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = torch.nn.Embedding(5, 3)
        self.frozen = torch.nn.Linear(2, 2).requires_grad_(False)
        self.head = torch.nn.Linear(3, 5, bias=True)
        self.head.weight = self.embed.weight


def test_order_is_that_of_the_module_and_tied_weights_count_once() -> None:
    layout = layout_of(Tied())
    assert [(entry.name, entry.shape, entry.offset) for entry in layout.entries] == [
        ("embed.weight", (5, 3), 0),
        ("head.bias", (5,), 15),
    ]
    assert layout.num_parameters == 20


def test_flatten_and_unflatten_are_inverse() -> None:
    module = Tied()
    numbers = torch.arange(20, dtype=torch.float32)
    unflatten_(module, numbers)
    assert torch.equal(flatten(module), numbers)
    assert torch.equal(module.head.weight, numbers[:15].view(5, 3))


def test_views_write_through() -> None:
    flat = torch.zeros(20)
    for _, view in layout_of(Tied()).views(flat):
        view.fill_(1.0)
    assert torch.equal(flat, torch.ones(20))
