"""Outer updates that come one round late, by hand and bit for bit."""

from dataclasses import replace
from typing import Literal

import pytest
import torch

from adloco_p2p.config.run_config import AveragingConfig, OuterConfig
from adloco_p2p.core.model.effects import RunInner
from adloco_p2p.core.model.scalars import PeerId
from adloco_p2p.numerics.codecs import codec_named
from adloco_p2p.training.hosting import Hosting
from tests.training.by_hand import of
from tests.training.small_run import ONE, RUN, effect, hosting, never, silent, with_run

SGD = OuterConfig(kind="sgd", learning_rate=0.5, momentum=0.0)
NESTEROV = OuterConfig(kind="nesterov", learning_rate=0.7, momentum=0.9)


def at_one(outer: OuterConfig, **settings: object) -> Hosting:
    """Every parameter is 1."""
    run = with_run(outer=outer, **settings)
    peer = hosting(replace(run, inner=replace(RUN.inner, weight_decay=0.0)))
    peer.start([ONE])
    ones = torch.ones(peer.num_parameters)
    peer.adopt(ONE, ones, torch.zeros_like(ones))
    return peer


def trains(peer: Hosting, number: int, *, is_ahead: bool = False) -> float:
    """The pseudo-gradient of a round, the same for every parameter."""
    work: RunInner = replace(effect(round=number), is_ahead=is_ahead)
    assert peer.run_inner(work, should_stop=never, on_progress=silent) is not None
    return of(peer.pseudo_gradient(ONE))


def applies(peer: Hosting, number: int, averaged: float) -> tuple[float, float]:
    """Outer and local parameters after the outer step."""
    peer.apply_outer(ONE, torch.full((peer.num_parameters,), averaged), round=number)
    return of(peer.state(ONE)[0]), of(peer._instances[ONE].local)


def test_two_delayed_rounds_by_hand(moves: list[float]) -> None:
    moves += [0.1, 0.2, 0.4]
    peer = at_one(SGD)
    assert trains(peer, 0) == 0.1
    assert trains(peer, 1, is_ahead=True) == 0.2, "from 1.0, where round 0 began too"
    assert applies(peer, 0, 0.3) == (0.85, 0.8), "1 - 0.5 * 0.3; the local parameters are at work on round 1"
    assert trains(peer, 2, is_ahead=True) == 0.4, "from 0.85"
    assert applies(peer, 1, 0.2) == (0.75, 0.45)
    assert applies(peer, 2, 0.1) == (0.7, 0.7), "nothing has begun since: the local parameters follow"


def test_an_eager_start_by_hand(moves: list[float]) -> None:
    """The host did half of the round, so half of its pseudo-gradient stands for the average that is not here yet."""
    moves += [0.1, 0.2]
    peer = at_one(replace(SGD, overlap="eager"))
    work = effect(round=0)
    two = (work.share, replace(work.share, peer=PeerId("peer-b")))
    work = replace(work, plan=replace(work.plan, hosts=two))
    peer.run_inner(work, should_stop=never, on_progress=silent)
    assert of(peer.pseudo_gradient(ONE)) == 0.1
    assert trains(peer, 1, is_ahead=True) == 0.2
    assert of(peer._instances[ONE].local) == 0.775, "1 - 0.5 * 0.5 * 0.1, and 0.2 of inner steps"
    assert applies(peer, 0, 0.3) == (0.85, 0.775), "the outer parameters know nothing of that start"


def test_a_forecast_start_by_hand(moves: list[float]) -> None:
    """The host did half of the round, and takes its own pseudo-gradient for the whole average."""
    moves += [0.1, 0.2]
    peer = at_one(replace(SGD, overlap="forecast"))
    work = effect(round=0)
    two = (work.share, replace(work.share, peer=PeerId("peer-b")))
    peer.run_inner(replace(work, plan=replace(work.plan, hosts=two)), should_stop=never, on_progress=silent)
    assert trains(peer, 1, is_ahead=True) == 0.2
    assert of(peer._instances[ONE].local) == 0.75, "1 - 0.5 * 0.1, and 0.2 of inner steps"
    assert applies(peer, 0, 0.3) == (0.85, 0.75)


def test_an_eager_start_with_momentum_by_hand(moves: list[float]) -> None:
    """After 1 -> 0.867 with a momentum of 0.1: 0.867 - 0.7 * (0.05 + 0.9 * (0.9 * 0.1 + 0.05)) = 0.7438."""
    moves += [0.1, 0.05, 0.01]
    peer = at_one(replace(NESTEROV, overlap="eager"))
    trains(peer, 0)
    applies(peer, 0, 0.1)
    trains(peer, 1)
    assert trains(peer, 2, is_ahead=True) == 0.01
    assert of(peer._instances[ONE].local) == 0.7338
    assert applies(peer, 1, 0.02)[0] == 0.7837, "0.867 - 0.7 * (0.02 + 0.9 * 0.11): as if nothing had begun"


def test_nesterov_delayed_by_hand(moves: list[float]) -> None:
    """1 -> 0.867 -> 0.7438 (docs/mathematics.md, 12 H), whenever the steps come."""
    moves += [0.1, 0.05]
    peer = at_one(NESTEROV)
    trains(peer, 0)
    trains(peer, 1, is_ahead=True)
    assert applies(peer, 0, 0.1)[0] == 0.867
    assert applies(peer, 1, 0.05) == (0.7438, 0.7438)


