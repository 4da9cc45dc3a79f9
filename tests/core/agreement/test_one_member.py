"""What one member of several does to the others' plans: it forges histories, and leaves out reports."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from adloco_p2p.core.agreement.ballot_timer import MAX_OVERTAKEN
from adloco_p2p.core.agreement.gossip_agreement import GossipAgreement
from adloco_p2p.core.agreement.values import UNKNOWN_ROUND_SECONDS
from adloco_p2p.core.ledger.fork_choice import outranks, verdict
from adloco_p2p.core.ledger.ledger import Ledger
from adloco_p2p.core.ledger.validation import check_entry
from adloco_p2p.core.model import canonical
from adloco_p2p.core.model.certificate import Ballot, CastVote, Certificate
from adloco_p2p.core.model.ledger_entry import (
    MAX_SLICE_TEXT,
    MAX_VALUE_BYTES,
    LedgerEntry,
    Pledge,
    ProvenSlice,
    Value,
    WrongSum,
)
from adloco_p2p.core.model.messages import Accepted, Ack, Chosen, Entries, Final, Prepare, Promise, Proposal, Refusal, Supply
from adloco_p2p.core.model.plan import RoundPlan, roster_of
from adloco_p2p.core.model.scalars import Digest, PeerId
from adloco_p2p.sim.identities import sign, verify
from adloco_p2p.sim.synthetic_reports import certificate_of
from tests.core.agreement.test_consensus import NOW, Swarm, decide, recall_from, said
from tests.core.agreement.test_strangers import entry_of, played
from tests.core.core_values import RUN, peer


def test_a_slot_that_is_opened_again_has_this_peers_own_report() -> None:
    """After a change to a shorter history the next plan needs older reports, and nobody else may be left that has this one."""
    swarm = played(3, rounds=3)
    swarm.report(peer(0), 3)
    consensus = swarm.peers[peer(0)].consensus
    assert list(consensus.values.held) == [peer(0)]
    consensus._reports.move(range(100, 103), ())
    consensus._compose(consensus.slot)
    assert list(consensus.values.held) == [peer(0)]


# --- fork choice -----------------------------------------------------------------------------------------------------


def forged_history(liar: PeerId, genesis: RoundPlan, *, length: int) -> list[LedgerEntry]:
    """Every entry is valid: in the first one all others are absent, and from then on the liar is alone."""
    ledger = Ledger(genesis, recall=recall_from([]))
    others = [name for name in roster_of(genesis) if name != liar]
    for number in range(length):
        gone = others if number == 0 else ()
        entry = entry_of(liar, ledger, absent=gone, departed=gone)
        assert not check_entry(entry, ledger=ledger, decide=decide, verify=verify)
        ledger.append(entry)
    return ledger.entries


@pytest.mark.parametrize("size", [3, 5])
def test_a_forged_history_replaces_nothing_however_long_it_is(size: int) -> None:
    """Review A2: a chain that leaves the first plan, and claims more rounds and samples than the honest one."""
    swarm = played(size, rounds=3)
    liar, victim = peer(size - 1), swarm.peers[peer(0)]
    before = victim.ledger.head
    forged = forged_history(liar, swarm.genesis, length=20)
    head = replace(before, round=forged[-1].plan.round, digest=forged[-1].value.plan, samples=10**9)
    beat = replace(swarm.peers[liar].members.heartbeat(swarm.now), head=head)
    for _ in range(3):
        swarm.now += 1.0
        swarm.take(peer(0), victim.receive(liar, beat, swarm.now))
        for part in (forged, forged[:5], forged[5:]):
            swarm.take(peer(0), victim.receive(liar, Entries(entries=tuple(part)), swarm.now))
    assert victim.ledger.head == before
    assert not swarm.switched
    assert not victim.consensus._exchange.is_collecting


def forked(voters: Sequence[PeerId], swarm: Swarm, *, departed: Sequence[PeerId]) -> Ledger:
    """A history whose first entry has the votes of these, and that excludes some others."""
    ledger = Ledger(swarm.genesis, recall=recall_from([]))
    entry = entry_of(voters[0], ledger, absent=departed, departed=departed)
    ballot = Ballot(attempt=1, peer=voters[0])
    votes = tuple(CastVote(peer=name, abstains=False, signature="") for name in sorted(voters))
    certificate = Certificate(ballot=ballot, absent=tuple(sorted(departed)), votes=votes)
    ledger.append(replace(entry, certificate=certificate))
    return ledger


def test_the_electors_of_the_last_common_plan_decide_before_the_samples_do() -> None:
    swarm = Swarm(5)
    a, b, c, d, e = (peer(index) for index in range(5))
    most, few = forked((a, b), swarm, departed=(d, e)), forked((d, e), swarm, departed=(a, b, c))
    few.samples[-1] = 10**9
    assert verdict(most, few) == "own" and verdict(few, most) == "other"
    assert outranks(most, few) and not outranks(few, most)


def test_who_voted_for_both_sides_counts_for_neither() -> None:
    swarm = Swarm(4)
    a, b, c, d = (peer(index) for index in range(4))
    left, right = forked((a, b), swarm, departed=(c, d)), forked((b, c, d), swarm, departed=(a,))
    assert verdict(left, right) == "other", "c and d against a"
    left, right = forked((a, b), swarm, departed=(c, d)), forked((b, c), swarm, departed=(a, d))
    assert verdict(left, right) == "tie", "a against c"


def test_a_tie_of_the_electors_is_decided_by_rank() -> None:
    swarm = Swarm(4)
    a, b, c, d = (peer(index) for index in range(4))
    left, right = forked((a, b), swarm, departed=(c, d)), forked((c, d), swarm, departed=(a, b))
    assert verdict(left, right) == "tie"
    assert outranks(left, right) == (left.head.rank > right.head.rank) != outranks(right, left)


def test_in_a_tie_those_that_followed_one_side_since_go_before_rank() -> None:
    """One of the right half votes in the left one later and counts for neither: two against one."""
    swarm = Swarm(4)
    a, b, c, d = (peer(index) for index in range(4))
    left, right = forked((a, b), swarm, departed=(c, d)), forked((c, d), swarm, departed=(a, b))
    right.samples[-1] = 10**9
    assert outranks(right, left)
    following = entry_of(a, left, absent=(), departed=())
    votes = tuple(CastVote(peer=name, abstains=name == d, signature="") for name in (a, b, c, d))
    left.append(replace(following, certificate=replace(following.certificate, votes=votes)))
    assert verdict(left, right) == "tie" and outranks(left, right) and not outranks(right, left)


def test_a_member_cannot_replace_what_others_added_to_the_entry_of_one_that_was_alone() -> None:
    """Three of four are silent for a while, and the fourth goes on alone; they come back and follow it. One vote against one
    vote is a tie, and a forged history may be longer than the common one."""
    swarm = Swarm(4)
    swarm.deliver()
    names = sorted(swarm.peers)
    alone, liar = names[0], names[-1]
    for name in names:
        swarm.report(name, 0)
    swarm.deliver()
    swarm.report(alone, 1)
    swarm.mail.clear()
    swarm.pass_time(22, among=[alone])
    fork = swarm.peers[alone].ledger.entries[-1].value.parent
    for count in range(2, 5):
        swarm.pass_time(12, among=names[:count])
    for _ in range(4):
        for name in names:
            swarm.report(name, swarm.peers[name].ledger.plans[-1].round - 1)
        swarm.deliver()
        swarm.pass_time(2, among=names)
    common = swarm.peers[alone].ledger
    assert {swarm.peers[name].ledger.head for name in names} == {common.head}
    forged = common.truncated(fork)
    while forged.head.rank <= common.head.rank:
        gone = tuple(name for name in roster_of(forged.plans[-1]) if name != liar)
        entry = entry_of(liar, forged, absent=gone, departed=gone)
        assert not check_entry(entry, ledger=forged, decide=decide, verify=verify)
        forged.append(entry)
    assert verdict(common, forged) == "tie"
    beat = replace(swarm.peers[liar].members.heartbeat(swarm.now), head=forged.head)
    entries = forged.after(fork, len(forged.digests))
    for name in names[:-1]:
        for message in (beat, Entries(entries=entries)):
            swarm.now += 1.0
            swarm.take(name, swarm.peers[name].receive(liar, message, swarm.now))
        assert swarm.peers[name].ledger.head == common.head


# --- the reports of a plan -------------------------------------------------------------------------------------------


def lone_proposal(swarm: Swarm, liar: PeerId, attempt: int) -> Proposal:
    """Of the liar, which has no report but its own."""
    value = swarm.peers[liar].consensus.values.make(joined=(), absent=())
    unsigned = Proposal(ballot=Ballot(attempt=attempt, peer=liar), absent=(), value=value, signature="")
    return replace(unsigned, signature=sign(liar, unsigned.payload))


def acks_of(swarm: Swarm, liar: PeerId, proposal: Proposal) -> list[Ack]:
    swarm.mail.clear()
    for name in swarm.peers:
        if name != liar:
            swarm.take(name, swarm.peers[name].receive(liar, proposal, swarm.now))
    return said(swarm, Ack)


@pytest.mark.parametrize("size", [3, 5])
def test_a_proposer_that_leaves_out_the_others_reports_gets_no_plan(size: int) -> None:
    """Review B1 and B2: it reports at once, begins a ballot at once, and names its own report only."""
    swarm = played(size)
    liar = swarm.order[-1]
    honest = [name for name in swarm.peers if name != liar]
    parent = swarm.peers[liar].ledger.plans[-1]
    swarm.report(liar, 2)
    swarm.deliver(to=tuple(swarm.peers))
    assert len(lone_proposal(swarm, liar, 1).value.reports) == 1
    assert not acks_of(swarm, liar, lone_proposal(swarm, liar, 1)), "a majority has not reported yet"
    for name in honest:
        swarm.report(name, 2)
    swarm.mail = [(sender, to, message) for sender, to, message in swarm.mail if not isinstance(message, Proposal)]
    swarm.deliver(to=honest)
    swarm.now += 3.0
    if swarm.peers[honest[0]].ledger.plans[-1] == parent:
        assert not acks_of(swarm, liar, lone_proposal(swarm, liar, 2)), "their own reports are missing"
    swarm.pass_time(12, among=honest)
    newest = swarm.peers[honest[0]].ledger.entries[-1]
    assert newest.plan.round == parent.round + 1
    assert {signed.report.peer for signed in newest.reports} >= set(honest)


def test_a_value_that_omits_reports_is_taken_eight_leases_after_a_better_one_can_be_made() -> None:
    """Any plan is better than none: those that could make a better one had their time."""
    swarm = played(3)
    liar = swarm.order[-1]
    name = next(name for name in swarm.peers if name != liar)
    values = swarm.peers[name].consensus.values
    swarm.report(liar, 2)
    swarm.deliver(to=(liar, name))
    proposal = lone_proposal(swarm, liar, 1)
    digest = values.keep(proposal.value, liar)
    lease = swarm.peers[name].members.lease_seconds
    assert values.omits_reports(digest, swarm.now)
    begun = swarm.now + 3.0
    swarm.report(name, 2)
    assert values.omits_reports(digest, begun)
    assert values.omits_reports(digest, begun + 7.9 * lease)
    assert not values.omits_reports(digest, begun + 8.1 * lease)
    assert canonical.digest_once(proposal.value) == digest


def test_peers_that_are_at_the_round_themselves_wait_for_a_majority_of_its_reports() -> None:
    """Review B2: where no speeds are known, a round may be longer than any wait that does not look at it."""
    swarm = played(3, rounds=0)
    liar, newest = swarm.order[-1], swarm.peers[peer(0)].ledger.head.round
    honest = [name for name in swarm.peers if name != liar]
    for name in honest:
        swarm.peers[name].note_work([0, 1])
    swarm.report(liar, 0)
    swarm.deliver(to=tuple(swarm.peers))
    swarm.pass_time(100, among=tuple(swarm.peers))
    assert not acks_of(swarm, liar, lone_proposal(swarm, liar, 1)), "their own reports are still to come"
    for name in honest:
        swarm.peers[name].note_work([])
    swarm.pass_time(55, among=tuple(swarm.peers))
    assert [swarm.peers[name].ledger.head.round for name in honest] == [newest] * 2, "a straggler has its time after that"
    swarm.pass_time(15, among=tuple(swarm.peers))
    (entry,) = swarm.peers[honest[0]].ledger.since(newest + 1)
    assert [signed.report.peer for signed in entry.reports] == [liar], "any plan is better than none"


def test_a_device_that_hangs_holds_up_the_plans_for_an_hour_at_most() -> None:
    swarm = played(3, rounds=0)
    consensus, first = swarm.peers[peer(0)].consensus, swarm.now
    values, timing = consensus.values, swarm.peers[peer(0)].members.timing
    consensus.note_work([0])
    values.note_time(first + 100.0)
    assert values.stragglers_end(first) == first + UNKNOWN_ROUND_SECONDS
    consensus.note_work([1])
    assert values.stragglers_end(first) == first + 100.0 + timing.straggler_seconds
    assert values.stragglers_end(first - UNKNOWN_ROUND_SECONDS) == first


# --- ballots ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_announced", [False, True])
def test_a_proposer_that_asks_for_no_promises_raises_the_ballots_of_others_no_faster(is_announced: bool) -> None:
    """It gives each member proposals of its own, and announces that a majority accepted them: none comes to be chosen, and all
    have accepted higher ballots than any that an honest proposer begins."""
    swarm = Swarm(5)
    liar, victim = swarm.order[-1], swarm.peers[swarm.order[-2]]
    value, parent = swarm.peers[liar].consensus.values.make(joined=(), absent=()), swarm.peers[liar].consensus.slot.digest
    before = len(swarm.journals[victim.me])
    for number in range(1, 201):
        ballot = Ballot(attempt=number, peer=liar)
        proposal = Proposal(ballot=ballot, absent=(), value=value, signature="")
        chosen = Chosen(parent=parent, ballot=ballot, value=canonical.digest(value), signature="")
        for message in (proposal, chosen)[: 1 + is_announced]:
            signed = replace(message, signature=sign(liar, message.payload))
            swarm.take(victim.me, victim.receive(liar, signed, swarm.now))
        swarm.now += 0.005
    accepted = [record for record in swarm.journals[victim.me][before:] if isinstance(record, Accepted)]
    assert 0 < len(accepted) <= MAX_OVERTAKEN + 1
    assert victim.consensus.acceptor.promised == accepted[-1].ballot, "what it voted for is promised, as after a restart"


def test_values_that_nobody_chose_cost_no_plan() -> None:
    swarm = played(5)
    liar, victim = swarm.order[-1], swarm.peers[swarm.order[-2]]
    made = counted_plans(victim)
    value = swarm.peers[liar].consensus.values.make(joined=(), absent=())
    for number in range(1, 101):
        other = replace(value, plan=Digest(f"{number:064x}"))
        unsigned = Proposal(ballot=Ballot(attempt=number, peer=liar), absent=(), value=other, signature="")
        victim.receive(liar, replace(unsigned, signature=sign(liar, unsigned.payload)), swarm.now)
    assert len(made) <= MAX_OVERTAKEN + 1


def test_values_that_one_member_certifies_alone_cost_no_plan() -> None:
    """All others are absent in its certificates, and this peer sees that they are not."""
    swarm = played(5)
    liar, victim = swarm.order[-1], swarm.peers[swarm.order[-2]]
    made = counted_plans(victim)
    value = swarm.peers[liar].consensus.values.make(joined=(), absent=())
    others = tuple(sorted(name for name in swarm.peers if name != liar))
    for number in range(1, 101):
        other = replace(value, plan=Digest(f"{number:064x}"))
        digest, ballot = canonical.digest(other), Ballot(attempt=number, peer=liar)
        certificate = certificate_of([liar], (value.parent, digest), ballot=ballot, absent=others)
        victim.receive(liar, Final(parent=value.parent, value=digest, certificate=certificate), swarm.now)
        victim.receive(liar, Supply(parent=value.parent, value=other), swarm.now)
        assert victim.consensus.values.get(digest) == other
    assert not made


def counted_plans(victim: GossipAgreement) -> list[RoundPlan]:
    """The plans that this peer makes from now on."""
    made: list[RoundPlan] = []

    def counted(*inputs: Any) -> RoundPlan:
        made.append(decide(*inputs))
        return made[-1]

    victim.consensus._context = context = replace(victim.consensus._context, decide=counted)
    victim.consensus.values._context = context
    return made


def test_a_refusal_that_names_no_absent_member_ends_no_ballot() -> None:
    """Its sender would end every ballot that needs promises, if it only answers faster than most."""
    swarm = Swarm(5)
    _, second, liar, *_ = swarm.order
    proposer, parent = swarm.peers[second], swarm.peers[second].consensus.slot.digest
    swarm.take(second, proposer.tick(NOW + 2.0))
    ballot = Ballot(attempt=1, peer=second)
    assert proposer.consensus.proposer._ballot == ballot
    proposer.receive(liar, Refusal(parent=parent, ballot=ballot, promised=None, alive=((liar, 1),)), NOW + 2.1)
    assert proposer.consensus.proposer._ballot == ballot


# --- what a slot keeps -----------------------------------------------------------------------------------------------


def test_no_value_is_kept_that_is_larger_than_any_valid_one() -> None:
    """Not of this slot, whoever stands for it, and not of one that is still to come."""
    swarm = Swarm(5)
    victim, liar = swarm.peers[peer(0)], peer(2)
    shown = ProvenSlice(data="A" * MAX_SLICE_TEXT, to_shard="")
    pledge = Pledge(kind="reduction", peer=liar, plan=RUN, round=0, key=RUN, content=RUN, signature="")
    evidence = WrongSum(
        receipt=pledge, sent_codec=1, mean_codec=1, roots=(), coefficients=(), first=0, inputs=(shown,) * 200, result=shown
    )
    for parent in (victim.consensus.slot.digest, Digest("f" * 64)):
        value = Value(round=1, parent=parent, reports=(), joined=(), departed=(), plan=RUN, statements=(evidence,))
        assert canonical.size(value) > MAX_VALUE_BYTES
        unsigned = Proposal(ballot=Ballot(attempt=1, peer=liar), absent=(), value=value, signature="")
        for message in (replace(unsigned, signature=sign(liar, unsigned.payload)), Supply(parent=parent, value=value)):
            victim.receive(liar, message, swarm.now)
    kept = (victim.consensus.values._values, victim.consensus.learner._proposals, victim.consensus._early)
    assert not any(kept)


def test_of_a_slot_to_come_one_message_of_each_kind_and_member_is_kept() -> None:
    swarm = Swarm(5)
    victim, parent = swarm.peers[peer(0)], Digest("f" * 64)
    for attempt in range(50):
        for sender in (peer(1), peer(2), PeerId("stranger")):
            ballot = Ballot(attempt=attempt, peer=sender)
            for message in (
                Prepare(parent=parent, ballot=ballot, absent=()),
                Promise(parent=parent, ballot=ballot, accepted=None),
            ):
                victim.receive(sender, message, swarm.now)
    kept = victim.consensus._early
    assert set(kept) == {(sender, kind) for sender in (peer(1), peer(2)) for kind in ("Prepare", "Promise")}
