"""The limits of what a node of the DHT stores for others."""

import pytest
from hivemind.dht.routing import DHTID
from hivemind.dht.storage import DictionaryDHTValue

from adloco_p2p.swarm.p2p import dht_storage
from adloco_p2p.swarm.p2p.dht_storage import MAX_LIFETIME_SECONDS, MAX_RECORD_BYTES, BoundedStorage
from adloco_p2p.swarm.p2p.hivemind_patches import READERS
from tests.swarm.clock import Clock

KEY, OTHER = DHTID(1), DHTID(2)


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
    storage = BoundedStorage(clock)
    assert storage.store(KEY, b"record", clock.now + 120.0, subkey="peer")
    assert not storage.store(KEY, b"plain", clock.now + 600.0)
    assert names(storage) == {"peer"}
    assert not storage.store(OTHER, b"plain", clock.now + 600.0) and storage.get(OTHER) is None


@pytest.mark.parametrize(
    ("name", "value", "seconds"),
    [
        ("n" * 1000, b"record", 120.0),
        (7, b"record", 120.0),
        ("peer", b"r" * (MAX_RECORD_BYTES + 1), 120.0),
        ("peer", "text", 120.0),
        ("peer", b"record", 10 * MAX_LIFETIME_SECONDS),
        ("peer", b"record", float("inf")),
        ("peer", b"record", float("nan")),
        ("peer", b"record", -1.0),
    ],
)
def test_what_no_peer_of_ours_stores_is_refused(clock: Clock, name: object, value: object, seconds: float) -> None:
    storage = BoundedStorage(clock)
    assert not storage.store(KEY, value, clock.now + seconds, subkey=name)
    assert storage.get(KEY) is None


def test_a_flood_of_names_replaces_itself_and_not_the_peers_that_stay(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dht_storage, "MAX_RECORDS_PER_KEY", 10)
    storage = BoundedStorage(clock)
    for _ in range(2):
        clock.now += 40.0
        for name in ("a", "b"):
            assert storage.store(KEY, b"record", clock.now + 120.0, subkey=name)
    for index in range(100):
        assert storage.store(KEY, b"record", clock.now + 3000.0, subkey=f"ghost {index}")
    assert {"a", "b", "ghost 99"} <= names(storage) and len(names(storage)) == 10
    clock.now += 4000.0
    assert storage.store(KEY, b"record", clock.now + 120.0, subkey="c")
    assert names(storage) == {"c"} and storage._num_bytes == len(b"record")


def test_keys_and_bytes_are_bounded_and_the_stalest_key_goes_first(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dht_storage, "MAX_KEYS", 3)
    storage = BoundedStorage(clock)
    for number in (1, 2, 3, 1, 4):
        clock.now += 1.0
        assert storage.store(DHTID(number), b"record", clock.now + 120.0, subkey="peer")
    assert [number for number in range(1, 5) if names(storage, DHTID(number))] == [1, 3, 4]
    monkeypatch.setattr(dht_storage, "MAX_STORED_BYTES", 2 * len(b"record"))
    assert storage.store(DHTID(4), b"record", clock.now + 130.0, subkey="peer")
    assert [number for number in range(1, 5) if names(storage, DHTID(number))] == [1, 4]


def test_a_dictionary_of_records_is_stored_one_by_one(clock: Clock) -> None:
    records = DictionaryDHTValue()
    for name in ("a", "b"):
        records.store(name, b"record", clock.now + 120.0)
    storage = BoundedStorage(clock)
    assert storage.store(KEY, records, clock.now + 120.0)
    assert names(storage) == {"a", "b"}
