"""What messages of strangers, and of one bad member, can do to the agreement of the others: nothing that lasts."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from adloco_p2p.core.agreement.consensus import BALLOTS_PER_SECOND
from adloco_p2p.core.agreement.known_peers import MAX_ELECTORS, MAX_KNOWN
from adloco_p2p.core.agreement.membership import BEATS_PER_INCARNATION, Timing
from adloco_p2p.core.averaging.adaptive_timeout import AdaptiveTimeout
from adloco_p2p.core.ledger.ledger import Ledger
from adloco_p2p.core.ledger.validation import change_of, check_entry, num_emergencies, verify_ledger
from adloco_p2p.core.model import canonical
from adloco_p2p.core.model.certificate import Ballot, Certificate
from adloco_p2p.core.model.effects import Broadcast, Send
from adloco_p2p.core.model.electorate import DEPARTS_AFTER, SILENT_ROUNDS, electorate
from adloco_p2p.core.model.first_seats import FIRST_SEATS
from adloco_p2p.core.model.ledger_entry import JoinRequest, LedgerEntry, Value, Vote
from adloco_p2p.core.model.messages import (
    Accepted,
    Ack,
    Entries,
    Final,
    Heartbeat,
    Leave,
    Prepare,
    Promise,
    Proposal,
    Pull,
    PullEntries,
    Refusal,
    Supply,
)
from adloco_p2p.core.model.plan import RosterChange, RoundPlan, roster_of
from adloco_p2p.core.model.report import Report
from adloco_p2p.core.model.roster_entry import RosterEntry
from adloco_p2p.core.model.scalars import MAX_BALLOT_JUMP, Digest, PeerId
from adloco_p2p.core.planning.round_plan import next_plan
from adloco_p2p.sim.identities import sign, verify
from adloco_p2p.sim.synthetic_reports import certificate_of
from adloco_p2p.sim.votes import votes_in
from tests.core.agreement.test_consensus import NOW, RULES, Swarm, agreement, decide, first_plan, said, spread
from tests.core.agreement.test_membership import member
from tests.core.core_values import RUN, capacity, peer

STRANGER = PeerId("stranger")


def request_of(name: PeerId, *, beat: int = 1) -> JoinRequest:
    unsigned = JoinRequest(peer=name, run=RUN, capacity=capacity(), beat=beat, round=0, signature="")
    return replace(unsigned, signature=sign(name, unsigned.payload))


def entry_of(name: PeerId, ledger: Ledger, *, absent: Sequence[PeerId], departed: Sequence[PeerId]) -> LedgerEntry:
    """An entry for which one peer voted."""
    parent = ledger.plans[-1]
    is_new = name not in roster_of(parent) or name in departed
    value = Value(
        round=parent.round + 1,
        parent=ledger.digests[-1],
        reports=(),
        joined=(request_of(name),) if is_new else (),
        departed=tuple(sorted(departed)),
        plan=Digest(""),
    )
    plan = decide(parent, (), change_of(value, (), ledger, verify))
    value = replace(value, plan=canonical.digest(plan))
    about, ballot = (value.parent, canonical.digest(value)), Ballot(attempt=1, peer=name)
    certificate = certificate_of([name], about, ballot=ballot, absent=tuple(sorted(absent)))
    return LedgerEntry(plan=plan, value=value, reports=(), certificate=certificate)


def played(size: int, *, rounds: int = 2) -> Swarm:
    """A swarm that has agreed on some plans, and whose members have just received each other's heartbeats."""
    swarm = Swarm(size)
    swarm.deliver()
    for round in range(rounds):
        for name in swarm.peers:
            swarm.report(name, round)
        swarm.deliver()
    connect_to_run(swarm)
    return swarm


def connect_to_run(swarm: Swarm, *, among: Sequence[PeerId] = ()) -> None:
    """Each member receives a heartbeat of each other one."""
    names = tuple(among) or tuple(swarm.peers)
    swarm.now += 1.0
    for name in names:
        swarm.take(name, swarm.peers[name].tick(swarm.now))
    swarm.mail.clear()
    for name in names:
        beat = swarm.peers[name].members.heartbeat(swarm.now)
        for other in names:
            if other != name:
                swarm.take(other, swarm.peers[other].receive(name, beat, swarm.now))
    swarm.mail.clear()


# --- a run is not taken over by one entry ----------------------------------------------------------------------------


def test_an_entry_of_a_stranger_is_not_followed_and_does_not_verify() -> None:
    swarm = played(5)
    victim = swarm.peers[peer(0)]
    parent = victim.ledger.plans[-1]
    entry = entry_of(STRANGER, victim.ledger, absent=roster_of(parent), departed=roster_of(parent))
    swarm.take(peer(0), victim.receive(STRANGER, Entries(entries=(entry,)), swarm.now))
    assert victim.ledger.plans[-1] == parent
    assert "not by distinct members" in check_entry(entry, ledger=victim.ledger, decide=decide, verify=verify)
    problems = verify_ledger(swarm.genesis, [*victim.ledger.entries, entry], decide, verify)
    assert len(problems) == 1


