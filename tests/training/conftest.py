"""Fixtures of the training room."""

import gc
from collections.abc import Iterator

import pytest

from tests.training.by_hand import plan_moves


@pytest.fixture
def moves(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[float]]:
    planned = plan_moves(monkeypatch)
    yield planned
    assert not planned, "every planned move was made"


@pytest.fixture
def new_objects() -> Iterator[None]:
    """The garbage collector looks at what is made from now on, and not at what other tests have left: quick, and no coin."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()
