"""Whole nodes in one process, over the memory swarm: what they train is what the method says, and the same everywhere."""

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import pytest
import torch

from adloco_p2p.config.run_config import AveragingConfig, OuterConfig, RunConfig
from adloco_p2p.core.agreement.fixed_roster import FixedRosterAgreement
from adloco_p2p.core.model.assessments import AssessContribution, ShowContribution
from adloco_p2p.core.model.averages import Average, RepairAverage
from adloco_p2p.core.model.effects import RunInner, Stop
from adloco_p2p.core.model.events import Durable, InnerResult, Received, Started
from adloco_p2p.core.model.plan import RoundPlan
from adloco_p2p.core.model.report import Report
from adloco_p2p.core.model.roster_entry import Capacity
from adloco_p2p.core.model.rules import BatchRules, InstanceRules, MergeRules, SwitchRules, WorkRules
from adloco_p2p.core.model.scalars import InstanceId, PeerId
from adloco_p2p.core.model.telemetry import Log, Merge, Round
from adloco_p2p.core.peer.peer import Cadence, Peer
from adloco_p2p.core.planning.round_plan import genesis, next_plan
from adloco_p2p.runtime.node.loop import Node, Ports
from adloco_p2p.runtime.node.ports import AveragedVector
from adloco_p2p.runtime.offline_node import NothingToJournal
from adloco_p2p.swarm.in_memory import MemoryPort, MemorySwarm
from adloco_p2p.training.hosting import Hosting
from tests.training import test_diloco_reference as plain
from tests.training.small_run import ONE, PEER, RUN, hosting, with_run

MICRO = 2


class NoCheckpoints:
    def save_instance(self, round: int, instance: InstanceId, tensors: object, meta: object) -> None: ...

    def complete(self, durable: Durable) -> None: ...


@dataclass
class Rounds:
    """The `round` events of one node: what it trained to which digest."""

    digests: dict[tuple[object, object], object] = field(default_factory=dict)
    merges: int = 0
    bytes_sent: list[int] = field(default_factory=list)

    def write(self, event: Log) -> None:
        if isinstance(event, Round):
            key = (event.round, event.instance)
            assert key not in self.digests
            self.digests[key] = event.digest
            self.bytes_sent.append(event.bytes_sent)
        self.merges += isinstance(event, Merge)


@dataclass
class Member:
    me: PeerId
    engine: Hosting
    rounds: Rounds = field(default_factory=Rounds)


class LateAverages:
    """No average of a round ends before all hosts have begun the next one: the slowest link that hides behind a round."""

    def __init__(self, num_hosts: int, rounds: int) -> None:
        self._missing = [num_hosts] * rounds
        self._all_began = [asyncio.Event() for _ in range(rounds)]

    def begun(self, number: int) -> None:
        """A host began the round."""
        self._missing[number] -= 1
        if not self._missing[number]:
            self._all_began[number].set()

    def of(self, port: MemoryPort) -> "LatePort":
        return LatePort(port, iter(self._all_began[1:]))


@dataclass
class LatePort:
    """One host's. Its averages are those of the rounds, in order."""

    port: MemoryPort
    following: Iterator[asyncio.Event]

    async def average(self, effect: Average, vector: Any, **how: Any) -> AveragedVector:
        if (all_began := next(self.following, None)) is not None:
            await all_began.wait()
        return await self.port.average(effect, vector, **how)

    async def repair(self, effect: RepairAverage, vector: Any) -> AveragedVector:
        raise AssertionError("nothing is lost here")

    def show_contribution(self, effect: ShowContribution) -> None:
        raise AssertionError("nobody looks at one")

    async def contribution(self, effect: AssessContribution) -> tuple[Any, Any]:
        raise AssertionError("nobody looks at one")


def train(run: RunConfig, names: Sequence[PeerId]) -> list[Member]:
    """All peers to the end of the run, in one event loop. Each takes micro-batches of two samples. Where outer updates may be
    delayed, all but the last are."""
    torch.set_num_threads(1)
    members = [Member(me=me, engine=hosting(run, peer=replace(PEER, max_micro_batch=MICRO), me=me)) for me in names]
    capacity = Capacity(samples_per_second=0.0, micro_batch_limit=MICRO, max_instances=4)
    rounds = run.work.rounds
    assert rounds is not None
    plan = genesis(run.digest, [(member.me, capacity) for member in members], run.rules)
    swarm = MemorySwarm()
    is_delayed = run.outer.overlap != "none"
    late = LateAverages(len(names), rounds) if is_delayed else None

    def decide(before: RoundPlan, reports: Sequence[Report]) -> RoundPlan:
        return next_plan(before, reports, run.rules)

    async def one(member: Member) -> Stop:
        held = tuple(item.instance for item in plan.instances if any(share.peer == member.me for share in item.hosts))
        member.engine.start(held)
        port = swarm.port(member.me)
        node = Node(
            peer=Peer(
                me=member.me,
                cadence=Cadence(work=run.work, evaluation_period=2, checkpoint_period=1, is_delayed=is_delayed),
                agreement=FixedRosterAgreement(decide=decide),
            ),
            ports=Ports(
                engine=member.engine,
                checkpoints=NoCheckpoints(),
                averaging=port if late is None else late.of(port),
                messenger=port,
                states=port,
                journal=NothingToJournal(),
                events=member.rounds,
            ),
        )
        node.attach(asyncio.get_running_loop())
        if late is not None:
            loop, train_round = asyncio.get_running_loop(), member.engine.run_inner

            def run_inner(effect: RunInner, **observers: Any) -> InnerResult | None:
                loop.call_soon_threadsafe(late.begun, effect.round)
                return train_round(effect, **observers)

            member.engine.run_inner = run_inner  # type: ignore[method-assign]
        port.listen(lambda sender, message: node.post(Received(sender=sender, message=message)))
        return await node.run(Started(durable=Durable(round=0, plans=(plan,), held=held), capacity=capacity))

    async def together() -> None:
        async with asyncio.timeout(600):
            stops = await asyncio.gather(*(one(member) for member in members))
        assert all(stop.is_finished for stop in stops)

    asyncio.run(together())
    return members