@pytest.mark.parametrize("keeps_a_seat_for_the_victim", [False, True])
def test_a_member_does_not_take_over_by_calling_the_others_absent(keeps_a_seat_for_the_victim: bool) -> None:
    swarm = played(5)
    liar, victim = peer(4), swarm.peers[peer(0)]
    parent = victim.ledger.plans[-1]
    others = [name for name in roster_of(parent) if name != liar]
    departed = () if keeps_a_seat_for_the_victim else others
    entry = entry_of(liar, victim.ledger, absent=others, departed=departed)
    assert not check_entry(entry, ledger=victim.ledger, decide=decide, verify=verify), "valid, and an emergency"
    final = Final(parent=entry.value.parent, value=canonical.digest(entry.value), certificate=entry.certificate)
    (vote,) = votes_in(entry.certificate, (entry.value.parent, final.value))
    supply = Supply(parent=entry.value.parent, value=entry.value)
    for message in (Entries(entries=(entry,)), final, vote, supply, final):
        swarm.take(peer(0), victim.receive(liar, message, swarm.now))
    assert victim.ledger.plans[-1] == parent

    for name in others:
        swarm.report(name, 2)
    swarm.pass_time(6, among=others)  # the others answer a peer once per period
    assert victim.ledger.plans[-1].round == parent.round + 1
    assert set(others) <= set(roster_of(victim.ledger.plans[-1]))


def test_a_peer_that_was_away_follows_those_that_went_on_without_others() -> None:
    """The absent have come back since: their heads are ahead, so they do not contradict."""
    swarm = Swarm(4)
    swarm.deliver()
    late, *others = swarm.order
    gone = others[-1]
    alive = sorted(others[:2])
    for name in alive:
        swarm.report(name, 0)
    swarm.mail.clear()
    swarm.pass_time(20, among=alive)
    ahead = swarm.peers[alive[0]]
    assert num_emergencies(swarm.genesis, ahead.ledger.entries) >= 1
    ahead_entries = Entries(entries=tuple(ahead.ledger.entries))
    swarm.take(gone, swarm.peers[gone].receive(alive[0], ahead_entries, swarm.now))
    for name in (*alive, gone):
        swarm.take(late, swarm.peers[late].receive(name, swarm.peers[name].members.heartbeat(swarm.now), swarm.now))
    swarm.take(late, swarm.peers[late].receive(alive[0], ahead_entries, swarm.now))
    assert swarm.peers[late].ledger.head == ahead.ledger.head


def test_an_emergency_that_is_refused_is_followed_when_the_leases_have_run_out() -> None:
    swarm = played(3)
    name, *dead = sorted(swarm.peers)
    follower = swarm.peers[dead[0]]
    entry = entry_of(name, follower.ledger, absent=dead, departed=dead[1:])
    swarm.take(dead[0], follower.receive(name, Entries(entries=(entry,)), swarm.now))
    assert follower.ledger.plans[-1] != entry.plan
    for _ in range(15):
        swarm.now += 1.0
        swarm.take(dead[0], follower.tick(swarm.now))
    ahead = replace(follower.ledger.head, round=entry.plan.round, digest=entry.value.plan, samples=10**6)
    beat = replace(swarm.peers[name].members.heartbeat(swarm.now), beat=BEATS_PER_INCARNATION + 10**6, head=ahead)
    swarm.mail.clear()
    swarm.take(dead[0], follower.receive(name, beat, swarm.now))
    assert said(swarm, PullEntries)
    swarm.take(dead[0], follower.receive(name, Entries(entries=(entry,)), swarm.now))
    assert follower.ledger.plans[-1] == entry.plan


def test_an_elector_that_voted_for_an_emergency_and_left_still_counts_as_ahead() -> None:
    """Two of four went on while a link was cut, and one of them left: the other two are no majority of the four, so they follow
    at once. They used to wait for eight leases, and the run was over by then."""
    swarm = Swarm(4)
    swarm.deliver()
    staying, leaver, *others = swarm.order
    for name in (staying, leaver):
        swarm.report(name, 0)
    swarm.mail.clear()
    swarm.pass_time(20, among=sorted((staying, leaver)))
    ahead = swarm.peers[staying]
    (entry,) = ahead.ledger.entries[1:]
    assert num_emergencies(swarm.genesis, ahead.ledger.entries) == 1
    assert {cast.peer for cast in entry.certificate.votes} == {staying, leaver}
    follower = swarm.peers[others[0]]
    (leave,) = {item.message for item in swarm.peers[leaver].leave(swarm.now) if isinstance(item, Send | Broadcast)}
    swarm.take(others[0], follower.receive(leaver, leave, swarm.now))
    for name in (staying, others[1]):
        beat = swarm.peers[name].members.heartbeat(swarm.now)
        swarm.take(others[0], follower.receive(name, beat, swarm.now))
    assert not follower.consensus.follow_entry(replace(entry, certificate=replace(entry.certificate, votes=())), swarm.now)
    assert follower.consensus.follow_entry(entry, swarm.now)


