"""Every place where bytes from outside become values: what it takes, and how it may refuse."""

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Literal

import torch
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from google.protobuf.message import DecodeError

from adloco_p2p.config.run_config import RunConfig
from adloco_p2p.core.model import canonical
from adloco_p2p.core.model.messages import MAX_MESSAGE_BYTES, MESSAGE_KINDS, RECORD_KINDS
from adloco_p2p.core.model.protocol import NEWEST
from adloco_p2p.core.model.scalars import Digest, PeerId
from adloco_p2p.decode import decode
from adloco_p2p.errors import AdlocoError, RemoteProtocolError, StorageError
from adloco_p2p.numerics.aggregation.gram import partial_gram, summed_gram
from adloco_p2p.numerics.aggregation.registry import RULES
from adloco_p2p.numerics.codecs import CODECS
from adloco_p2p.numerics.sparse_mean import SPARSE_MEAN
from adloco_p2p.numerics.tensor_codec import TensorCodec
from adloco_p2p.runtime.adapters.network_journal import journal_records
from adloco_p2p.storage.journal import Journal
from adloco_p2p.swarm.allreduce.gram_barrier import decode_products, encode_products
from adloco_p2p.swarm.allreduce.handshake import Hello, HelloReply, Purpose, failure
from adloco_p2p.swarm.discovery.join_link import format_link, parse_link
from adloco_p2p.swarm.discovery.manifest import SignedManifest
from adloco_p2p.swarm.p2p.dht_records import PeerRecord, RunRecord
from adloco_p2p.swarm.p2p.identity import Identity
from adloco_p2p.swarm.transfer.chunk_protocol import Answer, ChunkIndex, decode_reply, decode_want, encode_reply, encode_want
from adloco_p2p.swarm.transport.held import decode_held, encode_held
from adloco_p2p.swarm.transport.pieces import MAX_PAYLOAD_BYTES, Assembly, deflated, in_pieces, inflate
from adloco_p2p.v1 import gossip_pb2
from tests.fuzz.corpus import swarm_values

ADDRESS = "/ip4/203.0.113.7/tcp/31337/p2p/12D3KooWQYhTNQdmr3ArTeUHRYzFg94BKyTkoWBDWez9kSCVe2Xo"


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    name: str
    make_corpus: Callable[[], Sequence[bytes]]
    """Whole examples; made when they are first needed."""
    read: Callable[[bytes], object]
    """Raises one of `refusals`, and nothing else, whatever the bytes."""
    refusals: tuple[type[Exception], ...] = (RemoteProtocolError,)

    @property
    def corpus(self) -> Sequence[bytes]:
        return _made(self.make_corpus)


@cache
def _made(make: Callable[[], Sequence[bytes]]) -> Sequence[bytes]:
    return make()


@cache
def targets() -> tuple[Target, ...]:
    return (
        *(_value(kind, partial(_made_by_swarms, 0, name)) for name, kind in MESSAGE_KINDS.items()),
        *(_value(kind, partial(_made_by_swarms, 1, name)) for name, kind in RECORD_KINDS.items()),
        *_swarm_targets(),
        *(_codec_target(codec) for codec in (*CODECS, SPARSE_MEAN)),
        Target(name="journal", make_corpus=_journals, read=_journal, refusals=(StorageError, RemoteProtocolError)),
    )


def _made_by_swarms(part: Literal[0, 1], name: str) -> Sequence[bytes]:
    """Messages (0) or records (1) of this kind."""
    return swarm_values()[part].get(name, [])


def _value(kind: type, make_corpus: Callable[[], Sequence[bytes]]) -> Target:
    return Target(name=kind.__name__, make_corpus=make_corpus, read=lambda data: _canonical(kind, data))


def _canonical(kind: type, data: bytes) -> object:
    """A value that is taken has these bytes and no others."""
    value: object = decode(kind, data, max_bytes=MAX_MESSAGE_BYTES)
    assert canonical.encode(value) == data
    return value


def _products() -> list[bytes]:
    generator = torch.Generator().manual_seed(1)
    vectors = [torch.randn(64, generator=generator) * scale for scale in (1.0, 1.0, 2.0, 1e-3, 1e18)]
    return [encode_products(partial_gram([vector.numpy() for vector in vectors]))]


def _decided(data: bytes) -> object:
    """What a reducer may send, every rule decides about: no matrix that passes ends a node."""
    gram = summed_gram([decode_products(data, 5)] * 2, 5)
    return [rule.decide(gram, (3, 1, 2, 1, 1), (5, 5, 5, 7, 5)) for rule in RULES]


