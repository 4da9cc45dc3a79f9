"""When a device looks at a contribution: in its spare time, and between inner steps where it has none."""

import asyncio
import queue
from collections.abc import Iterator
from typing import Any

import pytest

from adloco_p2p.core.model.assessments import MAX_WAITING_LOOKS, AssessContribution, ContributionAssessed, ShowContribution
from adloco_p2p.core.model.averages import Average
from adloco_p2p.core.model.effects import DiscardRound, Effect, Evaluate, RunInner
from adloco_p2p.core.model.events import Event
from adloco_p2p.core.model.scalars import Digest, InstanceId, PeerId
from adloco_p2p.errors import AveragingError, ContributionNotShown, DeviceError
from adloco_p2p.runtime.node.device_worker import DeviceWorker
from adloco_p2p.runtime.node.looks import Looks
from adloco_p2p.runtime.node.ports import AveragedVector
from tests.runtime.fakes import Calls, FakeCheckpoints, FakeEngine, FakeNetwork, FakePeer, rules
from tests.runtime.test_between_steps import Stepping, inner

ONE = InstanceId(0)
WAIT_LIMIT_SECONDS = 240.0


def asked(round: int = 1) -> AssessContribution:
    return AssessContribution(
        instance=ONE,
        round=round,
        subject=PeerId("subject"),
        state=Digest("5" * 64),
        first_sample=0,
        samples=8,
        unseen_from=64,
    )


def worker_with(*, calls: Calls, events: "queue.Queue[Event | BaseException]", engine: FakeEngine) -> DeviceWorker:
    return DeviceWorker(
        engine=engine,
        checkpoints=FakeCheckpoints(calls),
        states=FakeNetwork(calls),
        post=events.put,
        progress=lambda _: None,
    )


def test_a_device_that_has_nothing_to_do_looks_until_it_has() -> None:
    """A job that comes meanwhile waits for one pass."""
    calls, events = Calls(), queue.Queue[Event | BaseException]()
    worker = worker_with(calls=calls, events=events, engine=FakeEngine(calls))
    calls.reactions["pass 1 contribution others"] = lambda: worker.submit(Evaluate(instance=ONE, round=1))
    worker.submit(DiscardRound(instance=ONE))  # the device has the instance
    worker.look(asked(), "outer", "contribution", "others")
    worker.start()
    found = [events.get(timeout=WAIT_LIMIT_SECONDS) for _ in range(2)]
    assert worker.stop(timeout_seconds=WAIT_LIMIT_SECONDS)
    passes = [f"pass {index} contribution others" for index in range(3)]
    assert calls.names == ["discard 0", *passes[:2], "evaluate 0", passes[2]]
    assert found[1] == ContributionAssessed(asked=asked(), score=4.5)


@pytest.mark.parametrize(
    ("running", "is_looking"),
    [
        (inner(2, is_ahead=False), False),
        (inner(3, is_ahead=False), True),
        (inner(2, is_ahead=True), True),
    ],
)
def test_inner_steps_are_interrupted_only_where_there_was_no_other_time(running: RunInner, is_looking: bool) -> None:
    calls, events = Calls(), queue.Queue[Event | BaseException]()
    worker = worker_with(calls=calls, events=events, engine=Stepping(calls))
    worker.submit(running)
    worker.look(asked(), "outer", "contribution", "others")
    worker.start()
    assert worker.stop(timeout_seconds=WAIT_LIMIT_SECONDS)
    names = calls.names[: calls.names.index(f"run_inner 0 {running.round}")]
    passes, steps = ([name for name in names if name.startswith(kind)] for kind in ("pass", "step"))
    assert len(steps) == 3 and len(passes) == 3 * is_looking, names
    if is_looking:
        assert names[:2] == [passes[0], steps[0]], "one pass between two steps"


