"""Clocks are compared and told; the first counted contribution is told once."""

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import pytest

from adloco_p2p.core.model import telemetry
from adloco_p2p.core.model.averages import Average
from adloco_p2p.core.model.scalars import Digest, InstanceId, PeerId
from adloco_p2p.errors import AveragingError, SwarmError
from adloco_p2p.runtime.adapters.first_contribution import ContributionSink, process_start
from adloco_p2p.runtime.adapters.swarm_ports import NetworkAveraging
from adloco_p2p.swarm.discovery import peer_maintenance, reachability
from adloco_p2p.swarm.discovery.join import RunConnections
from adloco_p2p.swarm.discovery.peer_maintenance import PeerMaintenance
from adloco_p2p.swarm.discovery.reachability import ClockReading
from tests.views.synthetic import events, stamped

RUN = Digest("ab" * 32)
FORMER = PeerId("former")
"""Had a seat, and has none."""


class FakeHost:
    p2p = None

    async def peers_connected(self):
        return ("a", "b", "mute", "bootstrap")


def maintenance(
    *, roster: Callable[[], Iterable[PeerId]] = list, write: Callable[[telemetry.Log], None] = lambda _: None
) -> PeerMaintenance:
    host: Any = FakeHost()
    no_discovery: Any = None
    return PeerMaintenance(
        host, no_discovery, run=RUN, roster=lambda: list(roster()), members=lambda: [*roster(), FORMER], write=write
    )


def test_a_wrong_clock_is_reported_once_when_it_begins_and_once_when_it_ends(monkeypatch):
    """Four surveys: right, 100 s behind twice, right."""
    offsets = iter([0.0, 100.0, 100.0, 0.0])
    current = [0.0]
    surveys: list[telemetry.Clock] = []
    told: list[Any] = []

    async def ping(p2p, peer):
        assert peer != "bootstrap"  # not of this run
        if peer == "mute":
            raise SwarmError("does not answer")
        return ClockReading(offset_seconds=current[0], round_trip_seconds=0.2, protocol=1, run=RUN, observed="")

    async def pause(seconds):
        try:
            current[0] = next(offsets)
        except StopIteration:
            raise asyncio.CancelledError from None

    def write(event):
        (surveys if isinstance(event, telemetry.Clock) else told).append(event)

    monkeypatch.setattr(reachability, "ping", ping)
    monkeypatch.setattr(asyncio, "sleep", pause)
    near = maintenance(roster=lambda: map(PeerId, ("a", "b", "gone", "mute")), write=write)
    with pytest.raises(asyncio.CancelledError):
        asyncio.run(near.compare_clocks())
    assert [survey.offset_seconds for survey in surveys] == [0.0, 100.0, 100.0, 0.0]
    assert all(survey.peers == ("a", "b") and survey.uncertainty_seconds == 0.1 for survey in surveys)
    assert [(warning.key, warning.active) for warning in told] == [("clock", True), ("clock", False)]
    assert "100.0 s" in told[0].message and "behind" in told[0].message


def test_the_warning_about_a_connection_names_the_peer(monkeypatch):
    """Screens and `status` show the message alone."""
    a, stranger = PeerId("a"), PeerId("stranger")
    found: list[dict[PeerId, str]] = [{a: "dial backoff", stranger: "no route"}, {}]
    rounds = iter(found)
    told: list[Any] = []

    async def connect(*_, should_retry, members):
        assert members == [a, FORMER]
        try:
            return RunConnections(connected=(), unreached=next(rounds), records=())
        except StopIteration:
            raise asyncio.CancelledError from None

    async def look(*_):
        pass

    async def pause(_):
        pass

    monkeypatch.setattr(peer_maintenance, "connect_to_run", connect)
    monkeypatch.setattr(asyncio, "sleep", pause)
    near = maintenance(roster=lambda: [a], write=told.append)
    monkeypatch.setattr(near._cards, "look", look)
    with pytest.raises(asyncio.CancelledError):
        asyncio.run(near.refresh_connections())
    assert [(warning.key, warning.active) for warning in told] == [("connection to a", True), ("connection to a", False)]
    assert told[0].message == "a cannot be reached from here: dial backoff"


class Written(list):
    def write(self, event):
        self.append(event)


def ended(round, *, samples, hosts):
    made = next(event for event in events() if event["event"] == "round")
    event = stamped(made).event
    assert isinstance(event, telemetry.Round)
    return replace(event, round=round, samples=samples, hosts=hosts)


def test_the_first_round_with_own_work_is_reported_once():
    written = Written()
    sink = ContributionSink(written, me=PeerId("me"), began=10.0, clock=lambda: 24.5)
    sink.write(telemetry.Checkpoint(round=3))
    sink.write(ended(3, samples=0, hosts=("other",)))  # only received
    sink.write(ended(4, samples=8, hosts=("other",)))  # trained, and was left out
    sink.write(ended(5, samples=8, hosts=("me", "other")))
    sink.write(ended(6, samples=8, hosts=("me", "other")))
    told = [event for event in written if isinstance(event, telemetry.FirstContribution)]
    assert told == [telemetry.FirstContribution(round=5, seconds=14.5)]
    assert len(written) == 6


def test_the_start_of_this_process_is_known():
    import time

    import psutil

    before = time.monotonic()
    age_seconds = time.time() - psutil.Process().create_time()
    assert before - age_seconds - 1.5 <= process_start() <= time.monotonic() - age_seconds + 1.5


def test_who_is_known_to_be_out_of_reach_ends_an_attempt_at_once():
    async def scenario():
        near = maintenance()
        a, b, y, z = map(PeerId, "abyz")
        assert await near.out_of_reach([a, z]) == ()
        near._unreached = frozenset({a, y, z})
        assert await near.out_of_reach([a, b, z]) == (z,)  # `a` has connected by itself since
        nothing: Any = None
        averaging = NetworkAveraging(nothing, size=lambda round: 4, out_of_reach=near.out_of_reach, begin=lambda key: True)
        effect = Average(
            instance=InstanceId(0),
            round=0,
            attempt=0,
            key=RUN,
            plan=RUN,
            weights=((a, 3), (z, 4)),
            steps=(1, 1),
            timeout_seconds=60.0,
        )
        with pytest.raises(AveragingError, match="no way from here to z") as raised:
            await averaging.average(effect, nothing, on_decided=lambda _: None, on_not_shown=lambda *_: None)
        assert raised.value.suspects == ("z",)

    asyncio.run(scenario())
