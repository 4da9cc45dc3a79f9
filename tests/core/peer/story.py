"""A few whole peers in the one world (`adloco_p2p/sim/world.py`), for one story: given speeds, commands and faults at given
times, and everything that the peers did."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any, TypeVar

from adloco_p2p.core.model import canonical, telemetry
from adloco_p2p.core.model.commands import Command
from adloco_p2p.core.model.effects import Effect, Evaluate, RunInner, Stop
from adloco_p2p.core.model.events import Commanded, Event, InnerResult
from adloco_p2p.core.model.lineage import Merge, ProbeVerdict
from adloco_p2p.core.model.protocol import NEWEST
from adloco_p2p.core.model.roster_entry import Capacity
from adloco_p2p.core.model.rules import BatchRules, InstanceRules, MergeRules, Rules, WorkRules
from adloco_p2p.core.model.scalars import Digest, InstanceId, PeerId
from adloco_p2p.core.peer.agreement_port import Agreement
from adloco_p2p.core.peer.lifecycle import Stage
from adloco_p2p.core.peer.peer import Cadence, Peer
from adloco_p2p.sim.device import DeviceTraits, HashDevice
from adloco_p2p.sim.faults import Faults
from adloco_p2p.sim.identities import name_of
from adloco_p2p.sim.links import VECTOR_BYTES
from adloco_p2p.sim.machine import Machine
from adloco_p2p.sim.world import Parts, World

PEER0, PEER1, PEER2, PEER3 = (name_of(index) for index in range(4))
CAPACITY = Capacity(samples_per_second=0.0, micro_batch_limit=8, max_instances=8)
HELDOUT_LOSS = 2.0
_Kind = TypeVar("_Kind", bound=Effect)


def rules(*, rounds: int = 6, count: int = 1, guard: bool = False, period: int = 2) -> Rules:
    return Rules(
        work=WorkRules(inner_steps=4, rounds=rounds),
        instances=InstanceRules(count=count, start="fork" if count > 1 else "same", fork_round=1),
        batch=BatchRules(initial_batch=8),
        merge=MergeRules(policy="worst_with_worst" if count > 1 else "none", period_rounds=period, guard=guard),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """An effect of a peer, in world time."""

    at: float
    peer: PeerId
    effect: Effect


@dataclass(kw_only=True)
class Story:
    """Set it up, `play` it, look at what was `told`."""

    rules: Rules
    peers: int = 1
    seed: int = 0
    speeds: Sequence[float] = ()
    """Samples per second of each peer."""
    averaging_seconds: float = 0.5
    """The least that an average takes; the most is twice as much."""
    merged_loss: float = 2.0
    heldout_loss: float | None = HELDOUT_LOSS
    capacity: Capacity = CAPACITY
    evaluation_period: int = 1
    checkpoint_period: int = 1
    checkpoint_seconds: float = 0.0
    state_bytes: int = 0
    is_delayed: bool = False
    loss: float = 0.0
    """Part of the messages that never arrive before `faults_end_at`."""
    faults_end_at: float = 0.0
    on_effect: Callable[[Told], None] = lambda _: None
    """After the peer has handed it out, before it is performed."""
    hears: Callable[[PeerId, Event], bool] = lambda *_: True
    """Whether an event reaches the peer."""
    protocol: int = NEWEST
    told: list[Told] = field(default_factory=list)
    stages: dict[PeerId, list[Stage]] = field(default_factory=dict)
    """Of each peer, in order."""

    def __post_init__(self) -> None:
        faults = Faults(
            loss=self.loss,
            skew_seconds=0.0,
            uplink_bytes_per_second=VECTOR_BYTES / self.averaging_seconds,
            faults_end_at=self.faults_end_at,
        )
        parts = Parts(capacity=self.capacity, device=self._device, peer=self._peer, protocol=self.protocol)
        self.world = World(
            self.seed, peers=self.peers, rounds=0, faults=faults, rules=self.rules, is_delayed=self.is_delayed, parts=parts
        )

    def _device(self, traits: DeviceTraits, random: Random) -> HashDevice:
        return StoryDevice(self, traits, random)

    def _peer(self, *, me: PeerId, cadence: Cadence, agreement: Agreement) -> Peer:
        cadence = replace(
            cadence,
            evaluation_period=self.evaluation_period,
            checkpoint_period=self.checkpoint_period,
            checkpoint_seconds=self.checkpoint_seconds,
            state_bytes=self.state_bytes,
        )
        return StoryPeer(self, me=me, cadence=cadence, agreement=agreement)

    # --- what happens ------------------------------------------------------------------------------------------------

    def play(self) -> "Story":
        """To the end of the run, which all that stay must reach: the world's checkers see to that."""
        self.world.run()
        return self

    def machine(self, peer: PeerId) -> Machine:
        return self.world.machines[peer]

    def at(self, seconds: float, act: Callable[..., None], *arguments: object) -> None:
        self.world.queue.at(seconds, act, *arguments)

    def ask(self, peer: PeerId, command: Command, at: float) -> None:
        """A peer that is asked to go does not come back."""
        self.at(at, self._ask, self.machine(peer), command)

    def _ask(self, machine: Machine, command: Command) -> None:
        machine.is_gone = machine.is_gone or command in ("drain", "leave")
        machine.command(Commanded(command=command))

    def drain(self, peer: PeerId) -> None:
        """Now; it may be booted again."""
        self.machine(peer).command(Commanded(command="drain"))

    def kill(self, peer: PeerId, at: float) -> None:
        """For good."""
        self.at(at, self._kill, self.machine(peer))

    def _kill(self, machine: Machine) -> None:
        machine.is_gone = True
        machine.crash("for good")

    def freeze(self, peer: PeerId, at: float, seconds: float) -> None:
        self.at(at, setattr, self.machine(peer), "frozen_until", at + seconds)

    # --- what the tests look at --------------------------------------------------------------------------------------

    def effects(self, kind: type[_Kind], *peers: PeerId) -> Iterator[tuple[float, _Kind]]:
        """Of these peers, or of all, with their times."""
        for told in self.told:
            if isinstance(told.effect, kind) and (not peers or told.peer in peers):
                yield told.at, told.effect

    def logged(self, peer: PeerId, event: str) -> list[dict[str, Any]]:
        return [canonical.to_plain(log) for _, log in self.effects(telemetry.Log, peer) if log.event == event]

    def rounds_logged(self, peer: PeerId) -> list[tuple[int, int]]:
        return [(log.round, log.instance) for _, log in self.effects(telemetry.Round, peer)]

    def reported_states(self, peer: PeerId) -> dict[tuple[int, InstanceId], Digest]:
        """(Round, instance) -> the state after it, as the peer reported it."""
        reports = self.machine(peer).reported
        return {(report.round, item.instance): item.state_digest for report in reports for item in report.instances}

    def stop(self, peer: PeerId) -> Stop | None:
        """Of its last life."""
        process = self.machine(peer).process
        return process.stop if process is not None else None

    def is_finished(self, peer: PeerId) -> bool:
        stop = self.stop(peer)
        return stop is not None and stop.is_finished

    def saved(self, peer: PeerId) -> dict[InstanceId, Digest]:
        """The states of its newest checkpoint."""
        disk = self.machine(peer).disk
        assert disk.durable is not None
        return {instance: Digest(str(disk.states[disk.durable.round, instance])) for instance in disk.durable.held}


