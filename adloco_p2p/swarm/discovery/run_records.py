"""The announcements of runs and peers in the DHT.

The DHT is open, and foreign nodes may answer with anything. So every record is checked again when read, and is used only to
find addresses and digests; the manifest defines the run, and the roster the rights of a peer.

  adloco/runs         -> {run digest: RunRecord of the peer that announced the run last}
  adloco/RUN/peers    -> {peer id: PeerRecord}
"""

import asyncio
import logging
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
"""The most entries of one DHT key that are read."""
RECORDS_AT_ONCE = 64
MAX_LIFETIME_SECONDS = 24 * 3600.0
"""A record that claims a longer lifetime is ignored."""
RECORD_LIFETIME_SECONDS = 120.0
"""The lifetime of an announcement, which is renewed at a third of it."""
READ_TIMEOUT_SECONDS = 10.0
"""A search that takes longer counts as one that found nothing."""
STORE_TIMEOUT_SECONDS = 10.0
"""An announcement that takes longer has failed."""
_RUNS_KEY = "adloco/runs"

logger = logging.getLogger(__name__)


class Discovery:
    """Announces and finds runs and peers. The caller repeats `announce_*` before the record ends."""

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
        """Announce this peer of `run` and its addresses in the DHT. Return the record, or None if no node stored it."""
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
        """Announce in the DHT that `run` is being trained. Return whether a node stored that."""
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
        """Return the announced runs, those with most peers first."""
        records = await self._read(_RUNS_KEY, RunRecord)
        return tuple(sorted(records, key=lambda record: (-record.num_peers, record.run)))

    async def find_peers(self, run: Digest) -> tuple[PeerRecord, ...]:
        """Return the announced peers of `run` without this one, sorted by peer, whatever their protocol."""
        records = [
            record
            for record in await self._read(_peers_key(run), PeerRecord)
            if record.run == run and record.peer != self._identity.peer_id and _leads_home(record)
        ]
        return tuple(sorted(records, key=lambda record: record.peer))

    async def _store(self, key: str, record: RunRecord | PeerRecord) -> bool:
        """Return whether a node stored the record. Strangers answer the search for nodes that should, so it has a deadline, and
        no error in it ends this peer."""
        value = signed(record, self._identity)
        try:
            async with asyncio.timeout(STORE_TIMEOUT_SECONDS):
                return bool(await self._dht.store(key, value, record.expiration, subkey=record.subkey))
        except Exception as error:  # whatever hivemind asserts about the answers of others
            logger.info("not announced in the DHT: %r", error)
            return False

    async def _read(self, key: str, kind: type[Record]) -> list[Record]:
        """Return the records under `key` that are well formed, signed, under their own names, and not expired."""
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
                await asyncio.sleep(0)  # checking all records at once would block the loop for most of a second
            record = checked(kind, subkey, entry.value)
            if record is not None and now < record.expiration <= now + MAX_LIFETIME_SECONDS:
                records.append(record)
        return records


def _leads_home(record: PeerRecord) -> bool:
    """Return whether every address is one of the signing peer, so that it cannot direct others to a third party."""
    try:
        return all(parse_peer_address(address).peer == record.peer for address in record.addresses)
    except ConfigError:
        return False


def _peers_key(run: Digest) -> str:
    return f"adloco/{run}/peers"
