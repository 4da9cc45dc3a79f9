"""Agreeing on plans, step by step: what is sent, what is persisted before, and what is refused."""

from collections.abc import Sequence
from dataclasses import replace
from typing import TypeVar

import pytest

from adloco_p2p.core.agreement.gossip_agreement import GossipAgreement
from adloco_p2p.core.agreement.membership import Timing
from adloco_p2p.core.ledger.ledger import Ledger, Recall
from adloco_p2p.core.ledger.validation import check_entry, verify_ledger
from adloco_p2p.core.model import canonical
from adloco_p2p.core.model.certificate import Ballot
from adloco_p2p.core.model.effects import Broadcast, Persist, Send
from adloco_p2p.core.model.events import PeerGone
from adloco_p2p.core.model.ledger_entry import LedgerEntry, Reorg, SignedReport, Vote
from adloco_p2p.core.model.messages import (
    Accepted,
    Ack,
    Chosen,
    Entries,
    Final,
    Heartbeat,
    Incarnation,
    Prepare,
    Promise,
    Promised,
    Proposal,
    PullEntries,
    Refusal,
    Supply,
    Voted,
)
from adloco_p2p.core.model.outcomes import Decided, Outcome
from adloco_p2p.core.model.plan import RosterChange, RoundPlan
from adloco_p2p.core.model.report import Report
from adloco_p2p.core.model.rules import Rules, WorkRules
from adloco_p2p.core.model.scalars import Digest, PeerId
from adloco_p2p.core.planning.round_plan import genesis, next_plan
from adloco_p2p.sim.identities import sign, verify
from tests.core.core_values import RUN, capacity, peer

T = TypeVar("T")
RULES = Rules(work=WorkRules(rounds=20))
NOW = 100.0


def decide(parent: RoundPlan, reports: Sequence[Report], change: RosterChange) -> RoundPlan:
    return next_plan(parent, reports, RULES, roster=change)


def first_plan(size: int) -> RoundPlan:
    return genesis(RUN, [(peer(index), capacity()) for index in range(size)], RULES)


def recall_from(journal: Sequence[object]) -> Recall:
    """Looks the entry up in what was persisted."""

    def recall(digest: Digest) -> LedgerEntry:
        return next(record for record in journal if isinstance(record, LedgerEntry) and record.value.plan == digest)

    return recall


def agreement(me: PeerId, plan: RoundPlan, *, journal: Sequence[object] = (), first_incarnation: int = 1) -> GossipAgreement:
    return GossipAgreement(
        me,
        genesis=plan,
        records=tuple(journal),
        recall=recall_from(journal),
        contacts=(),
        capacity=capacity(),
        decide=decide,
        sign=lambda payload: sign(me, payload),
        verify=verify,
        draw=lambda: 0.5,
        timing=Timing(),
        first_incarnation=first_incarnation,
    )


class Swarm:
    """Peers whose messages arrive when a test says so."""

    def __init__(self, size: int) -> None:
        self.genesis = first_plan(size)
        self.journals: dict[PeerId, list[object]] = {roster_entry.peer: [] for roster_entry in self.genesis.roster}
        self.peers = {name: agreement(name, self.genesis, journal=journal) for name, journal in self.journals.items()}
        self.plans: dict[PeerId, list[RoundPlan]] = {name: [] for name in self.peers}
        self.mail: list[tuple[PeerId, PeerId, object]] = []
        self.switched: list[Reorg] = []
        self.gone: list[tuple[PeerId, PeerId]] = []
        """The peer that reports it, and the one that is gone."""
        self.now = NOW
        for name, each in self.peers.items():
            self.take(name, each.start((self.genesis,), (), self.now))

    @property
    def order(self) -> tuple[PeerId, ...]:
        return self.peers[peer(0)].consensus.slot.order

    def take(self, name: PeerId, outcomes: Sequence[Outcome]) -> None:
        for outcome in outcomes:
            match outcome:
                case Persist(record=record):
                    self.journals[name].append(record)
                case Send(peer=to, message=message):
                    self.mail.append((name, to, message))
                case Broadcast(message=message):
                    self.mail += [(name, to, message) for to in self.peers if to != name]
                case Decided(plan=plan):
                    self.plans[name].append(plan)
                case Reorg():
                    self.switched.append(outcome)
                case PeerGone(peer=peer):
                    self.gone.append((name, peer))

    def deliver(self, *, to: Sequence[PeerId] | None = None) -> None:
        """Everything that is under way and what follows from it; what is not for these peers is lost."""
        while self.mail:
            sender, receiver, message = self.mail.pop(0)
            if to is None or (receiver in to and sender in to):
                self.take(receiver, self.peers[receiver].receive(sender, message, self.now))

    def report(self, name: PeerId, round: int) -> None:
        plan = self.peers[name].ledger.plans[round]
        report = Report(peer=name, round=round, plan=canonical.digest(plan), capacity=capacity())
        self.take(name, self.peers[name].submit(report, self.now))

    def pass_time(self, seconds: int, *, among: Sequence[PeerId]) -> None:
        for _ in range(seconds):
            self.now += 1.0
            for name in among:
                self.take(name, self.peers[name].tick(self.now))
            self.deliver(to=among)


