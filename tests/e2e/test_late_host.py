"""A real process is killed in the middle of a round and starts again: it contributes the inner steps that it has time for."""

import signal
import time
from pathlib import Path

import pytest

import adloco_p2p
from tests.e2e.swarm_processes import PeerProcess, digests_by_round, founded, write_swarm_config

NAMES = ("first", "second", "third", "victim")
STEPS, STEP_SECONDS = 48, 0.75
PACED = ("paced", str(STEP_SECONDS))
SETTLED_ROUND = 2
"""After it a plan knows the speeds, from which the lateness of a host follows."""
STEPS_BEFORE = 8
"""Done when it is killed; they are lost."""
AWAY_SECONDS = 5.0


@pytest.mark.heavy
def test_a_host_that_was_killed_in_a_round_contributes_the_steps_that_it_did_after_its_restart(
    peers: list[PeerProcess], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = write_swarm_config(tmp_path, rounds=10_000, inner_steps=STEPS)
    peers.append(PeerProcess(tmp_path / "first", ("start", config, *founded(tmp_path, *NAMES))).start(fault=PACED))
    for name in NAMES[1:]:
        join = ("join", "--initial-peers", *peers[0].addresses())
        peers.append(PeerProcess(tmp_path / name, join).start(fault=PACED))
    first, *_, victim = peers
    me = victim.me
    began = victim.wait_for("round", round=SETTLED_ROUND)["time"]
    time.sleep(max(0.0, began + STEPS_BEFORE * STEP_SECONDS - time.time()))
    late = SETTLED_ROUND + 1
    victim.kill()
    time.sleep(AWAY_SECONDS)
    victim.start(fault=PACED)

    own = victim.wait_for("round", round=late)
    theirs = first.wait_for("round", round=late)
    whole = first.wait_for("round", round=late - 1)
    with capsys.disabled():
        steps = own["samples"] * STEPS / whole["samples"]
        seconds = [sum(event["seconds"].values()) for event in (theirs, whole)]
        print(f"\n{steps:g} of {STEPS} steps counted; the round took {seconds[0]:.1f} s, the one before it {seconds[1]:.1f} s")
    assert me in theirs["hosts"] and len(theirs["hosts"]) == len(NAMES), "its work is in the average"
    assert 0 < own["samples"] < whole["samples"], "a part of a round, and its tokens count"
    assert 0 < own["tokens"] < whole["tokens"]
    first.wait_for("plan", round=late + 2)  # it holds the reports of the round
    rows = [row for row in adloco_p2p.Run(first.workdir).reports if (row.round, row.peer) == (late, me)]
    assert [row.samples for row in rows] == [own["samples"]], "its signed report, in the ledger of another"
    assert STEPS // 8 <= rows[0].inner_steps < STEPS
    for peer in peers:
        peer.signal(signal.SIGINT)
    assert [peer.end() for peer in peers] == [0] * len(peers)
    assert all(len(found) == 1 for found in digests_by_round(peers).values())
