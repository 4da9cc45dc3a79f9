"""Fixtures of the training room."""

import gc
from collections.abc import Iterator

import pytest


@pytest.fixture
def new_objects() -> Iterator[None]:
    """The garbage collector looks at what is made from now on, and not at what other tests have left: quick, and no coin."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()
