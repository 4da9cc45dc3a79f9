"""Whether a contribution was trained on given rows: by how much further it lowers the loss there than on rows that no host saw.

docs/results/robustness.md ("Contributions looked at") has what this score is for honest and for idle hosts.
"""

import numpy as np
import numpy.typing as npt
import torch

Floats = npt.NDArray[np.float64]
Marks = npt.NDArray[np.bool_]
LEAST_ROWS = 4
"""Rows that a regression on three variables needs, to have an error."""


def assessment_score(drops: Floats, common: Floats, is_given: Marks) -> float:
    """By how many standard errors the fall of the loss, `drops` [rows], is larger on the rows given, beyond what `common`, the
    fall by the mean contribution of the other hosts, explains: a row that is easy to improve is so for every contribution.
    Student's t of `is_given` in a linear regression; 0 where nothing can be told.

    `drops` that are not finite are of parameters that no training leads to: 0. Where `common` is not, it explains nothing.
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
    if spread <= np.finfo(np.float64).eps * len(given):  # rows of one kind, or `common` marks them
        return 0.0
    slope = float(drop @ given) / spread
    variance = float(((drop - slope * given) ** 2).sum()) / (len(drops) - 3) / spread
    return slope / variance**0.5 if variance > 0 else 0.0


def mean_of_others(
    averaged: torch.Tensor, contribution: torch.Tensor, *, coefficient: float, total: float, is_scratch: bool = False
) -> torch.Tensor:
    """The average [P] without one contribution [P], which is in it with `coefficient` of `total`, the sum of all; a new vector,
    or in the memory of the average where that `is_scratch`, float32. Where the average loses values on its way (`sign`), this
    does, too."""
    assert 0 <= coefficient < total, (coefficient, total)
    others = averaged if is_scratch else averaged.to(torch.float32, copy=True)
    if coefficient:
        others.sub_(contribution, alpha=coefficient).mul_(total / (total - coefficient))
    return others
