"""The outer step: worked numbers, and torch's own optimizer as the independent version."""

import pytest
import torch

from adloco_p2p.numerics.outer_optimizer import _CHUNK, outer_step_
from adloco_p2p.training.hosted_instances import STATE_DTYPES


@pytest.mark.parametrize(
    ("kind", "learning_rate", "expected"),
    [("nesterov", 0.7, (0.867, 0.7438)), ("sgd", 0.5, (0.95, 0.925)), ("average", 0.5, (0.9, 0.85))],
)
def test_acceptance_h(kind: str, learning_rate: float, expected: tuple[float, float]) -> None:
    """x0 = 1, averages of 0.1, then 0.05 (docs/mathematics.md, 12 H)."""
    outer, momentum = torch.ones(1), torch.zeros(1)
    for delta, value in zip((0.1, 0.05), expected, strict=True):
        outer_step_(outer, momentum, torch.tensor([delta]), kind=kind, learning_rate=learning_rate, momentum_factor=0.9)  # type: ignore[arg-type]
        assert float(outer) == pytest.approx(value, abs=1e-6)


@pytest.mark.parametrize("kind", ["nesterov", "sgd", "average"])
@pytest.mark.parametrize("dtypes", STATE_DTYPES.values(), ids=STATE_DTYPES)
def test_what_is_said_to_be_written_changes_no_more(kind: str, dtypes: tuple[torch.dtype, torch.dtype]) -> None:
    size = 2 * _CHUNK + 301
    generator = torch.Generator().manual_seed(1)
    outer, momentum, delta = (torch.randn(size, generator=generator) for _ in range(3))
    of_outer, of_momentum = dtypes
    into = torch.empty(size, dtype=of_outer), torch.empty(size, dtype=of_momentum)
    seen: list[tuple[torch.Tensor, ...]] = []
    outer_step_(
        outer.to(of_outer),
        momentum.to(of_momentum),
        delta,
        kind=kind,  # type: ignore[arg-type]
        learning_rate=0.7,
        momentum_factor=0.9,
        into=into,
        on_written=lambda count: seen.append(tuple(vector[:count].clone() for vector in into)),
    )
    assert len(seen) == 3 and len(seen[-1][0]) == size
    assert all(torch.equal(part, vector[: len(part)]) for parts in seen for part, vector in zip(parts, into, strict=True))


@pytest.mark.parametrize(("learning_rate", "momentum_factor"), [(0.7, 0.9), (0.7, 0.7), (0.5, 0.5)])
def test_nesterov_is_bit_equal_with_torch(learning_rate: float, momentum_factor: float) -> None:
    generator = torch.Generator().manual_seed(0)
    outer, momentum = torch.randn(10_003, generator=generator), torch.zeros(10_003)
    parameter = torch.nn.Parameter(outer.clone())
    reference = torch.optim.SGD([parameter], lr=learning_rate, momentum=momentum_factor, nesterov=True, foreach=False)
    for _ in range(5):
        delta = 0.01 * torch.randn(10_003, generator=generator)
        outer_step_(outer, momentum, delta, kind="nesterov", learning_rate=learning_rate, momentum_factor=momentum_factor)
        parameter.grad = delta.clone()
        reference.step()
        assert torch.equal(outer, parameter.detach())
    assert torch.equal(momentum, reference.state[parameter]["momentum_buffer"])


def test_plain_kinds_leave_the_momentum_alone() -> None:
    for kind in ("sgd", "average"):
        momentum = torch.full((3,), 2.0)
        outer_step_(torch.ones(3), momentum, torch.ones(3), kind=kind, learning_rate=0.5, momentum_factor=0.9)
        assert torch.equal(momentum, torch.full((3,), 2.0))
