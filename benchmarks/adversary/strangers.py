"""Attacks of strangers: identities without a seat that learn the ledger as anybody can, and send whatever may do harm.

The same deeds run in the simulated world (`arena.py`) and against live nodes (`benchmarks/stranger.py`).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from adloco_p2p.core.agreement.membership import BEATS_PER_INCARNATION
from adloco_p2p.core.ledger.ledger import Ledger
from adloco_p2p.core.ledger.validation import change_of
from adloco_p2p.core.model import canonical
from adloco_p2p.core.model.certificate import Ballot
from adloco_p2p.core.model.ledger_entry import Head, JoinRequest, LedgerEntry, ProofOfWork, Ticket, Value, Vote
from adloco_p2p.core.model.messages import (
    Ack,
    AttemptFailed,
    AttemptStart,
    AverageDigest,
    Entries,
    Final,
    Heartbeat,
    Leave,
    Ping,
    Prepare,
    Promise,
    PullEntries,
    Refusal,
    RunComplete,
    Supply,
)
from adloco_p2p.core.model.plan import Decide, RoundPlan, roster_of
from adloco_p2p.core.model.scalars import Digest, InstanceId, PeerId
from adloco_p2p.sim import identities
from adloco_p2p.sim.adversary import AdversaryPort, stranger_names
from adloco_p2p.sim.device import hashed
from adloco_p2p.sim.synthetic_reports import CAPACITY, certificate_of
from adloco_p2p.sim.votes import votes_in

FORGED_JOINS = 16
"""Join requests in one forged heartbeat."""
UNASKED_VALUES = 70
"""More values than a slot ever kept (review A3)."""
FORGED_ROUNDS = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Aim:
    """One attack: by which identity, on whom, with which ledger known."""

    port: AdversaryPort
    me: PeerId
    victim: PeerId
    ledger: Ledger
    decide: Decide | None = None
    """The run's planning rule, if the adversary has it: forged plans then follow from it."""

    @property
    def plan(self) -> RoundPlan:
        return self.ledger.plans[-1]

    @property
    def head(self) -> Head:
        return self.ledger.head


Deed = Callable[[Aim], Sequence[object]]


@dataclass
class Strangers:
    """Identities without a seat, which perform one of their deeds, drawn at random, per wake."""

    deeds: Sequence[Deed] = ()
    names: tuple[PeerId, ...] = stranger_names(3)
    decide: Decide | None = None
    until: float = 1e18
    """Virtual seconds after which they fall silent."""
    num_sent: int = 0
    answers: list[object] = field(default_factory=list)
    """All that the others sent them."""
    _ledger: Ledger | None = None
    _entries: dict[Digest, LedgerEntry] = field(default_factory=dict)

    def received(self, port: AdversaryPort, me: PeerId, sender: PeerId, message: object) -> None:
        del me, sender
        self.answers.append(message)
        for entry in message.entries if isinstance(message, Entries) else ():
            ledger = self._known(port)
            if entry.value.parent == ledger.digests[-1]:
                self._entries[entry.value.plan] = entry
                ledger.append(entry)

    def _known(self, port: AdversaryPort) -> Ledger:
        if self._ledger is None:
            self._ledger = Ledger(port.genesis, recall=self._entries.__getitem__)
        return self._ledger

    def wakes(self, port: AdversaryPort) -> None:
        victims = port.victims()
        if not victims or port.now() > self.until:
            return
        me, victim = port.random.choice(port.names), port.random.choice(victims)
        aim = Aim(port=port, me=me, victim=victim, ledger=self._known(port), decide=self.decide)
        for message in [PullEntries(locator=aim.ledger.locator()), *port.random.choice(self.deeds or ALL)(aim)]:
            self.num_sent += 1
            port.send(me, victim, message)


# --- deeds -----------------------------------------------------------------------------------------------------------


