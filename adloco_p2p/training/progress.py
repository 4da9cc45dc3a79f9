"""What the runtime gives the inner steps of a round, beside the plan: when they are enough, and where they are shown."""

from collections.abc import Callable
from typing import SupportsFloat

IsEnough = Callable[[int], bool]
"""(inner steps done) -> whether they are enough."""
OnProgress = Callable[[int, SupportsFloat, int], None]
"""(inner steps done, mean loss of the last one, its predicted tokens), after every inner step. The loss lies on the device:
reading it waits for the device, so a caller that throttles reads only what it shows."""


def never_enough(steps: int) -> bool:
    """Inner steps are done as planned."""
    del steps
    return False
