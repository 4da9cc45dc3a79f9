"""A retry sends what is not there: equal to a fresh average of the same contributors, bit for bit, for fewer bytes."""

import asyncio
import struct
from collections.abc import Collection
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from adloco_p2p.core.model import quorum
from adloco_p2p.core.model.averages import LostShare, largest_share
from adloco_p2p.core.model.quorum import Quorum
from adloco_p2p.core.model.scalars import InstanceId, PeerId
from adloco_p2p.errors import AveragingError, RemoteProtocolError
from adloco_p2p.numerics.aggregation.registry import rule_named
from adloco_p2p.numerics.codecs import CODECS
from adloco_p2p.swarm.allreduce import reducer_side, uplink_measure
from adloco_p2p.swarm.allreduce.allreduce_spec import AllReduceSpec, Part
from adloco_p2p.swarm.allreduce.attempt_state import AttemptState
from adloco_p2p.swarm.allreduce.held_uploads import HeldUploads, upload_key
from adloco_p2p.swarm.allreduce.member_side import MemberSide
from adloco_p2p.swarm.allreduce.own_contribution import OwnContribution
from adloco_p2p.swarm.allreduce.part_assembly import PartAssembly
from adloco_p2p.swarm.allreduce.reducer_side import ReducerSide
from adloco_p2p.swarm.allreduce.shard_reduction import ShardReduction
from adloco_p2p.swarm.allreduce.topology import AttemptResult
from adloco_p2p.swarm.allreduce.uploads import Uploads
from adloco_p2p.swarm.transport.framed_stream import FramedStream
from adloco_p2p.swarm.transport.held import decode_held, encode_held
from tests.swarm.averaging_peers import vectors_of
from tests.swarm.linked_attempts import LIMITS, PART_BYTES, Inline, LinkedPeers, Stall, Strike

NUM_PEERS, SIZE, VICTIM = 4, 20_483, 1
FIRST = 0, InstanceId(0)
"""Round and instance of what is averaged."""


def results_of(results: list[AttemptResult | BaseException]) -> list[AttemptResult]:
    made: list[AttemptResult] = []
    for result in results:
        assert isinstance(result, AttemptResult), result
        made.append(result)
        assert result.encoded.digest == made[0].encoded.digest
    return made


def sent_bytes(rule: str, codec: str, vectors: list[torch.Tensor]) -> int:
    """By an average that nothing happens to."""
    peers, strike = LinkedPeers(NUM_PEERS, rule=rule, codec=codec), Strike()
    results_of(peers.average(peers.spec(SIZE), vectors, strike))
    return strike.sent_bytes


def struck(peers: LinkedPeers, vectors: list[torch.Tensor], after_bytes: float) -> None:
    """The first attempt, in which the victim dies."""
    strike = Strike(victim=VICTIM, after_bytes=after_bytes)
    failed = peers.average(peers.spec(SIZE), vectors, strike)
    assert all(isinstance(result, AveragingError) for result in failed), failed
    del peers.held[peers.names[VICTIM]]


DEATHS = [
    *((rule, "float32", part_done) for rule in ("robust", "mean") for part_done in (0.25, 0.5, 0.75)),
    *(("robust", codec.name, 0.5) for codec in CODECS if codec.name != "float32"),
    ("mean", "sign", 0.5),
]


@pytest.mark.parametrize(("rule", "codec", "part_done"), DEATHS)
def test_after_a_death_the_retry_is_a_fresh_average_without_what_is_held(rule: str, codec: str, part_done: float) -> None:
    vectors = vectors_of(NUM_PEERS, SIZE)
    whole = sent_bytes(rule, codec, vectors)
    peers = LinkedPeers(NUM_PEERS, rule=rule, codec=codec)
    struck(peers, vectors, part_done * whole)
    spec = peers.spec(SIZE, without=(VICTIM,), attempt=1)
    held = sum(
        part.num_sent_bytes
        for reducer, member in enumerate(spec.members)
        for part in spec.shards[reducer]
        for sender in spec.members
        if upload_key(sender, part) in peers.held[member]._kept[FIRST]
    )
    assert held > 0
    again, afresh = Strike(), Strike()
    results = results_of(peers.average(spec, vectors, again))
    fresh = LinkedPeers(NUM_PEERS, rule=rule, codec=codec)
    expected = results_of(fresh.average(spec, vectors, afresh))
    assert afresh.sent_bytes - again.sent_bytes == held
    for result, other in zip(results, expected, strict=True):
        assert result.encoded.digest == other.encoded.digest
        assert torch.equal(result.vector.view(torch.int32), other.vector.view(torch.int32))
        assert (result.left_out, result.statistics) == (other.left_out, other.statistics)
        assert (result.residual is None) == (other.residual is None)
        assert result.residual is None or (other.residual is not None and torch.equal(result.residual, other.residual))
    assert part_done * whole + again.sent_bytes < 1.3 * whole, "where the death is noticed at once"


