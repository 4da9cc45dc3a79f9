"""The storage of this DHT node for others: few, small and short-lived records, from any sender, each signed by its peer.

hivemind's storage has no limits, and one plain value under a key replaces all records below it. Ours are below a key, one per
name, so plain values are refused, and so are dictionaries, whose length their sender chooses. A record expires no later than
its signer wrote; otherwise junk, or an old record, could keep out newer records of that peer. If a key is full, a record that
came only once makes way before one that its peer renews. So a flood of invented names replaces itself, not the peers that stay.
"""

from collections.abc import Callable
from typing import Any

from hivemind.dht.node import DHTNode
from hivemind.dht.routing import DHTID
from hivemind.dht.storage import DHTLocalStorage
from hivemind.utils.timed_storage import TimedStorage

from adloco_p2p.swarm.p2p.dht_records import holds_until
from adloco_p2p.swarm.p2p.hivemind_patches import packed_bytes

MAX_KEYS = 256
MAX_RECORDS_PER_KEY = 512
MAX_BYTES_PER_KEY = 1 << 20
"""The most bytes of records under one key. A search gets all of them in one answer, which hivemind limits to 4 MiB."""
MAX_RECORD_BYTES = (16 << 10) + 16
"""The most bytes of a packed record; readers accept 16 KiB."""
MAX_NAME_CHARS = 128
MAX_STORED_BYTES = 32 << 20
"""The most bytes of all records of one storage."""
MAX_LIFETIME_SECONDS = 300.0
"""A record that claims a longer lifetime is refused; ours have two minutes. So a short flood does not hold a node's places for
long, and clocks may differ by three minutes."""


class BoundedStorage(DHTLocalStorage):  # type: ignore[misc]  # hivemind is not typed
    """A storage with limits. `now` returns the time of the DHT, in seconds; `until` the time at which a record expires."""

    def __init__(self, now: Callable[[], float], *, until: Callable[[str, bytes], float] = holds_until) -> None:
        super().__init__()
        self._now, self._until = now, until
        self._records: dict[DHTID, dict[str, tuple[int, bool]]] = {}
        """By key and name: the bytes of the record, and whether it was renewed. Both levels are in the order of writing."""
        self._num_bytes = 0

    def store(self, key: DHTID, value: object, expiration_time: float, subkey: object = None) -> bool:
        """Store a record below a key, and return whether it was stored; anything else is refused."""
        return subkey is not None and self.store_subkey(key, subkey, value, expiration_time)

    def store_subkey(self, key: DHTID, subkey: object, value: object, expiration_time: float) -> bool:
        """Store a record that is small, short-lived, newer than the present one, and valid, if there is room. Return whether it
        was stored."""
        if not isinstance(subkey, str) or len(subkey) > MAX_NAME_CHARS:
            return False
        if not isinstance(value, bytes) or len(value) > MAX_RECORD_BYTES:
            return False
        if not 0.0 < expiration_time - self._now() <= MAX_LIFETIME_SECONDS:  # refuses a NaN, too
            return False
        held = self.get(key)
        present = None if held is None else held.value.get(subkey)
        if present is not None and expiration_time <= present.expiration_time:  # hivemind would let the present one expire then
            return False
        content = packed_bytes(value)
        if content is None or expiration_time > self._until(subkey, content):
            return False
        if not self._make_room(key, subkey, len(value)) or not super().store_subkey(key, subkey, value, expiration_time):
            return False
        _compact(self)
        _compact(self.get(key).value)
        records = self._records.pop(key, {})
        size, _ = records.pop(subkey, (0, False))
        records[subkey] = (len(value), size > 0)
        self._records[key] = records
        self._num_bytes += len(value) - size
        if self._num_bytes > MAX_STORED_BYTES:
            self._forget_expired_keys()
        while self._num_bytes > MAX_STORED_BYTES:  # drop the stalest key; this one is the last in order
            self._drop(next(iter(self._records)))
        return True

    def _make_room(self, key: DHTID, name: str, num_bytes: int) -> bool:
        """Make room for one more record. Return False where only renewed records could make way."""
        if key not in self._records and len(self._records) >= MAX_KEYS:
            self._forget_expired_keys()
            if len(self._records) >= MAX_KEYS:
                self._drop(next(iter(self._records)))
        self._forget_expired(key)
        records = self._records.get(key, {})
        others = {other: size for other, (size, _) in records.items() if other != name}
        num_others, taken = len(others), num_bytes + sum(others.values())
        victims: list[str] = []
        for other in [other for other in others if not records[other][1]]:
            if num_others < MAX_RECORDS_PER_KEY and taken <= MAX_BYTES_PER_KEY:
                break
            num_others, taken = num_others - 1, taken - others[other]
            victims.append(other)
        if num_others >= MAX_RECORDS_PER_KEY or taken > MAX_BYTES_PER_KEY:
            return False  # before anything is dropped, since a refused record must not take a place
        for victim in victims:
            self._num_bytes -= records.pop(victim)[0]
            del self.get(key).value[victim]
        return True

    def _forget_expired(self, key: DHTID) -> None:
        """Forget expired records below the key."""
        records, held = self._records.get(key, {}), self.get(key)
        alive = set() if held is None else {name for name, _ in held.value.items()}
        for name in records.keys() - alive:
            self._num_bytes -= records.pop(name)[0]

    def _forget_expired_keys(self) -> None:
        """Forget keys below which all records have expired."""
        for key in [key for key in self._records if key not in self]:
            self._drop(key)

    def _drop(self, key: DHTID) -> None:
        self._num_bytes -= sum(size for size, _ in self._records.pop(key).values())
        del self[key]


def _compact(storage: "TimedStorage[Any, Any]") -> None:
    """Drop the expirations of earlier records. hivemind keeps each until it has passed, so those of a name that is renewed
    again and again would grow without bound."""
    if len(storage.expiration_heap) > 2 * len(storage.data) + 16:
        storage.expiration_heap = sorted(storage.key_to_heap.values())


def bound_storage(dht: DHTNode, now: Callable[[], float]) -> None:
    """Give the node storages with limits: one for the records of others, and one for its cache, which stays empty because our
    searches cache nothing and `dht_requests` refuses records that others want to have cached."""
    dht.protocol.storage, dht.protocol.cache = BoundedStorage(now), BoundedStorage(now)