def test_a_device_without_memory_or_time_says_so() -> None:
    posted: list[Event] = []
    looks = Looks(posted.append)

    def full() -> Iterator[float | None]:
        raise DeviceError("memory_fraction: too little", code="E502")
        yield

    looks.put(asked(), full)
    assert looks.go_on() and not looks.go_on()
    for number in range(MAX_WAITING_LOOKS + 1):
        looks.put(asked(number), lambda: iter([1.0]))
    while looks.go_on():
        pass
    assert [(event.round, event.score) for event in posted if isinstance(event, ContributionAssessed)] == [
        (1, None),
        (0, None),
        (1, 1.0),
        (2, 1.0),
    ]


def test_while_the_device_is_busy_no_more_looks_wait_than_it_has_room_for() -> None:
    """Also where the oldest is under way, in the other thread, when it goes."""
    posted: list[Event] = []
    looks = Looks(posted.append)

    def interrupted() -> Iterator[float | None]:
        for number in range(1, MAX_WAITING_LOOKS + 2):
            looks.put(asked(number), lambda: iter([1.0]))
        yield 2.0

    looks.put(asked(0), interrupted)
    assert looks.go_on()
    ended = [(event.round, event.score) for event in posted if isinstance(event, ContributionAssessed)]
    assert ended == [(0, None), (1, None)], "before the device has time again"
    while looks.go_on():
        pass
    assert [event.round for event in posted if isinstance(event, ContributionAssessed)] == [0, 1, 2, 3]


def test_a_look_at_an_instance_that_is_gone_is_forgotten() -> None:
    posted: list[Event] = []
    looks = Looks(posted.append)
    looks.put(asked(), lambda: iter([1.0]))
    looks.forget(InstanceId(1))
    looks.forget(ONE)
    assert not looks.go_on() and posted == []
    calls, events = Calls(), queue.Queue[Event | BaseException]()
    worker = worker_with(calls=calls, events=events, engine=FakeEngine(calls))
    worker.look(asked(), "outer", "contribution", "others")
    worker.start()
    assert worker.stop(timeout_seconds=WAIT_LIMIT_SECONDS) and calls.names == [], "it is on no device"


@pytest.mark.parametrize(
    ("error", "looked_at", "score"),
    [
        (None, 1, 4.5),
        (ContributionNotShown("it showed nothing"), 1, 0.0),
        (AveragingError("not here"), 1, None),
        (None, None, None),
    ],
)
def test_the_node_fetches_and_scores_and_reports_why_it_could_not(
    error: AveragingError | None, looked_at: int | None, score: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    peer = FakePeer(rules(rounds=2))
    peer.engine.looked_at = looked_at
    found: list[ContributionAssessed] = []
    is_found, handle = asyncio.Event(), peer.node.peer.handle
    averaging = peer.node._ports.averaging
    average = averaging.average

    def fail() -> None:
        if error is not None:
            raise error

    peer.calls.reactions["contribution subject"] = fail

    def noting(event: Event, now: float) -> list[Effect]:
        if isinstance(event, ContributionAssessed):
            found.append(event)
            is_found.set()
        return handle(event, now)

    async def late(effect: Average, vector: str, **details: Any) -> AveragedVector:
        if effect.round == 1:  # until then the device has nothing else to do
            await asyncio.wait_for(is_found.wait(), WAIT_LIMIT_SECONDS)
        return await average(effect, vector, **details)

    monkeypatch.setattr(peer.node.peer, "handle", noting)
    monkeypatch.setattr(averaging, "average", late)

    async def run() -> None:
        peer.node.attach(asyncio.get_running_loop())
        peer.node._perform(ShowContribution(instance=ONE, round=1, assessors=(PeerId("a"), PeerId("b"))))
        await peer.node.run(peer.started)

    def ask() -> None:
        if "run_inner 0 0" in peer.calls.names and "contribution subject" not in peer.calls.names and not found:
            peer.node._call_soon(peer.node._perform, asked())

    peer.calls.reactions["evaluate 0"] = ask

    asyncio.run(run())
    assert "show 1 a b" in peer.calls.names
    assert [event.score for event in found] == [score]
