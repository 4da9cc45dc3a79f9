"""The pure parts of `python -m benchmarks.method`, and a run of seconds that must repeat itself."""

import argparse
import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from statistics import mean

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from adloco_p2p.config.load import load_run
from adloco_p2p.core.agreement.membership import Timing
from adloco_p2p.core.model.plan import RoundPlan
from adloco_p2p.core.model.rules import BatchRules, Rules, WorkRules
from adloco_p2p.core.model.scalars import Digest, InstanceId
from adloco_p2p.data.feed import open_feed
from adloco_p2p.numerics.digest import state_digest
from adloco_p2p.sim.faults import Faults
from benchmarks.method import __main__ as command
from benchmarks.method.clock import Link, Machine, Profile, round_seconds, transferred
from benchmarks.method.device import Setting
from benchmarks.method.figures import (
    SAMPLES,
    SECONDS,
    STEPS,
    at_loss,
    at_samples,
    estimate,
    front,
    paired,
    shown,
    student,
    timed,
)
from benchmarks.method.report import placed
from benchmarks.method.rows import GROUPS, Row
from benchmarks.method.run import BASE, CACHE, run_row, settings_of
from benchmarks.method.steps import grown_inner_steps
from benchmarks.method.store import append_record, key_of, pack, read_records
from benchmarks.method.world import World
from tests.training.virtual_gpu import virtual_gpus

RULES = Rules(work=WorkRules(inner_steps=8), batch=BatchRules(initial_batch=4))


def test_inner_steps_follow_the_batch() -> None:
    assert grown_inner_steps(4.0, RULES, exponent=1.0, most=100) == 8
    assert grown_inner_steps(8.0, RULES, exponent=1.0, most=100) == 16
    assert grown_inner_steps(8.0, RULES, exponent=2.0, most=100) == 32
    assert grown_inner_steps(8.0, RULES, exponent=2.0, most=20) == 20
    assert grown_inner_steps(8.0, RULES, exponent=0.0, most=100) == 8


@pytest.mark.parametrize("group", sorted(GROUPS))
def test_every_row_is_a_run(group: str) -> None:
    for row in GROUPS[group]():
        run = load_run(BASE, settings_of(row, 1, samples=8192)).value
        assert run.work.samples == 8192 or run.work.rounds is not None, row.name


# --- time ------------------------------------------------------------------------------------------------------------

PROFILE = Profile(
    name="by hand",
    machine=Machine(step_seconds=1.0, sample_seconds=0.5),
    link=Link(bits_per_second=8000.0, latency_seconds=1.0, efficiency=0.5),
    payload_bytes=2000.0,
    state_bytes=4000.0,
)


def test_the_clock_by_hand() -> None:
    assert transferred(2000.0, 4) == 3000.0
    assert PROFILE.link.averaging(2000.0, 4) == pytest.approx(9.0)  # 3000 B at 500 B/s, and three delays
    assert PROFILE.link.averaging(2000.0, 1) == 0.0
    assert round_seconds([(2, 10, 4)], PROFILE) == pytest.approx(29.0)  # ten steps of 2 s
    assert round_seconds([(2, 10, 4), (2, 10, 4)], PROFILE) == pytest.approx(40.0)  # the device is the busier
    assert round_seconds([(2, 1, 4), (2, 1, 4)], PROFILE) == pytest.approx(18.0)  # the link is


def test_another_clock_replaces_the_seconds_only() -> None:
    record = {
        "samples": 160,
        "rounds": 2,
        "inner_steps": 20,
        "bytes_per_peer": 6000,
        "seconds": 1.0,
        "loss": 2.0,
        "curve": [[80, 1, 10, 3000, 0.5, 3.0], [160, 2, 20, 6000, 1.0, 2.1]],
        "log": [[[8, 2, 10, 4]], [[8, 2, 10, 4]]],
    }
    curve = timed(record, PROFILE)
    assert [point[SECONDS] for point in curve] == pytest.approx([29.0, 58.0])
    assert [point[STEPS] for point in curve] == [10, 20]
    assert curve[-1][-1] == 2.0  # the model that the run gave


