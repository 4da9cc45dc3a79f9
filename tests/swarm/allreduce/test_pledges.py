"""Commitments and receipts: by hand, and between real peers on loopback of which one lies."""

import asyncio
import hashlib
import logging
import struct
from collections.abc import Sequence
from contextvars import ContextVar
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from adloco_p2p.core.model import canonical
from adloco_p2p.core.model.hash_tree import tree_root
from adloco_p2p.core.model.ledger_entry import Equivocation, Evidence, Pledge, inputs_digest, receipt_content
from adloco_p2p.core.model.scalars import MAX_HOSTS, Digest, PeerId
from adloco_p2p.decode import decode
from adloco_p2p.errors import RemoteProtocolError
from adloco_p2p.numerics.aggregation.registry import rule_named
from adloco_p2p.numerics.codecs import CODECS, codec_named
from adloco_p2p.numerics.reduction import BadPart
from adloco_p2p.swarm.allreduce import butterfly, member_side, pledges, reducer_side
from adloco_p2p.swarm.allreduce.allreduce_spec import AllReduceSpec, Part
from adloco_p2p.swarm.allreduce.averaged import Averaged
from adloco_p2p.swarm.allreduce.gram_barrier import diagonal_of, encode_products
from adloco_p2p.swarm.allreduce.handshake import Hello, Purpose, failure
from adloco_p2p.swarm.allreduce.own_contribution import OwnContribution, root_of, sent_root
from adloco_p2p.swarm.allreduce.part_assembly import PartAssembly
from adloco_p2p.swarm.allreduce.pledges import Commitment, CommitmentBook, Notary, ReceiptBook
from adloco_p2p.swarm.allreduce.receipt_exchange import ReceiptExchange
from adloco_p2p.swarm.allreduce.shard_reduction import ShardReduction
from adloco_p2p.swarm.transport import log_limiter
from adloco_p2p.swarm.transport.framed_stream import FrameKind
from tests.swarm.averaging_peers import TIMEOUT_SECONDS, Peers, alike, key_of, mesh_of, sign, suspects_of

SIZE = 20_003
MEMBERS = tuple(PeerId(f"member {number}") for number in range(3))


peers = mesh_of(4)


@pytest.fixture(autouse=True)
def no_evidence(peers: Peers) -> None:
    peers.evidence.clear()


def bans(evidence: Sequence[Evidence]) -> set[PeerId]:
    """Who is proven to have signed two things about one, checked by hand."""
    for found in evidence:
        assert isinstance(found, Equivocation)
        first, second = found.first, found.second
        assert replace(first, content=second.content, signature=second.signature) == second
        assert first.content < second.content
        assert all(made.signature == sign(made.peer, made.payload) for made in (first, second))
    return {found.subject for found in evidence}


# --- by hand -------------------------------------------------------------------------------------------------------------


def spec_of(*, size: int = 10, codec: str = "float32", part_bytes: int = 8) -> AllReduceSpec:
    """Two parts of two values for the first member, one of two for the second, the rest for the third."""
    return AllReduceSpec(
        key=key_of("by hand"),
        weights=tuple((peer, 1) for peer in MEMBERS),
        shares=(2.0, 1.0, 2.0),
        size=size,
        codec=codec_named(codec),
        part_bytes=part_bytes,
        rule=rule_named("mean"),
        steps=(1, 1, 1),
    )


def hashed(*pieces: bytes) -> bytes:
    return hashlib.sha256(b"".join(pieces)).digest()


