"""Averaged parts that came back in a failed attempt are kept only as far as both ends agree how far ahead a member may send."""

import asyncio
from dataclasses import dataclass, replace

import pytest

from adloco_p2p.core.model.scalars import InstanceId, PeerId
from adloco_p2p.errors import AveragingError
from adloco_p2p.swarm.allreduce.held_uploads import ReturnedParts
from adloco_p2p.swarm.allreduce.member_side import MemberSide
from adloco_p2p.swarm.allreduce.shard_reduction import ShardReduction
from adloco_p2p.swarm.allreduce.topology import AttemptResult
from adloco_p2p.swarm.allreduce.uploads import Uploads
from tests.swarm.averaging_peers import vectors_of
from tests.swarm.linked_attempts import LIMITS, LinkedPeers, Strike

NUM_PEERS, SIZE = 3, 184_320
SLOW_TURNS = 200
"""Of the event loop: many more than the others need to send all that they may."""


@dataclass
class GiveUp(Strike):
    """A member gives up after so many bytes; it lives."""

    async def sending(self, num_bytes: int) -> None:
        before, self.sent_bytes = self.sent_bytes, self.sent_bytes + num_bytes
        if before < self.after_bytes <= self.sent_bytes:
            next(iter(self.attempts.values())).fail("gave up")
        await asyncio.sleep(0)


@dataclass
class SlowMember(Strike):
    """One member sends slowly, all others at once."""

    def of(self, me: PeerId) -> Strike:
        return self if me == "peer 1" else Strike()

    async def sending(self, num_bytes: int) -> None:
        self.sent_bytes += num_bytes
        for _ in range(SLOW_TURNS):
            await asyncio.sleep(0)


def after_failure(held_bytes: int) -> LinkedPeers:
    """Peers whose first attempt has failed when a good half was sent. Lanes are longer than the window by far."""
    limits, vectors = replace(LIMITS, held_bytes=held_bytes), vectors_of(NUM_PEERS, SIZE)
    peers, whole = LinkedPeers(NUM_PEERS, limits=limits), Strike()
    spec = peers.spec(SIZE)
    assert min(len(lane) for lane in spec.lanes(0)) >= 12 > 2 * spec.window
    LinkedPeers(NUM_PEERS, limits=limits).average(spec, vectors, whole)
    failed = peers.average(spec, vectors, GiveUp(after_bytes=0.6 * whole.sent_bytes))
    assert all(isinstance(result, AveragingError) and not result.suspects for result in failed), failed
    assert all(any(peers.held[name]._returned[0, InstanceId(0)][1].has_come) for name in peers.names)
    return peers


def check_retry(peers: LinkedPeers, strike: Strike) -> None:
    vectors, spec = vectors_of(NUM_PEERS, SIZE), peers.spec(SIZE, attempt=1)
    results = peers.average(spec, vectors, strike)
    expected = LinkedPeers(NUM_PEERS).average(spec, vectors)
    for result, other in zip(results, expected, strict=True):
        assert isinstance(result, AttemptResult), result
        assert isinstance(other, AttemptResult) and result.encoded.digest == other.encoded.digest


def test_a_reducer_that_has_not_made_again_what_came_back_accuses_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    peers, reduce = after_failure(LIMITS.held_bytes), ShardReduction.reduce

    async def slow(self: ShardReduction, *arguments: object) -> None:
        for _ in range(SLOW_TURNS):
            await asyncio.sleep(0)
        await reduce(self, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(ShardReduction, "reduce", slow)
    check_retry(peers, Strike())


def test_a_reducer_that_dropped_contributions_and_waits_for_a_slow_one_accuses_nobody() -> None:
    check_retry(after_failure(held_bytes=0), SlowMember())


def test_a_contributor_keeps_the_first_parts_whose_own_ones_are_held() -> None:
    spec = LinkedPeers(NUM_PEERS).spec(SIZE)
    first_lane, second_lane, *_ = spec.lanes(0)
    parts = ReturnedParts(b"", b"", tuple(part != second_lane[1] for part in spec.parts))  # type: ignore[arg-type]
    held = {spec.place_of[part.index] for part in spec.shards[0] if part != first_lane[2]}
    assert parts.counts(spec, 0, held)[:3] == (2, 1, 15)
    assert parts.counts(spec, 0, set()) == (0, 0, 0, 0)
    assert parts.counts(spec, 0, None)[:3] == (15, 1, 15), "one that only receives has nothing to send ahead"


def test_what_came_back_is_released_when_the_last_reducer_has_its_count(monkeypatch: pytest.MonkeyPatch) -> None:
    peers, keep = after_failure(LIMITS.held_bytes), MemberSide._keep_returned
    is_there: dict[int, list[bool]] = {}

    async def noting(self: MemberSide, reducer: int) -> bytes:
        told = await keep(self, reducer)
        is_there.setdefault(self._state.me, []).append(self._state.returned is not None)
        return told

    monkeypatch.setattr(MemberSide, "_keep_returned", noting)
    check_retry(peers, Strike())
    is_there = {me: told[:2] for me, told in is_there.items()}  # what follows is the fresh average
    assert is_there == {me: [True, False] for me in range(NUM_PEERS)}


def test_a_member_is_there_as_soon_as_it_has_sent_what_it_can_without_parts_that_are_not_made_again() -> None:
    """It may have kept parts that let it send further, or none: the reducer must not take it for a straggler."""

    async def scenario() -> None:
        spec = LinkedPeers(NUM_PEERS).spec(SIZE, attempt=1)
        reduction = ShardReduction(spec, 0, None, None)  # type: ignore[arg-type]
        uploads, lanes = Uploads(spec, 0, reduction, {}), spec.lanes(0)
        for lane in range(len(lanes)):
            uploads.open(1, lane, lambda _: None)
        uploads._announce(1, frozenset(spec.place_of[part.index] for lane in lanes for part in lane[:10]))
        assert uploads.of(1, 0.0).is_there
        assert uploads._permitted(1, 0) == spec.window, "of the parts that are not held"
        for made, is_there in ((6, True), (7, False)):
            for part in lanes[0][:made]:
                reduction.is_reduced[reduction.index_of(part)].set()
            assert uploads.of(1, 0.0).is_there == is_there, "with the means of 7 parts it can send the eleventh"

    asyncio.run(scenario())
