"""A small deterministic world for the outer round: several real `Peer`s, virtual time, states that are hashes.

Parameters are replaced by digests: an outer step maps (state, average) to a new digest, so two hosts that applied different
averages can never show the same digest again.
"""

import hashlib
import heapq
import random
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field

from adloco_p2p.core.agreement.fixed_roster import FixedRosterAgreement
from adloco_p2p.core.model import canonical, telemetry
from adloco_p2p.core.model.events import (
    ApplyOuter,
    Average,
    AverageFailed,
    AverageFinished,
    Broadcast,
    CancelAverage,
    CarryOver,
    Decided,
    DeviceJob,
    DiscardRound,
    DropInstance,
    Durable,
    Effect,
    Evaluate,
    Evaluated,
    Event,
    FetchFailed,
    FetchState,
    InnerFinished,
    InnerResult,
    Outcome,
    OuterApplied,
    PeerBack,
    PeerGone,
    Persist,
    Probe,
    Probed,
    Received,
    ReleaseState,
    RepairAverage,
    RunInner,
    SaveCheckpoint,
    SaveInstance,
    Send,
    SnapshotState,
    Started,
    StateFetched,
    StateKept,
    Stop,
    Ticked,
    Transition,
    TransitionApplied,
)
from adloco_p2p.core.model.messages import AverageDigest
from adloco_p2p.core.model.rules import Rules
from adloco_p2p.core.model.telemetry import Log
from adloco_p2p.core.model.types import (
    Capacity,
    Digest,
    HalfBatchStatistics,
    InstanceId,
    PeerId,
    ProbeVerdict,
    PseudoGradientStatistics,
    Report,
    RoundPlan,
)
from adloco_p2p.core.peer.agreement_port import Agreement
from adloco_p2p.core.peer.peer import Cadence, Peer
from adloco_p2p.core.planning.round_plan import genesis, next_plan

RUN = Digest("5" * 64)
STALL_SECONDS = 5.0
LEASE_SECONDS = 7.0


def hashed(*parts: object) -> Digest:
    return Digest(hashlib.sha256(repr(parts).encode()).hexdigest())


@dataclass
class PendingAverage:
    members: tuple[PeerId, ...]
    joined: dict[PeerId, Average] = field(default_factory=dict)


@dataclass
class Host:
    peer: Peer
    speed: float
    states: dict[InstanceId, Digest] = field(default_factory=dict)
    averages: dict[tuple[InstanceId, int], Digest] = field(default_factory=dict)
    held_averages: set[Digest] = field(default_factory=set)
    past_states: dict[tuple[InstanceId, Digest], None] = field(default_factory=dict)
    device_free: float = 0.0
    is_ahead: bool = False
    """The device does inner steps that did not wait for the last outer step, and nothing else waits for it."""
    is_alive: bool = True
    life: int = 0
    """Counts the processes that this peer has been."""
    epoch: int = 0
    """Of the last job that the device was given in this life."""
    frozen_until: float = 0.0
    tick_at: float = -1.0
    stop: Stop | None = None
    durable: Durable | None = None
    saved: dict[tuple[int, InstanceId], Digest] = field(default_factory=dict)
    logs: list[Log] = field(default_factory=list)
    applied: dict[tuple[int, InstanceId], Digest] = field(default_factory=dict)


