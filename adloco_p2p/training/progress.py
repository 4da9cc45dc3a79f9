"""Callbacks that the runtime gives the inner steps of a round: when they are enough, and where their progress is shown."""

from collections.abc import Callable
from typing import SupportsFloat

IsEnough = Callable[[int], bool]
"""Inner steps done -> whether they are enough."""
OnProgress = Callable[[int, SupportsFloat, int], None]
"""Called after every inner step with the inner steps done, the mean loss of the last one and its predicted tokens. The loss
lies on the device, and reading it waits for the device, so a caller should read only the losses that it shows."""


def never_enough(steps: int) -> bool:
    """Let all planned inner steps be done."""
    del steps
    return False
