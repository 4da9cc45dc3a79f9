"""Peers that freeze, differ, come late, go early or learn of another history: whole peers in virtual time."""

from collections.abc import Collection, Sequence
from dataclasses import replace

import pytest

from adloco_p2p.core.averaging.round_state import LAST_VOTES_SECONDS
from adloco_p2p.core.model import canonical
from adloco_p2p.core.model.averages import RepairAverage
from adloco_p2p.core.model.certificate import Ballot, Certificate
from adloco_p2p.core.model.effects import (
    ApplyOuter,
    Broadcast,
    Effect,
    FetchState,
    Persist,
    RunInner,
    SaveCheckpoint,
    SaveInstance,
    Send,
    Stop,
    Transition,
)
from adloco_p2p.core.model.events import (
    Commanded,
    Durable,
    Evaluated,
    FetchFailed,
    InnerFinished,
    PeerBack,
    PeerGone,
    Received,
    Started,
    StateFetched,
    Ticked,
    TransitionApplied,
)
from adloco_p2p.core.model.ledger_entry import LedgerEntry, Reorg, SignedReport, Value
from adloco_p2p.core.model.messages import MAX_MESSAGE_BYTES, AverageDigest, Leave, Ping, RunComplete
from adloco_p2p.core.model.outcomes import Decided, Outcome
from adloco_p2p.core.model.plan import RosterChange, RoundPlan
from adloco_p2p.core.model.report import Report
from adloco_p2p.core.model.roster_entry import Capacity
from adloco_p2p.core.model.rules import AdmissionRules, WorkRules
from adloco_p2p.core.model.scalars import MAX_ROSTER, Digest, InstanceId, PeerId
from adloco_p2p.core.model.telemetry import FastForwarded, Finished
from adloco_p2p.core.peer.completion import COMPLETION_SECONDS, PENDING_SECONDS, RESEND_SECONDS, CompletionBarrier
from adloco_p2p.core.peer.lifecycle import NEWCOMER_SECONDS, NOBODY_THERE, Stage
from adloco_p2p.core.peer.peer import Cadence, Peer
from adloco_p2p.core.planning.round_plan import genesis, next_plan
from adloco_p2p.decode import decode
from adloco_p2p.errors import RemoteProtocolError
from adloco_p2p.sim.device import hashed
from adloco_p2p.sim.identities import RUN
from tests.core.core_values import inner_result, instance_report
from tests.core.peer.story import CAPACITY, PEER0, PEER1, PEER2, PEER3, Story, Told, rules

INSTANCE = InstanceId(0)
LAST = hashed("the last plan")
NEWS = Ping(target=PEER0, is_relayed=False)
"""Whatever it is: a scripted agreement answers what the test has put in."""


# --- freezing, differing ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("frozen_at", [0.3, 1.9])
@pytest.mark.parametrize("seconds", [3.0, 12.0])
def test_a_frozen_peer_holds_nobody_up_and_ends_with_the_others(frozen_at: float, seconds: float) -> None:
    story = Story(rules=rules(rounds=20, count=2, period=100), peers=4)
    story.freeze(PEER3, at=frozen_at, seconds=seconds)
    story.play()
    assert all(story.is_finished(peer) for peer in (PEER0, PEER1, PEER2, PEER3))
    assert story.rounds_logged(PEER0)[-1][0] == 19


def test_a_peer_whose_state_differs_takes_that_of_the_others() -> None:
    story = Story(rules=rules(rounds=14), peers=3)

    def flip(told: Told) -> None:
        if told.peer == PEER2 and isinstance(told.effect, ApplyOuter) and told.effect.round == 3:
            process = story.machine(PEER2).process
            assert process is not None
            process.device.adopt(INSTANCE, hashed("a bit flipped"))

    story.on_effect = flip
    story.play()
    assert [event["to_round"] for event in story.logged(PEER2, "fast_forwarded")] == [4], (
        "at once, and not again when it gets nowhere"
    )
    said = story.logged(PEER2, "warning")
    differs = next(number for number, event in enumerate(said) if "differs from the others'" in event["message"])
    assert said[differs]["active"]
    assert any(event["key"] == said[differs]["key"] and not event["active"] for event in said[differs:]), "the state arrived"
    own, others = (story.reported_states(peer) for peer in (PEER2, PEER0))
    assert own[3, INSTANCE] != others[3, INSTANCE]
    later = [key for key in own if key[0] >= 8]
    assert later
    assert all(own[key] == others[key] for key in later)


