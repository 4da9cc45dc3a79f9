"""The core adds up floats alike on every version of Python, so that peers with different versions compute the same plans."""

import builtins
import sys
from collections.abc import Iterable, Iterator
from typing import Any

import pytest


@pytest.fixture(scope="module", autouse=True)
def _no_builtin_sum_of_floats() -> Iterator[None]:
    """The builtin compensates for rounding from Python 3.12 on; `float_sum` and `math.fsum` are the same everywhere."""
    add_up = builtins.sum

    def checked(values: Iterable[Any], /, start: Any = 0) -> Any:
        values = list(values)
        if sys._getframe(1).f_globals["__name__"].startswith("adloco_p2p.core."):
            assert not any(isinstance(value, float) for value in values), "the core sums floats by `float_sum` or `math.fsum`"
        return add_up(values, start)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(builtins, "sum", checked)
        yield