def test_the_first_word_after_a_start_is_no_emergency() -> None:
    """A member sends its one-vote entry to a peer that has just started, and knows no head of any other."""
    swarm = Swarm(5)
    liar, victim = peer(4), swarm.peers[peer(0)]
    others = [name for name in swarm.peers if name != liar]
    for departed in ((), others):
        entry = entry_of(liar, victim.ledger, absent=others, departed=departed)
        swarm.take(peer(0), victim.receive(liar, Entries(entries=(entry,)), swarm.now))
        assert victim.ledger.head.round == 0


def test_a_member_alone_does_not_certify_the_value_that_all_vote_for() -> None:
    """The entry would carry one vote, that of the liar, and lose to any other entry of the same liar."""
    swarm = Swarm(5)
    proposal, *_ = said(swarm, Proposal)
    liar, victim = swarm.order[1:3]
    held: list[tuple[PeerId, Vote | Final]] = []
    while swarm.mail:
        sender, receiver, message = swarm.mail.pop(0)
        if receiver == victim and isinstance(message, Vote | Final):
            held.append((sender, message))
        else:
            swarm.take(receiver, swarm.peers[receiver].receive(sender, message, swarm.now))
    consensus, value = swarm.peers[victim].consensus, canonical.digest(proposal.value)
    assert consensus.acceptor.voted == value
    about, others = (proposal.value.parent, value), tuple(sorted(name for name in swarm.peers if name != liar))
    alone = certificate_of([liar], about, ballot=Ballot(attempt=1, peer=liar), absent=others)
    final = Final(parent=proposal.value.parent, value=value, certificate=alone)
    swarm.take(victim, swarm.peers[victim].receive(liar, final, swarm.now))
    assert swarm.peers[victim].ledger.head.round == 0
    for sender, message in held:
        swarm.take(victim, swarm.peers[victim].receive(sender, message, swarm.now))
    assert swarm.peers[victim].ledger.head.round == 1
    assert num_emergencies(swarm.genesis, swarm.peers[victim].ledger.entries) == 0


def test_a_member_that_votes_twice_leads_nobody_from_an_entry_that_it_certified_alone() -> None:
    """A peer that is one entry behind takes that from the liar, with its single vote, since the others are ahead. The next lie
    of the same member has as many electors behind it, none, and more rounds."""
    swarm = played(5)
    _, liar, *_, late = swarm.order
    victim, others = swarm.peers[late], tuple(name for name in sorted(swarm.peers) if name != liar)
    parent = victim.ledger.digests[-1]
    for name in swarm.peers:
        swarm.report(name, 2)
    while swarm.mail:  # nothing reaches the one that is late
        sender, receiver, message = swarm.mail.pop(0)
        swarm.take(receiver, swarm.peers[receiver].receive(sender, message, swarm.now) if receiver != late else [])
    entry = swarm.peers[liar].ledger.entries[-1]
    assert entry.value.parent == parent == victim.ledger.digests[-1]
    for name in others:
        beat = swarm.peers[name].members.heartbeat(swarm.now)
        swarm.take(late, victim.receive(name, beat, swarm.now) if name != late else [])

    alone = certified_alone(liar, entry, absent=others)
    swarm.take(late, victim.receive(liar, Entries(entries=(alone,)), swarm.now))
    assert victim.ledger.entries[-1] == alone, "its plan is that of all"
    lies = lies_beside(swarm.peers[liar].ledger, liar, absent=others)
    swarm.take(late, victim.receive(liar, Entries(entries=tuple(lies.entries[-2:])), swarm.now))
    assert lies.head.rank > victim.ledger.head.rank and victim.ledger.entries[-1] == alone


def certified_alone(name: PeerId, entry: LedgerEntry, *, absent: Sequence[PeerId]) -> LedgerEntry:
    about, ballot = (entry.value.parent, canonical.digest(entry.value)), Ballot(attempt=1, peer=name)
    return replace(entry, certificate=certificate_of([name], about, ballot=ballot, absent=tuple(sorted(absent))))


def lies_beside(ledger: Ledger, name: PeerId, *, absent: Sequence[PeerId]) -> Ledger:
    """The ledger with another last entry, from the same reports, and one more; one member certified both."""
    last = ledger.entries[-1]
    lies, reports = ledger.truncated(last.value.parent), [signed.report for signed in last.reports]
    value = replace(last.value, departed=(absent[0],))
    plan = decide(lies.plans[-1], reports, change_of(value, reports, lies, verify))
    lie = replace(last, plan=plan, value=replace(value, plan=canonical.digest(plan)))
    lies.append(certified_alone(name, lie, absent=absent))
    lies.append(entry_of(name, lies, absent=absent[1:], departed=()))
    return lies


