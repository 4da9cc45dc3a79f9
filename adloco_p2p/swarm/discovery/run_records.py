"""Runs and peers, found through the DHT, and the signed configuration of a run.

The DHT is open: nodes of others may answer with anything. So every record is checked when read, too, and only used to find
addresses and digests; the manifest defines the run, and the roster the rights of a peer.

  adloco/runs         -> {run digest: RunRecord of the peer that announced the run last}
  adloco/RUN/peers    -> {peer id: PeerRecord}
"""

import asyncio
import time
from collections.abc import Callable, Sequence

from hivemind.dht.node import DHTNode

from adloco_p2p.core.model.protocol import NEWEST
from adloco_p2p.core.model.scalars import Digest, PeerId
from adloco_p2p.errors import ConfigError
from adloco_p2p.swarm.p2p.addresses import MAX_ADDRESSES, parse_peer_address
from adloco_p2p.swarm.p2p.dht_records import PeerRecord, Record, RunRecord, checked, signed
from adloco_p2p.swarm.p2p.identity import Identity

MAX_RECORDS = 4096
"""Entries of one DHT key that are looked at."""
RECORDS_AT_ONCE = 64
MAX_LIFETIME_SECONDS = 24 * 3600.0
"""A record that claims to hold for longer is ignored."""
RECORD_LIFETIME_SECONDS = 120.0
"""How long an announcement holds; renew it at a third of that."""
READ_TIMEOUT_SECONDS = 10.0
"""A search that is not done by then counts as one that found nothing."""
_RUNS_KEY = "adloco/runs"


class Discovery:
    """Announces and finds. The caller repeats `announce_*` before the record ends."""

    def __init__(
        self,
        dht: DHTNode,
        identity: Identity,
        *,
        wall_clock: Callable[[], float] = time.time,
        nickname: str = "",
        version: str = "",
    ) -> None:
        self._dht = dht
        self._identity = identity
        self._nickname, self._version = nickname, version
        self._wall_clock = wall_clock

    async def announce_peer(
        self, run: Digest, addresses: Sequence[str], *, lifetime_seconds: float = RECORD_LIFETIME_SECONDS
    ) -> PeerRecord | None:
        """Announce the addresses of this peer of `run` in the DHT. None where no node stored them."""
        record = PeerRecord(
            run=run,
            peer=self._identity.peer_id,
            addresses=tuple(addresses[:MAX_ADDRESSES]),
            nickname=self._nickname,
            version=self._version,
            protocol=NEWEST,
            expiration=self._wall_clock() + lifetime_seconds,
        )
        is_stored = await self._store(_peers_key(run), record)
        return record if is_stored else None

    async def announce_run(self, run: Digest, *, name: str, author: PeerId, num_peers: int) -> bool:
        """Announce in the DHT that `run` is being trained. False where no node stored it."""
        record = RunRecord(
            run=run,
            name=name,
            author=author,
            num_peers=num_peers,
            announcer=self._identity.peer_id,
            protocol=NEWEST,
            expiration=self._wall_clock() + RECORD_LIFETIME_SECONDS,
        )
        return await self._store(_RUNS_KEY, record)

    async def list_runs(self) -> tuple[RunRecord, ...]:
        """The announced runs, those with most peers first."""
        records = await self._read(_RUNS_KEY, RunRecord)
        return tuple(sorted(records, key=lambda record: (-record.num_peers, record.run)))

    async def find_peers(self, run: Digest) -> tuple[PeerRecord, ...]:
        """Peers of `run` without this one, sorted by peer, of whatever protocol."""
        records = [
            record
            for record in await self._read(_peers_key(run), PeerRecord)
            if record.run == run and record.peer != self._identity.peer_id and _leads_home(record)
        ]
        return tuple(sorted(records, key=lambda record: record.peer))

    async def _store(self, key: str, record: RunRecord | PeerRecord) -> bool:
        value = signed(record, self._identity)
        return bool(await self._dht.store(key, value, record.expiration, subkey=record.subkey))

    async def _read(self, key: str, kind: type[Record]) -> list[Record]:
        """The records under `key` that are well formed, signed, under their own names, and in force."""
        try:
            async with asyncio.timeout(READ_TIMEOUT_SECONDS):
                found = await self._dht.get(key, latest=True)
        except TimeoutError:
            return []
        if found is None or not isinstance(found.value, dict):
            return []
        now = self._wall_clock()
        records = []
        for place, (subkey, entry) in enumerate(list(found.value.items())[:MAX_RECORDS]):
            if place % RECORDS_AT_ONCE == 0:
                await asyncio.sleep(0)  # to check all at once takes most of a second, in which nothing else happens
            record = checked(kind, subkey, entry.value)
            if record is not None and now < record.expiration <= now + MAX_LIFETIME_SECONDS:
                records.append(record)
        return records


def _leads_home(record: PeerRecord) -> bool:
    """Whether every address is one of the peer that signed: a peer cannot send others to a third party in its own name."""
    try:
        return all(parse_peer_address(address).peer == record.peer for address in record.addresses)
    except ConfigError:
        return False


def _peers_key(run: Digest) -> str:
    return f"adloco/{run}/peers"
