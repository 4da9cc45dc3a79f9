"""The outer round of whole peers, in virtual time: what is applied, by whom, after which failures. Lost messages, crashes, slow
hosts and departures at any moment are the everyday seeds of `tests/sim/test_world.py`."""

import pytest

from adloco_p2p.core.averaging.phases import STEPS, Phase
from adloco_p2p.core.model.effects import ApplyOuter, RunInner, Transition
from tests.core.peer.story import PEER0, PEER1, PEER2, PEER3, Story, Told, rules


def test_a_peer_alone_ends_its_run_and_every_round_is_logged_once() -> None:
    story = Story(rules=rules()).play()
    assert story.is_finished(PEER0)
    assert story.rounds_logged(PEER0) == [(number, 0) for number in range(6)]
    durable = story.machine(PEER0).disk.durable
    assert durable is not None and durable.round == 6


def test_a_peer_with_nothing_to_evaluate_on_ends_its_run_too() -> None:
    story = Story(rules=rules(), heldout_loss=None).play()
    assert story.is_finished(PEER0)
    assert story.logged(PEER0, "finished")[-1]["heldout_loss"] is None
    assert {event["heldout_loss"] for event in story.logged(PEER0, "round")} == {None}


def test_instances_fork_merge_and_end_as_one() -> None:
    story = Story(rules=rules(rounds=12, count=4)).play()
    merges = story.logged(PEER0, "merge")
    assert len(story.logged(PEER0, "fork")) == 1
    assert sum(len(merge["sources"]) - 1 for merge in merges) == 3
    assert len(story.saved(PEER0)) == 1
    assert story.is_finished(PEER0)


@pytest.mark.parametrize(("merged_loss", "is_taken"), [(1.9, True), (2.5, False)])
def test_the_guard_measures_a_merge_before_it_is_done(merged_loss: float, is_taken: bool) -> None:
    story = Story(rules=rules(rounds=10, count=2, guard=True), merged_loss=merged_loss).play()
    merge = story.logged(PEER0, "merge")[0]
    probe = story.logged(PEER0, "probe")[0]
    assert probe["round"] < merge["round"]
    assert (min(merge["weights"]) > 0) is is_taken
    assert story.is_finished(PEER0)


def test_an_instance_is_averaged_while_the_next_one_computes() -> None:
    """An averaging takes 0.5 to 1 s here, the inner steps of a round 1.6 s per instance: two instances hide it, one cannot."""
    idle = {}
    for count in (1, 2):
        story = Story(rules=rules(rounds=20, count=count, period=100), peers=2, speeds=(10.0, 10.0)).play()
        computing = sum(effect.share.samples / 10.0 for _, effect in story.effects(RunInner, PEER0))
        last = max(at for at, _ in story.effects(ApplyOuter, PEER0))
        idle[count] = 1.0 - computing / last
    assert idle[1] > 0.2
    assert idle[2] < 0.1


def test_a_dead_member_is_left_out_and_the_survivors_agree() -> None:
    story = Story(rules=rules(rounds=2), peers=4)
    story.kill(PEER2, at=0.2)
    story.play()
    survivors = [PEER0, PEER1, PEER3]
    assert [story.logged(name, "round")[0]["hosts"] for name in survivors] == [survivors] * 3


def test_a_peer_that_is_asked_to_go_ends_its_round_and_goes_on_from_its_checkpoint() -> None:
    plain = Story(rules=rules(rounds=8, count=2, period=100)).play()
    story = Story(rules=rules(rounds=8, count=2, period=100), faults_end_at=60.0)
    story.at(0.9, story.drain, PEER0)
    story.at(30.0, story.machine(PEER0).boot)
    story.at(29.0, lambda: rounds.append(story.machine(PEER0).disk.durable.round))  # type: ignore[union-attr]
    rounds: list[int] = []
    story.play()
    assert 0 < rounds[0] < 8
    assert story.is_finished(PEER0) and story.saved(PEER0) == plain.saved(PEER0)


@pytest.mark.parametrize("seconds", [0.5, 1.3, 2.2, 4.1])
def test_a_crash_at_any_time_ends_in_the_same_state(seconds: float) -> None:
    """Durable is what SaveCheckpoint carried; everything after it is done again."""
    whole = rules(rounds=9, count=3, guard=True)
    plain = Story(rules=whole, merged_loss=1.9).play()
    story = Story(rules=whole, merged_loss=1.9)
    story.at(seconds, story.machine(PEER0).crash, "by the test")
    story.play()
    assert story.machine(PEER0).life == 2
    assert story.saved(PEER0) == plain.saved(PEER0)


def test_a_transition_waits_for_every_instance() -> None:
    done: list[tuple[int, int]] = []
    merged: list[int] = []

    def note(told: Told) -> None:
        if isinstance(told.effect, ApplyOuter):
            done.append((told.effect.round, told.effect.instance))
        if isinstance(told.effect, Transition) and told.effect.merges:
            live = {instance for number, instance in done if number == told.effect.round - 1}
            assert set(told.effect.merges[0].sources) <= live
            merged.append(told.effect.round)

    Story(rules=rules(rounds=6, count=3), on_effect=note).play()
    assert merged


def test_every_phase_is_reached_and_only_done_is_an_end() -> None:
    assert set(STEPS) == set(Phase)
    assert [phase for phase, following in STEPS.items() if not following] == [Phase.DONE]
    reachable = {phase for following in STEPS.values() for phase in following}
    assert set(Phase) - reachable == {Phase.TRAINING}
