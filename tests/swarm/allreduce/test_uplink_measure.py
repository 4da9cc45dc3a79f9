"""What a host believes of its uplink, by the reports of those that got its parts."""

import pytest

from adloco_p2p.swarm.allreduce.allreduce_spec import Part
from adloco_p2p.swarm.allreduce.handshake import THROUGHPUT
from adloco_p2p.swarm.allreduce.uplink_measure import UplinkMeasure
from tests.swarm.clock import Clock

PARTS = (Part(index=0, first=0, size=100, offset=0, num_bytes=400, num_sent_bytes=400),)


@pytest.mark.parametrize(
    ("seconds", "rate"),
    [
        ((), 0.0),
        ((2.0,), 100.0),
        ((2.0, 2.0, 2.0), 300.0),  # the three ways share the uplink
        ((2.0, 2.0, 1e9), 300.0),  # one reducer that lies, or has a slow link itself
        ((2.0, 2.0, 1e-9), 300.0),
        ((2.0, 1e9), 200.0),
    ],
)
def test_no_reducer_alone_makes_an_uplink_seem_slow_or_fast(seconds: tuple[float, ...], rate: float) -> None:
    measure = UplinkMeasure()
    for each in seconds:
        measure.note(THROUGHPUT.pack(200, each), PARTS, waited_seconds=0.0)
    assert measure.bytes_per_second == pytest.approx(rate)


@pytest.mark.parametrize("lie", [5e-324, 1e-300, 1e-12])
@pytest.mark.parametrize("num_liars", [1, 2, 3])
def test_times_that_no_link_needs_do_not_enter_the_rate(lie: float, num_liars: int) -> None:
    """With 5e-324 s of half of the paths it was infinite, and no report could be written."""
    measure = UplinkMeasure()
    for seconds in (2.0, 2.0, *[lie] * num_liars):
        measure.note(THROUGHPUT.pack(200, seconds), PARTS, waited_seconds=0.0)
    assert measure.bytes_per_second == pytest.approx(100.0 * (2 + num_liars)), "what the liars got has used the uplink"


def test_where_all_state_times_that_no_link_needs_nothing_is_measured() -> None:
    measure = UplinkMeasure()
    measure.note(THROUGHPUT.pack(200, 5e-324), PARTS, waited_seconds=0.0)
    assert measure.bytes_per_second == 0.0


@pytest.mark.parametrize("sizes", [(100, 100, 400), (100, 400, 400), (50, 200, 400), (1, 399, 400, 400), (300, 300)])
def test_reducers_with_unequal_parts_measure_the_same_uplink(sizes: tuple[int, ...]) -> None:
    """300 bytes a second, shared evenly by the paths that still have something to send."""
    measure, now, done = UplinkMeasure(), 0.0, 0
    for place, size in enumerate(sizes):
        now += (size - done) * (len(sizes) - place) / 300.0
        done = size
        measure.note(THROUGHPUT.pack(size, now), PARTS, waited_seconds=0.0)
    assert measure.bytes_per_second == pytest.approx(300.0, rel=1e-3)


def test_reducers_that_began_to_read_late_do_not_make_an_uplink_seem_fast() -> None:
    """200 bytes to each of three, in two seconds; two of them know no rate, but what they got has used the uplink."""
    measure = UplinkMeasure()
    for _ in range(2):
        measure.note(THROUGHPUT.pack(200, 0.1), PARTS, waited_seconds=1.9)
    assert measure.bytes_per_second == 0.0
    measure.note(THROUGHPUT.pack(200, 2.0), PARTS, waited_seconds=0.4)
    assert measure.bytes_per_second == pytest.approx(300.0)


@pytest.mark.parametrize(("waited", "seconds", "rate"), [(10.0, 30.0, 10.0), (0.2, 0.1, 3000.0)])
def test_a_slow_uplink_is_measured_although_all_others_are_later_and_a_short_upload_behind_a_long_round_trip(
    waited: float, seconds: float, rate: float
) -> None:
    measure = UplinkMeasure()
    measure.note(THROUGHPUT.pack(300, seconds), PARTS, waited_seconds=waited)
    assert measure.bytes_per_second == pytest.approx(rate)


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
