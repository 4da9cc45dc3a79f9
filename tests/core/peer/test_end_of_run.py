"""Which model the run has, where peers end it with different states."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

import pytest

from adloco_p2p.core.averaging.round_state import LAST_VOTES_SECONDS
from adloco_p2p.core.model import canonical
from adloco_p2p.core.model.donors import in_turn
from adloco_p2p.core.model.effects import Effect, FetchState, SaveCheckpoint, Send, Stop
from adloco_p2p.core.model.events import (
    Commanded,
    Durable,
    Evaluated,
    PeerGone,
    Received,
    Started,
    StateFetched,
    Ticked,
    TransitionApplied,
)
from adloco_p2p.core.model.messages import FinalClaim, RunComplete
from adloco_p2p.core.model.scalars import Digest, InstanceId, PeerId
from adloco_p2p.core.peer.completion import COMPLETION_SECONDS, RESEND_SECONDS, SETTLED_SECONDS, CompletionBarrier
from adloco_p2p.core.peer.finishing import NOT_THE_MODEL, voters_of
from adloco_p2p.core.peer.peer import Peer
from adloco_p2p.core.peer.plan_book import PlanBook
from adloco_p2p.core.planning.round_plan import genesis, next_plan
from adloco_p2p.sim.device import hashed
from adloco_p2p.sim.identities import RUN, name_of, sign, signed_by, verify
from tests.core.peer.story import CAPACITY, PEER0, PEER1, PEER2, PEER3, rules
from tests.core.peer.test_peer_churn import INSTANCE, LAST, Scripted, _cadence, _report

ONE, OTHER, THIRD = (hashed(text) for text in ("one state", "another", "a third"))
ALL = (PEER0, PEER1, PEER2, PEER3)


@dataclass(frozen=True, slots=True, kw_only=True)
class Came:
    """To the end of a run."""

    state: Digest | None
    is_agreed: bool
    plan: Digest

    def signed(self, peer: PeerId) -> FinalClaim:
        return signed_by(peer, FinalClaim(peer=peer, plan=self.plan, state=self.state, is_agreed=self.is_agreed))

    def message(self, peer: PeerId) -> RunComplete:
        return RunComplete(plan=self.plan, state=self.state, claims=(self.signed(peer),))


def claim(state: Digest | None, *, is_agreed: bool = False, plan: Digest = LAST) -> Came:
    return Came(state=state, is_agreed=is_agreed, plan=plan)


def barrier(own: Came, *others: Came) -> CompletionBarrier:
    """Of the first peer; the others sent these."""
    completion = completion_of(PEER0)
    begin(completion, own)
    for peer, came in zip(ALL[1:], others, strict=False):
        completion.received(peer, came.message(peer))
    return completion


def completion_of(me: PeerId) -> CompletionBarrier:
    return CompletionBarrier(me, sign=partial(sign, me), verify=verify)


def begin(completion: CompletionBarrier, own: Came, now: float = 0.0) -> list[Effect]:
    return completion.begin(plan=own.plan, state=own.state, is_agreed=own.is_agreed, roster=ALL, now=now)


@pytest.mark.parametrize(
    ("own", "others", "expected", "is_agreed"),
    [
        (claim(ONE), [claim(OTHER)] * 3, OTHER, True),
        (claim(ONE), [claim(OTHER, is_agreed=True)], OTHER, True),
        (claim(ONE), [claim(OTHER, is_agreed=True), claim(ONE), claim(ONE)], ONE, True),
        (claim(ONE), [claim(OTHER), claim(OTHER)], OTHER, False),
        (claim(ONE), [claim(OTHER), claim(THIRD)], ONE, False),
        (claim(ONE), [claim(OTHER, plan=hashed("of another history"))] * 3, ONE, False),
        (claim(None), [claim(OTHER), claim(None)], OTHER, False),
        (claim(ONE, is_agreed=True), [], ONE, True),
    ],
)
def test_the_state_of_a_run(own: Came, others: list[Came], expected: Digest, is_agreed: bool) -> None:
    """More than half of the planned hosts; else the word of one that a majority agreed on it; else most; else the first."""
    found = barrier(own, *others).final_state(ALL)
    assert found is not None and (found.digest, found.is_agreed) == (expected, is_agreed)


def test_claims_of_peers_without_work_in_the_last_round_do_not_count() -> None:
    found = barrier(claim(ONE), claim(OTHER), claim(OTHER), claim(OTHER, is_agreed=True)).final_state([PEER0, PEER1])
    assert found is not None and found.digest == ONE


def test_claims_of_peers_without_work_are_no_majority_where_no_voter_has_a_state() -> None:
    found = barrier(claim(ONE, is_agreed=True), claim(OTHER), claim(OTHER)).final_state([PEER3])
    assert found is not None and (found.digest, found.is_of_most) == (ONE, False)


def test_a_peer_with_the_state_of_the_run_stays_for_those_that_fetch_it() -> None:
    completion = barrier(claim(ONE), claim(ONE), claim(ONE), claim(OTHER))
    counted = completion._message().counted
    for peer, came in zip(ALL[1:], (claim(ONE), claim(ONE), claim(OTHER)), strict=True):
        completion.received(peer, replace(came.message(peer), counted=counted))
    assert completion.is_over(1.0, {}) and not completion.may_go(1.0, {})
    assert completion.may_go(1.0, {PEER3: None}) and completion.may_go(COMPLETION_SECONDS, {})
    completion.received(PEER3, RunComplete(plan=LAST, state=ONE, claims=(claim(OTHER).signed(PEER3),), counted=counted))
    assert completion.may_go(1.0, {})


class Wire:
    """Four peers at the end of a run: the last one lies, what the others send arrives at once."""

    def __init__(self, *states: Digest) -> None:
        self.peers = {peer: completion_of(peer) for peer in ALL[:3]}
        self.now = 0.0
        for peer, state in zip(self.peers, states, strict=True):
            self._carry(peer, begin(self.peers[peer], claim(state, is_agreed=True)))

    def _carry(self, sender: PeerId, effects: list[Effect]) -> None:
        for effect in effects:
            assert isinstance(effect, Send) and isinstance(effect.message, RunComplete)
            if effect.peer in self.peers:
                self._carry(effect.peer, self.peers[effect.peer].received(sender, effect.message))

    def lie(self, receiver: PeerId, state: Digest) -> None:
        """It came to this state, and counts the same claims as the receiver."""
        message = claim(state, is_agreed=True).message(PEER3)
        self.peers[receiver].received(PEER3, message)
        self.peers[receiver].received(PEER3, replace(message, counted=self.peers[receiver]._message().counted))

    def pass_time(self) -> None:
        self.now += RESEND_SECONDS
        for peer, completion in self.peers.items():
            self._carry(peer, completion.tick(self.now, {}))

    def is_over(self) -> list[bool]:
        return [completion.is_over(self.now, {}) for completion in self.peers.values()]


def test_a_member_with_a_claim_for_each_peer_is_counted_by_none() -> None:
    """With the liar's word two have a majority of four for their state, until they show each other the claims."""
    wire = Wire(ONE, ONE, OTHER)
    wire.lie(PEER0, ONE)
    wire.lie(PEER1, ONE)
    wire.lie(PEER2, OTHER)
    assert not any(wire.is_over()), "each knows of two states, and that another one counts other claims"
    for _ in range(4):
        wire.pass_time()
        for peer in wire.peers:
            wire.lie(peer, ONE if peer != PEER2 else OTHER)
    assert all(wire.is_over()) and wire.now < COMPLETION_SECONDS
    for completion in wire.peers.values():
        found = completion.final_state(ALL)
        assert completion.liars == (PEER3,) and found is not None
        assert (found.digest, found.is_agreed, found.is_disputed) == (ONE, False, True)