def spread(swarm: Swarm, *, to: Sequence[PeerId]) -> None:
    """As `deliver`, in a large roster: what is passed on by gossip reaches all of these."""
    told: dict[Digest, None] = {}
    while swarm.mail:
        sender, receiver, message = swarm.mail.pop(0)
        receivers = [receiver]
        if isinstance(message, Proposal | Chosen | Final):
            digest = canonical.digest(message)
            receivers = [name for name in to if name != sender] if digest not in told else []
            told[digest] = None
        for name in receivers:
            if name in to:
                swarm.take(name, swarm.peers[name].receive(sender, message, swarm.now))


def said(swarm: Swarm, kind: type[T]) -> list[T]:
    return [message for _, _, message in swarm.mail if isinstance(message, kind)]


def test_a_peer_alone_decides_in_the_same_call() -> None:
    swarm = Swarm(1)
    assert [plan.round for plan in swarm.plans[peer(0)]] == [1]
    for round in range(5):
        swarm.report(peer(0), round)
    assert [plan.round for plan in swarm.plans[peer(0)]] == [1, 2, 3, 4, 5, 6]
    assert swarm.now == NOW


def test_all_get_the_same_plan_and_a_certificate_that_anybody_can_check() -> None:
    swarm = Swarm(5)
    swarm.deliver()
    for name in swarm.peers:
        swarm.report(name, 0)
    swarm.deliver()
    heads = {each.ledger.head for each in swarm.peers.values()}
    assert len(heads) == 1 and next(iter(heads)).round == 2
    for each in swarm.peers.values():
        assert verify_ledger(swarm.genesis, each.ledger.entries, decide, verify) == []
    assert len(swarm.peers[peer(0)].ledger.entries[1].reports) == 5


def test_what_is_said_was_written_down_before() -> None:
    swarm = Swarm(3)
    first = swarm.order[0]
    records = swarm.journals[first]
    assert [type(record) for record in records] == [Incarnation, Accepted]
    proposal = said(swarm, Proposal)[0]
    other = swarm.order[1]
    outcomes = swarm.peers[other].receive(first, proposal, NOW)
    kinds = [
        type(o.record) if isinstance(o, Persist) else type(o.message) for o in outcomes if isinstance(o, Persist | Broadcast)
    ]
    assert kinds == [Accepted, Ack, Voted, Vote]


def test_after_a_restart_no_other_value_is_accepted_in_the_ballot_and_no_other_voted_for() -> None:
    swarm = Swarm(3)
    first, second, _ = swarm.order
    proposal = said(swarm, Proposal)[0]
    swarm.take(second, swarm.peers[second].receive(first, proposal, NOW))
    voted = [record for record in swarm.journals[second] if isinstance(record, Voted)]
    assert len(voted) == 1

    again = agreement(second, swarm.genesis, journal=swarm.journals[second])
    again.start((), (), NOW)
    assert again.consensus.acceptor.voted == voted[0].value
    assert again.consensus.acceptor.accepted == (proposal.ballot, canonical.digest(proposal.value))
    other = replace(proposal, value=replace(proposal.value, departed=(second,)), signature="")
    forged = replace(other, signature=sign(first, other.payload))
    outcomes = again.receive(first, forged, NOW)
    assert not [o for o in outcomes if isinstance(o, Broadcast) and isinstance(o.message, Ack | Vote)]


