"""The event loop and the device thread with fake rooms: order, ends, errors."""

import asyncio
import threading
from collections.abc import Callable
from functools import partial

import pytest

from adloco_p2p.core.model.effects import Effect, Stop
from adloco_p2p.core.model.events import Event, Received
from adloco_p2p.core.model.messages import Ping
from adloco_p2p.core.model.scalars import InstanceId, PeerId
from adloco_p2p.core.model.telemetry import Log, Stopped
from adloco_p2p.errors import DeviceError, StorageError
from tests.runtime.fakes import FakeEngine, FakePeer, rules

WAIT_LIMIT_SECONDS = 240.0


def run(peer: FakePeer) -> Stop:
    """To its end, which none of its threads outlives."""
    others = set(threading.enumerate())
    try:
        return asyncio.run(peer.node.run(peer.started))
    finally:
        left = {thread.name for thread in set(threading.enumerate()) - others}
        assert not [name for name in left if name.startswith(("device ", "disk", "outer"))]


def test_effects_are_performed_in_order() -> None:
    peer = FakePeer(rules(rounds=2))
    assert run(peer).is_finished
    assert peer.events.rounds() == [(0, 0), (1, 0)]
    device = [
        name for name in peer.calls.names if not name.startswith(("broadcast", "average", "keep newest", "save", "complete"))
    ]
    rounds = [
        [f"run_inner 0 {number}", "apply_outer 0", f"offer 0 {number + 1}", "evaluate 0", "snapshot 0", "transition"]
        for number in range(2)
    ]
    assert device == ["transition", *rounds[0], *rounds[1], "evaluate 0", "offer 0 3", "snapshot 0"]
    disk = [name for name in peer.calls.names if name.startswith(("save", "complete"))]
    assert disk == [name for boundary in (1, 2, 2) for name in (f"save_instance {boundary} 0", f"complete {boundary} 0")]
    averaged = peer.calls.names.index("average pseudo-gradient 0")
    assert peer.calls.names.index("run_inner 0 0") < averaged < peer.calls.names.index("apply_outer 0")
    assert peer.calls.names[:averaged].count("keep newest 0") == 1  # what is averaged takes the memory of an older state


def test_every_boundary_is_saved_though_one_instance_is_ahead_of_the_other() -> None:
    peer = FakePeer(rules(rounds=6, count=2))
    assert run(peer).is_finished
    assert sorted(peer.events.rounds()) == [(number, instance) for number in range(6) for instance in range(2)]
    completed = [name for name in peer.calls.names if name.startswith("complete")]
    assert completed[:6] == [f"complete {boundary} 0 1" for boundary in range(1, 7)]


def test_a_stop_whose_work_does_not_end_in_time_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """The user would take the last boundary for saved."""
    peer = FakePeer(rules(rounds=1))
    monkeypatch.setattr(peer.node._worker, "stop", partial(_never_in_time, peer.node._worker.stop))
    with pytest.raises(StorageError, match="the last whole checkpoint stands") as raised:
        run(peer)
    assert raised.value.code == "E401"


def _never_in_time(stop: Callable[..., bool], *, timeout_seconds: float) -> bool:
    return stop(timeout_seconds=timeout_seconds) and False


def test_a_failure_of_the_device_ends_the_node_with_it() -> None:
    peer = FakePeer(rules())

    def fail() -> None:
        raise DeviceError("one sample does not fit")

    peer.calls.reactions["run_inner 0 1"] = fail
    with pytest.raises(DeviceError, match="one sample does not fit"):
        run(peer)
    assert peer.events.rounds() == [(0, 0)]


