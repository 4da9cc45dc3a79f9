"""Several devices of one machine, here two of torch's one processor: the same bits as one, at once."""

import queue
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch

from adloco_p2p.config.peer_config import PeerConfig
from adloco_p2p.config.run_config import ModelConfig
from adloco_p2p.core.model.effects import ApplyOuter, Transition
from adloco_p2p.core.model.events import Event, InnerFinished, OuterApplied, TransitionApplied
from adloco_p2p.core.model.lineage import Fork, Merge
from adloco_p2p.core.model.scalars import Digest, InstanceId
from adloco_p2p.errors import ConfigError
from adloco_p2p.numerics.batch import Batch
from adloco_p2p.runtime.node.device_worker import DeviceWorker
from adloco_p2p.training.data_parallel import Team
from adloco_p2p.training.device_shell import model_of
from adloco_p2p.training.hosting import Hosting
from adloco_p2p.training.instance import Instance
from tests.runtime.fakes import Calls, FakeAverage, FakeCheckpoints, FakeNetwork
from tests.training.small_run import (
    ARCHITECTURE,
    ONE,
    PEER,
    RUN,
    THREE,
    TWO,
    effect,
    hosting,
    never,
    rows_of,
    silent,
    train_round,
    with_run,
)

BOTH = replace(PEER, device=("cpu:0", "cpu:1"))
WAIT_LIMIT_SECONDS = 240.0


Ends = dict[InstanceId, tuple[tuple[Digest, Digest], float, dict[str, torch.Tensor]]]


class Machine:
    """A hosting under the worker that the node gives it. Averages are the peer's own pseudo-gradients."""

    def __init__(self, engine: Hosting) -> None:
        self.engine, self.posted = engine, queue.Queue[Event | BaseException]()
        self.results: dict[InstanceId, InnerFinished] = {}
        calls = Calls()
        self.worker = DeviceWorker(
            engine=engine,
            checkpoints=FakeCheckpoints(calls),
            states=FakeNetwork(calls),
            post=self.posted.put,
            progress=lambda fields: None,
        )
        self.worker.start()

    def round(self, number: int, *instances: InstanceId) -> None:
        """All of them, to the next boundary."""
        for instance in instances:
            self.worker.submit(replace(effect(instance, number), together=instances))
        for _ in instances:
            done = self.posted.get(timeout=WAIT_LIMIT_SECONDS)
            assert isinstance(done, InnerFinished), done
            self.results[done.instance] = done
            average = self.worker.pseudo_gradient(done.instance, number).clone()
            self.worker.put_average(done.instance, number, FakeAverage(average))
        for instance in instances:
            self.worker.submit(ApplyOuter(instance=instance, round=number))
        for _ in instances:
            assert isinstance(self.posted.get(timeout=WAIT_LIMIT_SECONDS), OuterApplied)

    def transition(self, number: int, *, forks: tuple[Fork, ...] = (), merges: tuple[Merge, ...] = ()) -> None:
        self.worker.submit(Transition(round=number, forks=forks, merges=merges))
        assert isinstance(self.posted.get(timeout=WAIT_LIMIT_SECONDS), TransitionApplied)

    def end(self) -> Ends:
        """Digests, held-out loss and snapshot of every instance."""
        assert self.worker.stop(timeout_seconds=WAIT_LIMIT_SECONDS)
        engine = self.engine
        return {one: (engine.digests(one), engine.evaluate(one), engine.snapshot(one)[0]) for one in engine.hosted}


def history(peer: PeerConfig) -> tuple[Ends, dict[InstanceId, tuple[str, ...]]]:
    """Two instances, of which one is forked, and later merged with the other one's rest."""
    machine = Machine(hosting(peer=peer))
    machine.engine.start([ONE, TWO])
    machine.round(0, ONE, TWO)
    machine.transition(1, forks=(Fork(source=ONE, targets=(THREE,)),))
    machine.round(1, ONE, TWO, THREE)
    machine.transition(2, merges=(Merge(sources=(ONE, TWO), target=ONE, weights=(0.25, 0.75), reason=""),))
    machine.round(2, ONE, THREE)
    return machine.end(), {instance: done.result.devices for instance, done in machine.results.items()}


def test_instances_that_train_at_once_end_as_those_that_train_in_turn() -> None:
    (in_turn, alone), (at_once, placed) = history(replace(PEER, device="cpu")), history(BOTH)
    assert alone == {ONE: ("cpu",), TWO: ("cpu",), THREE: ("cpu",)}
    assert placed == {ONE: ("cpu:0",), TWO: ("cpu:1",), THREE: ("cpu:1",)}  # moved to where the merged-away one was
    assert in_turn.keys() == at_once.keys() == {ONE, THREE}
    for instance, (digests, loss, tensors) in in_turn.items():
        assert (digests, loss) == at_once[instance][:2]
        assert tensors.keys() == at_once[instance][2].keys()
        assert all(torch.equal(tensor, at_once[instance][2][name]) for name, tensor in tensors.items())


