"""`python -m benchmarks.islands`: the clock by hand and by counting, and instances that get their mean and go on apart."""

from collections import Counter

import pytest
import torch

from adloco_p2p.config.load import load_run
from adloco_p2p.core.model.plan import RoundPlan
from adloco_p2p.core.model.scalars import InstanceId
from adloco_p2p.data.feed import open_feed
from benchmarks.islands import KEPT, PLANNED, SECONDS, SIZES, Arm, arms
from benchmarks.method.clock import Islands, Link, Machine, Profile
from benchmarks.method.device import Setting
from benchmarks.method.run import BASE, CACHE, run_row
from benchmarks.method.store import read_records
from benchmarks.method.world import World

FAST = Link(bits_per_second=80_000.0, latency_seconds=0.0, efficiency=1.0)
SLOW = Link(bits_per_second=8_000.0, latency_seconds=1.0, efficiency=0.5)
PROFILE = Profile(
    name="by hand",
    machine=Machine(step_seconds=1.0, sample_seconds=0.0),
    link=FAST,
    payload_bytes=2000.0,
    state_bytes=3000.0,
    islands=Islands(hosts=2, uplink=SLOW),
)


@pytest.mark.parametrize("places", [[0, 1], [0, 1, 2, 3], [0, 2], [0, 1, 2], [1, 2, 3, 4, 5]])
def test_bytes_between_islands_against_counting_every_transfer(places: list[int]) -> None:
    islands = Islands(hosts=2, uplink=SLOW)
    sent: Counter[int] = Counter()
    for reducer in places:
        for other in places:
            if islands.island_of(reducer) != islands.island_of(other):
                sent[islands.island_of(other)] += 1  # its contribution to this part
                sent[islands.island_of(reducer)] += 1  # and the reduced part
    expected = max(sent.values(), default=0) * 600.0 / len(places)
    assert islands.crossing(600.0, places) == pytest.approx(expected)


def test_an_average_lasts_as_long_as_its_slowest_transfer() -> None:
    assert PROFILE.averaging(2000.0, [0, 1]) == pytest.approx(0.2)  # 2,000 B at 10,000 B/s
    assert PROFILE.averaging(2000.0, range(4)) == pytest.approx(11.0)  # 4,000 B at 500 B/s, and three delays
    inside = Islands(hosts=2, uplink=SLOW, sums_inside=True)
    assert inside.crossing(2000.0, range(4)) == pytest.approx(2000.0)
    assert inside.crossing(2000.0, [2, 3]) == 0.0


def test_an_arm_has_the_steps_that_fit_its_time() -> None:
    """By hand: 5 s a step, 153.15 s an average over four hosts, 450 s a state."""
    together, apart = Arm(name="a", hosts=2, clock="int8", inner_steps=64), Arm(name="b", hosts=2, clock="int8", instances=2)
    assert together.steps == 11 * 64 + int((SECONDS - 11 * 473.15 - 153.15) // 5)
    assert apart.steps == 55 * 16 + int((SECONDS - 900.05 - 55 * 81.533 - 1.533) // 5)
    assert together.samples == together.steps * 8


def test_a_run_on_islands_takes_the_time_that_its_transfers_take() -> None:
    """Two rounds of two steps, a mutual merge, one round, and the merge at the end."""
    arm = Arm(name="tiny", hosts=2, clock="int8", inner_steps=2, instances=2, merged_every=2)
    record = run_row(arm.row, 1, samples=6 * 8)
    rounds, merges = 3 * (2 * 5.0 + 1.533), 2 * (2 * 450.0 + 0.05)
    assert record["seconds"] == pytest.approx(rounds + merges, abs=0.01)
    assert record["rounds"] == 3
    assert len(record["merges"]) == 3  # into each of the two, and at the end


def test_mutual_merges_give_every_instance_the_mean() -> None:
    settings = ["instances.count=2", "instances.start=different", "merge.policy=none", "merge.guard=false", "work.rounds=3"]
    settings += ["work.samples=null", "work.inner_steps=1", "inner.learning_rate=1e-12", "batch.test=constant"]
    settings += ["batch.initial_batch=2"]
    run = load_run(BASE, settings).value
    outers: dict[tuple[int, InstanceId], torch.Tensor] = {}

    def applied(world: World, plan: RoundPlan, instance: InstanceId, outer: torch.Tensor) -> None:
        outers[plan.round, instance] = outer.clone()

    torch.set_num_threads(1)
    setting = Setting(run=run, speeds=(1.0,) * 4, profile=PROFILE, max_instances=1, merged_every=2)
    World(setting, open_feed(run, cache_dir=CACHE), on_applied=applied).run()
    first, second = (outers[1, InstanceId(instance)] for instance in (0, 1))
    assert not torch.allclose(first, second, atol=1e-3)
    for instance in (0, 1):
        assert torch.allclose(outers[2, InstanceId(instance)], (first + second) / 2, atol=1e-6)


def test_the_rows_of_the_three_questions_are_rows() -> None:
    assert {(arm.hosts, arm.name) for hosts in SIZES for arm in arms(hosts)} >= PLANNED


def test_the_kept_runs_lasted_no_longer_than_the_others() -> None:
    names = {arm.row.name: arm for hosts in SIZES for arm in arms(hosts)}
    records = read_records(KEPT)
    assert records
    for record in records:
        arm = names[record["row"]]
        assert record["seconds"] <= SECONDS + 30 * arm.has_overlap  # whose last round waits for the average of the one before
        assert record["inner_steps"] == arm.steps
