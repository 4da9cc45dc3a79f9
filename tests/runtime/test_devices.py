"""Several devices of one machine: which instance is on which, what they do at once, and what they meet for. No torch."""

import itertools
import queue
import random
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

import pytest

from adloco_p2p.core.model.effects import (
    ApplyOuter,
    DropInstance,
    Evaluate,
    Probe,
    RunInner,
    SaveCheckpoint,
    SaveInstance,
    Transition,
)
from adloco_p2p.core.model.events import Durable, Event, InnerFinished, OuterApplied, Probed, TransitionApplied
from adloco_p2p.core.model.lineage import Fork, Merge, ProbeVerdict
from adloco_p2p.core.model.scalars import InstanceId
from adloco_p2p.core.planning.round_plan import genesis
from adloco_p2p.runtime.node.device_map import DeviceMap
from adloco_p2p.runtime.node.device_worker import DeviceWorker
from tests.runtime.fakes import CAPACITY, ME, RUN, Calls, FakeAverage, FakeCheckpoints, FakeEngine, FakeNetwork, rules
from tests.runtime.test_looks import asked

A, B, C, D = (InstanceId(number) for number in range(4))
WAIT_LIMIT_SECONDS = 240.0


# --- the map -----------------------------------------------------------------------------------------------------------


def test_instances_are_dealt_evenly_and_stay_where_they_are() -> None:
    dealt = DeviceMap(2)
    assert dealt.deal([A, B, C]) == [(A, None, 0), (B, None, 1), (C, None, 0)]
    assert dealt.deal([A, B, C]) == []
    dealt.forget(B)
    assert dealt.deal([A, C]) == [(C, 0, 1)]  # two on one device, none on the other
    assert dealt.deal([A, C, D]) == [(D, None, 0)]
    assert dealt.deal([C]) == []  # A rests, and keeps its place
    assert [dealt.device_of(instance) for instance in (A, C, D)] == [(0, False), (1, False), (0, False)]


def test_an_instance_that_is_held_before_it_is_trained_comes_to_the_emptiest_device() -> None:
    dealt = DeviceMap(3)
    assert [dealt.device_of(instance) for instance in (C, A)] == [(0, True), (1, True)]
    assert dealt.deal([A, B, C]) == [(B, None, 2)]


def test_devices_without_an_instance_help_those_that_have_one() -> None:
    dealt = DeviceMap(5)
    dealt.deal([A, B])
    assert [dealt.team(instance) for instance in (A, B)] == [(0, 2, 4), (1, 3)]
    dealt.deal([A, B, C, D])
    assert [dealt.team(instance) for instance in (A, B, C, D)] == [(0, 4), (1,), (2,), (3,)]
    few = DeviceMap(2)
    few.deal([A, B, C])
    assert [few.team(instance) for instance in (A, B, C)] == [(0,), (1,), (0,)]


@pytest.mark.parametrize("seed", range(20))
def test_no_device_has_two_more_than_another_and_nothing_moves_without_need(seed: int) -> None:
    chance = random.Random(seed)
    num_devices = chance.randint(1, 5)
    dealt, again = DeviceMap(num_devices), DeviceMap(num_devices)
    for _ in range(30):
        together = [InstanceId(number) for number in range(9) if chance.random() < 0.5]
        gone = InstanceId(chance.randrange(9))
        for known in (dealt, again):
            known.forget(gone)
        moves = dealt.deal(together)
        assert moves == again.deal(together), f"seed {seed}"
        places = {instance: dealt.device_of(instance)[0] for instance in together}
        loads = [list(places.values()).count(device) for device in range(num_devices)]
        assert max(loads) - min(loads) <= 1, f"seed {seed}"
        assert dealt.deal(together) == []


# --- the threads -------------------------------------------------------------------------------------------------------


@dataclass
class TwoDevices(FakeEngine):
    device_names: tuple[str, ...] = ("cpu:0", "cpu:1")
    together: threading.Barrier | None = None
    """Whoever trains waits here for the others."""
    until: dict[InstanceId, threading.Event] = field(default_factory=dict)
    """Inner steps of an instance go on until this happens."""
    placed: dict[InstanceId, int] = field(default_factory=dict)
    helpers: list[int] = field(default_factory=list)
    """Of the instance that was placed last."""
    threads: dict[InstanceId, set[str]] = field(default_factory=dict)

    def place(self, instance: InstanceId, devices: Sequence[int]) -> None:
        self.placed[instance], *self.helpers = devices

    def steps(self, effect: RunInner, should_stop: Callable[[], bool], is_enough: Callable[[int], bool]) -> bool:
        instance = effect.plan.instance
        self.threads.setdefault(instance, set()).add(threading.current_thread().name)
        assert threading.current_thread().name == f"device {self.device_names[self.placed[instance]]}"
        if self.together is not None:
            self.together.wait(WAIT_LIMIT_SECONDS)
        if instance in self.until:
            while not self.until[instance].wait(0.01):
                if should_stop():
                    return False
        return True

    def probe_merge(self, merge: Merge) -> ProbeVerdict:
        self.calls.note("probe")
        return ProbeVerdict(sources=merge.sources, target=merge.target, source_losses=(2.0, 2.0), merged_loss=1.9)


