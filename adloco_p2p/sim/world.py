"""A swarm in virtual time: whole peers that agree, average, fetch, save and crash, around one queue and one network.

Every machine runs the `Peer` and the `GossipAgreement` of production with a journal, a checkpoint and a clock of its own; only
the device is another one (`device.py`). One seed decides everything, so its number reproduces a failing run. Checkers examine
every effect as it takes place, and the states of all machines at the end.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from random import Random

from adloco_p2p.core.agreement.emergency import STUCK_LEASES
from adloco_p2p.core.agreement.gossip_agreement import GossipAgreement
from adloco_p2p.core.agreement.membership import Timing
from adloco_p2p.core.ledger.validation import num_emergencies
from adloco_p2p.core.model import canonical
from adloco_p2p.core.model.commands import Command
from adloco_p2p.core.model.effects import Stop
from adloco_p2p.core.model.events import Commanded
from adloco_p2p.core.model.first_seats import free_first_seats
from adloco_p2p.core.model.ledger_entry import LedgerEntry, SignedReport
from adloco_p2p.core.model.messages import Supply
from adloco_p2p.core.model.plan import Decide, RoundPlan, roster_of
from adloco_p2p.core.model.protocol import NEWEST
from adloco_p2p.core.model.report import Report
from adloco_p2p.core.model.roster_entry import Capacity
from adloco_p2p.core.model.rules import AdmissionRules, BatchRules, InstanceRules, Rules, WorkRules
from adloco_p2p.core.model.scalars import Digest, InstanceId, PeerId
from adloco_p2p.core.peer.completion import PENDING_SECONDS
from adloco_p2p.core.peer.finishing import ALONE, NOT_THE_MODEL
from adloco_p2p.core.peer.lifecycle import HANDOVER_SECONDS
from adloco_p2p.core.peer.peer import Cadence, Peer
from adloco_p2p.core.planning.round_plan import genesis
from adloco_p2p.sim.adversary import WAKE_SECONDS, Adversary, AdversaryPort, Liar
from adloco_p2p.sim.averaging import AverageBuffers, Averaging
from adloco_p2p.sim.cached_rule import CachedRule, production_rule
from adloco_p2p.sim.checkers import Checkers, Violation
from adloco_p2p.sim.device import Device, DeviceTraits, HashDevice
from adloco_p2p.sim.event_queue import EventQueue
from adloco_p2p.sim.faults import Faults
from adloco_p2p.sim.healing import Healing
from adloco_p2p.sim.identities import RUN, name_of, short, sign, verify
from adloco_p2p.sim.links import Links
from adloco_p2p.sim.machine import Machine
from adloco_p2p.sim.network import Network
from adloco_p2p.sim.newcomers import Newcomer, broken
from adloco_p2p.sim.peer_checkers import PeerCheckers, check_ledger, check_tables
from adloco_p2p.sim.surroundings import MakeAgreement, MakePeer, Surroundings
from adloco_p2p.sim.synthetic_reports import CAPACITY, invented, lone_proof

MAX_EVENTS = 20_000_000
START_SECONDS = 0.05
"""The time, or the longest delay of a message if that is shorter, within which all machines start."""
WAIT_LIMIT_SECONDS = HANDOVER_SECONDS + PENDING_SECONDS
"""The longest wait of a peer, for a handover or for a state at the end of the run, plus that of the others for it."""
LATE_SECONDS = 10.0
"""The time before the end of the run within which a machine that comes back may have to end it without the model."""
LIE_CHANCE = 0.2
"""The part of a liar's reports in which it invents a branch state."""


def small_rules(peers: int, rounds: int) -> Rules:
    """Return the rules of a short run with a fork."""
    return Rules(
        work=WorkRules(rounds=rounds, inner_steps=4),
        instances=InstanceRules(count=2, fork_round=2),
        batch=BatchRules(initial_batch=8, max_batch=max(64, 2 * peers)),
        admission=AdmissionRules(kind="open"),
    )