def given_up(peers: LinkedPeers, vectors: list[torch.Tensor]) -> PeerId:
    """The first attempt, which fails although all members live: the first one that has everything, which is returned here,
    gives up instead."""
    ended: list[PeerId] = []

    def check(self: AttemptState) -> None:
        if self.num_unsettled == 0 and self.barrier.decision is not None and self.receipts.is_complete:
            ended.append(self.peer(self.me))
            self.end.fail("gave up")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(AttemptState, "check_outcome", check)
        failed = peers.average(peers.spec(SIZE), vectors)
    assert all(isinstance(result, AveragingError) and not result.suspects for result in failed), failed
    return ended[0]


@pytest.mark.parametrize(("rule", "codec"), [("robust", "float32"), ("mean", "int8"), ("robust", "sign"), ("mean", "topk2")])
def test_a_retry_of_the_same_members_returns_only_what_has_not_come_back(rule: str, codec: str) -> None:
    vectors, peers = vectors_of(NUM_PEERS, SIZE), LinkedPeers(NUM_PEERS, rule=rule, codec=codec)
    given_up(peers, vectors)
    spec, again, afresh = peers.spec(SIZE, attempt=1), Strike(), Strike()
    held = returned = 0
    for me, name in enumerate(peers.names):
        sent, (_, kept) = peers.held[name]._kept[FIRST], peers.held[name]._returned[FIRST]
        held += sum(part.num_sent_bytes for part in spec.shards[me] for n in peers.names if upload_key(n, part) in sent)
        for reducer in set(range(NUM_PEERS)) - {me}:
            there = peers.held[peers.names[reducer]]._kept[FIRST]
            places = {spec.place_of[part.index] for part in spec.shards[reducer] if upload_key(name, part) in there}
            lanes = zip(spec.lanes(reducer), kept.counts(spec, reducer, places), strict=True)
            returned += sum(part.num_bytes for lane, count in lanes for part in lane[:count])
    assert held > 0 < returned
    results = results_of(peers.average(spec, vectors, again))
    expected = results_of(LinkedPeers(NUM_PEERS, rule=rule, codec=codec).average(spec, vectors, afresh))
    if not spec.mean_codec.is_variable:
        assert afresh.sent_bytes - again.sent_bytes == held + returned
    for result, other in zip(results, expected, strict=True):
        assert result.encoded.digest == other.encoded.digest
        assert torch.equal(result.vector.view(torch.int32), other.vector.view(torch.int32))
        assert result.statistics == other.statistics
        assert result.residual is None or (other.residual is not None and torch.equal(result.residual, other.residual))


def test_parts_that_came_back_are_of_no_use_where_a_contribution_is_another_one() -> None:
    vectors, peers = vectors_of(NUM_PEERS, SIZE), LinkedPeers(NUM_PEERS)
    given_up(peers, vectors)
    changed, spec = [*vectors[:3], vectors[3] + 1.0], peers.spec(SIZE, attempt=1)
    results = results_of(peers.average(spec, changed))
    assert results[0].encoded.digest == results_of(LinkedPeers(NUM_PEERS).average(spec, changed))[0].encoded.digest


def test_a_reducer_that_had_returned_a_wrong_part_is_named_in_the_retry() -> None:
    vectors, peers = vectors_of(NUM_PEERS, SIZE), LinkedPeers(NUM_PEERS)
    me = peers.names.index(given_up(peers, vectors))
    liar, spec = (me + 1) % NUM_PEERS, peers.spec(SIZE, attempt=1)
    peers.held[peers.names[me]]._returned[FIRST][1].encoded[spec.shards[liar][0].offset] ^= 1
    results = peers.average(spec, vectors)
    named = [result for result in results if "not about the contributions and the parts" in str(result)]
    assert named and all(result.suspects == (peers.names[liar],) for result in named)  # type: ignore[union-attr]


