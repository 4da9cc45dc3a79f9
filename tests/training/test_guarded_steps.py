"""What the guard asks of the device: the loss before and after an outer step, and the way back."""

from dataclasses import replace

import pytest

from adloco_p2p.core.model.rules import GuardRules
from adloco_p2p.core.model.scalars import Digest
from adloco_p2p.training.evaluate import heldout_loss
from adloco_p2p.training.hosting import GUARD_ROWS, Hosting
from tests.training.small_run import ONE, RUN, SyntheticFeed, effect, hosting, never, silent


def guarded(*, enabled: bool = True) -> Hosting:
    peer = hosting(replace(RUN, guard=GuardRules(enabled=enabled)))
    peer.start([ONE])
    return peer


def trained(peer: Hosting, round: int, *, factor: float = 1.0) -> Digest:
    """One round; the state after it."""
    peer.run_inner(effect(round=round), should_stop=never, on_progress=silent)
    assert peer.apply_outer(ONE, peer.pseudo_gradient(ONE) * factor, round=round)
    return peer.digests(ONE)[1]


def test_the_step_is_measured_before_and_after_on_the_rows_that_it_draws() -> None:
    peer = guarded()
    start = peer.state(ONE)[0]
    state = trained(peer, 0, factor=-20.0)
    before, after = peer.measure_step(ONE, state)
    assert after > before + 0.02
    rows = SyntheticFeed().drawn(state, GUARD_ROWS)
    assert [before, after] == [
        pytest.approx(heldout_loss(peer._shell, outer, rows, micro_batch=4), rel=1e-5) for outer in (start, peer.state(ONE)[0])
    ]


def test_an_instance_goes_back_by_one_or_two_steps_and_no_further() -> None:
    peer = guarded()
    states = [peer.digests(ONE)[1], *(trained(peer, number) for number in range(3))]
    assert len({*states}) == 4
    assert not peer.rewind(ONE, states[0]), "three steps"
    assert peer.digests(ONE)[1] == states[3]
    assert peer.rewind(ONE, states[1])
    assert peer.digests(ONE)[1] == states[1] and not bool(peer.pseudo_gradient(ONE).any())
    _, meta = peer.snapshot(ONE)
    assert meta["optimizer_steps"] == 0 and meta["adoption_steps"] == 0
    assert peer.rewind(ONE, states[1]), "it is there already"
    trained(peer, 3)
    assert peer.rewind(ONE, states[1])


def test_a_run_without_the_guard_keeps_no_states() -> None:
    peer = guarded(enabled=False)
    start = peer.digests(ONE)[1]
    trained(peer, 0)
    assert not peer.rewind(ONE, start)
