"""`data.share`: a joiner that may read no file of its machine gets the text from a peer, and trains on it. The next one gets it
from that joiner."""

from pathlib import Path

import pytest
import yaml

from tests.e2e import swarm_processes
from tests.e2e.processes import run
from tests.e2e.swarm_processes import PeerProcess, digests_by_round, write_swarm_config

pytestmark = [pytest.mark.heavy, pytest.mark.timeout(1800)]
PATIENCE = 400.0
"""For each peer to start and train, on a machine that does other things too."""


def write_config(folder: Path) -> Path:
    """The run of the other tests, with its text divided into two files."""
    path = write_swarm_config(folder, rounds=10_000, inner_steps=20)
    paragraphs = (folder / "text.txt").read_text().split("\n\n")
    (folder / "own").mkdir()
    for number in range(2):
        (folder / "own" / f"{number}.txt").write_text("\n\n".join(paragraphs[number::2]))
    document = yaml.safe_load(path.read_text())
    document["data"] |= {"path": str(folder / "own" / "*.txt"), "share": True}
    path.write_text(yaml.safe_dump(document))
    return path


def test_joiners_with_nothing_get_the_text_from_peers_and_train(
    peers: list[PeerProcess], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = PeerProcess(tmp_path / "first", ("start", write_config(tmp_path))).start()
    peers.append(first)
    first.wait_for("round", seconds=PATIENCE, round=0)
    monkeypatch.setattr(
        swarm_processes, "NETWORK", tuple(word for word in swarm_processes.NETWORK if "local_files" not in word)
    )
    second = PeerProcess(tmp_path / "second", ("join", "--initial-peers", *first.addresses())).start()
    peers.append(second)
    second.wait_for("first_contribution", seconds=PATIENCE)
    assert "the text comes from other peers: " in second.output_path.read_text()
    held = {path.name: path.read_text() for path in (second.workdir / "text").iterdir()}
    own = {f"0000-0000{path.stem}.txt": path.read_text() for path in (tmp_path / "own").iterdir()}
    assert held == own and not (second.workdir / "text.part").exists()

    first.kill()
    (tmp_path / "own").rename(tmp_path / "elsewhere")
    third = PeerProcess(tmp_path / "third", ("join", "--initial-peers", *second.addresses())).start()
    peers.append(third)
    third.wait_for("first_contribution", seconds=PATIENCE)
    digests = digests_by_round(peers)
    assert digests and all(len(found) == 1 for found in digests.values())

    third.kill()
    evaluated = run(["evaluate", "--workdir", third.workdir], folder=tmp_path)
    assert evaluated.code == 0, evaluated