def test_a_first_proposer_that_restarts_does_not_use_its_ballot_again() -> None:
    swarm = Swarm(3)
    first = swarm.order[0]
    again = agreement(first, swarm.genesis, journal=swarm.journals[first])
    outcomes = again.start((), (), NOW)
    assert not [o for o in outcomes if isinstance(o, Broadcast) and isinstance(o.message, Proposal)]


def test_when_the_first_is_silent_the_next_asks_and_repeats_what_was_accepted() -> None:
    swarm = Swarm(5)
    first, second, third, fourth, _ = swarm.order
    proposal = said(swarm, Proposal)[0]
    swarm.mail.clear()
    swarm.peers[third].receive(first, proposal, NOW)  # the only one that received it; its ack is lost
    accepted = canonical.digest(proposal.value)
    alive = [name for name in swarm.order if name != first]
    swarm.pass_time(4, among=[second, third, fourth])
    assert {each.ledger.head.round for name, each in swarm.peers.items() if name in (second, third, fourth)} == {1}
    entry = swarm.peers[second].ledger.entries[0]
    assert canonical.digest(entry.value) == accepted and entry.certificate.ballot.attempt >= 1
    assert first not in alive


def test_a_promise_forbids_lower_ballots() -> None:
    swarm = Swarm(3)
    first, second, third = swarm.order
    proposal = said(swarm, Proposal)[0]
    prepare = Prepare(parent=proposal.parent, ballot=Ballot(attempt=1, peer=third), absent=())
    outcomes = swarm.peers[second].receive(third, prepare, NOW)
    assert [type(o.record) for o in outcomes if isinstance(o, Persist)] == [Promised]
    assert [o.message for o in outcomes if isinstance(o, Send)] == [
        Promise(parent=proposal.parent, ballot=prepare.ballot, accepted=None)
    ]
    outcomes = swarm.peers[second].receive(first, proposal, NOW)
    (refusal,) = [o.message for o in outcomes if isinstance(o, Send)]
    assert isinstance(refusal, Refusal) and refusal.promised == prepare.ballot


def test_a_ballot_that_leaps_is_passed_over() -> None:
    """The next attempt after it could be too large to be encoded."""
    swarm = Swarm(3)
    first, second, third = swarm.order
    proposal = said(swarm, Proposal)[0]
    largest = Ballot(attempt=1 << 62, peer=third)
    leaps = [
        Prepare(parent=proposal.parent, ballot=largest, absent=()),
        Refusal(parent=proposal.parent, ballot=proposal.ballot, promised=largest, alive=()),
    ]
    for message, receiver in zip(leaps, (second, first), strict=True):
        outcomes = swarm.peers[receiver].receive(third, message, NOW)
        assert not [o for o in outcomes if isinstance(o, Persist | Send)]
        promised = swarm.peers[receiver].consensus.acceptor.promised
        assert promised is None or promised < largest


def test_members_that_have_promised_a_higher_ballot_end_one_once_they_leave_no_majority() -> None:
    """One that claims it before the others have answered ends none, however often it does."""
    swarm = Swarm(5)
    _, second, liar, *others = swarm.order
    proposer, parent = swarm.peers[second], swarm.peers[second].consensus.slot.digest
    swarm.take(second, proposer.tick(NOW + 2.0))
    ballot = Ballot(attempt=1, peer=second)
    for refuses, is_over in ((liar, False), (liar, False), (others[0], False), (others[1], True)):
        assert proposer.consensus.acceptor.promised == ballot
        refusal = Refusal(parent=parent, ballot=ballot, promised=Ballot(attempt=7, peer=liar), alive=())
        proposer.receive(refuses, refusal, NOW + 2.1)
        assert (proposer.consensus.acceptor.promised == refusal.promised) is is_over


def test_nobody_is_left_out_who_is_heard_of() -> None:
    swarm = Swarm(3)
    _, second, third = swarm.order
    parent = swarm.peers[second].consensus.slot.digest
    prepare = Prepare(parent=parent, ballot=Ballot(attempt=1, peer=third), absent=(second, swarm.order[0]))
    outcomes = swarm.peers[second].receive(third, prepare, NOW)
    (refusal,) = [o.message for o in outcomes if isinstance(o, Send)]
    assert isinstance(refusal, Refusal) and {name for name, _ in refusal.alive} == {second, swarm.order[0]}