def test_a_member_with_three_claims_holds_nobody_up() -> None:
    """Peers that have another two of them count the same."""
    wire = Wire(ONE, ONE, OTHER)
    for peer, states in zip(wire.peers, ((ONE, OTHER), (OTHER, THIRD), (THIRD, ONE)), strict=True):
        for state in states:
            wire.lie(peer, state)
    wire.pass_time()
    assert all(wire.is_over()) and wire.now < COMPLETION_SECONDS


@pytest.mark.parametrize("late", [5.0, 26.25, 28.25, 29.75])
def test_a_claim_that_comes_at_the_end_of_the_time_is_shown_to_the_others_first(late: float) -> None:
    """Two hosts have one state, two the other one. The liar is done with neither, then claims each to those that have it."""
    peers = tuple(sorted(name_of(number) for number in range(5)))
    *honest, liar = peers
    held = dict(zip(honest, (ONE, ONE, OTHER, OTHER), strict=True))
    barriers = {peer: completion_of(peer) for peer in honest}
    ended: dict[PeerId, bool] = {}

    def carry(sender: PeerId, effects: list[Effect]) -> None:
        for effect in effects:
            assert isinstance(effect, Send) and isinstance(effect.message, RunComplete)
            if effect.peer in barriers:
                carry(effect.peer, barriers[effect.peer].received(sender, effect.message))

    for peer in honest:
        carry(peer, barriers[peer].begin(plan=LAST, state=held[peer], is_agreed=True, roster=peers, now=0.0))
        barriers[peer].received(liar, RunComplete(plan=LAST, state=held[peer], counted=hashed("nothing of the kind")))
    for now in (quarter / 4 for quarter in range(1, 4 * 60)):
        for peer in honest:
            if now == late:
                barriers[peer].received(liar, claim(held[peer], is_agreed=True).message(liar))
            if peer not in ended:
                carry(peer, barriers[peer].tick(now, {}))
                if barriers[peer].may_go(now, {}):
                    run = barriers[peer].final_state(peers)
                    assert run is not None
                    ended[peer] = run.digest == held[peer] and not run.is_disputed
    assert ended == dict.fromkeys(honest, False), "each has seen both claims, and calls no state that of the run"


