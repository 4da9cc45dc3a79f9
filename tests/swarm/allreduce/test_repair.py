"""Fetching an average from donors that lie, are slow, or die half-way."""

import asyncio
import errno
from collections.abc import Awaitable, Callable
from dataclasses import replace

import numpy as np
import pytest
import torch

from adloco_p2p.errors import AveragingError
from adloco_p2p.swarm.allreduce import result_exchange
from adloco_p2p.swarm.allreduce.averaged import Averaged
from adloco_p2p.swarm.transfer import chunk_fetcher
from adloco_p2p.swarm.transport.framed_stream import StreamLost
from tests.swarm import averaging_peers
from tests.swarm.averaging_peers import TIMEOUT_SECONDS, Peers, key_of, mesh_of, residual_of, vectors_of

SIZE = 100_000


peers = mesh_of(3)


def repair(
    peers: Peers, name: str, result: Averaged, *donors: int, vector: torch.Tensor | None = None, by: int = 0
) -> Averaged:
    """By the first peer, which has lost it, or another one."""
    return peers.run(peers[by].repair(name, result, [peers[donor] for donor in donors], vector=vector))


def averaged(peers: Peers, name: str, *, round: int = 0) -> Averaged:
    results = peers.average(name, vectors_of(3, SIZE, seed=len(name)), (1, 2, 3), round=round)
    peers[0].averager.forget(key_of(name))
    assert isinstance(results[0], Averaged)
    return results[0]


def test_a_donor_that_cuts_the_parts_wrongly_spoils_nobody_elses(peers: Peers) -> None:
    """The hashes of its index are the true ones, the lengths are not."""
    result = averaged(peers, "lied about")
    store = peers[1].averager._results._store
    held = store.find(result.finished.digest)
    assert held is not None
    (first, one), (second, two), *others = held.parts
    store._results[key_of("lied about")] = replace(held, parts=((first + 4, one), (second - 4, two), *others))
    with pytest.raises(AveragingError) as failed:
        repair(peers, "lied about", result, 1)
    assert failed.value.suspects == (peers[1].peer_id,)
    assert repair(peers, "lied about", result, 1, 2).finished.digest == result.finished.digest  # its index came first


def test_a_second_try_fetches_what_the_first_one_lacks(peers: Peers, monkeypatch: pytest.MonkeyPatch) -> None:
    result = averaged(peers, "interrupted")
    whole, num_arrived = chunk_fetcher.next_chunk, 0

    async def lost_half_way(*arguments: object) -> tuple[int, bytearray]:
        nonlocal num_arrived
        num_arrived += 1
        if num_arrived > 5:
            raise StreamLost("the line broke")
        return await whole(*arguments)  # type: ignore[arg-type]

    with monkeypatch.context() as patched:
        patched.setattr(chunk_fetcher, "next_chunk", lost_half_way)
        patched.setattr(chunk_fetcher, "PAUSE_SECONDS", 0.01)
        with pytest.raises(AveragingError, match="the line broke"):
            repair(peers, "interrupted", result, 1)
    held = peers[1].averager._results.find(result.finished.digest)
    assert held is not None
    kept = sum(num_bytes for num_bytes, _ in held.parts[:5])
    again = repair(peers, "interrupted", result, 1)
    assert again.finished.digest == result.finished.digest
    assert again.finished.bytes_received == pytest.approx(4 * SIZE - kept, rel=0.02) and kept > 0.05 * 4 * SIZE


@pytest.mark.parametrize("has_room", [True, False])
def test_an_average_of_an_earlier_round_is_served_from_a_file_or_not_at_all(
    peers: Peers, monkeypatch: pytest.MonkeyPatch, *, has_room: bool
) -> None:
    """Where the disk is full peers go on without it."""
    if not has_room:
        monkeypatch.setattr(result_exchange, "in_file", no_room)
    name = f"earlier, {has_room=}"
    earlier = averaged(peers, name, round=1)
    averaged(peers, f"later, {has_room=}", round=2)
    exchange = peers[1].averager._results
    assert exchange._moving is not None
    peers.run(asyncio.wait_for(exchange._moving, TIMEOUT_SECONDS))
    held = exchange.find(earlier.finished.digest)
    assert (held is not None) == has_room
    if held is None:
        return
    assert isinstance(held.encoded, np.memmap)
    assert repair(peers, name, earlier, 1).vector.equal(earlier.vector)