def test_an_outer_step_between_two_inner_steps_changes_nothing_of_them() -> None:
    """Applied, evaluated and saved in the middle, or afterwards: the same pseudo-gradient, bit for bit."""
    ends = []
    for is_in_the_middle in (False, True):
        peer = hosting()
        peer.start([ONE])
        peer.run_inner(effect(round=0), should_stop=never, on_progress=silent)
        average = peer.pseudo_gradient(ONE).clone()
        steps = 0

        def between(peer: Hosting = peer, average: torch.Tensor = average, is_due: bool = is_in_the_middle) -> bool:
            nonlocal steps
            steps += 1
            if is_due and steps == 3:
                peer.apply_outer(ONE, average, round=0)
                peer.evaluate(ONE)
                peer.snapshot(ONE)
            return False

        peer.run_inner(replace(effect(round=1), is_ahead=True), should_stop=between, on_progress=silent)
        delta = peer.pseudo_gradient(ONE).clone()
        if not is_in_the_middle:
            peer.apply_outer(ONE, average, round=0)
        ends.append((delta, *peer.state(ONE)))
    for one, other in zip(*ends, strict=True):
        assert torch.equal(one, other)


def test_a_snapshot_while_the_next_round_is_under_way_has_the_outer_state(moves: list[float]) -> None:
    moves += [0.1, 0.2, 0.3]
    peer = at_one(SGD)
    trains(peer, 0)
    trains(peer, 1, is_ahead=True)
    applies(peer, 0, 0.3)
    resumed = hosting(with_run(outer=SGD))
    resumed.restore(ONE, *peer.snapshot(ONE))
    assert of(resumed.state(ONE)[0]) == of(resumed._instances[ONE].local) == 0.85
    assert trains(resumed, 1) == 0.3, "the round is trained again, from the outer parameters that are there now"


def test_given_up_rounds_leave_the_outer_parameters(moves: list[float]) -> None:
    moves += [0.1, 0.2, 0.05]
    peer = at_one(SGD)
    trains(peer, 0)
    trains(peer, 1, is_ahead=True)
    peer.discard(ONE)
    assert of(peer._instances[ONE].local) == 1.0
    assert trains(peer, 2) == 0.05
    assert applies(peer, 2, 0.1) == (0.95, 0.95)


@pytest.mark.parametrize("is_made_before", [False, True])
def test_what_the_codec_lost_is_sent_with_the_round_that_ran_ahead(moves: list[float], is_made_before: bool) -> None:
    """`topk2` sends 64 of 4096 equal values; the others go with the next pseudo-gradient, whose inner steps have begun."""
    moves += [0.25, 0.125]
    peer = at_one(SGD, averaging=AveragingConfig(codec="topk2"))
    trains(peer, 0)
    codec = codec_named("topk2")
    sent = codec.decode(codec.encode(peer.pseudo_gradient(ONE)))  # the last block is shorter; all are alike
    peer.run_inner(replace(effect(round=1), is_ahead=True), should_stop=never, on_progress=silent)
    lost = 0.25 - sent
    if is_made_before:  # the average of round 0 comes when the inner steps of round 1 are done
        assert of(peer.pseudo_gradient(ONE)) == 0.125
    peer.apply_outer(ONE, sent, round=0, residual=lost)
    assert torch.allclose(peer.pseudo_gradient(ONE), 0.125 + lost, atol=1e-6)
    assert float(peer.pseudo_gradient(ONE).max()) > 0.3


def test_a_residual_is_sent_once_where_rounds_run_ahead(moves: list[float]) -> None:
    moves += [0.25, 0.125, 0.5]
    peer = at_one(SGD, averaging=AveragingConfig(codec="topk2"))
    trains(peer, 0)
    trains(peer, 1, is_ahead=True)
    peer.apply_outer(ONE, torch.zeros(peer.num_parameters), round=0, residual=torch.full((peer.num_parameters,), 1.0))
    assert of(peer.pseudo_gradient(ONE)) == 1.125
    trains(peer, 2, is_ahead=True)
    assert of(peer.pseudo_gradient(ONE)) == 0.5


@pytest.mark.parametrize("overlap", ["none", "delayed", "eager"])
def test_what_was_averaged_is_written_to_by_nothing_that_comes_later(overlap: Literal["none", "delayed", "eager"]) -> None:
    """Not even by a void round: members may make parts again from it (`Averager.average`)."""
    peer = hosting(with_run(outer=replace(NESTEROV, overlap=overlap)))
    peer.start([ONE])
    given: list[tuple[torch.Tensor, torch.Tensor]] = []

    def end(number: int) -> None:
        averaged = given[number][0]
        if number == 1:
            peer.carry_over(ONE, averaged, round=number)
        else:
            peer.apply_outer(ONE, averaged.clone(), round=number)

    for number in range(4):
        is_ahead = overlap != "none" and number > 0
        assert peer.run_inner(replace(effect(round=number), is_ahead=is_ahead), should_stop=never, on_progress=silent)
        own = peer.pseudo_gradient(ONE)
        if is_ahead:
            end(number - 1)  # the next average begins afterwards
        given.append((own, own.clone()))
        if overlap == "none":
            end(number)
    assert all(torch.equal(own, as_sent) for own, as_sent in given)