def test_two_claims_of_one_state_are_one() -> None:
    """As after a restart: the more doubtful counts, in whatever order they come."""
    for first, second in ((True, False), (False, True)):
        completion = completion_of(PEER0)
        begin(completion, claim(ONE, is_agreed=True))
        for is_agreed in (first, second):
            completion.received(PEER1, claim(ONE, is_agreed=is_agreed).message(PEER1))
        found = completion.final_state((PEER0, PEER1))
        assert not completion.liars and found is not None and found.is_of_most and not found.is_disputed
        assert completion._claims is not None and [kept.is_agreed for kept in completion._claims.all] == [True, False]


def test_where_all_name_one_state_nobody_waits_for_what_the_others_count() -> None:
    wire = Wire(ONE, ONE, ONE)
    for peer in wire.peers:
        wire.lie(peer, ONE)
    assert all(wire.is_over())


def test_a_majority_without_it_needs_no_word_of_one_that_signs_two_claims() -> None:
    wire = Wire(ONE, ONE, ONE)
    for peer in wire.peers:
        wire.lie(peer, OTHER)
    wire.lie(PEER0, THIRD)
    found = wire.peers[PEER0].final_state(ALL)
    assert found is not None and found.is_of_most and not found.is_disputed


def test_claims_that_their_authors_did_not_sign_or_of_another_plan_are_not_counted() -> None:
    completion = barrier(claim(ONE), claim(ONE))
    before = completion._message().counted
    forged = replace(claim(OTHER).signed(PEER1), signature=sign(PEER3, b"something"))
    stale = claim(OTHER, plan=hashed("of another history")).signed(PEER2)
    stranger = claim(OTHER).signed(name_of(9))
    completion.received(PEER3, RunComplete(plan=LAST, state=ONE, claims=(forged, stale, stranger)))
    assert completion._message().counted == before and not completion.liars