def _swarm_targets() -> list[Target]:
    key, peer = Digest("ab" * 32), PeerId("a" * 46)
    config = RunConfig(author="me")
    run_record = RunRecord(run=key, name="a run", author=peer, num_peers=3, announcer=peer, protocol=NEWEST, expiration=1e9)
    peer_record = PeerRecord(
        run=key,
        peer=peer,
        addresses=(ADDRESS,),
        nickname="Ann",
        version="1.0",
        protocol=NEWEST,
        expiration=1e9,
    )
    hello = Hello(purpose=Purpose.AVERAGE, key=key, size=1000, part_bytes=4096)
    chunks = b"".join((1000).to_bytes(4, "little") + hashlib.sha256(bytes([n])).digest() for n in range(3))
    return [
        _value(RunRecord, lambda: [canonical.encode(run_record)]),
        _value(PeerRecord, lambda: [canonical.encode(peer_record)]),
        _value(RunConfig, lambda: [canonical.encode(config)]),
        Target(name="signed manifest", make_corpus=_manifests, read=_verified),
        Target(name="hello", make_corpus=lambda: [hello.encode()], read=Hello.decode),
        Target(name="inner products", make_corpus=_products, read=_decided),
        Target(name="hello reply", make_corpus=lambda: [failure("it failed", (peer, peer)).encode()], read=HelloReply.decode),
        Target(name="chunk index", make_corpus=lambda: [b"\x04head" + chunks, b"\x00" + chunks], read=ChunkIndex.decode),
        Target(name="chunk reply", make_corpus=lambda: [encode_reply(Answer.BUSY, "later")], read=decode_reply),
        Target(name="chunk request", make_corpus=lambda: [encode_want(7)], read=decode_want),
        Target(name="held pieces", make_corpus=lambda: [encode_held({0, 2, 9}, 21)], read=_marked),
        Target(
            name="pieces",
            make_corpus=lambda: [_envelope(piece).SerializeToString() for piece in range(2)],
            read=_assembled,
            refusals=(RemoteProtocolError, DecodeError),
        ),
        Target(
            name="join link",
            make_corpus=lambda: [format_link(key, [ADDRESS]).encode()],
            read=lambda data: parse_link(data.decode("utf-8", "replace")),
            refusals=(AdlocoError,),
        ),
    ]


def _manifests() -> list[bytes]:
    author = Identity(Ed25519PrivateKey.from_private_bytes(bytes(range(32))))
    return [SignedManifest.sign(RunConfig(author=author.peer_id), author).to_bytes()]


def _verified(data: bytes) -> object:
    signed = SignedManifest.from_bytes(data)
    return signed.verified(signed.run)


def _marked(data: bytes) -> object:
    """Bits that are taken mark these pieces and no others."""
    held = decode_held(data, 21)
    assert encode_held(held, 21) == data
    return held


def _envelope(piece: int) -> gossip_pb2.Envelope:
    payload = bytes(300_000)
    plain = in_pieces(payload)[piece]
    return gossip_pb2.Envelope(
        protocol_version=NEWEST,
        kind="Entries",
        num_pieces=2,
        piece=piece,
        digest=hashlib.sha256(payload).digest(),
        payload=deflated(plain),
        plain_bytes=len(plain),
    )


def _assembled(data: bytes) -> object:
    """An envelope, and the second piece of a message after it: what is held stays counted."""
    assembly, sender = Assembly(), PeerId("a" * 46)
    first, second = gossip_pb2.Envelope.FromString(data), _envelope(1)
    try:
        for envelope in (first, second):
            inflate(envelope)
            assert len(envelope.payload) <= MAX_PAYLOAD_BYTES
        if assembly.take(sender, first, is_member=True) is None:
            return assembly.take(sender, second, is_member=True)
        raise AssertionError("one piece completed a message")
    finally:
        assert assembly.num_bytes >= 0 and (len(assembly) > 0) == (assembly.num_bytes > 0)


def _codec_target(codec: TensorCodec) -> Target:
    generator = torch.Generator().manual_seed(0)
    vectors = [torch.randn(size, generator=generator) for size in (1, 64, 4096, 5000)]
    return Target(
        name=f"codec {codec.name}",
        make_corpus=lambda: [bytes(codec.encode(vector)) for vector in vectors],
        read=codec.decode,
    )


def _journals() -> list[bytes]:
    records = swarm_values()[1]
    with TemporaryDirectory() as directory:
        path = Path(directory, "journal")
        journal = Journal.open(path)
        for kind, found in records.items():
            for data in found[:4]:
                journal.append(kind.encode("ascii") + b" " + data)
        journal.close()
        return [path.read_bytes()]


def _journal(data: bytes) -> object:
    with TemporaryDirectory() as directory:
        path = Path(directory, "journal")
        path.write_bytes(data)
        return journal_records(path)


def seeded(target: Target, seed: int) -> Random:
    return Random(json.dumps([target.name, seed]))
