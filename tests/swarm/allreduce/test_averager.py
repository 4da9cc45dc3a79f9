"""Averaging between real peers on loopback: the result."""

import asyncio
import gc
from collections.abc import Sequence
from functools import partial

import pytest
import torch

from adloco_p2p.core.model.scalars import PeerId
from adloco_p2p.errors import AveragingError, LocalProtocolError
from adloco_p2p.numerics.codecs import codec_named
from adloco_p2p.swarm.allreduce.attempt_state import AttemptState
from adloco_p2p.swarm.allreduce.averaged import Averaged
from adloco_p2p.swarm.allreduce.butterfly import Butterfly
from adloco_p2p.swarm.allreduce.part_sink import PartSink
from adloco_p2p.swarm.transfer import download
from adloco_p2p.swarm.transport.framed_stream import FramedStream
from tests.swarm.averaging_peers import Peers, averaged, key_of, measured, mesh_of, vectors_of

peers = mesh_of(4)


def dumb_mean(vectors: list[torch.Tensor], weights: tuple[int, ...]) -> torch.Tensor:
    total = sum(weights)
    return sum(v.double() * w for v, w in zip(vectors, weights, strict=True) if w) / total  # type: ignore[return-value]


def assert_same_bytes(results: Sequence[Averaged | BaseException]) -> Averaged:
    first, *others = averaged(results)
    for result in others:
        assert result.finished.digest == first.finished.digest
        assert torch.equal(result.vector.view(torch.int32), first.vector.view(torch.int32))
        assert measured(result).averaged_sqnorm == measured(first).averaged_sqnorm
    return first


@pytest.mark.parametrize(
    ("size", "weights"),
    [
        (50_000, (1, 1)),
        (50_000, (7, 1, 2)),
        (50_001, (3, 1, 4, 1)),
        (1, (1, 2, 3, 4)),
        (3, (5, 5, 5, 5)),
        (1024, (1, 1, 1)),
        (9_999, (1, 0, 2, 0)),
        (5_000, (0, 0, 3)),
    ],
)
def test_every_host_gets_the_same_weighted_mean(peers: Peers, size: int, weights: tuple[int, ...]) -> None:
    vectors = vectors_of(len(weights), size)
    given = [vector.clone() for vector in vectors]
    results = peers.average(f"mean {size} {weights}", vectors, weights)
    result = assert_same_bytes(results)
    assert torch.allclose(result.vector.double(), dumb_mean(given, weights), rtol=1e-6, atol=1e-6)
    assert all(torch.equal(vector, before) for vector, before in zip(vectors, given, strict=True))
    assert result.finished.contributors == tuple(sorted(peer for peer, weight in peers.weights(*weights) if weight))


def test_a_repetition_gives_the_same_bits(peers: Peers) -> None:
    vectors, weights = vectors_of(4, 30_000), (3, 5, 7, 11)
    first = assert_same_bytes(peers.average("repeat 1", vectors, weights))
    second = assert_same_bytes(peers.average("repeat 2", vectors, weights))
    assert first.finished.digest == second.finished.digest
    assert torch.equal(first.vector, second.vector)


@pytest.mark.parametrize(("codec", "tolerance"), [("float16", 1.5e-3), ("bfloat16", 1.2e-2)])
def test_narrow_codecs_also_give_the_same_bytes(peers: Peers, codec: str, tolerance: float) -> None:
    vectors, weights = vectors_of(3, 20_003), (1, 2, 3)
    with peers.using(codec=codec):
        results = averaged(peers.average(f"codec {codec}", vectors, weights))
    result = assert_same_bytes(results)
    expected = dumb_mean(vectors, weights)
    assert torch.allclose(result.vector.double(), expected, rtol=tolerance, atol=tolerance)
    assert not torch.allclose(result.vector.double(), expected, rtol=1e-6, atol=1e-6)
    dtype = {"float16": torch.float16, "bfloat16": torch.bfloat16}[codec]
    for vector, each in zip(vectors, results, strict=True):
        transmitted = vector.to(dtype).double()
        assert measured(each).own_sqnorm == pytest.approx(float(transmitted @ transmitted), rel=1e-12)
        assert measured(each).inner_product == pytest.approx(float(transmitted @ each.vector.double()), rel=1e-9)