@pytest.mark.parametrize("is_full", [False, True])
def test_a_peer_that_fails_leaves_as_one_that_stops(is_full: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    peer = FakePeer(rules())
    write = peer.events.write
    has_failed = threading.Event()

    def full(event: Log) -> None:
        if is_full and has_failed.is_set():
            raise StorageError("events.jsonl: the disk is full")
        write(event)

    def fail() -> None:
        has_failed.set()  # before the post: the event loop may handle it at once
        peer.node.post(StorageError("journal.bin: the disk is full"))

    monkeypatch.setattr(peer.events, "write", full)
    peer.calls.afterwards["run_inner 0 1"] = fail
    with pytest.raises(StorageError, match="the disk is full"):
        run(peer)
    assert [name for name in peer.calls.names if name.startswith("broadcast")][-1] == "broadcast Leave"
    stopped = [event.reason for event in peer.events.events if isinstance(event, Stopped)]
    assert stopped == ([] if is_full else ["journal.bin: the disk is full"])


def test_a_peer_that_stops_with_an_error_leaves_once(monkeypatch: pytest.MonkeyPatch) -> None:
    peer = FakePeer(rules(rounds=1))
    monkeypatch.setattr(peer.engine, "evaluate", lambda instance: float("nan"))
    with pytest.raises(DeviceError, match="diverged"):
        run(peer)
    stopped = [event for event in peer.events.events if isinstance(event, Stopped)]
    assert peer.calls.names.count("broadcast Leave") == len(stopped) == 1


def test_a_failed_checkpoint_ends_the_node_also_at_the_very_end() -> None:
    peer = FakePeer(rules(rounds=1))
    full = StorageError("the disk is full")

    def fail() -> None:
        if peer.calls.names.count("complete 1 0") == 1:  # the second one is the last
            raise full

    peer.calls.reactions["complete 1 0"] = fail
    with pytest.raises(StorageError) as caught:
        run(peer)
    assert caught.value is full


def test_a_stop_waits_for_the_checkpoint() -> None:
    peer = FakePeer(rules(rounds=50))
    is_saving, may_save = threading.Event(), threading.Event()

    def wait() -> None:
        is_saving.set()
        assert may_save.wait(WAIT_LIMIT_SECONDS)

    peer.calls.afterwards["run_inner 0 2"] = lambda: peer.node.command("drain")
    peer.calls.reactions["complete 3 0"] = wait

    async def scenario() -> Stop:
        running = asyncio.create_task(peer.node.run(peer.started))
        await asyncio.to_thread(is_saving.wait, WAIT_LIMIT_SECONDS)
        assert not running.done()
        assert "complete 3 0" not in peer.calls.names
        may_save.set()
        return await running

    stop = asyncio.run(scenario())
    assert not stop.is_finished
    assert peer.calls.names[-1] == "complete 3 0"
    assert peer.events.rounds() == [(0, 0), (1, 0), (2, 0)]
    assert [event.event for event in peer.events.events][-2:] == ["checkpoint", "stopped"]


def test_the_device_does_not_wait_for_the_disk() -> None:
    peer = FakePeer(rules(rounds=4))
    is_trained = threading.Event()
    peer.calls.reactions["save_instance 1 0"] = lambda: wait_for(is_trained)
    peer.calls.afterwards["run_inner 0 1"] = is_trained.set
    assert run(peer).is_finished


def wait_for(event: threading.Event) -> None:
    assert event.wait(WAIT_LIMIT_SECONDS)


def test_an_error_of_the_loop_interrupts_the_inner_steps() -> None:
    peer = FakePeer(rules())
    peer.engine.is_endless = True
    peer.calls.afterwards["run_inner 0 0"] = lambda: peer.node.post(StorageError("the journal is full"))
    with pytest.raises(StorageError, match="the journal is full"):
        run(peer)
    assert peer.engine.was_stopped.is_set()


def test_the_buffers_belong_to_their_instances() -> None:
    """The fake engine refuses the average of another instance's pseudo-gradient."""
    peer = FakePeer(rules(count=3))
    assert run(peer).is_finished
    with pytest.raises(AssertionError):
        FakeEngine(peer.calls).apply_outer(InstanceId(1), "average of pseudo-gradient 2", round=0, residual=None)


def test_a_flood_from_the_network_holds_up_nothing_that_happens_here() -> None:
    """The wire is held back by the core, and never are there two remote messages between the core and a local event."""
    peer = FakePeer(rules(rounds=3))
    taken: list[Event] = []
    handle = peer.node.peer.handle

    def note(event: Event, now: float) -> list[Effect]:
        if isinstance(event, Received):
            taken.append(event)
            return []
        return handle(event, now)

    peer.node.peer.handle = note  # type: ignore[method-assign]
    num_delivered = 0

    async def flood() -> None:
        nonlocal num_delivered
        while True:
            await peer.node.deliver(Received(sender=PeerId("flooder"), message=Ping(target=PeerId("peer"), is_relayed=False)))
            num_delivered += 1
            assert num_delivered <= len(taken) + 1

    async def scenario() -> Stop:
        flooding = asyncio.create_task(flood())
        try:
            return await peer.node.run(peer.started)
        finally:
            assert not flooding.done()
            flooding.cancel()

    assert asyncio.run(scenario()).is_finished
    assert peer.events.rounds() == [(0, 0), (1, 0), (2, 0)]
    assert taken
