"""The screen as text, at many sizes."""

import io
import os
import signal
import subprocess
import sys
import termios
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

import pytest
from rich.console import Console

from adloco_p2p.views import keyboard, table_rows, traffic, units
from adloco_p2p.views.chart import Series
from adloco_p2p.views.keyboard import Keyboard
from adloco_p2p.views.members import MemberRow, member_row
from adloco_p2p.views.node_status import summary
from adloco_p2p.views.pages import help_page
from adloco_p2p.views.records import Incident
from adloco_p2p.views.round_results import RoundResults
from adloco_p2p.views.screen import MAX_POINTS, Around, render
from adloco_p2p.views.status import Status
from adloco_p2p.views.terminal import TerminalView
from tests.e2e.terminal import HOME, opened
from tests.views.golden import FOLDER, expected_files, screen, status_at
from tests.views.synthetic import OTHERS, START, THIS, events, replay, stamped

BUSY = ("progress", 14, 2)


@pytest.mark.parametrize("name", sorted(expected_files()))
def test_golden(name: str) -> None:
    assert expected_files()[name] == (FOLDER / name).read_text(encoding="ascii")


@pytest.mark.parametrize("width", [20, 40, 79, 80, 100, 139, 142, 143, 200])
@pytest.mark.parametrize("height", [3, 6, 8, 10, 16, 24, 60])
def test_nothing_exceeds_the_terminal(width: int, height: int) -> None:
    for status in (Status(), status_at(*BUSY), replay(events())):
        console = Console(file=io.StringIO(), width=width, height=height, color_system=None)
        with console.capture() as capture:
            console.print(render(status, width, height))
        lines = capture.get().splitlines()
        assert len(lines) <= height
        assert max(len(line) for line in lines) <= width


def test_columns_drop_by_priority() -> None:
    narrow, middle, wide = (screen(status_at(*BUSY), width, 24).splitlines()[5] for width in (40, 80, 120))
    assert " ".join(narrow.split()) == "id phase this round"
    assert " ".join(middle.split()) == "id phase this round loss held-out batch mode"
    assert " ".join(wide.split()) == "id phase this round loss held-out batch mode hosts tokens/s"


def test_the_header_shows_when_the_work_began_to_count_and_what_a_token_costs() -> None:
    status = status_at(*BUSY)
    price = units.size(traffic.bytes_per_token(status))
    assert f"{price} sent per token  first average 21.5 s after the command" in screen(status, 200, 60)
    again = replay([*events()[:-1], events()[0]])  # started again: of the new session nothing counts yet
    assert "first average" not in screen(again, 200, 60) and f"{price[-2:]} sent per token" in screen(again, 200, 60)


def test_a_joiner_beside_one_other_peer_is_not_alone() -> None:
    begun, plan = events()[0], next(event for event in events() if event["event"] == "plan")
    founder = [
        {**plan, "roster": [roster_entry for roster_entry in plan["roster"] if roster_entry["peer"] == peer]}
        for peer in (THIS, OTHERS[0])
    ]
    link = {"event": "listening", "time": begun["time"], "join_link": "adloco://x"}
    alone, joiner = (replay([begun, link, known]) for known in founder)
    assert "alone; a signer of the run can invite others" in screen(alone, 80, 24)
    assert "alone; links for others: adloco-peer invite" in screen(replace(alone, may_invite=True), 80, 24)
    text = screen(joiner, 80, 24)
    assert "alone" not in text and "waiting to join; plans read up to round 0" in text


def test_a_peer_without_work_shows_no_empty_count() -> None:
    begun, plan = events()[0], next(event for event in events() if event["event"] == "plan")
    idle = [{**host, "inner_steps": 0, "batch_samples": 0} for host in plan["instances"][0]["hosts"]]
    status = replay([begun, {**plan, "instances": [{**plan["instances"][0], "hosts": idle}]}])
    text = screen(status, 80, 24)
    assert "fetching the state" in text and "following   none this round" in text and "0/0" not in text