@pytest.mark.parametrize(("codec", "tolerance", "rounding"), [("int8", 0.02, 250), ("int4", 0.25, 250), ("topk2", 1.01, 15.9)])
def test_lossy_codecs_give_the_same_bytes_and_their_own_statistics(
    peers: Peers, codec: str, tolerance: float, rounding: float
) -> None:
    vectors, weights = vectors_of(3, 50_003), (1, 2, 3)
    with peers.using(codec=codec):
        results = averaged(peers.average(f"codec {codec}", vectors, weights))
    mean = assert_same_bytes(results).vector.double()
    coder = codec_named(codec)
    sent = [coder.decode(coder.encode(vector)) for vector in vectors]  # cut as it may be: parts are whole groups
    ideal = dumb_mean(sent, weights)
    assert float((mean - ideal).abs().max()) <= float(ideal.abs().max()) / rounding
    assert float((mean - dumb_mean(vectors, weights)).norm()) <= tolerance * float(dumb_mean(vectors, weights).norm())
    for own, result in zip(sent, results, strict=True):
        assert measured(result).own_sqnorm == pytest.approx(float(own.double() @ own.double()), rel=1e-12)
        statistics_of = mean if coder.returns_mean else ideal
        assert measured(result).inner_product == pytest.approx(float(own.double() @ statistics_of), rel=1e-9)
        least = 2 / 3 * (coder.num_bytes(50_003) + coder.mean_codec.num_bytes(50_003))
        assert result.finished.bytes_received <= 1.1 * least + 10_000, "parts of 4 KiB, and what their hashes and pledges take"


def test_statistics_are_those_of_the_vectors(peers: Peers) -> None:
    vectors, weights = vectors_of(3, 12_345), (2, 0, 1)
    results = averaged(peers.average("statistics", vectors, weights))
    mean = assert_same_bytes(results).vector.double()
    for vector, weight, result in zip(vectors, weights, results, strict=True):
        own = vector.double() * bool(weight)  # a receiver transmits nothing
        assert measured(result).own_sqnorm == pytest.approx(float(own @ own), rel=1e-12)
        assert measured(result).inner_product == pytest.approx(float(own @ mean), rel=1e-9)
        assert measured(result).averaged_sqnorm == pytest.approx(float(mean @ mean), rel=1e-12)


def test_traffic_is_the_least_a_butterfly_needs(peers: Peers) -> None:
    size, n = 400_000, 4
    for result in averaged(peers.average("traffic", vectors_of(n, size), (1,) * n)):
        least = 2 * (n - 1) / n * 4 * size
        assert result.finished.bytes_received == pytest.approx(least, rel=0.02)
        assert result.finished.bytes_sent <= 1.02 * least


def test_shares_place_the_reduction(peers: Peers) -> None:
    """A member with share 0 contributes and reduces nothing: it sends its vector and receives the mean, no more."""
    vectors, weights = vectors_of(3, 300_000), (1, 1, 1)
    results = averaged(peers.average("shares", vectors, weights, shares=(1.0, 3.0, 0.0)))
    result = assert_same_bytes(results)
    assert torch.allclose(result.vector.double(), dumb_mean(vectors, weights), rtol=1e-6, atol=1e-6)
    assert results[2].finished.bytes_sent == pytest.approx(4 * 300_000, rel=0.03), "parts of 4 KiB, and their hashes"
    assert results[2].finished.bytes_received == pytest.approx(4 * 300_000, rel=0.02)


