"""The parts of `python -m benchmarks.wan.grid`: what it makes of events and counters, and the device that only takes time."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from benchmarks.method.store import read_records
from benchmarks.nodes import Event
from benchmarks.wan import grid
from benchmarks.wan.course import Course
from benchmarks.wan.grid_cell import PARAMETERS, STEP_SECONDS, STEP_TOKENS, Cell
from benchmarks.wan.grid_peer import PERIOD, Noise
from benchmarks.wan.grid_tables import (
    PUBLISHED,
    bytes_per_token,
    bytes_table,
    calculated_utilisation,
    price_of_overlap,
    price_of_preset,
    utilisation,
    utilisation_table,
)


def course_of(*sent: int) -> Course:
    """Of one host, one look a second."""
    course = Course()
    for second, size in enumerate(sent):
        course.times.append(float(second))
        course.counters.append({"peer-0": SimpleNamespace(sent_bytes=size)})  # type: ignore[dict-item]
    return course


def test_bytes_of_an_instant_lie_between_those_of_the_looks_around_it() -> None:
    course = course_of(0, 100, 500)
    assert [course.sent_until("peer-0", instant) for instant in (0.0, 0.5, 1.0, 1.75, 2.0)] == [0, 50, 100, 400, 500]


def event(kind: str, number: int, **more: Any) -> Event:
    return {"event": kind, "round": number, "time": 10.0 * number, **more}


def test_a_peer_is_measured_in_whole_rounds_without_the_first_ones_and_the_last() -> None:
    done = {"tokens": 8 * STEP_TOKENS, "seconds": {"training": 0.2}, "is_void": False, "hosts": "abcd", "bytes_sent": 90}
    events = [event("round", number, **done) for number in range(7)]
    sent = {"averaging": 100, "gossip": 5, "state": 1}
    events += [event("traffic", number, sent=sent) for number in range(7)]
    events += [event("average_failed", 1), event("average_failed", 4)]
    dht = [(20.0, 1000, 0), (20.1, 7, 0), (50.0, 8, 0), (50.1, 1000, 0)]
    found = grid.measured_peer(events, dht, course_of(*range(0, 7000, 100)), "peer-0")
    assert (found["wall_seconds"], found["steps"], found["failed_attempts"]) == (30.0, 24, 1)
    assert found["sent"] == {"averaging": 300, "state": 3, "gossip": 15, "dht": 15}
    assert (found["committed"], found["wire"]) == (270, 3000)


def test_a_round_that_a_peer_missed_is_time_in_which_its_device_did_nothing() -> None:
    done = {"tokens": 8 * STEP_TOKENS, "seconds": {"training": 0.2}, "is_void": False, "hosts": "abcd", "bytes_sent": 90}
    events = [event("round", number, **done) for number in (0, 1, 2, 3, 5, 6)]
    found = grid.measured_peer(events, [], course_of(*range(0, 7000, 100)), "peer-0")
    assert (found["wall_seconds"], found["steps"], found["missed"]) == (30.0, 16, 1)


def record_of(cell: Cell, **more: Any) -> dict[str, Any]:
    sent = {"averaging": 110, "state": 3, "gossip": 15, "dht": 12}
    peer = {"wall_seconds": 30.0, "steps": 24, "phases": {"averaging": 9.0, "applying": 0.5}, "sent": sent}
    peer |= {"committed": 100, "wire": 150, "missed": 0, "void": 0, "partial": 0, "failed_attempts": 0}
    fields = {name: getattr(cell, name) for name in cell.__dataclass_fields__}
    return {"cell": fields, "peers": [peer] * 2, "rounds": 3, "load": 2.0, "busy": 1.0, "late": 0.0, **more}


def test_utilisation_and_bytes_per_token_by_hand() -> None:
    record = record_of(Cell(preset="int8", overlap="none", inner_steps=8, mbit=50.0, scale=10))
    assert utilisation(record) == pytest.approx(24 * STEP_SECONDS / 30)
    tokens = 24 * STEP_TOKENS
    expected = {"averaging": 1000, "retries": 100, "state": 30, "gossip": 15, "dht": 12, "packets": 100}
    assert bytes_per_token(record) == pytest.approx({kind: size / tokens for kind, size in expected.items()})


def test_a_model_of_the_grid_has_its_parameters() -> None:
    for scale in (1, 10):
        made = grid.architecture(PARAMETERS / scale)
        width, inside, layers = made["hidden_size"], made["intermediate_size"], made["num_hidden_layers"]
        count = 260 * width + layers * (4 * width**2 + 3 * width * inside + 2 * width)
        assert count == pytest.approx(PARAMETERS / scale, rel=2e-3)


def test_the_noise_of_two_peers_has_a_part_in_common_and_another_one_in_each_round() -> None:
    ours, theirs = (Noise(100_000, seed=seed) for seed in (1, 2))
    first, second = ours.of_round(0), ours.of_round(1)
    assert len(first) == len(second) == 100_000
    assert torch.nn.functional.cosine_similarity(first, theirs.of_round(0), dim=0) == pytest.approx(0.5, abs=0.02)
    assert torch.nn.functional.cosine_similarity(first, second, dim=0) == pytest.approx(0.0, abs=0.02)
    assert torch.equal(ours.of_round(PERIOD), first)


def test_the_device_takes_the_time_of_its_steps_and_ends_when_it_is_asked_to() -> None:
    from benchmarks.wan.grid_peer import steps_that_sleep

    instance = SimpleNamespace(local=torch.zeros(10), round=0, is_at_boundary=True)
    share = SimpleNamespace(inner_steps=3, effective_batch=4)
    told: list[int] = []
    given = {"share": share, "micro_batch_limit": 4, "on_progress": lambda step, loss, tokens: told.append(step)}
    given |= {"is_enough": lambda steps: False, "should_stop": lambda: False}
    sleep = steps_that_sleep(1e-4, seed=1)
    done = sleep(None, instance, None, **given)
    assert done is not None and (done.inner_steps, done.samples, done.tokens) == (3, 12, 3 * STEP_TOKENS)
    assert done.seconds >= 3e-4 and told == [1, 2, 3]
    assert not instance.is_at_boundary and float(instance.local.abs().sum()) > 0
    assert sleep(None, instance, None, **given | {"should_stop": lambda: True}) is None
    early = sleep(None, instance, None, **given | {"is_enough": lambda steps: steps == 1})
    assert early is not None and early.inner_steps == 1


def test_losses_come_from_the_records_of_others() -> None:
    assert price_of_preset("sign").endswith("(4 hosts)") and price_of_preset("half").endswith("(8 hosts)")
    cells = [Cell(preset="int8", overlap=overlap, inner_steps=32, mbit=50.0) for overlap in ("none", "forecast")]
    assert price_of_overlap(cells[0]) == "0" and "+-" in price_of_overlap(cells[1])
    assert price_of_overlap(Cell(preset="int8", overlap="forecast", inner_steps=128, mbit=50.0)) == "no figure"


def test_the_kept_records_give_the_tables() -> None:
    records = read_records(grid.KEPT)
    assert records
    count = len({str(record["cell"]) for record in records})
    assert len(utilisation_table(records)) == 2 + len(PUBLISHED) + count
    assert len(bytes_table(records)) == 2 + count
    assert all(0 < utilisation(record) < 1.05 * calculated_utilisation(Cell(**record["cell"])) for record in records)
    assert all(whole <= published for published, whole in PUBLISHED.values())