def test_a_voter_of_an_emergency_follows_it_though_an_absent_member_is_back() -> None:
    """It voted with the same members absent. The vote of the other one comes after the heartbeat of a third."""
    swarm = Swarm(5)
    swarm.deliver()
    first, second, third, *_ = swarm.order
    alive = sorted((first, second))
    for name in alive:
        swarm.report(name, 0)
    swarm.mail.clear()
    held: list[tuple[PeerId, PeerId, object]] = []
    while not held:
        swarm.now += 1.0
        assert swarm.now < NOW + 60.0
        for name in alive:
            swarm.take(name, swarm.peers[name].tick(swarm.now))
        while swarm.mail:
            sender, receiver, message = swarm.mail.pop(0)
            if isinstance(message, Vote | Final):
                held.append((sender, receiver, message))
            elif receiver in alive:
                swarm.take(receiver, swarm.peers[receiver].receive(sender, message, swarm.now))
    for name in alive:
        assert swarm.peers[name].consensus.acceptor.voted and swarm.peers[name].ledger.head.round == 1
        back = swarm.peers[third].members.heartbeat(swarm.now)
        swarm.take(name, swarm.peers[name].receive(third, back, swarm.now))
    swarm.mail = [item for item in held if item[1] in alive]
    swarm.deliver(to=alive)
    assert [swarm.peers[name].ledger.head.round for name in alive] == [2, 2]


def test_an_honest_ledger_has_no_emergencies() -> None:
    swarm = played(4)
    entries = swarm.peers[peer(0)].ledger.entries
    assert len(entries) == 3 and num_emergencies(swarm.genesis, entries) == 0


# --- values that nobody asked for ------------------------------------------------------------------------------------


def unreal_values(parent: Digest, count: int) -> list[Value]:
    """Values of the slot whose plans no rule makes."""
    plans = [Digest(f"{index:064x}") for index in range(count)]
    return [Value(round=1, parent=parent, reports=(), joined=(), departed=(), plan=plan) for plan in plans]


def kept(swarm: Swarm, name: PeerId, values: Sequence[Value]) -> list[Value]:
    """Those of the values that the peer supplies when they are pulled."""
    parent, each = swarm.peers[name].consensus.slot.digest, swarm.peers[name]
    pulls = [Pull(parent=parent, value=canonical.digest(value)) for value in values]
    sent = [outcome for pull in pulls for outcome in each.receive(STRANGER, pull, swarm.now) if isinstance(outcome, Send)]
    return [send.message.value for send in sent if isinstance(send.message, Supply) and send.message.value is not None]


@pytest.mark.parametrize("sender", [STRANGER, peer(3)])
def test_unasked_values_are_not_kept_and_stop_nothing(sender: PeerId) -> None:
    swarm = played(4)
    for name in swarm.peers:
        slot = swarm.peers[name].consensus.slot
        values = unreal_values(slot.digest, 70)
        for value in values:
            swarm.take(name, swarm.peers[name].receive(sender, Supply(parent=slot.digest, value=value), swarm.now))
        assert not kept(swarm, name, values)
    for name in swarm.peers:
        swarm.report(name, 2)
    swarm.deliver()
    assert {each.ledger.head.round for each in swarm.peers.values()} == {4}


def test_values_of_one_member_take_the_place_of_one() -> None:
    swarm = Swarm(4)
    liar, victim = swarm.order[1], swarm.order[2]
    consensus = swarm.peers[victim].consensus
    values = unreal_values(consensus.slot.digest, 200)
    for attempt, value in enumerate(values, start=1):
        proposal = Proposal(ballot=Ballot(attempt=attempt, peer=liar), absent=(), value=value, signature="")
        proposal = replace(proposal, signature=sign(liar, proposal.payload))
        swarm.take(victim, swarm.peers[victim].receive(liar, proposal, NOW))
    assert values[-1] in kept(swarm, victim, values) and len(kept(swarm, victim, values)) <= 2
    assert len(consensus.values._plans) <= 2 and len(consensus.values._sources) <= 2 and len(consensus.acceptor._refused) <= 1


def test_no_message_of_a_slot_raises() -> None:
    """All messages about a value that no peer has, from strangers and members, in several orders."""
    swarm = played(3)
    victim, name = swarm.peers[peer(0)], peer(1)
    parent, ghost = victim.consensus.slot.digest, Digest("f" * 64)
    ballot = Ballot(attempt=1, peer=name)
    value = Value(round=4, parent=parent, reports=(ghost,), joined=(), departed=(), plan=ghost)
    proposal = Proposal(ballot=ballot, absent=(), value=value, signature="")
    vote = Vote(peer=name, parent=parent, ballot=ballot, absent=(), value=ghost, abstains=False, signature="")
    messages = [
        Prepare(parent=parent, ballot=ballot, absent=()),
        Promise(parent=parent, ballot=ballot, accepted=(ballot, ghost)),
        Refusal(parent=parent, ballot=ballot, promised=ballot, alive=((peer(2), 1), (STRANGER, 2))),
        replace(proposal, signature=sign(name, proposal.payload)),
        Ack(parent=parent, ballot=ballot, value=ghost),
        replace(vote, signature=sign(name, vote.payload)),
        Final(parent=parent, value=ghost, certificate=Certificate(ballot=ballot, absent=(), votes=())),
        Pull(parent=parent, value=ghost, lacking=1 << 4000, reporters=1 << 4000),
        Pull(parent=parent, lacking=7),
        Supply(parent=parent, value=value),
        Entries(entries=()),
        PullEntries(locator=(ghost,)),
    ]
    for order in (messages, messages[::-1], messages * 2):
        for sender in (STRANGER, name, peer(2)):
            for message in order:
                victim.receive(sender, message, swarm.now)
                victim.tick(swarm.now)


