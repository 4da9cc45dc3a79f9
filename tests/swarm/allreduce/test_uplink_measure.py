"""What a host believes of its uplink, by the reports of those that got its parts."""

import pytest

from adloco_p2p.swarm.allreduce.allreduce_spec import Part
from adloco_p2p.swarm.allreduce.handshake import THROUGHPUT
from adloco_p2p.swarm.allreduce.uplink_measure import UplinkMeasure

PARTS = (Part(index=0, first=0, size=100, offset=0, num_bytes=400, num_sent_bytes=400),)


@pytest.mark.parametrize(
    ("seconds", "rate"),
    [
        ((), 0.0),
        ((2.0,), 100.0),
        ((2.0, 2.0, 2.0), 300.0),  # the three ways share the uplink
        ((2.0, 2.0, 1e9), 300.0),  # one reducer that lies, or has a slow link itself
        ((2.0, 1e9), 200.0),
    ],
)
def test_no_reducer_alone_makes_an_uplink_seem_slow(seconds: tuple[float, ...], rate: float) -> None:
    measure = UplinkMeasure()
    for each in seconds:
        measure.note(THROUGHPUT.pack(200, each), PARTS)
    assert measure.bytes_per_second == pytest.approx(rate)


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_an_upload_that_is_cut_off_is_measured_while_it_sends_and_not_while_it_waits() -> None:
    clock = Clock()
    measure = UplinkMeasure(clock)
    first, second, third = (measure.new_way() for _ in range(3))
    assert measure.sending_rate == 0.0
    for way in (first, second):
        with way.sending(600):
            clock.now += 3.0
    assert measure.sending_rate == pytest.approx(1200 / 3.0)
    clock.now += 1000.0  # each waits for averaged parts, that is for other members
    assert measure.sending_rate == pytest.approx(1200 / 3.0)
    with third.sending(600):  # its reducer does not read
        clock.now += 1000.0
        assert measure.sending_rate == pytest.approx(1200 / 3.0)
        with first.sending(600), second.sending(600):  # the uplink itself stands still
            clock.now += 997.0
            assert measure.sending_rate == pytest.approx(1200 / 1000.0)


def test_an_upload_that_was_cut_off_at_once_measures_nothing() -> None:
    clock = Clock()
    measure = UplinkMeasure(clock)
    with measure.new_way().sending(600):
        clock.now += 1.9
    assert measure.sending_rate == 0.0