@pytest.mark.parametrize("payload", [b"", struct.pack("<4I", 99, 0, 0, 0)])
def test_a_member_whose_count_of_returned_parts_is_impossible_is_named(monkeypatch: pytest.MonkeyPatch, payload: bytes) -> None:
    keep, peers = MemberSide._keep_returned, LinkedPeers(3)

    async def lying(self: MemberSide, reducer: int) -> bytes:
        told = await keep(self, reducer)
        return payload if self._state.me == 2 else told

    monkeypatch.setattr(MemberSide, "_keep_returned", lying)
    results = peers.average(peers.spec(SIZE, attempt=1), vectors_of(3, SIZE))
    for result in results[:2]:
        assert isinstance(result, AveragingError) and peers.names[2] in result.suspects


@pytest.mark.parametrize("rule", ["robust", "mean"])
def test_once_the_quorum_is_there_an_attempt_ends_without_one_whose_upload_stands_still(
    monkeypatch: pytest.MonkeyPatch, rule: str
) -> None:
    """Peer 0 has a tenth of the weight, so the quorum is all others: none of them can be taken for it on a slow machine."""
    monkeypatch.setattr(quorum, "LEAST_MEASURED_SECONDS", 0.0)
    monkeypatch.setattr(uplink_measure, "LEAST_MEASURED_SECONDS", 0.0)
    monkeypatch.setattr(reducer_side, "LOOK_SECONDS", 0.001)
    vectors, peers = vectors_of(NUM_PEERS, SIZE), LinkedPeers(NUM_PEERS, rule=rule)
    spec = replace(peers.spec(SIZE), quorum=Quorum(fraction=0.9, num_planned=NUM_PEERS, tolerance_seconds=0.0))
    failed = peers.average(spec, vectors, Stall(victim=0, after_bytes=4 * PART_BYTES))
    for result in failed:
        assert isinstance(result, AveragingError) and result.suspects == (peers.names[0],)
        assert f"{peers.names[0]} left out of round 0: 0.0" in str(result) and " MB here after " in str(result)
    assert failed[0].upload_bytes_per_second > 0  # type: ignore[union-attr]
    assert [result.upload_bytes_per_second for result in failed[1:]] == [0.0] * 3  # type: ignore[union-attr]
    again, afresh = Strike(), Strike()
    rest = peers.spec(SIZE, without=(0,), attempt=1)
    results = results_of(peers.average(rest, vectors, again))
    expected = results_of(LinkedPeers(NUM_PEERS, rule=rule).average(rest, vectors, afresh))
    assert results[0].encoded.digest == expected[0].encoded.digest
    assert again.sent_bytes < afresh.sent_bytes


@pytest.mark.parametrize("rule", ["robust", "mean"])
def test_a_reducer_for_which_alone_a_host_is_slow_leaves_nobody_out(monkeypatch: pytest.MonkeyPatch, rule: str) -> None:
    """Peer 0 sends peer 1 one part of each lane, and the others when peer 1 has found it a straggler for three seconds: in
    that time it gets keepalives of the others, which have all of peer 0."""
    monkeypatch.setattr(quorum, "LEAST_MEASURED_SECONDS", 0.0)
    monkeypatch.setattr(reducer_side, "LOOK_SECONDS", 0.001)
    enough, others_wait_for, send_own = asyncio.Event(), ReducerSide._others_wait_for, MemberSide._send_own
    begin, show_life = ReducerSide.begin, FramedStream.show_life
    begun, reducers = list[float](), dict[int, ReducerSide]()

    def beginning(self: ReducerSide) -> None:
        reducers[self._state.me] = self
        begin(self)

    def late_life(self: FramedStream, *arguments: Any, **more: Any) -> None:
        """On a slow machine the others would say that they wait for peer 0, too, before they have all of it."""
        if all(reducers[member].uploads.are_complete for member in (2, 3)):
            show_life(self, *arguments, **more)

    def noting(self: ReducerSide, late: Collection[int]) -> bool:
        if self._state.me == 1 and tuple(late) == (0,):
            begun.append(self._loop.time())
            if begun[-1] - begun[0] >= 3.0:
                enough.set()
        return others_wait_for(self, late)

    async def slow(self: MemberSide, own: Any, stream: Any, sink: Any, reducer: int, parts: tuple[Part, ...]) -> None:
        if (self._state.me, reducer) == (0, 1):
            await send_own(self, own, stream, sink, reducer, parts[:1])
            await enough.wait()
            parts = parts[1:]
        await send_own(self, own, stream, sink, reducer, parts)

    monkeypatch.setattr(ReducerSide, "begin", beginning)
    monkeypatch.setattr(FramedStream, "show_life", late_life)
    monkeypatch.setattr(ReducerSide, "_others_wait_for", noting)
    monkeypatch.setattr(MemberSide, "_send_own", slow)
    vectors, peers = vectors_of(NUM_PEERS, SIZE), LinkedPeers(NUM_PEERS, rule=rule)
    spec = replace(peers.spec(SIZE), quorum=Quorum(fraction=0.9, num_planned=NUM_PEERS, tolerance_seconds=0.0))
    results_of(peers.average(spec, vectors))
    assert enough.is_set()