def test_the_dead_are_left_out_once_their_leases_have_run_out() -> None:
    swarm = Swarm(5)
    swarm.deliver()
    alive = sorted(swarm.order[3:])
    for name in alive:
        swarm.report(name, 0)
    swarm.mail.clear()
    swarm.pass_time(20, among=alive)
    for name in alive:
        head = swarm.peers[name].ledger.plans[-1]
        assert head.round == 2 and sorted(roster_entry.peer for roster_entry in head.roster) == alive


def test_two_messages_of_one_peer_are_one_vote() -> None:
    swarm = Swarm(5)
    first, second, third, *_ = swarm.order
    proposal = said(swarm, Proposal)[0]
    swarm.mail.clear()
    ack = Ack(parent=proposal.parent, ballot=proposal.ballot, value=canonical.digest(proposal.value))
    swarm.peers[second].receive(first, proposal, NOW)
    outcomes = [swarm.peers[second].receive(first, ack, NOW) for _ in range(3)]
    assert outcomes == [[], [], []]
    outcomes = [swarm.peers[second].receive(third, ack, NOW)]
    assert [type(o.message) for o in outcomes[0] if isinstance(o, Broadcast)] == [Vote]


def test_a_report_in_anothers_name_is_not_used() -> None:
    swarm = Swarm(3)
    swarm.deliver()
    liar, victim, third = swarm.order
    plan = swarm.genesis
    forged = Report(peer=victim, round=0, plan=canonical.digest(plan), capacity=capacity(speed=1e9))
    unsigned = SignedReport(report=forged, signature="")
    supply = Supply(parent=canonical.digest(plan), reports=(replace(unsigned, signature=sign(liar, unsigned.payload)),))
    swarm.take(third, swarm.peers[third].receive(liar, supply, NOW))
    for name in swarm.peers:
        swarm.report(name, 0)
    swarm.deliver()
    for each in swarm.peers.values():
        reports = {signed.report.peer: signed.report for signed in each.ledger.entries[1].reports}
        assert reports[victim].capacity.samples_per_second == 10.0


def test_a_value_whose_plan_does_not_follow_by_the_rule_is_not_accepted() -> None:
    swarm = Swarm(3)
    first, second, _ = swarm.order
    proposal = said(swarm, Proposal)[0]
    wrong = replace(proposal, value=replace(proposal.value, plan=Digest("e" * 64)), signature="")
    outcomes = swarm.peers[second].receive(first, replace(wrong, signature=sign(first, wrong.payload)), NOW)
    assert not [o for o in outcomes if isinstance(o, Persist)]


def test_a_late_peer_catches_up_from_the_ledger_of_another() -> None:
    swarm = Swarm(3)
    late = swarm.order[2]
    others = [name for name in swarm.peers if name != late]
    swarm.deliver(to=others)
    for name in others:
        swarm.report(name, 0)
    swarm.deliver(to=others)
    swarm.pass_time(8, among=others)
    assert swarm.peers[others[0]].ledger.head.round == 2 and swarm.plans[late] == []
    swarm.take(late, swarm.peers[others[0]].receive(late, PullEntries(locator=(canonical.digest(swarm.genesis),)), swarm.now))
    ((_, _, entries),) = [mail for mail in swarm.mail if isinstance(mail[2], Entries)]
    swarm.take(late, swarm.peers[late].receive(others[0], entries, swarm.now))
    assert [plan.round for plan in swarm.plans[late]] == [1, 2]


def test_two_histories_become_one_by_samples_then_rounds_then_digest() -> None:
    swarm = Swarm(4)
    swarm.deliver()
    left, right = sorted(swarm.order[:2]), sorted(swarm.order[2:])
    for side in (left, right):
        for name in side:
            swarm.report(name, 0)
        swarm.mail.clear()
        swarm.pass_time(20, among=side)
    for name in right:
        swarm.report(name, 1)
    swarm.mail.clear()
    swarm.pass_time(4, among=right)
    ahead, behind = swarm.peers[right[0]].ledger.head, swarm.peers[left[0]].ledger.head
    assert (ahead.round, behind.round) == (3, 2)
    swarm.pass_time(4, among=sorted(swarm.peers))
    assert {each.ledger.entries[1].value.plan for each in swarm.peers.values()} == {
        swarm.peers[right[0]].ledger.entries[1].value.plan
    }
    assert len(swarm.switched) == 2
    assert [entry.plan.round for entry in swarm.switched[0].lost] == [2]


