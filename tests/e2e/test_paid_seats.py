"""Seats that cost computing, with three real processes at a price of about a second."""

import json
from pathlib import Path

import pytest
import yaml

from tests.e2e.processes import run
from tests.e2e.swarm_processes import PeerProcess, write_swarm_config


def paid_config(folder: Path) -> Path:
    config = write_swarm_config(folder, rounds=10_000, inner_steps=20)
    admission = {"kind": "work", "price_minutes": 0.02, "probation_rounds": 0}
    config.write_text(yaml.safe_dump(yaml.safe_load(config.read_text()) | {"admission": admission}))
    return config


@pytest.mark.heavy
def test_a_third_peer_pays_is_killed_and_comes_back(peers: list[PeerProcess], tmp_path: Path) -> None:
    first = PeerProcess(tmp_path / "first", ("start", paid_config(tmp_path))).start()
    peers.append(first)
    link = first.link()
    assert ",invite:" not in link
    second = PeerProcess(tmp_path / "second", ("join", "--initial-peers", link)).start()
    peers.append(second)
    second.wait_for("round", samples=lambda samples: samples > 0)
    third = PeerProcess(tmp_path / "third", ("join", "--initial-peers", link)).start()
    peers.append(third)
    third.wait_for("proving", is_over=True)
    assert (third.workdir / "proof.json").exists()
    assert "seat      paid with" in third.words
    third.kill()
    third.start()
    third.wait_for("round", samples=lambda samples: samples > 0)
    document = json.loads(run(["members", "--workdir", first.workdir, "--json"], folder=tmp_path).output)
    assert (document["admission"], document["price_minutes"]) == ("work", 0.02)
    assert {member["peer"] for member in document["members"]} == {first.me, second.me, third.me}
    shown = run(["members", "--workdir", first.workdir], folder=tmp_path).output
    assert "admission work, 0.02 min of one core a seat (120 attempts on average), 3 members" in shown
    invited = run(["invite", "--workdir", first.workdir], folder=tmp_path)
    assert invited.code == 0 and "the run asks for no invitation: admission work" in invited.output + invited.errors
    verified = run(["ledger", "verify", "--workdir", first.workdir], folder=tmp_path)
    assert verified.code == 0, verified