def test_a_root_is_that_of_a_tree_over_slices_parts_and_the_names_of_reducers() -> None:
    values = struct.unpack("<10f", struct.pack("<10f", *[0.5 * number for number in range(10)]))
    spec = spec_of()
    own = OwnContribution(spec, torch.tensor(values))
    leaves = [
        hashed(b"\0", struct.pack("<Q", first), struct.pack("<2f", *values[first : first + 2])) for first in (0, 2, 4, 6, 8)
    ]
    shards = [leaves[:2], leaves[2:3], leaves[3:]]
    assert own.leaves() == tuple(tuple(shard) for shard in shards)
    tables = [hashed(b"\1", *shards[0]), *shards[1], hashed(b"\1", *shards[2])]
    assert [tree_root(shard) for shard in shards] == tables
    tops = [hashed(b"\2", peer.encode("ascii"), b"\0", table) for peer, table in zip(MEMBERS, tables, strict=True)]
    assert root_of(spec, tables) == hashed(b"\1", hashed(b"\1", *tops[:2]), tops[2]).hex()


def test_a_receipt_names_codecs_roots_coefficients_and_parts() -> None:
    roots, shard = [Digest("a" * 64), Digest("b" * 64)], bytes([1]) * 32
    inputs = hashed(b"\x05\x04\x02\0", bytes.fromhex("a" * 64 + "b" * 64), struct.pack("<2d", 0.25, 0.75))
    assert inputs_digest(5, 4, roots, (0.25, 0.75)) == inputs.hex()
    assert receipt_content(Digest(inputs.hex()), shard) == hashed(inputs, shard).hex()


@pytest.mark.parametrize("codec", [codec.name for codec in CODECS])
def test_a_host_computes_its_norm_as_every_reducer_does(codec: str) -> None:
    """To the bit, whatever the others send: it is compared for equality."""
    spec = spec_of(size=60_000, codec=codec, part_bytes=1 << 15)
    own, *others = [OwnContribution(spec, vector[:60_000].clone()) for vector in alike(5) for vector in [vector.repeat(3)]]

    async def measured(reducer: int) -> bytes:
        reduction = ShardReduction(spec, reducer, SimpleNamespace(), others[0])  # type: ignore[arg-type]
        for index, part in enumerate(spec.shards[reducer]):
            for member, contribution in enumerate((own, *others[1:3])):
                if member != reducer:
                    reduction.room(member, part)[:] = contribution.encoded(part)
            await reduction.measure(index, None)  # type: ignore[arg-type]
        return reduction.products

    for reducer in (1, 2):
        assert diagonal_of(asyncio.run(measured(reducer)), 3)[0] == own.sqnorm(reducer)


def books(spec: AllReduceSpec, evidence: list[Evidence] | None = None) -> list[CommitmentBook]:
    """One of each member, which has committed itself to a vector of its own number."""
    made = []
    for me, peer in enumerate(MEMBERS):
        notary = Notary(
            peer,
            sign=partial(sign, peer),
            verify=lambda peer, payload, signature: sign(peer, payload) == signature,
            on_evidence=([] if evidence is None else evidence).append,
        )
        made.append(CommitmentBook(spec, me, notary))
        made[-1].commit_own(OwnContribution(spec, torch.full((spec.size,), float(me))).leaves())
    return made


def frame_of(book: CommitmentBook, reducer: int) -> bytes:
    return asyncio.run(book.own_frame(reducer))


def altered(frame: bytes, **fields: Any) -> bytes:
    return canonical.encode(replace(decode(Commitment, frame, max_bytes=1 << 20), **fields))


def of_another_attempt(frame: bytes) -> bytes:
    pledge = decode(Commitment, frame, max_bytes=1 << 20).pledge
    other = replace(pledge, key=key_of("another"))
    return altered(frame, pledge=replace(other, signature=sign(other.peer, other.payload)))


