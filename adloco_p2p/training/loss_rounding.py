"""Losses that rounding makes negative, as it does to one minus a cosine. Reports hold no negative loss."""

LOSS_ROUNDING = 1e-6
"""A loss that is no further below 0 counts as 0."""


def without_rounding(loss: float) -> float:
    """Return the loss, or 0 for one that only rounding makes negative."""
    return 0.0 if -LOSS_ROUNDING <= loss < 0 else loss
