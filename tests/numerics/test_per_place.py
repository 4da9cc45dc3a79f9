"""The mean per place, beside a slow one in float64, and what it leaves of a liar."""

from itertools import permutations

import numpy as np
import pytest
import torch

from adloco_p2p.core.ledger import slice_sums
from adloco_p2p.numerics.aggregate import aggregate
from adloco_p2p.numerics.aggregation.per_place import PerPlace, bounds, per_place_mean
from adloco_p2p.numerics.aggregation.registry import RULES, STRICT, rule_named
from adloco_p2p.numerics.codecs import codec_named

TOPK2 = codec_named("topk2")


def slow_mean(vectors: list[torch.Tensor], coefficients: list[float], divisors: list[float], block: int) -> torch.Tensor:
    """In float64, place by place."""
    result = torch.zeros(len(vectors[0]), dtype=torch.float64)
    for place in range(len(result)):
        begin = place // block * block
        tops = sorted(
            (float(vector[begin : begin + block].abs().max()), share) for vector, share in zip(vectors, divisors, strict=True)
        )
        middle = next(top for at, (top, _) in enumerate(tops) if 2 * sum(share for _, share in tops[: at + 1]) > sum(divisors))
        values = [max(-2 * middle, min(2 * middle, float(vector[place]))) for vector in vectors]
        named = sum(share for value, share in zip(values, divisors, strict=True) if value != 0)
        if named:
            result[place] = sum(value * c for value, c in zip(values, coefficients, strict=True)) / named
    return result


@pytest.mark.parametrize("num_hosts", [1, 2, 3, 7])
def test_it_is_the_slow_one(num_hosts: int) -> None:
    generator = torch.Generator().manual_seed(num_hosts)
    vectors = [torch.randn(70, generator=generator) * 10.0**host for host in range(num_hosts)]
    vectors = [vector * (torch.rand(70, generator=generator) < 0.4) for vector in vectors]
    shares = [(1 + host % 3) / 8 for host in range(num_hosts)]
    halved = [share / (1 + host % 2) for host, share in enumerate(shares)]
    found = per_place_mean([vector.numpy() for vector in vectors], halved, shares, 32)
    assert torch.allclose(found.double(), slow_mean(vectors, halved, shares, 32), rtol=1e-6, atol=1e-30)
    plain = slice_sums.combined([vector.tolist()[:32] for vector in vectors], halved, shares)
    assert plain == found[:32].tolist(), "as the ledger makes it, to the bit"


def test_the_bound_is_twice_the_middle_host_by_weight() -> None:
    blocks = [np.array([[1.0, -1.0], [0.0, 0.0]], dtype=np.float32) * size for size in (1, 2, 5)]
    assert bounds(blocks, [0.3, 0.3, 0.4]) == [4.0, 0.0]
    assert bounds(blocks, [0.2, 0.2, 0.6]) == [10.0, 0.0], "more than half of the weight"
    assert bounds([np.full((1, 2), 3e38, dtype=np.float32)], [1.0]) == [float(np.finfo(np.float32).max)]


@pytest.mark.parametrize("rule", [rule.name for rule in RULES])
def test_a_rule_decides_as_it_would_and_divides_by_those_that_it_keeps(rule: str) -> None:
    vectors = torch.tensor([[3.0, 4.0], [3.0, 3.0], [4.0, 4.0], [-3.0, -4.0]])
    gram, weights = (vectors @ vectors.T).tolist(), [2, 1, 1, 1]
    plain = rule_named(rule).decide(gram, weights, [1] * 4)
    decision = rule_named(rule, division="named").decide(gram, weights, [1] * 4)
    assert (decision.coefficients, decision.left_out) == (plain.coefficients, plain.left_out)
    counted = [2, 0.5, 0.5, 1] if rule == "robust" else weights  # it takes the second and third for copies
    kept = sum(counted[host] for host in plain.kept)
    assert decision.divisors == tuple(weight / kept if host in plain.kept else 0.0 for host, weight in enumerate(counted))
    assert plain.divisors == ()


def test_names_distinguish_rules_and_the_strict_one_is_divided_alike() -> None:
    strict = rule_named("mean", division="named", is_strict=True)
    assert isinstance(strict, PerPlace) and strict.name != STRICT.name
    assert rule_named("mean", is_strict=True) is STRICT
    assert rule_named("mean").name != rule_named("mean", division="named").name


def test_a_host_that_alone_names_a_place_moves_it_by_all_that_it_has() -> None:
    """Eight hosts with places of their own: each has an eighth of the plain mean."""
    vectors = [torch.zeros(4096) for _ in range(8)]
    for host, vector in enumerate(vectors):
        vector[64 * host : 64 * host + 64] = 1.0 + host / 8
    ones = [1] * 8
    plain = aggregate(vectors, ones, ones, rule=rule_named("mean"), codec=TOPK2)
    named = aggregate(vectors, ones, ones, rule=rule_named("mean", division="named"), codec=TOPK2)
    assert torch.allclose(named.vector, torch.stack(vectors).sum(0), atol=1.875 / 16 * 1.01)
    assert torch.allclose(8 * plain.vector, named.vector, rtol=1e-6)
    assert named.statistics == plain.statistics, "the batch test sees the plain mean"


def test_a_liar_moves_no_place_by_more_than_twice_the_middle_host() -> None:
    honest = [torch.zeros(8192) for _ in range(4)]
    for host, vector in enumerate(honest):
        vector[100 * host : 100 * host + 64], vector[4096 + 100 * host : 4160 + 100 * host] = 1.0, -0.5
    liar = torch.zeros(8192)
    liar[3000], liar[8000] = -1e20, 1e20
    for order in list(permutations(range(5)))[::17]:
        vectors = [(*honest, liar)[host] for host in order]
        found = aggregate(vectors, [1] * 5, [1] * 5, rule=rule_named("mean", division="named"), codec=TOPK2).vector
        assert (float(found[3000]), float(found[8000])) == (-2.0, 1.0)
        assert torch.equal(found[100:164], torch.ones(64)), "what honest hosts name stays"


def test_copies_raise_no_place_that_they_do_not_name() -> None:
    """Four hosts with a place of their own beside a common one, and two copies of the first: a group of three that counts as
    one has a third of a quarter each. At the second host's place the mean is that host's value, with and without them."""
    vectors = [torch.zeros(4096) for _ in range(4)]
    for host, vector in enumerate(vectors):
        vector[0], vector[1 + host] = 1.0, 4.0
    for copies in (0, 2):
        sent = [*vectors, *[vectors[0].clone() for _ in range(copies)]]
        rule = rule_named("robust", division="named")
        found = aggregate(sent, [12] * len(sent), [1] * len(sent), rule=rule, codec=codec_named("float32"))
        assert found.decision.left_out == ()
        assert found.decision.divisors == ((1 / 12, 0.25, 0.25, 0.25, 1 / 12, 1 / 12) if copies else (0.25,) * 4)
        assert found.vector[:5].tolist() == pytest.approx([1.0, 4.0, 4.0, 4.0, 4.0])
