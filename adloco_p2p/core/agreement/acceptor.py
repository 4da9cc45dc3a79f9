"""The acceptor of single-decree Paxos, and the voter on top of it.

- It ACKS at most one value per ballot and none below a ballot that it promised.
- It VOTES only for a value that a majority acked, and for one value per slot in its whole life; where another value is chosen
  later, it abstains. Its vote counts as an acceptance in its promises, so that the value is proposed again even if this peer is
  the last one left.
- It takes part in a ballot only if the leases of the absent have run out at its own clock too, or they left.

`promised`, `accepted` and `voted` must survive a crash: each is persisted before the message that follows from it is sent.
"""

from collections.abc import Sequence
from dataclasses import replace

from adloco_p2p.core.agreement.ballot_timer import BallotTimer
from adloco_p2p.core.agreement.dissemination import Dissemination
from adloco_p2p.core.agreement.learner import Learner
from adloco_p2p.core.agreement.recovery import RecoveredState
from adloco_p2p.core.agreement.slot import Context, Slot
from adloco_p2p.core.agreement.values import Values
from adloco_p2p.core.model import canonical
from adloco_p2p.core.model.certificate import Ballot
from adloco_p2p.core.model.events import Persist, Send
from adloco_p2p.core.model.ledger_entry import Vote
from adloco_p2p.core.model.messages import Accepted, Ack, Chosen, Prepare, Promise, Promised, Proposal, Refusal, Supply, Voted
from adloco_p2p.core.model.scalars import Digest, PeerId


class Acceptor:
    """Of one slot."""

    def __init__(
        self,
        context: Context,
        slot: Slot,
        *,
        learner: Learner,
        values: Values,
        timer: BallotTimer,
        dissemination: Dissemination,
    ) -> None:
        self._context = context
        self._slot = slot
        self._learner = learner
        self._values = values
        self._timer = timer
        self._dissemination = dissemination
        self.promised: Ballot | None = None
        self.accepted: tuple[Ballot, Digest] | None = None
        """The value of the highest ballot: it is named in promises."""
        self.voted: Digest | None = None
        self._admitted: dict[PeerId, Ballot] = {}
        """Of each proposer the last ballot that may be accepted though it was not promised."""
        self._refused: dict[PeerId, Ballot] = {}
        """Of each proposer the highest ballot that leaves out this peer, or one that lives."""

    def restore(self, recovered: RecoveredState) -> None:
        """Take up what the journal holds of this slot."""
        promised, accepted = recovered.promised, recovered.accepted
        self.promised = max((record.ballot for record in (promised, accepted) if record is not None), default=None)
        if accepted is not None:
            self.accepted = (accepted.ballot, canonical.digest_once(accepted.value))
            self._values.keep(accepted.value, None)
            self._values.keep_reports(accepted.reports)
        self.voted = recovered.voted.value if recovered.voted is not None else None

    # --- promises ----------------------------------------------------------------------------------------------------

    def promise(self, ballot: Ballot) -> None:
        """Answer no lower ballot any more, also after a restart."""
        self.promised = ballot
        self._context.emit(Persist(record=Promised(parent=self._slot.digest, ballot=ballot)))

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
        """Why the ballot gets nothing: a higher one was promised, or some of `silent`, which must be absent, live."""
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
        """Send the refusal, if there is a reason for one. Returns whether there was."""
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
        """`sender` may have passed it on. It is accepted by `accept`, once its value is complete."""
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
        """Ack the highest proposal that no promise forbids, once its value is checked. Returns whether anything was done."""
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
        """An acceptance binds as a promise does, and is written to the disk: a proposer that asks for no promises must not
        raise the others' ballots faster than one that does."""
        return ballot in (self.promised, self._admitted.get(ballot.peer))

    def accept_own(self, proposal: Proposal, digest: Digest) -> Ack:
        """Persist the acceptance; the caller sends the ack. A proposer accepts its own value so, before it proposes it: what it
        forgot in a crash it could propose differently afterwards."""
        assert self.promised is None or proposal.ballot >= self.promised
        self.promised = proposal.ballot
        self._remember_accepted(proposal, digest)
        ack = Ack(parent=self._slot.digest, ballot=proposal.ballot, value=digest)
        self._learner.note_ack(self._context.me, ack)
        return ack

    def _remember_accepted(self, proposal: Proposal, digest: Digest) -> None:
        self.accepted = (proposal.ballot, digest)
        reports = self._values.reports(proposal.value.reports)
        self._context.emit(Persist(record=Accepted(ballot=proposal.ballot, value=proposal.value, reports=reports)))

    def _to_be_silent(self, proposal: Proposal, digest: Digest) -> list[PeerId]:
        """Members that must be silent for the proposal to be right: those that do not count in its ballot, and those that its
        value takes off the roster.

        A value that was proposed before keeps the departures of its first time, and one of those peers may be back. The
        proposer's statement about that does not count. A peer that accepted the value before accepts it again, since a majority
        may have chosen it, with this acceptance. Another one accepts it if half of those that count do: then only all others
        together could decide otherwise (`Proposer.locked_value`), and a lying minority evicts no member. In a large roster acks
        go to the proposer only, and just the first of the two rules holds.
        """
        return sorted({*proposal.absent, *(() if self._is_excused(proposal, digest) else proposal.value.departed)})

    def _is_excused(self, proposal: Proposal, digest: Digest) -> bool:
        """This peer stood by the value before, or half of those that count do: it may be chosen already."""
        has_backed = self.voted == digest or (self.accepted is not None and self.accepted[1] == digest)
        return has_backed or self._learner.is_backed_by_half(proposal, digest)

    def _lives_any(self, peers: Sequence[PeerId], now: float) -> bool:
        return any(self._context.members.lease_valid(peer, now) for peer in peers)

    # --- votes -------------------------------------------------------------------------------------------------------

    def cast_vote(self, now: float) -> bool:
        """Vote for a value that a majority acked; abstain if this slot's vote is given to another. Returns whether it did."""
        me = self._context.me
        for proposal, digest in self._learner.chosen_proposals():
            ballot, absent = proposal.ballot, proposal.absent
            own = self._learner.vote_of(me)
            if (own is not None and own.ballot >= ballot) or me not in self._slot.counted(absent):
                continue
            if self.accepted != (ballot, digest):  # a proposer may lie about the majority, and about the absent members
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
                    self._remember_accepted(proposal, digest)  # so that even after a restart it can be proposed again
                self.voted = digest
                self._context.emit(Persist(record=Voted(parent=self._slot.digest, value=digest)))
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
