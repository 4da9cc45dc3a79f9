"""The storage of this DHT node for others: few, small and short-lived records, from any sender.

hivemind's storage has no limits, and one plain value under a key replaces all records below it. Ours are below a key, one per
name, so plain values are refused. Where a key is full, a record that came once makes way before one that its peer renews: a
flood of invented names replaces itself, not the peers that stay.
"""

from collections.abc import Callable

from hivemind.dht.node import DHTNode
from hivemind.dht.routing import DHTID
from hivemind.dht.storage import DHTLocalStorage, DictionaryDHTValue

MAX_KEYS = 256
MAX_RECORDS_PER_KEY = 512
MAX_RECORD_BYTES = (16 << 10) + 16
"""Of the packed bytes; readers look at 16 KiB."""
MAX_NAME_CHARS = 128
MAX_STORED_BYTES = 32 << 20
"""Of all records of one storage."""
MAX_LIFETIME_SECONDS = 3600.0
"""A record that claims to hold for longer is refused; ours hold for two minutes."""


class BoundedStorage(DHTLocalStorage):  # type: ignore[misc]  # hivemind is not typed
    """`now` gives the time of the DHT, in seconds."""

    def __init__(self, now: Callable[[], float]) -> None:
        super().__init__()
        self._now = now
        self._records: dict[DHTID, dict[str, tuple[int, bool]]] = {}
        """Key -> name -> bytes of its record, and whether it was renewed; both in the order of the last writing."""
        self._num_bytes = 0

    def store(self, key: DHTID, value: object, expiration_time: float, subkey: object = None) -> bool:
        """A record below a key, or several; false for a plain value."""
        if subkey is not None:
            return self.store_subkey(key, subkey, value, expiration_time)
        if not isinstance(value, DictionaryDHTValue):
            return False
        are_stored = [self.store_subkey(key, name, item.value, item.expiration_time) for name, item in value.items()]
        return all(are_stored)

    def store_subkey(self, key: DHTID, subkey: object, value: object, expiration_time: float) -> bool:
        """Whether it was stored: it is small and short-lived, newer than what is here, and there is room."""
        if not isinstance(subkey, str) or len(subkey) > MAX_NAME_CHARS:
            return False
        if not isinstance(value, bytes) or len(value) > MAX_RECORD_BYTES:
            return False
        if not 0.0 < expiration_time - self._now() <= MAX_LIFETIME_SECONDS:  # nor a NaN
            return False
        self._forget_expired(key)
        if not self._make_room(key, subkey) or not super().store_subkey(key, subkey, value, expiration_time):
            return False
        records = self._records.pop(key, {})
        size, _ = records.pop(subkey, (0, False))
        records[subkey] = (len(value), size > 0)
        self._records[key] = records
        self._num_bytes += len(value) - size
        while self._num_bytes > MAX_STORED_BYTES:  # the stalest key, but never this one alone
            self._drop(next(iter(self._records)))
        return True

    def _forget_expired(self, key: DHTID) -> None:
        """Remove expired records below the key, and keys below which all have expired."""
        for other in [other for other in self._records if other not in self]:
            self._drop(other)
        for name in [name for name in self._records.get(key, {}) if name not in self.get(key).value]:
            self._num_bytes -= self._records[key].pop(name)[0]

    def _make_room(self, key: DHTID, name: str) -> bool:
        """For one more record, if it takes more room. False where all others are renewed."""
        records = self._records.get(key)
        if records is None:
            if len(self._records) >= MAX_KEYS:
                self._drop(next(iter(self._records)))
            return True
        if name in records or len(records) < MAX_RECORDS_PER_KEY:
            return True
        once = next((other for other, (_, is_renewed) in records.items() if not is_renewed), None)
        if once is None:
            return False
        self._num_bytes -= records.pop(once)[0]
        del self.get(key).value[once]
        return True

    def _drop(self, key: DHTID) -> None:
        self._num_bytes -= sum(size for size, _ in self._records.pop(key).values())
        del self[key]


def bound_storage(dht: DHTNode, now: Callable[[], float]) -> None:
    """Give the node storages with limits: for records that others store, and for those that its searches found."""
    dht.protocol.storage, dht.protocol.cache = BoundedStorage(now), BoundedStorage(now)
