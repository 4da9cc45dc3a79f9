"""One volunteer's machine: the disk, which survives a crash, and the process that runs a whole `Peer`, which does not.

A machine performs the effects of its peer in order, as `runtime/node` does: short ones at once, work on the device in order,
averages and transfers beside it. It may crash after any effect, and starts again from its journal and checkpoint.
"""

import traceback
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from random import Random
from typing import Protocol

from adloco_p2p.core.agreement.gossip_agreement import GossipAgreement
from adloco_p2p.core.agreement.membership import Timing
from adloco_p2p.core.model import canonical, telemetry
from adloco_p2p.core.model.events import (
    ApplyOuter,
    Average,
    Broadcast,
    CancelAverage,
    CarryOver,
    Commanded,
    Decided,
    DeviceEnd,
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
    MeasureStep,
    Outcome,
    OuterApplied,
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
    StateServed,
    StepMeasured,
    Stop,
    Ticked,
    Transition,
    TransitionApplied,
)
from adloco_p2p.core.model.ledger_entry import LedgerEntry, Reorg, Vote
from adloco_p2p.core.model.messages import Ack, AverageDigest, Heartbeat, Message, Promise, Proposal
from adloco_p2p.core.model.task_scores import ScoreTasks, TasksScored
from adloco_p2p.core.model.telemetry import Log
from adloco_p2p.core.model.types import Capacity, Decide, Digest, InstanceId, PeerId, Report, RoundPlan, roster_of
from adloco_p2p.core.peer.agreement_port import Agreement
from adloco_p2p.core.peer.peer import Cadence, Peer
from adloco_p2p.sim.averaging import AverageBuffers, Averaging
from adloco_p2p.sim.checkers import Violation
from adloco_p2p.sim.device import Device, DeviceTraits
from adloco_p2p.sim.event_queue import EventQueue
from adloco_p2p.sim.faults import Faults
from adloco_p2p.sim.identities import sign, verify
from adloco_p2p.sim.network import Network, OversizedMessage
from adloco_p2p.sim.peer_checkers import PeerCheckers
from adloco_p2p.sim.synthetic_reports import TASK_SECONDS, task_claim

TOLD = (
    telemetry.FastForwarded,
    telemetry.AverageFailed,
    telemetry.AverageRetried,
    telemetry.Warning,
    telemetry.Left,
    telemetry.Returned,
    telemetry.Merge,
    telemetry.Paused,
    telemetry.Resumed,
)
"""Telemetry of a peer that the trace repeats."""
TELLING = (Promise, Ack, Vote, Proposal)
"""Messages that reveal what must be on the disk."""
SHORT_JOB_SECONDS = 0.01
"""What work on the device takes that is not training."""
STATES_OFFERED = 2
"""Boundaries of an instance whose states are served."""
AVERAGES_SERVED = 4
"""Rounds of an instance whose averages are served."""
STATE_BYTES = 400_000
REFUSAL_SECONDS = 0.5
"""A fetch without a donor fails after so long."""

Outgoing = Callable[["Machine", PeerId, object], Sequence[tuple[float, object]]]
"""A strategy of a member that departs from the protocol: what it sends in place of a message, and how much later."""


class MakeAgreement(Protocol):
    """How a process agrees; tests put faults in here."""

    def __call__(self, me: PeerId, **arguments: object) -> GossipAgreement: ...


class MakePeer(Protocol):
    def __call__(self, *, me: PeerId, cadence: Cadence, agreement: Agreement) -> Peer: ...


@dataclass(slots=True, kw_only=True)
class Surroundings:
    """What all machines of a world share."""

    queue: EventQueue
    random: Random
    network: Network
    averaging: Averaging
    checkers: PeerCheckers
    faults: Faults
    timing: Timing
    cadence: Cadence
    capacity: Capacity
    genesis: RoundPlan
    decide: Decide
    machines: dict[PeerId, "Machine"]
    note: Callable[[PeerId, str], None]
    is_traced: bool
    on_decided: Callable[[PeerId, RoundPlan], None]
    on_reported: Callable[[PeerId, Report], None]
    on_reorg: Callable[[], None]
    on_crash: Callable[["Machine"], None]
    make_device: Callable[[DeviceTraits, Random], Device]
    make_agreement: MakeAgreement
    make_peer: MakePeer
    make_buffers: Callable[[], AverageBuffers]