class World:
    """`run()` until every living peer has stopped; raises when time stands still or runs out."""

    def __init__(
        self,
        *,
        rules: Rules,
        num_peers: int = 1,
        seed: int = 0,
        loss: float = 0.0,
        capacity: Capacity | None = None,
        speeds: tuple[float, ...] = (),
        merged_loss: float = 2.0,
        checkpoint_period: int = 1,
        checkpoint_seconds: float = 0.0,
        is_delayed: bool = False,
        averaging_seconds: float = 0.5,
        heldout_loss: float | None = 2.0,
    ) -> None:
        self.rules = rules
        self.random = random.Random(seed)
        self.loss = loss
        self.now = 0.0
        self.merged_loss = merged_loss
        self.averaging_seconds = averaging_seconds
        self.heldout_loss = heldout_loss
        self.queue: list[tuple[float, int, Callable[[], None]]] = []
        self.sequence = 0
        self.averages: dict[Digest, PendingAverage] = {}
        self.on_effect: Callable[[PeerId, Effect], None] = lambda peer, effect: None
        names = [PeerId(f"peer{index}") for index in range(num_peers)]
        self.capacity = capacity or Capacity(samples_per_second=0.0, micro_batch_limit=8, max_instances=8)
        self.genesis = genesis(RUN, [(name, self.capacity) for name in names], rules)
        self.cadence = Cadence(
            work=rules.work,
            evaluation_period=1,
            checkpoint_period=checkpoint_period,
            checkpoint_seconds=checkpoint_seconds,
            is_delayed=is_delayed,
        )
        self.hosts: dict[PeerId, Host] = {}
        for index, name in enumerate(names):
            held = self.hosted(self.genesis, name)
            self.hosts[name] = Host(
                peer=Peer(me=name, cadence=self.cadence, agreement=self.agreement()),
                speed=speeds[index] if speeds else 100.0,
                states={instance: hashed("start", instance) for instance in held},
            )
            self.start(name, Durable(round=0, plans=(self.genesis,), held=tuple(held)))

    def agreement(self) -> Agreement:
        return FixedRosterAgreement(decide=lambda plan, reports: next_plan(plan, reports, self.rules))

    def hosted(self, plan: RoundPlan, name: PeerId) -> list[InstanceId]:
        return [item.instance for item in plan.instances if any(share.peer == name for share in item.hosts)]

    def start(self, name: PeerId, durable: Durable) -> None:
        self.deliver(name, Started(durable=durable, capacity=self.capacity), 0.0)

    # --- time --------------------------------------------------------------------------------------------------------

    def at(self, delay: float, action: Callable[[], None]) -> None:
        self.sequence += 1
        heapq.heappush(self.queue, (self.now + delay, self.sequence, action))

    def deliver(self, name: PeerId, event: Event, delay: float) -> None:
        self.at(delay, lambda: self.feed(name, event))

    def feed(self, name: PeerId, event: Event) -> None:
        host = self.hosts[name]
        if not host.is_alive or host.stop is not None:
            return
        if self.now < host.frozen_until:
            if not isinstance(event, Ticked):
                self.deliver(name, event, host.frozen_until - self.now)
            return
        for effect in host.peer.handle(event, self.now):
            self.on_effect(name, effect)
            if not host.is_alive:
                return
            self.perform(name, host, effect)
        deadline = host.peer.next_deadline
        if deadline is not None and (host.tick_at <= self.now or deadline < host.tick_at):
            host.tick_at = max(self.now, deadline)
            self.deliver(name, Ticked(), host.tick_at - self.now)

    def run(self, *, until: float = 1e6, max_events: int = 400_000) -> None:
        for _ in range(max_events):
            if all(host.stop is not None or not host.is_alive for host in self.hosts.values()):
                return
            assert self.queue, f"nothing can happen any more at {self.now:.1f} s"
            self.now, _, action = heapq.heappop(self.queue)
            assert self.now <= until, f"not finished after {until} s"
            action()
        raise AssertionError(f"no end after {max_events} events, now {self.now:.1f} s")

    def kill(self, name: PeerId, *, notice_seconds: float = 3.0) -> None:
        """The process is gone; the others learn of it a little later."""
        self.hosts[name].is_alive = False
        for other in self.hosts:
            self.deliver(other, PeerGone(peer=name), notice_seconds)

    def freeze(self, name: PeerId, seconds: float) -> None:
        """The process stands still; what others say meanwhile waits for it. They count it as gone after a while."""
        self.hosts[name].frozen_until = self.now + seconds
        self.deliver(name, Ticked(), seconds)
        if seconds > LEASE_SECONDS:
            self.tell_others(name, PeerGone(peer=name), LEASE_SECONDS)
            self.tell_others(name, PeerBack(peer=name), seconds + 0.5)

    def tell_others(self, name: PeerId, event: Event, delay: float) -> None:
        for other in self.hosts:
            if other != name:
                self.deliver(other, event, delay)

    # --- effects -----------------------------------------------------------------------------------------------------

    def on_device(self, name: PeerId, seconds: float, action: Callable[[Host], Event | None]) -> None:
        """Work on the device runs in order; what ends the round before comes between inner steps that did not wait for it."""
        host = self.hosts[name]
        is_between = host.is_ahead and self.now < host.device_free
        begin = self.now if is_between else max(host.device_free, self.now)
        host.device_free = (host.device_free if is_between else begin) + seconds
        life = host.life

        def finish() -> None:
            if host.is_alive and host.life == life:
                event = action(host)
                if event is not None:
                    self.feed(name, event)

        self.at(begin + seconds - self.now, finish)

    def perform(self, name: PeerId, host: Host, effect: Effect) -> None:
        match effect:
            case Log():
                host.logs.append(effect)
            case Persist():
                pass
            case Send(peer=peer, message=message):
                if self.random.random() >= self.loss:
                    self.deliver(peer, Received(sender=name, message=message), 0.05)
            case Broadcast(message=message):
                for other in self.hosts:
                    if other != name:
                        self.deliver(other, Received(sender=name, message=message), 0.05)
            case Average():
                self.average(name, effect)
            case RepairAverage():
                self.repair(name, effect)
            case CancelAverage(instance=instance, round=number, attempt=attempt):
                for pending in self.averages.values():
                    joined = pending.joined.get(name)
                    if joined and (joined.instance, joined.round, joined.attempt) == (instance, number, attempt):
                        self.give_up(name, pending)
            case FetchState():
                self.fetch(name, effect)
            case Stop():
                host.stop = effect
                self.tell_others(name, PeerGone(peer=name), 0.1)
            case _:
                self.on_device_effect(name, effect)

    def on_device_effect(self, name: PeerId, effect: Effect) -> None:
        host = self.hosts[name]
        if isinstance(effect, DeviceJob):
            assert effect.epoch >= host.epoch, "a job of an epoch that is over"
            host.epoch = effect.epoch
        if not isinstance(effect, ApplyOuter | CarryOver | Evaluate | SaveInstance | SaveCheckpoint):
            host.is_ahead = False
        match effect:
            case RunInner(round=number, plan=plan, share=share):
                seconds = share.samples / self.hosts[name].speed
                result = InnerResult(
                    samples=share.samples,
                    tokens=share.samples * 31,
                    inner_steps=share.inner_steps,
                    batch_samples=share.effective_batch,
                    accumulation_steps=share.accumulation_steps,
                    loss=3.0,
                    seconds=seconds,
                    half_batch=half_batch(share.effective_batch),
                    micro_batch_limit=self.capacity.micro_batch_limit,
                )
                finished = InnerFinished(instance=plan.instance, round=number, result=result, epoch=effect.epoch)
                self.on_device(name, seconds, lambda host: finished)
                host.is_ahead = effect.is_ahead
            case ApplyOuter() | CarryOver():
                self.on_device(name, 0.01, lambda host: self.end_round(host, effect))
            case Evaluate(instance=instance, round=number):
                evaluated = Evaluated(instance=instance, round=number, heldout_loss=self.heldout_loss, epoch=effect.epoch)
                self.on_device(name, 0.01, lambda host: evaluated)
            case Probe(round=number, merge=merge):
                verdict = ProbeVerdict(
                    sources=merge.sources,
                    target=merge.target,
                    source_losses=tuple(2.0 for _ in merge.sources),
                    merged_loss=self.merged_loss,
                )
                self.on_device(name, 0.01, lambda host: Probed(round=number, verdict=verdict, epoch=effect.epoch))
            case Transition():
                self.on_device(name, 0.01, lambda host: self.transition(host, effect))
            case DiscardRound():
                pass
            case DropInstance(instance=instance):
                self.on_device(name, 0.0, lambda host: host.states.pop(instance, None) and None)
            case SaveInstance(instance=instance, round=number):

                def save(host: Host) -> None:
                    host.saved[number, instance] = host.states[instance]

                self.on_device(name, 0.01, save)
            case SaveCheckpoint(durable=durable):

                def complete(host: Host) -> None:
                    assert all((durable.round, instance) in host.saved for instance in durable.held)
                    host.durable = durable

                self.on_device(name, 0.01, complete)
            case _:
                self.on_kept_state(name, effect)

    def end_round(self, host: Host, effect: ApplyOuter | CarryOver) -> Event:
        instance, number = effect.instance, effect.round
        if isinstance(effect, ApplyOuter):
            state = hashed(host.states[instance], host.averages[instance, number])
            host.states[instance] = host.applied[number, instance] = state
            host.past_states[instance, state] = None
        state = host.states[instance]
        return OuterApplied(instance=instance, round=number, digest=state, state_digest=state, epoch=effect.epoch)

    def on_kept_state(self, name: PeerId, effect: Effect) -> None:
        match effect:
            case SnapshotState(instance=instance, copy=copy, round=number):

                def keep(host: Host) -> Event:
                    state = host.states[copy] = host.states[instance]
                    host.past_states[copy, state] = None
                    return StateKept(instance=copy, round=number, digest=state)

                self.on_device(name, 0.01, keep)
            case ReleaseState(instance=instance):

                def forget(host: Host) -> None:
                    host.states.pop(instance, None)
                    host.past_states = {key: None for key in host.past_states if key[0] != instance}

                self.on_device(name, 0.01, forget)
            case _:
                raise AssertionError(effect)

    def transition(self, host: Host, effect: Transition) -> Event:
        for fork in effect.forks:
            for target in fork.targets:
                host.states[target] = hashed(host.states[fork.source], "fork", target)
        for merge in effect.merges:
            weighed = zip(merge.sources, merge.weights, strict=True)
            parts = [(host.states[source], weight) for source, weight in weighed if weight > 0.0]
            host.states[merge.target] = hashed(*parts)
            for source in merge.sources:
                if source != merge.target:
                    host.states.pop(source, None)
        return TransitionApplied(round=effect.round, epoch=effect.epoch)

    def average(self, name: PeerId, effect: Average) -> None:
        members = tuple(peer for peer, _ in effect.weights)
        pending = self.averages.setdefault(effect.key, PendingAverage(members=members))
        pending.joined[name] = effect
        if len(pending.joined) == len(members):
            self.at(self.averaging_seconds, lambda: self.complete(effect, pending))
        self.at(effect.timeout_seconds, lambda: self.expire(name, effect, pending))

    def give_up(self, name: PeerId, pending: PendingAverage) -> None:
        """The others hear of it at once; nobody is to blame."""
        del pending.joined[name]
        for peer in list(pending.joined):
            joined = pending.joined.pop(peer)
            ids = ids_of(joined)
            self.deliver(peer, AverageFailed(**ids, reason=f"{name} gave up", suspects=()), 0.05)

    def complete(self, effect: Average, pending: PendingAverage) -> None:
        dead = tuple(peer for peer in pending.members if peer not in pending.joined or not self.hosts[peer].is_alive)
        for peer in list(pending.joined):
            joined = pending.joined.pop(peer)
            ids = ids_of(joined)
            if dead:
                self.deliver(peer, AverageFailed(**ids, reason="a member is gone", suspects=dead), STALL_SECONDS)
                continue
            digest = hashed("average", effect.key)
            self.hosts[peer].averages[joined.instance, joined.round] = digest
            self.hosts[peer].held_averages.add(digest)
            statistics = PseudoGradientStatistics(own_sqnorm=4.0, inner_product=1.0, averaged_sqnorm=1.5)
            finished = AverageFinished(**ids, digest=digest, contributors=pending.members, statistics=statistics)
            self.feed(peer, finished)

    def expire(self, name: PeerId, effect: Average, pending: PendingAverage) -> None:
        if pending.joined.get(name) is effect:
            del pending.joined[name]
            missing = tuple(peer for peer in pending.members if peer not in pending.joined and peer != name)
            ids = ids_of(effect)
            self.feed(name, AverageFailed(**ids, reason="timed out", suspects=missing))

    def repair(self, name: PeerId, effect: RepairAverage) -> None:
        def finish() -> None:
            ids = ids_of(effect)
            holders = [p for p in effect.from_peers if self.hosts[p].is_alive and effect.digest in self.hosts[p].held_averages]
            if not holders:
                self.feed(name, AverageFailed(**ids, reason="nobody holds it", suspects=effect.from_peers, is_repair=True))
                return
            self.hosts[name].averages[effect.instance, effect.round] = effect.digest
            self.hosts[name].held_averages.add(effect.digest)
            finished = AverageFinished(
                **ids, digest=effect.digest, contributors=effect.contributors, statistics=None, is_repair=True
            )
            self.feed(name, finished)

        self.at(0.5, finish)

    def fetch(self, name: PeerId, effect: FetchState) -> None:
        def finish() -> None:
            donors = [p for p in effect.from_peers if self.hosts[p].is_alive]
            if not any((effect.instance, effect.digest) in self.hosts[p].past_states for p in donors):
                self.feed(name, FetchFailed(instance=effect.instance, round=effect.round, reason="no donor"))
                return
            self.on_device(name, 0.0, adopt)

        def adopt(host: Host) -> Event:
            host.states[effect.instance] = effect.digest
            return StateFetched(instance=effect.instance, round=effect.round, digest=effect.digest)

        self.at(1.0, finish)

    # --- what the tests look at --------------------------------------------------------------------------------------

    def rounds_logged(self, name: PeerId) -> list[tuple[int, int]]:
        return [(log.round, log.instance) for log in self.hosts[name].logs if isinstance(log, telemetry.Round)]

    def logged(self, name: PeerId, event: str) -> list[dict[str, object]]:
        return [canonical.to_plain(log) for log in self.hosts[name].logs if log.event == event]