def test_beyond_its_limit_a_rule_without_a_barrier_holds_nothing_that_is_reduced() -> None:
    vectors = vectors_of(NUM_PEERS, SIZE)
    whole = sent_bytes("mean", "float32", vectors)
    peers = LinkedPeers(NUM_PEERS, limits=replace(LIMITS, held_bytes=0))
    struck(peers, vectors, 0.75 * whole)
    spec = peers.spec(SIZE)
    windows = 3 * spec.window * len(spec.lanes(0)) * spec.part_bytes
    for held in peers.held.values():
        assert sum(room.nbytes for room in held._kept[FIRST].values()) <= windows
    results_of(peers.average(peers.spec(SIZE, without=(VICTIM,), attempt=1), vectors))


def test_one_that_commits_itself_to_something_else_in_the_retry_sends_it_all() -> None:
    """As after a restart: the retry has its new vector, and nothing of the old one."""
    vectors = vectors_of(NUM_PEERS, SIZE)
    peers = LinkedPeers(NUM_PEERS, rule="robust")
    struck(peers, vectors, 0.6 * sent_bytes("robust", "float32", vectors))
    changed = [*vectors[:3], vectors[3] + 1.0]
    spec = peers.spec(SIZE, without=(VICTIM,), attempt=1)
    expected = results_of(LinkedPeers(NUM_PEERS, rule="robust").average(spec, changed))
    results = results_of(peers.average(spec, changed))
    assert results[0].encoded.digest == expected[0].encoded.digest


def test_one_that_commits_itself_to_something_else_and_sends_the_old_parts_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    vectors = vectors_of(NUM_PEERS, SIZE)
    peers = LinkedPeers(NUM_PEERS, rule="robust")
    struck(peers, vectors, 0.4 * sent_bytes("robust", "float32", vectors))
    leaves = OwnContribution.leaves

    def lying(self: OwnContribution) -> tuple[tuple[bytes, ...], ...]:
        is_liar = torch.equal(self._vector, vectors[3])
        return leaves(OwnContribution(self._spec, vectors[3] + 1.0) if is_liar else self)

    monkeypatch.setattr(OwnContribution, "leaves", lying)
    results = peers.average(peers.spec(SIZE, without=(VICTIM,), attempt=1), vectors)
    assert all(isinstance(result, AveragingError) for result in results)
    told = [result for result in results if "did not commit itself to" in str(result)]
    assert told and all(result.suspects == (peers.names[3],) for result in told)  # type: ignore[union-attr]


