"""A run that admits by tickets, with real processes: the link is the capability, and it is nowhere else."""

import json
import signal
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.e2e.processes import run
from tests.e2e.swarm_processes import LOOPBACK, PeerProcess, processes_of, wait, write_swarm_config

PLACES_OF_TOKENS = {"invitations.txt"}
"""Files of a signer's working directory that may hold an invitation."""


@pytest.fixture
def peers(tmp_path: Path) -> Iterator[list[PeerProcess]]:
    started: list[PeerProcess] = []
    yield started
    for peer in started:
        peer.kill()
    wait(lambda: not processes_of(tmp_path), f"nothing to be left of {processes_of(tmp_path)}")


def ticketed_config(folder: Path) -> Path:
    config = write_swarm_config(folder, rounds=10_000, inner_steps=20)
    document = yaml.safe_load(config.read_text()) | {"admission": {"kind": "tickets"}}
    config.write_text(yaml.safe_dump(document))
    return config


def roster_of(peer: PeerProcess, folder: Path) -> dict[str, dict[str, object]]:
    """The members, as the ledger of the peer has them."""
    words = run(["members", "--workdir", peer.workdir, "--json"], folder=folder).output
    return {member["peer"]: member for member in json.loads(words)["members"]}


def test_the_link_lets_in_and_the_bare_address_does_not(peers: list[PeerProcess], tmp_path: Path) -> None:
    first = PeerProcess(tmp_path / "first", ("start", ticketed_config(tmp_path))).start()
    peers.append(first)
    link = first.said(r"^join link: (.+)$")
    bare, _, token = link.partition(",invite:")
    assert token
    assert "the link lets in everybody who has it: 8 seats" in first.words

    stranger = PeerProcess(tmp_path / "stranger", ("join", "--initial-peers", bare)).start()
    guest = PeerProcess(tmp_path / "guest", ("join", "--initial-peers", link)).start()
    peers += [stranger, guest]
    assert stranger.end() == 2
    refusals = [line for line in stranger.words.splitlines() if "E221" in line]
    assert len(refusals) == 1
    assert "adloco-peer invite" in refusals[0]

    guest.wait_for("round", samples=lambda samples: samples > 0)
    assert f"address of the run: {bare.split(',')[0]}" in guest.words
    assert guest.me in roster_of(first, tmp_path)
    assert run(["ledger", "verify", "--workdir", first.workdir], folder=tmp_path).code == 0
    status = run(["status", "--workdir", first.workdir], folder=tmp_path).output
    assert bare in status
    assert token not in status
    run(["bundle", "--workdir", first.workdir], folder=tmp_path)
    with zipfile.ZipFile(first.workdir / "support-bundle.zip") as bundle:
        assert all(token.encode() not in bundle.read(name) for name in bundle.namelist())
    first.kill()  # a running peer renames its checkpoints
    (first.workdir / "journal.bin").unlink()  # as while the node that begins a run loads its model
    assert ",invite:" in run(["invite", "--workdir", first.workdir], folder=tmp_path).output
    holders = {path.name for path in first.workdir.rglob("*") if path.is_file() and token.encode() in path.read_bytes()}
    assert holders == PLACES_OF_TOKENS


def test_a_guest_comes_back_by_the_bare_address_until_it_is_banned(peers: list[PeerProcess], tmp_path: Path) -> None:
    first = PeerProcess(tmp_path / "first", ("start", ticketed_config(tmp_path))).start()
    peers.append(first)
    link = first.said(r"^join link: (.+)$")
    guest = PeerProcess(tmp_path / "guest", ("join", "--initial-peers", link)).start()
    peers.append(guest)
    guest.wait_for("round", samples=lambda samples: samples > 0)
    guest.signal(signal.SIGINT)
    assert guest.end() == 0
    (guest.workdir / "ticket.json").unlink()
    returned = PeerProcess(tmp_path / "guest", ("join", "--initial-peers", link.partition(",invite:")[0])).start()
    peers.append(returned)
    returned.wait_for("round", samples=lambda samples: samples > 0)

    banned = returned.me
    assert run(["ban", banned[-8:], "--reason", "tests", "--workdir", first.workdir], folder=tmp_path).code == 0
    assert returned.end() == 2
    assert "is banned from this run" in returned.words
    assert banned not in roster_of(first, tmp_path)
    bans = json.loads(run(["ledger", "bans", "--json", "--workdir", first.workdir], folder=tmp_path).output)
    assert [(ban["peer"], ban["reason"], ban["signer"]) for ban in bans] == [(banned, "tests", first.me)]
    assert run(["ledger", "verify", "--workdir", first.workdir], folder=tmp_path).code == 0


def test_an_invitation_of_one_seat_and_a_revoked_one(peers: list[PeerProcess], tmp_path: Path) -> None:
    first = PeerProcess(tmp_path / "first", ("start", ticketed_config(tmp_path))).start()
    peers.append(first)
    first.wait_for("round", round=1)
    made = run(["invite", "--each", "2", "--json", "--workdir", first.workdir], folder=tmp_path).output
    single, revoked = [invitation["link"] for invitation in json.loads(made)["invitations"]]
    assert run(["invite", "--revoke", revoked, "--workdir", first.workdir], folder=tmp_path).code == 0
    wait(lambda: not list((first.workdir / "statements").glob("*.json")), "the revocation to be in the ledger", first)

    guest = PeerProcess(tmp_path / "guest", ("join", "--initial-peers", single)).start()
    peers.append(guest)
    guest.wait_for("round", samples=lambda samples: samples > 0)
    late = PeerProcess(tmp_path / "late", ("join", "--initial-peers", single)).start()
    unwelcome = PeerProcess(tmp_path / "unwelcome", ("join", "--initial-peers", revoked)).start()
    peers += [late, unwelcome]
    assert [late.end(), unwelcome.end()] == [2, 2]
    assert "all 1 seats of the invitation are taken" in late.words
    assert "the invitation was revoked" in unwelcome.words
    other = run(["invite", "--workdir", guest.workdir], folder=tmp_path)
    assert other.code == 2
    assert "E222" in other.errors
    assert LOOPBACK.split("/")[2] in single