def test_a_host_that_cannot_contribute_refuses_and_its_vote_is_not_awaited() -> None:
    """Of three contributors one has no state at first: the average of the others counts without it."""
    story = Story(rules=rules(rounds=8), peers=3)
    story.machine(PEER1).disk.durable = Durable(round=0, plans=(story.world.genesis,))
    story.play()
    assert story.logged(PEER0, "round")[0]["hosts"] == [PEER0, PEER2]
    assert not any(event["reason"] == "timed out" for event in story.logged(PEER0, "average_failed"))
    assert PEER1 in story.logged(PEER0, "round")[-1]["hosts"]


# --- leaving, ending -------------------------------------------------------------------------------------------------


def test_a_peer_that_is_asked_to_stop_sends_its_leave_last() -> None:
    story = Story(rules=rules(rounds=8), peers=2)
    story.ask(PEER0, "drain", at=0.4)
    story.play()
    *effects, goodbye, stop = (told.effect for told in story.told if told.peer == PEER0)
    assert isinstance(goodbye, Broadcast) and isinstance(goodbye.message, Leave)
    assert isinstance(stop, Stop)
    assert any(isinstance(effect, SaveCheckpoint) for effect in effects)


def test_a_newcomer_that_waits_to_be_admitted_can_be_stopped() -> None:
    plan = genesis(RUN, [(PEER0, CAPACITY)], rules())
    peer = Peer(me=PEER1, cadence=_cadence(), agreement=Scripted())
    peer.handle(Started(durable=Durable(round=0, plans=(plan,)), capacity=CAPACITY), 0.0)
    peer.handle(TransitionApplied(round=0), 0.0)
    assert isinstance(peer.handle(Commanded(command="drain"), 1.0)[-1], Stop)


def test_a_newcomer_waits_for_members_that_are_gone_within_a_limit() -> None:
    """It begins anew where a member returns, or a plan comes; a member waits without a limit."""
    plan, agreement = genesis(RUN, [(PEER0, CAPACITY)], rules()), Scripted()
    peer = Peer(me=PEER1, cadence=_cadence(), agreement=agreement)
    peer.handle(Started(durable=Durable(round=0, plans=(plan,)), capacity=CAPACITY), 0.0)
    peer.handle(TransitionApplied(round=0), 0.0)
    assert peer.next_deadline is None
    peer.handle(PeerGone(peer=PEER0), 1.0)
    assert peer.next_deadline == 1.0 + NEWCOMER_SECONDS
    peer.handle(PeerBack(peer=PEER0), 200.0)
    assert peer.next_deadline is None
    peer.handle(PeerGone(peer=PEER0), 210.0)
    agreement.outcomes = [Decided(plan=next_plan(plan, (), rules()))]
    peer.handle(Received(sender=PEER0, message=NEWS), 300.0)
    assert peer.next_deadline == 300.0 + NEWCOMER_SECONDS
    assert not any(isinstance(effect, Stop) for effect in peer.handle(Ticked(), 299.9 + NEWCOMER_SECONDS))
    stop = peer.handle(Ticked(), 300.0 + NEWCOMER_SECONDS)[-1]
    assert isinstance(stop, Stop) and stop.error == NOBODY_THERE and not stop.is_finished
    paused = Peer(me=PEER1, cadence=_cadence(), agreement=Scripted())
    paused.handle(Started(durable=Durable(round=0, plans=(plan,)), capacity=CAPACITY), 0.0)
    paused.handle(TransitionApplied(round=0), 0.0)
    paused.handle(PeerGone(peer=PEER0), 1.0)
    paused.handle(Commanded(command="pause"), 2.0)
    assert paused.stage is Stage.PAUSED and paused.next_deadline is None
    member = Peer(me=PEER0, cadence=_cadence(), agreement=Scripted())
    both = genesis(RUN, [(PEER0, CAPACITY), (PEER1, CAPACITY)], rules())
    member.handle(Started(durable=Durable(round=0, plans=(both,)), capacity=CAPACITY), 0.0)
    member.handle(PeerGone(peer=PEER1), 1.0)
    assert not any(isinstance(effect, Stop) for effect in member.handle(Ticked(), 1.0 + NEWCOMER_SECONDS))


