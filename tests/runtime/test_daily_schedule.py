"""Quiet hours and the day's budget: what they do to the node, and when."""

import errno
import os
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from adloco_p2p.config.peer_config import PeerConfig
from adloco_p2p.errors import StorageError
from adloco_p2p.runtime.adapters.daily_schedule import DailySchedule, DayBook
from adloco_p2p.swarm.transport.rate_limiter import RateLimiter
from adloco_p2p.swarm.transport.traffic import Traffic


class Desk:
    """A schedule with everything around it."""

    def __init__(self, path: Path, **settings: object) -> None:
        self.now = datetime.fromisoformat("2026-03-04T12:00")
        self.commands: list[tuple[str, str]] = []
        self.is_paused = False
        self.traffic = Traffic()
        config = PeerConfig(**settings)  # type: ignore[arg-type]
        self.rate_limiter = RateLimiter(self.traffic, up_bytes_per_second=config.upload_bytes_per_second)
        self.schedule = DailySchedule(
            config,
            self.rate_limiter,
            book=DayBook(path / "traffic.json"),
            command=lambda command, reason: self.commands.append((command, reason)),
            is_paused=lambda: self.is_paused,
            now=lambda: self.now,
        )

    @property
    def up_cap(self) -> float | None:
        return self.rate_limiter.traffic().up_cap_bytes_per_second

    def look(self, *, hours: float = 0.0) -> list[str]:
        self.now += timedelta(hours=hours)
        before = len(self.commands)
        self.schedule.look()
        return [command for command, _ in self.commands[before:]]


def test_quiet_hours_pause_once_and_resume_once(tmp_path: Path) -> None:
    desk = Desk(tmp_path, quiet_hours=("22:00-07:00",))
    assert [desk.look(), desk.look(hours=10), desk.look(hours=1), desk.look(hours=8), desk.look()] == [
        [],
        ["pause"],
        [],
        ["resume"],
        [],
    ]
    assert desk.commands[0] == ("pause", "quiet hours until 07:00")


def test_what_the_user_paused_stays_paused(tmp_path: Path) -> None:
    desk = Desk(tmp_path, quiet_hours=("22:00-07:00",))
    desk.is_paused = True
    assert desk.look(hours=10) == [] and desk.look(hours=9) == []


def test_what_the_user_paused_within_quiet_hours_stays_paused_after_them(tmp_path: Path) -> None:
    desk = Desk(tmp_path, quiet_hours=("22:00-07:00",))
    assert desk.look(hours=10) == ["pause"]
    for is_paused in (True, False, True):  # by the schedule; the user goes on, and pauses again
        desk.is_paused = is_paused
        assert desk.look(hours=1) == []
    assert desk.look(hours=7) == [], "it resumes only its own pauses"
    assert desk.look(hours=16) == [] and desk.look(hours=9) == []
    desk.is_paused = False
    assert desk.look(hours=14) == ["pause"] and desk.look(hours=10) == ["resume"], "the next night is the schedule's again"


def test_in_quiet_hours_the_lower_of_both_caps_holds(tmp_path: Path) -> None:
    for asked, quiet, expected in ((100, 5, 5), (3, 5, 3), (0, 5, 5), (100, 0, 100)):
        desk = Desk(
            tmp_path,
            quiet_hours=("22:00-07:00",),
            quiet_upload_bytes_per_second=quiet,
            quiet_download_bytes_per_second=9,
            upload_bytes_per_second=asked,
        )
        caps = []
        for hours in (0, 10, 9):
            assert desk.look(hours=hours) == []
            caps.append((desk.up_cap, desk.rate_limiter.traffic().is_quiet))
        assert caps == [(asked, False), (expected, True), (asked, False)]


def test_caps_that_the_user_sets_survive_the_hours(tmp_path: Path) -> None:
    desk = Desk(tmp_path, quiet_hours=("22:00-07:00",), quiet_upload_bytes_per_second=50, upload_bytes_per_second=100)
    caps = []
    for hours, asked in ((0, 80), (10, None), (1, 70), (1, 20), (1, 60), (5, None), (1, None)):
        desk.look(hours=hours)  # quiet from the second look to the fifth
        desk.rate_limiter.set_caps(up_bytes_per_second=asked, down_bytes_per_second=None)
        caps.append(desk.up_cap)
    assert caps == [80, 50, 50, 20, 50, 50, 60]


def test_the_budget_pauses_until_midnight_and_survives_a_restart(tmp_path: Path) -> None:
    desk = Desk(tmp_path, daily_budget_bytes=1000)
    desk.traffic.averaging.sent_bytes = 600
    assert desk.look() == []
    again = Desk(tmp_path, daily_budget_bytes=1000)
    again.now = desk.now
    again.traffic.gossip.received_bytes = 399
    assert again.look() == []
    assert again.rate_limiter.traffic().budget_left_bytes == 1
    again.traffic.state.sent_bytes = 1
    assert again.look() == ["pause"] and "budget" in again.commands[0][1]
    assert again.look(hours=11.9) == []
    assert again.look(hours=0.2) == ["resume"]
    assert again.rate_limiter.traffic().budget_left_bytes == 1000


@pytest.mark.parametrize("content", [b"", b"{}", b'{"day": 5}', b"\xff", b'{"day": "2026-03-04", "bytes": "many"}', b"[]"])
def test_a_broken_day_book_counts_as_none(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "traffic.json").write_bytes(content)
    assert DayBook(tmp_path / "traffic.json").used(datetime.fromisoformat("2026-03-04T12:00"), 10) == 10


def test_a_full_disk_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    desk = Desk(tmp_path, daily_budget_bytes=1000)
    desk.traffic.state.sent_bytes = 1
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(StorageError, match=r"traffic\.json: the disk is full"):
        desk.look()
