"""The limits of what a node of the DHT stores for others."""

import pytest
from hivemind.dht.routing import DHTID
from hivemind.dht.storage import DictionaryDHTValue
from hivemind.utils import MSGPackSerializer

from adloco_p2p.core.model.scalars import HexDigest
from adloco_p2p.swarm.p2p import dht_storage
from adloco_p2p.swarm.p2p.dht_records import PeerRecord, signed
from adloco_p2p.swarm.p2p.dht_storage import MAX_BYTES_PER_KEY, MAX_LIFETIME_SECONDS, MAX_RECORD_BYTES, BoundedStorage
from adloco_p2p.swarm.p2p.hivemind_patches import READERS
from adloco_p2p.swarm.p2p.identity import Identity
from tests.swarm.clock import Clock

KEY, OTHER = DHTID(1), DHTID(2)
RECORD = MSGPackSerializer.dumps(b"record")


def lenient(clock: Clock) -> BoundedStorage:
    """Whatever stands there is sound."""
    return BoundedStorage(clock, until=lambda name, content: float("inf"))


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    for module in READERS:
        monkeypatch.setattr(module, "get_dht_time", clock)
    return clock


def names(storage: BoundedStorage, key: DHTID = KEY) -> set[str]:
    held = storage.get(key)
    return {name for name, _ in held.value.items()} if held is not None else set()


def test_a_plain_value_erases_no_records(clock: Clock) -> None:
    storage = lenient(clock)
    assert storage.store(KEY, RECORD, clock.now + 120.0, subkey="peer")
    assert not storage.store(KEY, b"plain", clock.now + 600.0)
    assert names(storage) == {"peer"}
    assert not storage.store(OTHER, b"plain", clock.now + 600.0) and storage.get(OTHER) is None


@pytest.mark.parametrize(
    ("name", "value", "seconds"),
    [
        ("n" * 1000, RECORD, 120.0),
        (7, RECORD, 120.0),
        ("peer", MSGPackSerializer.dumps(bytes(MAX_RECORD_BYTES)), 120.0),
        ("peer", "text", 120.0),
        ("peer", b"not packed", 120.0),
        ("peer", RECORD, 10 * MAX_LIFETIME_SECONDS),
        ("peer", RECORD, float("inf")),
        ("peer", RECORD, float("nan")),
        ("peer", RECORD, -1.0),
    ],
)
def test_what_no_peer_of_ours_stores_is_refused(clock: Clock, name: object, value: object, seconds: float) -> None:
    storage = lenient(clock)
    assert not storage.store(KEY, value, clock.now + seconds, subkey=name)
    assert storage.get(KEY) is None


def test_a_flood_of_names_replaces_itself_and_not_the_peers_that_stay(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dht_storage, "MAX_RECORDS_PER_KEY", 10)
    storage = lenient(clock)
    for _ in range(2):
        clock.now += 40.0
        for name in ("a", "b"):
            assert storage.store(KEY, RECORD, clock.now + 120.0, subkey=name)
    for index in range(100):
        assert storage.store(KEY, RECORD, clock.now + 250.0, subkey=f"ghost {index}")
    assert {"a", "b", "ghost 99"} <= names(storage) and len(names(storage)) == 10
    clock.now += 4000.0
    assert storage.store(KEY, RECORD, clock.now + 120.0, subkey="c")
    assert names(storage) == {"c"} and storage._num_bytes == len(RECORD)