def ids_of(effect: Average | RepairAverage) -> dict[str, int]:
    """What names its attempt in the events that answer it."""
    return {"instance": effect.instance, "round": effect.round, "attempt": effect.attempt}


GRACE_SECONDS = 2.0
"""Once a majority has reported, the referee waits so long for the others."""


@dataclass(frozen=True)
class Ruling:
    decided: Decided


class Referee:
    """Decides for all peers of a world, also without the reports of some: stands in for the vote."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.rulings: list[Decided] = []
        self.reports: dict[tuple[int, PeerId], Report] = {}
        self._deadlines: dict[int, float] = {}

    def agreement(self) -> Agreement:
        return Refereed(self)

    def take(self, report: Report) -> None:
        self.reports[report.round, report.peer] = report
        self.look()

    def look(self) -> None:
        while True:
            head = self.rulings[-1].plan if self.rulings else self.world.genesis
            if head.is_last:
                return
            wanted = head.round - 1
            present = [
                self.reports[wanted, roster_entry.peer]
                for roster_entry in head.roster
                if wanted >= 0 and (wanted, roster_entry.peer) in self.reports
            ]
            if wanted >= 0 and len(present) < len(head.roster):
                if 2 * len(present) <= len(head.roster):
                    return
                if wanted not in self._deadlines:
                    self._deadlines[wanted] = self.world.now + GRACE_SECONDS
                    self.world.at(GRACE_SECONDS, self.look)
                if self.world.now < self._deadlines[wanted]:
                    return
            decided = Decided(plan=next_plan(head, present, self.world.rules), reports=tuple(present))
            self.rulings.append(decided)
            for name in self.world.hosts:
                self.world.deliver(name, Received(sender=name, message=Ruling(decided)), 0.05)


class Forgetful:
    """Of an agreement without a journal."""

    def note_work(self, rounds: Collection[int]) -> None: ...

    def keep_vote(self, plan: Digest, vote: AverageDigest) -> list[Persist]:
        return []

    def kept_vote(self, plan: Digest, instance: InstanceId) -> AverageDigest | None:
        return None


class Refereed(Forgetful):
    """One peer's end of the referee."""

    def __init__(self, referee: Referee) -> None:
        self.next_deadline: float | None = None
        self._referee = referee
        self._newest = 0

    def start(self, plans: Sequence[RoundPlan], reports: Sequence[Report], now: float) -> list[Outcome]:
        self._newest = plans[-1].round
        self._referee.look()
        return []

    def submit(self, report: Report, now: float) -> list[Outcome]:
        self._referee.take(report)
        return []

    def receive(self, sender: PeerId, message: object, now: float) -> list[Outcome]:
        if not isinstance(message, Ruling) or message.decided.plan.round <= self._newest:
            return []
        self._newest = message.decided.plan.round
        return [message.decided]

    def tick(self, now: float) -> list[Outcome]:
        return []

    def sign(self, payload: bytes) -> str:
        return "signed"

    def verify(self, peer: PeerId, payload: bytes, signature: str) -> bool:
        return True

    def leave(self, now: float) -> list[Outcome]:
        return []


