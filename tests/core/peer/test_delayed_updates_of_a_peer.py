"""Delayed outer updates of whole peers, in virtual time: a round begins while the one before it is averaged."""

from dataclasses import replace
from random import Random

import pytest

from adloco_p2p.core.averaging.adaptive_timeout import AdaptiveTimeout
from adloco_p2p.core.averaging.outer_round import OuterRound
from adloco_p2p.core.averaging.phases import Phase
from adloco_p2p.core.model import telemetry
from adloco_p2p.core.model.averages import Average
from adloco_p2p.core.model.commands import Command
from adloco_p2p.core.model.effects import ApplyOuter, CarryOver, Evaluate, RunInner, Stop
from adloco_p2p.core.model.events import Commanded, InnerResult
from adloco_p2p.core.model.messages import AttemptStart
from adloco_p2p.core.model.rules import Rules
from adloco_p2p.core.model.scalars import InstanceId, PeerId
from tests.core.averaging.test_outer_round import RULES, A, B, C, outer_round
from tests.core.averaging.test_outer_round import averaging as averaged_at_once
from tests.core.peer.story import PEER0, PEER1, PEER2, PEER3, Story, rules

INSTANCE = InstanceId(0)


def asked(story: Story, peer: PeerId) -> list[RunInner | ApplyOuter | CarryOver]:
    """Inner steps and outer steps, in the order in which the device was asked for them."""
    effects = [told.effect for told in story.told if told.peer == peer]
    return [effect for effect in effects if isinstance(effect, RunInner | ApplyOuter | CarryOver)]


def ahead(story: Story, peer: PeerId = PEER0) -> list[int]:
    """Rounds whose inner steps began before the outer step of the round before."""
    return [effect.round for effect in asked(story, peer) if isinstance(effect, RunInner) and effect.is_ahead]


def check_order(story: Story) -> None:
    """Outer steps of an instance come in order, and inner steps are at most one round ahead of them."""
    for peer in story.world.machines:
        applied: dict[InstanceId, int] = {}
        for effect in asked(story, peer):
            if isinstance(effect, ApplyOuter | CarryOver):
                assert effect.round > applied.get(effect.instance, -1)
                applied[effect.instance] = effect.round
            elif effect.is_ahead:
                assert applied.get(effect.plan.instance, effect.round - 2) == effect.round - 2


def idle_share(story: Story) -> float:
    """Of the first peer's device, up to its last outer step."""
    computing = sum(effect.share.samples / story.speeds[0] for _, effect in story.effects(RunInner, PEER0))
    return 1.0 - computing / max(at for at, _ in story.effects(ApplyOuter, PEER0))


def delayed(run: Rules | None = None, *, peers: int = 2, **settings: object) -> Story:
    return Story(rules=run or rules(rounds=12), peers=peers, is_delayed=True, **settings)  # type: ignore[arg-type]


def test_a_round_begins_while_the_last_one_is_averaged() -> None:
    story = delayed(speeds=(20.0, 20.0)).play()
    check_order(story)
    assert story.is_finished(PEER0) and story.is_finished(PEER1)
    assert story.rounds_logged(PEER0) == [(number, 0) for number in range(12)]
    assert ahead(story) == list(range(1, 12)), "the last plan trains nothing, so nothing runs ahead into it"


def test_a_slow_link_costs_no_computing_time() -> None:
    """An averaging takes 0.5 to 1 s here, the inner steps of a round 1.6 s."""
    usual = Story(rules=rules(rounds=20), peers=2, speeds=(10.0, 10.0))
    assert idle_share(usual.play()) > 0.25
    assert idle_share(replace(usual, is_delayed=True, told=[]).play()) < 0.08


def test_a_link_slower_than_the_device_is_never_idle_either() -> None:
    """The inner steps of a round are done long before the average of the last one: it is handed over right after that."""
    story = delayed(rules(rounds=20), speeds=(40.0, 40.0), averaging_seconds=2.0).play()
    check_order(story)
    assert [log.phase for _, log in story.effects(telemetry.Phase, PEER0)].count("trained") >= 15
    began = [at for at, _ in story.effects(Average, PEER0)]
    applied = [at for at, _ in story.effects(ApplyOuter, PEER0)]
    assert all(later - end < 0.2 for end, later in zip(applied, began[1:], strict=False))


def test_the_report_of_a_round_does_not_wait_for_the_next() -> None:
    story = delayed(speeds=(20.0, 20.0)).play()
    for peer in (PEER0, PEER1):
        logs = [log for _, log in story.effects(telemetry.Log, peer) if isinstance(log, telemetry.Round | telemetry.Phase)]
        order = [(log.event, log.round) for log in logs if log.event == "round" or getattr(log, "phase", "") == "averaging"]
        assert order.index(("round", 4)) < order.index(("phase", 5))
    phases = [log.phase for _, log in story.effects(telemetry.Phase)]
    assert "evaluating" in phases, "also where it is evaluated"


