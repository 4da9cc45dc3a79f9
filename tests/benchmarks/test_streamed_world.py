"""Streamed fragments in the simulated world, with devices that train."""

from dataclasses import replace

import pytest
import torch

from adloco_p2p.config.load import load_run
from adloco_p2p.core.agreement.membership import Timing
from adloco_p2p.core.model.plan import RoundPlan
from adloco_p2p.core.model.scalars import InstanceId
from adloco_p2p.data.feed import open_feed
from adloco_p2p.sim.faults import Faults
from benchmarks.method.clock import Link, Machine, Profile
from benchmarks.method.device import Setting
from benchmarks.method.run import BASE, CACHE
from benchmarks.method.world import CALM, PATIENT, World

ROUNDS, STEPS = 9, 4
FAST = Profile(
    name="a step a second, and two for a third of the vector",
    machine=Machine(step_seconds=1.0, sample_seconds=0.0),
    link=Link(bits_per_second=8e4, latency_seconds=0.0, efficiency=1.0),
    payload_bytes=40_000.0,
    state_bytes=10_000.0,
)


def world(*settings: str, peers: int = 3, faults: Faults = CALM, timing: Timing = PATIENT) -> tuple[World, dict[int, int]]:
    """With how many hosts' outer steps of each round were seen."""
    common = ("mode=diloco", f"work.rounds={ROUNDS}", f"work.inner_steps={STEPS}", f"batch.initial_batch={2 * peers}")
    run = load_run(BASE, [*common, "averaging.fragments=3", *settings]).value
    setting = Setting(run=run, speeds=(1.0,) * peers, profile=FAST)
    ended: dict[int, int] = {}

    def applied(made: World, plan: RoundPlan, instance: InstanceId, outer: torch.Tensor) -> None:
        del made, instance
        assert bool(outer.isfinite().all())
        ended[plan.round] = ended.get(plan.round, 0) + 1

    torch.set_num_threads(1)
    return World(setting, open_feed(run, cache_dir=CACHE), on_applied=applied, faults=faults, timing=timing), ended


STREAMED = ("outer.overlap=streaming", "outer.delay_steps=1")


def test_averaging_hides_behind_the_inner_steps() -> None:
    """Of a third of the vector: 2 * 2/3 * 13,333 B at 10,000 B/s, so 1.78 s beside rounds of 4 s; only the last one is seen."""
    made, ended = world(*STREAMED)
    made.run()
    assert made.seconds == pytest.approx(ROUNDS * STEPS + 1.78, abs=0.01)
    assert set(ended) == set(range(ROUNDS + 1))
    assert made.bytes_per_peer == pytest.approx(ROUNDS * 4 * 20864 / 3 * 4 / 3, rel=1e-3), "no round sends the whole"
    in_turn, _ = world()
    in_turn.run()
    assert in_turn.seconds == pytest.approx(ROUNDS * STEPS + (ROUNDS - 1) * 1.78 + 5.33, abs=0.02)


@pytest.mark.parametrize("seed", range(3))
def test_crashes_a_joiner_and_a_leaver_leave_one_state_everywhere(seed: int) -> None:
    """The world's checkers compare every average and every state."""
    faults = replace(CALM, delay_seconds=(0.02, 0.1), crashes=2, joins=1, leaves=1, faults_end_at=30.0)
    made, ended = world(f"seed={seed}", *STREAMED, peers=4, faults=faults, timing=Timing())
    made.run()
    assert set(ended) == set(range(ROUNDS + 1))