def lone_entry(
    me: PeerId, sign: Callable[[bytes], str], ledger: Ledger, decide: Decide | None, *, departs: bool = True
) -> tuple[LedgerEntry, Vote]:
    """Return an entry that calls all others absent, with one vote: its author's. It follows the rule, where that is known."""
    parent, digest = ledger.plans[-1], ledger.digests[-1]
    absent = tuple(peer for peer in roster_of(parent) if peer != me)
    departed = absent if departs else ()
    joined = () if me in roster_of(parent) else (join_request(me, sign, parent, beat=1),)
    value = Value(round=parent.round + 1, parent=digest, reports=(), joined=joined, departed=departed, plan=Digest(""))
    stolen = replace(parent, round=value.round, parent=digest, reason="taken over")
    if decide is not None:
        stolen = decide(parent, (), change_of(value, (), ledger, lambda *_: True))
    value = replace(value, plan=canonical.digest(stolen))
    about, ballot = (digest, canonical.digest(value)), Ballot(attempt=1, peer=me)
    certificate = certificate_of([me], about, ballot=ballot, absent=absent, sign=lambda _, payload: sign(payload))
    (vote,) = votes_in(certificate, about)
    return LedgerEntry(plan=stolen, value=value, reports=(), certificate=certificate), vote


def _sign(at: Aim) -> Callable[[bytes], str]:
    return lambda payload: at.port.sign(at.me, payload)


def takes_over(at: Aim) -> Sequence[object]:
    """Send a ledger entry that calls the whole roster absent, and its author the heir; the same as a final value."""
    if at.plan.is_last:
        return ()
    entry, vote = lone_entry(at.me, _sign(at), at.ledger, at.decide)
    final = Final(parent=vote.parent, value=vote.value, certificate=entry.certificate)
    return (Entries(entries=(entry,)), vote, final)


def forged_history(me: PeerId, sign: Callable[[bytes], str], genesis: RoundPlan, decide: Decide) -> list[LedgerEntry]:
    """Return a chain from the first plan on, with one vote per entry."""
    known: dict[Digest, LedgerEntry] = {}
    ledger = Ledger(genesis, recall=known.__getitem__)
    while len(ledger.entries) < FORGED_ROUNDS and not ledger.plans[-1].is_last:
        entry, _ = lone_entry(me, sign, ledger, decide)
        known[entry.value.plan] = entry
        ledger.append(entry)
    return ledger.entries


def forges_a_history(at: Aim) -> Sequence[object]:
    """Send a forged history from the first plan on that claims a billion samples."""
    assert at.decide is not None, "this deed needs the rule"
    entries = forged_history(at.me, _sign(at), at.port.genesis, at.decide)
    head = Head(round=entries[-1].plan.round, digest=entries[-1].value.plan, samples=10**9)
    return (beat(at, head=head), Entries(entries=tuple(entries)))


def supplies_unasked_values(at: Aim) -> Sequence[object]:
    """Send more values than a slot keeps, of plans that no rule makes."""
    return unasked_values(at.plan.round + 1, at.head.digest)


def unasked_values(round: int, parent: Digest) -> Sequence[Supply]:
    values = (
        Value(round=round, parent=parent, reports=(), joined=(), departed=(), plan=hashed(parent, index))
        for index in range(UNASKED_VALUES)
    )
    return tuple(Supply(parent=parent, value=value) for value in values)


def invents_beats(at: Aim) -> Sequence[object]:
    """Send hearsay about lives that never were, in leaps, and a head that nobody has; the same in a refusal."""
    roster = roster_of(at.plan)
    head = Head(round=at.plan.round + 50, digest=hashed("forged", at.plan.round), samples=10**12)
    leaps = (
        beat(at, head=head, heard=tuple(0 if peer == at.victim else leap * BEATS_PER_INCARNATION for peer in roster))
        for leap in (2, 99_000, 198_000)
    )
    alive = tuple((peer, 99_000 * BEATS_PER_INCARNATION) for peer in roster)
    ballot = Ballot(attempt=0, peer=at.victim)
    return (*leaps, Refusal(parent=at.head.digest, ballot=ballot, promised=None, alive=alive))


def says_farewell_for_others(at: Aim) -> Sequence[object]:
    """Send a leave message in the name of a member, with a signature of one's own."""
    named = at.port.random.choice(roster_of(at.plan))
    leave = Leave(peer=named, run=at.plan.run, beat=10**15, signature="")
    return (replace(leave, signature=at.port.sign(at.me, leave.payload)),)


