"""Faults that were mended in this project's history are caught when they are planted again in whole peers.

Each is named with the first of the everyday seeds that catches it; `adloco-peer simulate --everyday --seeds N` plays that seed.
"""

import pytest

from adloco_p2p.sim.simulate import everyday_seed
from tests.sim.planted import BUGS

ENOUGH_SEEDS = 150


@pytest.mark.parametrize("bug", sorted(BUGS))
def test_a_planted_bug_is_caught(bug: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plant, seed = BUGS[bug]
    assert seed < ENOUGH_SEEDS
    plant(monkeypatch)
    result = everyday_seed(seed)
    print(f"{bug}: seed {seed}: {result.violation}")
    assert result.violation is not None, f"{bug}: seed {seed} does not catch it any more"
    monkeypatch.undo()
    assert everyday_seed(seed).violation is None
