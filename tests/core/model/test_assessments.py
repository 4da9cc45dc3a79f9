"""The rows that are looked at, and how a score is reported."""

from dataclasses import replace

import pytest

from adloco_p2p.core.model.assessments import MOST_TENTHS, ROWS, AssessContribution, drawn_places
from adloco_p2p.core.model.scalars import Digest, InstanceId, PeerId

ASKED = AssessContribution(
    instance=InstanceId(0),
    round=3,
    subject=PeerId("p000"),
    state=Digest("a" * 64),
    first_sample=1000,
    samples=256,
    unseen_from=5000,
)


def test_rows_are_drawn_among_those_of_the_subject_and_those_after_the_plan() -> None:
    given, unseen = ASKED.given_rows, ASKED.unseen_rows
    assert len({*given}) == len({*unseen}) == ROWS
    assert 1000 <= given[0] < given[-1] < 1256 and 5000 <= unseen[0] < unseen[-1] < 5256
    other = replace(ASKED, state=Digest("b" * 64))
    assert other.given_rows != given and other.unseen_rows != unseen, "nobody knows them before the step"
    assert replace(ASKED, subject=PeerId("p001")).given_rows == given


def test_of_few_rows_all_are_looked_at() -> None:
    few = replace(ASKED, samples=9)
    assert few.given_rows == tuple(range(1000, 1009)) and len(few.unseen_rows) == ROWS
    assert drawn_places("lot", 7, 1, 64) == (7,)


def test_every_row_is_drawn_about_as_often() -> None:
    drawn = [place for index in range(2000) for place in drawn_places(f"lot {index}", 0, 10, 4)]
    assert all(600 <= drawn.count(place) <= 1400 for place in range(10))


@pytest.mark.parametrize(
    ("score", "samples", "tenths"),
    [
        (3.14, 256, 31),
        (3.14, 64, 31),
        (-0.26, 256, -3),
        (2.0, 16, 32),  # sqrt((16 + 64) / (2 * 16)) times
        (1e9, 256, MOST_TENTHS),
        (float("-inf"), 256, 0),
        (float("nan"), 256, 0),
    ],
)
def test_scores_are_rounded_bounded_and_comparable_whatever_the_rows(score: float, samples: int, tenths: int) -> None:
    assert replace(ASKED, samples=samples).tenths(score) == tenths
