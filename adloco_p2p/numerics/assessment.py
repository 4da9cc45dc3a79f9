"""The score that shows whether a contribution was trained on given rows: how much further it lowers the loss there than on rows
that no host saw.

docs/results/robustness.md ("Contributions looked at") gives the scores of honest and of idle hosts.
"""

import numpy as np
import numpy.typing as npt
import torch

Floats = npt.NDArray[np.float64]
Marks = npt.NDArray[np.bool_]
LEAST_ROWS = 4
"""The fewest rows for which a regression on three variables leaves a residual to estimate its error from."""


def assessment_score(drops: Floats, common: Floats, is_given: Marks) -> float:
    """Return by how many standard errors the loss falls further on the given rows than on the others.

    This is Student's t of `is_given` in a linear regression of `drops` [rows], the fall of the loss. A second regressor is
    `common` [rows], the fall by the mean contribution of the other hosts: a row that is easy to improve is so for all of them.
    The score is 0 where nothing can be told, and for `drops` that are not finite, because no training leads there. A `common`
    that is not finite is ignored.
    """
    if len(drops) < LEAST_ROWS or not np.isfinite(drops).all():
        return 0.0
    if not np.isfinite(common).all():
        common = np.zeros_like(common)
    explained = np.stack([np.ones_like(drops), common], axis=1)
    rest = np.stack([drops, is_given.astype(np.float64)], axis=1)
    rest -= explained @ np.linalg.lstsq(explained, rest, rcond=None)[0]
    drop, given = rest.T
    spread = float(given @ given)
    if spread <= np.finfo(np.float64).eps * len(given):  # all rows are of one kind, or `common` already separates them
        return 0.0
    slope = float(drop @ given) / spread
    variance = float(((drop - slope * given) ** 2).sum()) / (len(drops) - 3) / spread
    return slope / variance**0.5 if variance > 0 else 0.0


def mean_of_others(
    averaged: torch.Tensor, contribution: torch.Tensor, *, coefficient: float, total: float, is_scratch: bool = False
) -> torch.Tensor:
    """Return the average [P] without one contribution [P], which has `coefficient` of `total` in it, as float32.

    The result overwrites `averaged` where that `is_scratch`. The loss of a lossy codec (`sign`) is missing here, too.
    """
    assert 0 <= coefficient < total, (coefficient, total)
    others = averaged if is_scratch else averaged.to(torch.float32, copy=True)
    if coefficient:
        others.sub_(contribution, alpha=coefficient).mul_(total / (total - coefficient))
    return others
