"""The score of `numerics/assessment.py` without its regression, to show what the regression gains."""

import numpy as np

from adloco_p2p.numerics.assessment import Floats, Marks


def plain_score(drops: Floats, is_given: Marks) -> float:
    """Return by how many standard errors the mean fall of the loss, `drops` [rows], is larger on the given rows than on the
    others; 0 where no loss moved."""
    given, unseen = drops[is_given], drops[~is_given]
    error = float(np.sqrt(given.var(ddof=1) / len(given) + unseen.var(ddof=1) / len(unseen)))
    return float(given.mean() - unseen.mean()) / error if error > 0 else 0.0
