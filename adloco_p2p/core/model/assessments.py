"""Contributions looked at: whether a contribution shows that its host trained on the rows that the plan gave it.

After the average of a round one contributor, the subject, and three assessors are drawn (`core/model/measurers.py`). Each
assessor fetches the contribution, and measures by how much further it lowers the loss of given rows than of rows that no host
was given yet. `core/planning/assessment.py` has the consequences of the scores that agree.
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
"""They look at one contribution. A score counts where two of them agree."""
ROWS = 64
"""So many rows that no host was given yet are looked at, and as many of the given ones, if there are so many."""
MOST_TENTHS = 500
"""A score of more counts for this: 50 standard errors."""
MAX_LOOKS = 4
"""Looks of one instance whose scores a plan waits for."""

ScoreTenths = Annotated[int, Ge(-MOST_TENTHS), Le(MOST_TENTHS)]
"""A score in tenths. Whole numbers: peers compare scores, and compute with them, exactly."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Assessment:
    """In a report, by places of the plan that it is about."""

    round: Count
    """Of the average; before that of the report."""
    subject: Place
    score: ScoreTenths
    """0 where the subject showed nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """In a plan: a contribution that is looked at, and the scores that have come in."""

    round: Count
    """Of the average."""
    subject: PeerId
    assessors: Annotated[tuple[PeerId, ...], MaxLen(ASSESSORS)]
    scores: Annotated[tuple[ScoreTenths | None, ...], MaxLen(ASSESSORS)]
    """By assessor; none where it has not reported it yet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AssessContribution:
    """Effect: fetch the subject's contribution to the average of `round`, beside everything else, and score it between other
    jobs of the device. Answered by `ContributionAssessed`. The outer parameters before the step, and the average, are those of
    the outer step that this peer applied last in this instance."""

    instance: InstanceId
    round: int
    subject: PeerId
    state: Digest
    """Root of the state after the round: it draws the rows, the same for all assessors."""
    first_sample: int
    """Where the rows that the plan gave the subject begin in the instance's sample order, ..."""
    samples: int
    """... and how many they are."""
    unseen_from: int
    """From here on no host was given rows in this round or an earlier one."""
    reads: tuple[InstanceId, ...] = ()
    """As in the instance's plan: the rows are of the data that it trains on."""

    @property
    def given_rows(self) -> tuple[int, ...]:
        """Places in the instance's sample order of up to ROWS rows that the subject was given, ascending."""
        return drawn_places(f"{self.state}:given", self.first_sample, self.samples, ROWS)

    @property
    def unseen_rows(self) -> tuple[int, ...]:
        """The same of ROWS rows that no host was given yet, out of as many as the subject was given, and at least ROWS."""
        return drawn_places(f"{self.state}:unseen", self.unseen_from, max(self.samples, ROWS), ROWS)

    def tenths(self, score: float) -> int:
        """As reports have it: as if the subject had been given ROWS rows or more, since a score grows with the root of the
        rows. 0 of what is not a number."""
        if not isfinite(score):
            return 0
        given = min(self.samples, ROWS)
        full = score * sqrt((given + ROWS) / (2 * given))  # the rows count as the harmonic mean of both numbers
        return round(max(-MOST_TENTHS, min(MOST_TENTHS, 10 * full)))


@dataclass(frozen=True, slots=True, kw_only=True)
class ShowContribution:
    """Effect: this peer is the subject. Let the assessors, and nobody else, fetch its contribution to the average of `round`,
    once each."""

    instance: InstanceId
    round: int
    assessors: tuple[PeerId, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ContributionAssessed:
    """Event: the end of an `AssessContribution`."""

    asked: AssessContribution
    score: float | None
    """Student's t of "given" in a linear regression of the falls of the rows' losses (docs/results/robustness.md); 0 where the
    subject showed nothing. None where this peer could not measure it."""
    reason: str = ""
    """Why nothing was shown, or measured."""

    @property
    def instance(self) -> InstanceId:
        return self.asked.instance

    @property
    def round(self) -> int:
        return self.asked.round


def drawn_places(of: str, first: int, count: int, number: int) -> tuple[int, ...]:
    """Up to `number` of the `count` places from `first` on, ascending: one of each of as many equal parts, by the lot `of`."""
    parts = min(count, number)
    bounds = [first + part * count // parts for part in range(parts)] + [first + count]
    return tuple(begin + _drawn(f"{of}:{begin}", end - begin) for begin, end in pairwise(bounds))


def _drawn(of: str, count: int) -> int:
    return int.from_bytes(hashlib.sha256(of.encode()).digest()[:8], "big") % count
