"""Membership: leases at the receiver's clock, suspicion, leave, return, and one bad link."""

from collections.abc import Sequence
from dataclasses import replace
from random import Random

import pytest

from adloco_p2p.core.agreement import membership
from adloco_p2p.core.agreement.membership import BEATS_PER_INCARNATION, Membership, Timing
from adloco_p2p.core.model import canonical
from adloco_p2p.core.model.effects import Broadcast, Effect, Send
from adloco_p2p.core.model.ledger_entry import Head
from adloco_p2p.core.model.messages import MAX_HEARD, Heartbeat, Leave, Ping
from adloco_p2p.core.model.scalars import Digest, PeerId
from adloco_p2p.sim.identities import sign, verify
from tests.core.core_values import RUN, capacity, peer

ROSTER = Digest("c" * 64)
TIMING = Timing()
NEWCOMER = PeerId("newcomer")
A, B, C, D = (peer(index) for index in range(4))


def member(me: PeerId, *, roster: Sequence[PeerId] = (A, B, C, D), now: float = 0.0, incarnation: int = 1) -> Membership:
    made = Membership(me, run=RUN, sign=lambda payload: sign(me, payload), verify=verify, draw=lambda: 0.0, timing=TIMING)
    made.start(incarnation=incarnation, contacts=(), capacity=capacity(), now=now)
    made.set_roster(ROSTER, roster, now)
    made.head = Head(round=0, digest=ROSTER, samples=0)
    return made


def silence(made: Membership, *, start: float, end: float) -> list[Effect]:
    """Ticks without any message."""
    effects: list[Effect] = []
    for step in range(int(start), int(end) + 1):
        effects += made.tick(float(step))
    return effects


def test_a_silent_peer_counts_for_its_lease_and_no_longer() -> None:
    made = member(A)
    lease = TIMING.lease(4)
    silence(made, start=1, end=lease)
    assert made.lease_valid(B, lease)
    assert not made.lease_valid(B, lease + 0.01)
    assert not made.is_absent(B, lease + 0.01)
    assert made.is_absent(B, lease + TIMING.margin_seconds + 0.01)
    assert made.view(lease + 0.01) == (A,)


def test_a_killed_peer_is_noticed_within_ten_seconds_in_a_swarm_of_eight() -> None:
    assert TIMING.lease(8) + TIMING.margin_seconds + TIMING.heartbeat_seconds <= 10.0


def test_a_heartbeat_of_a_large_swarm_has_the_size_of_that_of_a_smaller_one() -> None:
    sizes = []
    for count in (MAX_HEARD, 8 * MAX_HEARD):
        roster = [peer(index) for index in range(count)]
        made = member(roster[0], roster=roster)
        for name in roster:
            made.note_beat(name, BEATS_PER_INCARNATION + 7, 1.0)
        sizes.append(canonical.size(made.heartbeat(1.0)))
    assert sizes[1] <= sizes[0] + 2


def test_a_row_of_beats_begins_anywhere_and_goes_on_at_the_first_peer() -> None:
    roster = [peer(index) for index in range(MAX_HEARD + 2)]
    made = member(A, roster=roster)
    made.note_beat(roster[1], BEATS_PER_INCARNATION + 7, 1.0)
    made._draw = lambda: 0.999  # the last place
    told = made.heartbeat(1.0).beats(roster)
    assert [name for name, _ in told] == [roster[-1], *roster[: MAX_HEARD - 1]]
    assert dict(told)[roster[1]] == BEATS_PER_INCARNATION + 7
    other = member(B, roster=roster)
    other.handle(A, made.heartbeat(1.0), 1.0)
    assert other.beat_of(A) == BEATS_PER_INCARNATION and other.beat_of(roster[-2]) == 0
    assert made.heartbeat(1.0).beats(()) == []


