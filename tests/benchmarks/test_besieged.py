"""What the siege reads of its strangers."""

import argparse
from pathlib import Path

import pytest

from benchmarks.besieged import LEAST_FRAMES, Siege
from benchmarks.stranger import frames_answered


def test_the_last_count_of_a_stranger_counts() -> None:
    assert frames_answered("floods 4 peers of run besieged\n0 frames answered, 0 taken\n812 frames answered, 90 taken\n") == 812
    assert frames_answered("Traceback (most recent call last)\n") == 0


@pytest.mark.parametrize(("frames", "is_flood"), [(2 * LEAST_FRAMES - 1, False), (2 * LEAST_FRAMES, True)])
def test_a_siege_without_a_flood_is_none(tmp_path: Path, frames: int, is_flood: bool) -> None:
    """Two minutes, two strangers, of which one got nowhere."""
    siege = Siege(argparse.Namespace(workdir=tmp_path))
    siege.siege_seconds = 120.0
    logs = (f"{frames} frames answered, 1 taken\n", "")
    assert siege.is_flooded([*map(frames_answered, logs)]) is is_flood


def test_without_strangers_nothing_is_to_flood(tmp_path: Path) -> None:
    assert Siege(argparse.Namespace(workdir=tmp_path)).is_flooded([])
