"""Attacks of members that have a seat, run the product, and depart from the protocol in one part of it.

A strategy gets every message that the member's peer would send, and returns what the member sends instead, and how much later.
The last section changes a member's own reports before it signs them. Docstrings of strategies say what the member does.
"""

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from random import Random

from adloco_p2p.core.agreement.consensus import Consensus
from adloco_p2p.core.agreement.gossip_agreement import GossipAgreement
from adloco_p2p.core.agreement.membership import BEATS_PER_INCARNATION
from adloco_p2p.core.agreement.report_pool import MAX_VERSIONS
from adloco_p2p.core.ledger.validation import change_of
from adloco_p2p.core.model import canonical
from adloco_p2p.core.model.branches import MAX_BRANCHES, BranchState
from adloco_p2p.core.model.certificate import Ballot
from adloco_p2p.core.model.ledger_entry import Head, JoinRequest, LedgerEntry, SignedReport, Value, Vote
from adloco_p2p.core.model.lineage import ProbeVerdict
from adloco_p2p.core.model.messages import (
    NO_AVERAGE,
    Ack,
    AttemptFailed,
    AttemptStart,
    AverageDigest,
    Chosen,
    Entries,
    Final,
    Heartbeat,
    Leave,
    Prepare,
    Promise,
    Proposal,
    Pull,
    RunComplete,
    Supply,
)
from adloco_p2p.core.model.plan import REPORT_LAG, RoundPlan
from adloco_p2p.core.model.report import Report
from adloco_p2p.core.model.scalars import MAX_BALLOT_JUMP, MAX_INSTANCES, Digest, InstanceId, PeerId
from adloco_p2p.sim.adversary import Outgoing, Sent, at_once
from adloco_p2p.sim.device import hashed
from adloco_p2p.sim.identities import sign, signed_by, verify
from adloco_p2p.sim.machine import Machine
from adloco_p2p.sim.synthetic_reports import CAPACITY
from benchmarks.adversary.strangers import forged_history, lone_entry, unasked_values

DEAD_STATE = Digest("0" * 60 + "dead")
"""A state that only the liar has."""


def with_heartbeats(makes: Callable[[Machine, GossipAgreement, PeerId], Sent]) -> Outgoing:
    """Make a strategy that adds messages for the receiver to each heartbeat, and otherwise follows the protocol."""

    def sends(machine: Machine, peer: PeerId, message: object) -> Sent:
        if not isinstance(message, Heartbeat) or machine.process is None:
            return at_once(message)
        return (*at_once(message), *makes(machine, machine.process.agreement, peer))

    return sends


def as_proposer(changes: Callable[[Machine, Consensus, Value], Value]) -> Outgoing:
    """Make a strategy that changes the value where the member proposes, with the plan that follows from it by the rule."""

    def sends(machine: Machine, _peer: PeerId, message: object) -> Sent:
        if not isinstance(message, Proposal) or message.ballot.peer != machine.peer or machine.process is None:
            return at_once(message)
        consensus = machine.process.agreement.consensus
        value = changes(machine, consensus, message.value)
        reports = [signed.report for signed in consensus.values.reports(value.reports)]
        return at_once(signed_by(machine.peer, replace(message, value=_planned(machine, value, reports))))

    return sends


def together(*strategies: Outgoing) -> Outgoing:
    """Make a strategy that passes every message through all of these, one after the other."""

    def sent(machine: Machine, peer: PeerId, message: object) -> Sent:
        messages: list[tuple[float, object]] = [(0.0, message)]
        for strategy in strategies:
            messages = [
                (before + after, other) for before, known in messages for after, other in strategy(machine, peer, known)
            ]
        return messages

    return sent


def plan_of(machine: Machine, round: int) -> Digest | None:
    """Return the digest of the plan of a round, as the machine has it."""
    assert machine.process is not None
    ledger = machine.process.agreement.ledger
    digests = ledger.digests[-len(ledger.plans) :]
    return next((digest for plan, digest in zip(ledger.plans, digests, strict=True) if plan.round == round), None)


