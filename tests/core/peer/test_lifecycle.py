"""What the user asks a peer to do: whole peers in virtual time."""

import itertools
from dataclasses import replace
from typing import Literal

import pytest

from adloco_p2p.core.model import telemetry
from adloco_p2p.core.model.effects import (
    ApplyOuter,
    DiscardRound,
    Effect,
    Evaluate,
    Persist,
    Probe,
    RunInner,
    SaveCheckpoint,
    SaveInstance,
    Send,
    Stop,
    Transition,
)
from adloco_p2p.core.model.events import Event, StateServed
from adloco_p2p.core.model.messages import AverageDigest, CommitVoted
from adloco_p2p.core.model.scalars import InstanceId, PeerId
from adloco_p2p.core.peer.finishing import NOT_THE_MODEL, TOO_LATE
from tests.core.peer.story import CAPACITY, PEER0, PEER1, PEER2, Story, Told, rules

PEERS = (PEER0, PEER1, PEER2)


def story_of(*, rounds: int, peers: int = 3, count: int = 1, checkpoint_period: int = 1) -> Story:
    return Story(rules=rules(rounds=rounds, count=count, period=100), peers=peers, checkpoint_period=checkpoint_period)


def when(story: Story, kind: type[telemetry.Log]) -> float:
    """The first such line of the peer that is asked."""
    return next(at for at, _ in story.effects(kind, PEER0))


def trained(story: Story) -> list[float]:
    """When inner steps began on the peer that is asked."""
    return [at for at, _ in story.effects(RunInner, PEER0)]


@pytest.mark.parametrize("paused_seconds", [0.2, 4.0, 20.0])
def test_who_pauses_trains_nothing_meanwhile_and_goes_on_afterwards(paused_seconds: float) -> None:
    story = story_of(rounds=40)
    story.ask(PEER0, "pause", at=1.3)
    story.ask(PEER0, "resume", at=6.0 + paused_seconds)
    story.play()
    paused, resumed = when(story, telemetry.Paused), when(story, telemetry.Resumed)
    assert 1.3 < paused < 6.0
    assert not [at for at in trained(story) if paused < at < resumed]
    assert [at for at in trained(story) if at > resumed]
    assert all(story.is_finished(peer) for peer in PEERS)
    hosts = [log["hosts"] for log in story.logged(PEER1, "round")]
    assert hosts[0] == hosts[-1] == [*PEERS]
    if paused_seconds > 4.0:
        assert [PEER1, PEER2] in hosts


@pytest.mark.parametrize("count", [1, 2])
def test_checkpoints_leave_time_between_them(count: int) -> None:
    """Each is complete, of every hosted instance, though they come to the boundary at different times."""
    story = Story(rules=rules(rounds=12, count=count, period=100), peers=2, checkpoint_seconds=2.0).play()
    saved = [(at, effect.durable) for at, effect in story.effects(SaveCheckpoint, PEER0)]
    assert saved[-1][1].is_finished
    others = [(at, durable) for at, durable in saved if durable.round < 12]  # the end is saved whatever the time
    assert 2 <= len(others) < 11, "some boundaries are passed over"
    assert all(later - earlier >= 2.0 for (earlier, _), (later, _) in itertools.pairwise(others))
    assert all(durable.held for _, durable in saved)


def test_a_round_under_way_is_ended_and_saved_before_the_pause() -> None:
    story = story_of(rounds=8, checkpoint_period=100)
    story.ask(PEER0, "pause", at=1.3)
    story.ask(PEER0, "resume", at=20.0)
    story.play()
    paused = when(story, telemetry.Paused)
    (saved,) = [effect.durable for at, effect in story.effects(SaveCheckpoint, PEER0) if at <= paused]
    ended = [effect.round for at, effect in story.effects(telemetry.Round, PEER0) if at <= paused]
    assert saved.round == ended[-1] + 1


def test_a_peer_that_comes_back_without_a_seat_when_the_run_is_over_has_no_model() -> None:
    """It stopped as finished, and what it had saved was marked as the model of the run."""
    story = story_of(rounds=8, checkpoint_period=100)
    story.ask(PEER0, "pause", at=1.3)
    story.ask(PEER0, "resume", at=20.0)
    story.play()
    ((at, stop),) = story.effects(Stop, PEER0)
    assert at > 20.0 > max(at for peer in PEERS if peer != PEER0 for at, _ in story.effects(Stop, peer))
    assert (stop.error, stop.reason) == (NOT_THE_MODEL, TOO_LATE) and not stop.is_finished
    assert not any(effect.durable.is_finished for _, effect in story.effects(SaveCheckpoint, PEER0))
    assert not [*story.effects(telemetry.Finished, PEER0)]