# --- beats -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("liar", [STRANGER, peer(5)])
def test_beats_that_nobody_had_split_no_swarm(liar: PeerId) -> None:
    swarm = played(6)
    honest = [name for name in swarm.peers if name != liar]
    for leap in (1, 99_000, 198_000):
        for name in honest:
            members = swarm.peers[name].members
            beats = tuple(
                0 if other == name else members.beat_of(other) + leap * BEATS_PER_INCARNATION for other in sorted(swarm.peers)
            )
            forged = replace(members.heartbeat(swarm.now), beat=10**15, heard=beats, lives=(), joins=(), leaves=())
            swarm.take(name, swarm.peers[name].receive(liar, forged, swarm.now))
    swarm.mail.clear()
    for _ in range(20):
        connect_to_run(swarm, among=honest)
    for name in honest:
        assert set(honest) <= set(swarm.peers[name].members.view(swarm.now))


def test_of_the_heartbeat_of_a_stranger_only_its_head_and_its_requests_are_read() -> None:
    made, other = member(peer(0)), member(peer(2))
    before = made.beat_of(peer(2))
    (goodbye,) = other.leave(0.0)
    assert isinstance(goodbye, Broadcast)
    leave = goodbye.message
    assert isinstance(leave, Leave)
    newcomer = request_of(PeerId("newcomer"))
    beat = replace(other.heartbeat(1.0), heard=(9, 9, 9, 9), joins=(newcomer,), leaves=(leave,), lives=())
    made.handle(STRANGER, beat, 1.0)
    assert made.beat_of(peer(2)) == before and made.lease_valid(peer(2), 1.0)
    assert made.candidates(1.0) == (newcomer,)


def test_a_refusal_of_a_stranger_teaches_nothing() -> None:
    swarm = Swarm(3)
    name = swarm.order[0]
    each = swarm.peers[name]
    beats = {other: each.members.beat_of(other) for other in swarm.peers}
    alive = tuple((other, BEATS_PER_INCARNATION * 2) for other in sorted(swarm.peers))
    for parent in (each.consensus.slot.digest, Digest("e" * 64)):
        each.receive(STRANGER, Refusal(parent=parent, ballot=Ballot(attempt=0, peer=name), promised=None, alive=alive), NOW)
    assert {other: each.members.beat_of(other) for other in swarm.peers} == beats


# --- the door --------------------------------------------------------------------------------------------------------


def asking(requests: Sequence[JoinRequest], *, like: Heartbeat) -> Heartbeat:
    return replace(like, joins=tuple(requests))


def test_the_door_stays_open_however_many_have_asked() -> None:
    made = member(peer(0))
    like = member(peer(1)).heartbeat(0.0)
    names = [PeerId(f"ghost{index:05}") for index in range(MAX_KNOWN + 64)]
    for first in range(0, len(names), 16):
        made.handle(STRANGER, asking([request_of(name) for name in names[first : first + 16]], like=like), 1.0)
    for step in range(2, 300):
        made.tick(float(step))
    honest = request_of(PeerId("honest"))
    made.handle(STRANGER, asking([honest], like=like), 299.0)
    assert made.candidates(299.0) == (honest,)
    assert len(made._joins) == 1 and len(made._beats) <= 2


def test_names_without_number_keep_no_heartbeat_from_a_former_elector() -> None:
    """More names than are remembered ask for a seat of an open run while the other side of a partition is away."""
    made, former = member(peer(0)), peer(9)
    made.known.learn_electors([peer(0), former])
    like = member(peer(1)).heartbeat(0.0)
    names = [PeerId(f"ghost{index:05}") for index in range(MAX_KNOWN + 64)]
    for first in range(0, len(names), 16):
        made.handle(STRANGER, asking([request_of(name) for name in names[first : first + 16]], like=like), 1.0)
    effects = [effect for instant in (2.0, 3.0) for effect in made.tick(instant)]
    receivers = [effect.peer for effect in effects if isinstance(effect, Send)]
    assert receivers.count(former) == 1, "in one of two periods"
    made.known.learn_electors([PeerId(f"elector{index:05}") for index in range(MAX_ELECTORS)])
    assert made.known.in_turn([former], 1) == ([], [former]) and len(list(made.known)) <= MAX_KNOWN


def test_a_request_that_others_still_pass_on_is_no_news() -> None:
    made = member(peer(0))
    like, request = member(peer(1)).heartbeat(0.0), request_of(PeerId("honest"))
    made.handle(STRANGER, asking([request], like=like), 0.0)
    for step in range(1, 12):
        made.tick(float(step))
        made.handle(STRANGER, asking([request], like=like), float(step))
    assert made.candidates(11.0) == ()