def test_a_restart_before_the_next_checkpoint_goes_over_to_the_winning_history_again() -> None:
    swarm = Swarm(4)
    swarm.deliver()
    left, right = sorted(swarm.order[:2]), sorted(swarm.order[2:])
    for side in (left, right):
        for name in side:
            swarm.report(name, 0)
        swarm.mail.clear()
        swarm.pass_time(20, among=side)
    lost = tuple(swarm.peers[left[0]].ledger.plans)
    for name in right:
        swarm.report(name, 1)
    swarm.mail.clear()
    swarm.pass_time(4, among=right)
    swarm.pass_time(4, among=sorted(swarm.peers))
    live, journal, won = swarm.switched[0], swarm.journals[left[0]], tuple(swarm.peers[left[0]].ledger.plans)

    again = agreement(left[0], swarm.genesis, journal=journal).start(lost[-2:], (), swarm.now)
    (reorg,) = [outcome for outcome in again if isinstance(outcome, Reorg | Decided)]
    assert isinstance(reorg, Reorg) and (reorg.fork, reorg.lost) == (live.fork, live.lost)
    assert [entry.plan for entry in reorg.won] == [*won[2:]]
    again = agreement(left[0], swarm.genesis, journal=journal).start(won[-2:], (), swarm.now)
    assert not [outcome for outcome in again if isinstance(outcome, Reorg | Decided)]
    is_torn = [isinstance(record, LedgerEntry) and record.value.plan == canonical.digest(won[2]) for record in journal]
    torn = journal[: is_torn.index(True)]
    again = agreement(left[0], swarm.genesis, journal=torn).start(lost[-2:], (), swarm.now)
    assert not [outcome for outcome in again if isinstance(outcome, Reorg | Decided)], "nothing of the other history is here"


def ledger_of_two() -> tuple[RoundPlan, list[LedgerEntry]]:
    swarm = Swarm(3)
    swarm.deliver()
    for name in swarm.peers:
        swarm.report(name, 0)
    swarm.deliver()
    return swarm.genesis, swarm.peers[peer(0)].ledger.entries


def test_a_ledger_with_one_thing_changed_does_not_verify() -> None:
    plan, entries = ledger_of_two()
    second = entries[1]
    cut = replace(second, certificate=replace(second.certificate, votes=second.certificate.votes[:1]))
    doubled = replace(second, certificate=replace(second.certificate, votes=second.certificate.votes[:1] * 2))
    other_plan = replace(second, plan=replace(second.plan, reason="because"))
    fewer_reports = replace(second, reports=second.reports[1:])
    for tampered in (cut, doubled, other_plan, fewer_reports):
        assert len(verify_ledger(plan, [entries[0], tampered], decide, verify)) == 1
    assert verify_ledger(plan, entries, decide, lambda author, payload, signature: False)
    empty = Ledger(plan, recall=recall_from([]))
    assert check_entry(entries[1], ledger=empty, decide=decide, verify=verify) == "it does not follow its parent"


@pytest.mark.parametrize("size", [1, 2, 3, 8])
def test_the_journal_brings_back_the_ledger(size: int) -> None:
    swarm = Swarm(size)
    swarm.deliver()
    for name in swarm.peers:
        swarm.report(name, 0)
    swarm.deliver()
    name = peer(0)
    again = agreement(name, swarm.genesis, journal=swarm.journals[name])
    outcomes = again.start((swarm.genesis,), (), NOW)
    assert again.ledger.head == swarm.peers[name].ledger.head
    assert [o.plan.round for o in outcomes if isinstance(o, Decided)] == [1, 2]
    assert next(o.record for o in outcomes if isinstance(o, Persist)) == Incarnation(number=2)


def test_a_journal_without_an_incarnation_begins_with_the_given_one() -> None:
    swarm = Swarm(1)
    for journal, number in (([], 30_000_000), ([Incarnation(number=3)], 4)):
        again = agreement(peer(7), swarm.genesis, journal=journal, first_incarnation=30_000_000)
        outcomes = again.start((), (), NOW)
        assert next(o.record for o in outcomes if isinstance(o, Persist)) == Incarnation(number=number)


