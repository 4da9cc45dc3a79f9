"""The proposer of single-decree Paxos: when this peer begins a ballot, and the value that it proposes in it.

The order of a slot's proposers follows from a hash of its parent. The first may propose at once in ballot 0, which needs no
promises; if it stays silent, the next one takes over with a higher ballot. A proposer of a ballot above 0 repeats the value of
the highest ballot that its promises name. So once a majority acked a value, no majority that shares a member with it can choose
another value in this slot.
"""

from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import replace

from adloco_p2p.core.agreement.acceptor import Acceptor
from adloco_p2p.core.agreement.ballot_timer import BallotTimer
from adloco_p2p.core.agreement.dissemination import Dissemination
from adloco_p2p.core.agreement.learner import Learner
from adloco_p2p.core.agreement.slot import Context, Slot
from adloco_p2p.core.agreement.values import Values
from adloco_p2p.core.ledger.admission import newly_banned, seated_first
from adloco_p2p.core.ledger.orders import course_after
from adloco_p2p.core.ledger.validation import door_of, is_trained_after
from adloco_p2p.core.model import canonical
from adloco_p2p.core.model.certificate import Ballot, CastVote, Certificate
from adloco_p2p.core.model.course import is_paused_at
from adloco_p2p.core.model.electorate import is_majority
from adloco_p2p.core.model.ledger_entry import MAX_JOINS, Decree, JoinRequest, Value, payload
from adloco_p2p.core.model.messages import Prepare, Promise, Proposal, Refusal
from adloco_p2p.core.model.plan import keepers_of
from adloco_p2p.core.model.scalars import MAX_ROSTER, Digest, PeerId