def no_room(*_: object, **__: object) -> np.ndarray:
    raise OSError(errno.ENOSPC, "No space left on device")


def test_statistics_are_this_peers_own_or_none(peers: Peers) -> None:
    result = averaged(peers, "mine")
    assert repair(peers, "mine", result, 1, 2).finished.statistics is None
    peers[0].averager.forget(key_of("mine"))
    restored = repair(peers, "mine", result, 1, 2, vector=vectors_of(3, SIZE, seed=len("mine"))[0]).finished.statistics
    assert restored is not None and result.finished.statistics is not None
    assert restored.own_sqnorm == pytest.approx(result.finished.statistics.own_sqnorm, rel=1e-12)


@pytest.mark.parametrize("codec", ["int4", "sign", "topk2"])
def test_a_contribution_that_is_not_in_the_average_waits_for_the_next_one(peers: Peers, codec: str) -> None:
    """Where the codec leaves a residual at all."""
    vectors, name = vectors_of(3, SIZE), f"without it {codec}"
    with peers.using(codec=codec):
        results = averaging_peers.averaged(peers.average(name, vectors, (1, 1)))
        repaired = repair(peers, name, results[1], 1, by=2, vector=vectors[2])
        inside = repair(peers, name, results[1], 1, by=0, vector=vectors[0])
    assert torch.equal(residual_of(repaired), vectors[2])
    assert torch.equal(residual_of(inside), residual_of(results[0]))


def test_a_codec_that_loses_nothing_leaves_no_residual(peers: Peers) -> None:
    result = averaged(peers, "nothing is lost")
    assert repair(peers, "nothing is lost", result, 1, vector=vectors_of(3, SIZE)[0]).residual is None


class _Fault:
    """Lets data pass until so many bytes went out, then does something before every further piece."""

    up_piece_bytes = down_piece_bytes = 4096

    def __init__(self, after_bytes: int, do: Callable[[], Awaitable[object]]) -> None:
        self._bytes_left, self._do = after_bytes, do

    async def sending(self, num_bytes: int) -> None:
        self._bytes_left -= num_bytes
        if self._bytes_left < 0:
            await self._do()

    def received(self, num_bytes: int) -> float:
        return 0.0


def test_a_donor_whose_stream_broke_is_asked_again_at_once(peers: Peers, monkeypatch: pytest.MonkeyPatch) -> None:
    result = averaged(peers, "a broken line")
    server, num_breaks = peers[1].averager._results._server, 0

    async def break_once() -> None:
        nonlocal num_breaks
        num_breaks += 1
        if num_breaks == 1:
            next(iter(server._downloads)).abort()

    monkeypatch.setattr(server._endpoint, "pace", _Fault(100_000, break_once))
    assert repair(peers, "a broken line", result, 1).finished.digest == result.finished.digest
    assert num_breaks > 1


def test_a_quick_donor_takes_over_from_one_that_is_stuck(peers: Peers, monkeypatch: pytest.MonkeyPatch) -> None:
    result = averaged(peers, "one is stuck")
    monkeypatch.setattr(peers[1].averager._results._server._endpoint, "pace", _Fault(10_000, asyncio.Event().wait))
    assert repair(peers, "one is stuck", result, 1, 2).finished.digest == result.finished.digest


def test_memory_that_a_repair_reads_is_not_written_to(peers: Peers, monkeypatch: pytest.MonkeyPatch) -> None:
    """The donor forgets the result while it serves it: its buffer must not hold the next average. Of float32 it never does."""
    with peers.using(codec="float16"):
        result = averaged(peers, "forgotten while served")
        averager = peers[1].averager
        held = averager._results.find(result.finished.digest)
        assert held is not None

        async def forget() -> None:
            averager.forget(key_of("forgotten while served"))

        monkeypatch.setattr(averager._results._server._endpoint, "pace", _Fault(0, forget))
        assert repair(peers, "forgotten while served", result, 1).finished.digest == result.finished.digest
        assert averager._results._store.new_buffer(held.encoded.nbytes) is not held.encoded
