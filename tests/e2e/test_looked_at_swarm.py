"""Contributions looked at between real processes: a member that trains nothing is given less work, and nobody else is.

    python -m pytest -m heavy tests/e2e/test_looked_at_swarm.py

takes two minutes a kind on two idle cores.
"""

import json
import re
import signal
from pathlib import Path
from typing import Any

import pytest
import yaml

from adloco_p2p.core.planning.assessment import IDLE_FRACTION
from tests.e2e.processes import run
from tests.e2e.swarm_processes import PeerProcess, digests_by_round, founded, wait, write_swarm_config

WAIT_LIMIT_SECONDS = 900.0
"""For each step of the story, on a machine that does other things too."""
NAMES = ("first", "second", "third", "fourth", "fifth", "idler")
BATCH = 2 * len(NAMES)


def write_looked_at_config(folder: Path) -> Path:
    """Two rows a step for each host, out of a text that is far longer than the run: rows that no host was given are new."""
    config = write_swarm_config(folder, rounds=10_000, inner_steps=32)
    document = yaml.safe_load(config.read_text())
    document["data"] = {"sequence_length": 64}
    document["inner"] = {"learning_rate": 6e-3, "warmup_steps": 64}
    document["batch"] = {"initial_batch": BATCH, "max_batch": BATCH}
    document["work"]["share"] = "equal"
    document["averaging"] = {"assess_every": 1}
    config.write_text(yaml.safe_dump(document))
    return config


def plans(peer: PeerProcess, folder: Path) -> list[dict[str, Any]]:
    """Its ledger: the one instance in the plan of each round."""
    shown = run(["ledger", "--json", "--workdir", peer.workdir], folder=folder)
    assert shown.code == 0, shown
    return [plan["instances"][0] for plan in map(json.loads, shown.output.splitlines()) if plan["instances"]]


def rows_given(peer: PeerProcess) -> dict[str, int]:
    """By host, per inner step, in the newest plan that it has."""
    newest = [event for event in peer.events if event["event"] == "plan"][-1]
    return {host["peer"]: host["batch_samples"] for host in newest["instances"][0]["hosts"]}


@pytest.mark.heavy
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("kind", ["idle", "hidden"])
def test_a_member_that_trains_nothing_or_shows_nothing_is_given_a_quarter(
    kind: str, peers: list[PeerProcess], tmp_path: Path
) -> None:
    config = write_looked_at_config(tmp_path)
    peers.append(PeerProcess(tmp_path / NAMES[0], ("start", config, *founded(tmp_path, *NAMES[1:]))).start())
    join = ("join", "--initial-peers", *peers[0].addresses())
    for name in NAMES[1:]:
        fault = ("misbehave", kind) if name == NAMES[-1] else ()
        peers.append(PeerProcess(tmp_path / name, join).start(fault=fault))
    idler, honest = peers[-1].me, [peer.me for peer in peers[:-1]]

    def is_given_less() -> bool:
        rows = rows_given(peers[0])
        return len(rows) == len(NAMES) and rows[idler] <= 2 * IDLE_FRACTION * min(rows[peer] for peer in honest)

    peers[0].wait_for("plan", seconds=WAIT_LIMIT_SECONDS)
    wait(is_given_less, "a plan with less work for the idler", *peers, seconds=WAIT_LIMIT_SECONDS)
    for peer in peers:
        peer.signal(signal.SIGINT)
    assert [peer.end(seconds=WAIT_LIMIT_SECONDS) for peer in peers] == [0] * len(NAMES)
    reasons = [item["reason"] for item in plans(peers[0], tmp_path)]
    given_less = {peer for reason in reasons for peer in re.findall(r"(\w+) \(mean score ", reason)}
    assert given_less == {idler}, "nobody else, in any plan"
    looks = [event for peer in peers for event in peer.events if event["event"] == "looked_at"]
    of_idler = [event["score"] for event in looks if event["peer"] == idler and event["score"] is not None]
    assert of_idler and (kind == "idle" or not any(of_idler)), of_idler
    assert not {key: found for key, found in digests_by_round(peers).items() if len(found) > 1}
