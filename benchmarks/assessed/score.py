"""Whether a contribution was trained on given rows: by how much further it lowers the loss there than on unseen rows."""

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Marks = npt.NDArray[np.bool_]


def plain_score(drops: Floats, is_given: Marks) -> float:
    """By how many standard errors the mean fall of the loss, `drops` [rows], is larger on the rows given than on the others; 0
    where no loss moved."""
    given, unseen = drops[is_given], drops[~is_given]
    error = float(np.sqrt(given.var(ddof=1) / len(given) + unseen.var(ddof=1) / len(unseen)))
    return float(given.mean() - unseen.mean()) / error if error > 0 else 0.0


def adjusted_score(drops: Floats, common: Floats, is_given: Marks) -> float:
    """The same of what `common` [rows], the fall of the loss by the mean contribution of the other hosts, does not explain: a
    row that is easy to improve is so for every contribution. Student's t of `is_given` in a linear regression."""
    explained = np.stack([np.ones_like(drops), common], axis=1)
    rest = np.stack([drops, is_given.astype(np.float64)], axis=1)
    rest -= explained @ np.linalg.lstsq(explained, rest, rcond=None)[0]
    drop, given = rest.T
    slope = float(drop @ given) / float(given @ given)
    variance = float(((drop - slope * given) ** 2).sum()) / (len(drops) - 3) / float(given @ given)
    return slope / variance**0.5 if variance > 0 else 0.0
