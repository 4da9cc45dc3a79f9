"""A signer's commands to a live run, with real processes."""

import json
from pathlib import Path

from tests.e2e.processes import run
from tests.e2e.swarm_processes import PeerProcess, wait
from tests.e2e.test_admission import ticketed_config


def members(peer: PeerProcess, folder: Path) -> dict[str, object]:
    document: dict[str, object] = json.loads(run(["members", "--workdir", peer.workdir, "--json"], folder=folder).output)
    return document


def test_the_author_pauses_and_resumes_and_another_signer_ends_the_run(peers: list[PeerProcess], tmp_path: Path) -> None:
    author = PeerProcess(tmp_path / "author", ("start", ticketed_config(tmp_path))).start()
    peers.append(author)
    guest = PeerProcess(tmp_path / "guest", ("join", "--initial-peers", author.link())).start()
    peers.append(guest)
    guest.wait_for("round", samples=lambda samples: samples > 0)

    def told(who: PeerProcess, *arguments: object) -> None:
        ended = run([*arguments, "--workdir", who.workdir], folder=tmp_path)
        assert ended.code == 0, ended.errors
        wait(lambda: not list((who.workdir / "statements").glob("*.json")), f"{arguments} to be in the ledger", who)

    refused = run(["command", "pause", "--workdir", guest.workdir], folder=tmp_path)
    assert refused.code == 2
    assert "E222" in refused.errors
    told(author, "command", "set", "--learning-rate-factor", "0.5")
    told(author, "command", "pause")
    paused_from = members(author, tmp_path)["course"]["paused_from"]  # type: ignore[index]
    assert paused_from is not None
    guest.wait_for("round", round=lambda number: number >= paused_from - 1)
    assert (
        f"a signer pauses the run before round {paused_from}"
        in run(["status", "--workdir", guest.workdir], folder=tmp_path).output
    )

    told_late = run(["signers", "--add", guest.me, "--workdir", author.workdir], folder=tmp_path)
    assert told_late.code == 0
    assert not [event for event in guest.events if event["event"] == "plan" and event["round"] >= paused_from]
    told(author, "command", "resume")
    guest.wait_for("round", round=lambda number: number >= paused_from)
    both = sorted([author.me, guest.me])
    wait(lambda: members(guest, tmp_path)["signers"] == both, "the second signer to be in the ledger", author, guest)

    author.kill()
    told(guest, "signers", "--remove", author.me[-8:])
    invited = run(["invite", "--workdir", guest.workdir], folder=tmp_path)
    assert invited.code == 0
    last = run(["signers", "--remove", guest.me, "--workdir", guest.workdir], folder=tmp_path)
    assert last.code == 2
    assert "without a signer" in last.errors
    assert run(["command", "stop", "--reason", "the tests", "--workdir", guest.workdir], folder=tmp_path).code == 0
    assert guest.end() == 0
    end = members(guest, tmp_path)["course"]["last_round"]  # type: ignore[index]
    assert f"a signer ends the run after round {end}" in guest.words
    finished = guest.wait_for("finished")
    assert finished["round"] == end + 1
    assert run(["ledger", "verify", "--workdir", guest.workdir], folder=tmp_path).code == 0
    assert run(["export", "--workdir", guest.workdir, "--output", tmp_path / "model"], folder=tmp_path).code == 0