def _planned(machine: Machine, value: Value, reports: Sequence[Report]) -> Value:
    """Return the value with the plan that follows from it by the rule."""
    assert machine.process is not None
    ledger = machine.process.agreement.ledger
    plan = machine.decide(ledger.plans[-1], tuple(reports), change_of(value, reports, ledger, verify))
    return replace(value, plan=canonical.digest(plan))


def _contributors(plans: Iterable[RoundPlan]) -> list[tuple[InstanceId, int, tuple[PeerId, ...]]]:
    """Return instance, round and contributing hosts of each average that these plans ask for."""
    return [
        (item.instance, plan.round, tuple(share.peer for share in item.hosts if share.contributes(plan.round)))
        for plan in plans
        for item in plan.instances
    ]


# --- averages --------------------------------------------------------------------------------------------------------


def lies_about_averages(machine: Machine, peer: PeerId, message: object) -> Sent:
    """Name another average to each host, and never the one that the member holds."""
    if isinstance(message, AverageDigest):
        return at_once(replace(message, digest=hashed(machine.peer, peer, message.round, message.attempt)))
    return at_once(message)


def signs_two_votes(machine: Machine, peer: PeerId, message: object) -> Sent:
    """Send two votes about one average, both correctly signed; each host receives another one first."""
    if not isinstance(message, AverageDigest) or message.is_void or not message.signature or machine.process is None:
        return at_once(message)
    plan = plan_of(machine, message.round)
    if plan is None:
        return at_once(message)
    other = replace(message, digest=hashed("another", message.round), backers=())
    other = replace(other, signature=sign(machine.peer, other.payload(plan, machine.peer)))
    return at_once(*((message, other) if int(hashed(peer), 16) % 2 else (other, message)))


def accuses_all(machine: Machine, _peer: PeerId, message: object) -> Sent:
    """Claim with every vote about an average that the attempt has failed because of all others."""
    if isinstance(message, AverageDigest):
        others = tuple(name for name in message.contributors if name != machine.peer)
        failed = AttemptFailed(instance=message.instance, round=message.round, attempt=message.attempt, suspects=others)
        return at_once(failed, message)
    return at_once(message)


@with_heartbeats
def accuses_one_after_another(machine: Machine, agreement: GossipAgreement, _peer: PeerId) -> Sent:
    """Report for every attempt that it failed because of a minority, another one each time (review B8)."""
    plan = agreement.ledger.plans[-1]
    return at_once(
        *(
            AttemptFailed(instance=item.instance, round=plan.round - back, attempt=number, suspects=(name,))
            for item in plan.instances
            for number, name in enumerate(share.peer for share in item.hosts if share.peer != machine.peer)
            for back in (0, 1)
        )
    )


def ends_every_attempt(*, suspects: int = 0, is_led: bool = False) -> Outgoing:
    """Report ten times a second that the attempt under way has failed. The report names nobody, or other hosts in turn: as
    suspects, or as the host whose report ended the attempt for the member (`is_led`)."""

    @with_heartbeats
    def sends(machine: Machine, agreement: GossipAgreement, _peer: PeerId) -> Sent:
        plan, sent = agreement.ledger.plans[-1], list[tuple[float, object]]()
        for tenth in range(10):
            number = int(10 * machine.clock()) + tenth
            for item in plan.instances:
                others = [share.peer for share in item.hosts if share.peer != machine.peer]
                turn = [others[(number + place) % len(others)] for place in range(suspects or 1)]
                failed = AttemptFailed(
                    instance=item.instance,
                    round=plan.round,
                    attempt=number % 3,
                    suspects=tuple(turn[:suspects]),
                    because=turn[0] if is_led else None,
                )
                sent += [(tenth / 10, failed), (tenth / 10, replace(failed, round=plan.round - 1))]
        return sent

    return sends


