"""A round whose aggregation rule left hosts out."""

from dataclasses import replace

import pytest

from adloco_p2p.core.averaging.adaptive_timeout import AdaptiveTimeout
from adloco_p2p.core.averaging.outer_round import OuterRound
from adloco_p2p.core.averaging.phases import Phase
from adloco_p2p.core.model.averages import Average
from adloco_p2p.core.model.events import OuterApplied
from adloco_p2p.core.model.report import InstanceReport
from adloco_p2p.core.model.scalars import Digest, PeerId
from tests.core.averaging.test_outer_round import INSTANCE, A, B, C, D, averaging, finished

ZERO = Digest("0" * 64)


def reported(outer: OuterRound, *left_out: PeerId) -> InstanceReport:
    """The report of a round that ended with an average of which these were left out."""
    outer.average = replace(finished(outer, A, B, C, D), left_out=left_out)
    outer.applied = OuterApplied(instance=INSTANCE, round=outer.round, digest=ZERO, state_digest=ZERO)
    outer.phase = Phase.DONE
    return outer.report()


@pytest.mark.parametrize(
    ("left_out", "has_worked", "bits"), [((), True, 0b1111), ((B,), True, 0b1101), ((A, D), False, 0b0110)]
)
def test_work_that_was_left_out_does_not_count(left_out: tuple[PeerId, ...], has_worked: bool, bits: int) -> None:
    outer = averaging(A, B, C, D, adaptive_timeout=AdaptiveTimeout())
    report = reported(outer, *left_out)
    assert outer.is_averaged is has_worked
    assert (report.samples > 0, report.pseudo_gradient is not None) == (has_worked, has_worked)
    assert report.contributors == bits, "one bit per planned host, in the plan's order"
    assert report.left_out == 0b1111 & ~bits


def test_an_average_is_asked_for_with_the_planned_steps() -> None:
    outer = averaging(A, B, C, adaptive_timeout=AdaptiveTimeout())
    asked = outer.attempts.average()
    assert isinstance(asked, Average)
    assert asked.steps == tuple(share.inner_steps for share in outer.instance_plan.hosts)
