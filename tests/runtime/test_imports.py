"""Imports that take seconds, and the garbage collector meanwhile."""

import gc
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from adloco_p2p.runtime.adapters.imports import collecting_nothing


@pytest.fixture(params=[True, False], ids=["enabled", "disabled"])
def was_enabled(request: pytest.FixtureRequest) -> Iterator[bool]:
    """What the collector is before the imports."""
    if not request.param:
        gc.disable()
    yield request.param
    gc.unfreeze()
    gc.enable()


def test_the_last_of_two_that_import_leaves_the_collector_as_the_first_has_found_it(was_enabled: bool) -> None:
    first, second = ExitStack(), ExitStack()
    first.enter_context(collecting_nothing())
    second.enter_context(collecting_nothing())
    first.close()
    assert not gc.isenabled(), "the second one still imports"
    second.close()
    assert gc.isenabled() == was_enabled and gc.get_freeze_count() > 0
