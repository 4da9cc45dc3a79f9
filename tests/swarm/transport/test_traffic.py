"""Counters of traffic, and from whom it comes."""

import pytest

from adloco_p2p.core.model.scalars import PeerId
from adloco_p2p.swarm.transport import traffic
from adloco_p2p.swarm.transport.traffic import Meter


def test_senders_are_those_since_they_were_last_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(traffic, "MAX_SENDERS", 2)
    meter = Meter()
    for name in "abab":
        meter.note_received(PeerId(name), 10)
    assert meter.take_senders() == {"a", "b"} and meter.received_bytes == 40
    for name in "cde":
        meter.note_received(PeerId(name), 10)
    assert meter.take_senders() == {"c", "d"}, "no more than the limit"
    assert meter.take_senders() == set()