def test_a_newcomer_waits_for_a_member_that_pauses() -> None:
    """The founder alone has the model. While it is paused it has no seat, and follows the run."""
    story = Story(rules=replace(rules(rounds=40), admission=AdmissionRules(kind="open")), faults_end_at=1500.0)
    founder, newcomer = story.machine(PEER0), story.world._new_machine(PEER1)
    story.at(1.0, lambda: founder.command(Commanded(command="pause")))
    story.at(20.0, newcomer.boot)
    story.at(20.0 + 4 * NEWCOMER_SECONDS, lambda: founder.command(Commanded(command="resume")))
    story.play()
    assert story.stages[PEER0][:3] == [Stage.TRAINING, Stage.PAUSING, Stage.PAUSED]
    assert story.is_finished(PEER0) and story.is_finished(PEER1)


def test_the_wait_of_a_newcomer_begins_anew_with_each_sign_of_a_peer_of_the_run() -> None:
    """Of one that is paused, also where it is on no plan any more, or was suspended: membership sees to that."""
    plan, agreement = genesis(RUN, [(PEER0, CAPACITY)], rules()), Scripted()
    peer = Peer(me=PEER1, cadence=_cadence(), agreement=agreement)
    peer.handle(Started(durable=Durable(round=0, plans=(plan,)), capacity=CAPACITY), 0.0)
    peer.handle(TransitionApplied(round=0), 0.0)
    peer.handle(PeerGone(peer=PEER0), 1.0)
    agreement.last_contact = 200.0
    assert not any(isinstance(effect, Stop) for effect in peer.handle(Ticked(), 1.0 + NEWCOMER_SECONDS))
    assert peer.next_deadline == 200.0 + NEWCOMER_SECONDS
    stop = peer.handle(Ticked(), 200.0 + NEWCOMER_SECONDS)[-1]
    assert isinstance(stop, Stop) and stop.error == NOBODY_THERE


def test_a_peer_that_only_receives_and_drains_saves_its_state_when_the_last_votes_had_their_time() -> None:
    """The only host with work goes: the round may still be decided by votes on their way, and is not broken off before."""
    whole = rules(rounds=30)
    plans = [genesis(RUN, [(PEER0, CAPACITY), (PEER1, CAPACITY)], whole)]
    for _ in range(2):
        plans.append(next_plan(plans[-1], (), whole))
    (item,) = plans[2].instances
    hosts = tuple(share if share.peer == PEER1 else replace(share, inner_steps=0, batch_samples=0) for share in item.hosts)
    plans[2] = replace(plans[2], instances=(replace(item, hosts=hosts),))
    peer = Peer(me=PEER0, cadence=replace(_cadence(), checkpoint_period=100), agreement=Scripted())
    peer.handle(Started(durable=Durable(round=2, plans=tuple(plans), held=(INSTANCE,)), capacity=CAPACITY), 0.0)
    peer.handle(TransitionApplied(round=2), 0.0)
    peer.handle(Commanded(command="drain"), 1.0)
    effects = peer.handle(PeerGone(peer=PEER1), 2.0)
    assert peer.stage is Stage.DRAINING and not any(isinstance(effect, Stop) for effect in effects)
    peer.handle(Ticked(), 2.0 + LAST_VOTES_SECONDS - 0.1)
    assert peer.stage is Stage.DRAINING and peer.next_deadline == 2.0 + LAST_VOTES_SECONDS
    effects = peer.handle(Ticked(), 2.0 + LAST_VOTES_SECONDS)
    (saved,) = [effect for effect in effects if isinstance(effect, SaveInstance)]
    assert saved.round == 3 and effects[-1] == Stop(reason="stopped before round 3", is_finished=False)


