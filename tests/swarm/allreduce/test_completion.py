"""A member that dies after the barrier stays in the mean: the others average only what it was to reduce."""

import asyncio
import gc
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch

from adloco_p2p.core.ledger import evidence as evidence_rules
from adloco_p2p.core.model.averages import LostShare
from adloco_p2p.core.model.ledger_entry import WrongSum
from adloco_p2p.core.model.scalars import Digest
from adloco_p2p.errors import AveragingError
from adloco_p2p.numerics.aggregation.rule import Decision
from adloco_p2p.numerics.codecs import CODECS
from adloco_p2p.numerics.reduction import combination
from adloco_p2p.swarm.allreduce.allreduce_spec import AllReduceSpec, Part
from adloco_p2p.swarm.allreduce.attempt_state import AttemptState
from adloco_p2p.swarm.allreduce.averaged import Averaged
from adloco_p2p.swarm.allreduce.butterfly import Butterfly
from adloco_p2p.swarm.allreduce.completion import decision_of_rest
from adloco_p2p.swarm.allreduce.settled import Settled
from adloco_p2p.swarm.allreduce.shard_reduction import ShardReduction
from adloco_p2p.swarm.allreduce.topology import AttemptResult
from benchmarks.unplanned import unplanned
from tests.swarm.averaging_peers import Peers, key_of, kill, sign, until, vectors_of
from tests.swarm.linked_attempts import LinkedPeers, Strike

NUM_PEERS, SIZE, VICTIM = 4, 20_483, 1


def results_of(results: Sequence[AttemptResult | BaseException]) -> list[AttemptResult]:
    ended = [result for result in results if isinstance(result, AttemptResult)]
    assert len(ended) == len(results), results
    assert len({result.encoded.digest for result in ended}) == 1
    return ended


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
        assert result.residual is None or (other.residual is not None and torch.equal(result.residual, other.residual))
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


@dataclass
class Silence(Strike):
    """After so many bytes the others take the victim for dead; it lives, and goes on sending."""

    async def sending(self, num_bytes: int) -> None:
        before, self.sent_bytes = self.sent_bytes, self.sent_bytes + num_bytes
        if before < self.after_bytes <= self.sent_bytes:
            for attempt in self.attempts.values():
                attempt.fail("silent", (tuple(self.attempts)[self.victim],))
        await asyncio.sleep(0)


@pytest.mark.parametrize("codec", ["float32", "sign"])
def test_what_one_that_seemed_dead_still_sends_changes_nothing(codec: str) -> None:
    vectors = vectors_of(NUM_PEERS, SIZE)
    whole, whole_bytes = undisturbed("robust", codec, vectors)
    peers, silence = LinkedPeers(NUM_PEERS, rule="robust", codec=codec), Silence(victim=VICTIM, after_bytes=0.6 * whole_bytes)
    spec = peers.spec(SIZE)
    results = results_of(peers.complete([(spec, silence), (peers.spec(SIZE, without=(VICTIM,), attempt=1), Strike())], vectors))
    expected = slow_average(spec, whole[0], vectors, {VICTIM})
    assert all(torch.equal(result.vector.view(torch.int32), expected.view(torch.int32)) for result in results)


def test_before_the_barrier_nothing_is_decided_and_the_dead_member_is_out() -> None:
    vectors = vectors_of(NUM_PEERS, SIZE)
    _, whole_bytes = undisturbed("robust", "float32", vectors)
    peers = LinkedPeers(NUM_PEERS, rule="robust")
    decisions: list[Digest | None] = []
    let_go = Butterfly.let_go

    def noted(self: Butterfly) -> None:
        decisions.append(self.decision)
        let_go(self)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Butterfly, "let_go", noted)
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


HONEST, LIAR = "honest", "liar"


@pytest.fixture
def no_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("no_collector")
@pytest.mark.parametrize("reducer", [HONEST, LIAR])
def test_between_peers_parts_with_the_dead_member_are_made_again_and_a_liar_is_proven(
    monkeypatch: pytest.MonkeyPatch, reducer: str
) -> None:
    """All parts are drawn. The victim returns none, and its daemon dies when the others have decided."""
    reduce, not_shown, made = ShardReduction.reduce, list[object](), set[tuple[int, int, int]]()
    wrong_sum = Settled.wrong_sum

    async def reduced(self: ShardReduction, index: int, decision: Decision, executor: Any) -> None:
        is_first = self._spec.attempt == 0
        if is_first and self._me == VICTIM:
            await asyncio.get_running_loop().create_future()
        if is_first and self._me == 2 and index == 0 and reducer == LIAR:
            decision = replace(decision, coefficients=(0.9, *decision.coefficients[1:]))
        await reduce(self, index, decision, executor)

    def noting(self: Settled, part: Part, *arguments: Any) -> WrongSum | None:
        made.add((self.spec.attempt, self.me, part.index))
        return wrong_sum(self, part, *arguments)

    monkeypatch.setattr(ShardReduction, "reduce", reduced)
    monkeypatch.setattr(Settled, "wrong_sum", noting)
    vectors, living = vectors_of(NUM_PEERS, SIZE), (0, 2, 3)
    with Peers(NUM_PEERS, rule="robust", settings={"codec": "int8", "recheck": float(NUM_PEERS)}) as peers:
        decisions: list[Digest] = []

        async def strike() -> None:
            await until(lambda: len(decisions) == NUM_PEERS)
            kill(peers[VICTIM])

        failed = peers.average("first", vectors, (1, 1, 1, 1), meanwhile=strike, on_decided=decisions.append)
        assert len(set(decisions)) == 1
        assert all(isinstance(failed[number], AveragingError) for number in living), failed

        async def complete() -> list[Averaged]:
            retry = unplanned(
                key=key_of("retry"),
                weights=tuple((peers[number].peer_id, 1) for number in living),
                timeout_seconds=240.0,
                attempt=1,
                lost=(LostShare(VICTIM, 1.0),),
                completes=decisions[0],
            )
            averages = [
                peers[number].averager.average(retry, vectors[number], on_not_shown=lambda *pair: not_shown.append(pair))
                for number in living
            ]
            return list(await asyncio.gather(*averages))

        results = peers.run(complete())
        for number in living:
            peers.run(peers[number].averager.settled())
        names = tuple(sorted(peers[number].peer_id for number in living))
        evidence = list(peers.evidence)
        left = [thing for thing in gc.get_objects() if type(thing) is AttemptState and thing.me != VICTIM]
    assert left == [], "buffers do not wait for the garbage collector"
    assert len({result.finished.digest for result in results}) == 1
    assert all(result.finished.contributors == names and result.finished.statistics is None for result in results)
    assert not_shown == []
    of_liar = {place for place, item in enumerate(evidence) if isinstance(item, WrongSum)}
    assert bool(of_liar) == (reducer == LIAR) and len(of_liar) == len(evidence)
    for item in evidence:
        assert isinstance(item, WrongSum)
        assert evidence_rules._sum_problem(item, lambda peer, payload, signed: sign(peer, payload) == signed) == ""
    if reducer == HONEST:
        first = {(me, part) for attempt, me, part in made if attempt == 0}
        again = {(me, part) for attempt, me, part in made if attempt == 1}
        parts = {part for _, part in first}
        assert len(first) == 2 * len(parts), "by both others of the three"
        assert not parts & {part for _, part in again} and len(again) == 2 * len({part for _, part in again})