def test_a_state_on_its_way_has_a_bar() -> None:
    made = {"event": "state_download", "time": START, "round": 3, "instance": 0}
    made |= {"received_bytes": 57_000_000, "total_bytes": 90_000_000, "bytes_per_second": 3e6}
    line = next(line for line in screen(replay([events()[0], made]), 80, 24).splitlines() if line.strip().startswith("state"))
    assert line.rstrip().endswith("57.0 MB of 90.0 MB, 3.00 MB/s, 11.0 s left")
    assert line.count("\u2501") == round((line.count("\u2501") + line.count("\u2500")) * 57 / 90)


def test_the_peers_of_a_swarm_stand_in_place_of_the_planned_ones() -> None:
    def text(second: MemberRow) -> str:
        rows = [member_row("peer-0", status_at(*BUSY)), second]
        console = Console(file=io.StringIO(), width=80, height=24, color_system=None)
        with console.capture() as capture:
            console.print(render(status_at(*BUSY), 80, 24, Around(members=rows)))
        return capture.get()

    starting = text(member_row("peer-1", Status(), outside="importing libraries"))
    assert "Peers of this swarm (2) " in starting and "importing libraries" in starting and "hosts instances" not in starting
    running = text(member_row("peer-1", replay([{**events(1)[0], "peer": OTHERS[0]}])))
    assert "Peers of this swarm (2, and 2 from elsewhere)" in running, "others may join a swarm of one's own"


def test_the_peers_of_a_swarm_have_the_ids_by_which_warnings_name_them() -> None:
    status = status_at(*BUSY)
    assert units.short_peer(status.peer) in shown(Status(), Around(members=[member_row("peer-0", status)]))


def test_a_swarm_that_starts_counts_the_peers_that_are_ready() -> None:
    rows = [
        member_row("peer-0", Status(), outside="ready, 1 peer to come"),
        member_row("peer-1", Status(), is_ready=False, outside="importing model code"),
    ]
    console = Console(file=io.StringIO(), width=80, height=24, color_system=None)
    with console.capture() as capture:
        console.print(render(Status(), 80, 24, Around(members=rows)))
    text = capture.get()
    assert text.splitlines()[0].strip() == "the swarm is starting: 1 of 2 peers ready"
    assert "importing model code" in text, "no word of a phase is cut at 80 columns"


def test_a_rate_beyond_what_a_link_can_tell_is_no_figure() -> None:
    assert [units.link_rate(rate) for rate in (None, 2e6, 3.8e9)] == ["-", "2.00 MB", "> 1 GB"]


def test_the_instances_are_the_last_to_go() -> None:
    text = screen(status_at(*BUSY), 80, 9)
    assert "capped" in text
    assert "Decisions" not in text


def test_past_troubles_take_no_lines_from_peers_and_decisions() -> None:
    status = status_at(*BUSY)
    trouble = Incident(elapsed_seconds=90.0, round=13, instance=0, kind="average failed", message="two lines of words, " * 5)
    past = replace(status, warnings={}, incidents=(trouble,) * 3)
    peers = {units.short_peer(row.peer) for row in table_rows.peer_rows(status)}
    for width in (80, 140):
        text = screen(past, width, 24)
        assert all(peer in text for peer in peers) and "Decisions" in text and "two lines of words" in text
    assert "the laptop's uplink is slow" in screen(replace(past, warnings=status.warnings), 80, 24), "a condition of now does"


def test_warnings_leave_the_peers_of_a_swarm_on_the_screen() -> None:
    status = status_at(*BUSY)
    many = {f"peer {number}": "two lines of words, " * 5 for number in range(6)}
    rows = [member_row(f"peer-{index}", status) for index in range(5)]
    text = shown(replace(status, warnings=many), Around(members=rows))
    assert all(row.name in text for row in rows) and "two lines of words" in text


