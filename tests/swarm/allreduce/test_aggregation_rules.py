"""Rules that see all contributions, between real peers on loopback: one result everywhere, whatever a liar does."""

import asyncio
import struct
from collections.abc import Sequence
from functools import partial

import numpy as np
import pytest
import torch

from adloco_p2p.errors import RemoteProtocolError
from adloco_p2p.numerics.aggregate import aggregate
from adloco_p2p.numerics.aggregation.registry import RULES, rule_named
from adloco_p2p.numerics.codecs import CODECS, codec_named
from adloco_p2p.swarm.allreduce import member_side
from adloco_p2p.swarm.allreduce.averaged import Averaged
from adloco_p2p.swarm.allreduce.gram_barrier import decode_products, encode_products, left_out_by
from adloco_p2p.swarm.allreduce.pledges import ProductsBook
from adloco_p2p.swarm.allreduce.shard_reduction import ShardReduction
from adloco_p2p.swarm.transport.framed_stream import FramedStream, FrameKind
from tests.swarm.averaging_peers import Peers, alike, averaged, key_of, kill, measured, mesh_of, residual_of, suspects_of

SIZE = 20_003
GRAM_RULES = [rule.name for rule in RULES if rule.needs_gram]


peers = mesh_of(5)


def results_of(results: Sequence[Averaged | BaseException]) -> list[Averaged]:
    """They are the same bytes, of one decision."""
    first, *others = averaged(results)
    for result in others:
        assert (result.finished.digest, result.finished.left_out) == (first.finished.digest, first.finished.left_out)
        assert torch.equal(result.vector.view(torch.int32), first.vector.view(torch.int32))
    return [first, *others]


@pytest.mark.parametrize(
    ("rule", "codec"),
    [*((rule, "int8") for rule in GRAM_RULES), *(("robust", codec.name) for codec in CODECS), ("mean", "sign")],
)
def test_every_host_has_the_bytes_that_one_process_would_make(peers: Peers, rule: str, codec: str) -> None:
    vectors, weights = alike(4), (3, 1, 2, 2)
    vectors[1] *= -10.0
    names = dict(peers.weights(*weights))
    with peers.using(aggregation=rule, codec=codec):
        results = results_of(peers.average(f"{rule} {codec}", vectors, weights))
    in_memory = aggregate(vectors, weights, (1,) * 4, rule=rule_named(rule), codec=codec_named(codec))
    difference = float((results[0].vector - in_memory.vector).norm() / in_memory.vector.norm())
    assert difference < (0.02 if codec_named(codec).needs_feedback else 1e-6), "a mean's blocks begin where its parts do"
    assert results[0].finished.contributors == tuple(sorted(names))
    assert results[0].finished.left_out == tuple(sorted(list(names)[host] for host in in_memory.decision.left_out))
    for result, statistics, residual in zip(results, in_memory.statistics, in_memory.residuals, strict=True):
        if statistics is not None:
            assert measured(result).own_sqnorm == pytest.approx(statistics.own_sqnorm, rel=1e-12)
            assert measured(result).inner_product == pytest.approx(statistics.inner_product, rel=1e-9)
            assert measured(result).averaged_sqnorm == pytest.approx(statistics.averaged_sqnorm, rel=1e-12)
        assert (residual is None) == (result.residual is None)
        assert residual is None or torch.equal(residual_of(result), residual)


@pytest.mark.parametrize("rule", [pytest.param("mean", marks=pytest.mark.heavy), "clip"])
def test_the_mean_per_place_is_that_of_one_process(peers: Peers, rule: str) -> None:
    """Weights of those that named a place; parts whose bytes depend on the values."""
    vectors, weights = alike(4), (3, 1, 2, 2)
    vectors[1] *= 10.0
    with peers.using(aggregation=rule, codec="topk2", division="named"):
        results = results_of(peers.average(f"per place {rule}", vectors, weights))
    per_place, codec = rule_named(rule, division="named"), codec_named("topk2")
    in_memory = aggregate(vectors, weights, (1,) * 4, rule=per_place, codec=codec)
    assert float((results[0].vector - in_memory.vector).norm() / in_memory.vector.norm()) < 0.02
    plain = aggregate(vectors, weights, (1,) * 4, rule=rule_named(rule), codec=codec)
    assert float((results[0].vector - plain.vector).norm() / plain.vector.norm()) > 0.5
    for result, statistics in zip(results, in_memory.statistics, strict=True):
        assert statistics is not None
        assert measured(result).averaged_sqnorm == pytest.approx(statistics.averaged_sqnorm, rel=1e-12)


def honest_mean(vectors: list[torch.Tensor], liar: int) -> torch.Tensor:
    return torch.stack([vector for host, vector in enumerate(vectors) if host != liar]).double().mean(dim=0)