def test_one_that_commits_itself_to_the_contribution_of_another_is_not_given_its_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    vectors = vectors_of(NUM_PEERS, SIZE)
    peers, strike = LinkedPeers(NUM_PEERS, rule="robust"), Strike()
    struck(peers, vectors, 0.6 * sent_bytes("robust", "float32", vectors))
    spec = peers.spec(SIZE, without=(VICTIM,), attempt=1)
    told: dict[tuple[int, int], bytes] = {}
    take_over = Uploads.take_over

    async def noting(self: Uploads, member: int, *arguments: object) -> object:
        answer = await take_over(self, member, *arguments)  # type: ignore[arg-type]
        told[self._me, member] = answer[0]
        return answer

    monkeypatch.setattr(Uploads, "take_over", noting)
    results_of(peers.average(spec, [*vectors[:3], vectors[2]], strike))
    assert any(told[0, 1]), "the reducer holds the parts of the one"
    assert not any(told[0, 2]), "and none of the other, which commits itself to the same"


@pytest.mark.parametrize("payload", [b"", bytes(100)])
def test_a_reducer_whose_list_of_held_parts_is_impossible_is_named(monkeypatch: pytest.MonkeyPatch, payload: bytes) -> None:
    peers, take_over = LinkedPeers(3), Uploads.take_over

    async def lying(self: Uploads, *arguments: object) -> object:
        held, whole = await take_over(self, *arguments)  # type: ignore[arg-type]
        return payload if self._me == 2 else held, whole

    monkeypatch.setattr(Uploads, "take_over", lying)
    results = peers.average(peers.spec(SIZE, attempt=1), vectors_of(3, SIZE))
    for result in results[:2]:
        assert isinstance(result, AveragingError) and peers.names[2] in result.suspects


def test_two_deaths_one_after_the_other_and_a_death_of_all_other_reducers() -> None:
    vectors = vectors_of(NUM_PEERS, SIZE)
    whole = sent_bytes("robust", "float32", vectors)
    peers = LinkedPeers(NUM_PEERS, rule="robust")
    struck(peers, vectors, 0.5 * whole)
    second = Strike(victim=1, after_bytes=0.3 * whole)  # of those that are left: peer 2
    assert all(
        isinstance(result, AveragingError)
        for result in peers.average(peers.spec(SIZE, without=(1,), attempt=1), vectors, second)
    )
    again, afresh = Strike(), Strike()
    spec = peers.spec(SIZE, without=(1, 2), attempt=2)
    results = results_of(peers.average(spec, vectors, again))
    expected = results_of(LinkedPeers(NUM_PEERS, rule="robust").average(spec, vectors, afresh))
    assert results[0].encoded.digest == expected[0].encoded.digest
    assert again.sent_bytes < afresh.sent_bytes


@settings(max_examples=100, deadline=None)
@given(
    shares=st.lists(st.sampled_from([0.0, 0.5, 1.0, 3.0]), min_size=2, max_size=7),
    gone=st.sets(st.integers(0, 6), max_size=5),
    size=st.integers(1, 60_000),
    codec=st.sampled_from([codec.name for codec in CODECS]),
)
def test_the_parts_are_those_of_the_first_attempt_and_only_lost_ones_are_dealt(
    shares: list[float], gone: set[int], size: int, codec: str
) -> None:
    kept = [number for number in range(len(shares)) if number not in gone]
    assume(any(shares[number] for number in kept))
    base = replace(LinkedPeers(len(shares), codec=codec).spec(size), shares=tuple(shares))
    lost = tuple(LostShare(sum(k < number for k in kept), shares[number]) for number in range(len(shares)) if number in gone)
    retry = replace(
        base,
        weights=tuple(base.weights[number] for number in kept),
        shares=tuple(shares[number] for number in kept),
        steps=(1,) * len(kept),
        lost=lost,
        attempt=1,
    )
    assert retry.parts == base.parts and retry.digest != base.digest
    assert {part for shard in retry.shards for part in shard} == set(base.parts)
    lost_parts = sum(part.size for number in gone if number < len(shares) for part in base.shards[number])
    largest = max(part.size for part in base.parts)
    room = size * largest_share(len(kept), sum(shares[number] > 0 for number in kept))
    owned = {number: sum(part.size for part in base.shards[number]) for number in kept}
    fair = {number: lost_parts * shares[number] / sum(shares[k] for k in kept) for number in kept}
    is_capped = any(owned[number] + fair[number] + (len(kept) + 1) * largest > room for number in kept)
    for member, number in enumerate(kept):
        assert set(retry.shards[member]) >= set(base.shards[number])
        assert bool(shares[number]) or not retry.shards[member]
        dealt = sum(part.size for part in retry.shards[member]) - owned[number]
        assert not dealt or owned[number] + dealt <= room + len(kept) * largest
        assert is_capped or abs(dealt - fair[number]) <= (len(kept) + 1) * largest
    for part in retry.parts:
        assert retry.shards[retry.reducer_of[part.index]][retry.place_of[part.index]] is part