# --- figures ---------------------------------------------------------------------------------------------------------


def test_confidence_by_hand() -> None:
    found = estimate([1.0, 2.0, 3.0])
    assert found.mean == 2.0
    assert found.half_width == pytest.approx(4.3027 / 3**0.5, abs=1e-4)
    assert found.shown(2) == "2.00 +- 2.48"
    assert estimate([1.5]).shown(1) == "1.5"


@pytest.mark.parametrize(
    ("degrees", "comparisons", "quantile"),
    [(1, 1, 12.7062), (2, 1, 4.3027), (3, 1, 3.1824), (4, 1, 2.7764), (9, 1, 2.2622), (1, 5, 63.6567), (2, 10, 14.0890)],
)
def test_quantiles_of_student_are_those_of_the_printed_tables(degrees: int, comparisons: int, quantile: float) -> None:
    """Of 95 %, of 99 % and of 99.5 %, two-sided."""
    assert student(degrees, comparisons) == pytest.approx(quantile, abs=1e-3)


def test_an_interval_for_several_comparisons_is_wider_about_the_same_difference() -> None:
    """Differences 1 to 5: standard error of the mean 0.7071, times 2.776 for one interval and 5.885 for twelve at once."""
    ours, theirs = {seed: float(seed) for seed in range(1, 6)}, dict.fromkeys(range(1, 6), 0.0)
    assert shown(ours, theirs) == "3.000 +- 1.963"
    assert shown(ours, theirs, 12) == "3.000 +- 4.162"
    assert shown({1: 1.5}, theirs, 12) == "1.500"
    assert shown({7: 1.5}, theirs) == ""


def test_paired_differences_forget_what_a_seed_adds_to_both() -> None:
    found = paired({1: 1.0, 2: 5.0, 3: 9.0}, {2: 4.0, 1: 0.0, 7: 3.0})
    assert found is not None
    assert (found.mean, found.half_width) == (1.0, 0.0)
    assert paired({1: 1.0}, {2: 1.0}) is None


CURVE = [[10, 1, 5, 100, 1.0, 3.0], [20, 2, 10, 200, 2.0, 2.0], [30, 3, 15, 300, 3.0, 2.5], [40, 4, 20, 400, 4.0, 1.5]]


def test_the_cost_of_a_loss_is_that_of_its_first_crossing() -> None:
    assert at_loss(CURVE, 2.5, SAMPLES) == 15
    assert at_loss(CURVE, 2.5, STEPS) == 7.5
    assert at_loss(CURVE, 3.5, SAMPLES) == 10
    assert at_loss(CURVE, 1.0, SAMPLES) is None
    assert [at_samples(CURVE, n) for n in (5, 10, 15, 35, 50)] == [3.0, 3.0, 2.5, 2.0, 1.5]


@settings(max_examples=50)
@given(st.dictionaries(st.text(min_size=1, max_size=2), st.tuples(st.integers(0, 5), st.integers(0, 5)), max_size=12))
def test_the_front_against_its_definition(points: dict[str, tuple[int, int]]) -> None:
    found = front({name: (float(x), float(y)) for name, (x, y) in points.items()})
    beaten = {
        name for name, (x, y) in points.items() if any(a <= x and b <= y and (a, b) != (x, y) for a, b in points.values())
    }
    assert {points[name] for name in found} == {points[name] for name in points.keys() - beaten}
    assert len({points[name] for name in found}) == len(found)
    assert [points[name][0] for name in found] == sorted(points[name][0] for name in found)


# --- records ---------------------------------------------------------------------------------------------------------