@pytest.mark.parametrize("attack", ["flipped x10", "x1000", "hidden"])
def test_a_liar_among_five_moves_the_robust_average_little(peers: Peers, attack: str) -> None:
    vectors = alike(5)
    mean = honest_mean(vectors, 2).float()
    vectors[2] = {"flipped x10": -10.0 * vectors[2], "x1000": 1e3 * vectors[2], "hidden": -mean * 1.4}[attack]
    distances = {}
    for rule in ("mean", "robust"):
        with peers.using(aggregation=rule):
            (result, *_) = results_of(peers.average(f"{attack} {rule}", vectors, (1,) * 5))
        distances[rule] = float((result.vector - mean).norm() / mean.norm())
    assert distances["robust"] < 0.3 and distances["robust"] < 0.8 * distances["mean"]
    left_out = () if attack == "x1000" else (peers[2].peer_id,)  # x1000 is the honest direction: it is clipped
    assert result.finished.left_out == left_out


@pytest.mark.parametrize("codec", [codec.name for codec in CODECS if codec.needs_feedback])
def test_the_own_vector_comes_back_to_a_host_that_was_left_out(peers: Peers, codec: str) -> None:
    """Nothing of it was used, so all of it waits for the next average where there is a residual at all."""
    vectors = alike(4)
    vectors[3] *= -1.0
    with peers.using(aggregation="robust", codec=codec):
        results = results_of(peers.average(f"left out {codec}", vectors, (1,) * 4))
    assert results[0].finished.left_out == (peers[3].peer_id,)
    assert torch.equal(residual_of(results[3]), vectors[3])
    coder = codec_named(codec)
    assert torch.equal(residual_of(results[0]), vectors[0] - coder.decode(coder.encode(vectors[0])))
    assert (measured(results[3]).own_sqnorm, measured(results[3]).inner_product) == (0.0, 0.0)
    assert measured(results[3]).averaged_sqnorm == measured(results[0]).averaged_sqnorm


def test_planned_steps_are_part_of_the_decision(peers: Peers) -> None:
    vectors, digests = alike(3), set()
    vectors[0] *= 4.0
    for steps in ((1, 1, 1), (4, 1, 1)):
        with peers.using(aggregation="clip"):
            results = results_of(peers.average(f"steps {steps}", vectors, (1, 1, 1), steps=steps))
        expected = aggregate(vectors, (1, 1, 1), steps, rule=rule_named("clip"), codec=codec_named("float32"))
        assert torch.allclose(results[0].vector, expected.vector, rtol=1e-4, atol=1e-5)
        digests.add(results[0].finished.digest)
    assert len(digests) == 2


def test_receivers_and_peers_that_reduce_nothing_take_part_in_the_decision(peers: Peers) -> None:
    vectors = alike(5)
    with peers.using(aggregation="robust"):
        results = peers.average("shares", vectors, (1, 1, 1, 1, 0), shares=(1.0, 2.0, 0.0, 0.0, 0.0))
    assert measured(results_of(results)[4]).own_sqnorm == 0.0


def test_a_repair_knows_who_was_left_out_from_the_result_itself(peers: Peers) -> None:
    vectors = alike(4)
    vectors[1] *= -5.0

    with peers.using(aggregation="robust", codec="int8"):
        results = results_of(peers.average("fetched", vectors, (1,) * 4))
        peers[0].averager.forget(key_of("fetched"))
        fetched = peers.run(peers[0].repair("fetched", results[0], [peers[1]], vector=vectors[0]))
    assert fetched.finished.left_out == (peers[1].peer_id,)
    assert torch.equal(fetched.vector, results[0].vector)
    assert torch.equal(residual_of(fetched), residual_of(results[0]))
    assert fetched.finished.statistics is None, "they follow from the Gram matrix, which is gone"


# --- what goes wrong before the decision ---------------------------------------------------------------------------------