@pytest.mark.parametrize(
    "spoilt",
    [
        lambda frame: frame[:-1],
        lambda frame: altered(frame, leaves=()),
        lambda frame: altered(frame, leaves=(Digest("a" * 64), Digest("b" * 64))),
        lambda frame: altered(frame, shards=()),
        lambda frame: altered(frame, shards=tuple(Digest("c" * 64) for _ in range(3))),
        lambda frame: altered(
            frame, pledge=replace(decode(Commitment, frame, max_bytes=1 << 20).pledge, content=Digest("d" * 64))
        ),
        of_another_attempt,
    ],
    ids=["cut", "no leaves", "other leaves", "no shards", "other shards", "unsigned", "another attempt"],
)
def test_what_is_no_commitment_names_its_sender(spoilt) -> None:
    made = books(spec_of())
    frame = frame_of(made[1], 0)
    with pytest.raises(BadPart) as raised:
        made[0].take(1, spoilt(frame))
    assert raised.value.member == 1
    made[0].take(1, frame)


def test_the_commitments_of_all_are_awaited_and_passed_on() -> None:
    made = books(spec_of())
    reducer, other = made[0], made[2]
    assert reducer.missing == (1, 2)
    for member in (1, 2):
        assert not reducer.is_complete.is_set()
        reducer.take(member, frame_of(made[member], 0))
    assert reducer.is_complete.is_set() and reducer.missing == ()
    other.take_all(0, reducer.frame())
    assert not other.is_complete.is_set(), "it reduces a part itself, and has no hashes for it yet"
    for member in (0, 1):
        other.take(member, frame_of(made[member], 2))
    assert other.is_complete.is_set() and other.roots == reducer.roots


def test_a_reducer_cannot_make_up_what_another_member_committed_itself_to() -> None:
    evidence: list[Evidence] = []
    made = books(spec_of(), evidence)
    told = decode(pledges.Pledges, complete_frame(made), max_bytes=1 << 20)
    forged = replace(told.pledges[1], content=Digest("e" * 64))
    payload = canonical.encode(pledges.Pledges(pledges=(told.pledges[0], forged, told.pledges[2])))
    with pytest.raises(BadPart) as raised:
        made[2].take_all(0, payload)
    assert raised.value.member == 0
    assert evidence == []


def complete_frame(made: list[CommitmentBook]) -> bytes:
    for member in (1, 2):
        made[0].take(member, frame_of(made[member], 0))
    return made[0].frame()


# --- between peers -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rule", ["mean", "clip"])
@pytest.mark.parametrize("codec", ["float32", "int8"])
def test_honest_hosts_prove_nothing_against_each_other(peers: Peers, rule: str, codec: str) -> None:
    with peers.using(aggregation=rule, codec=codec):
        results = peers.average(f"honest {rule} {codec}", alike(4), (1, 2, 3, 1))
        for peer in peers.list:
            peers.run(peer.averager._receipts.tasks.settled())
    assert len({result.finished.digest for result in results if isinstance(result, Averaged)}) == 1
    assert peers.evidence == []


@pytest.mark.parametrize("factor", [100.0, 1.0 + 1e-15])
def test_a_reducer_that_invents_a_hosts_norm_is_named_by_that_host(
    peers: Peers, monkeypatch: pytest.MonkeyPatch, factor: float
) -> None:
    """Inflated a hundredfold, the host would be clipped to nothing; nobody but the host itself can tell."""
    measure = ShardReduction.measure

    async def lying(self: ShardReduction, index: int, executor: object) -> bool:
        is_last = await measure(self, index, executor)  # type: ignore[arg-type]
        if is_last and self._me == 1:
            packed = list(struct.unpack("<10d", self.products))
            packed[5] = packed[5] * factor  # of host 2: <2, 2>
            self.products = encode_products(packed)
        return is_last

    monkeypatch.setattr(ShardReduction, "measure", lying)
    with peers.using(aggregation="clip"):
        results = peers.average(f"invented norm {factor}", alike(4), (1,) * 4)
    assert suspects_of(results[2]) == (peers[1].peer_id,)
    assert "squared norm" in str(results[2])
    assert peers.evidence == [], "only the host can tell, so nobody is banned for it"