def test_a_message_costs_no_more_signatures_than_an_honest_one() -> None:
    checked: list[PeerId] = []

    def counting(peer: PeerId, payload: bytes, signature: str) -> bool:
        checked.append(peer)
        return verify(peer, payload, signature)

    completion = CompletionBarrier(PEER0, sign=partial(sign, PEER0), verify=counting)
    begin(completion, claim(ONE))
    forged = tuple(replace(claim(hashed(str(number))).signed(PEER1), signature="") for number in range(100))
    completion.received(PEER3, RunComplete(plan=LAST, state=ONE, claims=forged))
    assert checked == [PEER1, PEER1]


def test_a_peer_that_takes_the_state_of_the_others_keeps_to_its_claim_and_counts_for_what_it_holds() -> None:
    completion = barrier(claim(OTHER), claim(ONE), claim(ONE, is_agreed=False))
    completion.withdraw()
    begin(completion, claim(ONE), 5.0)
    found = completion.final_state(ALL)
    assert completion._message().claims == (claim(OTHER).signed(PEER0),)
    assert found is not None and found.is_of_most and found.holders == (PEER1, PEER2)


def test_the_hosts_of_the_last_round_decide_in_the_order_of_their_joining() -> None:
    whole = rules(rounds=2)
    first = genesis(RUN, [(PEER1, CAPACITY), (PEER0, CAPACITY)], whole)
    second = next_plan(first, (), whole)
    last = next_plan(second, (), whole)
    book = PlanBook(PEER0)
    newcomer = replace(last.roster[0], peer=PEER2, joined_round=2)
    last = replace(last, roster=(replace(last.roster[0], joined_round=1), last.roster[1], newcomer))
    assert set(voters_of(book, last)) == {PEER0, PEER1, PEER2}, "the plan before is not known"
    book.remember(second)
    assert voters_of(book, last) == [PEER1, PEER0]


def test_what_is_doubtful_stays_so_after_a_restart() -> None:
    """A peer alone with the last plan that went on from an older state: neither this start of it nor the next one takes its
    model for that of the run."""
    whole = rules(rounds=2)
    plans = [genesis(RUN, [(PEER0, CAPACITY), (PEER1, CAPACITY)], whole)]
    plans += [first := next_plan(plans[0], (), whole), next_plan(first, (), whole)]
    for doubtful in ((), (INSTANCE,)):
        peer = Peer(me=PEER0, cadence=replace(_cadence(), work=whole.work), agreement=Scripted())
        durable = Durable(round=2, plans=tuple(plans), held=(INSTANCE,), doubtful=doubtful)
        peer.handle(Started(durable=durable, capacity=CAPACITY), 0.0)
        item = peer._state.known(INSTANCE)
        assert (item.doubtful_from is not None) is bool(doubtful)
        item.confirm(1)
        assert (item.doubtful_from is not None) is bool(doubtful), "a plan names an earlier state"
        item.confirm(2)
        assert item.doubtful_from is None


@pytest.mark.parametrize("is_doubtful", [False, True])
@pytest.mark.parametrize("command", ["drain", "leave"])
def test_a_peer_that_is_stopped_while_it_waits_is_finished_only_with_the_model_of_the_run(
    command: str, is_doubtful: bool
) -> None:
    peer = _at_the_end(is_doubtful=is_doubtful)
    effects = peer.handle(Evaluated(instance=INSTANCE, round=2, heldout_loss=2.0, state_digest=ONE), 1.0)
    assert any(isinstance(effect, SaveCheckpoint) for effect in effects) is not is_doubtful
    effects = peer.handle(Commanded(command=command, reason="the user"), 2.0)  # type: ignore[arg-type]
    assert [effect.is_finished for effect in effects if isinstance(effect, Stop)] == [not is_doubtful]