def ends_every_attempt_for_one_host(machine: Machine, peer: PeerId, message: object) -> Sent:
    """Report failed attempts to one host only, whose report then ends them for the others."""
    if machine.process is None:
        return at_once(message)
    others = (entry.peer for entry in machine.process.agreement.ledger.plans[-1].roster if entry.peer != machine.peer)
    return ends_every_attempt()(machine, peer, message) if peer == min(others) else at_once(message)


@with_heartbeats
def contributes_other_steps(machine: Machine, agreement: GossipAgreement, _peer: PeerId) -> Sent:
    """State another number of contributed inner steps, which ends an attempt."""
    now, sent = machine.clock(), list[tuple[float, object]]()
    for plan in agreement.ledger.plans[-2:]:
        for item in plan.instances:
            steps = item.least_steps + int(10 * now) % max(1, item.hosts[0].inner_steps - item.least_steps)
            failed = AttemptFailed(
                instance=item.instance, round=plan.round, attempt=int(now) % 3, suspects=(), partial_steps=steps
            )
            sent += [(tenth / 10, failed) for tenth in range(0, 10, 3)]
    return sent


@with_heartbeats
def starts_attempts(machine: Machine, agreement: GossipAgreement, _peer: PeerId) -> Sent:
    """Begin every attempt anew, with a higher number, with all hosts (review B8)."""
    plan, number = agreement.ledger.plans[-1], int(10 * machine.clock()) % 10**6
    return at_once(
        *(
            AttemptStart(
                instance=item.instance,
                round=plan.round - back,
                attempt=number,
                members=tuple(share.peer for share in item.hosts if share.samples > 0),
            )
            for item in plan.instances
            for back in (0, 1)
        )
    )


def starts_attempts_after_claims(machine: Machine, peer: PeerId, message: object) -> Sent:
    """Begin every attempt anew, and before each start claim that later ones have failed, once as a question."""
    sent = list(starts_attempts(machine, peer, message))
    claims = [
        AttemptFailed(instance=start.instance, round=start.round, attempt=start.attempt + ahead, suspects=(), is_question=asks)
        for _, start in sent
        if isinstance(start, AttemptStart)
        for ahead, asks in ((0, True), (50, True), (1000, False), (1 << 19, False))
    ]
    return [*at_once(*claims), *sent]


@with_heartbeats
def invents_completions(_machine: Machine, agreement: GossipAgreement, _peer: PeerId) -> Sent:
    """Start attempts, while the others train, that complete a decision that was never made, so that all object."""
    never = Digest("0" * 64)
    return at_once(
        *(
            AttemptStart(instance=instance, round=round, attempt=1, members=hosts, completes=never)
            for instance, round, hosts in _contributors(agreement.ledger.plans[-3:])
        )
    )


@with_heartbeats
def starts_with_nobody(_machine: Machine, agreement: GossipAgreement, _peer: PeerId) -> Sent:
    """Start attempts that name a host, or the steps of a host, that the plan does not have."""
    nobody, starts = PeerId("nobody"), list[AttemptStart]()
    for instance, round, hosts in _contributors(agreement.ledger.plans[-2:]):
        start = AttemptStart(instance=instance, round=round, attempt=1, members=(*hosts, nobody))
        starts += [start, replace(start, members=hosts, partial_steps=((nobody, 1),))]
    return at_once(*starts)


def parts_attempts(*, alone: bool = False) -> Outgoing:
    """Send each host the start of an attempt of its own, with another number, to which no other host comes. It names all hosts,
    or (`alone`) the liar and that host."""

    @with_heartbeats
    def sends(machine: Machine, agreement: GossipAgreement, peer: PeerId) -> Sent:
        starts = []
        for instance, round, hosts in _contributors(agreement.ledger.plans[-2:]):
            if peer not in hosts or machine.peer not in hosts:
                continue
            named = tuple(host for host in hosts if not alone or host in (peer, machine.peer))
            number = 1 + 12 * hosts.index(peer) + int(machine.clock()) % 10
            starts.append(AttemptStart(instance=instance, round=round, attempt=number, members=named))
        return at_once(*starts)

    return sends