def test_rows_that_do_not_fit_are_counted() -> None:
    assert "and 2 more" in screen(status_at("progress", 5, 2), 80, 10)


def test_no_word_of_a_reason_is_cut() -> None:
    text = screen(status_at("progress", 12, 2), 80, 24)
    reason = "weights 0.52 + 0.48, the two smallest requests, 52 and 55"
    assert reason in " ".join(text.split())


def test_marks_are_ascii_where_the_terminal_knows_no_better() -> None:
    assert screen(status_at(*BUSY), 80, 24).isascii()
    console = Console(file=io.StringIO(), width=80, height=24, color_system=None)
    with console.capture() as capture:
        console.print(render(status_at(*BUSY), 80, 24))
    assert "\u2501" in capture.get()


def test_the_terminal_view_leaves_its_last_screen_behind() -> None:
    file = io.StringIO()
    view = TerminalView(Console(file=file, width=80, height=25, force_terminal=True, color_system=None))
    view.start()
    for event in events():
        view.update(stamped(event))
    view.stop()
    view.stop()
    enter, leave = "\x1b[?1049h", "\x1b[?1049l"
    assert enter in file.getvalue()
    after = file.getvalue().rsplit(leave, 1)[1]
    assert "finished in 5m17s" in after


def test_every_peer_has_its_uplink_at_80_columns_where_it_was_measured() -> None:
    plan = next(event for event in events() if event["event"] == "plan")
    roster = [{**entry, "upload_bytes_per_second": 2e6 if entry["peer"] == OTHERS[1] else 0.0} for entry in plan["roster"]]
    lines = screen(replay([events()[0], {**plan, "roster": roster}]), 80, 24).splitlines()
    assert [line.split()[-1] for line in lines if " uplink/s " in line] == ["trains"]
    assert sum("2.00 MB" in line for line in lines) == 1


def test_a_peer_has_its_name_beside_its_id_at_80_columns_and_its_link_where_there_is_room() -> None:
    narrow, wide = (screen(status_at(*BUSY), *size).splitlines() for size in ((80, 24), (200, 60)))
    assert [line.split()[2] for line in narrow if line.split()[1:2] == ["this"]] == ["ann"]
    assert any(units.short_peer(OTHERS[0]) in line and "lab-7" in line and "83 ms  relay   0.2.0" in line for line in wide)


def test_the_reason_of_a_batch_shows_how_much_more_would_help() -> None:
    lines = screen(status_at(*BUSY), 80, 24).splitlines()
    assert [" ".join(line.split()[-4:-1]) for line in lines if line.endswith("capped")] == ["64 of 91", "64 of 104"]
    last = [line for line in screen(replay(events()), 80, 24).splitlines() if line.endswith("accumulate")]
    assert [line.split()[-2] for line in last] == ["682"]  # no less than the 678 that were asked for


def shown(status: Status, around: Around, width: int = 80, height: int = 24) -> str:
    console = Console(file=io.StringIO(), width=width, height=height, color_system=None)
    with console.capture() as capture:
        console.print(render(status, width, height, around))
    return capture.get()


def test_pages_and_keys_take_the_place_of_the_tables() -> None:
    status = status_at(*BUSY)
    assert "? help  q leave" in shown(status, Around(has_keys=True)) and "q leave" not in shown(status, Around())
    text = shown(status, Around(page="help", has_keys=True))
    assert "the number to watch" in text and "Peers (" not in text and "round 14/24" in text
    reasons = shown(status, Around(page="reasons"))
    assert "instance 2  norm test asks 104" in reasons and "norm test asks 104" not in shown(status, Around())
    log = shown(status, Around(page="log", log=[f"line {number}" for number in range(50)]))
    assert "line 49" in log and "line 10" not in log
    for page in ("help", "log", "reasons", ""):
        for height in (3, 8, 24, 60):
            busy = Around(page=page, log=["a"] * 99, load="processor 5%", notice="paused", has_keys=True)
            assert len(shown(status, busy, 40, height).splitlines()) <= height


