"""One agreed plan per slot, without a leader: single-decree Paxos for each, with signed votes on top.

A slot is the successor of one plan. `Consensus` composes the parts that agree on it, and opens the next slot when one is final.

    reports -> Proposal (ballot 0)                 -> Ack of a majority -> Vote of a majority -> the plan is final
            -> Prepare -> Promise of a majority -> Proposal (ballot > 0) -> ...

    values         reports and values of the slot, the plans that follow from them, pull and supply
    proposer       readiness, ballots, proposals; recovery of an empty roster
    acceptor       promises, acks and votes, each persisted before it is sent
    learner        the messages of the members: which value is chosen, which is final
    dissemination  direct in a small roster, relayed in a large one
    ledger sync    entries for peers that are behind, and from peers ahead; `emergency` finds entries not to be followed

- Each ballot names the members that are ABSENT and count neither way. A peer takes part only if they have left, or their
  leases have run out by its own clock too. Two ballots of one slot can therefore end with different values only if a member
  that took part in one had been silent for a whole lease to every member that took part in the other: a partition, or a crash.
- Where a partition made two values possible, a peer that voted for one abstains when the other is chosen.
- The votes that make a value final are its certificate, by which any peer can check it later.
"""

from collections.abc import Callable, Collection, Sequence

from adloco_p2p.core.agreement.acceptor import Acceptor
from adloco_p2p.core.agreement.ballot_timer import BallotTimer
from adloco_p2p.core.agreement.dissemination import dissemination
from adloco_p2p.core.agreement.emergency import EmergencyCheck
from adloco_p2p.core.agreement.entry_donors import is_far
from adloco_p2p.core.agreement.learner import Learner
from adloco_p2p.core.agreement.ledger_sync import LedgerExchange
from adloco_p2p.core.agreement.lone_lives import LoneLives
from adloco_p2p.core.agreement.membership import ROSTERS_KEPT, Membership
from adloco_p2p.core.agreement.proposer import Proposer
from adloco_p2p.core.agreement.recovery import RecoveredState, SlotRecords, note_lost
from adloco_p2p.core.agreement.report_pool import ReportPool
from adloco_p2p.core.agreement.slot import Context, Slot, next_slot
from adloco_p2p.core.agreement.statement_pool import StatementPool
from adloco_p2p.core.agreement.values import Values, lacking_of
from adloco_p2p.core.ledger.admission import Door
from adloco_p2p.core.ledger.fork_choice import is_backed, switch_between
from adloco_p2p.core.ledger.ledger import Ledger
from adloco_p2p.core.ledger.proof_of_work import PROOF_ROUNDS, CheckBudget, Puzzle
from adloco_p2p.core.ledger.validation import door_of, may_have_ended
from adloco_p2p.core.model import canonical, telemetry
from adloco_p2p.core.model.certificate import Certificate
from adloco_p2p.core.model.effects import Persist, Send
from adloco_p2p.core.model.electorate import electorate
from adloco_p2p.core.model.ledger_entry import (
    MAX_VALUE_BYTES,
    Decree,
    JoinRequest,
    LedgerEntry,
    ProofOfWork,
    Sign,
    SignedReport,
    Value,
    Verify,
    Vote,
)
from adloco_p2p.core.model.messages import (
    Accepted,
    Ack,
    Chosen,
    Entries,
    Final,
    Heartbeat,
    Prepare,
    Promise,
    Proposal,
    Pull,
    PullEntries,
    Refusal,
    SlotMessage,
    Supply,
    Voted,
)
from adloco_p2p.core.model.outcomes import Decided, Outcome
from adloco_p2p.core.model.plan import Decide, RoundPlan, roster_of
from adloco_p2p.core.model.protocol import NEWEST, UPGRADE_REMEDY
from adloco_p2p.core.model.report import Report
from adloco_p2p.core.model.scalars import MAX_BALLOT_JUMP, Digest, PeerId

