"""Whatever a peer measures, others can read its reports."""

from dataclasses import replace
from math import inf

import pytest

from adloco_p2p.core.model import canonical
from adloco_p2p.core.model.events import AverageFinished, Event, InnerFinished
from adloco_p2p.core.model.report import Report
from adloco_p2p.core.model.report_form import MAX_REPORT_BYTES
from adloco_p2p.core.model.scalars import LARGEST_SCALAR, PeerId
from adloco_p2p.decode import decode
from tests.core.peer.story import PEER0, Story, rules


class Measured:
    """Two peers of which the first measures this uplink, and this time of its inner steps."""

    def __init__(self, *, uplink: float, seconds: float) -> None:
        self.story = Story(rules=rules(rounds=4), peers=2, hears=self._hears)
        self._uplink, self._seconds = uplink, seconds

    def _hears(self, peer: PeerId, event: Event) -> bool:
        changed = event
        if isinstance(event, AverageFinished):
            changed = replace(event, upload_bytes_per_second=self._uplink)
        elif isinstance(event, InnerFinished):
            changed = replace(event, result=replace(event.result, seconds=self._seconds))
        if peer != PEER0 or changed == event:
            return True
        self.story.at(self.story.world.time, self._feed, peer, changed)
        return False

    def _feed(self, peer: PeerId, event: Event) -> None:
        machine = self.story.machine(peer)
        assert machine.process is not None
        machine.feed(event, machine.process)


@pytest.mark.parametrize(("uplink", "seconds"), [(inf, 1.0), (1e304, 1.0), (1.0, 5e-324), (1.0, 1e-40)])
def test_a_rate_beyond_all_bounds_makes_no_report_that_others_refuse(uplink: float, seconds: float) -> None:
    """An infinite rate ended the node that measured it; a finite one made reports, ledgers and checkpoints unreadable."""
    story = Measured(uplink=uplink, seconds=seconds).story.play()
    reports = [report for report in story.machine(PEER0).reported if report.round < 4]
    for report in reports:
        assert decode(Report, canonical.encode(report), max_bytes=MAX_REPORT_BYTES) == report
    capacity = reports[-1].capacity
    assert LARGEST_SCALAR in (capacity.upload_bytes_per_second, capacity.samples_per_second)