def test_records_survive_a_torn_line(tmp_path: Path) -> None:
    path = tmp_path / "runs.jsonl"
    assert read_records(path) == []
    append_record(path, {"key": "a", "loss": 1.5})
    append_record(path, {"key": "b"})
    with path.open("a") as file:
        file.write('{"key": "c", "lo')
    assert [record["key"] for record in read_records(path)] == ["a", "b"]
    pack(read_records(path), tmp_path / "runs.jsonl.gz")
    assert read_records(tmp_path / "runs.jsonl.gz") == read_records(path)


def test_a_key_names_what_the_result_depends_on() -> None:
    row = Row(name="one", settings=("work.inner_steps=4",))
    key = key_of(row, 1, samples=8, base="x")
    assert key_of(replace(row, name="two"), 1, samples=8, base="x") == key
    others = [
        key_of(replace(row, settings=()), 1, samples=8, base="x"),
        key_of(replace(row, speeds=(1.0,)), 1, samples=8, base="x"),
        key_of(replace(row, length=2), 1, samples=8, base="x"),
        key_of(row, 2, samples=8, base="x"),
        key_of(row, 1, samples=9, base="x"),
        key_of(row, 1, samples=8, base="y"),
    ]
    assert len({key, *others}) == 7


def test_tables_go_between_their_marks() -> None:
    text = "a\n<!-- one -->\nold\n<!-- end -->\nb\n<!-- two -->\n<!-- end -->\n"
    assert placed(text, "one", ["new"]) == "a\n<!-- one -->\n\nnew\n\n<!-- end -->\nb\n<!-- two -->\n<!-- end -->\n"
    assert placed(placed(text, "one", ["new"]), "one", ["new"]) == placed(text, "one", ["new"])
    with pytest.raises(ValueError, match="three"):
        placed(text, "three", [])


# --- a run -----------------------------------------------------------------------------------------------------------


def test_a_run_repeats_itself_and_spends_its_samples() -> None:
    """Two peers, a fork and a merge on the embedded text: the product's rooms under the simulated network. The second run has
    half the samples, twice."""
    wanted = (
        "work.inner_steps=4",
        "instances.count=2",
        "instances.fork_round=1",
        "merge.period_rounds=1",
        "merge.first_round=2",
        "merge.guard=false",
        "batch.level=inner",
        "batch.initial_batch=4",
        "batch.max_batch=8",
    )
    row = Row(name="tiny", settings=wanted, speeds=(1.0, 1.0))
    first, second = run_row(row, 3, samples=160), run_row(replace(row, length=2), 3, samples=80)
    for record in (first, second):
        del record["processor_seconds"]
    assert first == second
    assert len(first["merges"]) == 1
    assert [len(line) for line in first["log"]][:3] == [1, 2, 1]
    spent = sum(batch * steps * hosts for line in first["log"] for _, batch, steps, hosts in line)
    assert 160 - 8 < spent <= 160
    assert first["loss"] < mean(point[-1] for point in first["curve"][:1])


def test_a_run_on_a_gpu_is_the_same_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a virtual one, whose sums are the processor's."""
    wanted = ("work.inner_steps=2", "batch.level=inner", "batch.initial_batch=4", "batch.max_batch=8", "inner.kind=muon")
    row = Row(name="tiny", settings=wanted, speeds=(1.0, 1.0), micro_batch_limit=2)
    records = [run_row(row, 3, samples=24, points=1)]
    with virtual_gpus(monkeypatch) as seen:
        records.append(run_row(row, 3, samples=24, points=1, device="cuda"))
    assert seen["copies to a device"] > 0
    for record in records:
        del record["processor_seconds"]
    assert records[0] == records[1]


