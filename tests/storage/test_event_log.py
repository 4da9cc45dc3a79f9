"""The event file: whole lines, also after a crash, and no round twice after a resume."""

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

from adloco_p2p.core.model.scalars import InstanceId, PeerId
from adloco_p2p.core.model.telemetry import Checkpoint, Paused, Probe, Resumed, Stamped, Suspected
from adloco_p2p.errors import StorageError
from adloco_p2p.storage.event_log import EventLog, read_events


def event(round: int | None, kind: type[Resumed | Paused | Checkpoint] = Checkpoint) -> Stamped:
    made = Suspected(peer=PeerId("Qm")) if round is None else kind(round=round)
    return Stamped(time=1700000000.5, event=made)


def filled(path: Path, *rounds: int | None, kind: type[Resumed | Paused | Checkpoint] = Checkpoint) -> EventLog:
    log = EventLog.open(path)
    for round in rounds:
        log.append(event(round, kind))
    return log


def test_every_event_is_a_line_at_once(tmp_path: Path) -> None:
    log = filled(tmp_path / "events.jsonl", None, 0, 1)
    assert list(read_events(tmp_path / "events.jsonl")) == [event(None), event(0), event(1)]
    log.close()
    lines = (tmp_path / "events.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in lines] == [
        {"event": "suspected", "time": 1700000000.5, "peer": "Qm"},
        {"event": "checkpoint", "time": 1700000000.5, "round": 0},
        {"event": "checkpoint", "time": 1700000000.5, "round": 1},
    ]
    filled(tmp_path / "events.jsonl", 2)
    assert list(read_events(tmp_path / "events.jsonl"))[-1] == event(2)


def test_no_file_has_no_events(tmp_path: Path) -> None:
    assert list(read_events(tmp_path / "none")) == []


def test_numbers_that_are_not_finite_are_not_known(tmp_path: Path) -> None:
    log = EventLog.open(tmp_path / "e")
    probe = Probe(
        round=3,
        sources=(InstanceId(0), InstanceId(1)),
        target=InstanceId(0),
        source_losses=(1.5, float("inf")),
        merged_loss=float("nan"),
    )
    log.append(Stamped(time=1.0, event=probe))
    known = replace(probe, source_losses=(1.5, None), merged_loss=None)
    assert list(read_events(tmp_path / "e")) == [Stamped(time=1.0, event=known)]


OTHERS = b'{"event":"checkpoint","time":1,"round":0}\n{"event":"sunrise","time":1,"round":7}\n{"event":"sunrise","time":1}\n'
"""Of another version, between two of this one."""


def test_events_of_another_version_are_kept_and_not_read(tmp_path: Path) -> None:
    path = tmp_path / "e"
    path.write_bytes(OTHERS)
    log = EventLog.open(path)
    log.append(event(1, Resumed))
    assert list(read_events(path)) == [Stamped(time=1.0, event=Checkpoint(round=0)), event(1, Resumed)]
    log.rewind(1)
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [(line["event"], line.get("round")) for line in lines] == [("checkpoint", 0), ("sunrise", None)]


def test_a_torn_last_line_is_not_read_and_is_cut_off(tmp_path: Path) -> None:
    path = tmp_path / "e"
    filled(path, 0, 1).close()
    whole = path.read_bytes()
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        survivors = [event(round) for round in range(whole[:length].count(b"\n"))]
        assert list(read_events(path)) == survivors
        filled(path, 7).close()
        assert list(read_events(path)) == [*survivors, event(7)]


@pytest.mark.parametrize("line", [b"{bad", b"[1]", b'{"event":"x"}', b"\xff\xfe", b"", b'{"event":"checkpoint","time":1}'])
def test_an_unreadable_line_is_logged_and_left_out(tmp_path: Path, caplog: pytest.LogCaptureFixture, line: bytes) -> None:
    path = tmp_path / "e"
    filled(path, 0).close()
    path.write_bytes(path.read_bytes() + line + b"\n")
    filled(path, 1).close()
    assert list(read_events(path)) == [event(0), event(1)]
    assert [(record.message, record.__dict__["line"]) for record in caplog.records] == [
        ("a line of the events is not readable", 2)
    ]


def test_rewinding_forgets_the_rounds_that_will_be_done_again(tmp_path: Path) -> None:
    log = filled(tmp_path / "e", None, 0, 1, 2, 3, None, kind=Resumed)
    log.rewind(2)
    log.append(event(2, Paused))
    expected = [event(None), event(0, Resumed), event(1, Resumed), event(None), event(2, Paused)]
    assert list(read_events(tmp_path / "e")) == expected
    assert [path.name for path in tmp_path.iterdir()] == ["e"]


def test_rewinding_keeps_the_checkpoint_from_which_the_run_resumes(tmp_path: Path) -> None:
    """Its round is the first that it does not include; screens and metrics tell of the newest one."""
    filled(tmp_path / "e", 1, 2, 3).rewind(2)
    assert list(read_events(tmp_path / "e")) == [event(1), event(2)]


@pytest.mark.parametrize("name", ["replace", "fsync"])
def test_a_crash_while_rewinding_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    log = filled(tmp_path / "e", 0, 1, 2)

    def crash(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(os, name, crash)
        with pytest.raises(KeyboardInterrupt):
            log.rewind(1)
    again = EventLog.open(tmp_path / "e")
    assert list(read_events(tmp_path / "e")) == [event(0), event(1), event(2)]
    assert [path.name for path in tmp_path.iterdir()] == ["e"]
    again.close()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
def test_a_full_disk_is_named(tmp_path: Path) -> None:
    with Path("/dev/full").open("wb", buffering=0) as full, pytest.raises(StorageError, match="/e: the disk is full"):
        EventLog(path=tmp_path / "e", _file=full).append(event(1))
