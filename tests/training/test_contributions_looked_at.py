"""Contributions looked at on the device: training shows, and the look leaves nothing behind."""

from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch

from adloco_p2p.config.run_config import AveragingConfig, OuterConfig, RunConfig
from adloco_p2p.core.model.assessments import ROWS, AssessContribution
from adloco_p2p.core.model.scalars import Digest, PeerId
from adloco_p2p.errors import DeviceError
from adloco_p2p.training import hosting as hosting_module
from adloco_p2p.training.hosting import Hosting
from tests.training.small_run import ONE, RUN, effect, hosting, never, silent, train_round, with_run

LOOKED_AT = replace(RUN, averaging=AveragingConfig(assess_every=1))
SAMPLES, HOSTS = 32, 3
STEPS = SAMPLES // 4


def asked(host: int, *, round: int = 1) -> AssessContribution:
    first = (round * HOSTS + host) * SAMPLES
    return AssessContribution(
        instance=ONE,
        round=round,
        subject=PeerId(f"host-{host}"),
        state=Digest("5" * 64),
        first_sample=first,
        samples=SAMPLES,
        unseen_from=(round + 1) * HOSTS * SAMPLES,
    )


def score_of(steps: Iterator[float | None]) -> float:
    *passes, score = steps
    assert passes == [None] * len(passes) and score is not None
    assert len(passes) == 3 * (SAMPLES + ROWS) // 16, "forward passes of 16 rows"
    return score


def started(run: RunConfig = LOOKED_AT) -> Hosting:
    peer = hosting(run)
    peer.start([ONE])
    return peer


def contributions(run: RunConfig = LOOKED_AT) -> tuple[Hosting, torch.Tensor, list[torch.Tensor]]:
    """Of round 1 of all hosts; the first one's engine after the outer step, and the parameters before it."""
    peers = [started(run) for _ in range(HOSTS)]
    for number in range(2):
        vectors = []
        for host, peer in enumerate(peers):
            work = effect(round=number, first_sample=(number * HOSTS + host) * SAMPLES, steps=STEPS)
            assert peer.run_inner(work, should_stop=never, on_progress=silent) is not None
            vectors.append(peer.pseudo_gradient(ONE).clone())
        for peer in peers:
            peer.apply_outer(ONE, torch.stack(vectors).mean(dim=0), round=number)
    before = peers[0].before_step(ONE, round=1)
    assert before is not None
    return peers[0], before, vectors


@pytest.mark.parametrize("outer", ["float32", "mixed", "bfloat16"])
def test_what_was_trained_on_the_given_rows_scores_and_what_was_not_does_not(outer: str) -> None:
    run = replace(LOOKED_AT, outer=OuterConfig(kind="nesterov", learning_rate=0.7, momentum=0.7, state=outer))  # type: ignore[arg-type]
    peer, before, vectors = contributions(run)
    others = (vectors[0] + vectors[2]) / 2
    honest = score_of(peer.assess(asked(1), before, vectors[1].clone(), others.clone()))
    copied = score_of(peer.assess(asked(1), before, vectors[2].clone(), others.clone()))
    nothing = score_of(peer.assess(asked(1), before, torch.zeros_like(vectors[1]), others.clone()))
    assert honest > 4.0 > 2.0 > abs(copied)
    assert nothing == 0.0
    huge = score_of(peer.assess(asked(1), before, 1e30 * vectors[1], others.clone()))
    assert huge < 2.0


def test_assessors_in_bfloat16_and_in_float32_agree() -> None:
    peer, before, vectors = contributions()
    for host, vector in enumerate(vectors):
        others = torch.stack([other for other in vectors if other is not vector]).mean(dim=0)
        scores = []
        for peer._shell._is_bfloat16 in (False, True):
            scores.append(score_of(peer.assess(asked(host), before, vector.clone(), others.clone())))
        assert scores[1] == pytest.approx(scores[0], abs=0.1) and scores[0] > 4.0


def test_training_shows_from_parameters_one_outer_step_further_on() -> None:
    """Where inner steps do not wait for the outer step before, as with `outer.overlap`."""
    peer, _, vectors = contributions()
    after = peer.state(ONE)[0]
    others = (vectors[0] + vectors[2]) / 2
    honest, copied = (score_of(peer.assess(asked(1), after, vectors[of].clone(), others.clone())) for of in (1, 2))
    assert honest > 4.0 > 2.0 > abs(copied)


def test_the_parameters_before_the_step_are_given_once_and_only_of_rounds_that_are_looked_at() -> None:
    peer = started(replace(RUN, averaging=AveragingConfig(assess_every=2)))
    first = train_round(peer, effect(round=1, steps=STEPS))
    assert peer.before_step(ONE, round=1) is None and len(first)
    outer = peer.state(ONE)[0]
    train_round(peer, effect(round=2, steps=STEPS))
    assert peer.before_step(ONE, round=1) is None
    assert peer.before_step(ONE, round=2) is outer
    assert peer.before_step(ONE, round=2) is None
    train_round(peer, effect(round=4, steps=STEPS))
    peer.adopt(ONE, *peer.state(ONE))
    assert peer.before_step(ONE, round=4) is None, "the state came from elsewhere"
    assert started().before_step(ONE, round=0) is None


@pytest.mark.parametrize("dropout", [0.0, 0.1])
def test_a_run_with_a_look_between_its_steps_trains_the_same_bytes(dropout: float) -> None:
    architecture = {**RUN.model.architecture, "attention_dropout": dropout}
    run = with_run(model=replace(RUN.model, architecture=architecture), averaging=LOOKED_AT.averaging)
    looking, plain = started(run), started(run)
    for peer in (looking, plain):
        train_round(peer, effect(round=1, steps=STEPS))
    before = looking.before_step(ONE, round=1)
    assert before is not None
    steps = looking.assess(asked(1), before, torch.ones_like(before), torch.zeros_like(before))
    chance, passes = torch.get_rng_state(), 0

    def look() -> bool:
        nonlocal passes
        passes += next(steps, None) is None
        return False

    for peer, should_stop in ((looking, look), (plain, never)):
        assert peer.run_inner(effect(round=2, steps=STEPS), should_stop=should_stop, on_progress=silent) is not None
    assert passes == STEPS
    assert torch.equal(looking.pseudo_gradient(ONE), plain.pseudo_gradient(ONE))
    assert torch.equal(torch.get_rng_state(), chance)
    assert looking._reading(ONE) == plain._reading(ONE)


def test_a_device_without_room_gives_no_score_and_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    peer, before, vectors = contributions()

    def full(*_: object) -> torch.Tensor:
        raise torch.OutOfMemoryError

    monkeypatch.setattr(hosting_module, "row_losses", full)
    with pytest.raises(DeviceError, match="memory_fraction"):
        next(peer.assess(asked(1), before, vectors[1], vectors[2]))
    train_round(peer, effect(round=2, steps=STEPS))