Posted = TypeVar("Posted", bound=Event)


class Machine:
    """A worker of two devices, its calls and what it posted."""

    def __init__(self, **engine: object) -> None:
        self.calls, self.posted = Calls(), queue.Queue[Event | BaseException]()
        self.engine = TwoDevices(self.calls, **engine)  # type: ignore[arg-type]
        self.worker = DeviceWorker(
            engine=self.engine,
            checkpoints=FakeCheckpoints(self.calls),
            states=FakeNetwork(self.calls),
            post=self.posted.put,
            progress=lambda fields: None,
        )
        self.worker.start()

    def until(self, wanted: type[Posted], instance: InstanceId | None = None) -> Posted:
        """The next event must be this one."""
        event = self.posted.get(timeout=WAIT_LIMIT_SECONDS)
        assert isinstance(event, wanted), event
        assert instance is None or getattr(event, "instance", None) == instance, event
        return event

    def end(self) -> list[str]:
        assert self.worker.stop(timeout_seconds=WAIT_LIMIT_SECONDS)
        return self.calls.names


def inner(instance: InstanceId, number: int = 0, *, together: tuple[InstanceId, ...] = (A, B)) -> RunInner:
    plan = replace(genesis(RUN, [(ME, CAPACITY)], rules()).instances[0], instance=instance)
    return RunInner(round=number, plan=plan, share=plan.hosts[0], progress_start=0.0, progress_end=1.0, together=together)


def assert_comes(event: threading.Event) -> None:
    assert event.wait(WAIT_LIMIT_SECONDS)


def fail_device() -> None:
    raise OSError("device")


def test_instances_on_different_devices_train_at_once() -> None:
    machine = Machine(together=threading.Barrier(2))
    machine.worker.submit(inner(A))
    machine.worker.submit(inner(B))
    assert {machine.until(InnerFinished).instance for _ in range(2)} == {A, B}
    machine.end()
    assert machine.engine.threads == {A: {"device cpu:0"}, B: {"device cpu:1"}}


def test_those_of_one_device_train_in_turn() -> None:
    machine = Machine()
    for instance in (A, B, C):
        machine.worker.submit(inner(instance, together=(A, B, C)))
    names = machine.end()
    assert names.index("run_inner 0 0") < names.index("run_inner 2 0")
    assert machine.engine.placed == {A: 0, B: 1, C: 0}


def test_one_instance_ends_its_round_while_another_trains() -> None:
    still = threading.Event()
    machine = Machine(until={B: still})
    machine.worker.submit(inner(B))
    machine.worker.submit(inner(A))
    machine.until(InnerFinished, A)
    machine.worker.put_average(A, 0, FakeAverage("average of pseudo-gradient 0"))
    machine.worker.submit(ApplyOuter(instance=A, round=0))
    machine.until(OuterApplied, A)
    machine.worker.submit(Transition(round=1, forks=(), merges=()))  # nothing to be done: it waits for nobody
    machine.until(TransitionApplied)
    still.set()
    machine.until(InnerFinished, B)
    machine.end()


def test_a_merge_ends_the_looks_at_what_is_gone_on_every_device() -> None:
    """The device that comes last performs the merge, here the other one than that whose look waits."""
    merge = Merge(sources=(A, B), target=A, weights=(0.5, 0.5), reason="")
    machine, is_free, has_come = Machine(), threading.Event(), threading.Event()
    machine.worker.call(A, lambda: assert_comes(has_come))
    machine.worker.call(B, lambda: assert_comes(is_free))
    machine.worker.look(replace(asked(), instance=B), "outer", "contribution", "others")
    machine.worker.submit(Transition(round=1, forks=(), merges=(merge,)))
    is_free.set()
    while not machine.worker._devices[1]._jobs.empty():
        time.sleep(0.001)
    has_come.set()
    machine.until(TransitionApplied)
    assert not any("pass" in name for name in machine.end())
    assert not machine.worker._devices[1].looks._waiting