def test_a_pause_can_be_repeated_and_taken_back() -> None:
    story = story_of(rounds=60)
    for start in (1.3, 12.0, 25.0):
        story.ask(PEER0, "pause", at=start)
        story.ask(PEER0, "resume", at=start + 8.0)
    story.ask(PEER0, "pause", at=38.0)
    story.ask(PEER0, "resume", at=38.01)  # before the round has ended
    story.ask(PEER0, "resume", at=38.02)
    story.play()
    logs = [log for _, log in story.effects(telemetry.Log, PEER0)]
    names = [log.event for log in logs if isinstance(log, telemetry.Paused | telemetry.Resumed)]
    assert names == ["paused", "resumed"] * 3 + ["resumed"]
    assert all(story.is_finished(peer) for peer in PEERS)


def test_a_peer_alone_pauses_and_goes_on_where_it_was() -> None:
    plain, paused = (story_of(rounds=8, peers=1, count=2) for _ in range(2))
    paused.ask(PEER0, "pause", at=0.9)
    paused.ask(PEER0, "resume", at=50.0)
    plain.play()
    paused.play()
    assert paused.logged(PEER0, "paused")
    assert paused.saved(PEER0) == plain.saved(PEER0)


@pytest.mark.parametrize("command", ["drain", "leave"])
def test_who_is_paused_can_go(command: Literal["drain", "leave"]) -> None:
    story = story_of(rounds=30)
    story.ask(PEER0, "pause", at=1.3)
    story.ask(PEER0, command, at=20.0)
    story.play()
    stop = story.stop(PEER0)
    assert stop is not None and not stop.is_finished
    assert [told.at for told in story.told if told.peer == PEER0][-1] == 20.0
    assert story.is_finished(PEER1)


def test_a_pause_does_not_stop_a_peer_that_is_leaving() -> None:
    story = story_of(rounds=30)
    story.ask(PEER0, "drain", at=1.3)
    story.ask(PEER0, "pause", at=1.31)
    story.ask(PEER0, "resume", at=1.32)
    story.play()
    assert story.stop(PEER0) is not None
    names = [log.event for _, log in story.effects(telemetry.Log, PEER0)]
    assert "stopping" in names and not {"pausing", "paused", "resumed"} & set(names)


# --- leaving at once -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("moment", [RunInner, ApplyOuter, Evaluate, Transition, Probe, SaveInstance, SaveCheckpoint])
@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("period", [1, 3])
def test_what_is_saved_when_a_peer_leaves_at_once_is_the_state_of_its_boundary(
    moment: type[Effect], count: int, period: int
) -> None:
    """Leaving at the beginning of the first, second, ... piece of work of a kind, as long as there is one."""

    def story() -> Story:
        return Story(rules=rules(rounds=8, count=count, guard=True), merged_loss=1.9, checkpoint_period=period)

    def play(number: int) -> Story:
        played, begun = story(), itertools.count(1)

        def ask(told: Told) -> None:
            if isinstance(told.effect, moment) and next(begun) == number:
                played.ask(told.peer, "leave", at=told.at)

        played.on_effect = ask
        played.play()
        while played.world.queue:  # what the device still has to do, in order
            played.world.queue.step()
        return played

    expected: dict[tuple[int, InstanceId], object] = {}
    undisturbed = replace(story(), checkpoint_period=1)
    undisturbed.on_effect = lambda _: expected.update(undisturbed.machine(PEER0).disk.states)
    undisturbed.play()
    for number in range(1, 40):
        left = play(number)
        stop, durable = left.stop(PEER0), left.machine(PEER0).disk.durable
        assert stop is not None
        if stop.is_finished:
            break
        assert stop.is_urgent
        if durable is not None:
            assert left.saved(PEER0) == {instance: expected[durable.round, instance] for instance in durable.held}, number


def test_leaving_at_once_does_not_wait_for_the_round() -> None:
    story = story_of(rounds=8, checkpoint_period=100)
    story.ask(PEER0, "leave", at=1.3)
    story.play()
    assert [at for at, _ in story.effects(Stop, PEER0)] == [1.3]
    last = [told.effect for told in story.told if told.peer == PEER0 and told.at == 1.3]
    assert any(isinstance(effect, DiscardRound) for effect in last)
    assert isinstance(last[-1], Stop) and last[-1].is_urgent


def test_a_peer_that_goes_after_most_hosts_votes_on_the_rounds_that_it_leaves_and_on_those_that_it_does_not_begin() -> None:
    """Two of three are gone then: the third could not know whether they had made the averages, and doubted its own state."""
    story = story_of(rounds=8)
    story.kill(PEER2, at=1.0)
    story.ask(PEER1, "leave", at=8.2)
    story.play()
    votes = [effect.record.vote for _, effect in story.effects(Persist, PEER1) if isinstance(effect.record, CommitVoted)]
    assert [vote.round for vote in votes if vote.is_void] == [2, 3]
    assert [effect.round for _, effect in story.effects(RunInner, PEER1)] == [0, 1, 2]
    sent = [effect.message for at, effect in story.effects(Send, PEER1) if at == 8.2 and effect.peer == PEER0]
    assert [message for message in sent if isinstance(message, AverageDigest)] == votes[-2:]


