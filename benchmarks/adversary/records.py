"""Attacks on the DHT, through the classes at its border: requests without measure, and records that hide others."""

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import Any

from hivemind.dht.protocol import DHTProtocol
from hivemind.dht.routing import DHTID
from hivemind.dht.storage import DictionaryDHTValue
from hivemind.proto import dht_pb2

from adloco_p2p.core.model.scalars import Digest
from adloco_p2p.swarm.p2p.dht_records import PeerRecord, signed
from adloco_p2p.swarm.p2p.dht_requests import BURST_KEYS, RequestGate
from adloco_p2p.swarm.p2p.dht_storage import MAX_BYTES_PER_KEY, BoundedStorage
from adloco_p2p.swarm.p2p.identity import Identity
from benchmarks.adversary.scenario import Outcome, Scenario

RUN, KEY = Digest("ab" * 32), DHTID(1)
VICTIM, LIAR = Identity.from_seed(b"a" * 32), Identity.from_seed(b"b" * 32)
PACK = DHTProtocol.serializer.dumps
LIFE_SECONDS, LONGER_SECONDS = 120.0, 3000.0


def _record(identity: Identity, expiration: float, *, address_chars: int = 0) -> bytes:
    """Return a record as the DHT stores it."""
    record = PeerRecord(
        run=RUN,
        peer=identity.peer_id,
        addresses=("a" * address_chars,) * 16 if address_chars else (),
        nickname="",
        version="",
        protocol=1,
        expiration=expiration,
    )
    packed: bytes = PACK(signed(record, identity))
    return packed


def large_requests() -> dict[str, Any]:
    """Return requests that hivemind answers, each for seconds or minutes, and this project does not. The second would be found
    in place of stored data."""
    until = time.time() + LIFE_SECONDS
    records = DictionaryDHTValue()
    for number in range(40_000):
        records.store(str(number), b"", until)
    many: dict[str, list[Any]] = {"keys": [KEY.to_bytes()], "values": [PACK(b"")], "expiration_time": [until]}
    return {
        "a dictionary": dht_pb2.StoreRequest(subkeys=[b""], in_cache=[False], **{**many, "values": [PACK(records)]}),
        "a cached value": dht_pb2.StoreRequest(subkeys=[PACK("a")], in_cache=[True], **many),
        "20,000 records": dht_pb2.StoreRequest(
            subkeys=[PACK("a")] * 20_000, in_cache=[False] * 20_000, **{name: one * 20_000 for name, one in many.items()}
        ),
        "80,000 questions": dht_pb2.FindRequest(keys=[KEY.to_bytes()] * 80_000),
    }


def endless_requests(_: int) -> Outcome:
    """One request of less than a megabyte once held up an event loop for 88 s."""
    requests = large_requests()
    gate = RequestGate(lambda: 0.0)
    answered = [name for name, request in requests.items() if asyncio.run(gate.validate_request(request))]
    num_small = sum(asyncio.run(gate.validate_request(dht_pb2.FindRequest(keys=[b"1"] * 16))) for _ in range(1000))
    happened = f"answered: {', '.join(answered) or 'none'}; of 1000 small ones at once {num_small}"
    return Outcome(
        sent=f"{len(requests)} large requests, 1000 small ones",
        happened=happened,
        has_passed=not answered and num_small * 16 <= BURST_KEYS,
    )


def hidden_records(_: int) -> Outcome:
    """A stranger stores records under a peer's name, or beside it, so that nobody finds the peer."""
    now, storage = time.time(), BoundedStorage(time.time)
    first = _record(VICTIM, now + LIFE_SECONDS)
    storage.store(KEY, first, now + LIFE_SECONDS, subkey=VICTIM.peer_id)
    lies = {
        "junk under its name": (VICTIM.peer_id, PACK(b"junk"), LONGER_SECONDS),
        "another's record under its name": (VICTIM.peer_id, _record(LIAR, now + LONGER_SECONDS), LONGER_SECONDS),
        "its record for longer than it holds": (VICTIM.peer_id, first, LONGER_SECONDS),
        "its record again, for a moment": (VICTIM.peer_id, first, 1.0),
    }
    taken = [name for name, (subkey, value, life) in lies.items() if storage.store(KEY, value, now + life, subkey=subkey)]
    renewed = now + 1.5 * LIFE_SECONDS
    is_renewed = storage.store(KEY, _record(VICTIM, renewed), renewed, subkey=VICTIM.peer_id)
    for number in range(400):
        ghost = Identity.from_seed(number.to_bytes(32, "big"))
        large = _record(ghost, now + LONGER_SECONDS, address_chars=400)
        storage.store(KEY, large, now + LONGER_SECONDS, subkey=ghost.peer_id)
    found = storage.get(KEY).value
    num_bytes = len(PACK(found))
    is_found = is_renewed and found.get(VICTIM.peer_id) is not None and num_bytes < 2 * MAX_BYTES_PER_KEY
    happened = f"taken: {', '.join(taken) or 'none'}; the peer is {'found' if is_found else 'LOST'} in {num_bytes:,} bytes"
    return Outcome(sent=f"{len(lies)} records, 400 ghosts", happened=happened, has_passed=not taken and is_found)


def _rows(*rows: tuple[str, Callable[[int], Outcome]]) -> Sequence[Scenario]:
    return [Scenario(name=name, finding="", play=play) for name, play in rows]


RECORDS: tuple[Scenario, ...] = (
    *_rows(
        ("questions to the DHT without measure", endless_requests),
        ("records that hide those of a peer", hidden_records),
    ),
)
