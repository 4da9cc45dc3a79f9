"""Runs and peers, found through the DHT, and the signed configuration of a run.

The DHT is open: anybody may store anything under any key, and the value stored last replaces the others. So every record is
signed by the peer that it is about, checked when read, and only used to find addresses and digests; the manifest defines the
run, and the roster the rights of a peer. Records are small (MAX_DHT_RECORD_BYTES): the DHT was not made for more.

  adloco/runs         -> {run digest: RunRecord of the peer that announced the run last}
  adloco/RUN/peers    -> {peer id: PeerRecord}
"""

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, TypeVar

from annotated_types import Ge, MaxLen, MinLen, Predicate
from google.protobuf.message import DecodeError
from hivemind.dht.node import DHTNode

from adloco_p2p.config.run_config import PROTOCOL_VERSION
from adloco_p2p.core.model import canonical
from adloco_p2p.core.model.scalars import Count, Digest, HexDigest, Label, PeerId, is_printable
from adloco_p2p.decode import decode
from adloco_p2p.errors import ConfigError, RemoteProtocolError
from adloco_p2p.swarm.p2p.addresses import MAX_ADDRESS_CHARS, MAX_ADDRESSES, parse_peer_address
from adloco_p2p.swarm.p2p.identity import Identity, verify
from adloco_p2p.v1 import gossip_pb2

MAX_DHT_RECORD_BYTES = 16 * 1024
MAX_RECORDS = 4096
"""Entries of one DHT key that are looked at."""
MAX_LIFETIME_SECONDS = 24 * 3600.0
"""A record that claims to hold for longer is ignored."""
RECORD_LIFETIME_SECONDS = 120.0
"""How long an announcement holds; renew it at a third of that."""
READ_TIMEOUT_SECONDS = 10.0
"""A search that is not done by then counts as one that found nothing."""
_RUNS_KEY = "adloco/runs"
_RUN_CONTEXT = "run record"
_PEER_CONTEXT = "peer record"
PeerName = Annotated[PeerId, MinLen(1), Predicate(is_printable)]
Address = Annotated[str, MaxLen(MAX_ADDRESS_CHARS)]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRecord:
    """One run, as one of its peers announced it. Only `run` can be relied on: the manifest must have that digest."""

    run: HexDigest
    name: Annotated[str, MaxLen(200), Predicate(is_printable)]
    author: PeerName
    num_peers: Count
    """Live peers as the announcer counts them."""
    announcer: PeerName
    protocol: Count
    expiration: Annotated[float, Ge(0)]
    """Seconds since the epoch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerRecord:
    """The addresses of one peer of a run, its name and its version, as the peer announces them."""

    run: HexDigest
    peer: PeerName
    addresses: Annotated[tuple[Address, ...], MaxLen(MAX_ADDRESSES)]
    """Full addresses, all of this peer; none in client mode."""
    nickname: Label
    version: Label
    """Of its package; for people."""
    protocol: Count
    expiration: Annotated[float, Ge(0)]
    """Seconds since the epoch."""


Record = TypeVar("Record", RunRecord, PeerRecord)


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
            protocol=PROTOCOL_VERSION,
            expiration=self._wall_clock() + lifetime_seconds,
        )
        is_stored = await self._store(_peers_key(run), record.peer, _PEER_CONTEXT, record, record.expiration)
        return record if is_stored else None

    async def announce_run(self, run: Digest, *, name: str, author: PeerId, num_peers: int) -> bool:
        """Announce in the DHT that `run` is being trained. False where no node stored it."""
        record = RunRecord(
            run=run,
            name=name,
            author=author,
            num_peers=num_peers,
            announcer=self._identity.peer_id,
            protocol=PROTOCOL_VERSION,
            expiration=self._wall_clock() + RECORD_LIFETIME_SECONDS,
        )
        return await self._store(_RUNS_KEY, run, _RUN_CONTEXT, record, record.expiration)

    async def list_runs(self) -> tuple[RunRecord, ...]:
        """The announced runs, those with most peers first."""
        records = [
            record
            for subkey, record in await self._read(_RUNS_KEY, RunRecord, _RUN_CONTEXT, lambda record: record.announcer)
            if subkey == record.run
        ]
        return tuple(sorted(records, key=lambda record: (-record.num_peers, record.run)))

    async def find_peers(self, run: Digest) -> tuple[PeerRecord, ...]:
        """Peers of `run` without this one, sorted by peer. Records of another protocol version are among them, so that the
        user can be informed."""
        records = [
            record
            for subkey, record in await self._read(_peers_key(run), PeerRecord, _PEER_CONTEXT, lambda record: record.peer)
            if subkey == record.peer and record.run == run and record.peer != self._identity.peer_id and _leads_home(record)
        ]
        return tuple(sorted(records, key=lambda record: record.peer))

    async def _store(self, key: str, subkey: str, context: str, record: RunRecord | PeerRecord, expiration: float) -> bool:
        payload = canonical.encode(record)
        signed = gossip_pb2.SignedRecord(payload=payload, signature=self._identity.sign(context, payload))
        value = signed.SerializeToString()
        assert len(value) <= MAX_DHT_RECORD_BYTES
        return bool(await self._dht.store(key, value, expiration, subkey=subkey))

    async def _read(
        self, key: str, kind: type[Record], context: str, signer: Callable[[Record], PeerId]
    ) -> list[tuple[object, Record]]:
        """The records under `key` that are well formed, signed by `signer(record)` and in force."""
        try:
            async with asyncio.timeout(READ_TIMEOUT_SECONDS):
                found = await self._dht.get(key, latest=True)
        except TimeoutError:
            return []
        if found is None or not isinstance(found.value, dict):
            return []
        now = self._wall_clock()
        records = []
        for subkey, entry in list(found.value.items())[:MAX_RECORDS]:
            record = _checked(kind, entry.value, context, signer)
            if record is not None and now < record.expiration <= now + MAX_LIFETIME_SECONDS:
                records.append((subkey, record))
        return records


def _checked(kind: type[Record], value: object, context: str, signer: Callable[[Record], PeerId]) -> Record | None:
    if not isinstance(value, bytes) or len(value) > MAX_DHT_RECORD_BYTES:
        return None
    try:
        signed = gossip_pb2.SignedRecord.FromString(value)
        record = decode(kind, signed.payload, max_bytes=MAX_DHT_RECORD_BYTES)
    except (DecodeError, RemoteProtocolError):
        return None
    return record if verify(signer(record), context, signed.payload, signed.signature) else None


def _leads_home(record: PeerRecord) -> bool:
    """Whether every address is one of the peer that signed: a peer cannot send others to a third party in its own name."""
    try:
        return all(parse_peer_address(address).peer == record.peer for address in record.addresses)
    except ConfigError:
        return False


def _peers_key(run: Digest) -> str:
    return f"adloco/{run}/peers"
