"""The agreement alone in virtual time: `GossipAgreement` with pretended training, and without a `Peer`.

Every peer is the very `GossipAgreement` of production with a journal and a clock of its own; only training is simulated. One
seed decides everything, so a failing run is a number. Checkers look at every effect before it takes place.
It is several times as fast as `world.py`, which runs whole peers, so it plays more seeds of the consensus alone.
"""

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random

from adloco_p2p.core.agreement.gossip_agreement import GossipAgreement
from adloco_p2p.core.agreement.membership import Timing
from adloco_p2p.core.model import canonical
from adloco_p2p.core.model.events import Broadcast, Decided, Outcome, Persist, Send
from adloco_p2p.core.model.ledger_entry import LedgerEntry, Reorg, SignedReport, Vote
from adloco_p2p.core.model.messages import MAX_MESSAGE_BYTES, Ack, Entries, Promise, Proposal, Supply
from adloco_p2p.core.model.rules import AdmissionRules, BatchRules, InstanceRules, Rules, WorkRules
from adloco_p2p.core.model.telemetry import Log
from adloco_p2p.core.model.types import Digest, PeerId, Report, RoundPlan
from adloco_p2p.core.peer.branch_store import BranchStore
from adloco_p2p.core.planning.round_plan import genesis
from adloco_p2p.sim.cached_rule import CachedRule
from adloco_p2p.sim.checkers import Checkers, Violation
from adloco_p2p.sim.faults import Faults
from adloco_p2p.sim.healing import Healing, MakeStates
from adloco_p2p.sim.identities import RUN, name_of, short, sign, verify
from adloco_p2p.sim.synthetic_reports import CAPACITY, report_of

MAX_EVENTS = 20_000_000
WAIT_LIMIT_SECONDS = 240.0
"""After the faults end the swarm gets this long to finish its run."""
TELLING = (Promise, Ack, Vote, Proposal)
"""Messages that reveal what must be on the disk."""


AgreementFactory = Callable[..., GossipAgreement]


@dataclass(slots=True, kw_only=True)
class Machine:
    """One volunteer's machine: what survives a crash, and the process that does not."""

    peer: PeerId
    offset: float
    rate: float
    is_liar: bool
    slowness: float
    journal: list[object] = field(default_factory=list)
    done: int = -1
    """The last round whose work is finished, on the disk with its report."""
    own: tuple[Report, ...] = ()
    """Its latest reports."""
    agreement: GossipAgreement | None = None
    life: int = 0
    """Counts processes, so that timers of an earlier one mean nothing."""
    plans: dict[int, RoundPlan] = field(default_factory=dict)
    working: int | None = None
    paused_until: float = 0.0
    is_gone: bool = False
    """It left, or is not coming back."""
    is_aside: bool = False
    """It has left and follows without taking part."""
    messages: int = 0
    bytes: int = 0
    timer_at: float | None = None

    def recall(self, plan: Digest) -> LedgerEntry:
        return next(record for record in self.journal if isinstance(record, LedgerEntry) and record.value.plan == plan)

    def clock(self, time: float) -> float:
        return self.offset + time * self.rate

    def world_time(self, clock: float) -> float:
        return (clock - self.offset) / self.rate


