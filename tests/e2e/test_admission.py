"""A run that admits by tickets, with real processes: the link is the capability, and it is nowhere else."""

import json
import re
import signal
import zipfile
from pathlib import Path

import pytest
import yaml

from tests.e2e.processes import run
from tests.e2e.swarm_processes import PeerProcess, wait, write_swarm_config

PLACES_OF_TOKENS = {"invitations.txt"}
"""Files of a signer's working directory that may hold an invitation."""


def ticketed_config(folder: Path) -> Path:
    """Without probation: whether a guest comes within the first rounds, whose seats are full at once, would be the machine's
    speed."""
    config = write_swarm_config(folder, rounds=10_000, inner_steps=20)
    document = yaml.safe_load(config.read_text()) | {"admission": {"kind": "tickets", "probation_rounds": 0}}
    config.write_text(yaml.safe_dump(document))
    return config


def roster_of(peer: PeerProcess, folder: Path) -> dict[str, dict[str, object]]:
    """The members, as the ledger of the peer has them."""
    words = run(["members", "--workdir", peer.workdir, "--json"], folder=folder).output
    return {member["peer"]: member for member in json.loads(words)["members"]}


def works(peer: PeerProcess) -> None:
    """It has a seat, and does what it was given."""
    peer.wait_for("round", samples=lambda samples: samples > 0)


@pytest.mark.heavy
def test_who_is_let_in_who_is_not_and_who_is_banned(peers: list[PeerProcess], tmp_path: Path) -> None:
    first = PeerProcess(tmp_path / "first", ("start", ticketed_config(tmp_path))).start()
    peers.append(first)
    link = first.link()
    assert first.said(r"^the link lets in everybody who has it: (\d+) seats") == "8"
    bare, _, token = link.partition(",invite:")
    assert token
    stranger = PeerProcess(tmp_path / "stranger", ("join", "--initial-peers", bare)).start()
    guest = PeerProcess(tmp_path / "guest", ("join", "--initial-peers", link)).start()
    peers += [stranger, guest]
    assert stranger.end() == 2
    refusals = [line for line in stranger.words.splitlines() if "E221" in line]
    assert len(refusals) == 1
    assert "adloco-peer invite" in refusals[0]
    works(guest)
    assert f"address of the run: {bare.split(',')[0]}" in guest.words
    wait(lambda: guest.me in roster_of(first, tmp_path), "the guest to be a member", first, guest)

    _one_seat_is_one_and_none_after_a_revocation(first, guest, peers, tmp_path)
    _comes_back_by_the_bare_address_until_it_is_banned(first, guest, bare, tmp_path)
    assert run(["ledger", "verify", "--workdir", first.workdir], folder=tmp_path).code == 0
    _the_token_is_in_one_file_only(first, bare, token, tmp_path)


def _one_seat_is_one_and_none_after_a_revocation(
    first: PeerProcess, guest: PeerProcess, peers: list[PeerProcess], folder: Path
) -> None:
    made = run(["invite", "--each", "2", "--json", "--workdir", first.workdir], folder=folder).output
    single, revoked = [invitation["link"] for invitation in json.loads(made)["invitations"]]
    ended = run(["invite", "--revoke", revoked, "--workdir", first.workdir], folder=folder)
    assert ended.code == 0 and ended.output.startswith("signed: the end of the invitation")
    wait(lambda: not list((first.workdir / "statements").glob("*.json")), "the revocation to be in the ledger", first)
    shown = run(["members", "--workdir", first.workdir], folder=folder).output
    assert re.search(r"^invitation \w+: 0 seats taken, revoked$", shown, re.MULTILINE), shown
    unwelcome = PeerProcess(folder / "unwelcome", ("join", "--initial-peers", revoked)).start()
    second = PeerProcess(folder / "second", ("join", "--initial-peers", single)).start()
    peers += [unwelcome, second]
    works(second)
    late = PeerProcess(folder / "late", ("join", "--initial-peers", single)).start()
    peers.append(late)
    assert [late.end(), unwelcome.end()] == [2, 2]
    assert "no seat of the invitation is left: it has 1" in late.words
    assert "the invitation was revoked" in unwelcome.words
    other = run(["invite", "--workdir", guest.workdir], folder=folder)
    assert other.code == 2
    assert "E222" in other.errors
    second.signal(signal.SIGINT)
    assert second.end() == 0


def _comes_back_by_the_bare_address_until_it_is_banned(first: PeerProcess, guest: PeerProcess, bare: str, folder: Path) -> None:
    banned = guest.me
    guest.signal(signal.SIGINT)
    assert guest.end() == 0
    (guest.workdir / "ticket.json").unlink()
    guest.verb = ("join", "--initial-peers", bare)
    works(guest.start())
    assert guest.me == banned
    assert run(["ban", banned[-8:], "--reason", "tests", "--workdir", first.workdir], folder=folder).code == 0
    assert guest.end() == 2
    assert "is banned from this run: tests; no link helps; a signer of the run lifts a ban" in guest.words
    assert re.search(rf"^ban +banned in round \d+ by {first.me}: tests$", guest.words, re.MULTILINE), guest.words
    wait(lambda: banned not in roster_of(first, folder), "the ban to be in the ledger", first)
    bans = json.loads(run(["ledger", "bans", "--json", "--workdir", first.workdir], folder=folder).output)
    assert [(ban["peer"], ban["reason"], ban["signer"]) for ban in bans] == [(banned, "tests", first.me)]
    asked = run(["status", "--workdir", guest.workdir], folder=folder)
    assert asked.code == 2 and "E221" in asked.errors and "this peer is banned in round" in asked.errors, asked

    def is_shown() -> bool:
        shown = json.loads(run(["status", "--workdir", first.workdir, "--json"], folder=folder).output)["peers"]
        return banned in [row["peer"] for row in shown]

    wait(lambda: not is_shown(), "the screens of others to forget the banned peer", first)


def _the_token_is_in_one_file_only(first: PeerProcess, bare: str, token: str, folder: Path) -> None:
    status = run(["status", "--workdir", first.workdir], folder=folder).output
    assert bare in status
    assert token not in status
    run(["bundle", "--workdir", first.workdir], folder=folder)
    with zipfile.ZipFile(first.workdir / "support-bundle.zip") as bundle:
        assert all(token.encode() not in bundle.read(name) for name in bundle.namelist())
    first.kill()  # a running peer renames its checkpoints
    (first.workdir / "journal.bin").unlink()  # as while the node that begins a run loads its model
    assert ",invite:" in run(["invite", "--workdir", first.workdir], folder=folder).output
    holders = {path.name for path in first.workdir.rglob("*") if path.is_file() and token.encode() in path.read_bytes()}
    assert holders == PLACES_OF_TOKENS