def begins_ballots(at: Aim) -> Sequence[object]:
    parent, ballot = at.head.digest, Ballot(attempt=1 << 40, peer=at.me)
    absent = tuple(peer for peer in roster_of(at.plan) if peer != at.victim)
    return (
        Prepare(parent=parent, ballot=ballot, absent=absent),
        Promise(parent=parent, ballot=ballot, accepted=None),
        Ack(parent=parent, ballot=ballot, value=hashed("no value")),
    )


def meddles_with_averages(at: Aim) -> Sequence[object]:
    """Send messages about averages of instances and rounds in which the sender has no part, and a message that it has ended the
    run."""
    instance = at.port.random.choice(at.plan.instances).instance
    round, members = at.plan.round, roster_of(at.plan)
    return (
        AverageDigest(instance=instance, round=round, attempt=0, contributors=members, digest=hashed("forged")),
        AttemptFailed(instance=instance, round=round, attempt=0, suspects=members),
        AttemptStart(instance=instance, round=round, attempt=7, members=members[:1]),
        AttemptStart(instance=InstanceId(63), round=round + 1000, attempt=0, members=members),
        RunComplete(plan=at.head.digest),
    )


def _ghost(name: str) -> PeerId:
    return PeerId(name.ljust(identities.NAME_CHARS, "-"))


def floods_the_door(at: Aim) -> Sequence[object]:
    """Send join requests of names that do not exist, which nobody signed."""
    unsigned = join_request(at.me, _sign(at), at.plan, beat=1)
    joins = tuple(
        replace(unsigned, peer=_ghost(f"{at.port.random.randrange(10**9)}"), signature="0" * 128) for _ in range(FORGED_JOINS)
    )
    return (beat(at, joins=joins),)


@dataclass(slots=True)
class Flood:
    """A deed of several heartbeats with signed join requests of ever new names."""

    beats: int
    num_names: int = 0

    def __call__(self, at: Aim) -> Sequence[object]:
        return tuple(beat(at, joins=tuple(self._request(at) for _ in range(FORGED_JOINS))) for _ in range(self.beats))

    def _request(self, at: Aim) -> JoinRequest:
        self.num_names += 1
        name = _ghost(f"ghost{self.num_names:06d}")
        return join_request(name, partial(identities.sign, name), at.plan, beat=10**7)


def pulls_and_pings(at: Aim) -> Sequence[object]:
    """Send small questions with large answers, for oneself and through others."""
    ping = Ping(target=at.victim, is_relayed=False)
    relayed = Ping(target=at.port.random.choice(roster_of(at.plan)), is_relayed=True)
    return (*[PullEntries(locator=(at.ledger.digests[0],))] * 10, *[ping] * 5, *[relayed] * 5, beat(at))


def breaks_collections(at: Aim) -> Sequence[object]:
    """Send entries that leave the victim's ledger somewhere and are worth nothing."""
    if len(at.ledger.entries) < 2:
        return ()
    entry = at.port.random.choice(at.ledger.entries)
    worthless = replace(entry, plan=replace(entry.plan, reason="worthless"), value=replace(entry.value, plan=hashed(entry)))
    return (Entries(entries=(worthless,)),)


ALL: tuple[Deed, ...] = (
    takes_over,
    supplies_unasked_values,
    invents_beats,
    says_farewell_for_others,
    begins_ballots,
    meddles_with_averages,
    floods_the_door,
    pulls_and_pings,
    breaks_collections,
)
"""The deeds that need no more than the ledger."""


def beat(at: Aim, *, head: Head | None = None, heard: tuple[int, ...] = (), joins: tuple[JoinRequest, ...] = ()) -> Heartbeat:
    """Return a heartbeat of the stranger, which has the newest roster."""
    count = BEATS_PER_INCARNATION + int(1000 * at.port.now())
    return Heartbeat(beat=count, roster=at.head.digest, heard=heard, head=head or at.head, have=0, joins=joins)


def join_request(
    me: PeerId, sign: Callable[[bytes], str], plan: RoundPlan, *, beat: int, ticket: Ticket | ProofOfWork | None = None
) -> JoinRequest:
    """Return a signed join request. `plan`: the newest known one."""
    unsigned = JoinRequest(peer=me, run=plan.run, capacity=CAPACITY, beat=beat, round=plan.round, ticket=ticket, signature="")
    return replace(unsigned, signature=sign(unsigned.payload))
