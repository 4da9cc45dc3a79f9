"""One agreed plan per slot, without a leader.

A slot is the successor of one plan. Its proposers come in an order that a hash of that plan gives; the first may propose at
once, and when it is silent the next one takes over with a higher ballot.

    reports -> Proposal (ballot 0)                 -> Ack of a majority -> Vote of a majority -> the plan is final
            -> Prepare -> Promise of a majority -> Proposal (ballot > 0) -> ...

- A peer ACKS at most one value per ballot, none below a ballot it promised, and writes it down first. A proposer of a ballot
  above 0 repeats the value of the highest ballot that its promises name. So once a majority acked a value, no other value
  can be chosen in this slot by a majority that meets the first one (single-decree Paxos).
- A peer VOTES only for a value that a majority acked, for one value per slot in its whole life, and writes it down first.
  Where a partition made two values possible, a peer that voted for one stands aside when the other is settled.
  Its vote counts as an acceptance in its promises, so that the value is proposed again even if only this peer is left.
- Each ballot names the members that are ABSENT and count neither way. A peer takes part only if their leases have run out at
  its own clock too, or they said goodbye. Two ballots of one slot can therefore end with different values only if somebody
  who took part in one had been silent to everybody who took part in the other for a whole lease: a partition, or a crash.
- Votes that make a value final are its certificate, so that anybody who was not there can check it.

Small swarms hear every ack and vote themselves: final after one and a half round trips. In large ones acks and votes go to the
proposer, and what it says is passed on to a few peers each, so that the messages per peer stay the same.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from adloco_p2p.core.agreement.ledger_sync import LedgerExchange
from adloco_p2p.core.agreement.membership import ROSTERS_KEPT, Membership
from adloco_p2p.core.agreement.recovery import RecoveredState
from adloco_p2p.core.agreement.report_pool import ReportPool
from adloco_p2p.core.agreement.slot import Slot, slot_after
from adloco_p2p.core.ledger.fork_choice import switch_between
from adloco_p2p.core.ledger.ledger import Ledger
from adloco_p2p.core.ledger.validation import change_of, check_certificate, check_value
from adloco_p2p.core.model import canonical
from adloco_p2p.core.model.electorate import is_emergency, is_majority
from adloco_p2p.core.model.events import Broadcast, Decided, Outcome, Persist, ReportHeard, Send
from adloco_p2p.core.model.ledger_entry import (
    MAX_JOINS,
    Ballot,
    CastVote,
    Certificate,
    JoinRequest,
    LedgerEntry,
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
    Promised,
    Proposal,
    Pull,
    PullEntries,
    Refusal,
    SlotMessage,
    Supply,
    Voted,
)
from adloco_p2p.core.model.report_form import usable
from adloco_p2p.core.model.types import (
    MAX_BALLOT_JUMP,
    MAX_ROSTER,
    REPORT_LAG,
    Decide,
    Digest,
    PeerId,
    Report,
    RoundPlan,
    roster_of,
)

MAX_FINALS = 64
"""Values of one slot with a certificate that a peer remembers; only a partition makes a second one."""
STUCK_LEASES = 8
"""A slot that could have been settled for so long, and was not, is stuck: those here have voted for different values."""
MAX_OVERTAKEN = 16
"""So often a proposer may take more than its turn in a slot."""
MAX_EARLY = 256
"""Messages of a slot that this peer has not reached yet."""
REPORTERS_FIRST = 3
"""Proposers that get every report at once in a large swarm."""


class Consensus:
    """One peer's part in agreeing on plans. `GossipAgreement` calls it together with the membership it looks at."""

    def __init__(
        self,
        me: PeerId,
        *,
        sign: Sign,
        verify: Verify,
        decide: Decide,
        members: Membership,
        draw: Callable[[], float],
    ) -> None:
        self.me = me
        self.ledger: Ledger
        self.slot: Slot
        self.members = members
        self.timing = members.timing
        self._sign = sign
        self._verify = verify
        self._decide = decide
        self._draw = draw
        self._out: list[Outcome] = []
        self._reports = ReportPool(verify)
        self._held_now: dict[PeerId, Digest] | None = None
        """What `_held` says, until something changes it."""
        self._announced: dict[PeerId, Digest] | None = None
        self._heads: dict[PeerId, tuple[Digest, float]] = {}
        """Of members: where their ledger ended when they last said so themselves, and when that was."""
        self._early: dict[tuple[PeerId, str], tuple[PeerId, SlotMessage]] = {}
        self._exchange = LedgerExchange(decide, verify, period_seconds=self.timing.heartbeat_seconds)

    # --- entry points ------------------------------------------------------------------------------------------------

    def start(self, recovered: RecoveredState, now: float) -> list[Outcome]:
        """Take up the ledger and the promises that the journal holds."""
        self._last_now = now
        self.ledger = recovered.ledger
        self._learn_rosters()
        self._open_slot(now)
        self._restore(recovered)
        return self._flush(now)

    def submit(self, report: Report, now: float) -> list[Outcome]:
        """This peer's own report."""
        self._last_now = now
        unsigned = SignedReport(report=report, signature="")
        signed = replace(unsigned, signature=self._sign(unsigned.payload))
        self._keep_reports([signed])
        supply = Supply(parent=self.slot.digest, reports=(signed,))
        if self._is_direct:
            self._emit(Broadcast(message=supply))
        else:
            self._emit(
                *(Send(peer=peer, message=supply) for peer in self._live_order(now)[:REPORTERS_FIRST] if peer != self.me)
            )
        return self._flush(now)

    def receive(self, sender: PeerId, message: SlotMessage | PullEntries | Entries | Heartbeat, now: float) -> list[Outcome]:
        self._last_now = now
        self.ledger.forget_old()  # what earlier calls appended is persisted by now
        match message:
            case Heartbeat():
                self._on_heartbeat(sender, message, now)
            case PullEntries():
                self._emit(*self._exchange.answer(self.ledger, sender, message, now=now))
            case Entries():
                self._on_entries(sender, message, now)
            case Supply():
                self._on_supply(sender, message)
            case _:
                self._on_slot_message(sender, message, now)
        return self._flush(now)

    def tick(self, now: float) -> list[Outcome]:
        return self._flush(now)

    @property
    def next_deadline(self) -> float | None:
        """When the slot wants to be looked at without any message."""
        slot = self.slot
        if not self._takes_part or slot.parent.is_last or not self._may_propose(self._last_now):
            return None
        if slot.ready_at is not None:
            return self._attempt_due(self._last_now)
        graces = [
            start + seconds
            for start, seconds in (
                (slot.majority_at, self.timing.grace_seconds),
                (slot.first_at, self.timing.straggler_seconds),
            )
            if start is not None
        ]
        return min(graces, default=None)

    # --- the loop of one event ---------------------------------------------------------------------------------------

    def _flush(self, now: float) -> list[Outcome]:
        """Do everything that has become possible; hand out what it asks for, in order."""
        self._last_now = now
        while self._advance(now):
            pass
        self.members.head = self.ledger.head
        if self._announced is not self._held():
            self._announced = self._held()
            self.members.have = self._have()
        outcomes, self._out = self._out, []
        return outcomes

    @property
    def _takes_part(self) -> bool:
        return self._is_member and not self.members.is_passive

    def _advance(self, now: float) -> bool:
        """One step; false where nothing was left to do."""
        slot = self.slot
        if slot.parent.is_last:
            return False
        if self._finish(now):
            return True
        if self.members.is_passive:
            return False
        if not self._is_member:
            return self._recover_empty_roster(now)
        return self._cast_vote() or self._accept(now) or self._propose(now) or self._attempt(now)

    def _emit(self, *effects: Outcome) -> None:
        self._out.extend(effects)

    # --- the slot ----------------------------------------------------------------------------------------------------

    def _open_slot(self, now: float) -> None:
        self.slot = slot_after(self.ledger.plans[-1], self.ledger.digests[-1])
        roster, reported = self.slot.roster, self.ledger.reported
        next_round = self.slot.parent.round + 1
        reporters = roster if reported is None else (*roster, *roster_of(reported))
        self._reports.move(range(next_round - REPORT_LAG, next_round + 1), reporters)
        self._held_now = None
        self._is_member = self.me in roster
        self._is_direct = len(roster) <= self.timing.direct_limit
        self.members.set_roster(self.slot.digest, roster, now)
        self._heads = {peer: head for peer, head in self._heads.items() if peer in roster}
        early, self._early = self._early, {}
        for sender, message in early.values():
            self._on_slot_message(sender, message, now)

    def _learn_rosters(self) -> None:
        plans = self.ledger.plans[-ROSTERS_KEPT:]
        for plan, digest in zip(plans, self.ledger.digests[-len(plans) :], strict=True):
            self.members.learn_roster(digest, roster_of(plan))

    def _restore(self, recovered: RecoveredState) -> None:
        slot, promised, accepted = self.slot, recovered.promised, recovered.accepted
        slot.promised = max((record.ballot for record in (promised, accepted) if record is not None), default=None)
        if accepted is not None:
            digest = canonical.digest_once(accepted.value)
            slot.accepted = (accepted.ballot, digest)
            slot.values[digest] = accepted.value
            self._keep_reports(accepted.reports)
        slot.voted = recovered.voted.value if recovered.voted is not None else None

    def _live_order(self, now: float) -> list[PeerId]:
        """Proposers that somebody waits for."""
        return [
            peer
            for peer in self.slot.order
            if peer == self.me or (self.members.lease_valid(peer, now) and not self.members.is_suspect(peer, now))
        ]

    def _is_quorum(self, peers: Iterable[PeerId], absent: Sequence[PeerId]) -> bool:
        counted = frozenset(self.slot.counted(absent))
        return is_majority(len([peer for peer in peers if peer in counted]), len(counted))

    def _tell(self, message: SlotMessage) -> None:
        """To the whole roster: directly, or through a few that pass it on."""
        if self._is_direct:
            self._emit(Broadcast(message=message))
        else:
            self._pass_on(message, ())

    def _pass_on(self, message: SlotMessage, without: Sequence[PeerId]) -> None:
        if not self._is_direct:
            targets = self.members.sample_live(self.timing.fanout, self._last_now, without=without)
            self._emit(*(Send(peer=peer, message=message) for peer in targets))

    def _answer(self, proposer: PeerId, message: Ack | Vote) -> None:
        """Acks and votes: to everybody, or to the proposer that counts them."""
        if self._is_direct:
            self._emit(Broadcast(message=message))
        elif proposer != self.me:
            self._emit(Send(peer=proposer, message=message))

    # --- reports -----------------------------------------------------------------------------------------------------

    def _keep_reports(self, reports: Iterable[SignedReport]) -> None:
        for signed in reports:
            if self._reports.keep(signed):
                self._held_now = None
                if signed.report.peer != self.me:
                    self._emit(ReportHeard(report=signed.report))

    def _held(self) -> dict[PeerId, Digest]:
        """The reports that the next plan could use: one per peer, sorted by peer."""
        if self._held_now is None:
            reported = self.ledger.reported
            members = frozenset(roster_of(reported)) if reported is not None else frozenset()
            round = self.slot.parent.round + 1 - REPORT_LAG
            held = self._reports.about(round, self.ledger.digests[-REPORT_LAG]) if reported is not None else {}
            fit = usable(self._reports.get(tuple(held.values())), reported) if reported is not None else ()
            chosen = {signed.report.peer for signed in fit} & members
            self._held_now = {peer: digest for peer, digest in held.items() if peer in chosen}
        return self._held_now

    def _have(self) -> int:
        reported = self.ledger.reported
        if reported is None:
            return 0
        held = self._held()
        return sum(1 << index for index, peer in enumerate(roster_of(reported)) if peer in held)

    def _is_ready(self, now: float) -> bool:
        """All that are waited for have reported, or those who have not had their time. The electors among them make the
        majority: others are waited for, but for no longer than `grace_seconds`."""
        slot, reported = self.slot, self.ledger.reported
        if slot.ready_at is not None:
            return True
        held = self._held()
        members = frozenset(roster_of(reported)) if reported is not None else frozenset()
        expected = [peer for peer in self._live_order(now) if peer in members]
        present = len([peer for peer in expected if peer in held])
        deciding = [peer for peer in expected if peer in slot.electorate] or expected
        if slot.first_at is None and present:
            slot.first_at = now
        if slot.majority_at is None and is_majority(len([peer for peer in deciding if peer in held]), len(deciding)):
            slot.majority_at = now
        is_ready = (
            present == len(expected)
            or (slot.majority_at is not None and now >= slot.majority_at + self.timing.grace_seconds)
            or (slot.first_at is not None and now >= slot.first_at + self.timing.straggler_seconds)
        )
        if is_ready:
            slot.ready_at = now
        return is_ready

    # --- proposing ---------------------------------------------------------------------------------------------------

    def _may_propose(self, now: float) -> bool:
        """An elector may; others only where no elector is left."""
        electorate = self.slot.electorate
        return self.me in electorate or all(self.members.is_absent(peer, now) for peer in electorate)

    def _attempt_due(self, now: float) -> float:
        """When it is our turn, if nobody does anything: at once for the first that lives, later for the others."""
        slot = self.slot
        assert slot.ready_at is not None
        order = self._live_order(now)
        if slot.active_at is None:
            return slot.ready_at + order.index(self.me) * self.timing.ballot_timeout(len(slot.roster))
        last = slot.promised.peer if slot.promised is not None else None
        rank = [peer for peer in order if peer == self.me or peer != last].index(self.me)
        return slot.active_at + slot.ballot_timeout_seconds * (1 + rank)

    def _note_activity(self, now: float) -> None:
        self.slot.active_at = now
        self.slot.ballot_timeout_seconds = self.timing.ballot_timeout(len(self.slot.roster)) * (1 + self._draw() / 2)

    def _attempt(self, now: float) -> bool:
        """Begin a ballot if it is our turn."""
        slot = self.slot
        if not self._is_ready(now) or not self._may_propose(now) or now < self._attempt_due(now):
            return False
        self._note_activity(now)
        slot.absent = tuple(peer for peer in slot.roster if self.members.is_absent(peer, now))
        slot.promises, slot.has_proposed = {}, False
        if slot.promised is None and slot.order[0] == self.me:
            slot.ballot = Ballot(attempt=0, peer=self.me)
            self._publish(self._fresh_value(now))
            return True
        slot.ballot = Ballot(attempt=slot.promised.attempt + 1 if slot.promised else 1, peer=self.me)
        slot.promised = slot.ballot
        self._emit(Persist(record=Promised(parent=slot.digest, ballot=slot.ballot)))
        slot.promises[self.me] = Promise(parent=slot.digest, ballot=slot.ballot, accepted=slot.accepted)
        prepare = Prepare(parent=slot.digest, ballot=slot.ballot, absent=slot.absent)
        if self._is_direct:
            self._emit(Broadcast(message=prepare))
        else:
            others = [peer for peer in slot.counted(slot.absent) if peer != self.me]
            self._emit(*(Send(peer=peer, message=prepare) for peer in others))
        return True

    def _propose(self, now: float) -> bool:
        """With promises of a majority: repeat what was accepted in the highest ballot, or make a value."""
        slot = self.slot
        if slot.ballot is None or slot.has_proposed or slot.ballot != slot.promised:
            return False
        if not self._is_quorum(slot.promises, slot.absent):
            return False
        if any(self.members.lease_valid(peer, now) for peer in slot.absent):
            self._try_again(now)
            return False
        locked = self._locked_value()
        if locked is None:
            self._publish(self._fresh_value(now))
            return True
        value = slot.values.get(locked)
        if value is None or not isinstance(self._plan_of(locked), RoundPlan):
            return False
        if self._evicts_the_living(locked) and not self._has_everybody_promised(now):
            return False  # more promises may show that it need not be repeated
        self._publish(value)
        return True

    def _locked_value(self) -> Digest | None:
        """The value of the highest ballot that a majority of promises names.

        Any majority will do. Where the promises of one name no value that is wrong, cannot be had, or leaves out somebody who
        is there again, that one decides: others would refuse such a value for as long as the peer lives. Where those that
        accepted it are half or more there is no such majority, and it is proposed again.
        """
        accepted = {peer: promise.accepted for peer, promise in self.slot.promises.items()}
        while True:
            highest = max((item for item in accepted.values() if item is not None), default=None)
            if highest is None:
                return None
            others = {peer: item for peer, item in accepted.items() if item is None or item[1] != highest[1]}
            is_wanted = isinstance(self._plan_of(highest[1]), RoundPlan) and not self._evicts_the_living(highest[1])
            if is_wanted or not self._is_quorum(others, self.slot.absent):
                return highest[1]
            accepted = others

    def _evicts_the_living(self, digest: Digest) -> bool:
        value = self.slot.values.get(digest)
        return value is not None and any(self._is_counted(peer) for peer in value.departed)

    def _has_everybody_promised(self, now: float) -> bool:
        slot = self.slot
        return all(peer in slot.promises for peer in slot.counted(slot.absent) if self.members.lease_valid(peer, now))

    def _fresh_value(self, now: float) -> Value:
        """The plan that follows from what this peer holds now."""
        room = MAX_ROSTER - len(self.slot.roster)
        return self._value_of(self.members.candidates(now)[: max(0, min(MAX_JOINS, room))])

    def _value_of(self, joined: Sequence[JoinRequest]) -> Value:
        slot = self.slot
        held = self._held()
        value = Value(
            round=slot.parent.round + 1,
            parent=slot.digest,
            reports=tuple(held.values()),
            joined=tuple(joined),
            departed=slot.absent,
            plan=Digest(""),
        )
        reports = tuple(signed.report for signed in self._reports.get(value.reports))
        plan = self._decide(slot.parent, reports, change_of(value, reports, self.ledger))
        value = replace(value, plan=canonical.digest_once(plan))
        self._keep_value(value, self.me)
        return value

    def _publish(self, value: Value) -> None:
        """Accept it ourselves first: what a proposer forgets in a crash it could propose differently afterwards."""
        slot = self.slot
        assert slot.ballot is not None
        slot.has_proposed = True
        unsigned = Proposal(ballot=slot.ballot, absent=slot.absent, value=value, signature="")
        proposal = replace(unsigned, signature=self._sign(unsigned.payload))
        digest = canonical.digest_once(value)
        slot.proposals[self.me] = (proposal, digest)
        self._acceptance(proposal, digest)
        self._tell(proposal)  # which is the proposer's ack, too

    def _recover_empty_roster(self, now: float) -> bool:
        """When the whole roster has died, the first of those who were on it before goes on alone and admits the others. Who
        never was on it has nothing to go on with, and may just not have reached anybody yet."""
        slot = self.slot
        if any(not self.members.is_absent(peer, now) for peer in slot.roster):
            slot.empty_since = None
            return False
        if slot.empty_since is None:
            slot.empty_since = now
        if now < slot.empty_since + self.members.lease_seconds:  # until the join requests have got around
            return False
        heirs = sorted([self.members.join_request(), *self.members.candidates(now)], key=lambda join: join.peer)
        members = self.ledger.members()
        if self.me != next((join.peer for join in heirs if join.peer in members), None):
            return False
        slot.absent, slot.ballot = slot.roster, Ballot(attempt=1, peer=self.me)
        value = self._value_of(heirs[:MAX_JOINS])
        digest = canonical.digest_once(value)
        vote = self._vote(slot.ballot, digest, slot.absent, abstains=False)
        cast = CastVote(peer=self.me, abstains=False, signature=vote.signature)
        self._append_value(digest, Certificate(ballot=slot.ballot, absent=slot.absent, votes=(cast,)), now)
        return True

    # --- accepting and voting ----------------------------------------------------------------------------------------

    def _accept(self, now: float) -> bool:
        """Ack the highest proposal that no promise forbids, once its value is checked."""
        slot = self.slot
        for proposal, digest in self.slot.ranked_proposals():
            if slot.promised is not None and proposal.ballot < slot.promised:
                return False
            if slot.accepted is not None and slot.accepted[0] >= proposal.ballot:
                return False
            if not isinstance(self._plan_of(digest), RoundPlan):
                continue
            if self.me not in slot.counted(proposal.absent):
                if slot.refused.get(proposal.ballot.peer) != proposal.ballot:
                    slot.refused[proposal.ballot.peer] = proposal.ballot
                    self._pass_on(proposal, (proposal.ballot.peer,))
                continue
            silent = self._to_be_silent(proposal, digest)
            if slot.refused.get(proposal.ballot.peer) == proposal.ballot and any(map(self._is_counted, silent)):
                continue
            if self._refuse(proposal.ballot, silent, now):
                slot.refused[proposal.ballot.peer] = proposal.ballot
                return True
            ack = self._acceptance(proposal, digest)
            self._pass_on(proposal, (proposal.ballot.peer,))
            self._answer(proposal.ballot.peer, ack)
            return True
        return False

    def _acceptance(self, proposal: Proposal, digest: Digest) -> Ack:
        """Write down that we accept; the caller says so."""
        slot = self.slot
        assert slot.promised is None or proposal.ballot >= slot.promised
        slot.promised = proposal.ballot
        self._remember_accepted(proposal, digest)
        ack = Ack(parent=slot.digest, ballot=proposal.ballot, value=digest)
        slot.acks[self.me] = ack
        return ack

    def _remember_accepted(self, proposal: Proposal, digest: Digest) -> None:
        """The value of the highest ballot: what our promises name, and what we propose."""
        self.slot.accepted = (proposal.ballot, digest)
        reports = self._reports.get(proposal.value.reports)
        self._emit(Persist(record=Accepted(ballot=proposal.ballot, value=proposal.value, reports=reports)))

    def _to_be_silent(self, proposal: Proposal, digest: Digest) -> list[PeerId]:
        """Members that must be silent for the proposal to be right: those that do not count in its ballot, and those that its
        value takes off the roster.

        A value that was proposed before keeps the departures of its first time, and somebody may be there again. Nothing is
        believed of the proposer about that. A peer that accepted the value before accepts it again, since a majority may have
        chosen it, with this acceptance. Another one accepts it if half of those that count do: then no majority without them
        is left that could decide otherwise (`_locked_value`), and a minority of liars evicts nobody. In a large roster acks go
        to the proposer only, and just the first of the two rules holds.
        """
        slot = self.slot
        has_backed = slot.voted == digest or (slot.accepted is not None and slot.accepted[1] == digest)
        departed = () if has_backed or self._is_backed_by_half(proposal, digest) else proposal.value.departed
        return sorted({*proposal.absent, *departed})

    def _is_backed_by_half(self, proposal: Proposal, digest: Digest) -> bool:
        counted = self.slot.counted(proposal.absent)
        acks = [self.slot.acks.get(peer) for peer in counted]
        backers = [ack for ack in acks if ack is not None and (ack.ballot, ack.value) == (proposal.ballot, digest)]
        return 2 * len(backers) >= len(counted)

    def _refuse(self, ballot: Ballot, silent: Sequence[PeerId], now: float) -> bool:
        alive = [peer for peer in silent if self.members.lease_valid(peer, now)]
        promised = self.slot.promised
        if not alive and (promised is None or promised <= ballot):
            return False
        refusal = Refusal(
            parent=self.slot.digest,
            ballot=ballot,
            promised=promised,
            alive=tuple((peer, self.members.beat_of(peer)) for peer in alive),
        )
        self._emit(Send(peer=ballot.peer, message=refusal))
        return True

    def _cast_vote(self) -> bool:
        """Vote for a value that a majority acked; stand aside if our vote in this slot is given to another."""
        slot = self.slot
        for proposal, digest in self._settled():
            ballot, absent = proposal.ballot, proposal.absent
            own = slot.votes.get(self.me)
            if (own is not None and own.ballot >= ballot) or self.me not in slot.counted(absent):
                continue
            if not isinstance(self._plan_of(digest), RoundPlan):
                continue
            if slot.accepted != (ballot, digest) and any(map(self._is_counted, self._to_be_silent(proposal, digest))):
                continue  # a proposer that says a majority accepted may lie about that, and about who is absent
            if not self._is_direct and ballot.peer == self.me:
                self._tell_chosen(ballot, digest)
            abstains = not self._may_vote(digest)
            if not abstains:
                if slot.accepted is None or slot.accepted[0] < ballot:
                    self._remember_accepted(proposal, digest)  # so that even after a restart we can propose it again
                slot.voted = digest
                self._emit(Persist(record=Voted(parent=slot.digest, value=digest)))
            vote = self._vote(ballot, digest, absent, abstains=abstains)
            slot.votes[self.me] = vote
            self._answer(ballot.peer, vote)
            return True
        return False

    def _vote(self, ballot: Ballot, value: Digest, absent: tuple[PeerId, ...], *, abstains: bool) -> Vote:
        unsigned = Vote(
            peer=self.me,
            parent=self.slot.digest,
            ballot=ballot,
            absent=absent,
            value=value,
            abstains=abstains,
            signature="",
        )
        return replace(unsigned, signature=self._sign(unsigned.payload))

    def _may_vote(self, digest: Digest) -> bool:
        return self.slot.voted is None or self.slot.voted == digest

    def _is_counted(self, peer: PeerId) -> bool:
        return self.members.lease_valid(peer, self._last_now)

    def _settled(self) -> list[tuple[Proposal, Digest]]:
        """Proposals whose value a majority acked, highest ballot first."""
        slot = self.slot
        settled = []
        for proposal, digest in self.slot.ranked_proposals():
            backers = [peer for peer, ack in slot.acks.items() if (ack.ballot, ack.value) == (proposal.ballot, digest)]
            chosen = slot.chosen.get(proposal.ballot.peer)
            is_told = chosen is not None and (chosen.ballot, chosen.value) == (proposal.ballot, digest)
            if is_told or self._is_quorum(backers, proposal.absent):
                settled.append((proposal, digest))
        return settled

    def _tell_chosen(self, ballot: Ballot, digest: Digest) -> None:
        unsigned = Chosen(parent=self.slot.digest, ballot=ballot, value=digest, signature="")
        self.slot.chosen[self.me] = replace(unsigned, signature=self._sign(unsigned.payload))
        self._pass_on(self.slot.chosen[self.me], ())

    # --- final -------------------------------------------------------------------------------------------------------

    def _finish(self, now: float) -> bool:
        """Append the value that a certificate makes final."""
        for digest, certificate in sorted(self.slot.certificates().items()):
            if not isinstance(self._plan_of(digest), RoundPlan):
                continue
            departed = self.slot.values[digest].departed
            if self.slot.voted == digest or not self._is_contradicted(certificate, departed, now):
                self._pass_on(Final(parent=self.slot.digest, value=digest, certificate=certificate), ())
                self._append_value(digest, certificate, now)
                return True
        return False

    def _is_contradicted(self, certificate: Certificate, departed: Sequence[PeerId], now: float) -> bool:
        """Whether a successor of our own head is an emergency that we see no sign of, so that it is not followed for now.

        It rests on less than a majority of the electorate and leaves out somebody who lives here and stands where we stand.
        That counts while more than half of those who decide, as far as they live and told us their head within a lease, stand
        with us: they can go on without it. Where most are ahead it happened while we were away, and we follow; as we do where
        those here had their time and did not go on.
        """
        ready_at = self.slot.ready_at
        is_stuck = ready_at is not None and now > ready_at + STUCK_LEASES * self.members.lease_seconds
        if is_stuck or not is_emergency(certificate, self.slot.parent):
            return False
        lease = self.members.lease_seconds
        deciding = self.slot.counted([peer for peer in self.slot.roster if not self.members.lease_valid(peer, now)])
        heads = {peer: digest for peer, (digest, at) in self._heads.items() if now - at <= lease and peer in deciding}
        with_us = {peer for peer, digest in heads.items() if digest in self.ledger.position}
        num_heard = len(heads)
        if self.me in deciding and not self.members.is_passive:
            with_us.add(self.me)
            num_heard += 1
        return not with_us.isdisjoint({*certificate.absent, *departed}) and is_majority(len(with_us), num_heard)

    def _append_value(self, digest: Digest, certificate: Certificate, now: float) -> None:
        plan, value = self._plan_of(digest), self.slot.values[digest]
        assert isinstance(plan, RoundPlan)
        reports = self._reports.get(value.reports)
        self._append(LedgerEntry(plan=plan, value=value, reports=reports, certificate=certificate), now)

    def _append(self, entry: LedgerEntry, now: float) -> None:
        """Write it down, then act on it."""
        self._emit(Persist(record=entry))
        self.ledger.append(entry)
        self._exchange.forget_other()
        self._open_slot(now)
        self._emit(Decided(plan=entry.plan, reports=tuple(signed.report for signed in entry.reports)))

    # --- values ------------------------------------------------------------------------------------------------------

    def _keep_value(self, value: Value, source: PeerId) -> Digest:
        digest = canonical.digest_once(value)
        self.slot.keep(value, digest, source)
        return digest

    def _plan_of(self, digest: Digest) -> RoundPlan | str | None:
        """The plan of a value, or what is wrong with it; none while the value or a report of it is missing."""
        slot = self.slot
        known = slot.plans.get(digest)
        if known is not None:
            return known
        value = slot.values.get(digest)
        if value is None or any(report not in self._reports for report in value.reports):
            return None
        if value.round != slot.parent.round + 1 or value.parent != slot.digest:
            return "it does not follow its parent"
        slot.plans[digest] = check_value(
            value,
            self._reports.get(value.reports),
            ledger=self.ledger,
            decide=self._decide,
            verify=self._verify,
            are_verified=True,
        )
        return slot.plans[digest]

    def _ask_for(self, digest: Digest, source: PeerId) -> None:
        """Pull a value, or the reports that it lacks, from a peer that has them."""
        slot = self.slot
        slot.sources.setdefault(digest, source)
        value = slot.values.get(digest)
        if source == self.me or not self._is_incomplete(digest):
            return
        lacking = () if value is None else tuple(report for report in value.reports if report not in self._reports)
        self._emit(Send(peer=source, message=Pull(parent=slot.digest, value=None if value else digest, reports=lacking)))

    def _is_incomplete(self, digest: Digest) -> bool:
        return self._plan_of(digest) is None

    # --- messages of a slot ------------------------------------------------------------------------------------------

    def _on_slot_message(self, sender: PeerId, message: SlotMessage, now: float) -> None:
        if message.parent != self.slot.digest:
            self._on_other_slot(sender, message, now)
            return
        if self.slot.parent.is_last or (sender not in self.slot.roster and not isinstance(message, Pull)):
            return
        if self._exceeds_ballot_jump(message):
            return
        match message:
            case Prepare():
                self._on_prepare(sender, message, now)
            case Promise():
                self._on_promise(sender, message)
            case Refusal():
                self._on_refusal(sender, message, now)
            case Proposal():
                self._on_proposal(sender, message, now)
            case Ack():
                self._on_ack(sender, message)
            case Chosen():
                self._on_chosen(sender, message)
            case Vote():
                self._on_vote(sender, message)
            case Final():
                self._on_final(sender, message)
            case Pull():
                self._on_pull(sender, message)
            case Supply():
                self._on_supply(sender, message)

    def _exceeds_ballot_jump(self, message: SlotMessage) -> bool:
        """It names a ballot to which nobody has come by honest attempts: the next one might be more than can be named."""
        reached = self.slot.promised.attempt if self.slot.promised else 0
        named = (getattr(message, "ballot", None), getattr(message, "promised", None))
        return any(ballot is not None and ballot.attempt > reached + MAX_BALLOT_JUMP for ballot in named)

    def _on_other_slot(self, sender: PeerId, message: SlotMessage, now: float) -> None:
        """Help a peer that is behind; keep what is ahead until we get there, and catch up."""
        if message.parent in self.ledger.position:
            is_lost = isinstance(message, Prepare | Pull) or (isinstance(message, Proposal) and message.ballot.peer == sender)
            if is_lost:
                self._emit(*self._exchange.serve(self.ledger, sender, after=message.parent, now=now))
            return
        key = (sender, type(message).__name__)
        if sender in self.slot.roster and (key in self._early or len(self._early) < MAX_EARLY):
            self._early[key] = (sender, message)
        self._emit(*self._exchange.ask_for_help(self.ledger, sender, now=now))

    def _on_prepare(self, sender: PeerId, message: Prepare, now: float) -> None:
        slot = self.slot
        counted = slot.counted(message.absent)
        has_no_say = self.me not in counted and self.me not in message.absent
        if message.ballot.peer != sender or not self._takes_part or sender not in counted or has_no_say:
            return
        if self._refuse(message.ballot, message.absent, now) or not self._heed(message.ballot, now):
            return
        if slot.promised != message.ballot:
            slot.promised = message.ballot
            self._emit(Persist(record=Promised(parent=slot.digest, ballot=message.ballot)))
        self._emit(Send(peer=sender, message=Promise(parent=slot.digest, ballot=message.ballot, accepted=slot.accepted)))
        own = self._held().get(self.me)
        if own is not None and not self._is_direct:
            self._emit(Send(peer=sender, message=Supply(parent=slot.digest, reports=self._reports.get([own]))))

    def _heed(self, ballot: Ballot, now: float) -> bool:
        """Give the ballot its time, if it is to be heeded. A proposer that takes more than its turn again and again overtakes
        nobody any more, and others need not wait for it."""
        slot = self.slot
        is_over = slot.active_at is None or now >= slot.active_at + slot.ballot_timeout_seconds
        is_own_again = slot.promised is not None and slot.promised.peer == ballot.peer
        overtaken = slot.overtaken.get(ballot.peer, 0)
        if is_over and not is_own_again:
            self._note_activity(now)
            return True
        slot.overtaken[ballot.peer] = overtaken + 1
        if overtaken < MAX_OVERTAKEN:
            self._note_activity(now)
            return True
        return is_own_again

    def _on_promise(self, sender: PeerId, message: Promise) -> None:
        slot = self.slot
        if message.ballot != slot.ballot or slot.has_proposed:
            return
        slot.promises[sender] = message
        if message.accepted is not None:
            self._ask_for(message.accepted[1], sender)

    def _on_refusal(self, sender: PeerId, message: Refusal, now: float) -> None:
        """Give way to a higher ballot; or, knowing now who lives, try again soon."""
        slot = self.slot
        for peer, beat in message.alive:
            if peer in slot.roster:
                self.members.hear(peer, beat, now)
        if message.ballot != slot.ballot:
            return
        is_counted = sender in slot.counted(slot.absent)
        if is_counted and message.promised is not None and (slot.promised is None or message.promised > slot.promised):
            slot.promised = message.promised
            self._emit(Persist(record=Promised(parent=slot.digest, ballot=message.promised)))
            self._note_activity(now)
        elif message.alive and not slot.has_proposed:
            self._try_again(now)

    def _try_again(self, now: float) -> None:
        """Somebody whom our ballot leaves out is there after all: drop it, begin another one soon."""
        slot = self.slot
        slot.ballot = None
        slot.active_at = now - slot.ballot_timeout_seconds * (0.5 + self._draw() / 2)

    def _on_proposal(self, sender: PeerId, message: Proposal, now: float) -> None:
        slot, proposer = self.slot, message.ballot.peer
        known = slot.proposals.get(proposer)
        if known is not None and known[0].ballot >= message.ballot:
            return
        if proposer not in slot.counted(message.absent) or (message.ballot.attempt == 0 and proposer != slot.order[0]):
            return
        if not self._verify(proposer, message.payload, message.signature):
            return
        digest = canonical.digest_once(message.value)
        slot.proposals[proposer] = (message, digest)
        self._keep_value(message.value, sender)
        self._on_ack(proposer, Ack(parent=slot.digest, ballot=message.ballot, value=digest))
        if slot.promised is None or message.ballot >= slot.promised:
            self._heed(message.ballot, now)
        elif self._takes_part:
            self._refuse(message.ballot, (), now)
        self._ask_for(digest, sender)

    def _on_ack(self, sender: PeerId, message: Ack) -> None:
        known = self.slot.acks.get(sender)
        if known is None or known.ballot < message.ballot:
            self.slot.acks[sender] = message

    def _on_chosen(self, sender: PeerId, message: Chosen) -> None:
        slot, proposer = self.slot, message.ballot.peer
        known = slot.chosen.get(proposer)
        if proposer not in slot.roster or (known is not None and known.ballot >= message.ballot):
            return
        if self._verify(proposer, message.payload, message.signature):
            slot.chosen[proposer] = message
            self._pass_on(message, (sender, proposer))

    def _on_vote(self, sender: PeerId, message: Vote) -> None:
        slot = self.slot
        known = slot.votes.get(message.peer)
        if message.peer not in slot.roster or (known is not None and known.ballot >= message.ballot):
            return
        if self._verify(message.peer, message.payload, message.signature):
            slot.votes[message.peer] = message
            self._ask_for(message.value, sender)

    def _on_final(self, sender: PeerId, message: Final) -> None:
        slot = self.slot
        if message.value in slot.finals or len(slot.finals) >= MAX_FINALS:
            return
        wrong = check_certificate(
            message.certificate, value=message.value, parent=slot.parent, parent_digest=slot.digest, verify=self._verify
        )
        if not wrong:
            slot.finals[message.value] = message.certificate
            self._ask_for(message.value, sender)

    def _on_pull(self, sender: PeerId, message: Pull) -> None:
        held = self._held()
        wanted = [*message.reports, *(held[peer] for peer in message.reporters if peer in held)]
        reports = self._reports.get(wanted)
        value = self.slot.values.get(message.value) if message.value is not None else None
        if reports or value is not None:
            self._emit(Send(peer=sender, message=Supply(parent=message.parent, value=value, reports=reports)))

    def _on_supply(self, sender: PeerId, message: Supply) -> None:
        """Reports are signed. A value is not: it is taken from a member, and only if another one stands for it."""
        self._keep_reports(message.reports)
        slot, value = self.slot, message.value
        if value is None or message.parent != slot.digest or sender not in slot.roster:
            return
        digest = canonical.digest_once(value)
        if digest in slot.named():
            self._keep_value(value, slot.sources.get(digest, sender))
            self._ask_for(digest, slot.sources[digest])

    # --- catching up, and two histories ------------------------------------------------------------------------------

    def _on_heartbeat(self, sender: PeerId, message: Heartbeat, now: float) -> None:
        head = self.ledger.head
        is_member = sender in self.slot.roster
        if is_member:
            self._heads[sender] = (message.head.digest, now)
        if message.head.digest == head.digest:
            if is_member:
                self._pull_reports(sender, message, now)
                self._retry(sender)
        elif message.head.digest in self.ledger.position:
            self._emit(*self._exchange.serve(self.ledger, sender, after=message.head.digest, now=now))
        elif message.head.rank > head.rank:
            self._emit(self._exchange.pull(self.ledger, sender))
        elif not is_member:
            self._emit(Send(peer=sender, message=self.members.heartbeat(now)))

    def _pull_reports(self, sender: PeerId, message: Heartbeat, now: float) -> None:
        """Reports that the sender holds and we lack; in a large swarm only for those who may propose."""
        reported = self.ledger.reported
        if reported is None or not self._takes_part or not message.have:
            return
        if not self._is_direct and self.me not in self._live_order(now)[:REPORTERS_FIRST]:
            return
        bits = message.have
        held = self._held()
        roster = roster_of(reported)
        lacking = tuple(peer for index, peer in enumerate(roster) if bits >> index & 1 and peer not in held)
        if lacking:
            self._emit(Send(peer=sender, message=Pull(parent=self.slot.digest, reporters=lacking)))

    def _retry(self, sender: PeerId) -> None:
        """A value that still lacks something is asked for again, of whoever is in the same slot."""
        wanted = [digest for _, digest in self.slot.ranked_proposals()]
        wanted += sorted(self.slot.certificates())
        for digest in dict.fromkeys(wanted):
            if self._is_incomplete(digest):
                self._ask_for(digest, sender)

    def _on_entries(self, sender: PeerId, message: Entries, now: float) -> None:
        """Follow our own ledger's continuation at once; collect another history until it outranks ours, then switch."""
        before = self.ledger.head
        if message.entries and sender in self.slot.roster:
            self._heads[sender] = (message.entries[-1].value.plan, now)
        for entry in message.entries:
            if entry.value.plan in self.ledger.position:
                continue
            continued = self._exchange.continued_by(self.ledger, entry)
            if continued is None:
                return
            if continued is self.ledger:
                if self._is_contradicted(entry.certificate, entry.value.departed, now):
                    return  # asked for again when a heartbeat names it again
                self._append(entry, now)
            elif continued.head.rank > self.ledger.head.rank:
                self._switch(continued, now)
        if self._exchange.is_collecting or self.ledger.head != before:
            self._emit(self._exchange.pull(self.ledger, sender))

    def _switch(self, other: Ledger, now: float) -> None:
        switched = switch_between(self.ledger, other)
        first = switched.won[0]
        if not switched.lost and self._is_contradicted(first.certificate, first.value.departed, now):
            self._exchange.forget_other()
            return
        self._emit(*(Persist(record=entry) for entry in switched.won))
        self.ledger = other
        self._exchange.forget_other()
        self._learn_rosters()
        self._open_slot(now)
        self._emit(switched)
