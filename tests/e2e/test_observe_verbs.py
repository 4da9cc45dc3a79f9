"""Looking at a run: the page of a swarm that is not one's own, the leaderboard, the replay, the metrics of a node."""

import contextlib
import json
import os
import re
import shutil
import signal
import urllib.request
from collections.abc import Iterator
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

import pytest

from adloco_p2p.cli import main
from adloco_p2p.commands import observe
from adloco_p2p.core.ledger.contributions import credited, leaderboard
from adloco_p2p.core.ledger.ledger import chain
from adloco_p2p.core.model.telemetry import Checkpoint, Stamped, Started
from adloco_p2p.runtime.adapters.network_journal import journal_records
from adloco_p2p.runtime.adapters.plan_rule import genesis_of
from adloco_p2p.runtime.follow_run import LocalRun
from adloco_p2p.storage.workdir import read_run
from adloco_p2p.views.page import Document
from adloco_p2p.views.peer_page import PeerDocuments
from tests.e2e.processes import LAST_SECONDS, ROUNDS, begin_warm, events, swarm_of_one
from tests.e2e.swarm_processes import PeerProcess, free_port, wait, write_swarm_config
from tests.e2e.test_ledger_verbs import FORGED, forge


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The working directory of a finished run of a swarm of one, which keeps a ledger like any other."""
    return swarm_of_one(tmp_path_factory.mktemp("observed"), "--set", "evaluation.sample_tokens=4")


def board(workdir: Path, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    assert main(["leaderboard", "--workdir", str(workdir), "--json"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


# --- leaderboard -----------------------------------------------------------------------------------------------------


def test_the_leaderboard_counts_what_the_signed_reports_say(whole: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = board(whole, capsys)
    trained = [event for event in events(whole, "round") if event["round"] <= ROUNDS - 2]
    samples = sum(event["samples"] for event in trained)
    (row,) = found["peers"]
    assert (row["samples"], row["tokens"], row["rounds"], row["last_round"]) == (samples, 32 * samples, ROUNDS - 1, ROUNDS - 2)
    assert (found["samples"], found["tokens"], found["sequence_length"]) == (samples, 32 * samples, 32)
    assert main(["leaderboard", "--workdir", str(whole)]) == 0
    text = capsys.readouterr().out
    assert f"{32 * samples:,}" in text and row["peer"] in text and "100%" in text


def test_a_ledger_that_is_not_sound_is_not_counted(whole: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    copy = Path(shutil.copytree(whole, tmp_path / "work"))
    forge(copy / "journal.bin", FORGED["a reported loss"], round=3)
    assert main(["leaderboard", "--workdir", str(copy)]) == 1
    assert "not sound" in capsys.readouterr().out
    assert main(["leaderboard", "--workdir", str(tmp_path / "nothing")]) == 2


# --- the page of a directory -----------------------------------------------------------------------------------------


def read_local(workdir: Path) -> tuple[PeerDocuments, Document]:
    run = LocalRun.open(workdir)
    assert run.has_news() and not run.has_news()
    return run.peers, run.document


def test_the_page_of_a_directory_shows_the_same(whole: Path, capsys: pytest.CaptureFixture[str]) -> None:
    peers, shown = read_local(whole)
    page: dict[str, Any] = json.loads(json.dumps(shown, allow_nan=False))
    found = board(whole, capsys)
    assert page["now"]["tokens"] == found["tokens"] and page["now"]["is_finished"]
    assert page["now"]["join"].startswith("adloco-peer join --initial-peers 'adloco://")
    assert page["throughput"] and all(0 < each["computing"] <= 1 for each in page["throughput"])
    assert [(row["peer"], row["tokens"]) for row in page["peers"]] == [(row["peer"], row["tokens"]) for row in found["peers"]]
    rounds = {(event["round"], event["instance"]): event for event in events(whole, "round")}
    points = {(point["round"], item["id"]): point for item in page["instances"] for point in item["points"]}
    assert points.keys() == rounds.keys(), "also the last rounds, which have no receipts"
    for key, event in rounds.items():
        assert points[key]["loss"] == pytest.approx(event["loss"], rel=1e-5)
        assert points[key]["requested"] == event["requested_batch"]
    assert [line["round"] for line in page["ledger"]] == list(range(ROUNDS, -1, -1))
    merges = [decision for decision in page["decisions"] if decision["kind"] == "merge"]
    assert len(merges) == len(events(whole, "merge")) and page["own"]["metrics"] and page["run"]["is_signed"]
    assert page["own"]["export"] == f"adloco-peer export --workdir {whole} --output model"
    assert page["own"]["saved_round"] == ROUNDS
    written = events(whole, "sample_text")
    evaluated = {key for key, event in rounds.items() if event["heldout_loss"] is not None}
    extra = {(text["round"], text["instance"]) for text in written} - evaluated
    assert evaluated <= {(text["round"], text["instance"]) for text in written}
    assert {round_ for round_, _ in extra} <= {ROUNDS}, "the model at the end is evaluated once more"
    assert len(page["own"]["texts"]) == len(written) and all(text["prompt"] == "The " for text in written)
    own: Any = peers(page["own"]["peer"])
    assert {(line["round"], line["instance"]) for line in own["rounds"]} == rounds.keys()
    assert sum(line["samples"] for line in own["rounds"]) == sum(event["samples"] for event in rounds.values())


def test_a_directory_without_a_ledger_has_a_page_too(whole: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(whole, tmp_path / "work"))
    (copy / "journal.bin").unlink()
    page: Any
    peers, page = read_local(copy)
    assert "nothing here is signed" in page["source"] and not page["run"]["is_signed"]
    (row,) = page["peers"]
    assert row["samples"] == sum(event["samples"] for event in events(copy, "round"))
    own: Any = peers(row["peer"])
    assert peers("Qm") is None
    assert [line["samples"] for line in own["rounds"]] == [event["samples"] for event in events(copy, "round")]


# --- replay ----------------------------------------------------------------------------------------------------------


def test_a_replay_prints_the_same_lines(whole: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """All but the time left, which the live view reckons with progress inside a round; that is not recorded."""
    assert main(["replay", "--workdir", str(whole), "--plain"]) == 0
    again, said = (
        re.sub(r"eta \S+( s)? *", "", text).splitlines() for text in (capsys.readouterr().out, (whole / "said").read_text())
    )
    first = next(index for index, line in enumerate(said) if line.startswith("started"))
    assert len(again) > ROUNDS and again == said[first : first + len(again)]


def test_a_replay_keeps_the_pace_and_leaves_out_the_nights() -> None:
    begun = Started(run="0" * 64, name="tiny", peer="Qm", mode="adloco", rounds=2, samples=None, inner_steps=1)
    times = (
        (begun, 0.0),
        (Checkpoint(round=0), 4.0),
        (Checkpoint(round=1), 3.0),
        (begun, 9e5),
        (Checkpoint(round=2), 900006.0),
    )
    made = [Stamped(time=time, event=event) for event, time in times]
    assert observe.pauses(made, speed=2.0, is_plain=True) == [0.0, 2.0, 0.0, 0.0, 3.0]
    assert observe.pauses(made, speed=None, is_plain=True) == [0.0] * 5
    long = [Stamped(time=10.0 * second, event=Checkpoint(round=second)) for second in range(601)]
    assert sum(observe.pauses(long, speed=None, is_plain=False)) == pytest.approx(observe.REPLAY_SECONDS)


# --- a swarm of others -----------------------------------------------------------------------------------------------


def fetched(url: str) -> Any:
    with urllib.request.urlopen(url, timeout=LAST_SECONDS) as reply:
        return json.loads(reply.read()) if "json" in reply.headers["Content-Type"] else reply.read().decode()


@contextlib.contextmanager
def looking(folder: Path, *arguments: object) -> Iterator[tuple[str, ForkServerProcess]]:
    """A dashboard on any free port: its URL and its process."""
    folder.mkdir()
    output, errors = folder / "output", folder / "errors"
    process = begin_warm(["dashboard", *arguments, "--port", 0], output=output, errors=errors)
    try:

        def told() -> re.Match[str] | None:
            assert process.exitcode is None, errors.read_text()
            return re.search(r"^dashboard: (.+)$", output.read_text(), re.MULTILINE) if output.exists() else None

        yield wait(told, "the dashboard's URL")[1], process
    finally:
        process.kill()
        process.join()


def receipts(workdir: Path, *, up_to: int) -> list[tuple[str, int]]:
    """Peers and tokens by the ledger of one peer as it was when the plan of this round was agreed."""
    config = read_run(workdir)
    assert config is not None
    entries = chain(journal_records(workdir / "journal.bin"), genesis_of(config))
    counted = credited(genesis_of(config), [entry for entry in entries if entry.plan.round <= up_to])
    rows = leaderboard(counted, sequence_length=config.data.sequence_length)
    return [(row.peer, row.tokens) for row in rows]


def _says_all(metrics: str, me: str) -> bool:
    assert f'peer="{me}"' in metrics
    has_sent = re.search(r'^adloco_sent_bytes_total\{kind="gossip"\} [1-9]', metrics, re.MULTILINE)
    return has_sent is not None and 'adloco_peers{state="alive"} 2.0' in metrics


def test_a_swarm_is_watched_without_a_seat_in_it(tmp_path: Path) -> None:
    metrics_port = free_port()
    config = write_swarm_config(tmp_path, rounds=10_000, inner_steps=30)
    first = PeerProcess(tmp_path / "first", ("start", config, "--peer-set", f"metrics_port={metrics_port}")).start()
    peers = [first]
    try:
        second = PeerProcess(tmp_path / "second", ("join", "--initial-peers", *first.addresses())).start()
        peers.append(second)
        me = {first.me, second.me}
        with looking(tmp_path / "dashboard", "--initial-peers", *first.addresses()) as (url, dashboard):

            def page() -> Any:
                return fetched(url + "api/run")

            second.wait_for("round", hosts=lambda hosts: len(hosts) == 2)
            seen = wait(
                lambda: found if (found := page()).get("num_alive") == 2 and len(found["peers"]) == 2 else None,
                "both peers to be seen alive, with receipts of both",
                *peers,
            )
            wait(lambda: _says_all(fetched(f"http://127.0.0.1:{metrics_port}/metrics"), first.me), "the metrics", *peers)
            for peer in peers:  # what the page counts must be in both ledgers before they end
                peer.wait_for("plan", round=lambda number: number >= seen["num_plans"] - 1)
            for peer in (second, first):
                peer.signal(signal.SIGINT)
                assert peer.end() == 0, peer.words
            assert dashboard.pid is not None and dashboard.is_alive(), "it stays, and shows what it has"
            assert page()["num_plans"] >= seen["num_plans"]
            os.kill(dashboard.pid, signal.SIGINT)
            dashboard.join(LAST_SECONDS)
            assert dashboard.exitcode == 0
    finally:
        for peer in peers:
            peer.kill()

    on_page = [(row["peer"], row["tokens"]) for row in seen["peers"] if row["tokens"]]
    assert {peer for peer, _ in on_page} <= me == {row["peer"] for row in seen["peers"]}
    for peer in peers:
        assert receipts(peer.workdir, up_to=seen["num_plans"] - 1) == on_page, "anybody rebuilds the same numbers"
        joined = {event["peer"] for event in peer.events if event["event"] == "joined"}
        assert second.me in joined <= me, "the second peer took a seat, and the onlooker none"
        traffic = [event for event in peer.events if event["event"] == "traffic"]
        averaging = sum(event["bytes_sent"] for event in peer.events if event["event"] == "round")
        counted = {kind: sum(event["sent"][kind] for event in traffic) for kind in ("averaging", "gossip", "state")}
        assert counted["averaging"] >= averaging > 0 and counted["gossip"] > 0
    served = sum(event["sent"]["state"] for event in first.events if event["event"] == "traffic")
    received = sum(event["received"]["state"] for event in second.events if event["event"] == "traffic")
    assert served >= received >= 4 * 18_560, "the outer parameters of a joiner"
