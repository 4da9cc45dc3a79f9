"""A newcomer's first minutes at a terminal: a swarm that moves on the screen, and a joiner that reads at every moment what it
waits for, pauses and leaves by a key."""

import os
import re
from itertools import accumulate, pairwise
from pathlib import Path

import pytest

from adloco_p2p.storage.event_log import recorded_events
from adloco_p2p.views.own_part import joining
from adloco_p2p.views.status import Status
from adloco_p2p.views.status_fold import apply
from tests.e2e.processes import run
from tests.e2e.swarm_processes import processes_of, wait, write_swarm_config
from tests.e2e.terminal import COLUMNS, HOME, LINES, Terminal, terminal

MOVES = 12
"""So often the screen changes while it is watched."""
MOVES_PER_SECOND = 2.0
"""On a machine that does nothing else."""
STATE_BYTES_PER_SECOND = 40_000
"""So that the state is seconds on its way, and its bar is in some frames."""
STATE_COMES = re.compile(r"^ state .* of [\d.]+ kB", re.MULTILINE)
NOT_FOR_A_JOINER = re.compile(r"\balone\b|elsewhere|\D0/0\b|\bnan\b|Traceback")
JOINER_READS = ("reading the settings", "looking for the swarm", "this peer:")
"""In this order."""
JOINING = ("waiting to join; plans read up to round", "joins in round")
"""What stands on its screen before it has its seat, in this order; each for as long as others take, which may be shorter than
a busy machine draws."""


def moves(frames: list[tuple[float, str]]) -> int:
    """How often the screen changed."""
    return sum(before != after for (_, before), (_, after) in pairwise(frames))


def moves_per_second(frames: list[tuple[float, str]]) -> float:
    """By the time in which the screen was looked at."""
    return moves(frames) / (frames[-1][0] - frames[0][0])


def is_ordered(text: str, words: tuple[str, ...]) -> bool:
    """Whether each word is there behind the first place of the one before."""
    places = [text.find(word) for word in words]
    return -1 not in places and places == sorted(places)


def test_frames_that_stand_still_and_words_out_of_order_are_found() -> None:
    still = [(0.25 * number, "the same") for number in range(9)]
    assert moves_per_second(still) == 0.0 and moves_per_second([(second, str(second)) for second, _ in still]) == 4.0
    assert is_ordered("a b c", ("a", "c")) and not is_ordered("a b c", ("c", "a")) and not is_ordered("a b", ("a", "c"))


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
def test_a_frame_that_comes_in_pieces_is_read_as_one(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where a piece ends within a letter, or within what begins a frame."""
    lines = ["\u2500" * COLUMNS, "a" * COLUMNS, "\u2580" * COLUMNS]
    written = "".join(f"{HOME}\x1b[1m{line}" for line in lines).encode()
    pieces = [written[start : start + size] for start in range(0, len(written), size)]
    monkeypatch.setattr(os, "read", lambda *_: pieces.pop(0) if pieces else b"")
    shown = Terminal(process=None, keyboard=-1)  # type: ignore[arg-type]
    shown.read()
    assert [frame for _, frame in shown.frames] == lines and shown.text == "".join(lines)
    assert moves(shown.frames) == 2


def test_a_newcomer_trains_joins_pauses_and_leaves(tmp_path: Path) -> None:
    config = write_swarm_config(tmp_path, rounds=10_000, inner_steps=150)
    first = tmp_path / "runs" / "peer-0"
    with terminal("swarm", config, "--peers", 2, "--workdir", tmp_path / "runs", folder=tmp_path) as swarm:
        swarm.wait_for_frame(lambda frame: re.search(r"round [1-9]\d*/", frame), "round 1")
        _the_screen_fits(_watched(swarm))
        link = run(["invite", "--workdir", first], folder=tmp_path).output.strip()
        settings = ("allow_local_files=true", f"download_bytes_per_second={STATE_BYTES_PER_SECOND}")
        joined = ("join", "--initial-peers", link, "--workdir", tmp_path / "mine", "--peer-set", *settings)
        with terminal(*joined, folder=tmp_path) as joiner:
            _a_joiner_reads_what_it_waits_for(joiner, tmp_path / "mine")
            joiner.press("p")
            joiner.wait_for_frame(lambda frame: re.search(r"^ round .* paused", frame, re.MULTILINE), "the pause")
            joiner.press("p")
            joiner.wait_for("resum")
            joiner.press("q")
            assert joiner.end() == 0
            assert "saved; continue with: adloco-peer join --workdir" in " ".join(joiner.text.split())
        swarm.press("q")
        assert swarm.end() == 0
        assert "saved; continue with: adloco-peer swarm" in " ".join(swarm.text.split())
    wait(lambda: not processes_of(tmp_path), "nothing to be left of the swarm")


@pytest.mark.heavy
def test_the_screen_of_a_swarm_moves_twice_a_second(tmp_path: Path) -> None:
    config = write_swarm_config(tmp_path, rounds=10_000, inner_steps=150)
    with terminal("swarm", config, "--peers", 2, "--workdir", tmp_path / "runs", folder=tmp_path) as swarm:
        swarm.wait_for_frame(lambda frame: re.search(r"round [1-9]\d*/", frame), "round 1")
        assert moves_per_second(_watched(swarm)) >= MOVES_PER_SECOND
        swarm.press("q")
        assert swarm.end() == 0


def _watched(swarm: Terminal) -> list[tuple[float, str]]:
    """The frames from now on until the screen has changed often enough."""
    seen = len(swarm.frames) - 1
    swarm.wait_until(lambda: moves(swarm.frames[seen:-1]) >= MOVES, f"{MOVES} changes")
    return swarm.frames[seen:-1]


def _the_screen_fits(frames: list[tuple[float, str]]) -> None:
    assert any("Peers of this swarm (2)" in frame for _, frame in frames)
    for _, frame in frames:
        lines = frame.replace("\r", "").split("\n")
        assert len(lines) <= LINES and all(len(line) <= COLUMNS for line in lines), frame


def _a_joiner_reads_what_it_waits_for(joiner: Terminal, workdir: Path) -> None:
    joiner.wait_for_frame(lambda frame: "training" in frame and "this peer:" in frame, "its first inner steps")
    assert is_ordered(joiner.text, JOINER_READS), joiner.text
    statuses = accumulate(recorded_events(workdir / "events.jsonl"), apply, initial=Status())
    assert is_ordered("\n".join(map(joining, statuses)), JOINING)
    assert any(words in joiner.text for words in JOINING), joiner.text
    assert any(STATE_COMES.search(frame) for _, frame in joiner.frames), joiner.text
    assert not any(NOT_FOR_A_JOINER.search(frame) for _, frame in joiner.frames), joiner.text