BallotMessage = Prepare | Promise | Refusal | Proposal | Ack | Chosen | Vote | Final | Pull
"""Messages that have a meaning only in their own slot."""
OWN_REPORTS_KEPT = 64
MEMBER_CHECKS_PER_SECOND, MEMBER_CHECKS = 4.0, 64.0
STRANGER_CHECKS_PER_SECOND, STRANGER_CHECKS = 4.0, 16.0
"""Proofs of work that this peer checks per second, and in one burst, in the messages of all members together and of all
strangers together: 4 % of a core of a present server each."""
MAX_EARLY = 256
"""The number of messages kept for slots that this peer has not reached yet."""
BALLOTS_PER_SECOND = 1 << 10
"""The rate at which ballot numbers may grow, which is more than honest peers need. A ballot whose number is higher than the
time since the slot opened allows is ignored, because the next number could be too large to encode. The limit does not follow
the received ballots: otherwise members could be made to promise such different numbers that no honest ballot would be above all
of them and within the limits of all."""


SPLIT = "split"
"""The key of the warning about another history whose protocol is unknown here."""


class Consensus:
    """One peer's part in agreeing on plans, which `GossipAgreement` drives together with the membership it reads. Instants are
    seconds of the peer's own clock."""

    ledger: Ledger
    slot: Slot
    values: Values
    learner: Learner
    acceptor: Acceptor
    proposer: Proposer

    def __init__(
        self,
        me: PeerId,
        *,
        sign: Sign,
        verify: Verify,
        decide: Decide,
        members: Membership,
        draw: Callable[[], float],
        newest_protocol: int = NEWEST,
    ) -> None:
        """`newest_protocol` is the newest protocol whose rule `decide` knows."""
        self.me = me
        self._newest_protocol = newest_protocol
        self.members = members
        self._context = Context(
            me=me, sign=sign, verify=verify, decide=decide, draw=draw, members=members, statements=StatementPool(verify)
        )
        self._reports = ReportPool(verify)
        self._own: list[SignedReport] = []
        """This peer's newest reports. After a reorg to a shorter history the next plan needs older reports, and perhaps no
        other peer has them any more."""
        self._exchange = LedgerExchange(decide, verify, period_seconds=members.timing.heartbeat_seconds, newest=newest_protocol)
        self._emergency = EmergencyCheck(self._context)
        self._early: dict[tuple[PeerId, str], tuple[PeerId, BallotMessage]] = {}
        self._deadline: float | None = None
        self._opened_at = 0.0
        """When this peer opened the slot."""
        self._promised_before = 0
        """The number of the ballot that was promised in this slot before a restart, or before it was open once more."""
        self._slots: dict[Digest, SlotRecords] = {}
        """What this peer wrote down about each slot, by its parent. It votes once in a slot, also if the slot is open again."""
        self._lone_lives = LoneLives()
        self._checks_for_members = CheckBudget(MEMBER_CHECKS_PER_SECOND, burst=MEMBER_CHECKS)
        self._checks_for_strangers = CheckBudget(STRANGER_CHECKS_PER_SECOND, burst=STRANGER_CHECKS)
        self._misleading: set[PeerId] = set()
        """Members that relayed a false proof of work in this slot."""
        self._unwritten: dict[Digest, LedgerEntry] = {}
        """The entries of this event by their plans: the journal may not have them yet."""
        self._settled: LedgerEntry | None = None
        """The last entry of the ledger, if it was appended since the start of the process and the last reorg."""
        self._served: dict[PeerId, None] = {}
        """Members that lacked the settled entry and were sent its certificate."""
        self._is_split = False
        """Whether the warning about a history with an unknown protocol is active."""

    # --- entry points ------------------------------------------------------------------------------------------------

    def start(self, recovered: RecoveredState, now: float) -> list[Outcome]:
        """Restore the ledger and the state of the open slot from the journal."""
        self.ledger = recovered.ledger
        self._lone_lives = recovered.lone_lives
        self._slots = dict(recovered.slots)
        self.members.is_let_in = self._is_let_in
        self._learn_rosters()
        self._open_slot(now)
        return self._flush(now)

    def note_work(self, rounds: Collection[int]) -> None:
        """Note the rounds on which this peer is working and has not reported yet."""
        self._context.working.clear()
        self._context.working.update(dict.fromkeys(rounds))

    def submit(self, report: Report, now: float) -> list[Outcome]:
        """Sign this peer's own report and send it."""
        unsigned = SignedReport(report=report, signature="")
        signed = SignedReport(report=report, signature=self._context.sign(unsigned.payload))
        self._own = [*self._own[1 - OWN_REPORTS_KEPT :], signed]
        self.values.keep_reports([signed])
        self._dissemination.report(Supply(parent=self.slot.digest, reports=(signed,)), now)
        return self._flush(now)

    def receive(self, sender: PeerId, message: SlotMessage | PullEntries | Entries | Heartbeat, now: float) -> list[Outcome]:
        self._note_written()
        match message:
            case PullEntries():
                if not self._send_settled(sender, message.locator[:1]):
                    self._context.emit(*self._exchange.answer(self.ledger, sender, message, now=now))
            case _ if self._is_outgrown:
                pass
            case Heartbeat():
                self._on_heartbeat(sender, message, now)
            case Entries():
                self._on_entries(sender, message, now)
            case Proposal(value=value) | Supply(value=Value() as value) if canonical.size_once(value) > MAX_VALUE_BYTES:
                pass  # several values per member are kept while a slot is open, and for later slots too, so they must be small
            case Supply():
                self.values.on_supply(sender, message)
            case _:
                self._on_ballot_message(sender, message, now)
        return self._flush(now)

    def _note_written(self) -> None:
        """Forget what is kept until it is persisted: the entries that the calls of earlier events appended. Messages and ticks
        come first in their events, reports do not."""
        self.ledger.forget_old()
        self._unwritten.clear()

    def tick(self, now: float) -> list[Outcome]:
        self._note_written()
        if not self._is_outgrown:
            self._context.emit(*self._exchange.pull_next(self.ledger, now=now))
        return self._flush(now)

    def state(self, statement: Decree) -> str:
        """Propose a signer's statement or evidence for the next plan. Return why no plan can carry it; empty if one can."""
        return self._context.statements.note(statement, self.ledger)

    def _is_let_in(self, request: JoinRequest, sender: PeerId, now: float) -> bool:
        """Return whether the run admits the peer. Members relay only requests that they have checked, and have a budget of
        their own: once one member knows a newcomer, no flood of strangers hides it from the others. A member that relays a
        false proof counts as a stranger until the next plan, so it spends only one check of the members' budget."""
        is_trusted = sender in self.slot.members and sender not in self._misleading
        budget, is_checked = self._checks_for_members if is_trusted else self._checks_for_strangers, False

        def may_check() -> bool:
            nonlocal is_checked
            is_checked = budget.try_take(now)
            return is_checked

        problem = door_of(self.ledger, self._context.verify, may_check=may_check).problem(request)
        if problem and is_checked and is_trusted:
            self._misleading.add(sender)
        return not problem

    def puzzle(self) -> Puzzle | None:
        """Return what this peer has to solve now for a seat, by the newest plan that it has; None if it needs no proof of work,
        gets no seat by one, or shows one that stays valid for some more rounds."""
        puzzle, shown = self._owed(), self.members.ticket
        is_young = isinstance(shown, ProofOfWork) and self.slot.parent.round - shown.round < PROOF_ROUNDS // 2
        if puzzle is None or not is_young:
            return puzzle
        return puzzle if door_of(self.ledger, self._context.verify).problem(self.members.join_request()) else None

    def _owed(self) -> Puzzle | None:
        """Return the puzzle that the run demands of this peer, whether or not it shows a solution."""
        parent = self.slot.parent
        if self.slot.is_member or self.members.is_passive or parent.is_last or not parent.price:
            return None
        door = door_of(self.ledger, self._context.verify)
        if self._is_too_old_for(door):
            return None
        is_banned = self.me in self.ledger.admissions.bans()
        return door.puzzle(self.me, round=parent.round) if door.must_pay(self.me) and not is_banned else None

    def refusal(self) -> str:
        """Return why this peer gets no seat, by the ledger as far as it is known here; empty if it has one, or may get one,
        with or without a proof of work. `Lifecycle` tells the user about a protocol that this version does not know."""
        if self.slot.is_member or self.members.is_passive or self.slot.parent.is_last or self._owed() is not None:
            return ""
        door = door_of(self.ledger, self._context.verify)
        return "" if self._is_too_old_for(door) else door.problem(self.members.join_request())

    def _is_too_old_for(self, door: Door) -> bool:
        return self._newest_protocol < door.protocol_needed

    @property
    def next_deadline(self) -> float | None:
        """When the slot must be looked at even if no message comes, as of the last call."""
        return None if self.members.is_passive else self._deadline

    # --- the loop of one event ---------------------------------------------------------------------------------------

    def _flush(self, now: float) -> list[Outcome]:
        """Do everything that has become possible, and return the outcomes in order."""
        self.values.note_time(now)
        while self._advance(now):
            self.values.note_time(now)
        self.members.head = self.ledger.head
        self.members.have = self.values.have
        self.members.statements = self._context.statements.pending(self.ledger)
        self._warn_of_split()
        is_open = self._takes_part and not self.slot.parent.is_last and not self._is_outgrown
        self._deadline = self.proposer.deadline(now) if is_open else None
        outcomes = list(self._context.outbox)
        self._context.outbox.clear()
        return outcomes

    def _warn_of_split(self) -> None:
        is_split = self._exchange.beyond is not None
        if is_split == self._is_split:
            return
        self._is_split = is_split
        message = (
            f"other peers of this run went on without this one, to protocol {self._newest_protocol + 1}, which the installed"
            f" version cannot follow, and both sides train apart: {UPGRADE_REMEDY}"
        )
        self._context.emit(telemetry.Warning(key=SPLIT, message=message if is_split else "the histories met", active=is_split))

    @property
    def _takes_part(self) -> bool:
        return self.slot.is_member and not self.members.is_passive

    @property
    def _is_outgrown(self) -> bool:
        """Whether the next plan follows the rule of a protocol that is unknown here, so that this peer cannot check it."""
        return self.slot.parent.protocol > self._newest_protocol

    def _advance(self, now: float) -> bool:
        """Do one step; return false if there was nothing to do."""
        if self.slot.parent.is_last or self._is_outgrown:
            return False
        if self._finish(now):
            return True
        if self.members.is_passive:
            return False
        if not self.slot.is_member:
            recovered = self.proposer.recover_empty_roster(now)
            if recovered is not None:
                self._append_value(*recovered, now)
            return recovered is not None
        acceptor, proposer = self.acceptor, self.proposer
        return acceptor.cast_vote(now) or acceptor.accept(now) or proposer.propose(now) or proposer.attempt(now)

    def _finish(self, now: float) -> bool:
        """Append the value that a certificate makes final. One member alone can certify any number of values, so the plan of a
        value is made only if the value is followed."""
        for digest, certificate in sorted(self.learner.certificates().items()):
            value = self.values.get(digest)
            if value is None:
                continue
            is_followed = self._voted_with(certificate, digest) or not self._is_contradicted(certificate, value.departed, now)
            if is_followed and self.values.is_valid(digest):
                final = Final(parent=self.slot.digest, value=digest, certificate=certificate)
                self._dissemination.pass_on(final, now)
                self._append_value(digest, certificate, now)
                return True
        return False

    def _voted_with(self, certificate: Certificate, digest: Digest) -> bool:
        """Return whether this peer voted for the value with the same members absent. A vote with other members absent is not
        enough: one member alone can certify the value that all vote for, and an entry with its single vote would lose to its
        next lie."""
        own = self.learner.vote_of(self.me)
        return own is not None and not own.abstains and (own.value, own.absent) == (digest, certificate.absent)

    # --- the slot ----------------------------------------------------------------------------------------------------

    def _open_slot(self, now: float) -> None:
        slot = next_slot(self.ledger, self.me)
        self.members.set_roster(slot.digest, slot.roster, now)
        self.members.known.learn_electors(slot.electorate)
        self._emergency.open(slot)
        self._compose(slot)
        self.acceptor.restore()
        self._opened_at = now
        self._promised_before = self.acceptor.promised.attempt if self.acceptor.promised is not None else 0
        self._misleading.clear()
        if self._takes_part and self.me in self.values.held:  # a peer on the bench reports at the beginning of its round
            self._dissemination.report_early(self.acceptor.own_report(), now)
        early, self._early = self._early, {}
        for sender, message in early.values():
            self._on_ballot_message(sender, message, now)

    def _compose(self, slot: Slot) -> None:
        """Make the parts of a slot anew, so that they hold nothing of an older slot."""
        context, timer = self._context, BallotTimer(self._context, slot)
        self.slot = slot
        self._dissemination = dissemination(context, slot)
        self.learner = Learner(context, slot)
        self.values = Values(context, slot, self._reports, named=self._named)
        self.values.keep_reports(self._own)
        self.acceptor = Acceptor(
            context,
            slot,
            learner=self.learner,
            values=self.values,
            timer=timer,
            dissemination=self._dissemination,
            records=self._records_of(slot),
        )
        self.proposer = Proposer(
            context,
            slot,
            acceptor=self.acceptor,
            learner=self.learner,
            values=self.values,
            timer=timer,
            dissemination=self._dissemination,
        )

    def _records_of(self, slot: Slot) -> SlotRecords:
        """Return what this peer wrote down about the slot. A plan that was final here in a history that lost counts as
        accepted, because others may still hold it, unless a higher ballot was accepted since. If this peer made it final alone,
        for an empty roster, the only record of its vote is the certificate."""
        records = self._slots.setdefault(slot.digest, SlotRecords())
        if records.lost is not None:
            entry = self._unwritten.get(records.lost) or self.ledger.recalled(records.lost)
            if records.accepted is None or records.accepted.ballot < entry.certificate.ballot:
                records.accepted = Accepted(ballot=entry.certificate.ballot, value=entry.value, reports=entry.reports)
            if records.voted is None and any(cast.peer == self.me and not cast.abstains for cast in entry.certificate.votes):
                records.voted = Voted(parent=slot.digest, value=canonical.digest_once(entry.value))
        return records

    def _settle(self, entries: Sequence[LedgerEntry]) -> None:
        """Note that these entries, which are about to be persisted, are final. Forget slots about which nothing was written
        down."""
        for entry in entries:
            self._unwritten[entry.value.plan] = entry
            self._slots.setdefault(entry.value.parent, SlotRecords()).settle()
            if self._slots[entry.value.parent] == SlotRecords():
                del self._slots[entry.value.parent]

    def _named(self) -> frozenset[Digest]:
        """Return the values that a member stands for: those of its highest proposal, vote and acceptance, and final values."""
        accepted = self.acceptor.accepted
        return frozenset([*self.learner.named(), *self.proposer.named(), *([accepted[1]] if accepted is not None else [])])

    def _learn_rosters(self) -> None:
        plans = self.ledger.plans[-ROSTERS_KEPT:]
        for plan, digest in zip(plans, self.ledger.digests[-len(plans) :], strict=True):
            self.members.learn_roster(digest, roster_of(plan))
            self.members.known.learn_electors(electorate(plan))

    def _append_value(self, digest: Digest, certificate: Certificate, now: float) -> None:
        self._append(self.values.entry(digest, certificate), now)

    def _append(self, entry: LedgerEntry, now: float) -> None:
        """Persist an entry, then open the slot that follows it."""
        self._context.emit(Persist(record=entry))
        self._lone_lives.note(entry, self.ledger.plans[-1])
        self._settle([entry])
        self.ledger.append(entry)
        self._settled, self._served = entry, {}
        self.members.note_seated(entry.value.joined, now)
        self._open_slot(now)
        self._context.emit(decided_by(entry))

    def may_be_apart(self, genesis: RoundPlan, *, is_alone: bool) -> bool:
        """Return whether most of the electors may have ended the run without this peer; see `may_have_ended`."""
        return may_have_ended(genesis, self.ledger.since(1), self._lone_lives.entries, is_alone=is_alone)

    # --- messages of a slot ------------------------------------------------------------------------------------------

    def _on_ballot_message(self, sender: PeerId, message: BallotMessage, now: float) -> None:
        if message.parent != self.slot.digest:
            self._on_other_slot(sender, message, now)
            return
        if not isinstance(message, Pull) and (self.slot.parent.is_last or sender not in self.slot.members):
            return  # nothing is decided after the last plan, but its reports name the states that the end of the run needs
        if self._is_too_high(message, now):
            return
        match message:
            case Prepare():
                self.acceptor.on_prepare(sender, message, now)
            case Promise():
                self.proposer.on_promise(sender, message)
            case Refusal():
                self.proposer.on_refusal(sender, message, now)
            case Proposal():
                self.acceptor.on_proposal(sender, message, now)
            case Ack():
                self.learner.on_ack(sender, message)
            case Chosen():
                if self.learner.on_chosen(message):
                    self._dissemination.pass_on(message, now, without=(sender, message.ballot.peer))
            case Vote() | Final():
                learner = self.learner
                if learner.on_vote(message) if isinstance(message, Vote) else learner.on_final(sender, message):
                    self.values.ask_for(message.value, sender)
            case Pull():
                self.values.on_pull(sender, message)

    def _is_too_high(self, message: BallotMessage, now: float) -> bool:
        """Return whether the message names a ballot number that honest attempts cannot have reached. After a restart the age of
        the slot is unknown, but its earlier promise was within the limit, so a restart does not raise the limit beyond that of
        others."""
        most = max(self._promised_before, MAX_BALLOT_JUMP) + BALLOTS_PER_SECOND * (now - self._opened_at)
        match message:
            case Final() | Pull():
                return False
            case Refusal(promised=higher) if higher is not None and higher.attempt > most:
                return True
            case _:
                return message.ballot.attempt > most

    def _on_other_slot(self, sender: PeerId, message: BallotMessage, now: float) -> None:
        """Help a peer that is behind; keep messages of a later slot until this peer reaches it, and catch up."""
        if isinstance(message, Pull) and self._supply_settled(sender, message):
            return
        if message.parent in self.ledger.position:
            is_lost = isinstance(message, Prepare | Pull) or (isinstance(message, Proposal) and message.ballot.peer == sender)
            if is_lost:
                self._help(sender, message.parent, now)
            return
        key = (sender, type(message).__name__)
        if sender in self.slot.members and (key in self._early or len(self._early) < MAX_EARLY):
            self._early[key] = (sender, message)
        self._context.emit(*self._exchange.ask_for_help(self.ledger, sender, now=now))

    def _help(self, peer: PeerId, newest: Digest, now: float) -> None:
        """Send the next entries to a peer whose newest plan is `newest`, or only our head if it is far behind: all peers that
        it meets would send it the same entries, so it asks them one at a time."""
        if is_far(len(self.ledger.digests) - 1 - self.ledger.position[newest]):
            self._context.emit(Send(peer=peer, message=self.members.heartbeat(now)))
        else:
            self._context.emit(*self._exchange.serve(self.ledger, peer, after=newest, now=now))

    def _send_settled(self, peer: PeerId, head: Sequence[Digest]) -> bool:
        """Send a member of a large roster that lacks only the last entry its certificate, the first time that it asks: it took
        part in that slot and has the rest of the entry, which is much longer. Return whether the certificate was sent."""
        entry = self._settled
        is_one_behind = entry is not None and tuple(head) == (entry.value.parent,)
        if entry is None or not is_one_behind or peer in self._served or peer not in self.slot.members:
            return False
        if not self._dissemination.proposer_announces:
            return False
        self._served[peer] = None
        value = canonical.digest_once(entry.value)
        final = Final(parent=entry.value.parent, value=value, certificate=entry.certificate)
        self._context.emit(Send(peer=peer, message=final))
        return True

    def _supply_settled(self, sender: PeerId, message: Pull) -> bool:
        """Send a member the reports that it lacks of the last entry here, of which it has the value and most of the rest.
        Return whether any were sent."""
        entry = self._settled
        if entry is None or message.parent != entry.value.parent or sender not in self.slot.members:
            return False
        if message.value != canonical.digest_once(entry.value):
            return False
        wanted = frozenset(lacking_of(message, entry.value))
        reports = tuple(signed for signed, digest in zip(entry.reports, entry.value.reports, strict=True) if digest in wanted)
        if reports:
            self._context.emit(Send(peer=sender, message=Supply(parent=message.parent, reports=reports)))
        return bool(reports)

    # --- catching up, and two histories ------------------------------------------------------------------------------

    def _on_heartbeat(self, sender: PeerId, message: Heartbeat, now: float) -> None:
        head = self.ledger.head
        is_member = sender in self.slot.members
        for statement in message.statements:
            self._context.statements.receive(statement, self.ledger, sender=sender, is_member=is_member)
        if is_member:
            self._emergency.note_head(sender, message.head.digest, now)
        if sender == self._exchange.beyond and message.head.digest in self.ledger.position:
            self._exchange.beyond = None
        if message.head.digest == head.digest:
            if is_member:
                self._pull_missing(sender, message.have, now)
        elif message.head.digest in self.ledger.position:
            if not self._send_settled(sender, (message.head.digest,)):
                self._help(sender, message.head.digest, now)
        else:
            self._context.emit(*self._exchange.announced(self, sender, message.head, now=now))
            if message.head.rank <= head.rank and not is_member:  # it may lack our history, which may win
                self._context.emit(Send(peer=sender, message=self.members.heartbeat(now)))

    def _pull_missing(self, sender: PeerId, have: int, now: float) -> None:
        """Pull reports that a member of the same slot holds, and the missing parts of the values that were named here."""
        if have and self._takes_part and self._dissemination.collects_reports(now):
            self.values.pull_reports(sender, have)
        named = [digest for _, digest in self.learner.ranked_proposals()]
        self.values.ask_again([*named, *sorted(self.learner.certificates())], sender)

    def _on_entries(self, sender: PeerId, message: Entries, now: float) -> None:
        if message.entries and sender in self.slot.members:
            self._emergency.note_head(sender, message.entries[-1].value.plan, now)
        self._context.emit(*self._exchange.follow(self, sender, message.entries, now=now))

    def follow_entry(self, entry: LedgerEntry, now: float) -> bool:
        """Append the next entry for the ledger exchange, unless it is an emergency that is not followed for now."""
        if self._is_contradicted(entry.certificate, entry.value.departed, now):
            return False
        self._append(entry, now)
        return True

    def follow_reorg(self, other: Ledger, now: float) -> None:
        reorg = switch_between(self.ledger, other)
        first = reorg.won[0]
        if not is_backed(reorg) and self._is_contradicted(first.certificate, first.value.departed, now):
            return
        self._context.emit(*(Persist(record=entry) for entry in reorg.won))
        for entry, parent in zip(reorg.won, [reorg.fork, *(entry.plan for entry in reorg.won)], strict=False):
            self._lone_lives.note(entry, parent)
        note_lost(self._slots, [first.value.parent, *(entry.value.plan for entry in reorg.lost)])
        self._settle(reorg.won)
        self.ledger = other
        self._exchange.beyond = None
        self._settled, self._served = None, {}
        for entry in reorg.won:
            self.members.note_seated(entry.value.joined, now)
        self._learn_rosters()
        self._open_slot(now)
        self._context.emit(reorg)

    def _is_contradicted(self, certificate: Certificate, departed: tuple[PeerId, ...], now: float) -> bool:
        return self._emergency.contradicts(self.slot, certificate, departed, ready_at=self.proposer.ready_at, now=now)


def decided_by(entry: LedgerEntry) -> Decided:
    """Return the outcome that hands the plan of an entry to the peer."""
    reports = tuple(signed.report for signed in entry.reports)
    return Decided(plan=entry.plan, reports=reports, decrees=entry.value.statements)