@pytest.mark.parametrize("command", ["drain", "leave"])
def test_a_peer_that_most_hosts_outlast_casts_no_vote_when_it_goes(command: Literal["drain", "leave"]) -> None:
    """It may come back and train the round."""
    story = story_of(rounds=8)
    story.ask(PEER1, command, at=2.5)
    story.play()
    votes = [effect.record.vote for _, effect in story.effects(Persist, PEER1) if isinstance(effect.record, CommitVoted)]
    assert votes and not any(vote.is_void for vote in votes)


# --- saving ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("asked_at", [0.1, 0.4, 0.9, 1.5, 2.2])
def test_a_checkpoint_comes_at_the_next_boundary_and_then_the_cadence_counts_again(asked_at: float) -> None:
    story = story_of(rounds=9, peers=1, count=2, checkpoint_period=100)
    story.ask(PEER0, "checkpoint", at=asked_at)
    story.play()
    saved = [effect.durable.round for _, effect in story.effects(SaveCheckpoint)]
    first = saved[0]
    assert saved == [first, 9, 9]  # at the end and, once evaluated, as finished
    before = [effect.round for at, effect in story.effects(telemetry.Round) if at <= asked_at]
    assert first <= max(before, default=-1) + 3
    kept = [effect.round for _, effect in story.effects(SaveInstance) if effect.round <= first]
    assert set(kept) == {first}


# --- handing over ----------------------------------------------------------------------------------------------------


def handing_story() -> Story:
    """Two instances are hosted by the third peer alone."""
    return Story(rules=rules(rounds=30, count=4, period=100), peers=3, capacity=replace(CAPACITY, max_instances=2))


def rounds_of(story: Story, name: PeerId) -> dict[int, list[int]]:
    """Instance -> the rounds that the peer ended with it."""
    found: dict[int, list[int]] = {}
    for number, instance in story.rounds_logged(name):
        found.setdefault(instance, []).append(number)
    return found


@pytest.mark.parametrize("asked_at", [6.0, 6.6, 7.5])
def test_who_alone_hosts_an_instance_hands_it_over_before_it_goes(asked_at: float) -> None:
    story = handing_story()
    story.ask(PEER2, "drain", at=asked_at)
    story.play()
    stop = story.stop(PEER2)
    assert stop is not None and not stop.is_finished
    handed = {instance: max(rounds) for instance, rounds in rounds_of(story, PEER2).items()}
    taken: dict[int, list[int]] = {}
    for name in (PEER0, PEER1):
        for instance, rounds in rounds_of(story, name).items():
            taken.setdefault(instance, []).extend(rounds)
    for instance, last in handed.items():
        assert min(number for number in taken[instance] if number > 0) <= last + 1, "a round is missing"
    assert not [log for name in (PEER0, PEER1) for log in story.logged(name, "warning") if log["active"]]
    assert story.is_finished(PEER0) and story.is_finished(PEER1)


def test_nobody_waits_for_ever_for_an_heir_that_does_not_come(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("adloco_p2p.core.peer.lifecycle.HANDOVER_SECONDS", 20.0)

    def is_heard(peer: PeerId, event: Event) -> bool:
        return not isinstance(event, StateServed)

    leaves_after_the_longest_handover(replace(handing_story(), hears=is_heard))


def test_a_peer_that_is_no_heir_lets_nobody_go_by_claiming_to_have_the_state(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("adloco_p2p.core.peer.lifecycle.HANDOVER_SECONDS", 20.0)

    def claimed(*, instance: InstanceId, round: int, peer: PeerId) -> StateServed:
        del peer
        return StateServed(instance=instance, round=round, peer=PeerId("another"))

    monkeypatch.setattr("adloco_p2p.sim.state_fetches.StateServed", claimed)
    leaves_after_the_longest_handover(handing_story())


def test_a_handover_lasts_longer_by_what_the_state_takes_over_a_slow_link(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("adloco_p2p.core.peer.lifecycle.HANDOVER_SECONDS", 5.0)

    def is_heard(peer: PeerId, event: Event) -> bool:
        return not isinstance(event, StateServed)

    leaves_after_the_longest_handover(replace(handing_story(), hears=is_heard, state_bytes=15_000_000))


def leaves_after_the_longest_handover(story: Story) -> None:
    """Of 20 s."""
    story.ask(PEER2, "drain", at=6.0)
    story.play()
    (stopped,) = [at for at, _ in story.effects(Stop, PEER2)]
    ended = max(at for at, _ in story.effects(telemetry.Round, PEER2))
    assert 20.0 <= stopped - ended < 25.0
    handovers = [log["active"] for log in story.logged(PEER2, "warning") if log["key"] == "handover"]
    assert handovers == [True, False], "a peer that has ended waits for nobody"
    assert story.is_finished(PEER1)