class RefereedWorld(World):
    """Rounds go on without a peer that is silent."""

    def agreement(self) -> Agreement:
        if not hasattr(self, "referee"):
            self.referee = Referee(self)
        return self.referee.agreement()

    def restart(self, name: PeerId) -> None:
        """Another process takes the peer's place, and goes on at its last checkpoint."""
        host = self.hosts[name]
        durable = host.durable
        assert durable is not None
        for pending in self.averages.values():
            pending.joined.pop(name, None)
        host.peer = Peer(me=name, cadence=self.cadence, agreement=self.agreement())
        host.states = {instance: host.saved[durable.round, instance] for instance in durable.held}
        host.stop, host.is_alive, host.is_ahead, host.applied, host.epoch = None, True, False, {}, 0
        host.life, host.device_free, host.tick_at = host.life + 1, self.now, -1.0
        self.start(name, durable)
        for decided in self.referee.rulings:
            self.deliver(name, Received(sender=name, message=Ruling(decided)), 0.1)


def half_batch(batch_samples: int) -> HalfBatchStatistics | None:
    if batch_samples < 2:
        return None
    return HalfBatchStatistics(
        num_steps=4,
        batch_samples=batch_samples,
        covariance_trace=40.0,
        true_sqnorm=1.0,
        mean_sqnorm=1.0 + 40.0 / batch_samples,
        inner_variance=1.0,
        orthogonal_trace=30.0,
    )
