"""Rooms that train nothing: they note what is asked of them, and in which order. No torch."""

import hashlib
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from adloco_p2p.core.agreement.fixed_roster import FixedRosterAgreement
from adloco_p2p.core.model.assessments import AssessContribution, ShowContribution
from adloco_p2p.core.model.averages import Average, RepairAverage
from adloco_p2p.core.model.effects import Broadcast, FetchState, RunInner
from adloco_p2p.core.model.events import AverageFinished, Durable, InnerResult, Started
from adloco_p2p.core.model.lineage import Fork, Merge, ProbeVerdict
from adloco_p2p.core.model.messages import Leave
from adloco_p2p.core.model.outcomes import Outcome
from adloco_p2p.core.model.roster_entry import Capacity
from adloco_p2p.core.model.rules import BatchRules, InstanceRules, MergeRules, Rules, WorkRules
from adloco_p2p.core.model.scalars import Digest, InstanceId, PeerId
from adloco_p2p.core.model.telemetry import Log, Round
from adloco_p2p.core.peer.peer import Cadence, Peer
from adloco_p2p.core.planning.round_plan import genesis, next_plan
from adloco_p2p.runtime.node.loop import Node, Ports
from tests.core.core_values import inner_result

ME = PeerId("peer")
RUN = Digest("7" * 64)
CAPACITY = Capacity(samples_per_second=0.0, micro_batch_limit=8, max_instances=8)


def rules(*, rounds: int = 3, count: int = 1) -> Rules:
    return Rules(
        work=WorkRules(inner_steps=4, rounds=rounds),
        instances=InstanceRules(count=count, start="same"),
        batch=BatchRules(test="constant", initial_batch=8),
        merge=MergeRules(policy="none", guard=False),
    )


def hashed(*parts: object) -> Digest:
    return Digest(hashlib.sha256(repr(parts).encode()).hexdigest())


@dataclass
class Calls:
    """What was asked for, by everybody, in order."""

    names: list[str] = field(default_factory=list)
    reactions: dict[str, Callable[[], None]] = field(default_factory=dict)
    """What happens just before a call is noted: an error, or a wait. Nothing that another thread may answer with a call."""
    afterwards: dict[str, Callable[[], None]] = field(default_factory=dict)
    """What happens just after a call is noted; other threads may answer at once."""

    def note(self, name: str, *details: object) -> None:
        called = " ".join(map(str, (name, *details)))
        if called in self.reactions:
            self.reactions[called]()
        self.names.append(called)
        if called in self.afterwards:
            self.afterwards[called]()


@dataclass
class FakeEngine:
    calls: Calls
    is_endless: bool = False
    """Inner steps go on until somebody stops them."""
    was_stopped: threading.Event = field(default_factory=threading.Event)
    device_names: tuple[str, ...] = ("cpu",)
    looked_at: int | None = None
    """The round whose contributions may be looked at."""

    def place(self, instance: InstanceId, devices: Sequence[int]) -> None:
        self.calls.note("place", instance, *devices)

    def steps(self, effect: RunInner, should_stop: Callable[[], bool], is_enough: Callable[[int], bool]) -> bool:
        """Whether they are not given up."""
        return True

    def run_inner(
        self,
        effect: RunInner,
        *,
        should_stop: Callable[[], bool],
        is_enough: Callable[[int], bool],
        on_progress: Callable[[int, float, int], None],
    ) -> InnerResult | None:
        if not self.steps(effect, should_stop, is_enough):
            return None
        self.calls.note("run_inner", effect.plan.instance, effect.round)
        while self.is_endless:
            if should_stop():
                self.was_stopped.set()
                return None
        share = effect.share
        return inner_result(inner_steps=share.inner_steps, batch=share.effective_batch, tokens=share.samples * 10)

    def pseudo_gradient(self, instance: InstanceId) -> str:
        return f"pseudo-gradient {instance}"

    def apply_outer(self, instance: InstanceId, averaged: str, *, round: int, residual: str | None) -> bool:
        assert averaged == f"average of pseudo-gradient {instance}"
        self.calls.note("apply_outer", instance)
        if residual is not None:
            self.calls.note("keep", residual)
        return True

    def measure_step(self, instance: InstanceId, state: Digest, *, reads: tuple[InstanceId, ...]) -> tuple[float, float]:
        self.calls.note("measure_step", instance)
        return 2.0, 1.9

    def before_step(self, instance: InstanceId, *, round: int) -> str | None:
        return "outer" if round == self.looked_at else None

    def assess(self, asked: AssessContribution, *vectors: str) -> Iterator[float | None]:
        for index in range(3):
            self.calls.note("pass", index, *vectors[1:])
            yield None
        yield 4.5

    def rewind(self, instance: InstanceId, state: Digest) -> bool:
        self.calls.note("rewind", instance)
        return True

    def carry_over(self, instance: InstanceId, pseudo_gradient: str | None, *, round: int) -> None:
        self.calls.note("carry_over", instance)

    def digests(self, instance: InstanceId) -> tuple[Digest, Digest]:
        return hashed("outer", instance), hashed("state", instance)

    def state(self, instance: InstanceId) -> Sequence[str]:
        return ("outer", "momentum")

    def adopt(self, instance: InstanceId, outer: str, momentum: str) -> None:
        self.calls.note("adopt", instance)

    def transition(self, forks: Sequence[Fork], merges: Sequence[Merge]) -> None:
        self.calls.note("transition")

    def drop(self, instance: InstanceId) -> None:
        self.calls.note("drop", instance)

    def discard(self, instance: InstanceId) -> None:
        self.calls.note("discard", instance)

    def probe_merge(self, merge: Merge) -> ProbeVerdict:
        raise AssertionError("no merge is probed here")

    def evaluate(self, instance: InstanceId) -> float:
        self.calls.note("evaluate", instance)
        return 2.0

    def heldout_losses(self, instance: InstanceId) -> tuple[float, ...]:
        return ()

    def sample_texts(self, instance: InstanceId) -> list[tuple[str, str]]:
        return [("The ", f"end of {instance}")]

    def snapshot(self, instance: InstanceId) -> tuple[dict[str, str], dict[str, object]]:
        self.calls.note("snapshot", instance)
        return {}, {}