def rules_of_one(rounds: int, *, batch: int = 16, probation_rounds: int = AdmissionRules().probation_rounds) -> Rules:
    """Return the rules of a run with one instance, open to everybody."""
    return Rules(
        work=WorkRules(rounds=rounds, inner_steps=4),
        instances=InstanceRules(count=1),
        batch=BatchRules(initial_batch=batch, max_batch=64),
        admission=AdmissionRules(kind="open", probation_rounds=probation_rounds),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """The parts of a world; tests plant faults and liars here."""

    device: Callable[[DeviceTraits, Random], Device] = HashDevice
    capacity: Capacity = CAPACITY
    agreement: MakeAgreement = GossipAgreement  # type: ignore[assignment]
    peer: MakePeer = Peer
    buffers: Callable[[], AverageBuffers] = AverageBuffers
    adversary: Adversary | None = None
    liars: Mapping[int, Liar] = field(default_factory=dict)
    """The founders that lie, by number."""
    rates: Mapping[int, float] = field(default_factory=dict)
    """The bytes per second of founders' links for averages, by number, if they differ from those of the others."""
    links: Callable[[EventQueue], Links] | None = None
    """Makes links of another kind."""
    rule: Decide | None = None
    """The planning rule; None means that of production."""
    cadence: Cadence | None = None
    """The cadence; None means an evaluation every second round, and the two periods below."""
    keepers: frozenset[int] = frozenset()
    """The numbers of the founders that are keepers."""
    checkpoint_period: int = 2
    """The number of rounds from one checkpoint of a machine to the next."""
    task_period: int = 0
    """The number of rounds from one scoring of tasks, which all can do, to the next; 0 means none."""
    protocol: int = NEWEST
    """The protocol with which the run begins, and the newest that its machines can follow."""


class World:
    """A simulated swarm. `run()` plays until its run is over, or raises Violation."""

    def __init__(
        self,
        seed: int,
        *,
        peers: int,
        rounds: int,
        faults: Faults,
        round_seconds: float = 2.0,
        timing: Timing | None = None,
        rules: Rules | None = None,
        is_delayed: bool = False,
        is_traced: bool = False,
        measures_bytes: bool = False,
        parts: Parts | None = None,
    ) -> None:
        self.random = Random(seed)
        self.faults = faults
        self.queue = EventQueue()
        self.timing = timing or Timing()
        self.rules = rules or small_rules(peers, rounds)
        self.parts = parts or Parts()
        self.trace: list[str] | None = [] if is_traced else None
        self.reported: dict[int, list[float]] = {}
        """When the reports of each round were submitted."""
        self.decided: dict[int, list[float]] = {}
        """When the members of each plan had it, by round."""
        self.switched_at: list[float] = []
        """When peers changed to another history."""
        self.machines: dict[PeerId, Machine] = {}
        self.may_lose_model = False
        """Whether liars may make honest peers end with the error that they do not have the model of the run."""
        self.limit_seconds = WAIT_LIMIT_SECONDS
        """The time after the end of the faults within which the swarm must finish its run."""
        self._round_seconds = round_seconds
        self.decide = CachedRule(self.parts.rule or production_rule(self.rules))
        names = [name_of(index) for index in range(peers)]
        signers = names[:1] if self.rules.admission.kind != "open" else ()
        self._keepers = frozenset(names[index] for index in self.parts.keepers)
        protocol = self.parts.protocol
        self._capacity = replace(self.parts.capacity, scores_tasks=self.parts.task_period > 0, newest_protocol=protocol)
        offers = tuple((name, replace(self._capacity, is_keeper=name in self._keepers)) for name in names)
        self.genesis = genesis(RUN, offers, self.rules, signers=signers, protocol=protocol)
        self.liars = {names[index]: None for index in self.parts.liars}
        """The members that depart from the protocol, whose acts are not judged."""
        self.network = Network(
            self.queue, random=self.random, faults=faults, deliver=self._deliver, measures_bytes=measures_bytes
        )
        self._around = self._surroundings(is_delayed=is_delayed)
        for index, name in enumerate(names):
            machine = self._new_machine(name, self.parts.liars.get(index))
            self.queue.at(self.random.uniform(0.0, min(START_SECONDS, faults.delay_seconds[1])), machine.boot)
        self._plan_faults(names)
        self._port = self._admit_adversary()

    def _surroundings(self, *, is_delayed: bool) -> Surroundings:
        faults, parts = self.faults, self.parts
        healing = Healing(self.genesis, verify=verify)
        agreement = Checkers(
            self.genesis,
            decide=self.decide,
            verify=verify,
            timing=self.timing,
            is_gentle=faults.is_gentle,
            healing=healing,
            liars=self.liars,
        )
        self.checkers = PeerCheckers(self.genesis, agreement, liars=self.liars)
        rates = {name_of(index): rate for index, rate in parts.rates.items()}
        links = Links(uplink=faults.uplink_bytes_per_second, rates=rates, random=self.random)
        links = parts.links(self.queue) if parts.links is not None else links
        return Surroundings(
            queue=self.queue,
            random=self.random,
            network=self.network,
            links=links,
            averaging=Averaging(
                self.queue,
                random=self.random,
                network=self.network,
                machines=self.machines,
                links=links,
            ),
            checkers=self.checkers,
            faults=faults,
            timing=self.timing,
            cadence=parts.cadence
            or Cadence(
                work=self.rules.work,
                evaluation_period=2,
                checkpoint_period=parts.checkpoint_period,
                is_delayed=is_delayed,
                task_period=parts.task_period,
                vector_bytes=links.vector_bytes,
            ),
            capacity=self._capacity,
            genesis=self.genesis,
            decide=self.decide,
            machines=self.machines,
            note=self.note,
            is_traced=self.trace is not None,
            on_decided=self._on_decided,
            on_reported=self._on_reported,
            on_reorg=self._on_reorg,
            on_crash=self._on_crash,
            make_device=parts.device,
            make_agreement=parts.agreement,
            make_peer=parts.peer,
            make_buffers=parts.buffers,
        )

    # --- playing -----------------------------------------------------------------------------------------------------

    @property
    def time(self) -> float:
        return self.queue.now

    @property
    def events(self) -> int:
        return self.queue.num_events

    @property
    def switches(self) -> int:
        return len(self.switched_at)

    @property
    def traffic(self) -> list[tuple[int, int]]:
        """The numbers of messages and bytes that each machine sent for the agreement."""
        sent, num_bytes = self.network.messages, self.network.bytes
        return [(sent.get(peer, 0), num_bytes.get(peer, 0)) for peer in self.machines]

    def ledger(self) -> list[LedgerEntry]:
        """Return, after `run`, the agreed entries after the genesis."""
        process = next(machine.process for machine in self._honest() if machine.process is not None)
        return list(process.agreement.ledger.since(1))

    def run(self) -> None:
        """Play until all living peers have ended the run, then check the end. Raises Violation."""
        end = self.faults.faults_end_at + self.limit_seconds
        while self.queue and self.queue.now <= end:
            if self.queue.now >= self.faults.faults_end_at and self.is_over():
                break
            self.queue.step()
            self.checkers.at(self.queue.now)
            if self.queue.num_events > MAX_EVENTS:
                raise Violation("too many events")
        self._check_end()

    def is_over(self) -> bool:
        """Return whether no honest process runs, and none will start again."""
        return all(self._has_ended(machine) for machine in self.machines.values() if machine.is_honest)

    def _honest(self) -> list[Machine]:
        return [machine for machine in self.machines.values() if machine.is_honest]

    def _has_ended(self, machine: Machine) -> bool:
        """Return whether the machine has stopped, or is gone for good."""
        is_stopping = machine.process is not None and machine.process.stop is not None
        return self._has_stopped(machine) if is_stopping else machine.is_gone

    def _has_stopped(self, machine: Machine) -> bool:
        """Return whether the machine has stopped and written all its data."""
        process = machine.process
        return process is not None and process.stop is not None and process.device_free_at < self.queue.now

    def _check_end(self) -> None:
        """Check liveness: living peers have ended the run, and those that were there in time have one plan and one state."""
        if self.parts.adversary is not None:  # only an adversary could fill a table
            for machine in self._honest():
                if machine.process is not None:
                    check_tables(machine.peer, machine.process.peer)
        judged = [machine for machine in self._honest() if not self._came_too_late(machine)]
        running, finished, is_apart = [], [], False
        for machine in judged:
            process = machine.process
            if process is not None and process.stop is not None and process.stop.is_finished:
                finished.append((machine, process))
            elif process is not None and process.stop is not None and self._may_end_without(process.stop):
                is_apart = True
            elif not machine.is_gone and (process is None or process.stop is None):
                running.append(f"{machine.peer} in round {process.agreement.ledger.head.round if process else '?'}")
        if running:
            raise Violation(f"no progress: {self.limit_seconds:.0f} s after the last fault these still run: {running}")
        if not (finished or is_apart or self._is_model_gone()) and any(not machine.is_gone for machine in judged):
            raise Violation("nobody has ended the run")
        if not finished:
            return
        ended_at = min(process.stopped_at for _, process in finished)
        self._check_one_state([machine for machine, _ in finished if machine.booted_at < ended_at - LATE_SECONDS], ended_at)
        ended = {machine.peer for machine, _ in finished}
        entries = list(finished[0][1].agreement.ledger.since(1))
        for machine in judged:
            if machine.peer not in ended and self._was_left_behind(machine, entries, ended_at):
                raise Violation(f"{machine.peer} was left behind, {ended_at - machine.here_since:.0f} s after its start")
        check_ledger(self.genesis, entries, self.decide, verify)
        self._check_newcomers(entries)

    def _check_newcomers(self, entries: Sequence[LedgerEntry]) -> None:
        """Check the promises to newcomers by the entries of the run. A peer that ended with an error was there until then."""
        if self.rules.admission.kind == "tickets" or self.parts.adversary is not None:
            return
        plans = self.checkers.in_time(entries)
        for machine in self._honest():
            process = machine.process
            if process is None or machine.is_gone or machine.lies_in_reports or machine.peer in roster_of(self.genesis):
                continue
            here = [(at, entry) for at, entry in plans if process.stop is None or at <= process.stopped_at]
            newcomer = Newcomer(
                peer=machine.peer,
                steady_since=machine.steady_since,
                state_since=machine.state_since,
                fetch_seconds=machine.fetch_seconds if machine.life == 1 else None,
            )
            if problem := broken(newcomer, here):
                raise Violation(problem)

    def _came_too_late(self, machine: Machine) -> bool:
        """Return whether the machine never had a seat, and the run is over or all members are gone for good, without which no
        newcomer goes on."""
        if machine.process is None:
            return False
        entries = list(machine.process.agreement.ledger.since(1))
        newest = entries[-1].plan if entries else self.genesis
        seated = {peer for plan in (self.genesis, *(entry.plan for entry in entries)) for peer in roster_of(plan)}
        members = [self.machines.get(peer) for peer in roster_of(newest)]  # an adversary's names have no machines
        is_deserted = all(member is not None and member.is_gone for member in members)
        return machine.peer not in seated and (newest.is_last or is_deserted)

    def _was_left_behind(self, machine: Machine, entries: Sequence[LedgerEntry], ended_at: float) -> bool:
        """Return whether the machine was there in time, and the others ended the run without it, although there were enough
        seats for all that asked, so that no lot decided."""
        process = machine.process
        has_error = process is not None and process.stop is not None and process.stop.error is not None
        if machine.is_gone or machine.here_since >= ended_at - LATE_SECONDS or (self.may_lose_model and has_error):
            return False
        parent, last = [self.genesis, *(entry.plan for entry in entries)][-2:]
        num_joined = len([peer for peer in roster_of(last) if peer not in roster_of(parent)])
        is_full = num_joined >= free_first_seats(parent, entries[-1].value.departed)
        return machine.peer in roster_of(last) or not is_full

    def _is_model_gone(self) -> bool:
        """Return whether all machines that ever reported a state are gone for good, or dropped the state after the loss of
        their seat, and the last one that went vanished or left at once."""
        had = [machine for machine in self._honest() if any(report.instances for report in machine.reported)]
        ends = [end for machine in had if (end := _end_of(machine)) is not None]
        left = [machine for machine in had if _end_of(machine) is None]
        if not ends or not all(self._lost_its_seat(machine) for machine in left):
            return False
        _, stop = max(ends, key=lambda end: end[0])
        return stop is None or stop.is_urgent

    def _lost_its_seat(self, machine: Machine) -> bool:
        """Return whether a plan left the machine out after the last state that it reported."""
        newest = max(report.round for report in machine.reported if report.instances)
        entries = machine.process.agreement.ledger.since(newest + 1) if machine.process is not None else ()
        return any(machine.peer not in roster_of(entry.plan) for entry in entries)

    def _may_end_without(self, stop: Stop) -> bool:
        """Return whether a stop without the run's model is allowed, as for the last peer alive after most electors died."""
        return stop.reason == ALONE or (self.may_lose_model and stop.error == NOT_THE_MODEL)

    def _may_end_apart(self, finished: Sequence[Machine], ended_at: float) -> bool:
        """Return whether the run was over before the sides of a partition had to come together again: every side went on by
        emergency entries, and peers may refuse those of the others for eight leases (`core/agreement/emergency.py`)."""
        if self.faults.partition_at is None:
            return False
        together_at = self.faults.partition_at + self.faults.partition_seconds
        lease = self.timing.lease(len(self.genesis.roster))
        ledgers = [list(machine.process.agreement.ledger.since(1)) for machine in finished if machine.process is not None]
        return ended_at < together_at + STUCK_LEASES * lease and all(num_emergencies(self.genesis, known) for known in ledgers)

    def _check_one_state(self, finished: Sequence[Machine], ended_at: float) -> None:
        """Check that these machines saved one history at the run's end, or several if allowed, and one state per history."""
        lasts: dict[Digest, PeerId] = {}
        states: dict[tuple[Digest, InstanceId], dict[object, PeerId]] = {}
        for machine in finished:
            durable = machine.disk.durable
            if durable is None or not durable.is_finished:
                raise Violation(f"{machine.peer} has ended the run and not saved it")
            lasts[last := canonical.digest_once(durable.plans[-1])] = machine.peer
            for instance in durable.held:
                states.setdefault((last, instance), {})[machine.disk.states[durable.round, instance]] = machine.peer
        if (len(lasts) > 1 and not self._may_end_apart(finished, ended_at)) or any(len(found) > 1 for found in states.values()):
            raise Violation(f"the run ends with several plans or states: {lasts} {states}")

    def note(self, peer: PeerId, what: str) -> None:
        if self.trace is not None:
            self.trace.append(short(f"{self.queue.now:9.3f} {peer} {what}"))

    # --- machines ----------------------------------------------------------------------------------------------------

    def _new_machine(self, peer: PeerId, liar: Liar | None = None) -> Machine:
        faults, random = self.faults, self.random
        is_liar = random.random() < faults.liars
        machine = Machine(
            peer,
            self._around,
            offset=random.uniform(0.0, faults.skew_seconds),
            rate=1.0 + random.uniform(-1e-3, 1e-3) if faults.skew_seconds else 1.0,
            round_seconds=self._round_seconds * (3.0 if random.random() < faults.slow_peers else 1.0),
            lies_in_reports=self._lied if is_liar else None,
            is_keeper=peer in self._keepers,
            liar=liar,
        )
        self.network.add(peer, tuple(self.machines))
        self.machines[peer] = machine
        return machine

    def _deliver(self, receiver: PeerId, sender: PeerId, message: object) -> None:
        machine = self.machines.get(receiver)
        if machine is not None:
            machine.deliver(sender, message)
        elif self._port is not None and receiver in self._port.names and self.parts.adversary is not None:
            self.parts.adversary.received(self._port, receiver, sender, message)

    def _on_decided(self, peer: PeerId, plan: RoundPlan) -> None:
        if any(roster_entry.peer == peer for roster_entry in plan.roster):
            self.decided.setdefault(plan.round, []).append(self.queue.now)

    def _on_reported(self, peer: PeerId, report: Report) -> None:
        self.reported.setdefault(report.round, []).append(self.queue.now)
        self.note(peer, f"reports round {report.round}")
        if self.machines[peer].lies_in_reports is not None:
            self._forge(self.machines[peer], report)

    def _on_reorg(self) -> None:
        self.switched_at.append(self.queue.now)

    def _on_crash(self, machine: Machine) -> None:
        others = [other for other in self.machines.values() if not other.is_gone and other is not machine]
        if self.random.random() < self.faults.never_back and len(others) > 1:
            machine.is_gone = True
            return
        away = self.random.choice((self.random.uniform(0.05, 1.5), self.random.uniform(0.5, 12.0)))
        self.queue.after(away, machine.boot)

    # --- lies --------------------------------------------------------------------------------------------------------

    def _lied(self, report: Report) -> Report:
        """Return the report of a liar, now and then with an invented branch state; its device invents the work."""
        if self.random.random() >= LIE_CHANCE:
            return report
        branch = invented(self.genesis, canonical.digest_once(self.genesis), self.random)
        proof = report.proof or lone_proof(report.peer, roster_of(self.genesis), branch)
        return replace(report, branches=(*report.branches, branch), proof=proof)

    def _forge(self, liar: Machine, report: Report) -> None:
        """Send a report in another peer's name, which no peer must accept."""
        assert liar.process is not None
        slot = liar.process.agreement.consensus.slot
        victim = self.random.choice(slot.roster)
        if victim != liar.peer:
            forged = Report(peer=victim, round=report.round, plan=report.plan, capacity=report.capacity)
            unsigned = SignedReport(report=forged, signature="")
            signed = SignedReport(report=forged, signature=sign(liar.peer, unsigned.payload))
            others = [peer for peer in slot.roster if peer != liar.peer]
            self.network.send(liar.peer, others, Supply(parent=slot.digest, reports=(signed,)))

    def _admit_adversary(self) -> AdversaryPort | None:
        adversary = self.parts.adversary
        if adversary is None:
            return None
        names = adversary.names
        port = AdversaryPort(
            random=self.random,
            genesis=self.genesis,
            names=names,
            now=lambda: self.queue.now,
            victims=lambda: tuple(peer for peer, machine in self.machines.items() if machine.process is not None),
            transmit=self._transmit,
        )
        self.liars.update(dict.fromkeys(names))
        self.queue.after(WAKE_SECONDS, self._wake_adversary, adversary, port)
        return port

    def _transmit(self, sender: PeerId, receiver: PeerId, message: object) -> None:
        self.checkers.agreement.forged(message)
        self.network.send(sender, [receiver], message, is_counted=False)

    def _wake_adversary(self, adversary: Adversary, port: AdversaryPort) -> None:
        adversary.wakes(port)
        self.queue.after(WAKE_SECONDS, self._wake_adversary, adversary, port)

    # --- faults ------------------------------------------------------------------------------------------------------

    def _plan_faults(self, names: Sequence[PeerId]) -> None:
        faults, random, queue = self.faults, self.random, self.queue
        latest = max(1.0, faults.faults_end_at - 2.0)
        links = [(one, other) for one in names for other in names if one != other]
        for sender, receiver in random.sample(links, min(faults.cut_links, len(links))):
            self.network.cut(sender, receiver)
        for _ in range(faults.crashes):
            queue.at(random.uniform(0.5, latest), self._arm)
        for _ in range(faults.joins):
            queue.at(random.uniform(0.5, 0.6 * latest), self._join)
        for _ in range(faults.leaves):
            queue.at(random.uniform(2.0, latest), self._ask_one_to, random.choice(("drain", "drain", "leave")))
        for _ in range(faults.pauses):
            queue.at(random.uniform(2.0, latest), self._ask_one_to, "pause")
        if faults.vanish_at is not None:
            queue.at(faults.vanish_at, self._vanish, random.sample(list(names), int(len(names) * faults.vanish_share)))
        if faults.churn or faults.pause_chance or faults.aside:
            queue.at(1.0, self._every_second)

    def _able(self) -> list[Machine]:
        return [machine for machine in self.machines.values() if machine.is_responsive and machine.is_honest]

    def _arm(self) -> None:
        """Draw a machine that dies at one of its next persistence points."""
        able = [machine for machine in self._able() if machine.armed is None]
        if able:
            self.random.choice(able).armed = self.random.randint(1, 6)

    def _join(self) -> None:
        machine = self._new_machine(name_of(len(self.machines)))
        machine.boot()

    def _ask_one_to(self, command: Command) -> None:
        able = self._able()
        if len(able) > 2:
            self._ask(self.random.choice(able), command)

    def _ask(self, machine: Machine, command: Command) -> None:
        if command != "pause":
            machine.is_gone = True
        else:
            self.queue.after(self.random.uniform(0.5, 12.0), self._resume, machine)
        machine.command(Commanded(command=command))

    def _resume(self, machine: Machine) -> None:
        machine.command(Commanded(command="resume"))

    def _vanish(self, gone: Sequence[PeerId]) -> None:
        for peer in gone:
            self.machines[peer].is_gone = True
            self.machines[peer].crash("vanishes")

    def _every_second(self) -> None:
        faults, random = self.faults, self.random
        able = self._able()
        for machine in able:
            if random.random() < faults.pause_chance:
                machine.frozen_until = self.queue.now + random.uniform(1.0, faults.pause_seconds)
                self.note(machine.peer, f"stands still until {machine.frozen_until:.3f}")
            if random.random() < faults.churn / 60.0:
                self._join()
            if random.random() < faults.churn / 60.0 and len(able) > 2:
                self._ask(machine, random.choice(("drain", "leave")))
            if random.random() < faults.aside / 60.0 and len(able) > 2:
                self._ask(machine, "pause")
        if self.queue.now + 1.0 < faults.faults_end_at:
            self.queue.after(1.0, self._every_second)


def _end_of(machine: Machine) -> tuple[float, Stop | None] | None:
    """Return when a machine that is gone for good ended, and by which stop (None: a crash); None if it is not gone."""
    process = machine.process
    if not machine.is_gone or (process is not None and process.stop is None):
        return None
    return (machine.crashed_at, None) if process is None else (process.stopped_at, process.stop)