def test_in_a_retry_nobody_reduces_more_than_in_a_first_attempt_of_so_many_members() -> None:
    """Eight hosts; the two that go were to reduce half. In proportion one that stays would reduce 2 / 4 instead of 2 / 6."""
    shares = (4.0, 4.0, 4.0, 1.0, 1.0, 1.0, 1.0, 0.0)
    base = replace(LinkedPeers(8).spec(200_000), shares=shares)
    retry = replace(
        base,
        weights=base.weights[2:],
        shares=shares[2:],
        steps=(1,) * 6,
        lost=(LostShare(0, 4.0), LostShare(0, 4.0)),
        attempt=1,
    )
    sizes = [sum(part.size for part in shard) for shard in retry.shards]
    assert sum(sizes) == 200_000 and sizes[5] == 0
    assert 0.32 < max(sizes) / 200_000 <= 2 / 6
    assert max(sizes[1:5]) - min(sizes[1:5]) <= 2 * retry.parts[0].size, "the rest is dealt by the shares"


def test_which_parts_are_held_fits_in_a_bit_each() -> None:
    assert encode_held([0, 2, 9], 10) == bytes([0b101, 0b10])
    assert decode_held(bytes([0b101, 0b10]), 10) == {0, 2, 9}
    for payload in (b"", bytes(1), bytes(3), bytes([0, 0b100])):
        with pytest.raises(RemoteProtocolError):
            decode_held(payload, 10)


def test_what_is_held_is_dropped_with_the_round_and_by_the_first_attempt_at_another_average() -> None:
    peers = LinkedPeers(2)
    spec, held = replace(peers.spec(SIZE), round=7, attempt=1), HeldUploads()
    kept = {upload_key(peers.names[0], spec.parts[0]): torch.zeros(4, dtype=torch.uint8).numpy()}
    held.keep(spec, kept)
    assert held.begin(spec).keys() == kept.keys() and held.begin(spec) == {}
    held.keep(spec, kept)
    assert held.begin(replace(spec, attempt=0)) == {} == held.begin(spec)
    held.keep(spec, kept)
    held.begin(replace(spec, instance=InstanceId(1)))
    assert held.begin(spec).keys() == kept.keys(), "another instance of the same round"
    held.keep(spec, kept)
    held.begin(replace(spec, round=8, instance=InstanceId(1)))
    assert held.begin(spec) == {}
    held.keep(spec, kept)
    held.drop(7, spec.instance)
    assert held.begin(spec) == {}


def test_a_room_of_an_earlier_attempt_is_reused_only_where_it_is_large_enough() -> None:
    """A member with a small share reduces one short part at first, and whole parts of a lost reducer in the retry."""
    peers = LinkedPeers(3)
    first = replace(peers.spec(SIZE), shares=(1.0, 200.0, 200.0))
    retry = replace(peers.spec(SIZE, without=(2,), attempt=1), shares=(1.0, 200.0), lost=(LostShare(2, 200.0),), steps=(1, 1))
    (short,), (shared, *_, whole) = first.shards[0], retry.shards[0]
    assert shared.num_sent_bytes == short.num_sent_bytes < whole.num_sent_bytes

    def reduction(spec: AllReduceSpec) -> ShardReduction:
        room = np.empty(spec.num_result_bytes, dtype=np.uint8)
        return ShardReduction(spec, 0, PartAssembly(spec, None, encoded=room), None, held_bytes=0)

    async def retried() -> int:
        failed, again = reduction(first), reduction(retry)
        failed.room(1, short)[:] = bytes(short.num_sent_bytes)
        failed.arrive(1, short)
        ((_, _, held),) = failed.arrived()
        again.adopt(1, shared, held)
        again._own = OwnContribution(retry, torch.zeros(SIZE))
        await again.reduce(0, rule_named("mean").decide(None, (1, 2), (1, 1)), Inline())
        return len(again.room(1, whole))

    assert asyncio.run(retried()) == whole.num_sent_bytes