def test_a_reducer_that_withholds_its_products_is_named_at_the_deadline(peers: Peers, monkeypatch: pytest.MonkeyPatch) -> None:
    """It takes every contribution, and shows signs of life."""
    measure = ShardReduction.measure

    async def never_done(self: ShardReduction, index: int, executor: object) -> bool:
        return False if self._me == 2 else await measure(self, index, executor)  # type: ignore[arg-type]

    monkeypatch.setattr(ShardReduction, "measure", never_done)
    with peers.using(aggregation="robust"):
        deadline = partial(peers.meet_deadline, "withheld", (0, 1, 3), missing=2)
        results = peers.average("withheld", alike(4), (1,) * 4, meanwhile=deadline)
    assert all("deadline" in str(results[host]) for host in (0, 1, 3))
    assert [suspects_of(results[host]) for host in (0, 1, 3)] == [(peers[2].peer_id,)] * 3


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        bytes(8 * 10 - 1),
        bytes(8 * 11),
        struct.pack("<10d", *[float("nan")] * 10),
        struct.pack("<10d", -1.0, *[0.0] * 9),
        struct.pack("<10d", 1.0, 2.0, 1.0, *[0.0] * 7),
        struct.pack("<10d", 1e300, *[0.0] * 9),
    ],
    ids=["nothing", "short", "long", "nan", "negative norm", "beyond the norms", "beyond float32"],
)
def test_malformed_products_name_their_reducer(peers: Peers, monkeypatch: pytest.MonkeyPatch, payload: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        decode_products(payload, 4)
    sign = ProductsBook.sign
    monkeypatch.setattr(ProductsBook, "sign", lambda self, me, products: sign(self, me, payload if me == 1 else products))
    with peers.using(aggregation="clip"):
        results = peers.average("malformed", alike(4), (1,) * 4)
    for host in (0, 2, 3):
        assert suspects_of(results[host]) == (peers[1].peer_id,)
        assert "deadline" not in str(results[host])


def test_a_reducer_that_signs_two_products_is_proven_a_liar(peers: Peers, monkeypatch: pytest.MonkeyPatch) -> None:
    """It lies to one member only: by the receipts of the others that one finds out, and they by its own."""
    send = FramedStream.send

    def sending(self: FramedStream, kind: FrameKind, payload: bytes | memoryview = b"") -> None:
        if kind == FrameKind.GRAM and payload == true.get("frame") and self.peer == peers[3].peer_id:
            payload = true["other"]
        send(self, kind, payload)

    def signing(self: ProductsBook, me: int, products: bytes) -> None:
        if me == 0:
            first, *others = struct.unpack("<10d", products)
            sign(self, me, struct.pack("<10d", first * 2, *others))
            true["other"] = self._own
        sign(self, me, products)
        if me == 0:
            true["frame"] = self._own

    sign, true = ProductsBook.sign, dict[str, bytes]()
    monkeypatch.setattr(FramedStream, "send", sending)
    monkeypatch.setattr(ProductsBook, "sign", signing)
    peers.evidence.clear()
    with peers.using(aggregation="clip"):
        results = peers.average("two stories", alike(4), (1,) * 4)
    assert all(suspects_of(results[host]) == (peers[0].peer_id,) for host in (1, 2, 3)), results
    assert {found.subject for found in peers.evidence} == {peers[0].peer_id}
    assert {found.about.kind for found in peers.evidence} == {"products"}
    peers.evidence.clear()


def test_a_contribution_that_is_not_finite_is_named_before_the_decision(peers: Peers, monkeypatch: pytest.MonkeyPatch) -> None:
    async def skip(_self: member_side.MemberSide) -> None:
        return

    monkeypatch.setattr(member_side.MemberSide, "_check_own_vector", skip)
    vectors = alike(4)
    vectors[1][5] = float("inf")
    with peers.using(aggregation="robust"):
        results = peers.average("infinite", vectors, (1,) * 4)
    assert [suspects_of(results[host]) for host in (0, 2, 3)] == [(peers[1].peer_id,)] * 3


def test_a_host_that_dies_before_the_decision_is_named_and_the_others_average_without_it() -> None:
    size = 3_000_000
    with Peers(4, part_bytes=1 << 16, rule="robust") as peers:
        vectors, survivors = alike(4, size=size), (0, 2, 3)

        async def strike() -> None:
            while True:
                attempt = peers[0].averager._attempts.running.get(key_of("struck"))
                if attempt is not None and attempt.traffic[1] >= size // 2:
                    break
                await asyncio.sleep(0)
            kill(peers[1])

        results = peers.average("struck", vectors, (1,) * 4, meanwhile=strike)
        for host in survivors:
            assert peers[1].peer_id in suspects_of(results[host])

        async def again() -> list[Averaged]:
            members = tuple((peers[host].peer_id, 1) for host in survivors)
            averages = (peers[host].average("again", members, vectors[host]) for host in survivors)
            return await asyncio.gather(*averages)

        results_of(peers.run(again()))


def test_bits_of_a_binding_name_contributors() -> None:
    binding = bytes(32) + bytes([0b101, 0b1])
    names = tuple(f"host {place}" for place in range(9))
    assert left_out_by(binding, names) == ("host 0", "host 2", "host 8")  # type: ignore[arg-type]
    assert left_out_by(b"", names) == ()  # type: ignore[arg-type]


def test_products_survive_the_way() -> None:
    packed = tuple(float(value) for value in np.tril(np.ones((5, 5)))[np.tril_indices(5)])
    assert decode_products(encode_products(packed), 5) == packed