def test_nobody_goes_before_the_slowest_has_ended_the_run() -> None:
    story = Story(rules=rules(rounds=3), peers=3, loss=0.3, faults_end_at=60.0, seed=4, speeds=(100.0, 100.0, 5.0)).play()
    stopped_at = [at for at, _ in story.effects(Stop)]
    finished_at = [at for at, _ in story.effects(Finished)]
    assert len(stopped_at) == len(finished_at) == 3
    assert min(stopped_at) >= max(finished_at)


def _barrier() -> CompletionBarrier:
    return CompletionBarrier(PEER0, sign=lambda _payload: "signed", verify=lambda peer, payload, signature: True)


def _begin(completion: CompletionBarrier, *others: PeerId) -> list[Effect]:
    """A peer without a state comes to the end."""
    return completion.begin(plan=LAST, state=None, is_agreed=True, roster=[PEER0, *others], now=10.0)


def test_a_farewell_ends_when_all_who_live_are_done_or_had_their_time() -> None:
    completion = _barrier()
    done, pending = RunComplete(plan=LAST), RunComplete(plan=None, is_answer=True)
    assert completion.received(PEER1, done) == [Send(peer=PEER1, message=pending)]
    told = _begin(completion, PEER1, PEER2)
    sent = told[0].message if isinstance(told[0], Send) else None
    assert isinstance(sent, RunComplete) and sent.plan == LAST
    assert told == [Send(peer=PEER1, message=sent), Send(peer=PEER2, message=sent)]
    assert completion.received(PEER1, done) == [Send(peer=PEER1, message=replace(sent, is_answer=True))]
    assert completion.received(PEER1, RunComplete(plan=LAST, is_answer=True)) == []
    assert not completion.is_over(11.0, {})
    assert completion.tick(10.0 + RESEND_SECONDS, {}) == [Send(peer=PEER2, message=sent)]
    assert completion.is_over(11.0, {PEER2: None})
    assert completion.is_over(10.0 + COMPLETION_SECONDS, {})


def test_a_peer_that_still_comes_is_waited_for_longer_but_not_for_good() -> None:
    completion = _barrier()
    _begin(completion, PEER1, PEER2)
    assert completion.received(PEER1, RunComplete(plan=None, is_answer=True)) == []
    assert not completion.is_over(10.0 + COMPLETION_SECONDS, {}), "it may be fetching the last state from here"
    assert completion.is_over(10.0 + COMPLETION_SECONDS, {PEER1: None}), "the other one says nothing"
    assert completion.is_over(10.0 + PENDING_SECONDS, {})
    completion.received(PEER1, RunComplete(plan=LAST))
    assert completion.is_over(10.0 + COMPLETION_SECONDS, {})
    assert not completion.is_over(10.0 + COMPLETION_SECONDS - 1.0, {})


def test_a_peer_that_still_comes_has_the_time_that_a_state_takes_over_a_slow_link() -> None:
    completion = CompletionBarrier(
        PEER0, sign=lambda _payload: "signed", verify=lambda peer, payload, signature: True, transfer_seconds=900.0
    )
    _begin(completion, PEER1)
    completion.received(PEER1, RunComplete(plan=None, is_answer=True))
    assert not completion.is_over(10.0 + PENDING_SECONDS + 899.0, {})
    assert completion.is_over(10.0 + PENDING_SECONDS + 900.0, {})