def test_the_model_of_the_run_is_saved_without_the_instances_that_the_last_plan_merged_away() -> None:
    """One of them was saved at the end of its last round, while the state of the target was still on its way, so that no
    checkpoint had all of them. `export` would write the first of those that the last one holds."""
    peer = _at_the_end(is_doubtful=False)
    peer._state.instance(InstanceId(INSTANCE + 1)).saved |= {1, 2}
    effects = peer.handle(Evaluated(instance=INSTANCE, round=2, heldout_loss=2.0, state_digest=ONE), 1.0)
    (saved,) = [effect.durable for effect in effects if isinstance(effect, SaveCheckpoint)]
    assert saved.is_finished and saved.round == 2 and saved.held == (INSTANCE,)


@pytest.mark.parametrize(("others", "is_finished"), [((PEER1,), True), ((), False)])
def test_what_most_hosts_report_after_the_last_plan_is_the_model_of_the_run(
    others: tuple[PeerId, ...], *, is_finished: bool
) -> None:
    """They trained the last round longer than this peer, which was in doubt about it, and left with its state before they could
    claim it. No plan follows that would name the state."""
    peer = _at_the_end(is_doubtful=True)
    plan = peer._book.plans[1]
    own, *reports = [_report(host, plan, "the last state") for host in (PEER0, *others)]
    peer._state.own_reports[1] = own
    peer._book.note_states(own)
    peer.handle(Evaluated(instance=INSTANCE, round=2, heldout_loss=2.0, state_digest=ONE), 1.0)
    for report in reports:
        peer._book.note_states(report)
    effects = [effect for other in ALL[1:3] for effect in peer.handle(PeerGone(peer=other), 2.0)]
    effects += [effect for now in range(40) for effect in peer.handle(Ticked(), float(now))]
    assert [effect.durable.is_finished for effect in effects if isinstance(effect, SaveCheckpoint)] == [True] * is_finished
    assert [effect.is_finished for effect in effects if isinstance(effect, Stop)] == [is_finished]


def test_one_liar_that_reports_the_state_of_a_peer_in_doubt_does_not_end_its_doubt() -> None:
    """The round was void for the peer, so the liar knows its state: that of the round before. Three of five committed an
    average, reported it, and are gone."""
    hosts = (*ALL, name_of(4))
    peer = _at_the_end(is_doubtful=True, roster=hosts)
    plan = peer._book.plans[1]
    states = ("before", "average", "average", "average", "before")
    own, *reports = [_report(host, plan, state) for host, state in zip(hosts, states, strict=True)]
    peer._state.own_reports[1] = own
    for report in (own, *reports):
        peer._book.note_states(report)
    effects = peer.handle(Evaluated(instance=INSTANCE, round=2, heldout_loss=2.0, state_digest=ONE), 1.0)
    effects += [effect for other in hosts[1:] for effect in peer.handle(PeerGone(peer=other), 2.0)]
    effects += [effect for now in range(40) for effect in peer.handle(Ticked(), float(now))]
    assert not any(effect.durable.is_finished for effect in effects if isinstance(effect, SaveCheckpoint))
    assert [effect.error for effect in effects if isinstance(effect, Stop)] == [NOT_THE_MODEL]


def test_a_peer_that_waits_for_an_average_that_nobody_made_ends_the_run_with_the_others() -> None:
    """The one that was to make it has left, and the others have gone on without it. It waited until they had gone, too."""
    whole = rules(rounds=2)
    plans = [genesis(RUN, [(peer, CAPACITY) for peer in ALL[:3]], whole)]
    second = next_plan(plans[0], (), whole)
    shares = second.instances[0].hosts
    hosts = tuple(share if share.peer == PEER1 else replace(share, inner_steps=0) for share in shares)
    second = replace(second, instances=(replace(second.instances[0], hosts=hosts),))
    plans += [second, last := next_plan(second, (), whole)]
    agreement = Scripted()
    peer = Peer(me=PEER0, cadence=replace(_cadence(), work=whole.work), agreement=agreement)
    peer.handle(Started(durable=Durable(round=1, plans=tuple(plans), held=(INSTANCE,)), capacity=CAPACITY), 0.0)
    peer.handle(TransitionApplied(round=1), 0.5)
    peer.handle(PeerGone(peer=PEER1), 1.0)
    peer.handle(Received(sender=PEER2, message=claim(ONE, plan=canonical.digest(last)).message(PEER2)), 1.0)
    assert 1 not in [report.round for report in agreement.submitted]
    peer.handle(Ticked(), 1.0 + LAST_VOTES_SECONDS)
    assert 1 in [report.round for report in agreement.submitted]


