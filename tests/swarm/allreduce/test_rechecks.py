"""Parts that other members make again, between real peers on loopback: one wrong sum for all is proven, and nothing else is."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from adloco_p2p.core.ledger import evidence as evidence_rules
from adloco_p2p.core.model import canonical
from adloco_p2p.core.model.ledger_entry import MAX_EVIDENCE_BYTES, WrongSum
from adloco_p2p.core.model.scalars import PeerId
from adloco_p2p.errors import RemoteProtocolError
from adloco_p2p.numerics.aggregation.rule import Decision
from adloco_p2p.numerics.tensor_codec import Buffer
from adloco_p2p.swarm.allreduce.allreduce_spec import Part
from adloco_p2p.swarm.allreduce.averaged import Averaged
from adloco_p2p.swarm.allreduce.handshake import Hello, Purpose
from adloco_p2p.swarm.allreduce.own_contribution import OwnContribution
from adloco_p2p.swarm.allreduce.recheck import Rechecks
from adloco_p2p.swarm.allreduce.settled import Settled, ShownPart
from adloco_p2p.swarm.allreduce.shard_reduction import ShardReduction
from tests.swarm.averaging_peers import Peers, key_of, mesh_of, sign, vectors_of

SIZE, HOSTS = 50_003, 4
EVERYTHING = float(HOSTS - 1)
"""The rate at which every member makes all parts of others again."""


peers = mesh_of(HOSTS)


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


def average(peers: Peers, name: str, *, more: Mapping[str, Any] | None = None, **settings: object) -> list[Averaged]:
    """Once all drawn parts are made again, or could not be. `more`: of `Averager.average`."""
    generator = torch.Generator().manual_seed(0)
    common = torch.randn(SIZE, generator=generator)
    vectors = [common + torch.randn(SIZE, generator=generator) for _ in range(HOSTS)]
    with peers.using(**settings):
        results = peers.average(name, vectors, (1, 2, 3, 1), **(more or {}))
        for peer in peers.list:
            peers.run(peer.averager.settled())
    assert all(isinstance(result, Averaged) for result in results), results
    assert len({result.finished.digest for result in results}) == 1  # type: ignore[union-attr]
    return results  # type: ignore[return-value]


def problem(evidence: object) -> str:
    assert isinstance(evidence, WrongSum)
    return evidence_rules._sum_problem(evidence, lambda peer, payload, signature: sign(peer, payload) == signature)


def heavy(*values: str) -> object:
    return pytest.param(*values, marks=pytest.mark.heavy)


HONEST = (
    ("mean", "float32", "all"),
    ("robust", "topk2", "named"),
    heavy("mean", "int4", "all"),
    heavy("mean", "sign", "all"),
    heavy("robust", "sign_int4", "all"),
    heavy("clip", "int8", "all"),
    heavy("robust", "bfloat16", "all"),
)


@pytest.mark.parametrize(("rule", "codec", "division"), HONEST)
def test_every_part_of_honest_reducers_is_made_again_and_proves_nothing(
    peers: Peers, made_again: list[tuple[int, int]], rule: str, codec: str, division: str
) -> None:
    average(peers, f"honest {rule} {codec}", aggregation=rule, codec=codec, division=division, recheck=EVERYTHING)
    assert peers.evidence == []
    parts = {part for _, part in made_again}
    assert len(parts) >= HOSTS
    assert len(made_again) == len(set(made_again)) == len(parts) * (HOSTS - 1)


@pytest.mark.parametrize(
    ("rule", "codec", "division"),
    [
        heavy("mean", "float32", "all"),
        ("robust", "int8", "all"),
        ("clip", "topk2", "named"),
        heavy("mean", "sign_int4", "all"),
        heavy("clip", "sign", "all"),
    ],
)
def test_a_reducer_that_returns_one_wrong_sum_to_all_is_proven_a_liar(
    peers: Peers, made_again: list[tuple[int, int]], monkeypatch: pytest.MonkeyPatch, rule: str, codec: str, division: str
) -> None:
    reduce = ShardReduction.reduce

    async def lying(self: ShardReduction, index: int, decision: Decision, executor: object) -> None:
        if self._me == 1 and index == 0:
            first, *others = decision.coefficients
            decision = replace(decision, coefficients=(first + 0.5, *others))
        await reduce(self, index, decision, executor)  # type: ignore[arg-type]

    monkeypatch.setattr(ShardReduction, "reduce", lying)
    average(peers, f"wrong {rule} {codec}", aggregation=rule, codec=codec, division=division, recheck=EVERYTHING)
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
            held = peer.averager._results.find(result.finished.digest)
            assert held is not None and len(settled.own) == settled.spec.num_parts
            assert {address(part) for part in settled.own} <= set(made)
            lies_in = vector.data_ptr() <= address(settled.own[0]) < vector.data_ptr() + vector.nbytes
            assert lies_in == (result.vector.data_ptr() == held.encoded.ctypes.data) == (codec == "float32")


def address(data: Buffer) -> int:
    return np.frombuffer(data, dtype=np.uint8).ctypes.data


LITTLE = 1e-9
"""The rate at which all members together make one part of each again, in expectation."""


def test_a_part_of_a_reducer_that_complaints_name_is_made_again_by_every_other_member(
    peers: Peers, made_again: list[tuple[int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    wrong_sum, looked = Settled.wrong_sum, set[tuple[int, int]]()

    def noting(self: Settled, part: Part, *arguments: object) -> WrongSum | None:
        looked.add((self.me, self.spec.reducer_of[part.index]))
        return wrong_sum(self, part, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(Settled, "wrong_sum", noting)
    average(peers, "inspected", recheck=LITTLE, more={"inspected": (peers[3].peer_id, peers[0].peer_id)})
    pairs = {(member, reducer) for member in range(HOSTS) for reducer in (0, 3) if member != reducer}
    assert pairs <= looked
    assert len(made_again) <= 2 * HOSTS + HOSTS, "two each, and what is drawn anyway"


def test_a_contributor_that_shows_nothing_is_named_with_the_reducer_by_all_that_ask(
    peers: Peers, made_again: list[tuple[int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    hold, named = Rechecks.hold, list[tuple[PeerId, PeerId]]()

    def forgetting(self: Rechecks, settled: Settled) -> None:
        hold(self, settled if settled.me != 2 else replace(settled, own=()))

    monkeypatch.setattr(Rechecks, "hold", forgetting)
    more = {"inspected": (peers[2].peer_id,), "on_not_shown": lambda *pair: named.append(pair)}
    average(peers, "silent", recheck=LITTLE, more=more)
    silent = peers[2].peer_id
    assert named.count((silent, silent)) == HOSTS - 1, "of its own part, by every other member"
    assert {contributor for contributor, _ in named} == {silent}
    assert peers.evidence == []


def test_a_contributor_that_is_asked_late_is_not_named(
    peers: Peers, made_again: list[tuple[int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once the next average has begun here it may have ended there, and what was sent before is dropped."""
    begin, named = Rechecks.begin, list[tuple[PeerId, PeerId]]()

    def late(self: Rechecks, settled: Settled, *arguments: object, **more: object) -> None:
        self.note_begun(replace(settled.spec, round=settled.spec.round + 1))
        self._held.clear()
        begin(self, settled, *arguments, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(Rechecks, "begin", late)
    more = {"inspected": (peers[2].peer_id,), "on_not_shown": lambda *pair: named.append(pair)}
    average(peers, "late", recheck=LITTLE, more=more)
    assert named == [] and made_again == []


def test_parts_of_an_average_that_is_not_here_and_not_coming_are_refused_at_once(
    peers: Peers, monkeypatch: pytest.MonkeyPatch
) -> None:
    with peers.using(recheck=LITTLE):
        averager = peers[0].averager
        monkeypatch.setattr(averager._rechecks, "_has_more", None)  # nothing to wait for

        async def ask() -> None:
            stream = type("Stream", (), {"peer": peers[1].peer_id})()
            hello = Hello(purpose=Purpose.RECHECK, key=key_of("never"), spec=b"")
            await averager._rechecks.serve(stream, hello)

        with pytest.raises(RemoteProtocolError, match="asks for parts that are not here"):
            peers.run(ask())


def test_by_default_nothing_is_kept_and_nothing_asked(peers: Peers, made_again: list[tuple[int, int]]) -> None:
    results = average(peers, "without")
    assert made_again == [] and len(results) == HOSTS