def test_the_last_plan_of_another_peer_is_a_digest_and_not_just_any_text() -> None:
    assert _decoded(RunComplete(plan=LAST)) == RunComplete(plan=LAST)
    assert _decoded(RunComplete(plan=None, is_answer=True)) == RunComplete(plan=None, is_answer=True)
    for text in ("x" * 64, LAST.upper(), LAST * 1000, ""):
        with pytest.raises(RemoteProtocolError, match="plan"):
            _decoded(RunComplete(plan=Digest(text)))


def _decoded(message: RunComplete) -> RunComplete:
    return decode(RunComplete, canonical.encode(message), max_bytes=MAX_MESSAGE_BYTES)


def test_names_without_number_that_have_ended_the_run_fill_no_memory() -> None:
    """A peer without a seat, such as a newcomer that waits, takes this message from anybody. It remembers the last ones."""
    completion = _barrier()
    for number in range(2 * MAX_ROSTER):
        plan = LAST if number % 2 else None
        completion.received(PeerId(f"name{number // 2}"), RunComplete(plan=plan, is_answer=True))
        completion.received(PeerId(f"pending{number}"), RunComplete(plan=None, is_answer=True))
        completion.received(PeerId(f"ended{number}"), RunComplete(plan=LAST, is_answer=True))
        completion.received(PEER1, RunComplete(plan=LAST, is_answer=True))
    assert len(completion._ended) == len(completion._pending) == MAX_ROSTER
    assert completion.are_all_done(LAST, [PEER0, PEER1], {})


def test_a_peer_that_ended_another_history_is_not_done_in_this_one() -> None:
    completion = _barrier()
    completion.received(PEER1, RunComplete(plan=hashed("another last plan")))
    assert not completion.are_all_done(LAST, [PEER0, PEER1], {})
    _begin(completion, PEER1)
    assert not completion.is_over(11.0, {})
    completion.received(PEER1, RunComplete(plan=LAST))
    assert completion.are_all_done(LAST, [PEER0, PEER1], {}) and completion.is_over(11.0, {})
    completion.received(PEER1, RunComplete(plan=None, is_answer=True))
    assert not completion.is_over(11.0, {}), "it goes on in a history that has won"


def test_a_peer_that_has_ended_a_history_goes_on_in_the_one_that_wins() -> None:
    """Two sides of a partition: the smaller one ends the run by itself and waits for a peer of the larger one."""
    whole = rules(rounds=2)
    plans = [genesis(RUN, [(PEER0, CAPACITY), (PEER1, CAPACITY)], whole)]
    plans += [first := next_plan(plans[0], (), whole), next_plan(first, (), whole)]
    agreement = Scripted()
    peer = Peer(me=PEER0, cadence=replace(_cadence(), work=whole.work), agreement=agreement)
    peer.handle(Started(durable=Durable(round=2, plans=tuple(plans), held=(INSTANCE,)), capacity=CAPACITY), 0.0)
    peer.handle(TransitionApplied(round=2), 0.0)
    effects = peer.handle(Evaluated(instance=INSTANCE, round=2, heldout_loss=2.0), 1.0)
    (done,) = [effect.message for effect in effects if isinstance(effect, Send) and isinstance(effect.message, RunComplete)]
    assert peer.stage is Stage.WAITING and done.plan == canonical.digest(plans[2])

    other = next_plan(plans[0], (), whole, roster=RosterChange(joined=((PEER2, CAPACITY),)))
    agreement.outcomes = [Reorg(fork=plans[0], lost=(), won=(_entry(other),))]
    effects = peer.handle(Received(sender=PEER1, message=NEWS), 2.0)
    assert peer.stage is Stage.TRAINING and not any(isinstance(effect, Stop) for effect in effects)
    assert [effect.round for effect in effects if isinstance(effect, Transition)] == [0]
    (answer,) = peer.handle(Received(sender=PEER1, message=done), 3.0)
    assert answer == Send(peer=PEER1, message=RunComplete(plan=None, is_answer=True))