def test_farewells_of_those_who_were_never_there_are_not_kept() -> None:
    made = member(peer(0))
    for index in range(100):
        name = PeerId(f"ghost{index}")
        unsigned = Leave(peer=name, run=RUN, beat=1, signature="")
        made.handle(name, replace(unsigned, signature=sign(name, unsigned.payload)), 1.0)
    assert not made._leaves


# --- names -----------------------------------------------------------------------------------------------------------


def roster_entry(index: int, *, joined: int = 0, last: int | None = None, probation: int = 0) -> RosterEntry:
    return RosterEntry(peer=peer(index), joined_round=joined, capacity=capacity(), last_report=last, probation=probation)


def plan_of(round: int, *roster_entries: RosterEntry) -> RoundPlan:
    return replace(first_plan(1), round=round, roster=roster_entries)


def test_the_electorate_is_of_founders_and_the_seasoned_that_report() -> None:
    assert electorate(plan_of(0, roster_entry(0), roster_entry(1))) == (peer(0), peer(1))
    early = SILENT_ROUNDS
    assert electorate(plan_of(early, roster_entry(0), roster_entry(1, last=early - 2))) == (peer(0), peer(1))
    assert electorate(plan_of(early + 1, roster_entry(0), roster_entry(1, last=early - 1))) == (peer(1),)
    newcomer = [roster_entry(1, joined=40, last=46, probation=owed) for owed in (1, 0)]
    assert electorate(plan_of(48, roster_entry(0, last=46), newcomer[0])) == (peer(0),)
    assert electorate(plan_of(48, roster_entry(0, last=46), newcomer[1])) == (peer(0), peer(1))
    silent = roster_entry(1, joined=47)
    assert electorate(plan_of(48, roster_entry(0, last=46), silent)) == (peer(0),), "it owes nothing, and never reported"
    assert electorate(plan_of(30, roster_entry(0, joined=28, last=28), roster_entry(1, joined=28))) == (peer(0),), (
        "no founder is left"
    )
    assert electorate(plan_of(30, roster_entry(0, joined=30), roster_entry(1, joined=30))) == (peer(0), peer(1)), (
        "nobody has reported"
    )


def test_a_seat_without_a_report_ends() -> None:
    plan = plan_of(DEPARTS_AFTER, roster_entry(0, last=DEPARTS_AFTER - 2), roster_entry(1), roster_entry(2, joined=4))
    reports = [Report(peer=peer(0), round=DEPARTS_AFTER - 1, plan=Digest("b" * 64), capacity=capacity())]
    following = next_plan(plan, reports, RULES, roster=RosterChange())
    assert roster_of(following) == (peer(0), peer(2))
    assert roster_of(next_plan(replace(plan, roster=plan.roster[1:2]), (), RULES)) == (peer(1),), "somebody stays"


def test_free_names_do_not_stop_the_plans_of_those_that_work() -> None:
    """Ghosts have seats and seem to live, but never report and never vote."""
    swarm = played(3)
    ghosts = [PeerId(f"ghost{index}") for index in range(5)]
    asked = replace(swarm.peers[peer(0)].members.heartbeat(swarm.now), joins=tuple(request_of(name) for name in ghosts))
    for name in swarm.peers:
        swarm.take(name, swarm.peers[name].receive(STRANGER, asked, swarm.now))
    swarm.mail.clear()
    num_beats, seen = 2, swarm.peers[peer(0)].ledger.plans[-1].round - 1
    for _ in range(60):
        newest = swarm.peers[peer(0)].ledger.plans[-1]
        num_beats += 1
        for name in swarm.peers:
            for ghost in ghosts:
                beat = replace(swarm.peers[name].members.heartbeat(swarm.now), beat=num_beats, joins=(), lives=())
                swarm.take(name, swarm.peers[name].receive(ghost, beat, swarm.now))
        swarm.mail.clear()
        if newest.round > seen:
            seen = newest.round
            for name in swarm.peers:
                swarm.report(name, seen - 1)
        swarm.mail = [mail for mail in swarm.mail if mail[1] in swarm.peers]
        swarm.pass_time(1, among=tuple(swarm.peers))
    plans = swarm.peers[peer(0)].ledger.plans
    assert any(set(ghosts) <= set(roster_of(plan)) for plan in plans)
    assert plans[-1].round >= 12
    assert verify_ledger(swarm.genesis, swarm.peers[peer(0)].ledger.entries, decide, verify) == []


def test_a_newcomer_has_no_vote_and_gets_the_plan_all_the_same() -> None:
    swarm = Swarm(2)
    swarm.deliver()
    newcomer = peer(2)
    swarm.journals[newcomer], swarm.plans[newcomer] = [], []
    swarm.peers[newcomer] = agreement(newcomer, swarm.genesis)
    swarm.take(newcomer, swarm.peers[newcomer].start((swarm.genesis,), (), swarm.now))
    swarm.pass_time(3, among=tuple(swarm.peers))
    for round in range(2):
        for name in swarm.peers:
            if name in roster_of(swarm.peers[name].ledger.plans[round]):
                swarm.report(name, round)
        swarm.pass_time(3, among=tuple(swarm.peers))
    plans = swarm.plans[newcomer]
    assert newcomer in roster_of(plans[-1]) and electorate(plans[-1]) == (peer(0), peer(1))
    assert not [record for record in swarm.journals[newcomer] if isinstance(record, Accepted)]
    assert plans[-1].round == swarm.plans[peer(0)][-1].round


