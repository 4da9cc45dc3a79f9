"""A run of real processes that are upgraded one by one, with one that is not, one that comes too late, and one that returns."""

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from adloco_p2p.core.model.protocol import CANNOT_FOLLOW, NEWEST, unfollowed
from tests.e2e.processes import run
from tests.e2e.swarm_processes import NETWORK, PeerProcess, write_swarm_config

NEXT = NEWEST + 1
OUTGROWN = unfollowed(NEXT)
NEXT_RELEASE = Path(__file__).with_name("next_release.py")


def upgrade(peer: PeerProcess) -> None:
    """Stop it as its user would, and start it from the same directory with the next release."""
    if peer.process.exitcode is None:
        peer.signal(signal.SIGINT)
        peer.end()
    peer.start(fault=("newer_protocol", *map(str, peer.verb), "--workdir", str(peer.workdir), *NETWORK))


def by_the_next_release(*arguments: object) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, str(NEXT_RELEASE), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)


@pytest.mark.heavy
@pytest.mark.timeout(1800)
def test_a_run_goes_over_once_all_that_decide_are_upgraded_and_a_late_one_returns(
    peers: list[PeerProcess], tmp_path: Path
) -> None:
    config = write_swarm_config(tmp_path, rounds=10_000, inner_steps=20)
    first = PeerProcess(tmp_path / "first", ("start", config)).start()
    peers.append(first)
    joining = ("--initial-peers", *first.addresses())
    second = PeerProcess(tmp_path / "second", ("join", *joining)).start()
    keeper = PeerProcess(tmp_path / "keeper", ("keep", *joining)).start()
    peers += [second, keeper]
    second.wait_for("round", samples=lambda samples: samples > 0)
    keeper.wait_for("round")

    upgrade(second)
    half = second.wait_for("plan", reason=lambda reason: f"1 of 2 electors can follow protocol {NEXT}" in reason)
    assert (half["protocol"], half["upgrade_round"]) == (NEWEST, None)
    upgrade(first)
    agreed = second.wait_for("plan", upgrade_round=lambda number: number is not None)
    over = second.wait_for("plan", protocol=NEXT)  # perhaps while the first one is away
    first.wait_for("round", round=lambda number: number > over["round"], samples=lambda samples: samples > 0)
    assert over["round"] >= agreed["round"]

    paused = keeper.wait_for("paused")
    assert paused["round"] <= over["round"]
    warnings = [event for event in keeper.events if event["event"] == "warning" and event["key"] == CANNOT_FOLLOW]
    assert warnings and (warnings[-1]["message"], warnings[-1]["active"]) == (OUTGROWN, True), warnings
    status = json.loads(by_the_next_release("status", "--workdir", first.workdir, "--json").stdout)
    assert (status["protocol"], status["upgrade_round"]) == (NEXT, None)
    assert OUTGROWN in run(["resume", "--workdir", keeper.workdir], folder=tmp_path).output

    keeper.signal(signal.SIGINT)
    assert keeper.end() == 0
    keeper.start()
    assert keeper.end() == 3
    assert OUTGROWN in keeper.words and "Traceback" not in keeper.words
    late = PeerProcess(tmp_path / "late", ("join", "--initial-peers", *first.addresses())).start()
    peers.append(late)
    assert late.end() == 3
    assert OUTGROWN in late.words and "Traceback" not in late.words
    (found,) = [
        result
        for result in json.loads(run(["doctor", "--json", "--initial-peers", *first.addresses()], folder=tmp_path).output)[
            "results"
        ]
        if result["check"] == "protocol"
    ]
    assert found["code"] == "E324" and str(NEXT) in found["found"]

    upgrade(keeper)
    keeper.wait_for("round", round=lambda number: number > over["round"])
    verified = by_the_next_release("ledger", "verify", "--workdir", first.workdir)
    assert verified.returncode == 0, verified.stdout
    refused = run(["ledger", "verify", "--workdir", first.workdir], folder=tmp_path)
    assert refused.code == 1 and OUTGROWN in refused.output