def test_a_record_that_does_not_fit_takes_nobodys_place(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    """Records that come once make way for one that then fits, and for no other."""
    large = MSGPackSerializer.dumps(bytes(100))
    monkeypatch.setattr(dht_storage, "MAX_BYTES_PER_KEY", len(large) + 3 * len(RECORD))
    storage = lenient(clock)
    for index in range(2):
        assert storage.store(KEY, large, clock.now + 120.0 + index, subkey="renewed")
    for name in ("a", "b"):
        assert storage.store(KEY, RECORD, clock.now + 120.0, subkey=name)
    assert not storage.store(KEY, large, clock.now + 120.0, subkey="c")
    assert names(storage) == {"renewed", "a", "b"}
    assert storage._num_bytes == len(large) + 2 * len(RECORD)
    for name in ("c", "d"):
        assert storage.store(KEY, RECORD, clock.now + 120.0, subkey=name)
    assert names(storage) == {"renewed", "b", "c", "d"}, "the oldest goes"


def test_keys_and_bytes_are_bounded_and_the_stalest_key_goes_first(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dht_storage, "MAX_KEYS", 3)
    storage = lenient(clock)
    for number in (1, 2, 3, 1, 4):
        clock.now += 1.0
        assert storage.store(DHTID(number), RECORD, clock.now + 120.0, subkey="peer")
    assert [number for number in range(1, 5) if names(storage, DHTID(number))] == [1, 3, 4]
    monkeypatch.setattr(dht_storage, "MAX_STORED_BYTES", 2 * len(RECORD))
    assert storage.store(DHTID(4), RECORD, clock.now + 130.0, subkey="peer")
    assert [number for number in range(1, 5) if names(storage, DHTID(number))] == [1, 4]


def test_a_dictionary_is_stored_by_nobody(clock: Clock) -> None:
    records = DictionaryDHTValue()
    records.store("a", RECORD, clock.now + 120.0)
    storage = lenient(clock)
    assert not storage.store(KEY, records, clock.now + 120.0) and names(storage) == set()


def peer_record(clock: Clock, identity: Identity, *, seconds: float) -> tuple[bytes, float]:
    """As a peer announces itself: what the DHT stores, and until when."""
    record = PeerRecord(
        run=HexDigest("ab" * 32),
        peer=identity.peer_id,
        addresses=(),
        nickname="",
        version="",
        protocol=1,
        expiration=clock.now + seconds,
    )
    return MSGPackSerializer.dumps(signed(record, identity)), record.expiration


def test_nothing_else_stands_under_the_name_of_a_peer_and_no_old_record_for_longer(clock: Clock) -> None:
    """Either would be newer than all that the peer announces, for as long as it is said to hold."""
    storage = BoundedStorage(clock)
    peer, other = Identity.from_seed(bytes(32)), Identity.from_seed(bytes(31) + b"1")
    first, ends = peer_record(clock, peer, seconds=120.0)
    assert storage.store(KEY, first, ends, subkey=peer.peer_id)
    foreign, foreign_ends = peer_record(clock, other, seconds=250.0)
    assert not storage.store(KEY, RECORD, clock.now + 250.0, subkey=peer.peer_id)
    assert not storage.store(KEY, foreign, foreign_ends, subkey=peer.peer_id)
    assert not storage.store(KEY, first, clock.now + 250.0, subkey=peer.peer_id)
    clock.now += 40.0
    second, ends = peer_record(clock, peer, seconds=120.0)
    assert storage.store(KEY, second, ends, subkey=peer.peer_id)
    assert storage.get(KEY).value.get(peer.peer_id).value == second
    assert storage.store(KEY, foreign, foreign_ends, subkey=other.peer_id)


def test_a_record_does_not_end_with_an_older_one_that_comes_again(clock: Clock) -> None:
    storage = lenient(clock)
    assert storage.store(KEY, RECORD, clock.now + 120.0, subkey="peer")
    assert not storage.store(KEY, RECORD, clock.now + 1.0, subkey="peer")
    clock.now += 60.0
    assert names(storage) == {"peer"}


def test_a_record_that_is_renewed_all_the_time_takes_no_more_memory(clock: Clock) -> None:
    storage = lenient(clock)
    for index in range(1000):
        assert storage.store(KEY, RECORD, clock.now + 120.0 + index / 1000, subkey="peer")
    assert len(storage.expiration_heap) + len(storage.get(KEY).value.expiration_heap) < 100
    clock.now += 122.0
    assert names(storage) == set()


def test_the_records_of_a_key_fit_in_one_answer(clock: Clock) -> None:
    """Where they do not, hivemind answers nothing at all, and nobody finds any of them."""
    storage = lenient(clock)
    large = MSGPackSerializer.dumps(bytes(MAX_RECORD_BYTES - 16))
    for index in range(2):
        assert storage.store(KEY, RECORD, clock.now + 120.0 + index, subkey="peer")
    for index in range(300):
        assert storage.store(KEY, large, clock.now + 250.0, subkey=f"ghost {index}")
    assert "peer" in names(storage)
    assert len(MSGPackSerializer.dumps(storage.get(KEY).value)) < 1.1 * MAX_BYTES_PER_KEY