class Proposer:
    """The proposer of one slot. Instants are seconds of the peer's own clock."""

    def __init__(
        self,
        context: Context,
        slot: Slot,
        *,
        acceptor: Acceptor,
        learner: Learner,
        values: Values,
        timer: BallotTimer,
        dissemination: Dissemination,
    ) -> None:
        self._context = context
        self._slot = slot
        self._acceptor = acceptor
        self._learner = learner
        self._values = values
        self._timer = timer
        self._dissemination = dissemination
        self._first_at: float | None = None
        """When the first of the awaited reports came."""
        self._majority_at: float | None = None
        """When the awaited reports of a majority were here."""
        self.ready_at: float | None = None
        """When enough reports were here to propose a value."""
        self._ballot: Ballot | None = None
        """This peer's own ballot."""
        self._absent: tuple[PeerId, ...] = ()
        """The members that do not count in the own ballot."""
        self._promises: dict[PeerId, Promise] = {}
        """The promises for the own ballot."""
        self._higher: dict[PeerId, Ballot] = {}
        """Members that refused the own ballot, with the higher ballots that they state to have promised."""
        self._promises_due = 0.0
        """When the promises of members that answer at once should have come."""
        self._has_proposed = False
        self._empty_since: float | None = None
        """When the whole roster had fallen silent, as seen by a peer that is not on it."""

    def named(self) -> Iterator[Digest]:
        """Yield the values that members accepted before, by their promises."""
        return (promise.accepted[1] for promise in self._promises.values() if promise.accepted is not None)

    # --- readiness ---------------------------------------------------------------------------------------------------

    def deadline(self, now: float) -> float | None:
        """Return when the slot must be looked at even if no message comes."""
        if not self._may_propose(now):
            return None
        if self.ready_at is not None:
            return self._due(self.ready_at, now)
        majority = self._majority_at
        graces = [self._values.grace_end(majority), self._values.return_end(majority)] if majority is not None else []
        graces += [self._values.stragglers_end(self._first_at)] if self._first_at is not None else []
        return min([instant for instant in graces if instant > now], default=None)

    def _note_reports(self, now: float) -> None:
        """Set `ready_at` once all awaited reports are here, or the missing ones have had their time. Only electors count for
        the majority; others are waited for, but not for long."""
        if self.ready_at is not None or self._is_paused():
            return
        held = self._values.held
        expected, deciding = self._values.expected(now)
        present = expected.intersection(held)
        if present:
            self._first_at = self._values.first_report(present, self._first_at, now)
        if self._majority_at is None and is_majority(len(deciding & present), len(deciding)):
            self._majority_at = now
        if self._majority_at is not None and self._values.awaits_return(self._majority_at, now):
            return
        if (
            len(present) == len(expected)
            or (self._majority_at is not None and now >= self._values.grace_end(self._majority_at))
            or (self._first_at is not None and now >= self._values.stragglers_end(self._first_at))
        ):
            self.ready_at = self._timer.ready_at = now

    def _is_paused(self) -> bool:
        """Return whether signers paused the run and no statement known here resumes it."""
        slot = self._slot
        if slot.parent.course.paused_from is None:
            return False
        pending = self._context.statements.pending(slot.ledger)
        return is_paused_at(course_after(slot.parent.course, pending, round=slot.round), slot.round)

    def _is_trained(self, now: float) -> bool:
        """Return whether a member that trains is alive and keeps its seat, or a newcomer that would train may be let in."""
        parent, members = self._slot.parent, self._context.members
        pending = self._context.statements.pending(self._slot.ledger)
        banned = newly_banned(pending, parent)
        if not keepers_of(parent) and not banned:
            return True
        gone = {*banned, *(peer for peer in self._slot.roster if members.is_absent(peer, now))}
        if is_trained_after(parent, gone, ()):
            return True
        door = door_of(self._slot.ledger, self._context.verify, statements=pending)
        return is_trained_after(parent, gone, [r.capacity for r in members.candidates(now) if not door.problem(r)])

    def _may_propose(self, now: float) -> bool:
        """Return whether this peer may propose: an elector may, others only if no elector is left. If only keepers are left,
        there is nothing to propose."""
        if not self._is_trained(now):
            return False
        slot, members = self._slot, self._context.members
        return self._context.me in slot.deciders or all(members.is_absent(peer, now) for peer in slot.electorate)

    def _due(self, ready_at: float, now: float) -> float:
        order = self._context.members.responsive(self._slot.order, now)
        return self._timer.turn(order, ready_at=ready_at, promised=self._acceptor.promised)

    # --- ballots -----------------------------------------------------------------------------------------------------

    def attempt(self, now: float) -> bool:
        """Begin a ballot if it is this peer's turn; return whether it did."""
        self._note_reports(now)
        if self.ready_at is None or not self._may_propose(now) or now < self._due(self.ready_at, now):
            return False
        slot, me, promised = self._slot, self._context.me, self._acceptor.promised
        self._timer.begin(me, now)
        self._absent = tuple(peer for peer in slot.roster if self._context.members.is_absent(peer, now))
        reached = max((ballot.attempt for ballot in (*self._higher.values(), *filter(None, [promised]))), default=0)
        self._promises, self._higher, self._has_proposed = {}, {}, False
        self._promises_due = now + self._context.timing.ballot_timeout(len(slot.roster)) / 2
        if promised is None and slot.order[0] == me:
            self._publish(Ballot(attempt=0, peer=me), self._fresh_value(now), now)
            return True
        self._ballot = Ballot(attempt=reached + 1, peer=me)
        self._acceptor.promise(self._ballot)
        self._promises[me] = Promise(parent=slot.digest, ballot=self._ballot, accepted=self._acceptor.accepted)
        self._dissemination.prepare(Prepare(parent=slot.digest, ballot=self._ballot, absent=self._absent))
        return True

    def on_promise(self, sender: PeerId, message: Promise) -> None:
        if message.ballot != self._ballot or self._has_proposed:
            return
        self._promises[sender] = message
        if message.accepted is not None:
            self._values.ask_for(message.accepted[1], sender)

    def on_refusal(self, sender: PeerId, message: Refusal, now: float) -> None:
        """Give way to a higher ballot once the members that promised one leave no majority to this one. If the refusal shows
        that absent members are alive, note their beats and try again soon."""
        slot, promised = self._slot, self._acceptor.promised
        for peer, beat in message.alive:
            if peer in slot.members:
                self._context.members.note_beat(peer, beat, now)
        if message.ballot != self._ballot:
            return
        counted = slot.counted(self._absent)
        if sender in counted and message.promised is not None and (promised is None or message.promised > promised):
            self._higher[sender] = message.promised
            if not slot.is_quorum([peer for peer in counted if peer not in self._higher], self._absent):
                highest = max(self._higher.values())
                self._acceptor.promise(highest)
                self._timer.begin(highest.peer, now)
        elif not self._has_proposed and any(peer in self._absent for peer, _ in message.alive):
            self._try_again(now)

    def _try_again(self, now: float) -> None:
        """Drop this ballot, because a member that it leaves out is alive, and begin another one soon."""
        self._ballot = None
        self._timer.cut_short(now)

    # --- proposals ---------------------------------------------------------------------------------------------------

    def propose(self, now: float) -> bool:
        """With the promises of a majority, propose the locked value, or else one of this peer's own. Return whether a value was
        proposed."""
        if self._ballot is None or self._has_proposed or self._ballot != self._acceptor.promised:
            return False
        if not self._slot.is_quorum(self._promises, self._absent):
            return False
        if any(self._context.members.lease_valid(peer, now) for peer in self._absent):
            self._try_again(now)
            return False
        locked = self.locked_value(now)
        if locked is None:
            self._publish(self._ballot, self._fresh_value(now), now)
            return True
        value = self._values.get(locked)
        if value is None or not self._values.is_valid(locked):
            return False
        if self._awaits_promises(locked, now) and not self._all_have_promised(now):
            return False  # more promises may show that it need not be repeated
        self._publish(self._ballot, value, now)
        return True

    def locked_value(self, now: float) -> Digest | None:
        """Return the value of the highest ballot that the promises name; None if there is none.

        A value that is wrong or missing, or that members would refuse, is passed over if it cannot have been chosen: so many
        members promised without having accepted it that the others are no majority. If it may have been chosen, it is proposed
        again.
        """
        accepted = {peer: promise.accepted for peer, promise in self._promises.items()}
        while True:
            highest = max((item for item in accepted.values() if item is not None), default=None)
            if highest is None:
                return None
            others = {peer: item for peer, item in accepted.items() if item is None or item[1] != highest[1]}
            is_wanted = self._values.is_valid(highest[1]) and not self._is_unwanted(highest[1], now)
            backers = [peer for peer in self._slot.counted(self._absent) if peer not in others]
            if is_wanted or self._slot.is_quorum(backers, self._absent):
                return highest[1]
            accepted = others

    def _is_unwanted(self, digest: Digest, now: float) -> bool:
        """Return whether members would refuse the value because it evicts a member that is alive, or lacks the reports of a
        majority while stragglers have time."""
        return self._evicts_the_living(digest, now) or self._values.comes_too_early(digest, now)

    def _evicts_the_living(self, digest: Digest, now: float) -> bool:
        value = self._values.get(digest)
        return value is not None and any(self._context.members.lease_valid(peer, now) for peer in value.departed)

    def _awaits_promises(self, digest: Digest, now: float) -> bool:
        """Return whether an unwanted value waits for more promises: one that comes too early until those under way are due, and
        one that evicts a living member for a lease, in which all members here answer. It waits no longer, because members that
        went on without this peer promise nothing."""
        assert self.ready_at is not None, "a ballot began"
        is_unwanted = self._evicts_the_living(digest, now) and now < self.ready_at + self._context.members.lease_seconds
        return is_unwanted or (self._values.comes_too_early(digest, now) and now < self._promises_due)

    def _all_have_promised(self, now: float) -> bool:
        counted, members = self._slot.counted(self._absent), self._context.members
        return all(peer in self._promises for peer in counted if members.lease_valid(peer, now))

    def _fresh_value(self, now: float) -> Value:
        room = max(0, min(MAX_JOINS, MAX_ROSTER - len(self._slot.roster)))
        statements = self._context.statements.pending(self._slot.ledger)
        slot = self._slot
        # no other peer can make this signature, so nobody can choose names in advance that win the lot
        lot = self._context.sign(payload("seats", slot.parent.run, slot.digest))
        asking = self._context.members.candidates(now)
        joined = self._seated(asking, statements, room, absent=self._absent, members=(), lot=lot)
        return self._values.make(joined=joined, absent=self._absent, statements=statements)

    def _seated(
        self,
        requests: Iterable[JoinRequest],
        statements: Sequence[Decree],
        room: int,
        *,
        absent: Sequence[PeerId],
        members: Container[PeerId],
        lot: str,
    ) -> tuple[JoinRequest, ...]:
        parent, ledger = self._slot.parent, self._slot.ledger
        return seated_first(
            requests,
            parent=parent,
            gone={*absent, *newly_banned(statements, parent)},
            members=members,
            room=room,
            lot=lot,
            problem=door_of(ledger, self._context.verify, statements=statements).problem,
        )

    def _publish(self, ballot: Ballot, value: Value, now: float) -> None:
        """Accept the value here, then propose it; the proposal is the proposer's ack, too."""
        self._ballot, self._has_proposed = ballot, True
        unsigned = Proposal(ballot=ballot, absent=self._absent, value=value, signature="")
        proposal = replace(unsigned, signature=self._context.sign(unsigned.payload))
        digest = canonical.digest_once(value)
        self._learner.note_proposal(proposal, digest)
        self._acceptor.accept_own(proposal, digest)
        self._dissemination.propose(proposal, now)

    # --- empty roster ------------------------------------------------------------------------------------------------

    def recover_empty_roster(self, now: float) -> tuple[Digest, Certificate] | None:
        """Return the value that the first former member makes final alone, with its certificate, once the whole roster is gone;
        it admits the others that ask. A peer that never was a member has no state to go on with, and may just not have reached
        any member yet. If the slot is open once more, the value is the one for which this peer voted then."""
        members, roster = self._context.members, self._slot.roster
        if self._is_paused() or any(not members.is_absent(peer, now) for peer in roster):
            self._empty_since = None
            return None
        if self._empty_since is None:
            self._empty_since = now
        if now < self._empty_since + members.lease_seconds:  # the join requests need this time to get around
            return None
        asking = [members.join_request(), *members.candidates(now)]
        statements = self._context.statements.pending(self._slot.ledger)
        # all waiting peers must come to the same order, so the lot is public
        former = self._slot.ledger.members()
        requests = self._seated(asking, statements, MAX_JOINS, absent=roster, members=former, lot=self._slot.digest)
        if not is_trained_after(self._slot.parent, roster, [request.capacity for request in requests]):
            return None
        me = self._context.me
        if me != next((request.peer for request in requests if request.peer in former), None):
            return None
        ballot = Ballot(attempt=1, peer=me)
        digest = self._acceptor.voted
        if digest is None:
            digest = canonical.digest_once(self._values.make(joined=requests, absent=roster, statements=statements))
        if not self._values.is_valid(digest):
            return None
        vote = self._acceptor.signed_vote(ballot, digest, roster, abstains=False)
        cast = CastVote(peer=me, abstains=False, signature=vote.signature)
        return digest, Certificate(ballot=ballot, absent=roster, votes=(cast,))
