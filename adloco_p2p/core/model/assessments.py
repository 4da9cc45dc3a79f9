"""Assessments: does a contribution show that its host trained on the rows that the plan gave it?

After the average of a round, one contributor, the subject, and three assessors are drawn (`core/model/measurers.py`). Each
assessor fetches the contribution and measures how much further it lowers the loss of the subject's rows than that of rows that
no host was given yet. `core/planning/assessment.py` has the consequences of scores that agree.
"""

import hashlib
from dataclasses import dataclass
from itertools import pairwise
from math import isfinite, sqrt
from typing import Annotated

from annotated_types import Ge, Le, MaxLen

from adloco_p2p.core.model.complaints import Place
from adloco_p2p.core.model.scalars import Count, Digest, InstanceId, PeerId

ASSESSORS = 3
"""Assessors of one contribution. A score counts if two of them agree."""
ROWS = 64
"""Most rows of either kind that an assessor evaluates: rows that the subject was given, and rows that no host was given yet."""
MOST_TENTHS = 500
"""Scores are clamped to this absolute value: 50 standard errors."""
MAX_WAITING_LOOKS = 2
"""The most looks that wait for a device, each with vectors as large as the model."""
MAX_LOOKS = 4
"""Most looks per instance whose scores a plan waits for."""

ScoreTenths = Annotated[int, Ge(-MOST_TENTHS), Le(MOST_TENTHS)]
"""A score in tenths of a standard error. It is a whole number because peers must compute with scores exactly."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Assessment:
    """A score in a report; the subject is named by its place in the reported plan."""

    round: Count
    """Round of the average, before that of the report."""
    subject: Place
    score: ScoreTenths
    """0 if the subject showed nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """A look in a plan: the contribution, its assessors, and the scores that have come in."""

    round: Count
    """Round of the average."""
    subject: PeerId
    assessors: Annotated[tuple[PeerId, ...], MaxLen(ASSESSORS)]
    scores: Annotated[tuple[ScoreTenths | None, ...], MaxLen(ASSESSORS)]
    """Scores in the order of the assessors; None for one that has not reported yet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AssessContribution:
    """Effect: fetch the subject's contribution to the average of `round` in the background, and score it between other jobs of
    the device. `ContributionAssessed` answers it. The average, and the outer parameters before the step, are those of the outer
    step that this peer applied last in this instance."""

    instance: InstanceId
    round: int
    subject: PeerId
    state: Digest
    """Root of the state after the round. It seeds the draw of the rows, so all assessors draw the same."""
    first_sample: int
    """Start of the rows that the plan gave the subject, in the instance's sample order."""
    samples: int
    """Number of rows that the plan gave the subject."""
    unseen_from: int
    """First row that no host was given in this round or an earlier one."""
    reads: tuple[InstanceId, ...] = ()
    """Own data sets of the instance, from its plan: the rows come from the data that it trains on."""

    @property
    def given_rows(self) -> tuple[int, ...]:
        """Return up to ROWS places, ascending, of rows that the subject was given, in the instance's sample order."""
        return drawn_places(f"{self.state}:given", self.first_sample, self.samples, ROWS)

    @property
    def unseen_rows(self) -> tuple[int, ...]:
        """Return ROWS places, ascending, of rows that no host was given yet, from a range as long as the subject's but at least
        ROWS."""
        return drawn_places(f"{self.state}:unseen", self.unseen_from, max(self.samples, ROWS), ROWS)

    def tenths(self, score: float) -> int:
        """Return the score as reports have it, in tenths; 0 if it is not finite. Because a score grows with the square root of
        the number of rows, it is scaled to that of a subject with ROWS rows or more."""
        if not isfinite(score):
            return 0
        given = min(self.samples, ROWS)
        full = score * sqrt((given + ROWS) / (2 * given))  # both numbers of rows count as their harmonic mean
        return round(max(-MOST_TENTHS, min(MOST_TENTHS, 10 * full)))


@dataclass(frozen=True, slots=True, kw_only=True)
class ShowContribution:
    """Effect on the subject: let each assessor, and no other peer, fetch its contribution to the average of `round` once."""

    instance: InstanceId
    round: int
    assessors: tuple[PeerId, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ContributionAssessed:
    """Event: the end of an `AssessContribution`."""

    asked: AssessContribution
    score: float | None
    """Student's t of "given" in a linear regression of how far the losses of the rows fall (docs/results/robustness.md); 0 if
    the subject showed nothing, None if this peer could not measure it."""
    reason: str = ""
    """Why the contribution was not shown or not measured."""

    @property
    def instance(self) -> InstanceId:
        return self.asked.instance

    @property
    def round(self) -> int:
        return self.asked.round


def drawn_places(of: str, first: int, count: int, number: int) -> tuple[int, ...]:
    """Cut the range of `count` places from `first` on into up to `number` equal parts, and draw one place of each by the lot
    `of`. The result is ascending."""
    parts = min(count, number)
    bounds = [first + part * count // parts for part in range(parts)] + [first + count]
    return tuple(begin + _drawn(f"{of}:{begin}", end - begin) for begin, end in pairwise(bounds))


def _drawn(of: str, count: int) -> int:
    return int.from_bytes(hashlib.sha256(of.encode()).digest()[:8], "big") % count