def test_beats_get_around_within_the_lease_where_a_heartbeat_has_no_room_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forty members, of which each heartbeat names eight, and every fifth one is lost: no lease runs out, not even
    without the pings, and suspects are few."""
    monkeypatch.setattr(membership, "MAX_HEARD", 8)
    random, roster = Random(1), [peer(index) for index in range(40)]
    assert TIMING.lease(len(roster)) == TIMING.lease_seconds + 5 * 6
    members = {name: member(name, roster=roster) for name in roster}
    for made in members.values():
        made._draw = random.random
    for second in range(1, 46):
        for name, made in members.items():
            for effect in made.tick(float(second)):
                if isinstance(effect, Send) and random.random() > 0.2:
                    assert isinstance(effect.message, Heartbeat | Ping)
                    members[effect.peer].handle(name, effect.message, float(second))
        assert all(made.lease_valid(name, float(second)) for made in members.values() for name in roster)
        assert sum(made.is_suspect(name, float(second)) for made in members.values() for name in roster) <= 4


def test_a_lease_is_renewed_by_a_rising_beat_only() -> None:
    made, other = member(A), member(B)
    silence(other, start=0, end=3)
    made.handle(B, other.heartbeat(3.0), 3.0)
    silence(made, start=4, end=8)
    made.handle(B, other.heartbeat(3.0), 8.0)  # the same beat again, late
    silence(made, start=9, end=11)
    assert not made.lease_valid(B, 11.0)


def test_nobody_can_lift_the_beats_of_another_out_of_its_reach() -> None:
    made, owner, liar = member(A), member(C), member(B)
    silence(owner, start=0, end=1)
    made.handle(C, owner.heartbeat(1.0), 1.0)
    known, own = made.beat_of(C), made.beat_of(A)
    forged = replace(liar.heartbeat(1.0), heard=(1 << 62, 0, 1 << 62, 0))
    made.handle(B, forged, 1.0)
    assert (made.beat_of(A), made.beat_of(C)) == (own, known)  # another incarnation: only its owner may begin one

    last_of_life = 2 * BEATS_PER_INCARNATION - 1
    made.handle(B, replace(forged, heard=(0, 0, last_of_life, 0)), 2.0)
    assert made.beat_of(C) == last_of_life
    owner.handle(A, made.heartbeat(2.0), 2.0)
    silence(made, start=3, end=13)
    owner.tick(13.0)
    made.handle(C, owner.heartbeat(13.0), 13.0)
    assert owner.beat_of(C) > last_of_life and made.lease_valid(C, 13.0)


def test_a_new_life_becomes_known_through_others() -> None:
    made, between, restarted = member(A), member(B), member(C, incarnation=2)
    for each, first in ((made, member(C)), (between, member(C))):
        first.tick(0.0)
        each.handle(C, first.heartbeat(0.0), 0.0)
    silence(made, start=1, end=10)
    restarted.tick(10.0)
    between.handle(C, restarted.heartbeat(10.0), 10.0)
    passed_on = between.heartbeat(10.0)
    made.handle(B, replace(passed_on, lives=()), 10.0)
    assert not made.lease_valid(C, 10.0)
    made.handle(B, passed_on, 10.0)
    assert made.lease_valid(C, 10.0)


def test_a_member_that_lost_its_journal_learns_its_past_from_others() -> None:
    made, forgetful = member(A), member(B)
    earlier = member(B, incarnation=7)
    earlier.tick(0.0)
    made.handle(B, earlier.heartbeat(0.0), 0.0)
    silence(made, start=1, end=10)
    forgetful.tick(10.0)
    (answer,) = made.handle(B, forgetful.heartbeat(10.0), 10.0)
    assert isinstance(answer, Send) and isinstance(answer.message, Heartbeat)
    forgetful.handle(A, answer.message, 10.0)
    made.handle(B, forgetful.heartbeat(10.0), 10.0)
    assert made.lease_valid(B, 10.0)


def test_clocks_of_two_machines_are_never_compared() -> None:
    made, other = member(A, now=0.0), member(B, now=1e6)
    other.tick(1e6)
    silence(made, start=1, end=5)
    made.handle(B, other.heartbeat(1e6), 5.0)
    silence(made, start=6, end=12)
    assert made.lease_valid(B, 12.0)


def test_beats_go_around_so_that_one_bad_link_kills_nobody() -> None:
    made, between, other = member(A), member(B), member(C)
    for step in range(1, 20):
        for each in (made, between, other):
            each.tick(float(step))
        between.handle(C, other.heartbeat(float(step)), float(step))
        made.handle(B, between.heartbeat(float(step)), float(step))
    assert made.lease_valid(C, 19.0) and not made.is_suspect(C, 19.0)
    assert not made.lease_valid(D, 19.0)


def test_a_suspect_is_probed_directly_and_through_others_and_clears_itself() -> None:
    made, between, other = member(A), member(B), member(C)
    silence(made, start=1, end=3)
    between.observe(3.0)
    between.tick(3.0)
    made.handle(B, between.heartbeat(3.0), 3.0)
    effects = made.tick(4.0)
    num_pings = [(send.peer, send.message) for send in effects if isinstance(send, Send) and isinstance(send.message, Ping)]
    assert (C, Ping(target=C, is_relayed=False)) in num_pings
    assert (B, Ping(target=C, is_relayed=True)) in num_pings
    assert made.is_suspect(C, 4.0) and made.lease_valid(C, 4.0)

    (onward,) = between.handle(A, Ping(target=C, is_relayed=True), 4.0)
    assert onward == Send(peer=C, message=Ping(target=C, is_relayed=False))
    other.observe(4.0)
    (answer,) = other.handle(B, Ping(target=C, is_relayed=False), 4.0)
    assert isinstance(answer, Send) and isinstance(answer.message, Heartbeat)
    (passed_on,) = between.handle(C, answer.message, 4.1)
    assert isinstance(passed_on, Send) and passed_on.peer == A and isinstance(passed_on.message, Heartbeat)
    made.handle(B, passed_on.message, 4.2)
    assert not made.is_suspect(C, 4.2)


def test_members_of_a_branch_that_this_peer_returns_to_count_where_they_were_heard_meanwhile() -> None:
    made, other, passive = member(A), member(B), member(C)
    silence(made, start=1, end=20)
    made.set_roster(Digest("d" * 64), (A,), 20.0)
    passive.leave(20.0)
    for now in (20.5, 21.0):
        made.handle(B, other.heartbeat(now), now)
        made.handle(C, passive.heartbeat(now), now)
        silence(other, start=21, end=21)
    assert made.view(22.0) == (A,)
    made.set_roster(Digest("e" * 64), (A, B, C, D), 22.0)
    lease = TIMING.lease(4)
    assert made.view(22.0) == (A, B, C), "nobody has heard D"
    assert made.view(20.5 + lease + 0.1) == (A, B), "the beat of a member that has left does not rise"
    assert made.view(21.0 + lease + 0.1) == (A,)


def test_a_gap_in_ones_own_life_is_nobody_elses_silence() -> None:
    made = member(A)
    silence(made, start=1, end=3)
    made.observe(33.0)
    assert made.lease_valid(B, 33.0)
    silence(made, start=34, end=40)
    assert not made.lease_valid(B, 40.0)


def test_a_peer_of_the_run_is_in_touch_also_where_it_is_paused_or_on_no_plan_any_more_and_a_newcomer_is_not() -> None:
    made, paused, former, stranger = (member(me, roster=(A, B)) for me in (D, C, B, NEWCOMER))
    assert made.last_contact == 0.0
    made.handle(NEWCOMER, stranger.heartbeat(1.0), 1.0)
    assert made.last_contact == 0.0
    paused.leave(2.0)
    made.handle(C, paused.heartbeat(2.0), 2.0)
    assert made.last_contact == 2.0, "the plan that had it was forgotten here"
    for made_of, now in ((made, 3.0), (former, 3.0)):
        made_of.set_roster(Digest("d" * 64), (A,), now)
    assert former.heartbeat(4.0).joins, "it comes back from a suspension and asks for a seat"
    made.handle(B, former.heartbeat(4.0), 4.0)
    assert made.last_contact == 4.0
    made.observe(1000.0)
    assert made.last_contact == 1000.0, "this process stood still itself"


def test_a_farewell_counts_at_once_travels_on_and_can_be_taken_back_by_a_later_life() -> None:
    made, between, other = member(A), member(B), member(C)
    (leave,) = other.leave(1.0)
    assert isinstance(leave, Broadcast) and isinstance(leave.message, Leave)
    between.handle(C, leave.message, 1.1)
    assert not between.lease_valid(C, 1.1)
    made.handle(B, between.heartbeat(1.2), 1.2)
    assert [leave.peer for leave in made.heartbeat(1.2).leaves] == [C]
    assert made.view(1.2) == (A, B, D)
    again = member(C, incarnation=2)
    again.tick(1.5)
    made.handle(C, again.heartbeat(1.5), 1.5)
    assert made.lease_valid(C, 1.5)


def test_a_forged_leave_message_is_refused() -> None:
    made, liar = member(A), member(B)
    (leave,) = liar.leave(1.0)
    assert isinstance(leave, Broadcast) and isinstance(leave.message, Leave)
    made.handle(B, replace(leave.message, peer=C), 1.1)
    assert made.lease_valid(C, 1.1)


def test_a_newcomer_asks_with_its_heartbeats_and_only_under_its_own_name() -> None:
    made, newcomer = member(A, roster=(A, B)), member(D, roster=(A, B))
    newcomer.tick(1.0)
    asking = newcomer.heartbeat(1.0)
    made.handle(D, asking, 1.0)
    assert [request.peer for request in made.candidates(1.0)] == [D]
    forged = replace(asking.joins[0], peer=C)
    made.handle(D, replace(asking, joins=(forged,)), 1.1)
    assert [request.peer for request in made.candidates(1.1)] == [D]
    silence(made, start=2, end=12)
    assert made.candidates(12.0) == ()


@pytest.mark.parametrize(("incarnation", "is_let_in"), [(1, False), (30_000_000, True)])
def test_a_former_member_without_its_journal_asks_with_a_newer_incarnation(incarnation: int, is_let_in: bool) -> None:
    """A request of an older one may be a repetition by anybody."""
    made, former = member(A, roster=(A, B)), member(D, roster=(A, B), incarnation=4)
    former.tick(1.0)
    made.handle(D, former.heartbeat(1.0), 1.0)
    silence(made, start=2, end=12)
    assert made.candidates(12.0) == ()
    again = member(D, roster=(A, B), incarnation=incarnation, now=12.0)
    again.tick(12.0)
    made.handle(D, again.heartbeat(12.0), 12.0)
    assert [request.peer for request in made.candidates(12.0)] == ([D] if is_let_in else [])


def test_every_life_counts_above_the_one_before() -> None:
    second = member(A, incarnation=2)
    second.tick(0.0)
    assert second.beat_of(A) > 2 * BEATS_PER_INCARNATION > member(A).beat_of(A) + BEATS_PER_INCARNATION - 1


@pytest.mark.parametrize("seed", range(20))
def test_the_members_that_count_are_those_that_a_look_at_each_of_them_finds(seed: int) -> None:
    """They are remembered from one message to the next: beats, leaves, stalls and rosters change them."""
    random, now = Random(seed), 0.0
    names = [peer(index) for index in range(8)]
    made = member(A, roster=names[:5])
    for beat in range(1, 300):
        now += random.choice((0.0, 0.3, 0.3, 1.0, 2.6))
        made.observe(now)
        name = random.choice(names)
        match random.randrange(8):
            case 0:
                unsigned = Leave(peer=name, run=RUN, beat=BEATS_PER_INCARNATION + beat, signature="")
                made.handle(name, replace(unsigned, signature=sign(name, unsigned.payload)), now)
            case 1:
                made.set_roster(ROSTER, random.sample(names, 5), now)
            case 2:
                made.rejoin(now)
            case _:
                made.note_beat(name, BEATS_PER_INCARNATION + beat, now)
        there = [name for name in made._roster if made.lease_valid(name, now)]
        assert made.view(now) == tuple(there)
        assert made.responsive(made._roster, now) == tuple(name for name in there if not made.is_suspect(name, now))


def test_a_beat_of_a_member_that_answers_leads_to_no_look_at_the_others() -> None:
    made = member(A)
    living = made.living(0.5)
    made.note_beat(B, BEATS_PER_INCARNATION + 1, 1.0)
    assert made.living(1.0) is living
    later = made.living(4.0)
    assert later.responsive == {A, B} and later.there == (A, B, C, D)
    made.note_beat(C, BEATS_PER_INCARNATION + 1, 4.0)
    assert made.living(4.0).responsive == {A, B, C}


def test_messages_per_period_do_not_grow_with_the_roster() -> None:
    sizes = []
    for count in (8, 64, 512):
        made = member(A, roster=[peer(index) for index in range(count)])
        sizes.append(len(made.tick(1.0)))
    assert sizes == [TIMING.fanout] * 3


@pytest.mark.parametrize(("num_members", "per_period"), [(4, 3), (8, 7), (200, 8)])
def test_a_newcomer_gets_a_few_heartbeats_per_period_however_many_members_there_are(num_members: int, per_period: int) -> None:
    roster = [peer(index) for index in range(num_members)]
    members = [member(name, roster=roster) for name in roster[1:]]
    for made in members:
        made.known.remember(roster[0])
        made.known.remember(NEWCOMER)
    periods, num_received = 50, 0
    for now in range(1, periods + 1):
        for made in members:
            made._renewed.update(dict.fromkeys(roster, float(now)))
            num_received += sum(isinstance(each, Send) and each.peer == NEWCOMER for each in made.tick(float(now)))
    assert 0.95 * per_period <= num_received / periods <= per_period
