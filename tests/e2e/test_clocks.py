"""A whole node whose clock is ten minutes behind: it finds the run, trains with the others, and is told about its clock."""

from pathlib import Path

import pytest

from tests.e2e.processes import run
from tests.e2e.swarm_processes import PeerProcess, write_swarm_config

BEHIND_SECONDS = 600


def test_a_process_whose_clock_is_off_is_one_that_had_imported_nothing(tmp_path: Path) -> None:
    """Otherwise it would keep the real clock in part."""
    ended = run(["version"], folder=tmp_path, fault=("shift_clock", str(-BEHIND_SECONDS)))
    assert ended.code == 0, ended


@pytest.mark.heavy
def test_a_clock_that_is_minutes_off_does_no_harm_and_is_reported(tmp_path: Path) -> None:
    config = write_swarm_config(tmp_path, rounds=10_000, inner_steps=20)
    first = PeerProcess(workdir=tmp_path / "first", verb=("start", config)).start()
    shifted = PeerProcess(workdir=tmp_path / "shifted", verb=("join", "--initial-peers", *first.addresses()))
    try:
        shifted.start(fault=("shift_clock", str(-BEHIND_SECONDS)))
        shifted.started_at -= BEHIND_SECONDS  # its events carry its own clock
        shifted.wait_for("round", hosts=lambda hosts: len(hosts) == 2)
        counted = shifted.wait_for("first_contribution")
        assert 0 < counted["seconds"] < BEHIND_SECONDS
        told = shifted.wait_for("clock")
        assert abs(told["offset_seconds"] - BEHIND_SECONDS) <= told["uncertainty_seconds"] + 1
        assert told["peers"] == [first.me]
        assert "behind" in shifted.wait_for("warning", key="clock", active=True)["message"]
        opposite = first.wait_for("clock")
        assert abs(opposite["offset_seconds"] + BEHIND_SECONDS) <= opposite["uncertainty_seconds"] + 1
    finally:
        for peer in (first, shifted):
            peer.kill()
