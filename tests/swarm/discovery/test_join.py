"""Which of the announced peers are remembered for the next start, and for how long a run is looked for."""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from random import Random
from types import SimpleNamespace

import pytest

from adloco_p2p.core.model.scalars import Digest, PeerId
from adloco_p2p.errors import RunNotHeld, SwarmError
from adloco_p2p.swarm.discovery import join
from adloco_p2p.swarm.discovery.join import (
    DISCOVERY_SECONDS,
    LOOK_SECONDS,
    MAX_OTHERS_DIALLED,
    NOT_HELD_SECONDS,
    choose_run,
    connect_to_run,
    find_manifest,
)
from adloco_p2p.swarm.p2p.address_book import MAX_STRANGERS, AddressBook
from adloco_p2p.swarm.p2p.addresses import parse_peer_address
from adloco_p2p.swarm.p2p.dht_records import PeerRecord, RunRecord

RUN = Digest("ab" * 32)
ALICE = "12D3KooWQkxwZWd7pAqo4nri2UXpypCziQafHx7YoEtdZBsauLWL"
"""A name in the form that addresses have."""
KNOWN, ANSWERS, SILENT = PeerId("known"), PeerId("answers"), PeerId("silent")
ADDRESSES = {peer: f"/ip4/192.0.2.{place}/tcp/1/p2p/{peer}" for place, peer in enumerate((KNOWN, ANSWERS, SILENT), 1)}


class Announced:
    """A discovery in which three peers are announced."""

    async def find_peers(self, run: Digest) -> list[PeerRecord]:
        return [
            PeerRecord(run=run, peer=peer, addresses=(ADDRESSES[peer],), nickname="", version="", protocol=1, expiration=1.0)
            for peer in (KNOWN, ANSWERS, SILENT)
        ]


class Dialling:
    """A node that is connected with one of them, and reaches one of the other two."""

    p2p = None

    def __init__(self) -> None:
        self.book: list[str] = []

    async def addresses(self) -> tuple[str, ...]:
        return ()

    async def peers_connected(self) -> tuple[PeerId, ...]:
        return (KNOWN,)

    async def connect(self, addresses: Iterable[str], *, should_retry: bool) -> Mapping[PeerId, str | None]:
        assert list(addresses) == [ADDRESSES[ANSWERS], ADDRESSES[SILENT]] and not should_retry
        return {ANSWERS: None, SILENT: "no answer"}

    def remember(self, addresses: Iterable[str], *, strangers: Iterable[str]) -> None:
        self.book += [*addresses, *strangers]


def test_only_peers_that_were_reached_are_remembered() -> None:
    node = Dialling()
    known = asyncio.run(connect_to_run(node, Announced(), RUN, should_retry=False))  # type: ignore[arg-type]
    assert known.connected == (ANSWERS, KNOWN) and known.unreached == {SILENT: "no answer"}
    assert node.book == [ADDRESSES[KNOWN], ADDRESSES[ANSWERS]]


def test_a_crowd_of_connected_strangers_leaves_the_members_in_the_book(tmp_path: Path) -> None:
    crowd = [PeerId(f"{ALICE[:-3]}A{a}{b}") for a in "ABCDEFGHJK" for b in "ABCDEFGHJK"]
    members = [PeerId(f"{ALICE[:-3]}zz{c}") for c in "xyz"]  # the last ones by name

    class Crowded(Announced):
        async def find_peers(self, run: Digest) -> list[PeerRecord]:
            (like, *_) = await super().find_peers(run)
            return [replace(like, peer=peer, addresses=(f"/ip4/192.0.2.9/tcp/1/p2p/{peer}",)) for peer in (*crowd, *members)]

    class Node(Dialling):
        async def peers_connected(self) -> tuple[PeerId, ...]:
            return (*crowd, *members)

        def remember(self, addresses: Iterable[str], *, strangers: Iterable[str]) -> None:
            book = AddressBook(tmp_path / "peers.json")
            book.add_peers(map(parse_peer_address, addresses), strangers=map(parse_peer_address, strangers))

    def look(members: Sequence[PeerId]) -> list[PeerId]:
        asyncio.run(connect_to_run(Node(), Crowded(), RUN, should_retry=False, members=members))  # type: ignore[arg-type]
        return [address.peer for address in AddressBook(tmp_path / "peers.json").peers]

    assert len(look([])) == MAX_STRANGERS, "a joiner does not know the members at first"
    assert look(members) == [*members, *crowd[:MAX_STRANGERS]]
    assert look([])[: len(members)] == members


