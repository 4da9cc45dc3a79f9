"""Which cards of members are written, and when; which names a record may hold."""

import asyncio
import json
from collections.abc import Sequence
from typing import Any

import pytest

from adloco_p2p.config.load import load_peer
from adloco_p2p.core.model import canonical
from adloco_p2p.core.model.scalars import MAX_LABEL_CHARS, Digest, PeerId, as_label, is_label
from adloco_p2p.core.model.telemetry import PeerCard
from adloco_p2p.decode import decode
from adloco_p2p.errors import ConfigError, RemoteProtocolError, SwarmError
from adloco_p2p.swarm.discovery import reachability
from adloco_p2p.swarm.discovery.peer_cards import LOOK_SECONDS, MAX_LOOKS, PeerCards, card_of
from adloco_p2p.swarm.discovery.reachability import ClockReading
from adloco_p2p.swarm.p2p.dht_records import PeerRecord

RUN = Digest("ab" * 32)
A, B, MUTE = map(PeerId, ("a", "b", "mute"))
BAD_NAMES = (
    "\u202eabc",
    "a\nb",
    "a\x1b[31m",
    "caf\u00e9",
    " a",
    "a ",
    "..ZuBmVvE7",
    "<b>",
    "a" * (MAX_LABEL_CHARS + 1),
    "\u200b",
)
DIRECT, RELAY = "/ip4/192.0.2.1/tcp/1/p2p/a", "/ip4/192.0.2.9/tcp/1/p2p/r/p2p-circuit/p2p/a"


def record(peer: PeerId = A, *, nickname: str = "Ann", addresses: Sequence[str] = (DIRECT,)) -> PeerRecord:
    return PeerRecord(
        run=RUN, peer=peer, addresses=tuple(addresses), nickname=nickname, version="1.0", protocol=15, expiration=1e9
    )


@pytest.mark.parametrize("name", ["", "Ann", "node-7.b", "two words", "1.4.0+cpu"])
def test_a_record_may_hold_plain_names(name: str) -> None:
    data = canonical.encode(record(nickname=name))
    assert decode(PeerRecord, data, max_bytes=4096).nickname == name
    assert as_label(name) == name


@pytest.mark.parametrize("name", BAD_NAMES)
def test_a_record_with_another_name_is_refused(name: str) -> None:
    with pytest.raises(RemoteProtocolError, match="nickname"):
        decode(PeerRecord, canonical.encode(record(nickname=name)), max_bytes=4096)
    assert is_label(as_label(name))


@pytest.mark.parametrize("name", BAD_NAMES)
def test_the_machine_s_settings_accept_the_same_names(name: str) -> None:
    assert load_peer(None, ["nickname=Ann"]).value.nickname == "Ann"
    with pytest.raises(ConfigError, match="nickname"):
        load_peer(None, [f"nickname={json.dumps(name)}"])


def test_reach_follows_from_the_addresses() -> None:
    found = [card_of(record(addresses=addresses), None).reach for addresses in ((DIRECT, RELAY), (RELAY,), ())]
    assert found == ["direct", "relay", "client"]


class Looks:
    """Cards of peers whose round trips and names a test sets."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        self.seconds = {A: 0.01, B: 0.2}
        self.asked: list[PeerId] = []
        self.written: list[PeerCard] = []
        monkeypatch.setattr(reachability, "ping", self._ping)
        nothing: Any = None
        self.cards = PeerCards(nothing, self.written.append, clock=lambda: self.now)

    async def _ping(self, p2p: object, peer: PeerId) -> ClockReading:
        self.asked.append(peer)
        if peer not in self.seconds:
            raise SwarmError("does not answer")
        return ClockReading(offset_seconds=0.0, round_trip_seconds=self.seconds[peer], protocol=15, run=RUN, observed="")

    def look(self, *records: PeerRecord, connected: Sequence[PeerId] = (A, B, MUTE)) -> list[PeerCard]:
        """The cards that this look writes."""
        before = len(self.written)
        asyncio.run(self.cards.look(records, connected))
        return self.written[before:]


def test_a_card_is_written_when_it_is_new_or_has_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    looks = Looks(monkeypatch)
    first = looks.look(record(A), record(B), record(MUTE))
    assert [(card.peer, card.round_trip_seconds) for card in first] == [(A, 0.01), (B, 0.2), (MUTE, None)]
    assert looks.look(record(A, nickname="Eve")) == []  # at most one look a minute
    looks.now += LOOK_SECONDS
    assert [card.nickname for card in looks.look(record(A, nickname="Eve"))] == ["Eve"]
    looks.now += LOOK_SECONDS
    looks.seconds[A] = 0.012
    assert looks.look(record(A, nickname="Eve")) == []  # about as long as before
    looks.now += LOOK_SECONDS
    looks.seconds[A] = 0.05
    assert [card.round_trip_seconds for card in looks.look(record(A, nickname="Eve"))] == [0.05]


def test_only_connected_peers_are_asked_and_few_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    looks = Looks(monkeypatch)
    many = [record(PeerId(f"peer {number}")) for number in range(2 * MAX_LOOKS)]
    assert len(looks.look(*many, connected=())) == MAX_LOOKS and looks.asked == []
    assert len(looks.look(*many, connected=())) == MAX_LOOKS  # the others
    assert looks.look(*many, connected=()) == []


def test_what_is_kept_is_of_present_members(monkeypatch: pytest.MonkeyPatch) -> None:
    looks = Looks(monkeypatch)
    looks.look(record(A), record(B))
    looks.look(record(B))
    assert looks.cards._cards.keys() == looks.cards._looked_at.keys() == {B}
