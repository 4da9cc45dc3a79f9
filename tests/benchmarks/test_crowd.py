"""The counts of `benchmarks/crowd.py`, in a small crowd that passes messages on."""

import argparse
import time
from types import SimpleNamespace

import pytest

from benchmarks import crowd
from benchmarks.crowd import Traffic, play, report, say
from benchmarks.reachable import reachable_bytes


def test_a_small_crowd_is_counted_from_its_second_plan_on() -> None:
    settings = {"peers": 26, "rounds": 3, "hosts": 4, "round_seconds": 4.0, "loss": 0.0, "churn": 0.0, "minutes": 5.0}
    arguments = argparse.Namespace(**settings, seed=1, out=None)
    world, traffic, problem = play(arguments)
    found = report(world, traffic, arguments, time.process_time(), problem)
    say(found)
    assert not problem and found["plans"] == 3
    sent, rates = found["sent_per_second"], found["bytes_per_second_by_kind"]
    assert isinstance(sent, float) and isinstance(rates, dict) and sent == sum(rates.values())
    assert {"Heartbeat", "Supply", "Proposal", "Final"} <= rates.keys()
    kept, entries = found["peer_mib"], found["entries_mib"]
    assert isinstance(kept, float) and isinstance(entries, float) and 0.0 < entries < kept < 2.0
    taken = found["core_seconds_per_plan"]
    assert isinstance(taken, float) and 0.0 < taken < 1.0


def test_the_time_of_the_cores_is_counted_from_the_start_where_no_second_plan_came(monkeypatch: pytest.MonkeyPatch) -> None:
    clocks = SimpleNamespace(perf_counter=lambda: 1000.0, process_time=lambda: 10.0)
    monkeypatch.setattr(crowd, "time", clocks)
    traffic = Traffic()
    traffic.note_work(3.0)
    clocks.perf_counter, clocks.process_time = lambda: 1004.0, lambda: 12.0
    assert traffic.core_processor_seconds() == 1.5


def test_what_an_object_keeps_counts_once_and_without_the_surroundings_of_its_methods() -> None:
    text = "x" * 10_000

    class Owner:
        def __init__(self) -> None:
            self.kept, self.again, self.act = [text], text, surroundings.append

    surroundings: list[str] = ["y" * 50_000]
    assert 10_000 < reachable_bytes(Owner(), text) < 12_000
