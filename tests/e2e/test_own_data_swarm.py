"""A swarm whose instances have data of their own: real processes, from the warm-up on all data to one merged model."""

import json
from pathlib import Path

import pytest
import yaml

from tests.e2e.processes import TINY_MODEL, run
from tests.e2e.swarm_processes import Event, PeerProcess, digests_by_round, founded

FORK, ROUNDS = 2, 8


def write_own_data_config(folder: Path) -> tuple[Path, list[str]]:
    """Two instances, one for letters and one for digits, forked before round 2 and merged at the end; and the two files."""
    texts = {"letters": "the quick brown fox jumps over the lazy dog", "digits": "31 41 59 26 53 58 97 93 23 84 62 64 33"}
    for name, text in texts.items():
        words = text.split()
        lines = [" ".join(words[(n * place) % len(words)] for place in range(1, 40)) + f" {words[n % 9]}" for n in range(120)]
        (folder / f"{name}.txt").write_text("\n\n".join(f"{line} {'x' * (n % 7)}" for n, line in enumerate(lines)))
    files = [str(folder / f"{name}.txt") for name in texts]
    document = {
        "name": "own-data",
        "seed": 5,
        "model": TINY_MODEL,
        "data": {"source": "text", "mixture": dict.fromkeys(files, 1.0), "sequence_length": 32, "heldout_fraction": 0.2},
        "inner": {"learning_rate": 1e-2, "warmup_steps": 4},
        "work": {"inner_steps": 10, "rounds": ROUNDS},
        "instances": {"count": 2, "fork_round": FORK, "data": files},
        "batch": {"initial_batch": 8, "max_batch": 8},
        "merge": {"policy": "none", "guard": False},
        "evaluation": {"rows": 8},
        "admission": {"kind": "open", "probation_rounds": 0},
    }
    config = folder / "own-data.yaml"
    config.write_text(yaml.safe_dump(document, sort_keys=False))
    return config, files


@pytest.mark.heavy
def test_instances_train_on_their_own_data_and_become_one(peers: list[PeerProcess], tmp_path: Path) -> None:
    config, files = write_own_data_config(tmp_path)
    peers.append(PeerProcess(tmp_path / "first", ("start", config, *founded(tmp_path, "first", "second"))).start())
    joining = ("join", "--initial-peers", *peers[0].addresses())
    peers.append(PeerProcess(tmp_path / "second", joining).start())
    assert [peer.end() for peer in peers] == [0, 0]
    digests = digests_by_round(peers)
    assert digests and all(len(found) == 1 for found in digests.values())

    shown = run(["ledger", "--json", "--workdir", peers[1].workdir], folder=tmp_path)
    plans = {plan["round"]: [one["reads"] for one in plan["instances"]] for plan in map(json.loads, shown.output.splitlines())}
    assert plans == {n: [[]] if n in (*range(FORK), ROUNDS) else [[0], [1]] for n in range(ROUNDS + 1)}
    # Before the merge each is better on its own data than the other one is there.
    evaluated = [event for peer in peers for event in peer.events if event["event"] == "round" and event["heldout_losses"]]

    def newest(instance: int) -> dict[str, float]:
        """Its last losses by the files."""
        ours: list[Event] = [event for event in evaluated if event["instance"] == instance]
        last = max(ours, key=lambda event: event["round"])
        return dict(zip(peers[0].wait_for("started")["data_sets"], last["heldout_losses"], strict=True))

    letters, digits = files
    assert newest(0)[letters] < newest(1)[letters] and newest(1)[digits] < newest(0)[digits]
    measured = run(["evaluate", "--workdir", peers[1].workdir, "--json"], folder=tmp_path)
    assert {*json.loads(measured.output)["instances"][0]["heldout_by_data"]} == {*files}