def test_of_names_without_a_seat_a_few_are_dialled_at_a_time_and_members_always(monkeypatch: pytest.MonkeyPatch) -> None:
    """Review A10: a stranger announces names without number, with addresses of a third party."""
    monkeypatch.setattr(join, "_RANDOM", Random(0))
    members = [PeerId(f"member{number:02}") for number in range(12)]
    others = [PeerId(f"other{number:02}") for number in range(40)]
    dialled: list[set[PeerId]] = []

    class Flooded(Announced):
        async def find_peers(self, run: Digest) -> list[PeerRecord]:
            (like, *_) = await super().find_peers(run)
            return [replace(like, peer=peer, addresses=(f"/ip4/192.0.2.9/tcp/1/p2p/{peer}",)) for peer in (*others, *members)]

    class Node(Dialling):
        async def connect(self, addresses: Iterable[str], *, should_retry: bool) -> Mapping[PeerId, str | None]:
            dialled.append({PeerId(address.rpartition("/")[2]) for address in addresses})
            return dict.fromkeys(dialled[-1], "no answer")

    for _ in range(40):
        asyncio.run(connect_to_run(Node(), Flooded(), RUN, should_retry=True, members=members))  # type: ignore[arg-type]
    assert all(set(members) < found and len(found) == len(members) + MAX_OTHERS_DIALLED for found in dialled)
    assert set().union(*dialled) == {*members, *others}, "each has its turn"


@pytest.mark.parametrize("patience", [DISCOVERY_SECONDS, 300.0])
def test_a_run_that_is_not_announced_yet_is_looked_for_as_long_as_the_caller_wants(
    patience: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 0.0

    async def sleep(seconds: float) -> None:
        nonlocal now
        now += seconds

    class Late:
        async def list_runs(self) -> list[SimpleNamespace]:
            return [SimpleNamespace(run=RUN)] if now > DISCOVERY_SECONDS + 10.0 else []

    monkeypatch.setattr(join, "asyncio", SimpleNamespace(sleep=sleep))
    monkeypatch.setattr(join, "time", SimpleNamespace(monotonic=lambda: now))
    found = choose_run(Late(), wanted=None, seconds=patience)  # type: ignore[arg-type]
    if patience > DISCOVERY_SECONDS:
        assert asyncio.run(found) == RUN
    else:
        with pytest.raises(SwarmError, match="no run is announced"):
            asyncio.run(found)


@pytest.mark.parametrize("ready_at", [0.0, 20.0, DISCOVERY_SECONDS + 10.0])
def test_a_peer_that_still_loads_its_model_is_asked_again_for_a_while(ready_at: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its link leads to it before it answers."""
    now = 0.0
    asked: list[list[PeerId]] = []
    said: list[str] = []

    async def sleep(seconds: float) -> None:
        nonlocal now
        now += seconds

    async def fetch_manifest(p2p: object, peers: Iterable[PeerId], run: Digest) -> str:
        asked.append(list(peers))
        if now < ready_at:
            raise SwarmError("no peer could give the manifest", code="E304")
        return "the manifest"

    monkeypatch.setattr(join, "asyncio", SimpleNamespace(sleep=sleep))
    monkeypatch.setattr(join, "time", SimpleNamespace(monotonic=lambda: now))
    monkeypatch.setattr(join, "fetch_manifest", fetch_manifest)
    found = find_manifest(Dialling(), Announced(), RUN, say=said.append)  # type: ignore[arg-type]
    if ready_at > DISCOVERY_SECONDS:
        with pytest.raises(SwarmError, match="no peer could give the manifest"):
            asyncio.run(found)
    else:
        assert asyncio.run(found) == "the manifest"
    assert all(peers == [ANSWERS, KNOWN, KNOWN] for peers in asked)
    assert (len(asked) - 1) * LOOK_SECONDS == pytest.approx(min(ready_at, DISCOVERY_SECONDS), abs=LOOK_SECONDS)
    assert len(said) == (ready_at > 0) and all("asking again for 60 s in all" in words for words in said)


def test_peers_that_all_have_not_the_run_of_a_link_are_not_asked_for_a_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0

    async def sleep(seconds: float) -> None:
        nonlocal now
        now += seconds

    async def fetch_manifest(p2p: object, peers: Iterable[PeerId], run: Digest) -> str:
        raise RunNotHeld("no peer could give the manifest")

    monkeypatch.setattr(join, "asyncio", SimpleNamespace(sleep=sleep))
    monkeypatch.setattr(join, "time", SimpleNamespace(monotonic=lambda: now))
    monkeypatch.setattr(join, "fetch_manifest", fetch_manifest)
    with pytest.raises(SwarmError, match="no peer could give the manifest"):
        asyncio.run(find_manifest(Dialling(), Announced(), RUN))  # type: ignore[arg-type]
    assert NOT_HELD_SECONDS <= now <= NOT_HELD_SECONDS + LOOK_SECONDS


def test_a_search_for_a_run_says_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    now, said = 0.0, list[str]()

    async def sleep(seconds: float) -> None:
        nonlocal now
        now += seconds

    class Empty:
        async def list_runs(self) -> list[RunRecord]:
            return []

    monkeypatch.setattr(join, "asyncio", SimpleNamespace(sleep=sleep))
    monkeypatch.setattr(join, "time", SimpleNamespace(monotonic=lambda: now))
    with pytest.raises(SwarmError, match="is its first peer up"):
        asyncio.run(choose_run(Empty(), wanted=None, say=said.append))  # type: ignore[arg-type]
    assert said == ["no run is announced yet by the peers that were reached; looking for 60 s"]
