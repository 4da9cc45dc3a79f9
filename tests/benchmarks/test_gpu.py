"""Every part of the benchmark of a GPU is there, on machines without one, too."""

from importlib import import_module

import pytest

from benchmarks.gpu.__main__ import SECONDS


@pytest.mark.parametrize("name", SECONDS)
def test_a_part_is_a_program_of_its_own(name: str) -> None:
    assert callable(import_module(f"benchmarks.gpu.{name}").main)