@dataclass
class FakeCheckpoints:
    calls: Calls

    def save_instance(self, round: int, instance: InstanceId, tensors: dict[str, str], meta: dict[str, object]) -> None:
        self.calls.note("save_instance", round, instance)

    def complete(self, durable: Durable) -> None:
        self.calls.note("complete", durable.round, *durable.held)


@dataclass(frozen=True)
class FakeAverage:
    vector: str
    finished: Any = None
    residual: None = None


@dataclass
class FakeNetwork:
    """Averaging, messenger, states and journal of a peer alone."""

    calls: Calls

    async def average(self, effect: Average, vector: str, **details: object) -> FakeAverage:
        self.calls.note("average", vector)
        contributors = tuple(peer for peer, _ in effect.weights)
        finished = AverageFinished(asked=effect, digest=hashed(effect.key), contributors=contributors, statistics=None)
        return FakeAverage(f"average of {vector}", finished)

    async def repair(self, effect: RepairAverage, vector: str | None) -> FakeAverage:
        raise AssertionError(f"nobody to fetch from: {effect.from_peers}")

    def show_contribution(self, effect: ShowContribution) -> None:
        self.calls.note("show", effect.round, *effect.assessors)

    async def contribution(self, effect: AssessContribution) -> tuple[str, str]:
        self.calls.note("contribution", effect.subject)
        return "contribution", "others"

    async def fetch(self, effect: FetchState) -> Sequence[str]:
        raise AssertionError(f"nobody to fetch from: {effect.from_peers}")

    def send(self, peer: PeerId, message: object) -> None:
        raise AssertionError(f"nobody to send to: {peer}")

    def broadcast(self, message: object) -> None:
        self.calls.note("broadcast", type(message).__name__)

    def offer(self, instance: InstanceId, round: int, digest: Digest, state: Sequence[str]) -> None:
        self.calls.note("offer", instance, round)

    def keep_newest(self, instance: InstanceId) -> None:
        self.calls.note("keep newest", instance)

    def retire(self, instance: InstanceId) -> None:
        self.calls.note("retire", instance)

    def withdraw(self, instance: InstanceId) -> None:
        self.calls.note("withdraw", instance)

    def append(self, record: object) -> None:
        raise AssertionError(f"nothing to journal: {record}")


@dataclass
class FakeEvents:
    events: list[Log] = field(default_factory=list)

    def write(self, event: Log) -> None:
        self.events.append(event)

    def rounds(self) -> list[tuple[object, object]]:
        return [(event.round, event.instance) for event in self.events if isinstance(event, Round)]


class FakeAgreement(FixedRosterAgreement):
    """Of a peer alone that announces its leave all the same."""

    def leave(self, now: float) -> list[Outcome]:
        return [*super().leave(now), Broadcast(message=Leave(peer=ME, run=RUN, beat=1, signature="0" * 128))]


@dataclass
class FakePeer:
    """A node whose every room is a fake."""

    rules: Rules
    calls: Calls = field(default_factory=Calls)
    events: FakeEvents = field(default_factory=FakeEvents)

    def __post_init__(self) -> None:
        network = FakeNetwork(self.calls)
        self.engine = FakeEngine(self.calls)
        agreement = FakeAgreement(decide=lambda plan, reports: next_plan(plan, reports, self.rules))
        cadence = Cadence(work=self.rules.work, evaluation_period=1, checkpoint_period=1)
        self.node = Node(
            peer=Peer(me=ME, cadence=cadence, agreement=agreement),
            ports=Ports(
                engine=self.engine,
                checkpoints=FakeCheckpoints(self.calls),
                averaging=network,
                messenger=network,
                states=network,
                journal=network,
                events=self.events,
            ),
        )
        plan = genesis(RUN, [(ME, CAPACITY)], self.rules)
        held = tuple(item.instance for item in plan.instances)
        self.started = Started(durable=Durable(round=0, plans=(plan,), held=held), capacity=CAPACITY)
