"""Parts that other members make again, between real peers on loopback: one wrong sum for all is proven, and nothing else is."""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
import torch

from adloco_p2p.core.ledger import evidence as evidence_rules
from adloco_p2p.core.model import canonical
from adloco_p2p.core.model.ledger_entry import MAX_EVIDENCE_BYTES, WrongSum
from adloco_p2p.numerics.aggregation.rule import Decision
from adloco_p2p.numerics.codecs import Buffer
from adloco_p2p.swarm.allreduce.allreduce_spec import Part
from adloco_p2p.swarm.allreduce.averager import Averaged
from adloco_p2p.swarm.allreduce.own_contribution import OwnContribution
from adloco_p2p.swarm.allreduce.settled import Settled, ShownPart
from adloco_p2p.swarm.allreduce.shard_reduction import ShardReduction
from tests.swarm.averaging_peers import Peers, sign, vectors_of

SIZE, HOSTS = 50_003, 4
EVERYTHING = float(HOSTS - 1)
"""The rate at which every member makes all parts of others again."""


@pytest.fixture(scope="module")
def peers() -> Iterator[Peers]:
    with Peers(HOSTS) as started:
        yield started
    assert started.loop_errors == []


@pytest.fixture
def made_again(peers: Peers, monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """Member and part, of all that are."""
    peers.evidence.clear()
    made: list[tuple[int, int]] = []
    wrong_sum = Settled.wrong_sum

    def noting(self: Settled, part: Part, *arguments: object) -> WrongSum | None:
        made.append((self.me, part.index))
        return wrong_sum(self, part, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(Settled, "wrong_sum", noting)
    return made


def average(peers: Peers, name: str, **settings: object) -> list[Averaged]:
    """Once all drawn parts are made again, or could not be."""
    generator = torch.Generator().manual_seed(0)
    common = torch.randn(SIZE, generator=generator)
    vectors = [common + torch.randn(SIZE, generator=generator) for _ in range(HOSTS)]
    with peers.using(**settings):
        results = peers.average(name, vectors, (1, 2, 3, 1))
        for peer in peers.list:
            peers.run(peer.averager.settled())
    assert all(isinstance(result, Averaged) for result in results), results
    assert len({result.digest for result in results}) == 1  # type: ignore[union-attr]
    return results  # type: ignore[return-value]


def problem(evidence: object) -> str:
    assert isinstance(evidence, WrongSum)
    return evidence_rules._sum_problem(evidence, lambda peer, payload, signature: sign(peer, payload) == signature)


def heavy(*values: str) -> object:
    return pytest.param(*values, marks=pytest.mark.heavy)


HONEST = (
    ("mean", "float32"),
    ("robust", "topk2"),
    heavy("mean", "int4"),
    heavy("mean", "sign"),
    heavy("robust", "sign_int4"),
    heavy("clip", "int8"),
    heavy("robust", "bfloat16"),
)


@pytest.mark.parametrize(("rule", "codec"), HONEST)
def test_every_part_of_honest_reducers_is_made_again_and_proves_nothing(
    peers: Peers, made_again: list[tuple[int, int]], rule: str, codec: str
) -> None:
    average(peers, f"honest {rule} {codec}", aggregation=rule, codec=codec, recheck=EVERYTHING)
    assert peers.evidence == []
    parts = {part for _, part in made_again}
    assert len(parts) >= HOSTS
    assert len(made_again) == len(set(made_again)) == len(parts) * (HOSTS - 1)


@pytest.mark.parametrize(
    ("rule", "codec"),
    [heavy("mean", "float32"), ("robust", "int8"), heavy("clip", "topk2"), heavy("mean", "sign_int4"), heavy("clip", "sign")],
)
def test_a_reducer_that_returns_one_wrong_sum_to_all_is_proven_a_liar(
    peers: Peers, made_again: list[tuple[int, int]], monkeypatch: pytest.MonkeyPatch, rule: str, codec: str
) -> None:
    reduce = ShardReduction.reduce

    async def lying(self: ShardReduction, index: int, decision: Decision, executor: object) -> None:
        if self._me == 1 and index == 0:
            first, *others = decision.coefficients
            decision = replace(decision, coefficients=(first + 0.5, *others))
        await reduce(self, index, decision, executor)  # type: ignore[arg-type]

    monkeypatch.setattr(ShardReduction, "reduce", lying)
    average(peers, f"wrong {rule} {codec}", aggregation=rule, codec=codec, recheck=EVERYTHING)
    assert len(made_again) >= HOSTS - 1
    assert [found.subject for found in peers.evidence] == [peers[1].peer_id] * (HOSTS - 1), "found by every other member"
    for found in peers.evidence:
        assert problem(found) == ""
        assert canonical.size(found) < MAX_EVIDENCE_BYTES / 2


def test_a_contributor_that_shows_something_else_proves_nothing_against_a_reducer(
    peers: Peers, made_again: list[tuple[int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    own_part = Settled.own_part

    def lying(self: Settled, part: Part) -> ShownPart:
        shown = own_part(self, part)
        return shown if self.me != 2 else replace(shown, data=bytes([shown.data[0] ^ 1]) + bytes(shown.data[1:]))

    monkeypatch.setattr(Settled, "own_part", lying)
    average(peers, "other bytes", recheck=EVERYTHING)
    assert {member for member, _ in made_again} == {2}, "the others end where the first part is not shown"
    assert all(problem(found) for found in peers.evidence), "what it makes of its own bytes itself proves nothing"


@pytest.mark.parametrize("codec", ["float32", "int8"])
def test_what_is_kept_is_what_was_sent_and_no_copy_of_it(peers: Peers, monkeypatch: pytest.MonkeyPatch, codec: str) -> None:
    """And the average of float32 lies in the result that is kept for repairs."""
    made: list[int] = []
    encoded = OwnContribution.encoded

    def noting(self: OwnContribution, part: Part) -> memoryview:
        known = encoded(self, part)
        made.append(address(known))
        return known

    monkeypatch.setattr(OwnContribution, "encoded", noting)
    vectors = vectors_of(HOSTS, SIZE)
    with peers.using(codec=codec, recheck=EVERYTHING):
        results = peers.average(f"kept {codec}", vectors, (1,) * HOSTS)
        for peer, vector, result in zip(peers.list, vectors, results, strict=True):
            peers.run(peer.averager.settled())
            assert isinstance(result, Averaged)
            (settled,) = peer.averager._rechecks._held.values()
            held = peer.averager._results.find(result.digest)
            assert held is not None and len(settled.own) == settled.spec.num_parts
            assert {address(part) for part in settled.own} <= set(made)
            lies_in = vector.data_ptr() <= address(settled.own[0]) < vector.data_ptr() + vector.nbytes
            assert lies_in == (result.vector.data_ptr() == held.encoded.ctypes.data) == (codec == "float32")


def address(data: Buffer) -> int:
    return np.frombuffer(data, dtype=np.uint8).ctypes.data


def test_by_default_nothing_is_kept_and_nothing_asked(peers: Peers, made_again: list[tuple[int, int]]) -> None:
    results = average(peers, "without")
    assert made_again == [] and len(results) == HOSTS