@with_heartbeats
def leaves_each_out(machine: Machine, agreement: GossipAgreement, peer: PeerId) -> Sent:
    """Send each host, again and again, the start of an attempt of the others without it."""
    number, sent = 1 + int(machine.clock()) % 60, list[tuple[float, object]]()
    for instance, round, hosts in _contributors(agreement.ledger.plans[-2:]):
        others = tuple(host for host in hosts if host != peer)
        start = AttemptStart(instance=instance, round=round, attempt=number, members=others)
        sent += [(0.0, start), (0.5, replace(start, attempt=number + 1))]
    return sent


def votes_void(machine: Machine, _peer: PeerId, message: object) -> Sent:
    """Vote for no average, correctly signed, every time."""
    if not isinstance(message, AverageDigest) or machine.process is None:
        return at_once(message)
    plan = plan_of(machine, message.round)
    if plan is None:
        return ()
    void = replace(message, contributors=(), digest=NO_AVERAGE, backers=())
    return at_once(replace(void, signature=sign(machine.peer, void.payload(plan, machine.peer))))


@with_heartbeats
def _accuses_a_minority(machine: Machine, agreement: GossipAgreement, _peer: PeerId) -> Sent:
    """Report that the first attempt failed because of as many hosts as may be left out."""
    sent = []
    for instance, round, hosts in _contributors(agreement.ledger.plans[-2:]):
        others = [host for host in hosts if host != machine.peer][: (len(hosts) - 1) // 2]
        if others and machine.peer in hosts:
            sent.append(AttemptFailed(instance=instance, round=round, attempt=0, suspects=tuple(others)))
    return at_once(*sent)


def accuses_and_votes_void(machine: Machine, peer: PeerId, message: object) -> Sent:
    """Accuse a minority of the hosts, and vote for no average once that has ended the first attempt. Without the accused and
    the liar the others are too few to commit an average."""
    if isinstance(message, AttemptFailed | AttemptStart):
        void = AverageDigest.void(message.instance, message.round)
        return tuple((0.3, vote) for _, vote in votes_void(machine, peer, void))
    voting = isinstance(message, AverageDigest)
    return votes_void(machine, peer, message) if voting else _accuses_a_minority(machine, peer, message)


def hands_out_different_averages(host: PeerId, average: object) -> object:
    return hashed("for", host, average)


def hands_out_two_averages(host: PeerId, average: object) -> object:
    """Hand out one average to every other host."""
    return hashed("one of two", average) if int(hashed(host), 16) % 2 else average


# --- the agreement ---------------------------------------------------------------------------------------------------


def withholds_its_votes(_machine: Machine, _peer: PeerId, message: object) -> Sent:
    """Take part in everything but the agreement: promises, acks and votes never arrive, and other messages arrive late."""
    return () if isinstance(message, Promise | Ack | Vote) else ((0.2, message),)


def answers_late(machine: Machine, _peer: PeerId, message: object) -> Sent:
    """Send everything but heartbeats shortly before others lose their patience."""
    seconds = 0.9 * machine.process.agreement.members.timing.attempt_seconds if machine.process is not None else 0.0
    return ((0.0 if isinstance(message, Heartbeat) else seconds, message),)


@with_heartbeats
def takes_over_alone(machine: Machine, agreement: GossipAgreement, _peer: PeerId) -> Sent:
    """Send an entry with the member's own vote only, since all others were absent (review A1)."""
    ledger, messages = agreement.ledger, list[object]()
    for departs in () if ledger.plans[-1].is_last else (False, True):
        entry, vote = lone_entry(machine.peer, _sign(machine), ledger, machine.decide, departs=departs)
        final = Final(parent=vote.parent, value=vote.value, certificate=entry.certificate)
        messages += [Entries(entries=(entry,)), final, vote, Supply(parent=vote.parent, value=entry.value)]
    return at_once(*messages)


def forges_history(machine: Machine, _peer: PeerId, message: object) -> Sent:
    """Send a chain of its own from the first plan on, with a head that claims a billion samples (review A2)."""
    if not isinstance(message, Heartbeat) or machine.process is None:
        return at_once(message)
    entries = _forged_entries(machine)
    head = Head(round=entries[-1].plan.round, digest=entries[-1].value.plan, samples=10**9)
    return at_once(message, replace(message, head=head), Entries(entries=tuple(entries)))


@lru_cache(maxsize=1)
def _forged_entries(machine: Machine) -> Sequence[LedgerEntry]:
    return forged_history(machine.peer, _sign(machine), machine.genesis, machine.decide)


@with_heartbeats
def supplies_unasked_values(_machine: Machine, agreement: GossipAgreement, _peer: PeerId) -> Sent:
    """Supply values that nobody asked for (review A3)."""
    slot = agreement.consensus.slot
    return at_once(*unasked_values(slot.round, slot.digest))


def invents_beats(_machine: Machine, _peer: PeerId, message: object) -> Sent:
    """Send hearsay in leaps, and the largest possible beat of its own (review A4)."""
    if not isinstance(message, Heartbeat):
        return at_once(message)
    leaps = [
        replace(message, heard=tuple(beat + leap * BEATS_PER_INCARNATION for beat in message.heard)) for leap in (1, 99_000)
    ]
    return at_once(*leaps, message)


def lies_about_time(machine: Machine, _peer: PeerId, message: object) -> Sent:
    """Let beats run backwards and forwards, name an old head, and send messages a second late."""
    if not isinstance(message, Heartbeat) or machine.process is None:
        return at_once(message)
    ledger = machine.process.agreement.ledger
    old = Head(round=0, digest=ledger.digests[0], samples=0)
    return ((0.0, replace(message, beat=message.beat + 5000)), (1.0, replace(message, head=old)), (2.0, message))


def proposes_alone(machine: Machine, _peer: PeerId, message: object) -> Sent:
    """Begin a ballot as soon as possible, at once in every slot, with an invented report and no other (B1, B2)."""
    if isinstance(message, Proposal) and message.ballot.peer == machine.peer:
        return ()
    if not isinstance(message, Heartbeat | Supply | Promise | Ack) or machine.process is None:
        return at_once(message)
    slot = machine.process.agreement.consensus.slot
    return at_once(*_lone_proposal(machine, slot.digest), message)


@lru_cache(maxsize=64)
def _lone_proposal(machine: Machine, digest: Digest) -> Sequence[object]:
    """Return the messages for the slot under way, which has this digest; the same for all members."""
    assert machine.process is not None
    slot = machine.process.agreement.consensus.slot
    if slot.ledger.reported is None or slot.parent.is_last:
        return ()
    own = [item for item in machine.reported if item.round == slot.round - REPORT_LAG][-1:]
    made_up = Report(
        peer=machine.peer,
        round=slot.round - REPORT_LAG,
        plan=slot.ledger.digests[-REPORT_LAG],
        capacity=CAPACITY,
        instances=tuple(replace(item, state_digest=DEAD_STATE) for report in own for item in report.instances),
    )
    signed = signed_by(machine.peer, SignedReport(report=made_up, signature=""))
    reports = (canonical.digest(signed),)
    value = Value(round=slot.round, parent=digest, reports=reports, joined=(), departed=(), plan=Digest(""))
    value = _planned(machine, value, (made_up,))
    ballot = Ballot(attempt=1, peer=machine.peer)
    proposal = signed_by(machine.peer, Proposal(ballot=ballot, absent=(), value=value, signature=""))
    return (Prepare(parent=digest, ballot=ballot, absent=()), Supply(parent=digest, value=value, reports=(signed,)), proposal)


def starves(victim: PeerId) -> Outgoing:
    """Make a strategy that starves one host: as a proposer the member leaves out that host's reports, and it sends the host
    almost nothing but heartbeats."""

    @as_proposer
    def without(_machine: Machine, consensus: Consensus, value: Value) -> Value:
        reports = [signed for signed in consensus.values.reports(value.reports) if signed.report.peer != victim]
        return replace(value, reports=tuple(canonical.digest_once(signed) for signed in reports))

    def sends(machine: Machine, peer: PeerId, message: object) -> Sent:
        is_kept_back = peer == victim and not isinstance(message, Heartbeat | Entries | AverageDigest)
        return () if is_kept_back else without(machine, peer, message)

    return sends


def overtakes_ballots(machine: Machine, _peer: PeerId, message: object) -> Sent:
    """Answer every ballot with one of its own, one attempt higher, and then send nothing (review B8)."""
    if not isinstance(message, Promise | Vote | Ack | Heartbeat) or machine.process is None:
        return at_once(message)
    consensus = machine.process.agreement.consensus
    promised = consensus.acceptor.promised
    attempt = promised.attempt + 1 if promised is not None else 1
    prepare = Prepare(parent=consensus.slot.digest, ballot=Ballot(attempt=attempt, peer=machine.peer), absent=())
    return at_once(prepare, message) if isinstance(message, Heartbeat) else at_once(prepare)


def _begins_no_ballot(strategy: Outgoing) -> Outgoing:
    """Make the same strategy without the member's own proposals and ballots."""

    def sends(machine: Machine, peer: PeerId, message: object) -> Sent:
        is_own = isinstance(message, Prepare | Proposal) and message.ballot.peer == machine.peer
        return () if is_own else strategy(machine, peer, message)

    return sends


@_begins_no_ballot
@with_heartbeats
def parts_ballots(machine: Machine, agreement: GossipAgreement, peer: PeerId) -> Sent:
    """Raise the ballots that the others have promised to numbers too far apart for the next to hear of the one before: nobody
    can begin a ballot that is higher than all and that all consider possible."""
    slot = agreement.consensus.slot
    roster = [name for name in slot.roster if name != machine.peer]
    steps = 2 * roster.index(peer) if peer in roster else 0
    ballots = [Ballot(attempt=step * MAX_BALLOT_JUMP, peer=machine.peer) for step in range(1, steps + 1)]
    return at_once(*(Prepare(parent=slot.digest, ballot=ballot, absent=()) for ballot in ballots))


def parts_proposals(*, is_announced: bool = False) -> Outgoing:
    """Make a strategy that raises what the others have promised before they propose, and then sends each member proposals of
    its own, of ever higher ballots, so that none has the acks of a majority. `is_announced`: it also claims for each proposal
    that it has them."""

    @_begins_no_ballot
    @with_heartbeats
    def sends(machine: Machine, agreement: GossipAgreement, peer: PeerId) -> Sent:
        consensus = agreement.consensus
        roster = [name for name in consensus.slot.roster if name != machine.peer]
        if peer not in roster or consensus.slot.parent.is_last:
            return ()

        def ballot(seconds: float) -> Ballot:
            """Return the highest ballot that honest members consider possible."""
            open_seconds = machine.clock() + seconds - consensus._opened_at
            return Ballot(attempt=MAX_BALLOT_JUMP // 2 + int(1000 * open_seconds) + roster.index(peer), peer=machine.peer)

        sent = list(at_once(Prepare(parent=consensus.slot.digest, ballot=ballot(0.0), absent=())))
        values = consensus.values
        if not values.held or len(values.held) < len(values.reporters) - 1:
            return sent
        value = values.make(joined=(), absent=())
        for number in range(20):
            seconds = 0.06 * number
            proposal = Proposal(ballot=ballot(seconds + 0.01), absent=(), value=value, signature="")
            sent.append((seconds, signed_by(machine.peer, proposal)))
            chosen = Chosen(parent=proposal.parent, ballot=proposal.ballot, value=canonical.digest_once(value), signature="")
            if is_announced:
                sent.append((seconds + 0.001, signed_by(machine.peer, chosen)))
        return sent

    return sends


def reports_otherwise_to_each(machine: Machine, peer: PeerId, message: object) -> Sent:
    """Send each member as many versions of its report as are kept unasked, each to one member only."""
    own = [s for s in message.reports if s.report.peer == machine.peer] if isinstance(message, Supply) else []
    if not own or not isinstance(message, Supply):
        return at_once(message)
    made, place = [], int(hashed(peer)[:8], 16)
    for number in range(MAX_VERSIONS):
        offered = replace(own[0].report.capacity, download_bytes_per_second=float(1 + place + number))
        made.append(signed_by(machine.peer, SignedReport(report=replace(own[0].report, capacity=offered), signature="")))
    others = [signed for signed in message.reports if signed not in own]
    return at_once(replace(message, reports=(*made, *others)))


@as_proposer
def evicts_the_living(machine: Machine, consensus: Consensus, value: Value) -> Value:
    """Take live members off the roster (review B9)."""
    return replace(value, departed=tuple(name for name in consensus.slot.roster if name != machine.peer)[:2])


def seats(*requests: JoinRequest) -> Outgoing:
    """Make a strategy that proposes join requests of peers that asked once and are gone (review B11)."""

    @as_proposer
    def seated(_machine: Machine, consensus: Consensus, value: Value) -> Value:
        return replace(value, joined=tuple(request for request in requests if request.peer not in consensus.slot.roster))

    return seated


def votes_for_both(machine: Machine, _peer: PeerId, message: object) -> Sent:
    """Accept and vote in every slot both for what the member is asked to and for a value of its own, correctly signed."""
    if not isinstance(message, Vote):
        return at_once(message)
    return at_once(message, signed_by(machine.peer, replace(message, value=hashed("another", message.parent))))


@dataclass
class Replays:
    """Sends again, round after round, its own earlier messages: of old slots, rounds, ballots and lives."""

    random: Random
    num_kept: int = 400
    _sent: deque[object] = field(default_factory=deque)

    def __call__(self, _machine: Machine, _peer: PeerId, message: object) -> Sent:
        self._sent.append(message)
        if len(self._sent) > self.num_kept:
            self._sent.popleft()
        return at_once(message, *self.random.sample(list(self._sent), min(3, len(self._sent))))


def comes_and_goes(machine: Machine, peer: PeerId, message: object) -> Sent:
    """Send a leave message and take it back, every few seconds, to some members only."""
    if not isinstance(message, Heartbeat) or int(machine.clock()) % 4 or int(hashed(peer), 16) % 2:
        return at_once(message)
    leave = Leave(peer=machine.peer, run=machine.genesis.run, beat=message.beat, signature="")
    return at_once(signed_by(machine.peer, leave), message)


def is_deaf_to(victim: PeerId) -> Outgoing:
    """Make a strategy that sends nothing at all to one member, and everything to the others."""
    return lambda _machine, peer, message: () if peer == victim else at_once(message)


def supplies_nothing(_machine: Machine, _peer: PeerId, message: object) -> Sent:
    """Propose and report in digests only: requests for the content behind them get no answer."""
    return () if isinstance(message, Supply) else at_once(message)


@with_heartbeats
def asks_for_everything(_machine: Machine, agreement: GossipAgreement, _peer: PeerId) -> Sent:
    """Pull the largest answers there are, again and again."""
    slot = agreement.consensus.slot
    everybody = (1 << len(slot.roster)) - 1
    pulls = [Pull(parent=parent, reporters=everybody) for parent in (slot.digest, slot.ledger.digests[0])]
    return at_once(*(pull for pull in pulls for _ in range(10)))


@with_heartbeats
def ends_the_run(_machine: Machine, agreement: GossipAgreement, _peer: PeerId) -> Sent:
    """Claim to have carried out the newest plan as the last one."""
    return at_once(RunComplete(plan=agreement.consensus.slot.digest))


def _sign(machine: Machine) -> Callable[[bytes], str]:
    return lambda payload: sign(machine.peer, payload)


# --- reports ---------------------------------------------------------------------------------------------------------


def names_a_small_state(report: Report) -> Report:
    """Name a state of its own, whose digest is smaller than any honest one (review B3)."""
    dead = DEAD_STATE
    return replace(report, instances=tuple(replace(item, state_digest=dead, digest=dead) for item in report.instances))


def names_many_branches(report: Report) -> Report:
    """Name as many lost histories as a report may, all with one state (review B4)."""
    branches = tuple(
        BranchState(
            fork=report.plan,
            fork_round=report.round,
            branch=hashed("branch", report.round, number),
            instance=InstanceId(0),
            round=report.round + 1,
            state=DEAD_STATE,
            samples=10**12,
        )
        for number in range(MAX_BRANCHES)
    )
    return replace(report, branches=branches)


def is_as_large_as_it_can_be(report: Report) -> Report:
    """Fill every list to the length that the border allows (review B10)."""
    verdict = ProbeVerdict(
        sources=tuple(InstanceId(number) for number in range(MAX_INSTANCES)),
        target=InstanceId(0),
        source_losses=(1e30,) * MAX_INSTANCES,
        merged_loss=1e30,
    )
    return replace(names_many_branches(report), verdict=verdict, instances=report.instances * 8)


EXTREMES = (0.0, -0.0, 5e-324, 1e-300, 1e-30, 1.0, 1e30)
"""Numbers that the border accepts wherever it accepts any."""
COUNTS = (0, 1, 1 << 31, 1 << 62)


@dataclass
class ReportsExtremes:
    """Replaces every number of a report by one of the least, or the largest, that the border accepts; drawn anew each round."""

    random: Random

    def __call__(self, report: Report) -> Report:
        number, count = (lambda: self.random.choice(EXTREMES)), (lambda: self.random.choice(COUNTS))
        capacity = replace(
            report.capacity,
            samples_per_second=number(),
            upload_bytes_per_second=number(),
            micro_batch_limit=max(1, count()),
            max_instances=max(1, count()),
        )
        instances = tuple(
            replace(
                item,
                samples=count(),
                tokens=count(),
                inner_steps=count(),
                batch_samples=count(),
                accumulation_steps=count(),
                train_seconds=number(),
                loss=number(),
                heldout_loss=number(),
                pseudo_gradient=item.pseudo_gradient
                and replace(item.pseudo_gradient, own_sqnorm=number(), inner_product=-number(), averaged_sqnorm=number()),
                half_batch=item.half_batch
                and replace(
                    item.half_batch,
                    num_steps=max(1, count()),
                    batch_samples=max(1, count()),
                    covariance_trace=-number(),
                    true_sqnorm=-number(),
                    mean_sqnorm=number(),
                    inner_variance=number(),
                    orthogonal_trace=number(),
                ),
            )
            for item in report.instances
        )
        return replace(report, capacity=capacity, instances=instances)


def claims_all_speed(report: Report) -> Report:
    """Claim the speed and the uplink of the fastest device that the border allows."""
    capacity = replace(report.capacity, samples_per_second=1e30, upload_bytes_per_second=1e30, micro_batch_limit=1 << 30)
    return replace(report, capacity=capacity)


def claims_no_speed(report: Report) -> Report:
    """Claim to be the slowest device that the border allows, so that everybody waits for it."""
    return replace(report, capacity=replace(report.capacity, samples_per_second=1e-300, upload_bytes_per_second=1e-300))