@dataclass(slots=True)
class Disk:
    journal: list[object] = field(default_factory=list)
    entries: dict[Digest, LedgerEntry] = field(default_factory=dict)
    durable: Durable | None = None
    states: dict[tuple[int, InstanceId], object] = field(default_factory=dict)
    """(Boundary, instance) -> state, of the checkpoint and of the one that is being made."""

    def append(self, record: object) -> None:
        self.journal.append(record)
        if isinstance(record, LedgerEntry):
            self.entries[record.value.plan] = record

    def recall(self, plan: Digest) -> LedgerEntry:
        return self.entries[plan]


class WatchedAgreement:
    """An agreement whose outcomes are marked, so that the world sees in which place among the effects they took hold."""

    def __init__(
        self, agreement: GossipAgreement, on_submit: Callable[[Report], Report], on_repeat: Callable[[Report], None]
    ) -> None:
        """`on_repeat`: of reports that the checkpoint holds, which are submitted again."""
        self.inner = agreement
        self._on_submit = on_submit
        self._on_repeat = on_repeat

    @property
    def next_deadline(self) -> float | None:
        return self.inner.next_deadline

    def start(self, plans: Sequence[RoundPlan], reports: Sequence[Report], now: float) -> list[Outcome]:
        for report in reports:
            self._on_repeat(report)
        return _marked(self.inner.start(plans, reports, now))

    def note_work(self, rounds: Collection[int]) -> None:
        self.inner.note_work(rounds)

    def submit(self, report: Report, now: float) -> list[Outcome]:
        return _marked(self.inner.submit(self._on_submit(report), now))

    def receive(self, sender: PeerId, message: object, now: float) -> list[Outcome]:
        return _marked(self.inner.receive(sender, message, now))

    def tick(self, now: float) -> list[Outcome]:
        return _marked(self.inner.tick(now))

    def sign(self, payload: bytes) -> str:
        return self.inner.sign(payload)

    def verify(self, peer: PeerId, payload: bytes, signature: str) -> bool:
        return self.inner.verify(peer, payload, signature)

    def keep_vote(self, plan: Digest, vote: AverageDigest) -> list[Persist]:
        return self.inner.keep_vote(plan, vote)

    def kept_vote(self, plan: Digest, instance: InstanceId) -> AverageDigest | None:
        return self.inner.kept_vote(plan, instance)

    def leave(self, now: float) -> list[Outcome]:
        return _marked(self.inner.leave(now))

    def rejoin(self, capacity: Capacity, now: float) -> list[Outcome]:
        return _marked(self.inner.rejoin(capacity, now))


@dataclass(frozen=True, slots=True)
class Agreed(Log):
    """Marks, among the effects of a peer, what the agreement handed it."""

    outcome: Decided | Reorg


def _marked(outcomes: Sequence[Outcome]) -> list[Outcome]:
    marked: list[Outcome] = []
    for outcome in outcomes:
        marked.append(outcome)
        if isinstance(outcome, Decided | Reorg):
            marked.append(Agreed(outcome))
    return marked


