"""Attacks for the adversary port: strangers that send whatever may hurt, and members that lie in one part of the protocol."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from adloco_p2p.core.agreement.membership import BEATS_PER_INCARNATION
from adloco_p2p.core.model import canonical
from adloco_p2p.core.model.ledger_entry import Ballot, CastVote, Certificate, Head, JoinRequest, LedgerEntry, Value, Vote
from adloco_p2p.core.model.messages import (
    Ack,
    AttemptFailed,
    AttemptStart,
    AverageDigest,
    Entries,
    Final,
    Heartbeat,
    Leave,
    Prepare,
    Promise,
    PullEntries,
    RunComplete,
)
from adloco_p2p.core.model.types import Digest, InstanceId, PeerId, RoundPlan, roster_of
from adloco_p2p.sim.adversary import AdversaryPort
from adloco_p2p.sim.device import hashed
from adloco_p2p.sim.machine import Machine
from adloco_p2p.sim.synthetic_reports import CAPACITY

FORGED_JOINS = 16
"""Join requests in one forged heartbeat."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Aim:
    """One attack: by which identity, on whom, after which plan."""

    port: AdversaryPort
    me: PeerId
    victim: PeerId
    plan: RoundPlan


class Strangers:
    """Identities without a seat. They learn the ledger as anybody can, and forge everything that a stranger can send."""

    def __init__(self, num_names: int = 3) -> None:
        self.num_names = num_names
        self.num_sent = 0
        self._head: RoundPlan | None = None

    def received(self, port: AdversaryPort, me: PeerId, sender: PeerId, message: object) -> None:
        del port, me, sender
        if isinstance(message, Entries):
            for entry in message.entries:
                if self._head is None or entry.plan.round > self._head.round:
                    self._head = entry.plan

    def wakes(self, port: AdversaryPort) -> None:
        victims = port.victims()
        if not victims:
            return
        me, victim = port.random.choice(port.names), port.random.choice(victims)
        plan = self._head or port.genesis
        forge = port.random.choice((self._entry, self._beats, self._farewell, self._ballots, self._averages, self._flood))
        for message in [
            PullEntries(locator=(canonical.digest_once(plan),)),
            *forge(_Aim(port=port, me=me, victim=victim, plan=plan)),
        ]:
            self.num_sent += 1
            port.send(me, victim, message)

    def _entry(self, at: _Aim) -> Sequence[object]:
        """A ledger entry that calls the whole roster absent, and its author the heir; the same as a final value."""
        parent, roster = canonical.digest_once(at.plan), roster_of(at.plan)
        stolen = replace(at.plan, round=at.plan.round + 1, parent=parent, reason="taken over")
        value = Value(
            round=stolen.round,
            parent=parent,
            reports=(),
            joined=(_request(at.port, at.me, beat=1),),
            departed=roster,
            plan=canonical.digest(stolen),
        )
        vote = Vote(
            peer=at.me,
            parent=parent,
            ballot=Ballot(attempt=1, peer=at.me),
            absent=roster,
            value=canonical.digest(value),
            abstains=False,
            signature="",
        )
        cast = CastVote(peer=at.me, abstains=False, signature=at.port.sign(at.me, vote.payload))
        certificate = Certificate(ballot=vote.ballot, absent=roster, votes=(cast,))
        entry = LedgerEntry(plan=stolen, value=value, reports=(), certificate=certificate)
        final = Final(parent=parent, value=vote.value, certificate=certificate)
        return (Entries(entries=(entry,)), replace(vote, signature=cast.signature), final)

    def _beats(self, at: _Aim) -> Sequence[object]:
        """Hearsay about lives that never were, and a head that nobody has."""
        beats = tuple(99_000 * BEATS_PER_INCARNATION for _ in at.plan.roster)
        head = Head(round=at.plan.round + 50, digest=hashed("forged", at.plan.round), samples=10**12)
        return (Heartbeat(beat=BEATS_PER_INCARNATION, roster=canonical.digest_once(at.plan), heard=beats, head=head, have=0),)

    def _farewell(self, at: _Aim) -> Sequence[object]:
        """In the name of a member, with a signature of one's own."""
        named = at.port.random.choice(roster_of(at.plan))
        leave = Leave(peer=named, run=at.plan.run, beat=10**15, signature="")
        return (replace(leave, signature=at.port.sign(at.me, leave.payload)),)

    def _ballots(self, at: _Aim) -> Sequence[object]:
        parent, ballot = canonical.digest_once(at.plan), Ballot(attempt=1 << 40, peer=at.me)
        absent = tuple(peer for peer in roster_of(at.plan) if peer != at.victim)
        return (
            Prepare(parent=parent, ballot=ballot, absent=absent),
            Promise(parent=parent, ballot=ballot, accepted=None),
            Ack(parent=parent, ballot=ballot, value=hashed("no value")),
        )

    def _averages(self, at: _Aim) -> Sequence[object]:
        """About averages, of instances and rounds that the sender has no part in; and that it has ended the run."""
        instance = at.port.random.choice(at.plan.instances).instance
        round, members = at.plan.round, roster_of(at.plan)
        return (
            AverageDigest(instance=instance, round=round, attempt=0, contributors=members, digest=hashed("forged")),
            AttemptFailed(instance=instance, round=round, attempt=0, suspects=members),
            AttemptStart(instance=instance, round=round, attempt=7, members=members[:1]),
            AttemptStart(instance=InstanceId(63), round=round + 1000, attempt=0, members=members),
            RunComplete(),
        )

    def _flood(self, at: _Aim) -> Sequence[object]:
        """Join requests of names that do not exist, which nobody signed."""
        unsigned = _request(at.port, at.me, beat=1)
        joins = tuple(
            replace(unsigned, peer=PeerId(f"{at.port.random.randrange(10**9)}".ljust(52, "-")), signature="0" * 128)
            for _ in range(FORGED_JOINS)
        )
        head = Head(round=at.plan.round, digest=canonical.digest_once(at.plan), samples=0)
        return (Heartbeat(beat=1, roster=Digest("0" * 64), heard=(), head=head, have=0, joins=joins),)


def _request(port: AdversaryPort, me: PeerId, *, beat: int) -> JoinRequest:
    unsigned = JoinRequest(peer=me, run=port.genesis.run, capacity=CAPACITY, beat=beat, signature="")
    return replace(unsigned, signature=port.sign(me, unsigned.payload))


# --- members ---------------------------------------------------------------------------------------------------------


def lies_about_averages(machine: Machine, peer: PeerId, message: object) -> Sequence[tuple[float, object]]:
    """Names another average to each host, and never the one that it holds."""
    if isinstance(message, AverageDigest):
        return ((0.0, replace(message, digest=hashed(machine.peer, peer, message.round, message.attempt))),)
    return ((0.0, message),)


def withholds_its_votes(machine: Machine, peer: PeerId, message: object) -> Sequence[tuple[float, object]]:
    """Takes part in everything but the agreement: no promise, ack or vote arrives, the rest late."""
    del machine, peer
    return () if isinstance(message, Promise | Ack | Vote) else ((0.2, message),)


def accuses_all(machine: Machine, peer: PeerId, message: object) -> Sequence[tuple[float, object]]:
    """Claims with every vote about an average that the attempt has failed because of all others."""
    if isinstance(message, AverageDigest):
        others = tuple(name for name in message.contributors if name != machine.peer)
        failed = AttemptFailed(instance=message.instance, round=message.round, attempt=message.attempt, suspects=others)
        return ((0.0, failed), (0.0, message))
    del peer
    return ((0.0, message),)
