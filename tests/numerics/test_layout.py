"""Flat views of a module's parameters."""

import pytest
import torch

from adloco_p2p.numerics.layout import flatten, gathered, layout_of, scatter_, unflatten_


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


def test_any_list_of_parameters_becomes_a_vector_of_their_values_and_takes_one() -> None:
    parameters = [torch.nn.Parameter(torch.tensor([[1.0, 2.0]])), torch.nn.Parameter(torch.tensor(3.0, dtype=torch.bfloat16))]
    vector = gathered(parameters)
    assert vector.dtype == torch.float32 and vector.tolist() == [1.0, 2.0, 3.0]
    scatter_(parameters, 2 * vector)
    assert vector.tolist() == [1.0, 2.0, 3.0] and gathered(parameters).tolist() == [2.0, 4.0, 6.0]
    with pytest.raises(AssertionError):
        scatter_(parameters, torch.zeros(4))


def test_views_write_through() -> None:
    flat = torch.zeros(20)
    for _, view in layout_of(Tied()).views(flat):
        view.fill_(1.0)
    assert torch.equal(flat, torch.ones(20))