def test_what_concerns_several_instances_waits_for_all_devices() -> None:
    merge = Merge(sources=(A, B), target=A, weights=(0.5, 0.5), reason="")
    still = threading.Event()
    machine = Machine(until={B: still})
    for effect in (inner(A), inner(B), Probe(round=0, merge=merge), Transition(round=1, forks=(), merges=(merge,))):
        machine.worker.submit(effect)
    machine.worker.submit(Evaluate(instance=A, round=1))
    machine.until(InnerFinished, A)
    assert machine.posted.empty()
    still.set()
    machine.until(InnerFinished, B)
    machine.until(Probed)
    machine.until(TransitionApplied)
    names = machine.end()
    assert [name for name in names if name.split()[0] in ("probe", "transition", "retire", "evaluate")] == [
        "probe",
        "transition",
        "retire 1",
        "evaluate 0",
    ]


def test_a_fork_is_trained_on_the_device_that_is_free() -> None:
    machine = Machine()
    machine.worker.submit(inner(A, together=(A,)))
    machine.worker.submit(Transition(round=1, forks=(Fork(source=A, targets=(B,)),), merges=()))
    for instance in (A, B):
        machine.worker.submit(inner(instance, 1))
    machine.end()
    assert machine.engine.placed == {A: 0, B: 1}


def test_an_instance_moves_only_when_its_device_has_done_what_it_was_asked_for() -> None:
    """A, B, C on two devices; B goes, so C moves to where B was, after its snapshot."""
    still = threading.Event()
    machine = Machine()
    for instance in (A, B, C):
        machine.worker.submit(inner(instance, together=(A, B, C)))
    machine.calls.reactions["snapshot 2"] = lambda: assert_comes(still)
    machine.worker.submit(SaveInstance(instance=C, round=1))
    machine.worker.submit(DropInstance(instance=B))
    machine.worker.submit(inner(C, 1, together=(A, C)))
    still.set()
    names = machine.end()
    assert names.index("snapshot 2") < names.index("run_inner 2 1")
    assert machine.engine.placed[C] == 1


def test_a_checkpoint_is_complete_when_every_device_has_saved_its_instances() -> None:
    """And no device waits for another one's part of it."""
    still = threading.Event()
    machine = Machine(until={B: still})
    for instance in (A, B):
        machine.worker.submit(inner(instance))
    for instance in (A, B):
        machine.worker.submit(SaveInstance(instance=instance, round=1))
    machine.worker.submit(SaveCheckpoint(durable=Durable(round=1, plans=(), held=(A, B))))
    machine.worker.submit(inner(A, 1))
    assert [machine.until(InnerFinished, A).round for _ in range(2)] == [0, 1]
    still.set()
    names = machine.end()
    assert [name for name in names if name.startswith(("save_instance", "complete"))] == [
        "save_instance 1 0",
        "save_instance 1 1",
        "complete 1 0 1",
    ]


@pytest.mark.parametrize("ending", ["interrupt", "abort"])
def test_no_device_waits_for_one_that_is_given_up(ending: str) -> None:
    merge = Merge(sources=(A, B), target=A, weights=(0.5, 0.5), reason="")
    machine = Machine(is_endless=True)
    for effect in (inner(A), inner(B), Transition(round=1, forks=(), merges=(merge,)), inner(A, 1)):
        machine.worker.submit(effect)
    machine.worker.submit(SaveInstance(instance=A, round=1))
    getattr(machine.worker, ending)()
    names = machine.end()
    assert ("snapshot 0" in names) == (ending == "interrupt")  # what is to be saved is saved


def test_an_error_on_one_device_ends_the_node() -> None:
    machine = Machine()
    machine.calls.reactions["run_inner 1 0"] = fail_device
    machine.worker.submit(inner(B))
    assert isinstance(machine.posted.get(timeout=WAIT_LIMIT_SECONDS), OSError)
    machine.worker.abort()
    machine.end()


def test_whatever_the_order_each_instance_sees_its_own_effects_in_order() -> None:
    for order in itertools.permutations((A, B, C)):
        machine = Machine()
        for number in range(2):
            for instance in order:
                machine.worker.submit(inner(instance, number, together=(A, B, C)))
                machine.worker.submit(Evaluate(instance=instance, round=number))
        names = machine.end()
        for instance in order:
            own = [name for name in names if name.split()[1] == str(instance)]
            assert own == [f"run_inner {instance} 0", f"evaluate {instance}", f"run_inner {instance} 1", f"evaluate {instance}"]
