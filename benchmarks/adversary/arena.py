"""A simulated world in which attacks meet the production classes, and which judges what the honest peers achieve.

The world raises where a promise that the checkers of `adloco_p2p/sim` check is broken. An arena also requires

- that plans come at least at half the pace of the same seed without the attack,
- that no live honest peer is off the roster for longer than a lease and the rounds that a new seat takes,
- that no message of an attacker counts that the border would refuse: each one is encoded and decoded as on the wire.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from types import MappingProxyType

from adloco_p2p.core.model import canonical
from adloco_p2p.core.model.ledger_entry import LedgerEntry
from adloco_p2p.core.model.messages import MAX_MESSAGE_BYTES, MESSAGE_KINDS
from adloco_p2p.core.model.plan import RoundPlan, roster_of
from adloco_p2p.core.model.rules import AdmissionRules, Rules
from adloco_p2p.core.model.scalars import Digest, InstanceId, PeerId
from adloco_p2p.decode import decode
from adloco_p2p.errors import RemoteProtocolError
from adloco_p2p.sim.adversary import Adversary, Liar, Sent
from adloco_p2p.sim.checkers import Violation
from adloco_p2p.sim.faults import Faults
from adloco_p2p.sim.identities import short
from adloco_p2p.sim.machine import Machine
from adloco_p2p.sim.peer_checkers import check_tables
from adloco_p2p.sim.world import Parts, World, small_rules

ROUND_SECONDS = 10.0
"""Rounds of a public run take minutes; in the shorter rounds here, a timeout of some seconds is a larger part of each."""
LEAST_PACE = 0.5
"""The least pace, as a part of the pace without the attack."""
ROUNDS_TO_A_SEAT = 4
"""A peer that lost its seat asks for one, is admitted by the next plan, and follows the plan after it."""
LOSS = 0.02
PRICE_MINUTES = 0.001
"""The price of a seat that costs computing: six attempts on average."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """A world without its attackers."""

    peers: int = 5
    rounds: int = 10
    admission: str = "tickets"
    faults: Faults = field(default_factory=lambda: Faults(loss=LOSS, faults_end_at=60.0))
    round_seconds: float = ROUND_SECONDS
    rules: Rules | None = None
    may_lose_model: bool = False
    """Whether honest peers may end with the error that they do not have the model of the run."""

    def made_rules(self) -> Rules:
        rules = self.rules or small_rules(self.peers, self.rounds)
        admission = AdmissionRules(kind=self.admission, price_minutes=PRICE_MINUTES)  # type: ignore[arg-type]
        return replace(rules, admission=admission)


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """The result of one fight. `seconds`: virtual time until the last plan was decided."""

    arena: "Arena"
    violation: str
    seconds: float
    pace: float
    """Plans per second, as a part of those without the attack."""
    longest_eviction: float
    void: float
    """The part of the rounds of honest hosts without an outer step."""

    @property
    def problem(self) -> str:
        """Why the attack succeeded; empty where it did not."""
        if self.violation:
            return self.violation
        if self.pace < LEAST_PACE:
            return f"plans came at {self.pace:.0%} of the pace without it"
        if self.void > 1.0 - LEAST_PACE:
            return f"{self.void:.0%} of the rounds were void"
        longest = self.arena.longest_allowed_eviction
        if self.longest_eviction > longest:
            return f"an honest peer had no seat for {self.longest_eviction:.0f} s, {longest:.0f} s are allowed"
        return ""

    def __str__(self) -> str:
        counted = f"pace {min(self.pace, 9.99):.0%}, void rounds {self.void:.0%}"
        return f"{self.problem}; {counted}" if self.problem else counted


class Arena(World):
    """A world that observes seats, and drops messages that the border would refuse."""

    def __init__(self, seed: int, setting: Setting, parts: Parts) -> None:
        self.num_steps = 0
        """Outer steps of honest hosts."""
        self.longest_eviction = 0.0
        self.entries: dict[int, LedgerEntry] = {}
        """For each round, the entry that an honest peer followed last."""
        self._evicted_since: dict[PeerId, float] = {}
        super().__init__(
            seed,
            peers=setting.peers,
            rounds=setting.rounds,
            faults=setting.faults,
            round_seconds=setting.round_seconds,
            rules=setting.made_rules(),
            parts=replace(parts, liars={number: self._bordered(liar) for number, liar in parts.liars.items()}),
        )
        self.may_lose_model = setting.may_lose_model
        self.num_wrong_steps = 0
        """Outer steps of honest hosts with an average that no honest host computed."""
        note = self.checkers.applied

        def applied(peer: PeerId, instance: InstanceId, round: int, average: Digest) -> None:
            self.num_steps += self.machines[peer].is_honest
            self.num_wrong_steps += self.machines[peer].is_honest and not self.is_computed(average)
            note(peer, instance, round, average)

        self.checkers.applied = applied  # type: ignore[method-assign]

    def _bordered(self, liar: Liar) -> Liar:
        def sends(machine: Machine, peer: PeerId, message: object) -> Sent:
            sent = liar.sends(machine, peer, message)
            return [(delay, forged) for delay, forged in sent if forged is message or self._passes(forged)]

        return replace(liar, sends=sends)

    def _transmit(self, sender: PeerId, receiver: PeerId, message: object) -> None:
        if self._passes(message):
            super()._transmit(sender, receiver, message)

    def _passes(self, message: object) -> bool:
        try:
            kind = MESSAGE_KINDS[type(message).__name__]
            return bool(decode(kind, canonical.encode(message), max_bytes=MAX_MESSAGE_BYTES) == message)
        except (RemoteProtocolError, ValueError):
            return False

    @property
    def longest_allowed_eviction(self) -> float:
        return self.timing.lease(len(self.genesis.roster)) + ROUNDS_TO_A_SEAT * self._round_seconds

    def is_computed(self, average: Digest) -> bool:
        """Return whether the average follows from the contributions of its members."""
        return average in self._around.averaging.computed

    def honest(self) -> list[Machine]:
        return self._honest()

    def _on_decided(self, peer: PeerId, plan: RoundPlan) -> None:
        super()._on_decided(peer, plan)
        if not self.machines[peer].is_honest:
            return
        process = self.machines[peer].process
        if process is not None and process.agreement.ledger.entries:
            newest = process.agreement.ledger.entries[-1]
            self.entries[newest.plan.round] = newest
        roster = roster_of(plan)
        for machine in self._honest():
            if machine.peer in roster or not machine.is_responsive or machine.is_gone:
                self._evicted_since.pop(machine.peer, None)
            elif machine.peer in roster_of(self.genesis):
                since = self._evicted_since.setdefault(machine.peer, self.time)
                self.longest_eviction = max(self.longest_eviction, self.time - since)


def fight(
    seed: int,
    setting: Setting,
    *,
    liars: Mapping[int, Liar] = MappingProxyType({}),
    adversary: Adversary | None = None,
    prepare: Callable[[Arena], None] = lambda _: None,
) -> Result:
    """Play the attack, and the same seed without it, whose pace is the reference. `prepare` gets the world before the fight."""
    arena = Arena(seed, setting, Parts(adversary=adversary, liars=liars))
    prepare(arena)
    violation = _violation(arena)
    seconds = max((min(times) for times in arena.decided.values()), default=float("inf"))
    clean_seconds, clean_rounds = _clean(seed, setting)
    rounds = max(arena.decided, default=0)
    return Result(
        arena=arena,
        violation=violation,
        seconds=seconds,
        pace=(rounds / seconds) / (clean_rounds / clean_seconds),
        longest_eviction=arena.longest_eviction,
        void=arena.checkers.num_void / max(1, arena.checkers.num_void + arena.num_steps),
    )


def _violation(arena: Arena) -> str:
    try:
        arena.run()
        for machine in arena.honest():
            if machine.process is not None:
                check_tables(machine.peer, machine.process.peer)
    except Violation as violation:
        return short(str(violation))
    return ""


@cache
def _clean(seed: int, setting: Setting) -> tuple[float, int]:
    """Return the seconds and rounds until the last plan without an attack."""
    arena = Arena(seed, setting, Parts())
    arena.run()
    return max(min(times) for times in arena.decided.values()), max(arena.decided)
