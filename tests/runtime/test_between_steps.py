"""What may happen between two inner steps: the end of the instance's last round, in order, and nothing else."""

import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest

from adloco_p2p.core.model.effects import (
    ApplyOuter,
    DeviceEffect,
    DiscardRound,
    EndInner,
    Evaluate,
    Probe,
    RunInner,
    SaveCheckpoint,
    SaveInstance,
    Transition,
)
from adloco_p2p.core.model.events import (
    DeviceEnd,
    Durable,
    Evaluated,
    Event,
    InnerFinished,
    OuterApplied,
    Probed,
    TransitionApplied,
)
from adloco_p2p.core.model.lineage import Merge, ProbeVerdict
from adloco_p2p.core.model.scalars import InstanceId
from adloco_p2p.core.model.telemetry import Log, SampleText
from adloco_p2p.core.planning.round_plan import genesis
from adloco_p2p.runtime.node.device_worker import DeviceWorker
from tests.runtime.fakes import CAPACITY, ME, RUN, Calls, FakeAverage, FakeCheckpoints, FakeEngine, FakeNetwork, rules

ONE, TWO = InstanceId(0), InstanceId(1)
WAIT_LIMIT_SECONDS = 240.0


@dataclass
class Stepping(FakeEngine):
    """Three inner steps, or as many as there must be until something was called."""

    until: str = ""

    def steps(self, effect: RunInner, should_stop: Callable[[], bool], is_enough: Callable[[int], bool]) -> bool:
        for step in range(3):
            if is_enough(step):
                break
            if should_stop():
                return False
            self.calls.note("step", step)
        deadline = time.monotonic() + WAIT_LIMIT_SECONDS
        while self.until and self.until not in self.calls.names:
            assert not should_stop() and time.monotonic() < deadline, self.calls.names
        return True

    def probe_merge(self, merge: Merge) -> ProbeVerdict:
        return ProbeVerdict(sources=merge.sources, target=merge.target, source_losses=(2.0, 2.0), merged_loss=1.9)


def performed(
    *effects: DeviceEffect,
    until: str = "",
    calls: Calls | None = None,
    progress: Callable[[Log], None] = lambda _: None,
    meanwhile: tuple[str, Callable[[DeviceWorker], None]] | None = None,
) -> tuple[list[str], list[Event]]:
    """What the worker asks of its rooms, and posts, if all effects were there before it began. `meanwhile`: a call, and what is
    asked of the worker after it, before its end is."""
    calls, events, is_asked = calls or Calls(), queue.Queue[Event | BaseException](), threading.Event()
    network = FakeNetwork(calls)
    worker = DeviceWorker(
        engine=Stepping(calls, until=until),
        checkpoints=FakeCheckpoints(calls),
        states=network,
        post=events.put,
        progress=progress,
    )

    def ask_meanwhile() -> None:
        assert meanwhile is not None
        meanwhile[1](worker)
        is_asked.set()

    if meanwhile is not None:
        calls.afterwards[meanwhile[0]] = ask_meanwhile
    for effect in effects:
        worker.submit(effect)
    for number in (0, 1):
        worker.put_average(ONE, number, FakeAverage("average of pseudo-gradient 0"))
    worker.start()
    if meanwhile is not None:
        assert_set(is_asked)
    assert worker.stop(timeout_seconds=WAIT_LIMIT_SECONDS)
    posted: list[Event] = []
    while not events.empty():
        event = events.get_nowait()
        assert not isinstance(event, BaseException), event
        posted.append(event)
    return calls.names, posted


def inner(number: int, *, is_ahead: bool) -> RunInner:
    plan = genesis(RUN, [(ME, CAPACITY)], rules()).instances[0]
    return RunInner(round=number, plan=plan, share=plan.hosts[0], progress_start=0.0, progress_end=1.0, is_ahead=is_ahead)


