"""The speed that a peer of several devices reports, by hand."""

from dataclasses import replace
from types import SimpleNamespace

import pytest

from adloco_p2p.core.model.events import InnerFinished, InnerResult
from adloco_p2p.core.model.roster_entry import Capacity
from adloco_p2p.core.model.scalars import InstanceId
from adloco_p2p.core.model.telemetry import OutOfMemory
from adloco_p2p.core.peer.reporting import Reporting, busiest_seconds, pass_samples
from tests.core.core_values import inner_result


def trained(seconds: float, *devices: str) -> InnerResult:
    """100 samples."""
    return replace(inner_result(inner_steps=10, batch=10, limit=10), seconds=seconds, devices=devices)


def test_instances_of_one_device_share_its_time() -> None:
    in_turn = [trained(4.0, "cuda:0"), trained(6.0, "cuda:0")]
    assert busiest_seconds(in_turn) == 10.0
    assert busiest_seconds([replace(result, devices=()) for result in in_turn]) == 10.0


def test_what_devices_do_at_once_adds_up() -> None:
    """Each of four does 25 samples/s, all of them 100."""
    results = [trained(4.0, f"cuda:{index}") for index in range(4)]
    assert sum(result.samples for result in results) / busiest_seconds(results) == 100.0


@pytest.mark.parametrize(
    ("results", "seconds"),
    [
        ([trained(4.0, "cuda:0"), trained(4.0, "cuda:1"), trained(4.0, "cuda:0")], 8.0),  # two on the first
        ([trained(2.0, "cuda:0"), trained(6.0, "cuda:1")], 6.0),  # the second is three times as slow
        ([trained(3.0, "cuda:0", "cuda:1"), trained(2.0, "cuda:1")], 5.0),  # one on both, in turn with another
        ([], 0.0),
    ],
)
def test_a_peer_promises_what_its_busiest_device_lets_it(results: list[InnerResult], seconds: float) -> None:
    """The plan gives each instance the same part of the speed, so this one is what it can count on."""
    assert busiest_seconds(results) == seconds


def test_a_pass_holds_what_all_devices_of_the_instance_hold() -> None:
    assert pass_samples(trained(4.0)) == pass_samples(trained(4.0, "cpu")) == 10
    assert pass_samples(trained(4.0, "cuda:0", "cuda:1", "cuda:2")) == 30


def test_fewer_devices_for_an_instance_are_no_shortage_of_memory() -> None:
    reporting = Reporting(SimpleNamespace(book=None, branches=None, me="me"), submit=lambda *_: [], task_period=0)  # type: ignore[arg-type]
    reporting.capacity = Capacity(samples_per_second=0.0, micro_batch_limit=10, max_instances=4)

    def after(result: InnerResult) -> list[object]:
        return [*reporting.trained(InnerFinished(instance=InstanceId(0), round=3, result=result))]

    assert after(trained(4.0, "cuda:0", "cuda:1")) == after(trained(4.0, "cuda:0")) == []
    assert reporting.capacity.micro_batch_limit == 10
    short = replace(trained(4.0, "cuda:0"), micro_batch_limit=4)
    assert after(short) == [OutOfMemory(instance=InstanceId(0), round=3, micro_batch_limit=4)]
    assert reporting.capacity.micro_batch_limit == 4
    assert after(short) == []
