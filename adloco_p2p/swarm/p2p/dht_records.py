"""The records of the DHT, and how they are signed, encoded and checked. They are small, as the DHT requires.

A record stands under a name, that of its peer or its run, and is signed by the peer that made it. Nodes check that before they
store it, because otherwise anybody could put something else under a peer's name. So nodes store only records of this form, and
every version has to write it.
"""

from dataclasses import dataclass
from typing import Annotated, TypeVar

from annotated_types import Ge, MaxLen, MinLen, Predicate
from google.protobuf.message import DecodeError

from adloco_p2p.core.model import canonical
from adloco_p2p.core.model.scalars import Count, HexDigest, Label, PeerId, is_digest, is_printable
from adloco_p2p.decode import decode
from adloco_p2p.errors import RemoteProtocolError
from adloco_p2p.swarm.p2p.addresses import MAX_ADDRESS_CHARS, MAX_ADDRESSES
from adloco_p2p.swarm.p2p.identity import Identity, verify
from adloco_p2p.v1 import gossip_pb2

MAX_DHT_RECORD_BYTES = 16 * 1024
PeerName = Annotated[PeerId, MinLen(1), Predicate(is_printable)]
Address = Annotated[str, MaxLen(MAX_ADDRESS_CHARS), Predicate(is_printable)]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRecord:
    """One run, as one of its peers announced it. Only `run` is reliable, because the manifest must have that digest."""

    run: HexDigest
    name: Annotated[str, MaxLen(200), Predicate(is_printable)]
    author: PeerName
    num_peers: Count
    """The number of live peers by the announcer's count."""
    announcer: PeerName
    protocol: Count
    expiration: Annotated[float, Ge(0)]
    """Seconds since the epoch."""

    @property
    def subkey(self) -> str:
        return self.run

    @property
    def signer(self) -> PeerId:
        return self.announcer


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerRecord:
    """The addresses of one peer of a run, its name and its version, as the peer announces them."""

    run: HexDigest
    peer: PeerName
    addresses: Annotated[tuple[Address, ...], MaxLen(MAX_ADDRESSES)]
    """Full addresses of this peer; empty in client mode."""
    nickname: Label
    version: Label
    """The version of its package, for people."""
    protocol: Count
    expiration: Annotated[float, Ge(0)]
    """Seconds since the epoch."""

    @property
    def subkey(self) -> str:
        return self.peer

    @property
    def signer(self) -> PeerId:
        return self.peer


Record = TypeVar("Record", RunRecord, PeerRecord)
_CONTEXTS = {RunRecord: "run record", PeerRecord: "peer record"}


def signed(record: RunRecord | PeerRecord, identity: Identity) -> bytes:
    """Sign a record, and encode it as the DHT stores it."""
    payload = canonical.encode(record)
    message = gossip_pb2.SignedRecord(payload=payload, signature=identity.sign(_CONTEXTS[type(record)], payload))
    value = bytes(message.SerializeToString())
    assert len(value) <= MAX_DHT_RECORD_BYTES
    return value


def checked(kind: type[Record], name: object, value: object) -> Record | None:
    """Decode a record; None unless it is well formed, belongs under this name, and is signed by the peer that made it."""
    if not isinstance(value, bytes) or len(value) > MAX_DHT_RECORD_BYTES:
        return None
    try:
        message = gossip_pb2.SignedRecord.FromString(value)
        record = decode(kind, message.payload, max_bytes=MAX_DHT_RECORD_BYTES)
    except (DecodeError, RemoteProtocolError):
        return None
    if record.subkey != name or not verify(record.signer, _CONTEXTS[kind], message.payload, message.signature):
        return None
    return record


def holds_until(name: str, value: bytes) -> float:
    """Return when the record under this name expires, in seconds since the epoch; 0 if it is invalid."""
    record = checked(RunRecord, name, value) if is_digest(name) else checked(PeerRecord, name, value)
    return 0.0 if record is None else record.expiration