class Process:
    """One life: everything that a crash ends."""

    def __init__(self, me: PeerId, peer: Peer, agreement: GossipAgreement, device: Device, buffers: AverageBuffers) -> None:
        self.me = me
        self.peer = peer
        self.agreement = agreement
        self.device = device
        self.buffers = buffers
        self.is_alive = True
        """It has neither crashed nor stopped."""
        self.has_crashed = False
        self.stop: Stop | None = None
        self.stopped_at = 0.0
        self.contributions: dict[tuple[InstanceId, int], object] = {}
        self.averagings: dict[tuple[InstanceId, int, int], object] = {}
        """Attempts and repairs under way."""
        self.fetches: dict[InstanceId, object] = {}
        self.served_averages: dict[tuple[InstanceId, int], dict[Digest, object]] = {}
        self.offers: dict[InstanceId, dict[int, tuple[Digest, object]]] = {}
        self.device_free_at = 0.0
        self.is_ahead = False
        """The device does inner steps that did not wait for the last outer step, and nothing else waits for it."""
        self.epoch = 0
        """Of the last job that the device was given."""
        self.tick_at: float | None = None

    def serve_average(self, instance: InstanceId, number: int, average: object) -> None:
        self.served_averages.setdefault((instance, number), {})[self.device.average_digest(average)] = average
        for key in [key for key in self.served_averages if key[0] == instance and key[1] <= number - AVERAGES_SERVED]:
            del self.served_averages[key]

    def offer(self, instance: InstanceId, boundary: int) -> Digest:
        """Serve the instance's state as it is now, as that of the boundary."""
        offers, digest = self.offers.setdefault(instance, {}), self.device.digests(instance)[1]
        for other in [other for other, (root, _) in offers.items() if other == boundary or root == digest]:
            del offers[other]  # after a void round the state is the same
        offers[boundary] = (digest, self.device.state(instance))
        for older in list(offers)[:-STATES_OFFERED]:
            del offers[older]
        return digest