def test_a_peer_that_comes_back_after_a_leave_asks_for_work() -> None:
    """It sends its last report again, which stated that it leaves: a seat with that capacity gets none before the next."""
    swarm = Swarm(2)
    swarm.deliver()
    name = peer(0)
    leaving = replace(capacity(), samples_per_second=50.0, is_leaving=True)
    last = Report(peer=name, round=0, plan=canonical.digest(swarm.genesis), capacity=leaving)
    again = agreement(name, swarm.genesis, journal=swarm.journals[name])
    again.start((swarm.genesis,), (last,), NOW)
    assert again.members.join_request().capacity == replace(leaving, is_leaving=False)


def test_when_the_roster_died_a_former_member_goes_on_and_a_mere_newcomer_does_not() -> None:
    swarm = Swarm(3)
    former, newcomer = swarm.order[2], peer(7)
    others = [name for name in swarm.peers if name != former]
    swarm.deliver(to=others)
    swarm.pass_time(15, among=others)
    for name in others:
        swarm.report(name, 0)
    swarm.pass_time(3, among=others)
    entries = Entries(entries=tuple(swarm.peers[others[0]].ledger.entries))
    swarm.take(former, swarm.peers[former].receive(others[0], entries, NOW))
    assert former not in [roster_entry.peer for roster_entry in swarm.peers[former].ledger.plans[-1].roster]
    swarm.peers[newcomer] = agreement(newcomer, swarm.genesis, journal=swarm.journals[former])
    swarm.journals[newcomer], swarm.plans[newcomer] = [], []
    swarm.take(newcomer, swarm.peers[newcomer].start((swarm.genesis,), (), swarm.now))
    swarm.mail.clear()

    swarm.pass_time(30, among=[newcomer])
    assert swarm.peers[newcomer].ledger.head.round == 2
    swarm.pass_time(30, among=[former])
    last = swarm.peers[former].ledger.plans[-1]
    assert last.round >= 3 and [roster_entry.peer for roster_entry in last.roster] == [former]
    assert verify_ledger(swarm.genesis, swarm.peers[former].ledger.entries, decide, verify) == []


def test_a_former_member_that_went_on_alone_votes_for_no_other_value_where_that_slot_is_open_again() -> None:
    swarm = Swarm(3)
    former = swarm.order[2]
    others = [name for name in swarm.peers if name != former]
    swarm.deliver(to=others)
    swarm.pass_time(15, among=others)
    for name in others:
        swarm.report(name, 0)
    swarm.pass_time(3, among=others)
    majority = tuple(swarm.peers[others[0]].ledger.entries)
    swarm.take(former, swarm.peers[former].receive(others[0], Entries(entries=majority), NOW))
    swarm.mail.clear()
    swarm.pass_time(30, among=[former])
    alone = swarm.peers[former].ledger.entries[len(majority)]
    assert [cast.peer for cast in alone.certificate.votes] == [former]

    # another history wins, and later the one of the majority again, which ends before the entry of this peer
    sibling = replace(majority[0], value=replace(majority[0].value, plan=Digest("f" * 64)))
    journal = [*swarm.journals[former], sibling, *majority]
    again = agreement(former, swarm.genesis, journal=journal)
    again.start((swarm.genesis,), (), swarm.now)
    assert again.ledger.head.round == majority[-1].plan.round
    asking = agreement(peer(8), swarm.genesis)  # a request that was not there the first time
    asking.start((swarm.genesis,), (), swarm.now)
    request = [o.message for o in asking.tick(swarm.now + 1.0) if isinstance(o, Send) and isinstance(o.message, Heartbeat)]
    swarm.peers, swarm.journals[former] = {former: again}, journal
    for _ in range(30):
        swarm.now += 1.0
        swarm.take(former, [*again.tick(swarm.now), *(o for m in request[:1] for o in again.receive(peer(8), m, swarm.now))])
    assert again.ledger.entries[len(majority)].value == alone.value


def test_nobody_votes_for_a_choice_that_leaves_out_whom_it_hears() -> None:
    """In a large roster acks go to the proposer only, which announces a majority."""
    swarm = Swarm(Timing().direct_limit + 2)
    liar, victim, *others = swarm.order
    consensus = swarm.peers[liar].consensus
    swarm.mail.clear()
    absent = tuple(sorted(others))
    value = consensus.values.make(joined=(), absent=absent)
    ballot = Ballot(attempt=1, peer=liar)
    proposal = Proposal(ballot=ballot, absent=absent, value=value, signature="")
    proposal = replace(proposal, signature=sign(liar, proposal.payload))
    chosen = Chosen(parent=value.parent, ballot=ballot, value=canonical.digest(value), signature="")
    chosen = replace(chosen, signature=sign(liar, chosen.payload))
    for message in (proposal, chosen):
        swarm.take(victim, swarm.peers[victim].receive(liar, message, swarm.now))
    assert said(swarm, Refusal)
    assert not said(swarm, Vote) and not [record for record in swarm.journals[victim] if isinstance(record, Voted)]

    for _ in range(int(Timing().lease(len(swarm.order))) + 2):  # until they really are silent
        swarm.now += 1.0
        swarm.take(victim, swarm.peers[victim].tick(swarm.now))
    assert said(swarm, Vote)


