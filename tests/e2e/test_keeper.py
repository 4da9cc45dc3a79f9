"""A run that outlives those who trained it: from a keeper, and from the directories of killed peers without the author."""

import json
from pathlib import Path

import pytest

from tests.e2e.processes import run
from tests.e2e.swarm_processes import PeerProcess
from tests.e2e.test_admission import ticketed_config

LEARNED = 2.0
"""Nats per byte by which the loss has fallen before the run loses those that trained it: a newcomer that began anew would not
be there in its first round."""


def test_two_newcomers_go_on_from_a_keeper_alone(peers: list[PeerProcess], tmp_path: Path) -> None:
    author = PeerProcess(tmp_path / "author", ("start", ticketed_config(tmp_path))).start()
    peers.append(author)
    link = author.link()
    guest = PeerProcess(tmp_path / "guest", ("join", "--initial-peers", link)).start()
    keeper = PeerProcess(tmp_path / "keeper", ("keep", "--initial-peers", link)).start()
    peers += [guest, keeper]
    guest.wait_for("round", samples=lambda samples: samples > 0)
    kept = keeper.wait_for("round")
    assert kept["samples"] == 0
    seats = json.loads(run(["members", "--workdir", keeper.workdir, "--json"], folder=tmp_path).output)["members"]
    assert [seat["peer"] for seat in seats if seat["is_keeper"]] == [keeper.me]

    begun = author.wait_for("round", loss=lambda loss: loss is not None)["loss"]
    author.wait_for("round", loss=lambda loss: loss is not None and loss < begun - LEARNED)
    author.kill()
    guest.kill()
    keeper.wait_for("left", peer=author.me)
    keeper.wait_for("left", peer=guest.me)
    newest = [event for event in keeper.events if event["event"] == "round"][-1]
    newcomers = [
        PeerProcess(tmp_path / name, ("join", "--initial-peers", link, *keeper.addresses())).start()
        for name in ("new-0", "new-1")
    ]
    peers += newcomers
    for newcomer in newcomers:
        first = newcomer.wait_for("round", samples=lambda samples: samples > 0)
        assert first["round"] > newest["round"]
        assert first["loss"] < begun - LEARNED / 2, "it went on from what was trained"
    assert run(["ledger", "verify", "--workdir", newcomers[0].workdir], folder=tmp_path).code == 0
    keeper.wait_for("round", round=lambda number: number > newest["round"])
    kinds = {event["event"] for event in keeper.events}
    assert "progress" not in kinds, "a keeper never trains"


@pytest.mark.heavy
@pytest.mark.timeout(1800)
def test_all_but_the_author_come_back_to_the_newest_round_that_their_directories_hold(
    peers: list[PeerProcess], tmp_path: Path
) -> None:
    author = PeerProcess(tmp_path / "author", ("start", ticketed_config(tmp_path))).start()
    peers.append(author)
    link = author.link()
    guests = [PeerProcess(tmp_path / f"guest-{number}", ("join", "--initial-peers", link)).start() for number in range(2)]
    peers += guests
    for guest in guests:
        guest.wait_for("round", samples=lambda samples: samples > 0, loss=lambda loss: loss is not None and loss < 1.5)
        guest.wait_for("checkpoint", round=lambda number: number > 4)
    names = [guest.me for guest in guests]
    for peer in peers:
        peer.kill()
    ends = [max(event["round"] for event in guest.events if event["event"] == "round") for guest in guests]

    guests[0].start()
    guests[0].wait_for("round", round=lambda number: number > ends[0])
    assert "no known peer answers" in guests[0].words
    guests[1].start()
    for guest in guests:
        resumed = guest.wait_for("started")["resumed_round"]
        assert resumed is not None and resumed > 4
        trained = guest.wait_for("round", round=lambda number: number > max(ends), samples=lambda samples: samples > 0)
        assert trained["loss"] < 2.5, "it goes on where it was"
        guest.wait_for("round", hosts=lambda hosts: sorted(hosts) == sorted(names))
    verified = run(["ledger", "verify", "--workdir", guests[0].workdir], folder=tmp_path)
    assert verified.code == 0, verified.output