def test_again_trains_kept_rows_once_and_goes_on_after_an_interruption(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [Row(name="kept", settings=("seed=1",)), Row(name="new", settings=("seed=2",))]
    kept, output, trained = tmp_path / "kept.jsonl.gz", tmp_path / "method.jsonl", []
    pack([{"key": key_of(rows[0], 1, samples=8, base=BASE.read_text("utf-8"))}], kept)

    def made(row: Row, seed: int, *, samples: int) -> dict[str, float]:
        trained.append(row.name)
        if trained == ["kept", "new"]:
            raise KeyboardInterrupt
        return {"loss": 2.0, "rounds": 3, "inner_steps": 4}

    monkeypatch.setattr(command, "KEPT", kept)
    monkeypatch.setattr(command, "GROUPS", {"main": lambda: rows, "tuning": list})
    monkeypatch.setattr(command, "run_row", made)
    arguments = argparse.Namespace(output=output, again=True, group=["main"], rows=None, seeds=[1], samples=8)
    with pytest.raises(KeyboardInterrupt):
        command.train(arguments)
    for _ in range(2):
        command.train(arguments)
    assert trained == ["kept", "new", "new"] and len(read_records(output)) == 2


def test_hosts_that_crash_go_on_from_their_checkpoints() -> None:
    """Tensors in a world with faults: a host dies at a persistence point and comes back, another one joins, messages get lost.
    The world checks that all end with one state, and every outer step that the hosts agree."""
    wanted = ["instances.count=1", "work.inner_steps=2", "work.samples=null", "work.rounds=8", "batch.test=constant"]
    run = load_run(BASE, [*wanted, "batch.initial_batch=8", "admission.kind=open"]).value
    steps: dict[int, torch.Tensor] = {}

    def applied(world: World, plan: RoundPlan, instance: InstanceId, outer: torch.Tensor) -> None:
        steps[plan.round] = outer

    torch.set_num_threads(1)
    faults = Faults(crashes=2, joins=1, loss=0.05, faults_end_at=60.0)
    setting = Setting(run=run, speeds=(1.0,) * 3, profile=PROFILE)
    world = World(setting, open_feed(run, cache_dir=CACHE), on_applied=applied, faults=faults, timing=Timing())
    world.run()
    machines = world.swarm.machines.values()
    assert len(machines) == 4 and max(machine.life for machine in machines) > 1
    assert max(steps) == 8 and not torch.equal(steps[7], steps[6])


def test_a_simulated_peer_alone_does_what_the_product_does(tmp_path: Path) -> None:
    """`adloco-peer start --offline` and the world end every round with the same bytes: growing batch, warm-up, cosine over
    samples, a last round that is cut to what is left."""
    wanted = ["instances.count=1", "batch.level=inner", "batch.statistic=micro_batch", "batch.eta=0.3", "batch.growth_cap=2"]
    wanted += ["work.inner_steps=4", "work.samples=203", "seed=5"]
    command = [sys.executable, "-m", "adloco_p2p", "start", str(BASE), "--offline", "--plain", "--workdir", str(tmp_path)]
    subprocess.run(
        [*command, "--set", *wanted, "--peer-set", "num_threads=1", "max_micro_batch=64"],
        check=True,
        capture_output=True,
    )
    lines = [json.loads(line) for line in (tmp_path / "events.jsonl").read_text().splitlines()]
    rounds = [line for line in lines if line["event"] == "round"]
    run = load_run(BASE, wanted).value
    feed = open_feed(run, cache_dir=None)
    digests: dict[int, Digest] = {}

    def applied(world: World, plan: RoundPlan, instance: InstanceId, outer: torch.Tensor) -> None:
        digests[plan.round] = state_digest(outer, torch.zeros(0))

    assert 203 - rounds[-1]["effective_batch"] < sum(line["samples"] for line in rounds) <= 203
    assert rounds[-1]["effective_batch"] > rounds[0]["effective_batch"]
    torch.set_num_threads(1)
    World(Setting(run=run, speeds=(1.0,), profile=PROFILE, micro_batch_limit=64), feed, on_applied=applied).run()
    assert [digests[line["round"]] for line in rounds] == [line["digest"] for line in rounds]
