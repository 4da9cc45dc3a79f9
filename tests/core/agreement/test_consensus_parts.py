"""The parts of the consensus, one by one: what the learner takes, which way messages go, and that questions change nothing."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from random import Random

import pytest

from adloco_p2p.core.agreement import values as values_of_slots
from adloco_p2p.core.agreement.ballot_timer import MAX_OVERTAKEN, RUN_OUT_SLOTS, BallotTimer
from adloco_p2p.core.agreement.dissemination import REPORTERS_FIRST, Dissemination, dissemination
from adloco_p2p.core.agreement.gossip_agreement import GossipAgreement
from adloco_p2p.core.agreement.learner import Learner
from adloco_p2p.core.agreement.membership import Membership, Timing
from adloco_p2p.core.agreement.report_pool import MAX_VERSIONS, ReportPool
from adloco_p2p.core.agreement.slot import BALLOTS_KEPT, Context, Slot, next_slot
from adloco_p2p.core.agreement.statement_pool import StatementPool
from adloco_p2p.core.agreement.values import RETURN_FRACTION, Values
from adloco_p2p.core.ledger.ledger import Ledger
from adloco_p2p.core.model import canonical, report_form
from adloco_p2p.core.model.certificate import Ballot, CastVote, Certificate
from adloco_p2p.core.model.effects import Broadcast, Persist, Send
from adloco_p2p.core.model.electorate import electors
from adloco_p2p.core.model.events import ReportHeard
from adloco_p2p.core.model.ledger_entry import SignedReport, Value, Vote
from adloco_p2p.core.model.messages import Ack, Chosen, Entries, Final, Prepare, Promise, Proposal, Pull, Supply, Voted
from adloco_p2p.core.model.outcomes import Outcome
from adloco_p2p.core.model.plan import REPORT_LAG, RoundPlan, roster_of
from adloco_p2p.core.model.report import Report
from adloco_p2p.core.model.report_form import MAX_REPORTS_BYTES
from adloco_p2p.core.model.scalars import Digest, PeerId
from adloco_p2p.sim.identities import sign, verify
from tests.core.agreement.test_consensus import NOW, Swarm, agreement, decide, first_plan, recall_from, said, spread
from tests.core.agreement.test_strangers import entry_of, played
from tests.core.core_values import RUN, capacity, peer

LARGE = Timing().direct_limit + 1


def opened(size: int, me: PeerId) -> tuple[Context, Slot]:
    """The first slot of a run, as one peer sees it that just started."""
    members = Membership(
        me,
        run=RUN,
        sign=lambda payload: sign(me, payload),
        verify=verify,
        draw=lambda: 0.5,
        timing=Timing(),
    )
    context = Context(
        me=me,
        sign=lambda payload: sign(me, payload),
        verify=verify,
        decide=decide,
        draw=lambda: 0.5,
        members=members,
        statements=StatementPool(verify),
    )
    slot = next_slot(Ledger(first_plan(size), recall=recall_from(())), me)
    members.set_roster(slot.digest, slot.roster, NOW)
    return context, slot


def proposal_of(slot: Slot, proposer: PeerId, *, attempt: int, absent: tuple[PeerId, ...] = ()) -> Proposal:
    value = Value(round=1, parent=slot.digest, reports=(), joined=(), departed=(), plan=Digest(f"{attempt:064x}"))
    unsigned = Proposal(ballot=Ballot(attempt=attempt, peer=proposer), absent=absent, value=value, signature="")
    return replace(unsigned, signature=sign(proposer, unsigned.payload))


def vote_of(slot: Slot, voter: PeerId, proposal: Proposal) -> Vote:
    unsigned = Vote(
        peer=voter,
        parent=slot.digest,
        ballot=proposal.ballot,
        absent=proposal.absent,
        value=canonical.digest(proposal.value),
        abstains=False,
        signature="",
    )
    return replace(unsigned, signature=sign(voter, unsigned.payload))


# --- learner ---------------------------------------------------------------------------------------------------------


def test_the_learner_takes_of_each_proposer_the_highest_signed_proposal() -> None:
    context, slot = opened(4, peer(0))
    learner = Learner(context, slot)
    first, second, *_ = slot.order
    higher, lower = proposal_of(slot, second, attempt=3), proposal_of(slot, second, attempt=2)
    assert not learner.on_proposal(replace(higher, signature="forged"))
    assert learner.on_proposal(higher) and not learner.on_proposal(higher) and not learner.on_proposal(lower)
    assert not learner.on_proposal(proposal_of(slot, first, attempt=4, absent=(first,))), "its proposer does not count in it"
    assert [proposal for proposal, _ in learner.ranked_proposals()] == [higher]


def test_ballot_0_is_the_first_proposers_alone() -> None:
    context, slot = opened(4, peer(0))
    learner = Learner(context, slot)
    first, second, *_ = slot.order
    assert not learner.on_proposal(proposal_of(slot, second, attempt=0))
    assert learner.on_proposal(proposal_of(slot, first, attempt=0))


def test_a_value_is_chosen_by_acks_of_a_majority_or_by_its_proposers_signature() -> None:
    context, slot = opened(5, peer(0))
    first, second, third, *_ = slot.order
    proposal = proposal_of(slot, first, attempt=1)
    digest = canonical.digest(proposal.value)
    ack = Ack(parent=slot.digest, ballot=proposal.ballot, value=digest)

    by_acks = Learner(context, slot)
    by_acks.on_proposal(proposal)
    assert by_acks.on_ack(second, ack) and not by_acks.on_ack(second, ack)
    assert by_acks.chosen_proposals() == [] and not by_acks.is_backed_by_half(proposal, digest)
    assert by_acks.on_ack(third, ack)
    assert by_acks.chosen_proposals() == [(proposal, digest)] and by_acks.is_backed_by_half(proposal, digest)

    announced = Learner(context, slot)
    announced.on_proposal(proposal)
    unsigned = Chosen(parent=slot.digest, ballot=proposal.ballot, value=digest, signature="")
    chosen = replace(unsigned, signature=sign(first, unsigned.payload))
    assert not announced.on_chosen(replace(unsigned, signature=sign(second, unsigned.payload)))
    assert announced.chosen_proposals() == []
    assert announced.on_chosen(chosen) and not announced.on_chosen(chosen)
    assert announced.chosen_proposals() == [(proposal, digest)]


def test_a_value_is_final_by_signed_votes_of_a_majority() -> None:
    context, slot = opened(5, peer(0))
    learner = Learner(context, slot)
    proposal = proposal_of(slot, slot.order[0], attempt=1)
    digest = canonical.digest(proposal.value)
    votes = [vote_of(slot, voter, proposal) for voter in slot.roster]
    assert not learner.on_vote(replace(votes[0], signature="forged"))
    assert not learner.on_vote(vote_of(slot, PeerId("stranger"), proposal))
    for vote in votes[:2]:
        assert learner.on_vote(vote) and not learner.on_vote(vote)
    assert learner.certificates() == {}
    assert learner.on_vote(votes[2])
    (certificate,) = learner.certificates().values()

    other = Learner(context, slot)
    short = replace(certificate, votes=certificate.votes[:2])
    assert not other.on_final(peer(1), Final(parent=slot.digest, value=digest, certificate=short))
    assert other.on_final(peer(1), Final(parent=slot.digest, value=digest, certificate=certificate))
    assert other.certificates() == {digest: certificate} and set(other.named()) == {digest}


def certified_alone(slot: Slot, liar: PeerId, *, attempt: int) -> Final:
    """By its own vote, all others absent."""
    others = tuple(name for name in slot.roster if name != liar)
    return final_of(slot, [liar], proposal_of(slot, liar, attempt=attempt, absent=others))


def test_a_member_that_certifies_values_alone_has_one_of_them_kept_and_keeps_no_other_certificate_out() -> None:
    context, slot = opened(5, peer(0))
    learner, liar = Learner(context, slot), slot.order[1]
    for attempt in range(1, 80):
        assert learner.on_final(liar, certified_alone(slot, liar, attempt=attempt))
    assert len(list(learner.named())) == 1
    final = final_of(slot, slot.order[2:], proposal_of(slot, slot.order[0], attempt=1))
    alone = replace(certified_alone(slot, liar, attempt=1), value=final.value)
    assert alone.value == certified_alone(slot, liar, attempt=1).value
    assert learner.on_final(liar, alone) and learner.on_final(peer(1), final) and not learner.on_final(peer(2), final)
    assert learner.certificates() == {final.value: final.certificate}, "a certificate of a majority for the same value counts"


def test_a_certificate_of_one_member_does_not_take_the_place_of_a_stronger_one_for_the_same_value() -> None:
    """Whether it comes as a certificate or as a vote: it would be contradicted where the stronger one is followed."""
    context, slot = opened(5, peer(0))
    one, other, *gone, liar = slot.order
    proposal = proposal_of(slot, one, attempt=1, absent=tuple(sorted([*gone, liar])))
    honest = final_of(slot, [one, other], proposal)
    others = tuple(sorted(name for name in slot.roster if name != liar))
    lie = replace(proposal, ballot=Ballot(attempt=9, peer=liar), absent=others)
    for finals in ([(one, honest), (liar, final_of(slot, [liar], lie))], [(liar, final_of(slot, [liar], lie)), (one, honest)]):
        learner = Learner(context, slot)
        assert all(learner.on_final(sender, final) for sender, final in finals)
        assert learner.certificates() == {honest.value: honest.certificate}
        assert learner.on_vote(vote_of(slot, liar, lie))
        assert learner.certificates() == {honest.value: honest.certificate}


def final_of(slot: Slot, voters: Sequence[PeerId], proposal: Proposal) -> Final:
    votes = [vote_of(slot, voter, proposal) for voter in sorted(voters)]
    casts = tuple(CastVote(peer=vote.peer, abstains=False, signature=vote.signature) for vote in votes)
    certificate = Certificate(ballot=proposal.ballot, absent=proposal.absent, votes=casts)
    return Final(parent=slot.digest, value=votes[0].value, certificate=certificate)


# --- ballots ---------------------------------------------------------------------------------------------------------


def turn(timer: BallotTimer, slot: Slot) -> float:
    return timer.turn(slot.order, ready_at=NOW, promised=None) - NOW


def test_a_proposer_that_lets_a_ballot_run_out_comes_last_for_some_slots() -> None:
    me = opened(5, peer(0))[1].order[4]
    context, slot = opened(5, me)
    liar, second = slot.order[0], slot.order[1]
    patience = Timing().ballot_timeout(5)
    timer = BallotTimer(context, slot)
    assert timer.admit(Ballot(attempt=1, peer=liar), None, NOW)
    assert timer.admit(Ballot(attempt=2, peer=second), Ballot(attempt=1, peer=liar), NOW + 10 * patience)
    assert context.run_out == {liar: slot.round}
    for later in range(1, RUN_OUT_SLOTS + 2):
        timer = BallotTimer(context, replace(slot, parent=replace(slot.parent, round=slot.parent.round + later)))
        is_last = later <= RUN_OUT_SLOTS
        assert turn(timer, slot) == (3 if is_last else 4) * patience, "the others move up, and back when it is forgiven"
    assert not context.run_out


def test_a_proposer_whose_ballot_did_not_run_out_is_not_suspected() -> None:
    me = opened(5, peer(0))[1].order[4]
    context, slot = opened(5, me)
    timer = BallotTimer(context, slot)
    timer.begin(me, NOW)
    timer.begin(slot.order[0], NOW + 100.0)
    timer.begin(slot.order[1], NOW + 100.1)
    assert not context.run_out, "this peer itself, and one that was overtaken before its time was over"


def test_a_late_proposer_takes_one_ballot_more_than_its_turn_and_others_sixteen() -> None:
    me = opened(5, peer(0))[1].order[4]
    context, slot = opened(5, me)
    liar, second = slot.order[:2]
    for name, count in ((second, MAX_OVERTAKEN), (liar, 1)):
        context.run_out[liar] = slot.round - 1
        timer = BallotTimer(context, slot)
        timer.begin(me, NOW)
        admitted = [timer.admit(Ballot(attempt=attempt, peer=name), Ballot(attempt=0, peer=me), NOW) for attempt in range(20)]
        assert sum(admitted) == count


def test_a_proposer_that_raises_its_own_ballot_without_end_is_answered_seldom() -> None:
    """Every promise is written to the disk."""
    me = opened(5, peer(0))[1].order[4]
    context, slot = opened(5, me)
    timer, liar, promised, seconds = BallotTimer(context, slot), slot.order[0], Ballot(attempt=0, peer=me), 30
    num_promises = 0
    for attempt in range(1, 100 * seconds):
        ballot = Ballot(attempt=attempt, peer=liar)
        if timer.admit(ballot, promised, NOW + attempt / 100):
            promised, num_promises = ballot, num_promises + 1
            assert timer.admit(ballot, promised, NOW + attempt / 100), "the same again costs nothing"
    assert num_promises <= MAX_OVERTAKEN + 2 + seconds / (2 * Timing().ballot_timeout(5))
    assert promised.attempt > 100 * (seconds - 5), "but it is answered: it may be the only one that is left"


def test_a_ballot_before_its_turn_is_paid_from_the_same_budget() -> None:
    me = opened(5, peer(0))[1].order[4]
    context, slot = opened(5, me)
    for ready_at, rank, is_free in ((None, 0, True), (None, 1, False), (NOW, 1, True), (NOW, 2, False), (NOW - 100.0, 3, True)):
        timer = BallotTimer(context, slot)
        timer.ready_at = ready_at
        assert timer.admit(Ballot(attempt=1, peer=slot.order[rank]), None, NOW)
        assert (not timer._overtaken) is is_free, (ready_at, rank)


# --- dissemination ---------------------------------------------------------------------------------------------------


def sent(context: Context) -> list[Outcome]:
    outcomes = list(context.outbox)
    context.outbox.clear()
    return outcomes


def everything(way: Dissemination, slot: Slot, context: Context) -> dict[str, list[Outcome]]:
    """What each kind of message leads to; the proposer of the ballot is the first of the order."""
    first, second, *_ = slot.order
    proposal, supply = proposal_of(slot, first, attempt=1), Supply(parent=slot.digest)
    digest = canonical.digest(proposal.value)
    certificate = Certificate(ballot=proposal.ballot, absent=(), votes=(CastVote(peer=first, abstains=False, signature=""),))
    found = {}
    way.report(supply, NOW)
    found["report"] = sent(context)
    way.resend_report(second, supply)
    found["resend_report"] = sent(context)
    way.prepare(Prepare(parent=slot.digest, ballot=proposal.ballot, absent=()))
    found["prepare"] = sent(context)
    way.propose(proposal, NOW)
    found["propose"] = sent(context)
    way.answer(second, Ack(parent=slot.digest, ballot=proposal.ballot, value=digest))
    found["answer"] = sent(context)
    way.answer(first, vote_of(slot, first, proposal))
    found["own answer"] = sent(context)
    way.pass_on(Final(parent=slot.digest, value=digest, certificate=certificate), NOW, without=(second,))
    found["pass_on"] = sent(context)
    return found


def test_in_a_small_roster_all_members_get_everything_from_its_author() -> None:
    first = opened(LARGE - 1, peer(0))[1].order[0]
    context, slot = opened(LARGE - 1, first)
    way = dissemination(context, slot)
    found = everything(way, slot, context)
    relayed = {"resend_report", "pass_on"}
    assert all(found[kind] == [] for kind in relayed)
    assert all(len(found[kind]) == 1 and isinstance(found[kind][0], Broadcast) for kind in found if kind not in relayed)
    assert way.collects_reports(NOW) and not way.proposer_announces


def test_in_a_large_roster_the_proposer_collects_and_others_pass_on() -> None:
    first = opened(LARGE, peer(0))[1].order[0]
    context, slot = opened(LARGE, first)
    way = dissemination(context, slot)
    found = everything(way, slot, context)
    receivers = {kind: [outcome.peer for outcome in sends if isinstance(outcome, Send)] for kind, sends in found.items()}
    assert all(len(receivers[kind]) == len(found[kind]) for kind in found), "nothing is broadcast"
    assert receivers["report"] == list(slot.order[1:REPORTERS_FIRST])
    assert receivers["resend_report"] == receivers["answer"] == [slot.order[1]] and receivers["own answer"] == []
    assert sorted(receivers["prepare"]) == sorted(slot.order[1:])
    assert len(receivers["propose"]) == len(receivers["pass_on"]) == Timing().fanout
    assert slot.order[1] not in receivers["pass_on"] and way.proposer_announces
    assert way.collects_reports(NOW)
    context, slot = opened(LARGE, slot.order[REPORTERS_FIRST])
    assert not dissemination(context, slot).collects_reports(NOW)


# --- the value that promises name ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("size", "accepted", "num_promises", "is_repeated"),
    [
        (4, 1, 3, False),  # two have not accepted it: the other two are no majority of four
        (4, 2, 4, False),
        (4, 2, 3, True),  # the silent one may be the third that accepted it
        (5, 1, 3, True),  # the two silent ones may have
        (5, 2, 5, False),
        (5, 3, 5, True),
    ],
)
def test_a_value_that_evicts_the_living_is_repeated_where_it_may_have_been_chosen(
    size: int, accepted: int, num_promises: int, is_repeated: bool
) -> None:
    swarm = Swarm(size)
    name, living = swarm.order[0], swarm.order[-1]
    proposer, values = swarm.peers[name].consensus.proposer, swarm.peers[name].consensus.values
    value = values.make(joined=(), absent=(living,))
    digest = values.keep(value, None)
    older, ballot = Ballot(attempt=1, peer=name), Ballot(attempt=2, peer=name)
    proposer._promises = {
        peer: Promise(parent=value.parent, ballot=ballot, accepted=(older, digest) if place < accepted else None)
        for place, peer in enumerate(swarm.order[:num_promises])
    }
    assert value.departed == (living,) and swarm.peers[name].members.lease_valid(living, swarm.now)
    assert proposer.locked_value(swarm.now) == (digest if is_repeated else None)


def test_a_value_that_evicts_the_living_is_proposed_again_where_they_have_not_promised_for_a_lease() -> None:
    """They went on with another value, and promise nothing here any more. A majority stood by this one when one of them was
    killed before it sent its vote, and waited for eight leases (everyday seed 0)."""
    swarm = Swarm(5)
    name, *_, living = swarm.order
    consensus = swarm.peers[name].consensus
    proposer, values = consensus.proposer, consensus.values
    value = values.make(joined=(), absent=(living,))
    digest = values.keep(value, None)
    older, ballot = Ballot(attempt=1, peer=name), Ballot(attempt=2, peer=name)
    consensus.acceptor.promised = proposer._ballot = ballot
    proposer._promises = {
        peer: Promise(parent=value.parent, ballot=ballot, accepted=(older, digest)) for peer in swarm.order[:3]
    }
    members, began = consensus.members, swarm.now
    proposer.ready_at, proposer._has_proposed = began, False
    assert not proposer.propose(began + members.lease_seconds - 0.1), "more promises may show that it need not be repeated"
    members.note_beat(living, members.beat_of(living) + 1, began + members.lease_seconds)
    assert members.lease_valid(living, began + members.lease_seconds)
    assert proposer.propose(began + members.lease_seconds)
    assert consensus.acceptor.accepted == (ballot, digest)


@pytest.mark.parametrize(("num_promises", "is_repeated"), [(3, True), (4, False), (5, False)])
def test_a_value_of_too_few_reports_is_repeated_where_it_may_have_been_chosen(num_promises: int, is_repeated: bool) -> None:
    """Review B2: one member accepts its own value of one report, and the next proposer learns of it."""
    swarm = played(5)
    name, liar = swarm.order[0], swarm.order[1]
    swarm.report(liar, 2)
    swarm.deliver(to=tuple(swarm.peers))
    proposer, values = swarm.peers[name].consensus.proposer, swarm.peers[name].consensus.values
    value = values.make(joined=(), absent=())
    digest = values.keep(value, None)
    older, ballot = Ballot(attempt=1, peer=liar), Ballot(attempt=2, peer=name)
    proposer._promises = {
        peer: Promise(parent=value.parent, ballot=ballot, accepted=(older, digest) if peer == liar else None)
        for peer in swarm.order[:num_promises]
    }
    assert len(value.reports) == 1
    assert proposer.locked_value(swarm.now) == (digest if is_repeated else None)


# --- questions, and new slots ----------------------------------------------------------------------------------------


def question(each: GossipAgreement, now: float) -> None:
    """All that can be asked of the parts, at some instant."""
    consensus = each.consensus
    for ballot in (Ballot(attempt=0, peer=peer(0)), Ballot(attempt=5, peer=peer(1))):
        consensus.acceptor.refusal(ballot, consensus.slot.roster, now)
    consensus.proposer.deadline(now)
    consensus.proposer.locked_value(now)
    assert consensus.values.have.bit_count() == len(consensus.values.held)
    consensus.learner.chosen_proposals()
    consensus.learner.certificates()
    assert each.next_deadline == each.next_deadline


@pytest.mark.parametrize("size", [3, 6])
def test_questions_change_nothing(size: int) -> None:
    asked, unasked = Swarm(size), Swarm(size)
    for swarm in (asked, unasked):
        swarm.mail.clear()
        swarm.pass_time(2, among=swarm.order[1:])  # the first proposer is silent
        swarm.report(swarm.order[1], 0)
    for second in range(30):
        for name in asked.peers:
            question(asked.peers[name], asked.now)
            question(asked.peers[name], asked.now + 100.0)
        for swarm in (asked, unasked):
            swarm.pass_time(1, among=swarm.order[1:])
        deadlines = [[each.next_deadline for each in swarm.peers.values()] for swarm in (asked, unasked)]
        assert deadlines[0] == deadlines[1], f"after {second} seconds"
    assert asked.journals == unasked.journals and asked.plans == unasked.plans
    assert any(asked.plans.values())


def test_a_new_slot_has_nothing_of_the_last_one() -> None:
    swarm = Swarm(3)
    swarm.deliver()
    for each in swarm.peers.values():
        consensus = each.consensus
        assert consensus.slot.parent.round == 1
        assert (consensus.acceptor.promised, consensus.acceptor.accepted, consensus.acceptor.voted) == (None, None, None)
        assert consensus.learner.certificates() == {} and consensus.learner.ranked_proposals() == []
        assert consensus.proposer.ready_at is None
    assert not said(swarm, Proposal)


@pytest.mark.parametrize("restart", ["", "with the whole journal", "after the journal was rewritten"])
@pytest.mark.parametrize("is_settled", [False, True])
def test_a_slot_that_is_open_again_keeps_what_was_voted_for_in_it(*, restart: str, is_settled: bool) -> None:
    """Another history won for a time, until its electors showed more votes for the first one, whose end they have."""
    swarm = Swarm(3)
    swarm.deliver()
    late, other, third = swarm.order
    each, common = swarm.peers[late], swarm.genesis
    back, won = (each.ledger.truncated(digest) for digest in reversed(each.ledger.digests))
    won.append(entry_of(other, won, absent=(third,), departed=(third,)))
    for name in swarm.peers:
        swarm.report(name, 0)
    if is_settled:
        swarm.deliver()
    else:
        while each.consensus.acceptor.voted is None:
            sender, receiver, message = swarm.mail.pop(0)
            swarm.take(receiver, swarm.peers[receiver].receive(sender, message, swarm.now))
    (voted,) = [record for record in swarm.journals[late] if isinstance(record, Voted) and record.parent == back.digests[1]]
    swarm.mail.clear()
    swarm.now += 60.0  # nobody is heard, so what others certify is followed
    each.consensus.follow_reorg(won, swarm.now)
    swarm.take(late, each.tick(swarm.now))
    assert each.ledger.digests == won.digests and each.consensus.acceptor.voted is None
    each.consensus.follow_reorg(back, swarm.now)
    journal = swarm.journals[late]
    if restart:  # before it does anything in the slot
        journal += [outcome.record for outcome in each.consensus._context.outbox if isinstance(outcome, Persist)]
        if "rewritten" in restart:  # of the two records of one entry the later one is kept
            journal.remove(each.ledger.entries[-1])
        each = swarm.peers[late] = agreement(late, common, journal=tuple(journal))
        each.start((), (), swarm.now)
    acceptor = each.consensus.acceptor
    assert len(back.digests) == 2 and each.ledger.digests == back.digests
    assert acceptor.voted == voted.value and acceptor.accepted is not None and acceptor.accepted[1] == voted.value
    swarm.pass_time(30, among=[late])
    (again,) = [entry for entry in each.ledger.entries if entry.value.parent == back.digests[1]]
    assert canonical.digest(again.value) == voted.value, "the last one that is left proposes it again"


def test_a_slot_is_open_again_before_the_plan_that_was_lost_in_it_is_on_the_disk() -> None:
    """All in one call: the plan is final, another history wins, and the first one comes back without it."""
    swarm = Swarm(3)
    swarm.deliver()
    late, other, third = swarm.order
    each = swarm.peers[late]
    back, won = (each.ledger.truncated(digest) for digest in reversed(each.ledger.digests))
    won.append(entry_of(other, won, absent=(third,), departed=(third,)))
    for name in swarm.peers:
        if name != late:
            swarm.report(name, 0)
    swarm.deliver(to=[name for name in swarm.peers if name != late])
    swarm.pass_time(5, among=[name for name in swarm.peers if name != late])
    final = swarm.peers[other].ledger.entries[1]
    swarm.now += 60.0
    assert each.consensus.follow_entry(final, swarm.now)
    each.consensus.follow_reorg(won, swarm.now)
    each.consensus.follow_reorg(back, swarm.now)
    assert each.ledger.digests == back.digests and each.consensus.acceptor.accepted is not None
    assert each.consensus.acceptor.accepted[1] == canonical.digest(final.value)


@pytest.mark.parametrize("is_restarted", [False, True])
def test_what_was_accepted_since_a_slot_is_open_again_is_kept(*, is_restarted: bool) -> None:
    """It is a later ballot than that of the plan that was lost in the slot, which also counts as accepted."""
    swarm = Swarm(3)
    swarm.deliver()
    late, other, third = swarm.order
    each = swarm.peers[late]
    back, won = (each.ledger.truncated(digest) for digest in reversed(each.ledger.digests))
    final, by = entry_of(other, back, absent=(third,), departed=(third,)), Ballot(attempt=5, peer=third)
    value = entry_of(third, back, absent=(), departed=()).value
    won.append(entry_of(other, won, absent=(third,), departed=(third,)))
    swarm.mail.clear()
    swarm.now += 60.0
    assert each.consensus.follow_entry(final, swarm.now)
    for ledger in (won, back):
        each.consensus.follow_reorg(ledger, swarm.now)
    assert each.consensus.acceptor.accepted == (final.certificate.ballot, canonical.digest(final.value))
    each.consensus.values.keep(value, None)
    each.consensus.acceptor.accept_own(Proposal(ballot=by, absent=(), value=value, signature=""), canonical.digest(value))
    swarm.take(late, each.tick(swarm.now))
    if is_restarted:
        each = agreement(late, swarm.genesis, journal=swarm.journals[late])
        each.start((), (), swarm.now)
    else:
        for ledger in (won, back):
            each.consensus.follow_reorg(ledger, swarm.now)
    assert each.ledger.digests == back.digests
    assert each.consensus.acceptor.accepted == (by, canonical.digest(value)) and each.consensus.acceptor.promised == by


def test_a_peer_that_hears_nobody_forgets_the_entries_that_are_on_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("adloco_p2p.core.ledger.ledger.ENTRIES_KEPT", 4)
    swarm = Swarm(1)
    (each,) = swarm.peers.values()
    for _ in range(18):
        plan = each.ledger.reported
        assert plan is not None
        report = Report(peer=each.me, round=plan.round, plan=canonical.digest(plan), capacity=capacity())
        swarm.take(each.me, each.submit(report, swarm.now))
        swarm.pass_time(1, among=[each.me])
    assert each.ledger.head.round == 19
    assert len(each.ledger.entries) < 8 and not each.consensus._unwritten


@pytest.mark.parametrize("has_left", [False, True])
def test_a_former_member_that_a_plan_seats_again_counts_for_all_at_once(*, has_left: bool) -> None:
    """Only the proposer had its request. For the others its old lease had run out, or its leave counted, so the next plan took
    its seat away again."""
    swarm = Swarm(5)
    swarm.deliver()
    *others, late = swarm.order
    if has_left:
        swarm.take(late, swarm.peers[late].leave(swarm.now))
        swarm.deliver()
    swarm.pass_time(20, among=others)
    for round in (0, 1):
        for name in others:
            swarm.report(name, round)
        if not round:
            swarm.pass_time(10, among=others)
            ledger = swarm.peers[others[0]].ledger
            assert late not in roster_of(ledger.plans[-1])
            first = swarm.peers[others[0]].consensus.slot.order[0]
            back = agreement(late, swarm.genesis, journal=swarm.journals[late])
            swarm.take(late, back.start((swarm.genesis,), (), swarm.now))
            swarm.mail.clear()
            back.receive(first, Entries(entries=tuple(ledger.entries)), swarm.now)
            swarm.take(first, swarm.peers[first].receive(late, back.members.heartbeat(swarm.now), swarm.now))
    swarm.deliver(to=others)
    assert late in roster_of(swarm.peers[others[0]].ledger.plans[-1])
    assert all(late in swarm.peers[name].members.view(swarm.now) for name in others)
    for name in others:
        swarm.report(name, 2)
    swarm.pass_time(5, among=others)
    newest = swarm.peers[others[0]].ledger.plans[-1]
    assert newest.round == 4 and late in roster_of(newest)


def test_what_a_value_lacks_is_asked_for_and_given_by_places() -> None:
    """While the slot is open, and once it is settled; reports of peers as well."""
    swarm = Swarm(5)
    swarm.deliver()
    first, late, *others = swarm.order
    for name in swarm.peers:
        swarm.report(name, 0)
    swarm.deliver(to=[first, *others])
    swarm.pass_time(4, among=[first, *others])  # the report of the late one is not waited for any longer
    (value,) = [entry.value for entry in swarm.peers[first].ledger.entries[1:]]
    proposal = Proposal(ballot=Ballot(attempt=0, peer=first), absent=(), value=value, signature="")
    proposal = replace(proposal, signature=sign(first, proposal.payload))
    outcomes = swarm.peers[late].receive(first, proposal, swarm.now)
    (pull,) = [outcome.message for outcome in outcomes if isinstance(outcome, Send)]
    assert pull == Pull(parent=value.parent, value=canonical.digest(value), lacking=0b1111)

    settled = swarm.peers[first].receive(late, replace(pull, lacking=0b1010), swarm.now)
    assert given(settled) == [value.reports[1], value.reports[3]]
    values = swarm.peers[late].consensus.values
    values.keep_reports(swarm.peers[first].ledger.entries[1].reports[:2])
    open_slot = swarm.peers[late].receive(first, replace(pull, lacking=0b1010), swarm.now)
    assert given(open_slot) == [value.reports[1]]
    place = values.reporters.index(late)
    by_peer = swarm.peers[late].receive(first, Pull(parent=value.parent, reporters=1 << place), swarm.now)
    assert given(by_peer) == [values.held[late]]


def given(outcomes: Sequence[Outcome]) -> list[Digest]:
    """The reports that were sent."""
    supplies = [outcome.message for outcome in outcomes if isinstance(outcome, Send) and isinstance(outcome.message, Supply)]
    return [canonical.digest(signed) for supply in supplies for signed in supply.reports]


def test_a_report_that_a_value_names_has_a_place_beside_versions_that_none_does() -> None:
    author, (_, slot) = peer(1), opened(3, peer(0))
    pool = ReportPool(verify)
    pool.move(range(2), slot.roster)
    reports = versions(author, 0, slot.digest, count=3 * MAX_VERSIONS)
    digests = [canonical.digest(signed) for signed in reports]
    assert [pool.keep(signed) for signed in reports[: MAX_VERSIONS + 1]] == [True] * MAX_VERSIONS + [False]
    assert pool.keep(reports[MAX_VERSIONS], named={digests[MAX_VERSIONS]})
    assert digests[MAX_VERSIONS] in pool and digests[MAX_VERSIONS - 1] not in pool, "it took the place of the newest"
    assert all(pool.keep(signed, named=set(digests)) for signed in reports[MAX_VERSIONS + 1 :])
    assert len(pool.get(digests)) == 3 * MAX_VERSIONS - 1, "a value that is named can be checked"
    later = versions(author, 0, slot.digest, first=3 * MAX_VERSIONS, count=3 * MAX_VERSIONS)
    named = {canonical.digest(signed) for signed in later}
    assert all(pool.keep(signed, named=named) for signed in later)
    assert len(pool.get([*digests, *named])) == 3 * MAX_VERSIONS, "they take the places of those that are named no longer"


def test_a_value_that_names_more_reports_than_there_are_reporters_gives_none_of_them_a_place() -> None:
    """One member's values would fill the memory of the others by versions of its own report."""
    swarm = played(5)
    liar, victim = swarm.order[-1], swarm.peers[swarm.order[-2]]
    slot, valid = victim.consensus.slot, swarm.peers[liar].consensus.values.make(joined=(), absent=())
    pool = victim.consensus._reports

    def kept_of(made: Sequence[SignedReport], *, attempt: int) -> int:
        value = replace(valid, reports=tuple(canonical.digest(signed) for signed in made))
        unsigned = Proposal(ballot=Ballot(attempt=attempt, peer=liar), absent=(), value=value, signature="")
        victim.receive(liar, replace(unsigned, signature=sign(liar, unsigned.payload)), swarm.now)
        assert victim.consensus.values.get(canonical.digest(value)) == value
        victim.receive(liar, Supply(parent=slot.digest, reports=tuple(made)), swarm.now)
        return len(pool.get(value.reports))

    about = (liar, slot.round - 1, slot.digest)
    assert kept_of(versions(*about, count=5), attempt=1) == 5, "as many as there are reporters"
    many = versions(*about, first=5, count=100)
    assert kept_of(many, attempt=2) == 0 and sum(pool._by_digest[one].report.peer == liar for one in pool._by_digest) < 10


