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
