"""What the siege reads of its strangers, and of runs in peace."""

import argparse
import json
from pathlib import Path

import pytest

from benchmarks.besieged import LEAST_FRAMES, Siege, main
from benchmarks.stranger import false_proofs_made, frames_answered


def test_the_last_count_of_a_stranger_counts() -> None:
    assert frames_answered("floods 4 peers of run besieged\n0 frames answered, 0 taken\n812 frames answered, 90 taken\n") == 812
    assert frames_answered("Traceback (most recent call last)\n") == 0
    told = "0 frames answered, 0 taken\n9 frames answered, 2 taken, 40 false proofs of work made\n"
    assert (frames_answered(told), false_proofs_made(told), false_proofs_made("")) == (9, 40, 0)


@pytest.mark.parametrize(("frames", "is_flood"), [(2 * LEAST_FRAMES - 1, False), (2 * LEAST_FRAMES, True)])
def test_a_siege_without_a_flood_is_none(tmp_path: Path, frames: int, is_flood: bool) -> None:
    """Two minutes, two strangers, of which one got nowhere."""
    siege = Siege(argparse.Namespace(workdir=tmp_path))
    siege.siege_seconds = 120.0
    logs = (f"{frames} frames answered, 1 taken\n", "")
    assert siege.is_flooded([*map(frames_answered, logs)]) is is_flood


def test_without_strangers_nothing_is_to_flood(tmp_path: Path) -> None:
    assert Siege(argparse.Namespace(workdir=tmp_path)).is_flooded([])


def written(folder: Path, losses: dict[int, float]) -> Path:
    """The directory of a run in peace with these held-out losses; its second peer saw the odd rounds only."""
    for name, rounds in (("peer-0", [*losses]), ("peer-1", [number for number in losses if number % 2])):
        lines = [json.dumps({"event": "round", "round": number, "heldout_loss": losses[number]}) for number in rounds]
        (folder / name).mkdir(parents=True)
        (folder / name / "events.jsonl").write_text("\n".join([json.dumps({"event": "plan"}), *lines, ""]))
    return folder


def besieged(folder: Path, losses: dict[int, float], clean: list[Path]) -> Siege:
    """Its liars came after round 3."""
    siege = Siege(argparse.Namespace(workdir=folder, clean=clean))
    siege.events["peer-0"] = [{"event": "round", "round": number, "heldout_loss": loss} for number, loss in losses.items()]
    siege.seen_at, siege.admitted_at = {number: float(number) for number in losses}, 3.5
    return siege


FALLING = {number: 3.0 - 0.1 * number for number in range(16)}


@pytest.mark.parametrize(("harm", "is_unharmed"), [(0.0, True), (0.029, True), (0.031, False), (float("nan"), False)])
def test_the_loss_of_a_siege_is_compared_with_the_worst_run_in_peace_after_as_many_rounds(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], harm: float, is_unharmed: bool
) -> None:
    """The siege has fewer rounds than the runs in peace, whose losses go on to fall, and no loss after the eighth."""
    lower = {number: loss - 0.01 for number, loss in FALLING.items()}
    clean = [written(tmp_path / "one", FALLING), written(tmp_path / "other", lower)]
    own = {number: loss + harm for number, loss in FALLING.items() if number <= 10 and number != 8}
    assert besieged(tmp_path / "siege", own, clean)._has_the_loss_of_peace() is is_unharmed
    told = capsys.readouterr().out
    assert f"held-out loss after round 10: {2.3 + harm:.4f}; in peace 2.3000, 2.2900; {harm:+.4f} to the largest" in told


def test_a_run_in_peace_that_ended_before_the_siege_began_shows_nothing(tmp_path: Path) -> None:
    short = written(tmp_path / "short", {number: FALLING[number] for number in range(4)})
    assert not besieged(tmp_path / "siege", FALLING, [short])._has_the_loss_of_peace()
    assert besieged(tmp_path / "siege", FALLING, [])._has_the_loss_of_peace(), "without one nothing is compared"


def test_what_is_no_run_in_peace_ends_the_siege_before_it_begins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["besieged", "--workdir", str(tmp_path / "siege"), "--clean", str(tmp_path)])
    with pytest.raises(SystemExit):
        main()
    assert f"--clean {tmp_path}: holds no held-out losses" in capsys.readouterr().err
    assert not (tmp_path / "siege").exists()
