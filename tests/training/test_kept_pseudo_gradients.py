"""A host that is not in every average: what it learns between is part of its next pseudo-gradient, once. By hand."""

import torch

from adloco_p2p.config.run_config import AveragingConfig
from adloco_p2p.training.hosting import Hosting
from tests.training.by_hand import of
from tests.training.small_run import ONE
from tests.training.test_delayed_updates import SGD, at_one, trains


def applies(peer: Hosting, number: int, averaged: float, *, keeps_own: bool = False) -> float:
    """The outer parameters after the outer step, at which the local ones are too."""
    own = peer.pseudo_gradient(ONE) if keeps_own else None
    assert peer.apply_outer(ONE, torch.full((peer.num_parameters,), averaged), round=number, residual=own)
    assert of(peer._instances[ONE].local) == of(peer.state(ONE)[0])
    return of(peer.state(ONE)[0])


def test_two_rounds_without_it_and_the_one_after_them(moves: list[float]) -> None:
    moves += [0.1, 0.2, 0.4, 0.3]
    peer = at_one(SGD)
    assert trains(peer, 1) == 0.1
    assert applies(peer, 1, 0.2, keeps_own=True) == 0.9, "1 - 0.5 * 0.2: the step of the others"
    assert trains(peer, 2) == 0.3, "0.1 of round 1, and 0.2 from 0.9"
    assert applies(peer, 2, 0.2, keeps_own=True) == 0.8
    assert trains(peer, 3) == 0.7
    assert applies(peer, 3, 0.4) == 0.6
    assert trains(peer, 4) == 0.3, "what was given is given once"


def test_a_void_round_loses_nothing(moves: list[float]) -> None:
    moves += [0.1, 0.2, 0.4]
    peer = at_one(SGD)
    trains(peer, 1)
    applies(peer, 1, 0.2, keeps_own=True)
    given = peer.pseudo_gradient if trains(peer, 2) == 0.3 else None
    assert given is not None
    peer.carry_over(ONE, given(ONE), round=2)
    assert trains(peer, 3) == 0.7


def test_without_feedback_only_the_last_round_counts(moves: list[float]) -> None:
    moves += [0.1, 0.2]
    peer = at_one(SGD, averaging=AveragingConfig(feedback=0.0))
    trains(peer, 1)
    applies(peer, 1, 0.2, keeps_own=True)
    assert trains(peer, 2) == 0.2


def test_it_outlives_a_restart(moves: list[float]) -> None:
    moves += [0.1, 0.2]
    peer = at_one(SGD)
    trains(peer, 1)
    applies(peer, 1, 0.2, keeps_own=True)
    tensors, meta = peer.snapshot(ONE)
    again = at_one(SGD)
    again.restore(ONE, tensors, meta)
    assert trains(again, 2) == 0.3