END_OF_ROUND_0 = (
    ApplyOuter(instance=ONE, round=0),
    Evaluate(instance=ONE, round=0),
    SaveInstance(instance=ONE, round=1),
    SaveCheckpoint(durable=Durable(round=1, plans=())),
)
STEPS = ["step 0", "step 1", "step 2", "run_inner 0 1"]


def test_inner_steps_that_did_not_wait_let_the_last_round_end() -> None:
    """The outer step beside them, the rest between two of them; all of it before their own end."""
    names, events = performed(inner(1, is_ahead=True), *END_OF_ROUND_0, until="snapshot 0")
    ends = [name for name in names if not name.startswith(("step", "save_instance", "complete"))]  # these in other threads
    assert ends == ["apply_outer 0", "offer 0 1", "evaluate 0", "snapshot 0", "run_inner 0 1"]
    assert [type(event) for event in events] == [OuterApplied, Evaluated, InnerFinished]
    assert all(event.seconds is not None for event in events if isinstance(event, OuterApplied | Evaluated))


def test_an_evaluation_shows_the_texts_that_the_engine_writes() -> None:
    shown: list[Log] = []
    performed(Evaluate(instance=ONE, round=3), progress=shown.append)
    assert shown == [SampleText(round=3, instance=ONE, prompt="The ", text="end of 0")]


def test_other_inner_steps_are_not_interrupted() -> None:
    names, _ = performed(inner(1, is_ahead=False), *END_OF_ROUND_0)
    assert names[:4] == STEPS


def test_other_work_waits_its_turn_and_what_comes_after_it_too() -> None:
    names, _ = performed(inner(1, is_ahead=True), Evaluate(instance=TWO, round=0), *END_OF_ROUND_0)
    assert names[:5] == [*STEPS, "evaluate 1"]


@pytest.mark.parametrize("is_ahead", [False, True])
def test_inner_steps_that_are_discarded_end_after_the_present_one(is_ahead: bool) -> None:
    """Those of the next round, and of another instance, do not."""
    discard = DiscardRound(instance=ONE)
    names, events = performed(inner(1, is_ahead=is_ahead), meanwhile=("step 1", lambda worker: worker.submit(discard)))
    assert names == ["step 0", "step 1", "discard 0"] and events == []
    names, _ = performed(inner(1, is_ahead=is_ahead), DiscardRound(instance=ONE), inner(2, is_ahead=False))
    assert names == ["discard 0", "step 0", "step 1", "step 2", "run_inner 0 2"]
    names, events = performed(DiscardRound(instance=ONE), inner(1, is_ahead=is_ahead), DiscardRound(instance=ONE))
    assert names == ["discard 0"] * 2 and events == [], "the first one ends nothing that was asked for after it"
    names, _ = performed(inner(1, is_ahead=is_ahead), DiscardRound(instance=TWO))
    assert names == [*STEPS, "discard 1"]


@pytest.mark.parametrize(("number", "least", "steps"), [(1, 0, 1), (1, 2, 2), (0, 0, 3)])
def test_inner_steps_end_early_where_that_is_asked_of_their_round(number: int, least: int, steps: int) -> None:
    """What was asked before they began was about others."""
    end = EndInner(instance=ONE, round=number, least_steps=least)
    names, events = performed(inner(1, is_ahead=False), meanwhile=("step 0", lambda worker: worker.end_inner(end)))
    assert names[:-1] == [f"step {step}" for step in range(steps)]
    assert [type(event) for event in events] == [InnerFinished]


def test_nothing_but_inner_steps_goes_on_while_an_outer_step_is_under_way() -> None:
    """It is waited for where the inner steps end first."""
    calls, is_asked = Calls(), threading.Event()
    calls.reactions["apply_outer 0"] = lambda: assert_set(is_asked)
    calls.afterwards["run_inner 0 1"] = is_asked.set
    names, events = performed(inner(1, is_ahead=True), *END_OF_ROUND_0, calls=calls)
    told = [name for name in names if not name.startswith(("save_instance", "complete"))]
    assert told == [*STEPS, "apply_outer 0", "offer 0 1", "evaluate 0", "snapshot 0"]
    assert {type(event) for event in events} == {OuterApplied, Evaluated, InnerFinished}