def test_a_long_line_of_the_log_goes_on_below() -> None:
    line = "warning   founders: " + "all the words of a long condition count, " * 4
    text = shown(status_at(*BUSY), Around(page="log", log=["first", line], has_keys=True), 60, 24)
    assert " ".join(text.split()).count("count,") == 4 and "..." not in text.split("Log")[1]


def test_averaging_shows_the_seconds_so_far_of_those_of_the_last_round() -> None:
    made = events()
    at = next(
        index
        for index, event in enumerate(made)
        if (event["event"], event.get("phase"), event.get("round")) == ("phase", "averaging", 9)
    )
    later = {"event": "bandwidth", "time": made[at]["time"] + 3.0}
    status = replay([*made[: at + 1], later])
    row = next(row for row in table_rows.instance_rows(status) if row.phase == "averaging")
    last = status.results[8, row.instance].seconds["averaging"]
    assert row.averaging == pytest.approx((3.0, last))
    assert f"3 s, usual {last:.0f}" in screen(status, 80, 24)
    in_time = replay([*made[: at + 1], {**later, "time": made[at]["time"] + last}])
    assert f"{last:.0f}/{last:.0f} s" in screen(in_time, 80, 24)
    quick = replace(status.results[8, row.instance], seconds={"averaging": 0.2})
    short = replace(status, results=status.results.replacing(quick))
    assert "3 s, usual 1 " in screen(short, 80, 24), "no average takes 0 s"
    assert all(row.averaging is None for row in table_rows.instance_rows(status_at(*BUSY)))


def pressing(view: TerminalView, keys: str) -> str:
    for key in keys:
        view.press(key)
    view._console = Console(file=io.StringIO(), width=80, height=40, color_system=None)
    with view._console.capture() as capture:
        view._console.print(view._render())
    return capture.get()


