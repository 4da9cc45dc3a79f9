"""Rounds by hand: inner steps that move every parameter by a stated number."""

from typing import Any

import pytest
import torch

from adloco_p2p.core.model.events import InnerResult
from adloco_p2p.training.instance import Instance
from tests.core.core_values import inner_result


def plan_moves(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """What the inner steps of the next rounds take from every parameter: to be filled, and used up."""
    planned: list[float] = []

    def run_inner_steps(shell: object, instance: Instance, stream: object, **details: Any) -> InnerResult:
        instance.inner_step(torch.zeros_like(instance.local), 0.0)
        instance.local.sub_(planned.pop(0))
        share = details["share"]
        return inner_result(inner_steps=share.inner_steps, batch=share.batch_samples, tokens=1, loss=1.0, limit=4)

    monkeypatch.setattr("adloco_p2p.training.hosting.run_inner_steps", run_inner_steps)
    return planned


def of(vector: torch.Tensor) -> float:
    assert float(vector.max() - vector.min()) < 1e-6, "one number for all"
    return round(float(vector[0]), 5)