@pytest.mark.parametrize("rule", ["mean", "robust"])
def test_a_part_that_its_sender_did_not_commit_itself_to_is_not_reduced(
    peers: Peers, monkeypatch: pytest.MonkeyPatch, rule: str
) -> None:
    encoded = OwnContribution.encoded

    def lying(self: OwnContribution, part: Part) -> memoryview:
        data = encoded(self, part)
        is_sent = self._vector[0] == 7.0 and part.index == self._spec.shards[1][0].index and hasattr(self, "hashed")
        return memoryview(bytes([data[0] ^ 1]) + bytes(data[1:])) if is_sent else data

    leaves = OwnContribution.leaves

    def hashing(self: OwnContribution) -> tuple[tuple[bytes, ...], ...]:
        made = leaves(self)
        self.hashed = True  # type: ignore[attr-defined]
        return made

    async def after_hashing(self: member_side.MemberSide, own: OwnContribution, *arguments: object) -> None:
        await self._state.commitments.wait_for(self._state.me)
        await send_own(self, own, *arguments)  # type: ignore[arg-type]

    send_own = member_side.MemberSide._send_own
    monkeypatch.setattr(OwnContribution, "encoded", lying)
    monkeypatch.setattr(OwnContribution, "leaves", hashing)
    monkeypatch.setattr(member_side.MemberSide, "_send_own", after_hashing)
    vectors = alike(4)
    vectors[3][0] = 7.0
    with peers.using(aggregation=rule):
        results = peers.average(f"other part {rule}", vectors, (1,) * 4)
    for host in (0, 1, 2):
        assert suspects_of(results[host]) == (peers[3].peer_id,)
    assert "did not commit itself to" in str(results[1])


@pytest.mark.parametrize("rule", ["mean", "robust"])
def test_a_contributor_that_commits_itself_to_two_things_is_proven_a_liar(
    peers: Peers, monkeypatch: pytest.MonkeyPatch, rule: str
) -> None:
    own_frame = CommitmentBook.own_frame

    async def lying(self: CommitmentBook, reducer: int) -> bytes:
        frame = await own_frame(self, reducer)
        if self._me != 2 or reducer != 0:
            return frame
        told = decode(Commitment, frame, max_bytes=1 << 20)
        shards = (*told.shards[:3], Digest("f" * 64))  # the hashes of this reducer's parts are true
        root = root_of(self._spec, [bytes.fromhex(digest) for digest in shards])
        return altered(frame, shards=shards, pledge=self._notary.pledge(self._spec, "contribution", root))

    monkeypatch.setattr(CommitmentBook, "own_frame", lying)
    with peers.using(aggregation=rule):
        results = peers.average(f"two roots {rule}", alike(4), (1,) * 4)
    for host in (0, 1, 3):
        assert suspects_of(results[host]) == (peers[2].peer_id,)
    assert bans(peers.evidence) == {peers[2].peer_id}


