"""One volunteer's machine: the disk, which survives a crash, and the process that runs a whole `Peer`, which does not.

A machine performs the effects of its peer in order, as `runtime/node` does: short ones at once, jobs of the device one after
another, averages and transfers beside them. It may crash after any effect, and starts again from its journal and checkpoint.
"""

import traceback
from collections.abc import Callable, Sequence
from dataclasses import replace

from adloco_p2p.core.model import canonical, telemetry
from adloco_p2p.core.model.assessments import AssessContribution, ShowContribution
from adloco_p2p.core.model.averages import Average, CancelAverage, RepairAverage
from adloco_p2p.core.model.effects import Broadcast, DiscardRound, Effect, FetchState, Persist, Send, Stop
from adloco_p2p.core.model.events import Commanded, Durable, Event, Received, Started, Ticked
from adloco_p2p.core.model.ledger_entry import ProofOfWork, Vote
from adloco_p2p.core.model.messages import Ack, Heartbeat, Message, Promise, Proposal
from adloco_p2p.core.model.outcomes import Decided
from adloco_p2p.core.model.plan import Decide, RoundPlan, roster_of
from adloco_p2p.core.model.report import Report
from adloco_p2p.core.model.scalars import PeerId
from adloco_p2p.core.model.task_scores import ScoreTasks
from adloco_p2p.core.model.telemetry import Log
from adloco_p2p.sim.adversary import Liar
from adloco_p2p.sim.checkers import Violation
from adloco_p2p.sim.device import DeviceTraits
from adloco_p2p.sim.device_jobs import DeviceJobs
from adloco_p2p.sim.disk import Disk
from adloco_p2p.sim.identities import sign, verify
from adloco_p2p.sim.network import OversizedMessage
from adloco_p2p.sim.process import Process
from adloco_p2p.sim.state_fetches import StateFetches
from adloco_p2p.sim.surroundings import Surroundings
from adloco_p2p.sim.watched_agreement import Agreed, WatchedAgreement

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
"""The telemetry of a peer that the trace repeats."""
ATTEMPTS = 24
"""The number of attempts at a proof of work per tick."""
TELLING = (Promise, Ack, Vote, Proposal)
"""The messages that reveal state which must be on the disk."""


