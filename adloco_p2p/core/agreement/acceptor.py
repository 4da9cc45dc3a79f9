"""The acceptor of single-decree Paxos, and the voter on top of it.

- It ACKS at most one value per ballot and none below a ballot that it promised.
- It VOTES only for a value that a majority acked, and for at most one value per slot in its whole life; if another value is
  chosen later, it abstains. Its promises name the value it voted for as accepted, so that the value is proposed again even if
  this peer is the last one left.
- It takes part in a ballot only if the absent members have left, or their leases have run out by its own clock too.

`promised`, `accepted` and `voted` must survive a crash: each is persisted before the message that follows from it is sent.
"""

from collections.abc import Sequence
from dataclasses import replace

from adloco_p2p.core.agreement.ballot_timer import BallotTimer
from adloco_p2p.core.agreement.dissemination import Dissemination
from adloco_p2p.core.agreement.learner import Learner
from adloco_p2p.core.agreement.recovery import SlotRecords
from adloco_p2p.core.agreement.slot import Context, Slot
from adloco_p2p.core.agreement.values import Values
from adloco_p2p.core.model import canonical
from adloco_p2p.core.model.certificate import Ballot
from adloco_p2p.core.model.effects import Persist, Send
from adloco_p2p.core.model.ledger_entry import Vote
from adloco_p2p.core.model.messages import Accepted, Ack, Chosen, Prepare, Promise, Promised, Proposal, Refusal, Supply, Voted
from adloco_p2p.core.model.scalars import Digest, PeerId


