"""`model.share`: a joiner that may read no file of its machine gets the pretrained model from a peer, and trains it."""

from pathlib import Path

import pytest
import yaml

from tests.e2e import swarm_processes
from tests.e2e.processes import run
from tests.e2e.swarm_processes import PeerProcess, digests_by_round
from tests.e2e.tiny_chat import save_chat_model

pytestmark = [pytest.mark.heavy, pytest.mark.timeout(1800)]
PATIENCE = 400.0
"""The text of the standard library is read by each peer; on a machine that does other things, for minutes."""


def write_config(folder: Path) -> Path:
    save_chat_model(folder / "model")
    (folder / "model" / "modeling.py").write_text("raise SystemExit('code of the author')")
    document = {
        "name": "tiny-shared",
        "admission": {"kind": "open", "probation_rounds": 0},
        "mode": "diloco",
        "model": {"pretrained": str(folder / "model"), "share": True},
        "data": {"sequence_length": 64},
        "inner": {"learning_rate": 1e-2, "warmup_steps": 2},
        "work": {"inner_steps": 20, "rounds": 10000},
        "batch": {"initial_batch": 4, "max_batch": 4},
        "evaluation": {"rows": 8},
    }
    path = folder / "shared.yaml"
    path.write_text(yaml.safe_dump(document))
    return path


def test_a_joiner_with_nothing_gets_the_base_from_a_peer_and_trains(
    peers: list[PeerProcess], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    peers.append(PeerProcess(tmp_path / "first", ("start", write_config(tmp_path))).start())
    first = peers[0]
    first.wait_for("round", seconds=PATIENCE, round=0)
    monkeypatch.setattr(
        swarm_processes, "NETWORK", tuple(word for word in swarm_processes.NETWORK if "local_files" not in word)
    )
    peers.append(PeerProcess(tmp_path / "second", ("join", "--initial-peers", *first.addresses())).start())
    second = peers[1]
    second.wait_for("first_contribution", seconds=PATIENCE)
    assert "the pretrained model comes from other peers: " in second.output_path.read_text()
    held = {path.name: path.read_bytes() for path in (second.workdir / "base").iterdir()}
    assert set(held) == {path.name for path in (tmp_path / "model").iterdir()} - {"modeling.py"}
    assert all(data == (tmp_path / "model" / name).read_bytes() for name, data in held.items())
    assert not (second.workdir / "base.part").exists()
    digests = digests_by_round(peers)
    assert digests and all(len(found) == 1 for found in digests.values())

    first.kill()
    second.kill()
    (tmp_path / "model").rename(tmp_path / "elsewhere")
    ended = run(["export", "--workdir", second.workdir, "--output", tmp_path / "exported"], folder=tmp_path)
    assert ended.code == 0, ended
    assert str(second.workdir) not in (tmp_path / "exported" / "README.md").read_text()