# --- another history -------------------------------------------------------------------------------------------------


class Scripted:
    """An agreement that says what the test puts in."""

    def __init__(self) -> None:
        self.next_deadline: float | None = None
        self.last_contact = 0.0
        self.outcomes: list[Outcome] = []
        self.submitted: list[Report] = []

    def start(self, plans: object, reports: object, now: float) -> list[Outcome]:
        return self.receive(PEER0, None, now)

    def submit(self, report: Report, now: float) -> list[Outcome]:
        self.submitted.append(report)
        return []

    def receive(self, sender: PeerId, message: object, now: float) -> list[Outcome]:
        outcomes, self.outcomes = self.outcomes, []
        return outcomes

    def tick(self, now: float) -> list[Outcome]:
        return []

    def reports_of(self, plan: Digest) -> Sequence[Report]:
        return ()

    def note_work(self, rounds: Collection[int]) -> None: ...
    def note_data(self, peers: Collection[PeerId], now: float) -> None: ...

    def keep_vote(self, plan: Digest, vote: AverageDigest) -> list[Persist]:
        return []

    def kept_vote(self, plan: Digest, instance: InstanceId) -> AverageDigest | None:
        return None

    def sign(self, payload: bytes) -> str:
        return "signed"

    def verify(self, peer: PeerId, payload: bytes, signature: str) -> bool:
        return True

    def may_be_apart(self, *, is_alone: bool) -> bool:
        return False

    def leave(self, now: float) -> list[Outcome]:
        return []

    def rejoin(self, capacity: Capacity, now: float) -> list[Outcome]:
        return []


def _cadence() -> Cadence:
    return Cadence(work=WorkRules(rounds=30), evaluation_period=0, checkpoint_period=1)


def _report(peer: PeerId, plan: RoundPlan, state: str) -> Report:
    item = replace(instance_report(batch=2, inner_steps=4, state=hashed(state)), contributors=1)
    return Report(peer=peer, round=plan.round, plan=canonical.digest(plan), capacity=CAPACITY, instances=(item,))


def _entry(plan: RoundPlan, reports: tuple[Report, ...] = ()) -> LedgerEntry:
    value = Value(round=plan.round, parent=plan.parent, reports=(), joined=(), departed=(), plan=canonical.digest(plan))
    signed = tuple(SignedReport(report=report, signature="") for report in reports)
    certificate = Certificate(ballot=Ballot(attempt=0, peer=PEER0), absent=(), votes=())
    return LedgerEntry(plan=plan, value=value, reports=signed, certificate=certificate)