# --- eviction with one's own acks ------------------------------------------------------------------------------------


def value_without(swarm: Swarm, proposer: PeerId, absent: tuple[PeerId, ...], *, said: tuple[PeerId, ...]) -> Proposal:
    """A value that leaves these peers out, in a ballot that is said to exclude those."""
    value = swarm.peers[proposer].consensus.values.make(joined=(), absent=absent)
    proposal = Proposal(ballot=Ballot(attempt=1, peer=proposer), absent=said, value=value, signature="")
    return replace(proposal, signature=sign(proposer, proposal.payload))


def test_nobody_evicts_the_living_by_a_value_that_is_said_to_be_repeated() -> None:
    swarm = Swarm(6)
    swarm.mail.clear()
    liar, *others = swarm.order
    evicted = tuple(sorted(others[-2:]))
    proposal = value_without(swarm, liar, evicted, said=())
    prepare = Prepare(parent=proposal.value.parent, ballot=proposal.ballot, absent=())
    for name in others:
        swarm.take(name, swarm.peers[name].receive(liar, prepare, NOW))
        swarm.take(name, swarm.peers[name].receive(liar, proposal, NOW))
    swarm.deliver(to=others)
    assert not any(record for name in others for record in swarm.journals[name] if isinstance(record, Accepted))
    assert all(swarm.peers[name].ledger.head.round == 0 for name in others)


@pytest.mark.parametrize(("num_accepted", "is_repeated"), [(1, False), (2, False), (3, True), (4, True)])
def test_a_value_that_half_accepted_is_repeated_and_one_of_fewer_is_not(num_accepted: int, is_repeated: bool) -> None:
    """A slot is never stuck with a value that leaves out a peer which is there again."""
    swarm = Swarm(6)
    swarm.mail.clear()
    first, *others = swarm.order
    returned = others[-1]
    proposal = value_without(swarm, first, (returned,), said=(returned,))  # made while it was silent
    for name in others[:num_accepted]:
        consensus = swarm.peers[name].consensus
        consensus.values.keep(proposal.value, first)
        consensus.acceptor.accept_own(proposal, canonical.digest(proposal.value))
    swarm.pass_time(20, among=others)  # the one that proposed it is gone
    heads = {swarm.peers[name].ledger.head for name in others}
    assert len(heads) == 1
    plan = swarm.plans[others[0]][0]
    assert plan.round == 1 and (returned not in roster_of(plan)) is is_repeated


def test_a_member_that_overtakes_every_ballot_does_not_stop_the_plans() -> None:
    swarm = Swarm(6)
    swarm.mail.clear()
    liar = swarm.order[0]
    honest = [name for name in swarm.peers if name != liar]
    digest = swarm.peers[honest[0]].consensus.slot.digest
    beat = BEATS_PER_INCARNATION
    for _ in range(120):
        swarm.now += 0.5
        beat += 1
        highest = max(
            (promised.attempt for each in swarm.peers.values() if (promised := each.consensus.acceptor.promised)), default=0
        )
        for name in honest:
            prepare = Prepare(parent=digest, ballot=Ballot(attempt=highest + 1, peer=liar), absent=())
            swarm.take(name, swarm.peers[name].receive(liar, prepare, swarm.now))
            like = swarm.peers[name].members.heartbeat(swarm.now)
            swarm.take(name, swarm.peers[name].receive(liar, replace(like, beat=beat, lives=()), swarm.now))
            swarm.take(name, swarm.peers[name].tick(swarm.now))
        swarm.deliver(to=honest)
    assert all(swarm.peers[name].ledger.head.round >= 1 for name in honest)


def test_a_member_that_drives_the_promises_apart_does_not_stop_the_plans() -> None:
    """Every member promised another number, so far from the next one that neither it nor a higher one would be heard there."""
    swarm = Swarm(6)
    swarm.mail.clear()
    liar = swarm.order[0]
    honest = [name for name in swarm.peers if name != liar]
    digest = swarm.peers[honest[0]].consensus.slot.digest
    for place, name in enumerate(honest):
        for step in range(1, 2 * place + 1):
            prepare = Prepare(parent=digest, ballot=Ballot(attempt=step * MAX_BALLOT_JUMP, peer=liar), absent=())
            swarm.take(name, swarm.peers[name].receive(liar, prepare, swarm.now))
    for _ in range(60):
        swarm.now += 0.5
        for name in honest:
            swarm.take(name, swarm.peers[name].tick(swarm.now))
        swarm.deliver(to=honest)
    assert all(swarm.peers[name].ledger.head.round >= 1 for name in honest)