@pytest.mark.parametrize("knows_value", [True, False])
@pytest.mark.parametrize("is_asked", [True, False])
def test_a_member_that_missed_the_certificate_gets_that_alone_and_the_entry_where_it_asks_again(
    knows_value: bool, is_asked: bool
) -> None:
    """In a large roster: a whole entry is many times as long."""
    swarm = Swarm(Timing().direct_limit + 2)
    ahead, late, *_ = swarm.order
    proposal = said(swarm, Proposal)[0]
    spread(swarm, to=[name for name in swarm.peers if name != late])
    if knows_value:
        swarm.take(late, swarm.peers[late].receive(ahead, proposal, swarm.now))
    swarm.mail.clear()
    heartbeat = swarm.peers[late].consensus.members.heartbeat(swarm.now)
    question = PullEntries(locator=swarm.peers[late].ledger.locator()) if is_asked else heartbeat

    swarm.take(ahead, swarm.peers[ahead].receive(late, question, swarm.now))
    assert [type(message) for sender, to, message in swarm.mail if (sender, to) == (ahead, late)] == [Final]
    if knows_value:
        swarm.deliver(to=[ahead, late])
    else:
        swarm.mail.clear()
        swarm.take(ahead, swarm.peers[ahead].receive(late, question, swarm.now))
        assert len(said(swarm, Entries)) == 1 and not said(swarm, Final)
        swarm.deliver(to=[ahead, late])
    assert swarm.peers[late].ledger.head == swarm.peers[ahead].ledger.head


def test_a_member_that_lacks_the_value_too_gets_the_entry_as_soon_as_it_asks_for_the_value() -> None:
    swarm = Swarm(Timing().direct_limit + 2)
    ahead, late, *_ = swarm.order
    spread(swarm, to=[name for name in swarm.peers if name != late])
    swarm.take(ahead, swarm.peers[ahead].receive(late, swarm.peers[late].consensus.members.heartbeat(swarm.now), swarm.now))
    swarm.deliver(to=[ahead, late])
    assert swarm.peers[late].ledger.head == swarm.peers[ahead].ledger.head


def test_members_of_a_small_roster_and_strangers_get_the_entry_at_once() -> None:
    small, large = Swarm(3), Swarm(Timing().direct_limit + 2)
    spread(small, to=small.order)
    spread(large, to=large.order)
    for swarm, sender in ((small, small.order[1]), (large, peer(99))):
        swarm.mail.clear()
        ahead = swarm.order[0]
        locator = (swarm.peers[ahead].ledger.digests[0],)
        swarm.take(ahead, swarm.peers[ahead].receive(sender, PullEntries(locator=locator), swarm.now))
        assert said(swarm, Entries) and not said(swarm, Final)


def test_a_newcomer_that_goes_before_anybody_looks_is_gone_for_those_whose_plan_counts_on_it() -> None:
    swarm, newcomer = Swarm(2), peer(2)
    members = tuple(swarm.peers)
    swarm.journals[newcomer], swarm.plans[newcomer] = [], []
    swarm.peers[newcomer] = agreement(newcomer, swarm.genesis)
    swarm.take(newcomer, swarm.peers[newcomer].start((swarm.genesis,), (), swarm.now))
    swarm.pass_time(3, among=tuple(swarm.peers))
    for round in range(2):
        for name in members:
            swarm.report(name, round)
        swarm.deliver()  # at one instant: no clock advances between the plan and the leave
    assert all(newcomer in [roster_entry.peer for roster_entry in swarm.plans[name][-1].roster] for name in members)
    swarm.take(newcomer, swarm.peers[newcomer].leave(swarm.now))
    swarm.deliver()
    assert sorted(swarm.gone) == [(name, newcomer) for name in members]
