"""A member that dies after the barrier stays in the mean: the others average only what it was to reduce."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch

from adloco_p2p.errors import AveragingError
from adloco_p2p.numerics.aggregation.rule import Decision
from adloco_p2p.numerics.codecs import CODECS
from adloco_p2p.numerics.reduction import combination
from adloco_p2p.swarm.allreduce.allreduce_spec import AllReduceSpec
from adloco_p2p.swarm.allreduce.butterfly import Butterfly
from adloco_p2p.swarm.allreduce.completion import decision_of_rest
from adloco_p2p.swarm.allreduce.topology import AttemptResult
from tests.swarm.averaging_peers import vectors_of
from tests.swarm.linked_attempts import LinkedPeers, Strike

NUM_PEERS, SIZE, VICTIM = 4, 20_483, 1


def results_of(results: Sequence[AttemptResult | BaseException]) -> list[AttemptResult]:
    for result in results:
        assert isinstance(result, AttemptResult), result
        assert result.encoded.digest == results[0].encoded.digest
    return results  # type: ignore[return-value]


def undisturbed(rule: str, codec: str, vectors: list[torch.Tensor]) -> tuple[list[AttemptResult], int]:
    peers, strike = LinkedPeers(NUM_PEERS, rule=rule, codec=codec), Strike()
    return results_of(peers.average(peers.spec(SIZE), vectors, strike)), strike.sent_bytes


def slow_average(spec: AllReduceSpec, whole: AttemptResult, vectors: list[torch.Tensor], dead: set[int]) -> torch.Tensor:
    """Part by part: of all contributors, and where a dead one reduced of the others, by what the rule decided with all."""
    settled, result = whole.settled[0], torch.empty(SIZE)
    rest = [place for place in range(NUM_PEERS) if place not in dead]
    total, left = sum(settled.coefficients), sum(settled.coefficients[place] for place in rest)
    for part in spec.parts:
        places = rest if spec.reducer_of[part.index] in dead else range(NUM_PEERS)
        scale = total / left if places is rest and not settled.divisors else 1.0
        sent = [(place, spec.codec.encode(vectors[place][part.first : part.first + part.size])) for place in places]
        factors = [scale * settled.coefficients[place] for place in places]
        average = combination(
            spec.codec, sent, factors, part.size, divisors=[settled.divisors[place] for place in places if settled.divisors]
        )
        result[part.first : part.first + part.size] = spec.mean_codec.decode(spec.mean_codec.encode(average))
    return result


RULES_AND_CODECS = [("robust", codec.name) for codec in CODECS] + [
    ("mean", "sign"),
    ("clip", "float32"),
    ("centered_clip", "int8"),
]


@pytest.mark.parametrize(("rule", "codec"), RULES_AND_CODECS)
def test_the_dead_member_is_missing_only_where_it_was_to_reduce(rule: str, codec: str) -> None:
    vectors = vectors_of(NUM_PEERS, SIZE)
    whole, whole_bytes = undisturbed(rule, codec, vectors)
    peers = LinkedPeers(NUM_PEERS, rule=rule, codec=codec)
    first, again = Strike(victim=VICTIM, after_bytes=0.75 * whole_bytes), Strike()
    spec = peers.spec(SIZE)
    results = results_of(peers.complete([(spec, first), (peers.spec(SIZE, without=(VICTIM,), attempt=1), again)], vectors))
    expected = slow_average(spec, whole[0], vectors, {VICTIM})
    for result, other in zip(results, [whole[0], *whole[2:]], strict=True):
        assert torch.equal(result.vector.view(torch.int32), expected.view(torch.int32))
        assert result.statistics is None
        assert (result.residual is None) == (other.residual is None)
        assert result.residual is None or torch.equal(result.residual, other.residual)
        assert set(result.left_out) == set(other.left_out) - {peers.names[VICTIM]}
    assert first.sent_bytes + again.sent_bytes < 1.25 * whole_bytes, "1.35 where all parts are made again"


def test_two_deaths_one_after_the_other() -> None:
    vectors = vectors_of(NUM_PEERS, SIZE)
    whole, whole_bytes = undisturbed("robust", "float16", vectors)
    peers, spec = LinkedPeers(NUM_PEERS, rule="robust", codec="float16"), LinkedPeers(NUM_PEERS, codec="float16").spec(SIZE)
    steps: list[tuple[AllReduceSpec, Strike]] = [
        (peers.spec(SIZE), Strike(victim=VICTIM, after_bytes=0.7 * whole_bytes)),
        (peers.spec(SIZE, without=(1,), attempt=1), Strike(victim=2, after_bytes=0.04 * whole_bytes)),
        (peers.spec(SIZE, without=(1, 3), attempt=2), Strike()),
    ]
    results = results_of(peers.complete(steps, vectors))
    assert steps[1][1].killed == peers.names[3]
    expected = slow_average(spec, whole[0], vectors, {1, 3})
    assert all(torch.equal(result.vector.view(torch.int32), expected.view(torch.int32)) for result in results)


def test_two_deaths_at_once() -> None:
    vectors = vectors_of(NUM_PEERS, SIZE)
    whole, whole_bytes = undisturbed("robust", "int8", vectors)
    peers = LinkedPeers(NUM_PEERS, rule="robust", codec="int8")
    first, spec = Strike(victim=2, after_bytes=0.7 * whole_bytes), peers.spec(SIZE)
    results = results_of(peers.complete([(spec, first), (peers.spec(SIZE, without=(0, 2), attempt=1), Strike())], vectors))
    expected = slow_average(spec, whole[0], vectors, {0, 2})
    assert all(torch.equal(result.vector.view(torch.int32), expected.view(torch.int32)) for result in results)


def test_before_the_barrier_nothing_is_decided_and_the_dead_member_is_out() -> None:
    vectors = vectors_of(NUM_PEERS, SIZE)
    _, whole_bytes = undisturbed("robust", "float32", vectors)
    peers, decisions = LinkedPeers(NUM_PEERS, rule="robust"), []
    let_go = Butterfly.let_go
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Butterfly, "let_go", lambda self: (decisions.append(self.decision), let_go(self)))
        failed = peers.average(peers.spec(SIZE), vectors, Strike(victim=VICTIM, after_bytes=0.3 * whole_bytes))
    assert all(isinstance(result, AveragingError) for result in failed)
    assert decisions == [None] * NUM_PEERS


def test_the_rest_keeps_its_factors_and_the_old_sum() -> None:
    decision = Decision(coefficients=(0.4, 0.0, 0.2, 0.3), left_out=(1,), reasons=("far off",))
    rest = decision_of_rest(decision, (1, 2, 3))
    assert rest.coefficients == pytest.approx((0.0, 0.36, 0.54)) and (rest.left_out, rest.reasons) == ((0,), ("far off",))
    divided = decision_of_rest(replace(decision, divisors=(0.5, 0.0, 0.2, 0.3)), (0, 2))
    assert (divided.coefficients, divided.divisors) == ((0.4, 0.2), (0.5, 0.2)), "what is not there divides nothing"
    with pytest.raises(AveragingError, match="no contribution"):
        decision_of_rest(decision, (1,))