class Machine:
    """`boot` it; then it lives on what the queue brings."""

    def __init__(
        self,
        peer: PeerId,
        around: Surroundings,
        *,
        offset: float,
        rate: float,
        round_seconds: float,
        is_liar: bool = False,
        is_keeper: bool = False,
        alters: Callable[[Report], Report] | None = None,
    ) -> None:
        """`offset`, `rate`: of its clock against the world's. `alters`: what a liar makes of its own reports."""
        self.peer = peer
        self.disk = Disk()
        self.process: Process | None = None
        self.life = 0
        self.booted_at = 0.0
        """World time at which the newest life began."""
        self.is_gone = False
        """It left for good, or never comes back."""
        self.is_liar = is_liar
        self.outgoing: Outgoing | None = None
        """Set for a member that departs from the protocol."""
        self.alters = alters
        self.returned: Callable[[PeerId, object], object] | None = None
        """Set for a reducer that lies: what it hands a host in place of an average."""
        self.withholds = False
        """Set for a liar that shows nobody what it sent to reducers that lie."""
        self.reported: list[Report] = []
        """What this machine submitted, over all its lives."""
        self.armed: int | None = None
        """It dies at the persistence point after so many more."""
        self.frozen_until = 0.0
        self._around = around
        self._capacity = replace(around.capacity, is_keeper=is_keeper)
        self._offset = offset
        self._rate = rate
        self.round_seconds = round_seconds

    @property
    def is_responsive(self) -> bool:
        """Its process runs, and does not stand still."""
        return self.process is not None and self.process.is_alive and self.frozen_until <= self._around.queue.now

    @property
    def genesis(self) -> RoundPlan:
        return self._around.genesis

    @property
    def decide(self) -> Decide:
        """The planning rule of its run."""
        return self._around.decide

    @property
    def is_honest(self) -> bool:
        return self.outgoing is None

    def clock(self) -> float:
        return self._offset + self._around.queue.now * self._rate

    # --- lives -------------------------------------------------------------------------------------------------------

    def boot(self) -> None:
        """Start a process from what the disk holds."""
        if self.is_gone or (self.process is not None and self.process.is_alive):
            return
        around, me = self._around, self.peer
        self.life += 1
        self.booted_at = around.queue.now
        traits = DeviceTraits(peer=me, life=self.life, round_seconds=self.round_seconds, is_liar=self.is_liar)
        device = around.make_device(traits, around.random)
        agreement = around.make_agreement(
            me,
            genesis=around.genesis,
            records=tuple(self.disk.journal),
            recall=self.disk.recall,
            contacts=tuple(other for other in around.machines if other != me),
            capacity=self._capacity,
            decide=around.decide,
            sign=lambda payload: sign(me, payload),
            verify=verify,
            draw=around.random.random,
            timing=around.timing,
        )
        peer = around.make_peer(
            me=me, cadence=around.cadence, agreement=WatchedAgreement(agreement, self._submitting, self._repeating)
        )
        self.process = process = Process(me, peer, agreement, device, around.make_buffers())
        around.note(me, f"starts, life {self.life}")
        around.checkers.booted(me, self.clock(), self.life)
        durable = self._durable()
        if self.disk.durable is None:
            device.start({instance: device.fresh(instance) for instance in durable.held})
        else:
            device.start({instance: self.disk.states[durable.round, instance] for instance in durable.held})
        for instance in durable.held:
            process.offer(instance, durable.round)
        self.feed(Started(durable=durable, capacity=self._capacity), process)

    def _durable(self) -> Durable:
        """Of the checkpoint; without one the run begins anew, with fresh instances for the founders."""
        if self.disk.durable is not None:
            return self.disk.durable
        genesis = self._around.genesis
        held = tuple(item.instance for item in genesis.instances) if self.peer in roster_of(genesis) else ()
        return Durable(round=0, plans=(genesis,), held=held)

    def _submitting(self, report: Report) -> Report:
        report = self.alters(report) if self.alters is not None else report
        self.reported.append(report)
        self._around.checkers.reported(report)
        self._around.on_reported(self.peer, report)
        return report

    def _repeating(self, report: Report) -> None:
        if self.is_liar:
            self._around.checkers.repeated(report)

    def crash(self, why: str) -> None:
        process = self.process
        if process is None or process.has_crashed:
            return
        self._around.note(self.peer, f"dies: {why}")
        process.is_alive, process.has_crashed, self.armed = False, True, None
        self.process = None
        self._around.checkers.died(self.peer)
        self._around.on_crash(self)

    def command(self, event: Commanded) -> None:
        if self.process is not None:
            self._around.note(self.peer, event.command)
            self.feed(event, self.process)

    # --- events ------------------------------------------------------------------------------------------------------

    def deliver(self, sender: PeerId, message: object) -> None:
        if self.process is not None:
            self.feed(Received(sender=sender, message=message), self.process)  # type: ignore[arg-type]

    def feed(self, event: Event, process: Process) -> None:
        """Hand an event to the peer of this process, once the machine does not stand still."""
        if process is not self.process or not process.is_alive:
            return
        around = self._around
        if self.frozen_until > around.queue.now:
            around.queue.at(self.frozen_until, self.feed, event, process)
            return
        now = self.clock()
        around.checkers.handling(self.peer, event, now)
        try:
            effects = process.peer.handle(event, now)
        except Violation:
            raise
        except Exception as error:
            where = traceback.extract_tb(error.__traceback__)[-1]
            place = f"{where.filename.rsplit('/', 1)[-1]}:{where.lineno}"
            raise Violation(f"{self.peer} raises {error!r} at {place} for {event!r:.300}") from error
        for effect in effects:
            self._perform(effect, process)
            if not self._survives(effect, process):
                return
        deadline = process.peer.next_deadline
        if deadline is not None and process.is_alive:
            at = max(around.queue.now, (deadline - self._offset) / self._rate) + 1e-6
            if process.tick_at is None or process.tick_at < around.queue.now or at < process.tick_at:
                process.tick_at = at
                around.queue.at(at, self._tick, process, at)

    def _tick(self, process: Process, at: float) -> None:
        if process.tick_at == at:
            if self.frozen_until > self._around.queue.now:
                process.tick_at = self.frozen_until
                self._around.queue.at(self.frozen_until, self._tick, process, self.frozen_until)
                return
            process.tick_at = None
            self.feed(Ticked(), process)

    def _survives(self, effect: Effect, process: Process) -> bool:
        """A machine may crash after any effect; the points at which something was persisted or revealed are likelier."""
        if isinstance(effect, Log) or not process.is_alive:
            return process.is_alive
        faults, queue = self._around.faults, self._around.queue
        is_point = isinstance(effect, Persist) or (isinstance(effect, Send | Broadcast) and isinstance(effect.message, TELLING))
        if is_point and self.is_struck():
            self.crash(f"at a persistence point, after {type(effect).__name__}")
            return False
        chance = faults.crash_targets if is_point else faults.crash_chance
        if chance and queue.now < faults.faults_end_at and self._around.random.random() < chance:
            self.crash(f"after {type(effect).__name__}")
            return False
        return True

    def is_struck(self) -> bool:
        """Whether an armed crash happens at this persistence point."""
        if self.armed is None or self._around.queue.now >= self._around.faults.faults_end_at:
            return False
        self.armed -= 1
        return self.armed <= 0

    # --- effects -----------------------------------------------------------------------------------------------------

    def _perform(self, effect: Effect, process: Process) -> None:
        match effect:
            case Log():
                self._logged(effect)
            case Persist(record=record):
                self._around.checkers.persisting(self.peer, record)
                self.disk.append(record)
            case Send(peer=peer, message=message):
                self._send([peer], message)
            case Broadcast(message=message):
                self._send(process.agreement.consensus.slot.roster, message)
            case Average():
                contribution = process.contributions.get((effect.instance, effect.round))
                if contribution is None:
                    raise Violation(f"{self.peer} averages a pseudo-gradient that it does not have: {effect}")
                self._around.averaging.join(self, process, effect, contribution)
            case RepairAverage():
                self._around.averaging.repair(self, process, effect)
            case CancelAverage(instance=instance, round=number, attempt=attempt):
                self._around.averaging.cancel(process, (instance, number, attempt))
            case FetchState():
                self._fetch(effect, process)
            case ScoreTasks():
                self._around.queue.after(TASK_SECONDS, self._finish_job, effect, process)
            case Stop():
                self._around.note(self.peer, f"stops: {effect.reason}")
                process.is_alive, process.stop, process.stopped_at = False, effect, self._around.queue.now
                self._around.checkers.stopped(self.peer)
            case _:
                self._on_device(effect, process)

    def _logged(self, log: Log) -> None:
        around = self._around
        if not isinstance(log, Agreed):
            around.checkers.logged(self.peer, log)
            if isinstance(log, TOLD):
                around.note(self.peer, f"{log.event} {canonical.to_plain(log)}")
            return
        outcome = log.outcome
        if isinstance(outcome, Decided):
            around.checkers.decided(self.peer, outcome.plan)
            around.note(self.peer, f"decides round {outcome.plan.round}, roster of {len(outcome.plan.roster)}")
            around.on_decided(self.peer, outcome.plan)
        else:
            around.checkers.switched(self.peer, outcome)
            around.note(self.peer, f"switches history: {len(outcome.lost)} plans lost, {len(outcome.won)} won")
            around.on_reorg()

    def _send(self, peers: Sequence[PeerId], message: object) -> None:
        around = self._around
        others = [peer for peer in peers if peer != self.peer]
        is_counted = isinstance(message, Message)  # docs/consensus.md measures what agreeing costs
        if self.outgoing is not None:
            for peer in others:
                for delay, forged in self.outgoing(self, peer, message):
                    around.checkers.forged(forged)
                    around.queue.after(delay, around.network.send, self.peer, [peer], forged)
            return
        if around.is_traced and others and not isinstance(message, Heartbeat):
            around.note(self.peer, f"-> {','.join(others)} {type(message).__name__}")
        around.checkers.before_send(self.peer, message, self.clock())
        try:
            around.network.send(self.peer, others, message, is_counted=is_counted)
        except OversizedMessage as error:
            raise Violation(str(error)) from error

    # --- the device --------------------------------------------------------------------------------------------------

    def _on_device(self, effect: Effect, process: Process) -> None:
        """Work on the device runs in order; what ends the round before comes between inner steps that did not wait for it."""
        around, now = self._around, self._around.queue.now
        if isinstance(effect, DeviceJob):
            if effect.epoch < process.epoch:
                raise Violation(f"{self.peer} asks its device for a job of an epoch that is over: {effect}")
            process.epoch = effect.epoch
        if not isinstance(effect, ApplyOuter | CarryOver | MeasureStep | Evaluate | SaveInstance | SaveCheckpoint):
            process.is_ahead = False
        if isinstance(effect, DiscardRound):
            process.fetches.pop(effect.instance, None)
        if isinstance(effect, RunInner):
            seconds = process.device.inner_seconds(effect)
            begin = max(process.device_free_at, now)
            process.is_ahead = effect.is_ahead
            process.device_free_at = begin + seconds
            around.queue.at(begin, self._begin_inner, effect, process, seconds)
            return
        is_between = process.is_ahead and now < process.device_free_at
        begin = now if is_between else max(process.device_free_at, now)
        process.device_free_at = (process.device_free_at if is_between else begin) + SHORT_JOB_SECONDS
        around.queue.at(begin + SHORT_JOB_SECONDS, self._finish_job, effect, process)

    def _begin_inner(self, effect: RunInner, process: Process, seconds: float) -> None:
        if process.has_crashed:
            return
        instance, number = effect.plan.instance, effect.round
        if process.device.state(instance) is None:
            raise Violation(f"{self.peer} trains instance {instance} in round {number} and has no state of it")
        vector = process.device.pseudo_gradient(effect)
        self._around.queue.after(seconds, self._finish_inner, effect, process, vector, seconds)

    def _finish_inner(self, effect: RunInner, process: Process, vector: object, seconds: float) -> None:
        if process.has_crashed or self._waits_for_thaw(self._finish_inner, effect, process, vector, seconds):
            return
        instance, kept = effect.plan.instance, effect.round - 1 if effect.is_ahead else effect.round
        process.contributions = {
            key: held for key, held in process.contributions.items() if key[0] != instance or key[1] >= kept
        }
        process.contributions[instance, effect.round] = vector
        result = process.device.inner_result(effect, seconds)
        self.feed(InnerFinished(instance=instance, round=effect.round, result=result, epoch=effect.epoch), process)

    def _finish_job(self, effect: Effect, process: Process) -> None:
        if process.has_crashed or self._waits_for_thaw(self._finish_job, effect, process):
            return
        if process.stop is not None and process.stop.is_urgent and not isinstance(effect, SaveInstance | SaveCheckpoint):
            return
        event = self._job_done(effect, process)
        if isinstance(event, DeviceEnd) and isinstance(effect, DeviceJob):
            event = replace(event, epoch=effect.epoch)
        if event is not None:
            self.feed(event, process)

    def _waits_for_thaw(self, act: Callable[..., None], *arguments: object) -> bool:
        if self.frozen_until <= self._around.queue.now:
            return False
        self._around.queue.at(self.frozen_until, act, *arguments)
        return True

    def _job_done(self, effect: Effect, process: Process) -> Event | None:
        device = process.device
        match effect:
            case ApplyOuter(instance=instance, round=number):
                return self._apply_outer(instance, number, process)
            case CarryOver(instance=instance, round=number):
                return self._carry_over(instance, number, process)
            case MeasureStep(instance=instance, round=number):
                before, after = device.measure_step(instance)
                return StepMeasured(instance=instance, round=number, before=before, after=after)
            case Transition(forks=forks, merges=merges, rewinds=rewinds):
                missing = tuple(instance for instance, state in rewinds if not device.rewind(instance, state))
                for instance in sorted({instance for instance, _ in rewinds} - {*missing}):
                    process.offer(instance, effect.round)
                device.transition(forks, merges)
                for merge in merges:
                    for source in merge.sources:
                        if source != merge.target:
                            self._forget(source, process)
                return TransitionApplied(round=effect.round, missing=missing)
            case Probe(round=number, merge=merge):
                return Probed(round=number, verdict=device.probe(merge))
            case ScoreTasks():
                return TasksScored(claim=task_claim(self.disk.durable))
            case Evaluate(instance=instance, round=number):
                return Evaluated(instance=instance, round=number, heldout_loss=device.heldout_loss(instance))
            case DropInstance(instance=instance):
                device.drop(instance)
                self._forget(instance, process)
            case DiscardRound():
                pass
            case SaveInstance() | SaveCheckpoint():
                self._save(effect, process)
            case _:
                return self._on_snapshot(effect, process)
        return None

    def _apply_outer(self, instance: InstanceId, number: int, process: Process) -> Event:
        average = process.buffers.take(instance, number)
        process.contributions.pop((instance, number), None)
        if average is None:
            raise Violation(f"{self.peer} applies the average of instance {instance} in round {number} and has none")
        self._around.checkers.applied(self.peer, instance, number, process.device.average_digest(average))
        is_applied = process.device.apply_outer(instance, average)
        digest, state_digest = process.device.digests(instance)
        process.offer(instance, number + 1)
        refused = not is_applied
        return OuterApplied(instance=instance, round=number, digest=digest, state_digest=state_digest, is_refused=refused)

    def _carry_over(self, instance: InstanceId, number: int, process: Process) -> Event:
        process.buffers.forget(instance, before=number + 1)
        process.contributions.pop((instance, number), None)
        process.device.carry_over(instance)
        self._around.checkers.carried_over(self.peer)
        digest, state_digest = process.device.digests(instance)
        process.offer(instance, number + 1)
        return OuterApplied(instance=instance, round=number, digest=digest, state_digest=state_digest)

    def _on_snapshot(self, effect: Effect, process: Process) -> Event | None:
        device = process.device
        match effect:
            case SnapshotState(instance=instance, copy=copy, round=number):
                state = device.state(instance)
                if state is None:
                    raise Violation(f"{self.peer} copies instance {instance}, which it has not")
                device.adopt(copy, state)
                digest = process.offer(copy, number)
                return StateKept(instance=copy, round=number, digest=digest)
            case ReleaseState(instance=instance):
                device.drop(instance)
                process.offers.pop(instance, None)
                return None
        raise AssertionError(effect)

    def _forget(self, instance: InstanceId, process: Process) -> None:
        """The instance is here no longer. What was offered is served on: hosts that are a little behind may need it."""
        process.contributions = {key: held for key, held in process.contributions.items() if key[0] != instance}
        process.buffers.forget(instance)

    def _save(self, effect: SaveInstance | SaveCheckpoint, process: Process) -> None:
        disk = self.disk
        if isinstance(effect, SaveInstance):
            state = process.device.state(effect.instance)
            if state is None:
                raise Violation(f"{self.peer} saves instance {effect.instance}, which it has not")
            disk.states[effect.round, effect.instance] = state
            return
        durable = effect.durable
        missing = [instance for instance in durable.held if (durable.round, instance) not in disk.states]
        if missing:
            raise Violation(f"{self.peer} completes the checkpoint of round {durable.round} without instances {missing}")
        disk.durable = durable
        disk.states = {key: state for key, state in disk.states.items() if key[0] >= durable.round}
        if process.is_alive and self.is_struck():
            self.crash("at a persistence point, after a checkpoint")

    # --- states of others --------------------------------------------------------------------------------------------

    def _fetch(self, effect: FetchState, process: Process) -> None:
        token = process.fetches[effect.instance] = object()
        around = self._around
        seconds = STATE_BYTES / around.faults.uplink_bytes_per_second + around.network.delay_seconds()
        around.queue.after(seconds, self._fetched, effect, process, token)

    def _fetched(self, effect: FetchState, process: Process, token: object) -> None:
        if process.fetches.get(effect.instance) is not token or not process.is_alive:
            return
        if self._waits_for_thaw(self._fetched, effect, process, token):
            return
        for peer in effect.from_peers:
            donor = self._around.machines.get(peer)
            if donor is None or donor.process is None or not donor.is_responsive:
                continue
            offers = donor.process.offers.get(effect.instance, {}).values()
            offer = next((offer for offer in offers if offer[0] == effect.digest), None)
            if offer is not None and self._around.network.are_connected(self.peer, peer):
                served = StateServed(instance=effect.instance, round=effect.round)
                self._around.queue.after(0.0, donor.feed, served, donor.process)
                begin = max(process.device_free_at, self._around.queue.now)
                self._around.queue.at(begin, self._adopt, effect, process, offer[1])
                return
        failed = FetchFailed(instance=effect.instance, round=effect.round, reason="no donor")
        self._around.queue.after(REFUSAL_SECONDS, self.feed, failed, process)

    def _adopt(self, effect: FetchState, process: Process, state: object) -> None:
        """On the device, in order."""
        if process.has_crashed:
            return
        process.device.adopt(effect.instance, state)
        self.feed(StateFetched(instance=effect.instance, round=effect.round, digest=effect.digest), process)