def test_a_contributor_that_commits_itself_to_nothing_is_named_at_the_deadline(
    peers: Peers, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def silent(self: member_side.MemberSide, stream: object, reducer: int) -> None:
        if self._state.me != 2:
            await send(self, stream, reducer)  # type: ignore[arg-type]

    send = member_side.MemberSide._send_commitment
    monkeypatch.setattr(member_side.MemberSide, "_send_commitment", silent)
    deadline = partial(peers.meet_deadline, "nothing", (0, 1, 3), missing=2)
    results = peers.average("nothing", alike(4), (1,) * 4, meanwhile=deadline)
    assert all("deadline" in str(results[host]) for host in (0, 1, 3))
    assert [suspects_of(results[host]) for host in (0, 1, 3)] == [(peers[2].peer_id,)] * 3


def test_a_reducer_that_gives_two_members_two_results_is_proven_a_liar(peers: Peers, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is consistent with the receipt that comes with it; the members compare them."""
    is_cheated: ContextVar[bool] = ContextVar("is_cheated", default=False)
    serve, encoded, own = reducer_side.ReducerSide._serve_member, PartAssembly.data, ReceiptBook.own

    async def serving(self: reducer_side.ReducerSide, stream: object, member: int, lane: int) -> bool:
        is_cheated.set(self._state.me == 1 and member == 3)
        return await serve(self, stream, member, lane)  # type: ignore[arg-type]

    def looking(self: PartAssembly, part: Part) -> memoryview:
        data = encoded(self, part)
        return memoryview(struct.pack("<f", 1e6) + bytes(data[4:])) if is_cheated.get() else data

    async def certifying(self: ReceiptBook) -> bytes:
        frame = await own(self)
        if not is_cheated.get():
            return frame
        receipt = decode(pledges.Receipt, frame, max_bytes=1 << 20)
        given = [sent_root(self._spec, part, looking(attempts[1]._state.assembly, part)) for part in self._spec.shards[1]]
        made = self._notary.pledge(self._spec, "reduction", receipt_content(attempts[1]._state.inputs, tree_root(given)))
        return canonical.encode(replace(receipt, pledge=made))

    attempts: dict[int, butterfly.Butterfly] = {}
    begin = butterfly.Butterfly.__init__

    def beginning(self: butterfly.Butterfly, *arguments: object) -> None:
        begin(self, *arguments)  # type: ignore[arg-type]
        attempts[self._state.me] = self

    monkeypatch.setattr(butterfly.Butterfly, "__init__", beginning)
    monkeypatch.setattr(reducer_side.ReducerSide, "_serve_member", serving)
    monkeypatch.setattr(PartAssembly, "data", looking)
    monkeypatch.setattr(ReceiptBook, "own", certifying)
    cheated = peers[3].peer_id
    for peer in peers.list:  # one meeting across the two halves is likely; here it is certain
        chosen = SimpleNamespace(choice=lambda others: cheated if cheated in others else others[0])
        monkeypatch.setattr(peer.averager._receipts, "_random", chosen)
    results = peers.average("two results", alike(4), (1,) * 4)
    assert all(isinstance(result, Averaged) for result in results), results
    digests = [result.finished.digest for result in results]  # type: ignore[union-attr]
    assert digests[0] == digests[1] == digests[2] != digests[3]
    for peer in peers.list:
        peers.run(peer.averager._receipts.tasks.settled())
    assert bans(peers.evidence) == {peers[1].peer_id}


def test_a_receipt_that_is_not_about_the_parts_names_its_reducer(peers: Peers, monkeypatch: pytest.MonkeyPatch) -> None:
    own = ReceiptBook.own

    async def lying(self: ReceiptBook) -> bytes:
        receipt = decode(pledges.Receipt, await own(self), max_bytes=1 << 20)
        if receipt.pledge.peer != peers[1].peer_id:
            return await own(self)
        return canonical.encode(replace(receipt, pledge=self._notary.pledge(self._spec, "reduction", Digest("a" * 64))))

    monkeypatch.setattr(ReceiptBook, "own", lying)
    results = peers.average("another receipt", alike(4), (1,) * 4)
    assert [suspects_of(results[host]) for host in (0, 2, 3)] == [(peers[1].peer_id,)] * 3


def test_receipts_that_a_member_made_up_prove_nothing(peers: Peers) -> None:
    results = peers.average("made up", alike(2), (1, 1))
    assert all(isinstance(result, Averaged) for result in results)
    exchange = peers[0].averager._receipts
    held = exchange._held[key_of("made up")]

    def shown(receipt: Pledge) -> bytes:
        return canonical.encode(pledges.Pledges(pledges=(receipt,)))

    other = replace(held[1], content=Digest("a" * 64))
    exchange.on_shown(PeerId("the first"), key_of("made up"), shown(other))
    elsewhere = replace(other, key=key_of("elsewhere"))
    signed = replace(elsewhere, signature=sign(elsewhere.peer, elsewhere.payload))
    exchange.on_shown(PeerId("the second"), key_of("made up"), shown(signed))
    assert peers.evidence == []
    exchange.on_shown(PeerId("the third"), key_of("made up"), shown(replace(other, signature=sign(other.peer, other.payload))))
    assert bans(peers.evidence) == {held[1].peer}


def exchange_of(evidence: list[Evidence], verified: list[PeerId]) -> ReceiptExchange:
    def verify(peer: PeerId, payload: bytes, signature: str) -> bool:
        verified.append(peer)
        return sign(peer, payload) == signature

    notary = Notary(PeerId("me"), sign=lambda _: "", verify=verify, on_evidence=evidence.append)
    return ReceiptExchange(PeerId("me"), notary, connect=lambda *_: pytest.fail("nothing is shown"))


def receipt(spec: AllReduceSpec, content: str) -> Pledge:
    unsigned = Pledge(
        kind="reduction",
        peer=spec.members[1],
        plan=spec.plan,
        round=spec.round,
        key=spec.key,
        content=Digest(content * 64),
        signature="",
    )
    return replace(unsigned, signature=sign(unsigned.peer, unsigned.payload))


def encoded(*receipts: Pledge) -> bytes:
    return canonical.encode(pledges.Pledges(pledges=receipts))


def test_receipts_under_keys_that_nobody_has_take_no_place_of_those_that_another_member_shows() -> None:
    """A reducer that gave two of them would see to it that the one which came early is forgotten."""
    evidence: list[Evidence] = []
    exchange, spec = exchange_of(evidence, []), spec_of()
    exchange.on_shown(PeerId("honest"), spec.key, encoded(receipt(spec, "a")))
    for number in range(1000):
        exchange.on_shown(PeerId("flooding"), key_of(str(number)), encoded(receipt(spec, "b")))
    exchange.hold(spec, (receipt(spec, "b"),))
    assert bans(evidence) == {spec.members[1]}


def test_receipts_of_one_that_shows_many_go_before_those_of_one_that_shows_few() -> None:
    evidence: list[Evidence] = []
    exchange, spec = exchange_of(evidence, []), spec_of()
    exchange.on_shown(PeerId("honest"), spec.key, encoded(receipt(spec, "a")))
    for sender in range(200):
        for number in range(4):
            exchange.on_shown(PeerId(f"flooding {sender}"), key_of(f"{sender} {number}"), encoded(receipt(spec, "b")))
    exchange.hold(spec, (receipt(spec, "b"),))
    assert bans(evidence) == {spec.members[1]}


def test_a_member_shows_its_receipts_of_an_average_once_and_one_of_each_reducer() -> None:
    verified: list[PeerId] = []
    exchange, spec = exchange_of([], verified), spec_of()
    exchange.hold(spec, (receipt(spec, "b"),))
    forged = [replace(receipt(spec, "a"), signature=f"{number:0128x}") for number in range(MAX_HOSTS)]
    exchange.on_shown(PeerId("flooding"), spec.key, encoded(*forged))
    with pytest.raises(RemoteProtocolError, match="of one average again"):
        exchange.on_shown(PeerId("flooding"), spec.key, encoded(*forged))
    assert len(verified) == 1


def test_notes_about_averages_that_nobody_makes_are_logged_seldom(
    peers: Peers, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_limiter, "PERIOD_SECONDS", 1e6)  # a slow machine takes a minute

    async def note(number: int) -> None:
        stream = await peers[1].averager._connect(peers[0].peer_id, TIMEOUT_SECONDS)
        stream.send(FrameKind.HELLO, Hello(purpose=Purpose.ABORT, key=key_of(str(number))).encode())
        stream.send(FrameKind.NOTE, failure("none of them", ()).encode())
        await stream.until_closed(TIMEOUT_SECONDS)
        stream.close()

    with caplog.at_level(logging.INFO, logger="adloco_p2p"):
        for number in range(20):
            peers.run(note(number))
    assert sum("averaging.note" in line for line in caplog.messages) == 1