class Machine:
    """One machine. After `boot` it runs on the events of the queue."""

    def __init__(
        self,
        peer: PeerId,
        around: Surroundings,
        *,
        offset: float,
        rate: float,
        round_seconds: float,
        lies_in_reports: Callable[[Report], Report] | None = None,
        is_keeper: bool = False,
        liar: Liar | None = None,
    ) -> None:
        """`offset` and `rate` are those of its clock against the world's. With `lies_in_reports` its device invents numbers and
        the function alters its reports; all else is judged as on other machines."""
        self.peer = peer
        self.disk = Disk()
        self.process: Process | None = None
        self._jobs: DeviceJobs  # like the fetches, those of the newest process
        self._fetches: StateFetches
        self.life = 0
        self.booted_at = 0.0
        """The world time at which the newest process started."""
        self.commanded_at = 0.0
        """The world time of the newest command of its user."""
        self.state_since: float | None = None
        """The world time at which the newest process first got a state from others."""
        self.fetch_seconds = 0.0
        """The longest expected duration of a fetch of a state."""
        self.crashed_at = 0.0
        """The world time of the newest crash."""
        self.is_gone = False
        """Whether it left for good, or never comes back."""
        self.lies_in_reports = lies_in_reports
        self.liar = liar
        self.reported: list[Report] = []
        """The reports that this machine submitted, over all its starts."""
        self.armed: int | None = None
        """The number of further persistence points after which it dies."""
        self.frozen_until = 0.0
        self.around = around
        self.capacity = replace(around.capacity, is_keeper=is_keeper)
        """The capacity that its next process announces."""
        self._offset = offset
        self._rate = rate
        self.round_seconds = round_seconds

    @property
    def is_responsive(self) -> bool:
        """Whether its process runs and does not stand still."""
        return self.process is not None and self.process.is_alive and self.frozen_until <= self.around.queue.now

    @property
    def genesis(self) -> RoundPlan:
        return self.around.genesis

    @property
    def decide(self) -> Decide:
        """The planning rule of its run."""
        return self.around.decide

    @property
    def is_honest(self) -> bool:
        return self.liar is None

    @property
    def here_since(self) -> float:
        """The world time of its last start or of the last command to it, such as the end of a pause."""
        return max(self.booted_at, self.commanded_at)

    @property
    def steady_since(self) -> float:
        """The world time from which on only other machines disturb it."""
        return max(self.here_since, self.frozen_until, self.around.faults.faults_end_at)

    def clock(self) -> float:
        return self._offset + self.around.queue.now * self._rate

    # --- lives -------------------------------------------------------------------------------------------------------

    def boot(self) -> None:
        """Start a process from the disk. As in production, none starts on the directory of a finished run."""
        self.is_gone |= self.disk.is_complete
        if self.is_gone or (self.process is not None and self.process.is_alive):
            return
        around, me = self.around, self.peer
        self.life += 1
        self.booted_at, self.state_since = around.queue.now, None
        is_liar = self.lies_in_reports is not None
        traits = DeviceTraits(peer=me, life=self.life, round_seconds=self.round_seconds, is_liar=is_liar)
        device = around.make_device(traits, around.random)
        agreement = around.make_agreement(
            me,
            genesis=around.genesis,
            records=tuple(self.disk.journal),
            recall=self.disk.recall,
            contacts=tuple(other for other in around.machines if other != me),
            capacity=self.capacity,
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
        self._jobs, self._fetches = DeviceJobs(self, process), StateFetches(self, process)
        around.note(me, f"starts, life {self.life}")
        around.checkers.booted(me, self.clock(), self.life)
        durable = self._durable()
        if self.disk.durable is None:
            device.start({instance: device.fresh(instance) for instance in durable.held})
        else:
            device.start({instance: self.disk.states[durable.round, instance] for instance in durable.held})
        for instance in durable.held:
            process.offer(instance, durable.round)
        self.feed(Started(durable=durable, capacity=self.capacity), process)

    def _durable(self) -> Durable:
        """Return the content of the checkpoint; without one the run begins anew, with fresh instances for the founders."""
        if self.disk.durable is not None:
            return self.disk.durable
        genesis = self.around.genesis
        held = tuple(item.instance for item in genesis.instances) if self.peer in roster_of(genesis) else ()
        return Durable(round=0, plans=(genesis,), held=held)

    def _submitting(self, report: Report) -> Report:
        alters = (self.liar and self.liar.alters) or self.lies_in_reports
        report = alters(report) if alters is not None else report
        self.reported.append(report)
        self.around.checkers.agreement.reported(report)
        self.around.on_reported(self.peer, report)
        return report

    def _repeating(self, report: Report) -> None:
        if self.lies_in_reports is not None:
            self.around.checkers.agreement.repeated(report)

    def crash(self, why: str) -> None:
        process = self.process
        if process is None or process.has_crashed:
            return
        self.around.note(self.peer, f"dies: {why}")
        process.is_alive, process.has_crashed, self.armed = False, True, None
        self.process, self.crashed_at = None, self.around.queue.now
        self.around.checkers.died(self.peer)
        self.around.on_crash(self)

    def command(self, event: Commanded) -> None:
        self.commanded_at = self.around.queue.now
        if self.process is not None:
            self.around.note(self.peer, event.command)
            self.feed(event, self.process)

    # --- events ------------------------------------------------------------------------------------------------------

    def deliver(self, sender: PeerId, message: object) -> None:
        if self.process is not None:
            self.feed(Received(sender=sender, message=message), self.process)  # type: ignore[arg-type]

    def feed(self, event: Event, process: Process) -> None:
        """Hand an event to the peer of this process, once the machine does not stand still."""
        if process is not self.process or not process.is_alive:
            return
        if self.waits_for_thaw(self.feed, event, process):
            return
        around, now = self.around, self.clock()
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
            if self.frozen_until > self.around.queue.now:
                process.tick_at = self.frozen_until
                self.around.queue.at(self.frozen_until, self._tick, process, self.frozen_until)
                return
            process.tick_at = None
            self._try_for_a_seat(process)
            self.feed(Ticked(), process)

    def _try_for_a_seat(self, process: Process) -> None:
        """Make a few attempts at a proof of work, if a seat costs one."""
        puzzle = process.agreement.puzzle()
        if puzzle is None:
            return
        first = self.around.random.randrange(1 << 40)
        nonce = next(filter(puzzle.attempt, range(first, first + ATTEMPTS)), None)
        if nonce is not None:
            process.agreement.show(ProofOfWork(round=puzzle.round, nonce=nonce))

    def waits_for_thaw(self, act: Callable[..., None], *arguments: object) -> bool:
        """Return whether the machine stands still; then `act` is called when it no longer does."""
        if self.frozen_until <= self.around.queue.now:
            return False
        self.around.queue.at(self.frozen_until, act, *arguments)
        return True

    def _survives(self, effect: Effect, process: Process) -> bool:
        """Return whether the machine survives an effect. It may crash after any, more likely after one that persists or reveals
        state."""
        if isinstance(effect, Log) or not process.is_alive:
            return process.is_alive
        faults, queue = self.around.faults, self.around.queue
        is_point = isinstance(effect, Persist) or (isinstance(effect, Send | Broadcast) and isinstance(effect.message, TELLING))
        if is_point and self.is_struck():
            self.crash(f"at a persistence point, after {type(effect).__name__}")
            return False
        chance = faults.crash_targets if is_point else faults.crash_chance
        if chance and queue.now < faults.faults_end_at and self.around.random.random() < chance:
            self.crash(f"after {type(effect).__name__}")
            return False
        return True

    def is_struck(self) -> bool:
        """Return whether an armed crash happens at this persistence point."""
        if self.armed is None or self.around.queue.now >= self.around.faults.faults_end_at:
            return False
        self.armed -= 1
        return self.armed <= 0

    # --- effects -----------------------------------------------------------------------------------------------------

    def _perform(self, effect: Effect, process: Process) -> None:
        match effect:
            case Log():
                self._logged(effect)
            case Persist(record=record):
                self.around.checkers.persisting(self.peer, record)
                self.disk.append(record)
            case Send(peer=peer, message=message):
                self._send([peer], message)
            case Broadcast(message=message):
                self._send(process.agreement.consensus.slot.roster, message)
            case Average():
                contribution = process.contributions.get((effect.instance, effect.round))
                if contribution is None:
                    raise Violation(f"{self.peer} averages a pseudo-gradient that it does not have: {effect}")
                process.keep_newest(effect.instance)
                self.around.averaging.join(self, process, effect, contribution)
            case RepairAverage():
                process.keep_newest(effect.instance)
                self.around.averaging.repair(self, process, effect)
            case CancelAverage(instance=instance, round=number, attempt=attempt):
                self.around.averaging.cancel(process, (instance, number, attempt))
            case FetchState():
                self._fetches.begin(effect)
            case ScoreTasks():
                self._jobs.score(effect)
            case AssessContribution():
                self.around.averaging.assess(self, process, effect)
            case ShowContribution():
                pass  # `assess` looks at the subject's machine itself
            case Stop():
                self.around.note(self.peer, f"stops: {effect.reason}")
                process.is_alive, process.stop, process.stopped_at = False, effect, self.around.queue.now
                self.around.checkers.died(self.peer)
            case DiscardRound(instance=instance):
                self._fetches.cancel(instance)
                self._jobs.begin(effect)
            case _:
                self._jobs.begin(effect)

    def _logged(self, log: Log) -> None:
        around = self.around
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
        around = self.around
        others = [peer for peer in peers if peer != self.peer]
        is_counted = isinstance(message, Message)  # docs/consensus.md measures the cost of agreement only
        if self.liar is not None:
            for peer in others:
                for delay, forged in self.liar.sends(self, peer, message):
                    around.checkers.agreement.forged(forged)
                    around.queue.after(delay, around.network.send, self.peer, [peer], forged)
            return
        if around.is_traced and others and not isinstance(message, Heartbeat):
            around.note(self.peer, f"-> {','.join(others)} {type(message).__name__}")
        around.checkers.before_send(self.peer, message, self.clock())
        try:
            around.network.send(self.peer, others, message, is_counted=is_counted)
        except OversizedMessage as error:
            raise Violation(str(error)) from error