def test_the_end_of_work_for_a_lost_history_means_nothing_for_the_new_one() -> None:
    """A peer trains round 1 when it learns that the others' round 1 is another one: it fetches their state, and what its
    device still ends of the old round is not taken for the new one."""
    whole = rules(rounds=30)
    plans = [genesis(RUN, [(PEER0, CAPACITY), (PEER1, CAPACITY)], whole)]
    plans.append(next_plan(plans[0], (), whole))
    agreement = Scripted()
    agreement.outcomes = [Decided(plan=plans[1])]
    peer = Peer(me=PEER0, cadence=_cadence(), agreement=agreement)
    durable = Durable(round=1, plans=tuple(plans), held=(INSTANCE,))
    effects = peer.handle(Started(durable=durable, capacity=CAPACITY), 0.0)
    assert [effect.round for effect in effects if isinstance(effect, Transition)] == [1]
    effects = peer.handle(TransitionApplied(round=1), 0.0)
    assert [effect.round for effect in effects if isinstance(effect, RunInner)] == [1]

    other = next_plan(plans[0], (), whole, roster=RosterChange(joined=((PEER2, CAPACITY),)))
    reports = tuple(_report(name, plans[0], "after round 0") for name in (PEER0, PEER1))
    newest = next_plan(other, reports, whole)
    agreement.outcomes = [
        Reorg(
            fork=plans[0],
            lost=(),
            won=(_entry(other), _entry(newest, reports)),
        )
    ]
    effects = peer.handle(Received(sender=PEER1, message=NEWS), 1.0)
    transition = next(effect for effect in effects if isinstance(effect, Transition))
    assert transition.round == 1
    effects = peer.handle(TransitionApplied(round=1, epoch=transition.epoch), 1.0)
    fetch = next(effect for effect in effects if isinstance(effect, FetchState))
    assert (fetch.round, fetch.digest) == (1, hashed("after round 0"))
    assert PEER1 in fetch.from_peers
    assert peer.handle(InnerFinished(instance=INSTANCE, round=1, result=inner_result()), 2.0) == []  # of the lost history
    assert peer.handle(StateFetched(instance=INSTANCE, round=7, digest=fetch.digest), 2.0) == []  # of an older jump
    effects = peer.handle(StateFetched(instance=INSTANCE, round=1, digest=fetch.digest), 2.0)
    assert not any(isinstance(effect, RunInner) for effect in effects)  # the others are at it; only their average is wanted
    vote = AverageDigest(
        instance=INSTANCE,
        round=1,
        attempt=0,
        contributors=(PEER0, PEER1),
        digest=hashed("average"),
        signature="signed",
        backers=((PEER0, "signed"),),
        is_answer=True,
    )
    effects = peer.handle(Received(sender=PEER1, message=vote), 3.0)
    assert [effect.digest for effect in effects if isinstance(effect, RepairAverage)] == [hashed("average")]


# --- late ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("newest", "boundaries"), [(4, [3]), (3, [2]), (2, [])])
def test_a_peer_that_can_no_longer_get_what_a_transition_needs_goes_to_the_present(newest: int, boundaries: list[int]) -> None:
    """It lacks the instance that forks before round 1. The others compute the round before the newest plan."""
    whole = rules(rounds=30, count=2)
    plans = [genesis(RUN, [(name, CAPACITY) for name in (PEER0, PEER1, PEER2)], whole)]
    reports = tuple(_report(name, plans[0], "after round 0") for name in (PEER1, PEER2))
    for number in range(newest):
        plans.append(next_plan(plans[-1], reports if number == 1 else (), whole))
    assert plans[1].forks
    peer = Peer(me=PEER0, cadence=_cadence(), agreement=Scripted())
    durable = Durable(round=1, plans=tuple(plans), held=(), reports=reports)
    effects = peer.handle(Started(durable=durable, capacity=CAPACITY), 0.0)
    (fetch,) = (effect for effect in effects if isinstance(effect, FetchState))
    assert fetch.round == 1
    effects = peer.handle(FetchFailed(instance=fetch.instance, round=1, reason="nobody has it any more"), 1.0)
    assert [effect.to_round for effect in effects if isinstance(effect, FastForwarded)] == boundaries


@pytest.mark.parametrize(("newest", "boundaries"), [(4, [3]), (3, [2]), (2, [])])
def test_a_peer_that_knows_no_donor_for_a_past_transition_goes_to_the_present(newest: int, boundaries: list[int]) -> None:
    """The two others reported different states of the instance that forks before round 1, so none is known to be agreed."""
    whole = rules(rounds=30, count=2)
    plans = [genesis(RUN, [(name, CAPACITY) for name in (PEER0, PEER1, PEER2)], whole)]
    reports = tuple(_report(name, plans[0], f"of {name}") for name in (PEER1, PEER2))
    for number in range(newest):
        plans.append(next_plan(plans[-1], reports if number == 1 else (), whole))
    assert plans[1].forks
    peer = Peer(me=PEER0, cadence=_cadence(), agreement=Scripted())
    effects = peer.handle(
        Started(durable=Durable(round=1, plans=tuple(plans), held=(), reports=reports), capacity=CAPACITY), 0.0
    )
    effects += peer.handle(Ticked(), 1.0)
    assert [effect.to_round for effect in effects if isinstance(effect, FastForwarded)] == boundaries
