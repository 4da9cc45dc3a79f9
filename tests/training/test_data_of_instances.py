"""A peer whose instances have data of their own: what it trains on, and what it measures."""

from dataclasses import replace
from pathlib import Path

import pytest

from adloco_p2p.core.model.lineage import Merge
from adloco_p2p.core.model.rules import GuardRules
from adloco_p2p.data.feed import open_feed
from adloco_p2p.training.evaluate import heldout_loss
from adloco_p2p.training.hosting import GUARD_ROWS, Hosting
from tests.data.files import run_over, write_json
from tests.training.small_run import ME, ONE, PEER, RUN, TWO, effect, never, silent


@pytest.fixture
def peer(tmp_path: Path) -> Hosting:
    """Instance 0 has rows of letters, instance 1 rows of digits, which count a quarter."""
    write_json(tmp_path / "a-letters.json", [f"{'abcde'[n % 5]}{'fghij'[n % 3]} " * 12 for n in range(80)])
    write_json(tmp_path / "b-digits.json", [f"{n % 7}{n % 4} " * 12 for n in range(80)])
    letters, digits = str(tmp_path / "a-letters.json"), str(tmp_path / "b-digits.json")
    data = run_over(source="json", mixture={letters: 3.0, digits: 1.0}).data
    instances = replace(RUN.instances, count=2, start="same", data=(letters, digits))
    run = replace(RUN, data=data, instances=instances, guard=GuardRules(enabled=True))
    made = Hosting(run, PEER, ME, open_feed(run, cache_dir=None))
    made.start([ONE, TWO])
    return made


def train(peer: Hosting) -> None:
    for instance in (ONE, TWO):
        work = effect(instance, steps=20)
        work = replace(work, plan=replace(work.plan, reads=(instance,)))
        peer.run_inner(work, should_stop=never, on_progress=silent)
        assert peer.apply_outer(instance, peer.pseudo_gradient(instance), round=0)


def test_each_instance_learns_its_own_data_and_is_evaluated_on_both(peer: Hosting) -> None:
    assert peer.evaluate(ONE) == peer.evaluate(TWO)
    untrained = peer.heldout_losses(ONE)
    train(peer)
    means = [peer.evaluate(instance) for instance in (ONE, TWO)]
    of_one, of_two = peer.heldout_losses(ONE), peer.heldout_losses(TWO)
    assert of_one[0] < min(untrained[0], of_two[0]) - 0.3 and of_two[1] < min(untrained[1], of_one[1]) - 0.3
    assert means == pytest.approx([0.75 * losses[0] + 0.25 * losses[1] for losses in (of_one, of_two)])
    verdict = peer.probe_merge(Merge(sources=(ONE, TWO), target=ONE, weights=(0.5, 0.5), reason="test"))
    assert verdict.source_losses == pytest.approx(means), "a merge is judged on the whole mixture"


def test_the_guard_measures_a_step_on_the_data_that_the_instance_trains_on(peer: Hosting) -> None:
    """On the mixture an instance may lose where it is not trained, and would be sent back for it."""
    start = peer.state(TWO)[0]
    train(peer)
    state = peer.digests(TWO)[1]
    before, after = peer.measure_step(TWO, state, reads=(TWO,))
    own = peer._feed.drawn(state, GUARD_ROWS, reads=(TWO,))
    losses = [heldout_loss(peer._shell, outer, own, micro_batch=8) for outer in (start, peer.state(TWO)[0])]
    assert [before, after] == pytest.approx(losses, rel=1e-5) and after < before - 0.3
