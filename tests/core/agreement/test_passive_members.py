"""A passive member takes no part in agreeing, follows the ledger, and comes back."""

from adloco_p2p.core.agreement.membership import PASSIVE_FANOUT
from adloco_p2p.core.model.certificate import Ballot
from adloco_p2p.core.model.effects import Broadcast, Send
from adloco_p2p.core.model.events import PeerBack, PeerGone
from adloco_p2p.core.model.messages import Heartbeat, Ping, Prepare, Promise
from tests.core.agreement.test_consensus import Swarm, said
from tests.core.agreement.test_membership import TIMING, A, B, C, D, member
from tests.core.core_values import capacity


def away(swarm: Swarm, name) -> None:
    swarm.take(name, swarm.peers[name].leave(swarm.now))
    swarm.deliver()


def reported(swarm: Swarm, rounds: int, *, by) -> None:
    """These peers report so many rounds, and time passes until they are decided."""
    for _ in range(rounds):
        for name in by:
            swarm.report(name, swarm.peers[name].ledger.plans[-1].round - 1)
        swarm.deliver()
        swarm.pass_time(8, among=tuple(swarm.peers))


def test_the_beat_of_a_peer_that_is_away_does_not_rise() -> None:
    made, other = member(A), member(B)
    (leave,) = made.leave(1.0)
    assert isinstance(leave, Broadcast)
    other.handle(A, leave.message, 1.0)  # type: ignore[arg-type]
    assert not other.lease_valid(A, 1.0)
    for second in range(2, 40):
        effects = made.tick(float(second))
        assert len(effects) == PASSIVE_FANOUT
        for effect in effects:
            assert isinstance(effect, Send) and isinstance(effect.message, Heartbeat)
            assert not effect.message.joins  # it does not ask to be admitted
            other.handle(A, effect.message, float(second))
    assert not other.lease_valid(A, 40.0)
    assert [leave.peer for leave in other.heartbeat(40.0).leaves] == [A]


def test_who_is_away_answers_no_probe() -> None:
    made = member(A)
    made.leave(1.0)
    assert made.handle(B, Ping(target=A, is_relayed=False), 2.0) == []


def test_beats_that_rise_again_cancel_the_leave() -> None:
    made, other = member(A), member(B)
    for life in range(3):
        start = 100.0 * life
        (leave,) = made.leave(start + 1.0)
        other.handle(A, leave.message, start + 1.0)  # type: ignore[arg-type, union-attr]
        assert not other.lease_valid(A, start + 50.0)
        made.rejoin(start + 60.0)
        assert made.lease_valid(C, start + 60.0), "the others begin with a full lease"
        made.tick(start + 60.0)
        other.handle(A, made.heartbeat(start + 60.0), start + 60.0)
        assert other.lease_valid(A, start + 60.0)
        other.handle(C, leave.message, start + 61.0)  # type: ignore[arg-type, union-attr]
        assert other.lease_valid(A, start + 61.0), "an old leave that comes late is no news"


def test_where_no_other_member_lives_peers_that_left_are_asked_too() -> None:
    made, gone = member(A, roster=(A, B)), member(B, roster=(A, B))
    (leave,) = gone.leave(1.0)
    made.handle(B, leave.message, 1.0)  # type: ignore[arg-type, union-attr]
    assert [effect.peer for effect in made.tick(2.0) if isinstance(effect, Send)] == [B]
    others = member(A)
    others.handle(B, replaced(gone, 1.0), 1.0)
    targets = [effect.peer for effect in others.tick(2.0) if isinstance(effect, Send)]
    assert B not in targets and {C, D} <= set(targets)


def replaced(gone, now: float):
    """Its leave, once more."""
    (leave,) = gone.leave(now)
    return leave.message


def test_who_is_away_promises_nothing_and_proposes_nothing() -> None:
    swarm = Swarm(3)
    first, second, third = swarm.order
    swarm.take(first, swarm.peers[first].leave(swarm.now))
    swarm.mail.clear()
    parent = swarm.peers[first].consensus.slot.digest
    prepare = Prepare(parent=parent, ballot=Ballot(attempt=1, peer=third), absent=())
    written = len(swarm.journals[first])
    swarm.take(first, swarm.peers[first].receive(third, prepare, swarm.now))
    swarm.pass_time(30, among=[first])
    assert not said(swarm, Promise) and len(swarm.journals[first]) == written
    deadline = swarm.peers[first].next_deadline
    assert deadline is not None and deadline <= swarm.now + TIMING.heartbeat_seconds + 1.0
    assert second in swarm.peers[first].ledger.members()


def test_the_others_decide_without_it_and_it_follows_and_comes_back() -> None:
    swarm = Swarm(4)
    swarm.deliver()
    aside = swarm.order[0]
    others = sorted(name for name in swarm.peers if name != aside)
    away(swarm, aside)
    reported(swarm, 3, by=others)
    head = swarm.peers[others[0]].ledger.plans[-1]
    assert sorted(roster_entry.peer for roster_entry in head.roster) == others
    assert swarm.peers[aside].ledger.plans[-1] == head, "it follows"
    swarm.take(aside, swarm.peers[aside].rejoin(capacity(), swarm.now))
    swarm.deliver()
    swarm.pass_time(3, among=tuple(swarm.peers))
    reported(swarm, 2, by=others)
    heads = {name: each.ledger.plans[-1] for name, each in swarm.peers.items()}
    assert len({plan.round for plan in heads.values()}) == 1
    assert sorted(roster_entry.peer for roster_entry in heads[others[0]].roster) == sorted(swarm.peers)


def test_who_is_away_judges_nobody() -> None:
    swarm = Swarm(3)
    swarm.deliver()
    aside = swarm.order[0]
    away(swarm, aside)
    for _ in range(60):
        swarm.now += 1.0
        outcomes = swarm.peers[aside].tick(swarm.now)
        assert not [outcome for outcome in outcomes if isinstance(outcome, PeerGone | PeerBack)]