@pytest.mark.parametrize("codec", ["float32", "int8", "topk2", "sign"])
def test_nothing_changes_after_it_was_handed_to_a_stream(peers: Peers, codec: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """From Python 3.12 on a transport keeps what it cannot send yet, and copies nothing."""
    handed: list[tuple[bytes | memoryview, bytes]] = []
    write = FramedStream._write

    def note(stream: FramedStream, pieces: list[bytes | memoryview]) -> None:
        handed.extend((piece, bytes(piece)) for piece in pieces)
        write(stream, pieces)

    monkeypatch.setattr(FramedStream, "_write", note)
    with peers.using(codec=codec):
        averaged(peers.average(f"handed {codec}", vectors_of(3, 50_003), (1, 2, 3)))
    assert any(isinstance(piece, memoryview) for piece, _ in handed), "a copy of its own could not change"
    assert all(bytes(piece) == before for piece, before in handed)


def test_two_averages_at_the_same_time_do_not_meet(peers: Peers) -> None:
    async def both() -> list[Averaged]:
        return await asyncio.gather(
            *(
                peers[index].average(
                    f"at once {average}", peers.weights(1, 1, 1), torch.full((40_000,), float(10**average * (index + 1)))
                )
                for average in (0, 1)
                for index in range(3)
            )
        )

    results = peers.run(both())
    assert torch.allclose(assert_same_bytes(results[:3]).vector, torch.tensor(2.0))
    assert torch.allclose(assert_same_bytes(results[3:]).vector, torch.tensor(20.0))


def test_a_peer_alone_gets_its_own_vector(peers: Peers) -> None:
    vectors = vectors_of(1, 10_000)
    (result,) = averaged(peers.average("alone", vectors, (5,)))
    assert torch.equal(result.vector, vectors[0])
    assert (result.finished.bytes_sent, result.finished.bytes_received) == (0, 0)


def test_a_late_receiver_is_still_served(peers: Peers) -> None:
    vectors, weights = vectors_of(3, 30_000), (1, 1, 0)
    early = peers.average("late", vectors, weights, who=(0, 1))
    late = peers.average("late", vectors, weights, who=(2,))
    assert_same_bytes(early + late)


def test_a_lost_result_is_fetched_from_those_who_hold_it(peers: Peers, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(download, "HELP_AFTER_SECONDS", float("inf"))  # a slow machine would fetch some parts from both
    vectors, weights = vectors_of(3, 100_000), (1, 2, 3)
    results = averaged(peers.average("repair", vectors, weights))
    peers[0].averager.forget(key_of("repair"))
    contributors = results[0].finished.contributors
    repaired = peers.run(peers[0].repair("repair", results[0], peers.list[:3], vector=vectors[0]))
    assert_same_bytes([results[1], repaired])
    assert repaired.finished.contributors == contributors
    assert measured(repaired).inner_product == pytest.approx(measured(results[0]).inner_product, rel=1e-12)
    assert repaired.finished.bytes_received == pytest.approx(400_000, rel=0.05)  # every part once, from whichever donor


def test_a_repair_that_nobody_can_serve_fails(peers: Peers) -> None:
    results = averaged(peers.average("forgotten", vectors_of(2, 1_000), (1, 1)))
    for index in range(2):
        peers[index].averager.forget(key_of("forgotten"))
    donor = peers[1].peer_id
    with pytest.raises(AveragingError, match="not held here") as failed:
        peers.run(peers[0].repair("forgotten", results[0], [peers[1]]))
    assert failed.value.suspects == (donor,)


def test_a_joiner_that_had_no_part_fetches_a_result_by_its_digest(peers: Peers) -> None:
    results = averaged(peers.average("before the joiner", vectors_of(2, 1_000), (1, 1)))
    fetched = peers.run(peers[3].repair("joiner", results[0], [peers[0]]))
    assert torch.equal(fetched.vector, results[0].vector)


def test_wrong_arguments_are_refused(peers: Peers) -> None:
    everybody = peers.weights(1, 1)

    def attempt(name: str, weights: tuple[tuple[PeerId, int], ...] = everybody, vector: torch.Tensor | None = None) -> object:
        return peers.run(peers[0].average(name, weights, torch.zeros(4) if vector is None else vector))

    with pytest.raises(AveragingError, match="no member has any samples"):
        attempt("a", weights=peers.weights(0, 0))
    with pytest.raises(ValueError, match="float32"):
        attempt("b", vector=torch.zeros(4).double())
    with pytest.raises(ValueError, match="negative"):
        attempt("c", weights=peers.weights(2, -1))
    with pytest.raises(ValueError, match="distinct"):
        attempt("d", weights=everybody + everybody)
    with pytest.raises(ValueError, match="has a value"):
        attempt("e", vector=torch.zeros(0))
    with pytest.raises(LocalProtocolError, match="not a member"):
        attempt("f", weights=everybody[1:])
    attempt("used", weights=peers.weights(1))
    with pytest.raises(AveragingError, match="begun here before"):
        attempt("used", weights=peers.weights(1))


@pytest.mark.parametrize("who", [(0, 1, 2), (0, 1)], ids=["all", "one is missing"])
def test_no_buffer_of_an_average_waits_for_the_garbage_collector(peers: Peers, who: tuple[int, ...]) -> None:
    gc.collect()
    gc.disable()
    try:
        vectors = vectors_of(3, 50_000)
        name = f"garbage {who}"
        deadline = None if 2 in who else partial(peers.meet_deadline, name, who, missing=2)
        peers.average(name, vectors, (1, 1, 1), who=who, meanwhile=deadline)
        for peer in peers.list:
            peers.run(peer.averager.settled())
        left = [thing for thing in gc.get_objects() if type(thing) in (Butterfly, AttemptState, PartSink)]
    finally:
        gc.enable()
    assert left == []