def test_restarts_let_no_member_raise_the_ballots_of_one_peer_beyond_the_limits_of_the_others() -> None:
    """It promised numbers that no ballot of the others could reach for a quarter of an hour."""
    swarm = Swarm(3)
    swarm.mail.clear()
    liar, restarted, other = swarm.order
    digest = swarm.peers[other].consensus.slot.digest
    for step in range(1, 4):
        prepare = Prepare(parent=digest, ballot=Ballot(attempt=step * MAX_BALLOT_JUMP, peer=liar), absent=())
        swarm.take(restarted, swarm.peers[restarted].receive(liar, prepare, swarm.now))
        swarm.peers[restarted] = agreement(restarted, swarm.genesis, journal=tuple(swarm.journals[restarted]))
        swarm.take(restarted, swarm.peers[restarted].start((swarm.genesis,), (), swarm.now))
    promised = swarm.peers[restarted].consensus.acceptor.promised
    assert promised is not None and promised.attempt == MAX_BALLOT_JUMP
    swarm.mail.clear()
    swarm.pass_time(30, among=[restarted, other])
    assert all(swarm.peers[name].ledger.head.round >= 1 for name in (restarted, other))


def test_a_peer_that_was_restarted_takes_ballots_above_the_one_that_it_had_promised_before() -> None:
    """Without the promise of before, its limit would be below the ballots of the others for as long as the slot was open."""
    swarm = Swarm(3)
    swarm.mail.clear()
    liar, restarted, other = swarm.order
    digest = swarm.peers[other].consensus.slot.digest
    swarm.now += 600.0
    high = Ballot(attempt=MAX_BALLOT_JUMP + 500 * BALLOTS_PER_SECOND, peer=liar)
    for name in (restarted, other):
        swarm.take(name, swarm.peers[name].receive(liar, Prepare(parent=digest, ballot=high, absent=()), swarm.now))
        assert swarm.peers[name].consensus.acceptor.promised == high
    swarm.peers[restarted] = agreement(restarted, swarm.genesis, journal=tuple(swarm.journals[restarted]))
    swarm.take(restarted, swarm.peers[restarted].start((swarm.genesis,), (), swarm.now))
    swarm.mail.clear()
    swarm.pass_time(60, among=[restarted, other])
    assert all(swarm.peers[name].ledger.head.round >= 1 for name in (restarted, other))


# --- adaptive timeout ------------------------------------------------------------------------------------------------


def test_patience_has_an_upper_bound_however_long_others_took() -> None:
    patience = AdaptiveTimeout()
    patience.observe(10_000.0, num_bytes=10_000_000)
    bound = patience.longest_seconds(expected_seconds=60.0, uplinks=[0.0, 1e6, 2e6, 2e6, 4e6])
    assert bound == 2 * 60.0 + 10_000_000 / 500_000.0 + 30.0
    assert patience.longest_seconds(expected_seconds=60.0, uplinks=[]) == 120.0 + 40.0 + 30.0
    assert patience.timeout_seconds(expected_seconds=60.0) > bound


def test_the_lot_for_first_seats_is_the_proposers_secret() -> None:
    """Whoever could know it would make the names that win before it asks."""
    swarm = Swarm(3)
    requests = [request_of(PeerId(f"ghost{number}")) for number in range(16)]
    like, joined = member(peer(99)).heartbeat(0.0), []
    for each in swarm.peers.values():
        each.receive(STRANGER, asking(requests, like=like), swarm.now)
        joined.append(each.consensus.proposer._fresh_value(swarm.now).joined)
    assert [len(chosen) for chosen in joined] == [FIRST_SEATS] * 3 and len(set(joined)) == 3


def test_after_another_history_won_none_gets_the_certificate_of_the_lost_one() -> None:
    swarm = Swarm(Timing().direct_limit + 2)
    ahead, late, *_ = swarm.order
    spread(swarm, to=[name for name in swarm.peers if name != late])
    each = swarm.peers[ahead]
    common, now = each.ledger.digests[0], swarm.now
    won = each.ledger.truncated(common)
    won.append(entry_of(ahead, won, absent=(), departed=swarm.order[-1:]))
    each.consensus.follow_reorg(won, now)
    swarm.mail.clear()
    swarm.take(ahead, each.receive(late, PullEntries(locator=(common,)), now))
    (entries,) = said(swarm, Entries)
    assert entries.entries == (won.entries[-1],) and not said(swarm, Final)


def test_one_that_is_far_behind_gets_the_end_of_the_ledger_and_pulls_from_one() -> None:
    swarm = played(4, rounds=4)
    late = agreement(STRANGER, swarm.genesis)
    late.start((), (), NOW)
    beat = late.members.heartbeat(NOW)
    for name, each in swarm.peers.items():
        swarm.take(name, each.receive(STRANGER, beat, swarm.now))
    answers = [(sender, message) for sender, to, message in swarm.mail if to == STRANGER]
    assert [sender for sender, _ in answers] == list(swarm.peers) and not said(swarm, Entries)
    pulls = [late.receive(sender, message, NOW) for sender, message in answers]
    assert [len(each) for each in pulls] == [1, 0, 0, 0]