@pytest.mark.parametrize(("claims", "is_fetched"), [((ONE, ONE), True), ((ONE, OTHER), False), ((ONE,), False)])
def test_a_peer_that_lacks_a_state_on_the_way_takes_the_final_one_of_most_that_decide(
    claims: tuple[Digest, ...], *, is_fetched: bool
) -> None:
    """It had waited for the state before the last round, which nobody had any more, until the others had gone (seed 67 of
    `tests/sim/test_waits_world.py`). A member may claim two states, so it ends as finished only after the comparison."""
    whole = rules(rounds=2)
    plans = [genesis(RUN, [(peer, CAPACITY) for peer in ALL[:3]], whole)]
    plans += [first := next_plan(plans[0], (), whole), last := next_plan(first, (), whole)]
    peer = Peer(me=PEER0, cadence=replace(_cadence(), work=whole.work), agreement=Scripted())
    peer.handle(Started(durable=Durable(round=1, plans=tuple(plans)), capacity=CAPACITY), 0.0)
    peer.handle(TransitionApplied(round=1), 0.5)
    came = [claim(state, is_agreed=True, plan=canonical.digest(last)) for state in claims]
    effects = [
        effect
        for other, one in zip(ALL[1:], came, strict=False)
        for effect in peer.handle(Received(sender=other, message=one.message(other)), 1.0)
    ]
    asked = [effect for effect in effects if isinstance(effect, FetchState)]
    donors = in_turn((PEER1, PEER2), ONE, PEER0, first=ALL)
    assert asked == [FetchState(instance=INSTANCE, round=2, digest=ONE, from_peers=donors)] * is_fetched
    if is_fetched:
        peer.handle(StateFetched(instance=INSTANCE, round=2, digest=ONE), 2.0)
        evaluated = Evaluated(instance=INSTANCE, round=2, heldout_loss=2.0, state_digest=ONE, epoch=peer._state.epoch)
        effects = peer.handle(evaluated, 3.0)
        assert [effect.is_finished for effect in effects if isinstance(effect, Stop)] == [True]


def _at_the_end(*, is_doubtful: bool, roster: Sequence[PeerId] = ALL[:3]) -> Peer:
    """The first of these, which has carried out the last plan and evaluates."""
    whole = rules(rounds=2)
    plans = [genesis(RUN, [(peer, CAPACITY) for peer in roster], whole)]
    plans += [first := next_plan(plans[0], (), whole), next_plan(first, (), whole)]
    peer = Peer(me=PEER0, cadence=replace(_cadence(), work=whole.work), agreement=Scripted())
    durable = Durable(round=2, plans=tuple(plans), held=(INSTANCE,), doubtful=(INSTANCE,) if is_doubtful else ())
    peer.handle(Started(durable=durable, capacity=CAPACITY), 0.0)
    peer.handle(TransitionApplied(round=2), 0.5)
    return peer


def test_before_it_ends_with_an_error_a_peer_awaits_claims_that_are_on_their_way() -> None:
    """That a peer has gone may be known before its claim is here: its leave message overtakes it."""
    completion = barrier(claim(ONE))
    others = dict.fromkeys(ALL[1:])
    assert completion.may_go(20.0, others) and not completion.is_last_word(20.0), "another one has just gone"
    completion.received(PEER1, claim(ONE, is_agreed=True).message(PEER1))
    found = completion.final_state(ALL)
    assert found is not None and found.is_agreed
    assert completion.is_last_word(20.0 + SETTLED_SECONDS)