def test_an_instance_that_changes_its_device_goes_on_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also between devices that share no memory: here the second one only seems to be another."""
    stays, moves = hosting(), hosting(peer=BOTH)
    for peer in (stays, moves):
        peer.start([ONE])
        train_round(peer, effect(round=0))
    left: list[None] = []
    leave = Instance.leave_device
    monkeypatch.setattr(Instance, "leave_device", lambda self: left.append(leave(self)))
    monkeypatch.setattr(moves._instances[ONE], "_device", torch.device("meta"))
    moves.place(ONE, (1,))
    assert left == [None]
    for peer in (stays, moves):
        train_round(peer, effect(round=1))
    assert stays.digests(ONE) == moves.digests(ONE)


def test_a_processor_named_twice_does_not_share_its_chance() -> None:
    dropping = {**ARCHITECTURE, "attention_dropout": 0.1}
    run = with_run(model=ModelConfig(architecture=dropping))
    with pytest.raises(ConfigError, match=r"device: cpu:0, cpu:1 share one random state"):
        hosting(run, peer=BOTH)
    assert hosting(run).micro_batch_limit  # one of them is fine
    assert RUN.model.architecture == ARCHITECTURE


# --- one instance on several devices -----------------------------------------------------------------------------------


THREE_DEVICES = replace(PEER, device=("cpu:0", "cpu:1", "cpu:2"))


def gradient_of(hosting: Hosting, devices: Sequence[int], count: int, *, micro: int) -> tuple[torch.Tensor, float, Any]:
    """Of the first weights on so many rows, with the sum of losses and the products of a measured step."""
    hosting.start([ONE])
    instance = hosting._instances[ONE]
    shells = [model_of(hosting._shells[device]) for device in devices]
    shells[0].bind(instance.local)
    with Team(shells, instance.local) as team:
        loss_sum, noise = team.accumulate(rows_of("part", 0, count, is_padded=True), micro_batch=micro, is_measured=count > 1)
    return shells[0].gradient.clone(), float(loss_sum), noise


@pytest.mark.parametrize(
    ("devices", "count"), [((0, 1), 6), ((0, 1), 5), ((0, 1, 2), 7), ((1, 2), 4), ((0, 1, 2), 2), ((0, 1), 1)]
)
def test_the_gradient_of_a_team_is_that_of_one_device(devices: tuple[int, ...], count: int) -> None:
    """Whatever the part of each, and with a row for some of them only."""
    alone, alone_loss, _ = gradient_of(hosting(), (0,), count, micro=count)
    together, loss, noise = gradient_of(hosting(peer=THREE_DEVICES), devices, count, micro=2)
    torch.testing.assert_close(together, alone, rtol=1e-4, atol=1e-7)
    assert loss == pytest.approx(alone_loss, rel=1e-6)
    if count == 1:
        assert noise is None
        return
    products, (first, last) = noise
    assert (first, last) == (count - count // min(len(devices), count), count // min(len(devices), count))
    norm_first, cross, norm_last = products.tolist()  # |a + b|^2 by hand
    assert norm_first + 2 * cross + norm_last == pytest.approx(float(alone.double().dot(alone.double())), rel=1e-4)


def test_the_groups_of_a_measured_step_are_those_of_one_device() -> None:
    """Two devices split six rows where one device splits its one micro-batch, so the statistics are the same."""
    _, _, alone = gradient_of(hosting(), (0,), 6, micro=6)
    _, _, together = gradient_of(hosting(peer=BOTH), (0, 1), 6, micro=3)
    assert alone[1] == together[1] == (3, 3)
    torch.testing.assert_close(together[0], alone[0], rtol=1e-4, atol=0.0)


def test_one_instance_is_trained_by_all_devices_and_gives_one_pseudo_gradient() -> None:
    machine, alone = Machine(hosting(peer=BOTH)), hosting()
    for engine in (machine.engine, alone):
        engine.start([ONE])
    for number in range(2):
        machine.round(number, ONE)
        train_round(alone, effect(round=number))
    result = machine.results[ONE].result
    assert (result.devices, result.samples, result.accumulation_steps) == (("cpu:0", "cpu:1"), 20, 1)
    assert result.half_batch is not None
    machine.end()
    torch.testing.assert_close(machine.engine.state(ONE)[0], alone.state(ONE)[0], rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("short", [0, 1])
def test_a_team_survives_one_device_that_is_out_of_memory(short: int) -> None:
    peer, alone = hosting(peer=BOTH), hosting()
    for engine in (peer, alone):
        engine.start([ONE])
    peer.place(ONE, (0, 1))
    shell = model_of(peer._shells[short])
    whole = shell.weighted_loss

    def holds_one_row(batch: Batch, weights: torch.Tensor | None = None) -> tuple[torch.Tensor, torch.Tensor]:
        if batch.num_samples > 1:
            raise torch.OutOfMemoryError("short")
        return whole(batch, weights)

    assert peer.micro_batch_limit > 1  # searched before it is short
    shell.weighted_loss = holds_one_row  # type: ignore[method-assign]
    result = peer.run_inner(effect(batch=8, micro=8), should_stop=never, on_progress=silent)
    assert result is not None and result.micro_batch_limit == 1
    assert peer.micro_batch_limit == 1
    expected = alone.run_inner(effect(batch=8, micro=8), should_stop=never, on_progress=silent)
    assert expected is not None and result.loss == pytest.approx(expected.loss, rel=1e-4)
    torch.testing.assert_close(peer.pseudo_gradient(ONE), alone.pseudo_gradient(ONE), rtol=1e-2, atol=1e-5)