class Acceptor:
    """The acceptor and voter of one slot. Instants are seconds of the peer's own clock."""

    def __init__(
        self,
        context: Context,
        slot: Slot,
        *,
        learner: Learner,
        values: Values,
        timer: BallotTimer,
        dissemination: Dissemination,
        records: SlotRecords,
    ) -> None:
        """`records` are those of this slot, which the acceptor keeps up to date."""
        self._context = context
        self._slot = slot
        self._records = records
        self._learner = learner
        self._values = values
        self._timer = timer
        self._dissemination = dissemination
        self.promised: Ballot | None = None
        self.accepted: tuple[Ballot, Digest] | None = None
        """The highest accepted ballot and the digest of its value, as promises name them."""
        self.voted: Digest | None = None
        self._admitted: dict[PeerId, Ballot] = {}
        """The last ballot of each proposer that may be accepted without a promise."""
        self._refused: dict[PeerId, Ballot] = {}
        """The last ballot of each proposer whose proposal this peer did not accept, so that it answers each of them once."""

    def restore(self) -> None:
        """Restore the promise, the acceptance and the vote of this slot: after a restart, or if it is open once more."""
        promised, accepted, voted = self._records.promised, self._records.accepted, self._records.voted
        self.promised = max((record.ballot for record in (promised, accepted) if record is not None), default=None)
        if accepted is not None:
            self.accepted = (accepted.ballot, canonical.digest_once(accepted.value))
            self._values.keep(accepted.value, None)
            self._values.keep_reports(accepted.reports)
        self.voted = voted.value if voted is not None else None

    # --- promises ----------------------------------------------------------------------------------------------------

    def promise(self, ballot: Ballot) -> None:
        """Promise to answer no lower ballot, even after a restart."""
        self.promised = ballot
        self._records.promised = record = Promised(parent=self._slot.digest, ballot=ballot)
        self._context.emit(Persist(record=record))

    def on_prepare(self, sender: PeerId, message: Prepare, now: float) -> None:
        me, ballot, counted = self._context.me, message.ballot, self._slot.counted(message.absent)
        has_no_say = me not in counted and me not in message.absent
        if ballot.peer != sender or not self._takes_part or sender not in counted or has_no_say:
            return
        if self._refuse(ballot, message.absent, now) or not self._timer.admit(ballot, self.promised, now):
            return
        if self.promised != ballot:
            self.promise(ballot)
        promise = Promise(parent=self._slot.digest, ballot=ballot, accepted=self.accepted)
        self._context.emit(Send(peer=sender, message=promise))
        if me in self._values.held:
            self._dissemination.resend_report(sender, self.own_report())

    def own_report(self) -> Supply:
        own = self._values.held.get(self._context.me)
        reports = self._values.reports([own] if own is not None else [])
        return Supply(parent=self._slot.digest, reports=reports)

    def refusal(self, ballot: Ballot, silent: Sequence[PeerId], now: float) -> Refusal | None:
        """Return the refusal of a ballot if a higher one was promised, or if peers of `silent`, which must be absent, live."""
        members = self._context.members
        alive = [peer for peer in silent if members.lease_valid(peer, now)]
        if not alive and (self.promised is None or self.promised <= ballot):
            return None
        return Refusal(
            parent=self._slot.digest,
            ballot=ballot,
            promised=self.promised,
            alive=tuple((peer, members.beat_of(peer)) for peer in alive),
        )

    def _refuse(self, ballot: Ballot, silent: Sequence[PeerId], now: float) -> bool:
        """Send a refusal if there is a reason for one; return whether there was."""
        refusal = self.refusal(ballot, silent, now)
        if refusal is None:
            return False
        self._context.emit(Send(peer=ballot.peer, message=refusal))
        return True

    @property
    def _takes_part(self) -> bool:
        return self._slot.is_member and not self._context.members.is_passive

    # --- acceptances -------------------------------------------------------------------------------------------------

    def on_proposal(self, sender: PeerId, message: Proposal, now: float) -> None:
        """Note a proposal, which `sender` may have relayed. `accept` acks it once its value is complete."""
        if not self._learner.on_proposal(message):
            return
        digest = self._values.keep(message.value, sender)
        if self.promised is None or message.ballot >= self.promised:
            if self._timer.admit(message.ballot, self.promised, now):
                self._admitted[message.ballot.peer] = message.ballot
        elif self._takes_part:
            self._refuse(message.ballot, (), now)
        self._values.ask_for(digest, sender)

    def accept(self, now: float) -> bool:
        """Ack the highest proposal that no promise forbids, once its value is checked. Return whether an answer was sent."""
        for proposal, digest in self._learner.ranked_proposals():
            proposer = proposal.ballot.peer
            if self.promised is not None and proposal.ballot < self.promised:
                return False
            if self.accepted is not None and self.accepted[0] >= proposal.ballot:
                return False
            if not self._is_admitted(proposal.ballot) or not self._values.is_valid(digest):
                continue
            is_refused = self._refused.get(proposer) == proposal.ballot
            if self._context.me not in self._slot.counted(proposal.absent):
                if not is_refused:
                    self._refused[proposer] = proposal.ballot
                    self._dissemination.pass_on(proposal, now, without=(proposer,))
                continue
            if not self._is_excused(proposal, digest) and self._values.omits_reports(digest, now):
                if not is_refused:
                    self._refused[proposer] = proposal.ballot
                    self._dissemination.resend_report(proposer, self.own_report())
                continue
            silent = self._to_be_silent(proposal, digest)
            if is_refused and self._lives_any(silent, now):
                continue
            if self._refuse(proposal.ballot, silent, now):
                self._refused[proposer] = proposal.ballot
                return True
            ack = self.accept_own(proposal, digest)
            self._dissemination.pass_on(proposal, now, without=(proposer,))
            self._dissemination.answer(proposer, ack)
            return True
        return False

    def _is_admitted(self, ballot: Ballot) -> bool:
        """Return whether the ballot was promised or given its time. An acceptance binds like a promise and is written to disk,
        so a proposer that asks for no promises must not raise the ballots of others faster than one that does."""
        return ballot in (self.promised, self._admitted.get(ballot.peer))

    def accept_own(self, proposal: Proposal, digest: Digest) -> Ack:
        """Persist the acceptance and return the ack, which the caller sends. A proposer accepts its own value in this way
        before it proposes it: after a crash it could otherwise propose a different value in the same ballot."""
        assert self.promised is None or proposal.ballot >= self.promised
        self.promised = proposal.ballot
        self._remember_accepted(proposal, digest)
        ack = Ack(parent=self._slot.digest, ballot=proposal.ballot, value=digest)
        self._learner.note_ack(self._context.me, ack)
        return ack

    def _remember_accepted(self, proposal: Proposal, digest: Digest) -> None:
        self.accepted = (proposal.ballot, digest)
        reports = self._values.reports(proposal.value.reports)
        self._records.accepted = record = Accepted(ballot=proposal.ballot, value=proposal.value, reports=reports)
        self._context.emit(Persist(record=record))

    def _to_be_silent(self, proposal: Proposal, digest: Digest) -> list[PeerId]:
        """Return the members that must be silent for the proposal to be acceptable: the absent members of its ballot, and those
        that its value takes off the roster.

        A value that is proposed again keeps its original departures, although one of those peers may be back. The proposer's
        word does not count here. A peer that accepted the value before accepts it again, since that acceptance may have
        completed a majority. Any other peer accepts it if half of the members that count did: then only all the others together
        could decide otherwise (`Proposer.locked_value`), and a lying minority evicts no member. In a large roster acks go to
        the proposer only, so only the first of these two rules applies.
        """
        return sorted({*proposal.absent, *(() if self._is_excused(proposal, digest) else proposal.value.departed)})

    def _is_excused(self, proposal: Proposal, digest: Digest) -> bool:
        """Return whether the value may be chosen already: this peer accepted it or voted for it, or half of the members did."""
        has_backed = self.voted == digest or (self.accepted is not None and self.accepted[1] == digest)
        return has_backed or self._learner.is_backed_by_half(proposal, digest)

    def _lives_any(self, peers: Sequence[PeerId], now: float) -> bool:
        return any(self._context.members.lease_valid(peer, now) for peer in peers)

    # --- votes -------------------------------------------------------------------------------------------------------

    def cast_vote(self, now: float) -> bool:
        """Vote for a value that a majority acked, or abstain if the vote of this slot went to another value. Return whether a
        vote or an abstention was cast."""
        me = self._context.me
        for proposal, digest in self._learner.chosen_proposals():
            ballot, absent = proposal.ballot, proposal.absent
            own = self._learner.vote_of(me)
            if (own is not None and own.ballot >= ballot) or me not in self._slot.counted(absent):
                continue
            if self.accepted != (ballot, digest):  # the proposer may lie about the majority and about the absent members
                is_proven = self._learner.is_acked_by_majority(proposal, digest)
                may_be_lie = not is_proven and not self._is_admitted(ballot)
                if may_be_lie or self._lives_any(self._to_be_silent(proposal, digest), now):
                    continue
            if not self._values.is_valid(digest):
                continue
            if self._dissemination.proposer_announces and ballot.peer == me:
                self._announce_chosen(ballot, digest, now)
            abstains = self.voted not in (None, digest)
            if not abstains:
                if self.accepted is None or self.accepted[0] < ballot:
                    self.promised = max(ballot, self.promised or ballot)
                    self._remember_accepted(proposal, digest)  # so that the value can be proposed again even after a restart
                self.voted = digest
                self._records.voted = record = Voted(parent=self._slot.digest, value=digest)
                self._context.emit(Persist(record=record))
            vote = self.signed_vote(ballot, digest, absent, abstains=abstains)
            self._learner.note_vote(vote)
            self._dissemination.answer(ballot.peer, vote)
            return True
        return False

    def signed_vote(self, ballot: Ballot, value: Digest, absent: tuple[PeerId, ...], *, abstains: bool) -> Vote:
        unsigned = Vote(
            peer=self._context.me,
            parent=self._slot.digest,
            ballot=ballot,
            absent=absent,
            value=value,
            abstains=abstains,
            signature="",
        )
        return replace(unsigned, signature=self._context.sign(unsigned.payload))

    def _announce_chosen(self, ballot: Ballot, digest: Digest, now: float) -> None:
        unsigned = Chosen(parent=self._slot.digest, ballot=ballot, value=digest, signature="")
        chosen = replace(unsigned, signature=self._context.sign(unsigned.payload))
        self._learner.note_chosen(self._context.me, chosen)
        self._dissemination.pass_on(chosen, now)