def test_keys_turn_pages_pause_the_node_and_leave_once(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[int] = []
    monkeypatch.setattr("os.kill", lambda _process, number: sent.append(number))
    asked: list[str] = []
    view = TerminalView(pause=lambda status: asked.append(status.state) or "ends round 24, then pauses")  # type: ignore[func-returns-value]
    for event in events():
        view.update(stamped(event))
    assert "trained   rounds 24/24" in pressing(view, "l")
    assert "the number to watch" in pressing(view, "?")
    assert "Peers (4)" in pressing(view, "?x")
    assert "ends round 24, then pauses" in pressing(view, "p") and asked == ["finished"]
    assert "leaving after this round" in pressing(view, "qq") and sent == [signal.SIGINT]
    assert "nothing to pause here" in pressing(TerminalView(), "p")


VIEW = """
import time
from adloco_p2p.views.terminal import TerminalView
view = TerminalView()
view.start()
try:
    while True:
        time.sleep(0.05)
except KeyboardInterrupt:
    view.stop()
"""


def test_ctrl_z_gives_the_terminal_to_the_shell_and_fg_brings_the_view_back(tmp_path: Path) -> None:
    """With a real shell, over which nothing is drawn while the view is in the background."""
    (tmp_path / "view.py").write_text(VIEW)
    enter, leave = "\x1b[?1049h", "\x1b[?1049l"
    with opened("bash", "--norc", "-i", folder=tmp_path) as shell:

        def written() -> str:
            return "".join(piece for _, piece in shell.drawn)

        def type_and_see(command: str, mark: str, count: int = 1) -> None:
            shell.press(command)
            shell.wait_until(lambda: written().count(mark) >= count, f"{mark!r} after {command!r}")

        type_and_see(f"{sys.executable} view.py\r", "? help")
        type_and_see("\x1a", "Stopped")
        view, given_back = written().split(leave)
        assert view.rfind("\x1b[?25h") > view.rfind(HOME), "the cursor is back"
        assert HOME not in given_back
        type_and_see("stty -a | tr -s ' -' '\\n-' | grep -x echo && bg && sleep 1 && echo $((40 + 2))\r", "42")
        assert HOME not in written().split(leave)[1], "in the background it draws nothing"
        type_and_see("fg\r", enter, 2)
        type_and_see("l", "nothing yet")
        type_and_see("\x1a", "Stopped", 2)
        type_and_see("fg\r", enter, 3)
        shell.press("\x03")
        shell.wait_until(lambda: "bash-" in "".join(written().split(leave)[3:]), "the prompt")
        type_and_see("stty -a | tr -s ' -' '\\n-' | grep -x icanon && echo $((40 + 3))\r", "43")


KEYS_OF_A_TERMINAL = """
import fcntl, sys, termios, threading
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
from adloco_p2p.views.keyboard import Keyboard
pressed, is_over = [], threading.Event()
def press(key):
    pressed.append(key)
    if key == "x":
        is_over.set()
before = termios.tcgetattr(0)
keyboard = Keyboard(press)
print(keyboard.start(), termios.tcgetattr(0) != before, flush=True)
is_over.wait()
keyboard.stop()
keyboard.stop()
print(pressed, termios.tcgetattr(0) == before, flush=True)
"""


def test_a_terminal_is_read_key_by_key_and_given_back() -> None:
    outer, inner = os.openpty()
    with subprocess.Popen(
        [sys.executable, "-c", KEYS_OF_A_TERMINAL],
        stdin=inner,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "True True\n"
        os.write(outer, b"lx")
        words = process.stdout.readline()
    os.close(outer)
    os.close(inner)
    assert words == "['l', 'x'] True\n"


def test_a_terminal_that_is_gone_is_given_back_without_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    outer, inner = os.openpty()
    monkeypatch.setattr(keyboard, "_before", (inner, termios.tcgetattr(inner)))
    os.close(outer)
    keyboard.release()
    os.close(inner)


def test_where_the_input_is_no_terminal_no_key_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    keyboard = Keyboard(lambda key: None)
    with Path(os.devnull).open() as nothing:
        monkeypatch.setattr(sys, "stdin", nothing)
        assert not keyboard.start()
    keyboard.stop()


def test_help_that_is_cut_says_so() -> None:
    def shown(height: int) -> str:
        console = Console(width=80, file=io.StringIO(), record=True)
        console.print(*help_page(80, height), sep="\n")
        return console.export_text()

    assert "a taller window shows more" in shown(19) and "last report" not in shown(19)
    assert "last report" in shown(40) and "taller" not in shown(40)


def test_a_screen_that_is_drawn_again_reads_no_result_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is drawn three times per second: after 10,000 rounds, going through all of them took more than the whole core."""
    status = status_at(*BUSY)
    drawn, fields = screen(status, 120, 40), summary(status)

    def read(results: RoundResults) -> NoReturn:
        raise AssertionError(f"all {len(results)} results were read again")

    for name in ("__iter__", "items", "values"):
        monkeypatch.setattr(RoundResults, name, read)
    assert screen(status, 120, 40) == drawn and summary(status) == fields


def test_a_chart_of_a_long_run_has_a_limited_number_of_points(monkeypatch: pytest.MonkeyPatch) -> None:
    status = replay(events())
    (first, *_) = status.results.values()
    results = {(round_, 0): replace(first, round=round_) for round_ in range(3 * MAX_POINTS)}
    drawn: list[Series] = []

    def series(**about: Any) -> Series:
        drawn.append(Series(**about))
        return drawn[-1]

    monkeypatch.setattr("adloco_p2p.views.screen.Series", series)
    screen(replace(status, results=RoundResults(results)), 120, 60)
    points = drawn[0].points
    assert len(points) == MAX_POINTS + 1 and points[-1][0] == 3 * MAX_POINTS - 1