@pytest.mark.parametrize("overlap", ["none", "delayed"])
def test_three_hosts_equal_the_plain_diloco_loop(overlap: Literal["none", "delayed"], monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where every outer update comes a round late, evaluated and saved while the next inner steps are under way."""
    monkeypatch.setattr(plain, "ROUNDS", 10)
    run = with_run(
        mode="diloco",
        outer=replace(RUN.outer, overlap=overlap),
        work=WorkRules(inner_steps=plain.STEPS, rounds=10, share="equal"),
        instances=InstanceRules(count=1, start="same"),
        batch=BatchRules(test="constant", initial_batch=12),
        switch=SwitchRules(policy="always"),
        merge=MergeRules(policy="none"),
    )
    members = train(run, plain.HOSTS)
    expected = plain.reference((4, 4, 4), MICRO, is_delayed=overlap == "delayed")
    for member in members:
        assert torch.equal(member.engine.state(ONE)[0], expected)
        assert len(member.rounds.digests) == 10
        assert member.rounds.digests == members[0].rounds.digests


def trained_in_thirds(outer: OuterConfig) -> Member:
    """One of two peers that end seven rounds alike, each of which averages a third of the parameters."""
    run = with_run(
        outer=outer,
        work=WorkRules(inner_steps=4, rounds=7, share="equal"),
        instances=InstanceRules(count=1, start="same"),
        batch=BatchRules(initial_batch=8, statistic="micro_batch"),
        merge=MergeRules(policy="none"),
        averaging=AveragingConfig(fragments=3),
    )
    first, second = train(run, [PeerId("peer-a"), PeerId("peer-b")])
    assert first.rounds.digests == second.rounds.digests
    assert len({*first.rounds.digests.values()}) == 7
    return first


def test_fragments_give_every_host_the_same_outer_parameters() -> None:
    """The last round sends the whole, so that all ends equal."""
    first = trained_in_thirds(RUN.outer)
    half = first.engine.num_parameters // 2 * 4  # an all-reduce of two sends every host half of the vector, twice
    assert [size // half for size in first.rounds.bytes_sent] == [0] * 6 + [2]
    assert sum(first.rounds.bytes_sent[:3]) == pytest.approx(2 * half, abs=16)


def test_streamed_fragments_give_every_host_the_same_outer_parameters() -> None:
    """Each outer step lands between inner steps of the next round, is evaluated and saved there; no round sends the whole."""
    first = trained_in_thirds(replace(RUN.outer, overlap="streaming", delay_steps=2))
    whole = first.engine.num_parameters * 4
    assert all(size == pytest.approx(whole / 3, abs=16) for size in first.rounds.bytes_sent)


def test_two_peers_fork_and_merge_to_the_same_bits() -> None:
    run = with_run(
        work=WorkRules(inner_steps=4, rounds=8),
        instances=InstanceRules(count=3, start="fork", fork_round=2),
        batch=BatchRules(initial_batch=8, max_batch=16, eta=0.2),
        merge=MergeRules(period_rounds=2, guard_tolerance=10.0),
    )
    first, second = train(run, [PeerId("peer-a"), PeerId("peer-b")])
    shared = first.rounds.digests.keys() & second.rounds.digests.keys()
    assert {number for number, _ in shared} >= {0, 1}
    assert {key: first.rounds.digests[key] for key in shared} == {key: second.rounds.digests[key] for key in shared}
    assert {number for number, _ in first.rounds.digests.keys() | second.rounds.digests.keys()} == set(range(8))
    assert first.rounds.merges + second.rounds.merges >= 2
    left = set(first.engine.hosted) | set(second.engine.hosted)
    assert len(left) == 1
    states = [member.engine.digests(instance) for member in (first, second) for instance in member.engine.hosted]
    assert len(set(states)) == 1