def test_without_the_setting_nothing_runs_ahead() -> None:
    assert ahead(Story(rules=rules(), peers=2).play()) == []


def test_a_peer_alone_runs_no_round_ahead() -> None:
    story = delayed(peers=1).play()
    assert ahead(story) == []
    assert story.is_finished(PEER0)


def test_several_instances_hide_each_other_and_a_single_one_itself() -> None:
    """All four fork at round 1 and are one again at the end; boundaries that fork, merge or probe wait for every instance."""
    story = delayed(rules(rounds=24, count=4, guard=True), merged_loss=1.9).play()
    check_order(story)
    live: dict[int, int] = {}
    for plan in [log for _, log in story.effects(telemetry.Plan, PEER0)]:
        live[plan.round] = sum(any(share.peer == PEER0 for share in item.hosts) for item in plan.instances)
        if plan.forks or plan.merges:
            assert plan.round not in ahead(story)
        if plan.probe:
            assert plan.round + 1 not in ahead(story)
    assert ahead(story), "one instance was left for some rounds"
    assert all(live[number] == live.get(number - 1, 1) == 1 for number in ahead(story))
    assert story.is_finished(PEER0) and story.is_finished(PEER1)


@pytest.mark.parametrize("seed", range(6))
def test_a_peer_dies_or_freezes_at_any_moment_and_messages_get_lost(seed: int) -> None:
    """Beside the everyday seeds: their runs are shorter."""
    chance = Random(seed)
    story = delayed(
        rules(rounds=24),
        peers=4,
        seed=seed,
        loss=0.05,
        faults_end_at=20.0,
        speeds=(10.0,) * 4,
        averaging_seconds=chance.choice((0.2, 0.8, 1.2)),
    )
    moment = chance.uniform(0.1, 8.0)
    if seed % 2:
        story.kill(PEER3, at=moment)
    else:
        story.freeze(PEER3, at=moment, seconds=chance.choice((2.0, 12.0)))
    story.play()
    check_order(story)
    assert all(story.is_finished(peer) for peer in (PEER0, PEER1, PEER2))
    assert story.rounds_logged(PEER0)[-1] == (23, 0)
    assert story.is_finished(PEER3) is (seed % 2 == 0)


@pytest.mark.parametrize(("command", "asked_at"), [("drain", 2.4), ("leave", 3.0), ("drain", 3.5)])
def test_a_peer_goes_and_comes_back_from_its_checkpoint(command: Command, asked_at: float) -> None:
    """It trains the round again that it had begun early, from the outer parameters that it has."""
    story = delayed(rules(rounds=24), peers=3, speeds=(10.0, 10.0, 10.0))
    machine = story.machine(PEER2)
    story.at(asked_at, lambda: machine.command(Commanded(command=command)))
    story.at(asked_at + 6.0, machine.boot)
    story.play()
    (left_at, stop), (_, end) = story.effects(Stop, PEER2)
    assert not stop.is_finished and end.is_finished and left_at < asked_at + 6.0
    again = [effect.round for at, effect in story.effects(ApplyOuter, PEER2) if at > left_at]
    assert len(again) >= 5, "it took part again"


# --- one round -------------------------------------------------------------------------------------------------------


def trained(*peers: PeerId) -> tuple[OuterRound, InnerResult]:
    """The round of the first peer, its inner steps about to end."""
    example = averaged_at_once(*peers, adaptive_timeout=AdaptiveTimeout())
    outer = outer_round(peers[0], example.plan, AdaptiveTimeout())
    (inner,) = [effect for effect in outer.start(0.0, progress_end=0.1, is_ahead=True) if isinstance(effect, RunInner)]
    assert inner.is_ahead
    assert example.result is not None
    return outer, example.result


def test_inner_steps_that_ran_ahead_are_handed_over_when_the_round_before_is_applied() -> None:
    assert RULES.work.inner_steps == 4
    outer, result = trained(A, B)
    assert not any(isinstance(effect, Average) for effect in outer.inner_finished(result, 10.0, is_ahead=True))
    assert outer.phase is Phase.TRAINED
    assert not any(isinstance(effect, Evaluate) for effect in outer.tick(11.0))
    (average,) = [effect for effect in outer.hand_over(14.0) if isinstance(effect, Average)]
    assert average.attempt == 0
    assert outer.seconds["trained"] == 4.0


def test_a_retry_without_us_that_came_meanwhile_holds() -> None:
    outer, result = trained(A, B, C)
    outer.inner_finished(result, 10.0, is_ahead=True)
    outer.received(B, AttemptStart(instance=INSTANCE, round=0, attempt=3, members=(B, C)), 11.0)
    assert outer.phase is Phase.TRAINED
    assert not any(isinstance(effect, Average) for effect in outer.hand_over(12.0))
    assert outer.phase is Phase.RETRYING