class StoryPeer(Peer):
    """Tells the story of everything that it does."""

    def __init__(self, story: Story, *, me: PeerId, cadence: Cadence, agreement: Agreement) -> None:
        super().__init__(me=me, cadence=cadence, agreement=agreement)
        self._story = story

    def handle(self, event: Event, now: float) -> list[Effect]:
        if not self._story.hears(self.me, event):
            return []
        effects = super().handle(event, now)
        seen = self._story.stages.setdefault(self.me, [Stage.TRAINING])
        if self.stage is not seen[-1]:
            seen.append(self.stage)
        for effect in effects:
            told = Told(at=self._story.world.time, peer=self.me, effect=effect)
            self._story.told.append(told)
            self._story.on_effect(told)
        return effects


class StoryDevice(HashDevice):
    """As fast as the story says. A restart trains the same again, so that its states compare with those of a run without."""

    def __init__(self, story: Story, traits: DeviceTraits, random: Random) -> None:
        super().__init__(replace(traits, life=1), random)
        self._story = story
        number = list(story.world.machines).index(traits.peer)
        self._speed = story.speeds[number] if story.speeds else 100.0

    def inner_seconds(self, effect: RunInner) -> float:
        return effect.share.samples / self._speed

    def inner_result(self, effect: RunInner, seconds: float, num_steps: int) -> InnerResult:
        return replace(
            super().inner_result(effect, seconds, num_steps), micro_batch_limit=self._story.capacity.micro_batch_limit
        )

    def probe(self, merge: Merge) -> ProbeVerdict:
        return replace(super().probe(merge), merged_loss=self._story.merged_loss)

    def heldout_loss(self, effect: Evaluate) -> float:
        return self._story.heldout_loss  # type: ignore[return-value]