def test_an_error_of_the_outer_step_ends_the_node() -> None:
    calls = Calls()

    def breaks() -> None:
        raise OSError("disk")

    calls.reactions["offer 0 1"] = breaks
    with pytest.raises(AssertionError, match="disk"):
        performed(inner(1, is_ahead=True), *END_OF_ROUND_0, calls=calls)


def test_the_outer_step_of_the_same_round_is_not_taken_early() -> None:
    names, _ = performed(inner(1, is_ahead=True), replace(END_OF_ROUND_0[0], round=1))
    assert names[:4] == STEPS


def test_an_average_of_an_earlier_round_that_comes_late_is_not_applied_to_a_later_one() -> None:
    worker = DeviceWorker(
        engine=FakeEngine(Calls()),
        checkpoints=FakeCheckpoints(Calls()),
        states=FakeNetwork(Calls()),
        post=lambda event: None,
        progress=lambda fields: None,
    )
    of_round_3, late, of_another = (FakeAverage(words) for words in ("of round 3", "of round 1", "of another"))
    worker.put_average(ONE, 3, of_round_3)
    worker.put_average(ONE, 1, late)
    worker.put_average(TWO, 1, of_another)
    assert worker._shared.take_average(ApplyOuter(instance=ONE, round=3)) is of_round_3
    assert list(worker._shared.averages) == [(TWO, 1)]


def test_the_event_that_ends_a_job_repeats_its_epoch() -> None:
    merge = Merge(sources=(ONE, TWO), target=ONE, weights=(0.5, 0.5), reason="")
    jobs: tuple[DeviceEffect, ...] = (
        replace(inner(1, is_ahead=False), epoch=3),
        ApplyOuter(instance=ONE, round=0, epoch=4),
        Evaluate(instance=ONE, round=0, epoch=5),
        Transition(round=1, forks=(), merges=(), epoch=6),
        Probe(round=1, merge=merge, epoch=7),
    )
    _, events = performed(*jobs)
    ends = [(type(event), event.epoch) for event in events if isinstance(event, DeviceEnd)]
    assert ends == [(InnerFinished, 3), (OuterApplied, 4), (Evaluated, 5), (TransitionApplied, 6), (Probed, 7)]


def test_a_pseudo_gradient_that_no_average_holds_goes_to_the_engine_with_the_outer_step() -> None:
    kept, _ = performed(inner(0, is_ahead=False), ApplyOuter(instance=ONE, round=0, keeps_own=True))
    assert kept[-3:-1] == ["apply_outer 0", "keep pseudo-gradient 0"]
    given, _ = performed(inner(0, is_ahead=False), ApplyOuter(instance=ONE, round=0))
    assert "keep pseudo-gradient 0" not in given


def test_an_instance_is_copied_again_only_when_its_last_copy_is_on_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """The end of a run saves its last boundary a second time at once. The disk is slower than whatever the device does next."""
    calls, went_on, join = Calls(), threading.Event(), queue.Queue.join

    def noted(writes: queue.Queue[object]) -> None:
        went_on.set()
        join(writes)

    monkeypatch.setattr(queue.Queue, "join", noted)
    calls.reactions["save_instance 1 0"] = lambda: assert_set(went_on)
    calls.reactions["snapshot 0"] = lambda: went_on.set() if "snapshot 0" in calls.names else None
    names, _ = performed(SaveInstance(instance=ONE, round=1), SaveInstance(instance=ONE, round=1), calls=calls)
    assert names == ["snapshot 0", "save_instance 1 0"] * 2


def assert_set(event: threading.Event) -> None:
    assert event.wait(WAIT_LIMIT_SECONDS)