def test_reports_that_were_made_before_a_slot_opened_come_to_its_first_proposers() -> None:
    """As those of peers on the bench. They went to the first proposers of the slot before only, and in a swarm of 1,000 no plan
    came for as long as was looked: heartbeats bring the others one after another, and a peer that is left out refuses the
    value."""
    swarm = Swarm(LARGE)
    for name in swarm.peers:
        swarm.report(name, 0)
    assert {each.consensus.slot.round for each in swarm.peers.values()} == {1}, "they are for the next slot"
    spread(swarm, to=list(swarm.peers))
    for each in swarm.peers.values():
        assert [len(entry.reports) for entry in each.ledger.entries] == [0, LARGE]


@pytest.mark.parametrize("limit", [MAX_REPORTS_BYTES, 1200])
def test_the_reports_that_are_held_are_those_that_a_look_at_all_of_them_finds(
    limit: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each is added as it comes, and so is its bit; with second versions, other plans, and no room for all."""
    for module in (values_of_slots, report_form):
        monkeypatch.setattr(module, "MAX_REPORTS_BYTES", limit)
    consensus = played(5).peers[peer(0)].consensus
    context, slot, pool = consensus._context, consensus.slot, ReportPool(verify)
    about = slot.round - REPORT_LAG, slot.ledger.digests[-REPORT_LAG]
    made = [signed for name in slot.roster for signed in versions(name, *about, count=2)]
    made += [signed for name in slot.roster[:3] for signed in versions(name, about[0], Digest("f" * 64), count=1)]
    Random(limit).shuffle(made)
    values = Values(context, slot, pool, named=frozenset)
    for signed in made:
        values.keep_reports([signed])
        anew = Values(context, slot, pool, named=frozenset)
        assert (list(values.held.items()), values.have) == (list(anew.held.items()), anew.have)
    assert (len(values.held) == len(slot.roster)) == (limit == MAX_REPORTS_BYTES)


def test_a_report_is_added_without_a_look_at_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """One of the first proposers gets those of all: with 1,000 they took seconds of processor time."""
    consensus = played(5).peers[peer(0)].consensus
    slot, looks = consensus.slot, Counter[str]()
    values = Values(consensus._context, slot, ReportPool(verify), named=frozenset)

    def counted(reports: Iterable[SignedReport], reported: RoundPlan) -> list[SignedReport]:
        looks["usable"] += 1
        return report_form.usable(reports, reported)

    monkeypatch.setattr(values_of_slots, "usable", counted)
    for name in slot.roster:
        values.keep_reports(versions(name, slot.round - REPORT_LAG, slot.ledger.digests[-REPORT_LAG], count=1))
        assert name in values.held
    assert looks.total() == 1 and values.have == 0b11111


def test_the_members_that_count_in_a_ballot_are_kept_for_a_few_ballots() -> None:
    _, slot = opened(LARGE, peer(0))
    for absent in [(), *((name,) for name in slot.roster), slot.roster[:3], slot.roster]:
        assert [*slot.counted(absent)] == electors(slot.electorate, slot.roster, absent)
        assert slot.counted(absent) is slot.counted(list(absent)) and len(slot._counted) <= BALLOTS_KEPT


def versions(author: PeerId, round: int, plan: Digest, *, first: int = 0, count: int) -> list[SignedReport]:
    """Different reports of one peer on one round, all with its signature."""
    made = []
    for number in range(first, first + count):
        offered = replace(capacity(), download_bytes_per_second=float(number))
        unsigned = SignedReport(report=Report(peer=author, round=round, plan=plan, capacity=offered), signature="")
        made.append(replace(unsigned, signature=sign(author, unsigned.payload)))
    return made


@pytest.mark.parametrize(("age", "is_heard"), [(2, True), (3, True), (4, False)])
def test_a_report_that_comes_after_the_plan_that_could_use_it_is_still_heard(age: int, *, is_heard: bool) -> None:
    """Once. It names a state that others may lack (seed 89 of `tests/sim/test_waits_world.py`)."""
    context, slot = opened(3, peer(0))
    slot = replace(slot, parent=replace(slot.parent, round=7))
    values = Values(context, slot, ReportPool(verify), named=frozenset)
    (late,) = versions(peer(1), slot.round - age, slot.digest, count=1)
    for _ in range(2):
        values.keep_reports([late])
    assert context.outbox == [ReportHeard(report=late.report)] * is_heard


@pytest.mark.parametrize("has_work", [True, False])
def test_a_plan_waits_for_the_return_of_members_with_work_only(has_work: bool) -> None:
    """All others are silent; without work they are keepers, or wait on the bench."""
    context, slot = opened(3, peer(0))
    plan = slot.parent
    hosts = tuple(
        replace(share, batch_samples=share.batch_samples if has_work or share.peer == peer(0) else 0)
        for share in plan.instances[0].hosts
    )
    instances = (replace(plan.instances[0], hosts=hosts),)
    slot = replace(slot, parent=replace(plan, instances=instances, expected_seconds=600.0))
    values = Values(context, slot, ReportPool(verify), named=frozenset)
    assert not values.awaits_return(NOW, NOW), "nobody is silent yet"
    later = NOW + Timing().lease(3) + 2.0
    assert later < NOW + RETURN_FRACTION * 600.0
    assert values.awaits_return(NOW, later) == has_work
    assert not values.awaits_return(NOW, NOW + RETURN_FRACTION * 600.0)


class CountedName(str):
    """Counts how often names are compared."""

    __slots__ = ()
    comparisons = 0

    def __eq__(self, other: object) -> bool:
        CountedName.comparisons += 1
        return super().__eq__(other)

    __hash__ = str.__hash__


def test_the_reporters_that_are_waited_for_are_found_in_linear_time() -> None:
    """At every message: the electorate was searched once for each member, which with 1,000 took most of the processor time."""
    context, slot = opened(200, peer(0))
    names = tuple(PeerId(CountedName(name)) for name in slot.roster)
    slot = replace(slot, roster=names, electorate=names)
    values = Values(context, slot, ReportPool(verify), named=frozenset)
    values._reporters, values._workers = names, frozenset(names)
    before = CountedName.comparisons
    waited_for, deciding = values.expected(NOW)
    assert set(waited_for) == set(deciding) == set(slot.roster)
    assert CountedName.comparisons - before < 20 * len(names)