class AgreementWorld:
    """`run()` plays until the run of the world is over, or raises Violation."""

    def __init__(
        self,
        seed: int,
        *,
        peers: int,
        rounds: int,
        faults: Faults,
        round_seconds: float = 2.0,
        timing: Timing | None = None,
        is_traced: bool = False,
        measures_bytes: bool = False,
        factory: AgreementFactory = GossipAgreement,
        make_branches: MakeStates = BranchStore,
    ) -> None:
        self.random = Random(seed)
        self.faults = faults
        self.time = 0.0
        self.timing = timing or Timing()
        self.trace: list[str] | None = [] if is_traced else None
        self.events = 0
        self.reported: dict[int, list[float]] = {}
        """Round -> when its reports were submitted."""
        self.decided: dict[int, list[float]] = {}
        """Round of a plan -> when peers that it counts had it."""
        self.switched_at: list[float] = []
        self.machines: dict[PeerId, Machine] = {}
        self.rules = Rules(
            work=WorkRules(rounds=rounds, inner_steps=4),
            instances=InstanceRules(count=2, fork_round=2),
            batch=BatchRules(initial_batch=8, max_batch=max(64, 2 * peers)),
            admission=AdmissionRules(kind="open"),
        )
        self._round_seconds = round_seconds
        self._measures_bytes = measures_bytes
        self._factory = factory
        self._queue: list[tuple[float, int, Callable[[], None]]] = []
        self._count = 0
        self.decide = CachedRule(self.rules)
        self._sides: dict[PeerId, int] = {}
        self._dead_links: dict[tuple[PeerId, PeerId], None] = {}
        names = [name_of(index) for index in range(peers)]
        self.genesis = genesis(RUN, tuple((name, CAPACITY) for name in names), self.rules)
        self.healing = Healing(self.genesis, make_branches)
        self.checkers = Checkers(
            self.genesis,
            decide=self.decide,
            verify=verify,
            timing=self.timing,
            is_gentle=faults.is_gentle,
            healing=self.healing,
        )
        for name in names:
            self._new_machine(name)
            self._at(self.random.uniform(0.0, 0.05), self._boot, name)
        self._plan_faults(names)

    # --- playing -----------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Run until all peers alive have the last plan and no fault is left."""
        end = self.faults.faults_end_at + WAIT_LIMIT_SECONDS
        while self._queue and self.time <= end:
            if self.time >= self.faults.faults_end_at and self.is_over():
                return
            self.time, _, act = heapq.heappop(self._queue)
            self.events += 1
            if self.events > MAX_EVENTS:
                raise Violation("too many events")
            act()
        alive = {peer: machine.agreement for peer, machine in self.machines.items() if machine.agreement is not None}
        is_anybody_left = any(peer in agreement.ledger.members() for peer, agreement in alive.items())
        if is_anybody_left and not self.is_over():
            heads = {short(peer): agreement.ledger.head.round for peer, agreement in alive.items()}
            raise Violation(f"no progress: {WAIT_LIMIT_SECONDS:.0f} s after the last fault the ledgers end at {heads}")

    @property
    def switches(self) -> int:
        """How often a peer changed to another history."""
        return len(self.switched_at)

    @property
    def traffic(self) -> list[tuple[int, int]]:
        """Messages and bytes that each machine sent."""
        return [(machine.messages, machine.bytes) for machine in self.machines.values()]

    def is_over(self) -> bool:
        """All that live have one and the same last plan."""
        alive = [machine.agreement.ledger for machine in self.machines.values() if machine.agreement is not None]
        if not alive or not alive[0].plans[-1].is_last:
            return False
        return all(ledger.digests[-1] == alive[0].digests[-1] for ledger in alive)

    def note(self, peer: PeerId, what: str) -> None:
        if self.trace is not None:
            self.trace.append(short(f"{self.time:9.3f} {peer} {what}"))

    def _at(self, time: float, act: Callable[..., None], *arguments: object) -> None:
        self._count += 1
        heapq.heappush(self._queue, (time, self._count, lambda: act(*arguments)))

    # --- machines ----------------------------------------------------------------------------------------------------

    def _new_machine(self, peer: PeerId) -> None:
        skew = self.faults.skew_seconds
        self.machines[peer] = Machine(
            peer=peer,
            offset=self.random.uniform(0.0, skew),
            rate=1.0 + self.random.uniform(-1e-3, 1e-3) if skew else 1.0,
            is_liar=self.random.random() < self.faults.liars,
            slowness=3.0 if self.random.random() < self.faults.slow_peers else 1.0,
        )

    def _boot(self, peer: PeerId) -> None:
        machine = self.machines[peer]
        if machine.is_gone or machine.agreement is not None:
            return
        machine.life += 1
        machine.working, machine.plans, machine.timer_at = None, {0: self.genesis}, None
        machine.is_aside = False
        now = machine.clock(self.time)
        machine.agreement = self._factory(
            peer,
            genesis=self.genesis,
            records=tuple(machine.journal),
            recall=machine.recall,
            contacts=tuple(other for other in self.machines if other != peer),
            capacity=CAPACITY,
            decide=self.decide,
            sign=lambda payload: sign(peer, payload),
            verify=verify,
            draw=self.random.random,
            timing=self.timing,
        )
        self.note(peer, f"starts, life {machine.life}")
        self.checkers.booted(peer, now)
        self._perform(machine, machine.agreement.start((self.genesis,), machine.own, now))
        self._after(machine)

    def _crash(self, machine: Machine, why: str) -> None:
        self.note(machine.peer, f"dies: {why}")
        machine.agreement = None
        self.checkers.died(machine.peer)
        if self.random.random() < self.faults.never_back and len([m for m in self.machines.values() if not m.is_gone]) > 1:
            machine.is_gone = True
        else:
            self._at(self.time + self.random.uniform(0.1, 15.0), self._boot, machine.peer)

    def _after(self, machine: Machine) -> None:
        """Whatever came of a call: perhaps work to do, perhaps a new deadline."""
        if machine.agreement is None:
            return
        self._work(machine)
        deadline = machine.agreement.next_deadline
        if deadline is not None:
            at = max(self.time, machine.world_time(deadline)) + 1e-6
            if machine.timer_at is None or machine.timer_at > at or machine.timer_at < self.time:
                machine.timer_at = at
                self._at(at, self._tick, machine, machine.life, at)

    def _tick(self, machine: Machine, life: int, at: float) -> None:
        if machine.agreement is None or machine.life != life or machine.timer_at != at:
            return
        if machine.paused_until > self.time:
            machine.timer_at = machine.paused_until
            self._at(machine.paused_until, self._tick, machine, life, machine.paused_until)
            return
        machine.timer_at = None
        now = machine.clock(self.time)
        self.checkers.woke(machine.peer, now)
        self._perform(machine, machine.agreement.tick(now))
        self._after(machine)

    def _perform(self, machine: Machine, outcomes: Sequence[Outcome]) -> None:
        """In order; a machine may die after any of them, and then the rest never was."""
        for outcome in outcomes:
            is_telling = False
            match outcome:
                case Log():
                    continue  # for the views; no step at which a machine could die
                case Persist(record=record):
                    self.checkers.persisting(machine.peer, record)
                    machine.journal.append(record)
                    is_telling = True
                case Send(peer=peer, message=message):
                    is_telling = isinstance(message, TELLING)
                    self._send_each(machine, message, [peer])
                case Broadcast(message=message):
                    is_telling = isinstance(message, TELLING)
                    assert machine.agreement is not None
                    self._send_each(machine, message, machine.agreement.consensus.slot.roster)
                case Decided(plan=plan):
                    self.checkers.decided(machine.peer, plan)
                    self.note(machine.peer, f"decides round {plan.round}, roster of {len(plan.roster)}")
                    machine.plans[plan.round] = plan
                    self.healing.decided(machine.peer, plan)
                    self._fetch_branches(machine, plan)
                    if any(roster_entry.peer == machine.peer for roster_entry in plan.roster):
                        self.decided.setdefault(plan.round, []).append(self.time)
                case Reorg():
                    self._switch(machine, outcome)
            chance = self.faults.crash_targets if is_telling else self.faults.crash_chance
            if chance and self.time < self.faults.faults_end_at and self.random.random() < chance:
                self._crash(machine, f"after {type(outcome).__name__}")
                return

    def _fetch_branches(self, machine: Machine, plan: RoundPlan) -> None:
        def fetch(life: int) -> None:
            if machine.agreement is not None and machine.life == life:
                self.healing.fetch(machine.peer, plan)

        if self.healing.missing(machine.peer, plan):
            self._at(self.time + self.random.uniform(0.2, 3.0), fetch, machine.life)

    def _switch(self, machine: Machine, switched: Reorg) -> None:
        self.switched_at.append(self.time)
        self.checkers.switched(machine.peer, switched)
        self.healing.switched(machine.peer, switched, machine.own[-1] if machine.own else None)
        self.note(machine.peer, f"switches history: {len(switched.lost)} plans lost, {len(switched.won)} won")
        lost = frozenset(entry.plan.round for entry in switched.lost)
        machine.plans = {round: plan for round, plan in machine.plans.items() if round not in lost}
        machine.plans.update((entry.plan.round, entry.plan) for entry in switched.won)

    # --- simulated training ------------------------------------------------------------------------------------------

    def _work(self, machine: Machine) -> None:
        """Train the next round; one that is far behind takes up the round that the others are in."""
        newest = max(machine.plans)
        round = max(machine.done + 1, newest - 1)
        plan = machine.plans.get(round)
        is_idle = machine.working is None or machine.working not in machine.plans or machine.working < newest - 1
        if plan is None or plan.is_last or not is_idle or machine.working == round or machine.is_aside:
            return
        if all(roster_entry.peer != machine.peer for roster_entry in plan.roster):
            return
        machine.working = round
        seconds = self._round_seconds * machine.slowness * self.random.uniform(0.8, 1.2)
        self._at(self.time + seconds, self._end_round, machine, machine.life, plan)

    def _end_round(self, machine: Machine, life: int, plan: RoundPlan) -> None:
        if machine.agreement is None or machine.life != life or machine.working != plan.round:
            return
        if machine.paused_until > self.time:
            self._at(machine.paused_until + 1e-3, self._end_round, machine, life, plan)
            return
        machine.working = None
        if machine.plans.get(plan.round) is not plan:
            self._after(machine)
            return
        branches = self.healing.branches_of(machine.peer)
        digest = canonical.digest_once(plan)
        report = report_of(machine.peer, plan, digest, self.random, is_liar=machine.is_liar, branches=branches)
        machine.done, machine.own = plan.round, (*machine.own, report)[-3:]
        self.checkers.reported(report)
        self.reported.setdefault(plan.round, []).append(self.time)
        now = machine.clock(self.time)
        self.note(machine.peer, f"reports round {plan.round}")
        self.checkers.woke(machine.peer, now)
        if machine.is_liar:
            self._forge(machine, report)
        self._perform(machine, machine.agreement.submit(report, now))
        self._after(machine)

    def _forge(self, liar: Machine, report: Report) -> None:
        """A report in another's name, which no peer must accept."""
        assert liar.agreement is not None
        slot = liar.agreement.consensus.slot
        victim = self.random.choice(slot.roster)
        if victim != liar.peer:
            forged = Report(peer=victim, round=report.round, plan=report.plan, capacity=report.capacity)
            unsigned = SignedReport(report=forged, signature="")
            supply = Supply(
                parent=slot.digest, reports=(SignedReport(report=forged, signature=sign(liar.peer, unsigned.payload)),)
            )
            self._send_each(liar, supply, slot.roster)

    # --- the network -------------------------------------------------------------------------------------------------

    def _send_each(self, machine: Machine, message: object, peers: Sequence[PeerId]) -> None:
        others = [peer for peer in peers if peer != machine.peer]
        self.checkers.before_send(machine.peer, message, machine.clock(self.time))
        if self.trace is not None:
            self.note(machine.peer, f"-> {','.join(others)} {_brief(message)}")
        machine.messages += len(others)
        if others and (self._measures_bytes or isinstance(message, Entries | Supply)):
            size = canonical.size(message)
            machine.bytes += len(others) * size
            if size > MAX_MESSAGE_BYTES:
                raise Violation(
                    f"{short(machine.peer)} sends a {type(message).__name__} of {size} bytes, which no peer accepts"
                )
        are_faults_over = self.time >= self.faults.faults_end_at
        shortest, longest = self.faults.delay_seconds
        for peer in others:
            target = self.machines.get(peer)
            if target is None:
                continue
            copies = 1
            if not are_faults_over:
                if self.random.random() < self.faults.loss or self._is_cut(machine.peer, peer):
                    continue
                copies += self.random.random() < self.faults.duplication
            for _ in range(copies):
                at = self.time + self.random.uniform(shortest, min(longest, 0.3) if are_faults_over else longest)
                self._at(at, self._deliver, target, machine.peer, message)

    def _is_cut(self, sender: PeerId, receiver: PeerId) -> bool:
        start = self.faults.partition_at
        is_parted = start is not None and start <= self.time < start + self.faults.partition_seconds
        return (sender, receiver) in self._dead_links or (
            is_parted and self._sides.get(sender, 0) != self._sides.get(receiver, 0)
        )

    def _deliver(self, machine: Machine, sender: PeerId, message: object) -> None:
        if machine.agreement is None:
            return
        if machine.paused_until > self.time:
            self._at(machine.paused_until + self.random.uniform(0.0, 0.01), self._deliver, machine, sender, message)
            return
        now = machine.clock(self.time)
        self.checkers.delivered(machine.peer, sender, message, now)
        self._perform(machine, machine.agreement.receive(sender, message, now))
        self._after(machine)

    # --- faults ------------------------------------------------------------------------------------------------------

    def _plan_faults(self, names: Sequence[PeerId]) -> None:
        faults, random = self.faults, self.random
        for index, name in enumerate(names):
            self._sides[name] = index % 2
        for sender in names:
            for receiver in names:
                if sender != receiver and random.random() < faults.one_way_links:
                    self._dead_links[sender, receiver] = None
        if faults.vanish_at is not None:
            gone = random.sample(list(names), int(len(names) * faults.vanish_share))
            self._at(faults.vanish_at, self._vanish, gone)
        if faults.churn or faults.pause_chance or faults.aside:
            self._at(1.0, self._every_second)

    def _vanish(self, gone: Sequence[PeerId]) -> None:
        for peer in gone:
            machine = self.machines[peer]
            machine.is_gone = True
            if machine.agreement is not None:
                self.note(peer, "vanishes")
                machine.agreement = None
                self.checkers.died(peer)

    def _every_second(self) -> None:
        faults, random = self.faults, self.random
        alive = [machine for machine in self.machines.values() if machine.agreement is not None]
        for machine in alive:
            if random.random() < faults.pause_chance and machine.paused_until <= self.time:
                machine.paused_until = self.time + random.uniform(1.0, faults.pause_seconds)
                self.note(machine.peer, f"stands still until {machine.paused_until:.3f}")
            if random.random() < faults.churn / 60.0:
                self._join()
            if random.random() < faults.churn / 60.0 and len(alive) > 2:
                self._leave(machine)
            if random.random() < faults.aside / 60.0 and len([m for m in alive if not m.is_aside]) > 2:
                self._step_aside(machine)
        if self.time + 1.0 < faults.faults_end_at:
            self._at(self.time + 1.0, self._every_second)

    def _join(self) -> None:
        peer = name_of(len(self.machines))
        self._sides[peer] = len(self.machines) % 2
        self._new_machine(peer)
        self._boot(peer)

    def _leave(self, machine: Machine) -> None:
        if machine.agreement is not None and not machine.is_gone and machine.paused_until <= self.time:
            machine.is_gone = True
            self.checkers.left(machine.peer)
            self.note(machine.peer, "leaves")
            agreement = machine.agreement
            self._perform(machine, agreement.leave(machine.clock(self.time)))
            machine.agreement = None
            self.checkers.died(machine.peer)

    def _step_aside(self, machine: Machine) -> None:
        if machine.agreement is None or machine.is_aside or machine.paused_until > self.time:
            return
        machine.is_aside, machine.working = True, None
        self.checkers.left(machine.peer)
        self.note(machine.peer, "pauses")
        self._perform(machine, machine.agreement.leave(machine.clock(self.time)))
        self._after(machine)
        self._at(self.time + self.random.uniform(0.2, 15.0), self._step_in, machine, machine.life)

    def _step_in(self, machine: Machine, life: int) -> None:
        if machine.agreement is None or machine.life != life:
            return
        machine.is_aside = False
        self.note(machine.peer, "comes back")
        now = machine.clock(self.time)
        self.checkers.woke(machine.peer, now)
        self._perform(machine, machine.agreement.rejoin(CAPACITY, now))
        self._after(machine)


def _brief(message: object) -> str:
    """One line for the trace."""
    plain = canonical.to_plain(message)
    shown = {
        name: _short(plain[name]) for name in ("ballot", "value", "parent", "absent", "accepted", "promised") if plain.get(name)
    }
    return f"{type(message).__name__} {shown}"


def _short(item: object) -> object:
    if isinstance(item, str):
        return item.rstrip("-")[:6]
    if isinstance(item, dict):
        return {key: _short(value) for key, value in item.items() if key in ("attempt", "peer", "round", "plan", "departed")}
    if isinstance(item, list):
        return [_short(value) for value in item]
    return item
