"""`python -m benchmarks.finetune` on a model of seconds: its cells, its records and the figure that it is about."""

import argparse
from pathlib import Path

import pytest

from adloco_p2p.config.load import load_run
from adloco_p2p.core.model.scalars import InstanceId
from adloco_p2p.core.model.words import listed
from adloco_p2p.training.learning_rate import learning_rate_schedule
from benchmarks import finetune
from benchmarks.finetune import beside, best, gains, train_cells
from benchmarks.method.store import read_records
from tests.e2e.tiny_chat import write_adapter_config


def record(row: str, seed: int, rate: float, before: float, after: float, *settings: str) -> dict[str, object]:
    return {"row": row, "seed": seed, "rate": rate, "before": before, "after": after, "set": list(settings)}


def test_the_gain_compares_both_at_their_best_rate_of_the_same_seed() -> None:
    records = [
        record("one", 1, 1e-3, 3.0, 2.0),
        record("one", 1, 2e-3, 3.0, 2.2),
        record("all", 1, 1e-3, 3.0, 2.5),
        record("all", 1, 2e-3, 3.0, 2.1),
        record("all", 2, 2e-3, 9.0, 1.0),
        record("all", 1, 1e-3, 3.0, 1.0, "work.rounds=24"),
    ]
    assert best(records, "one")[1]["rate"] == 1e-3
    found = gains(records, "all")
    assert found is not None and found[0].mean == pytest.approx(0.9) and found[0].half_width is None
    assert found[1].mean == pytest.approx(0.1)
    assert gains(records, "small") is None


def test_a_row_with_further_settings_is_compared_with_itself_without_them() -> None:
    records = [
        record("all", 1, 1e-3, 3.0, 2.5),
        record("all", 1, 2e-3, 3.0, 2.0),
        record("all", 2, 1e-3, 3.0, 1.0),
        record("all", 1, 4e-3, 3.0, 2.25, "model.lora.rank=4"),
        record("small", 1, 4e-3, 3.0, 1.0, "model.lora.rank=4"),
    ]
    found = beside(records, "all", ["model.lora.rank=4"])
    assert found is not None and found.mean == pytest.approx(0.25) and found.half_width is None
    assert beside(records, "small", ["model.lora.rank=4"]) is None


def test_records_with_further_settings_are_compared_with_each_other() -> None:
    """A longer run is another experiment, and has a gain of its own."""
    longer = "work.rounds=24"
    records = [
        record("one", 1, 1e-3, 3.0, 2.0),
        record("one", 1, 1e-3, 3.0, 1.5, longer),
        record("all", 1, 1e-3, 3.0, 1.8, longer),
    ]
    assert gains(records, "all") is None
    found = gains(records, "all", [longer])
    assert found is not None and [each.mean for each in found] == pytest.approx([0.8, 0.3])


def test_the_page_has_the_gain_at_one_rate_for_all() -> None:
    drops: dict[str, dict[int, float]] = {"one": {}, "all": {}}
    for found in read_records(finetune.KEPT):
        if found["row"] in drops and found["rate"] == 2e-3 and not found["set"]:
            drops[found["row"]][found["seed"]] = found["before"] - found["after"]
    kept = [f"{100 * drops['all'][seed] / drops['one'][seed]:.1f}" for seed in (1, 2, 3)]
    page = " ".join((finetune.KEPT.parents[1] / "finetune.md").read_text().split())
    assert f"at 2e-3 for all it is {kept[0]}, {kept[1]} and {kept[2]} %" in page


def test_the_page_has_the_gain_with_one_bit_a_value() -> None:
    records = list(read_records(finetune.KEPT))
    single, signs = best(records, "one"), best(records, "sign")
    drops = [[of[seed]["before"] - of[seed]["after"] for seed in (1, 2, 3)] for of in (signs, single)]
    kept = [100 * own / all_ for own, all_ in zip(*drops, strict=True)]
    found = gains(records, "sign")
    page = " ".join((finetune.KEPT.parents[1] / "finetune.md").read_text().split())
    assert found is not None and found[0].half_width is not None
    assert f"`averaging.preset=sign` keeps {100 * found[0].mean:.1f} % +- {100 * found[0].half_width:.1f} %**" in page
    assert "{:.1f}, {:.1f} and {:.1f} % of the gain".format(*kept) in page


def test_the_page_has_the_longer_runs() -> None:
    records, longer = list(read_records(finetune.KEPT)), ["work.rounds=24"]
    single, hosts = best(records, "one", longer), best(records, "all", longer)
    assert {single[1]["rate"], *(single[seed]["rate"] for seed in hosts)} == {2e-3} and hosts[1]["rate"] == 4e-3
    above = [hosts[seed]["after"] - single[seed]["after"] for seed in sorted(hosts)]
    found = gains(records, "all", longer)
    page = " ".join((finetune.KEPT.parents[1] / "finetune.md").read_text().split())
    assert found is not None and f"Four hosts then end {found[1].shown(3)} nats above one process**" in page
    assert f"seeds: {listed([f'{nats:.3f}' for nats in above])})" in page and max(above) <= 0.03
    gain = f"{100 * found[0].mean:.1f} % +- {100 * (found[0].half_width or 0.0):.1f} %"
    assert f"{gain} on average" in page and f"| {gain} | `finetune` |" in (finetune.KEPT.parents[1] / "results.md").read_text()


ADAPTERS: dict[str, list[str]] = {
    "all linear layers | alpha / rank": [],
    "all linear layers | alpha / sqrt(rank)": ["model.lora.rank_stabilised=true"],
    "queries, keys, values and outputs | alpha / rank": ["model.lora.targets=[q_proj,k_proj,v_proj,o_proj]"],
    "queries and values | alpha / rank": ["model.lora.targets=[q_proj,v_proj]"],
}


def test_the_page_has_the_price_of_other_adapters() -> None:
    records, page = list(read_records(finetune.KEPT)), (finetune.KEPT.parents[1] / "finetune.md").read_text()
    for name, settings in ADAPTERS.items():
        found, above = best(records, "all", settings), beside(records, "all", settings)
        assert above is not None
        losses = " | ".join(f"{found[seed]['after']:.4f}" for seed in (1, 2, 3))
        end = above.shown(3) if settings else ""
        assert f"| {name} | {found[1]['num_bytes'] / 1e6:.2f} | {losses} | {end}".rstrip() in page


@pytest.fixture
def config(tmp_path: Path) -> Path:
    work = {"inner_steps": 4, "rounds": 2}
    return write_adapter_config(tmp_path, "yes yes yes", inner={"warmup_steps": 2}, work=work, evaluation={"rows": 4})


def test_cells_are_trained_once_and_repeat_themselves(
    config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(finetune, "KEPT", tmp_path / "none.jsonl.gz")
    arguments = argparse.Namespace(
        config=config, rows=["one", "all"], rates=["1e-2"], seeds=[1], hosts=2, set=[], output=tmp_path / "a.jsonl"
    )
    train_cells(arguments)
    train_cells(arguments)  # nothing is left to do
    arguments.output = tmp_path / "b.jsonl"
    train_cells(arguments)
    first, again = read_records(tmp_path / "a.jsonl"), read_records(tmp_path / "b.jsonl")
    assert [found["row"] for found in first] == ["one", "all"] and first[0]["hosts"] == 1
    assert [found["after"] for found in first] == [found["after"] for found in again]
    assert first[0]["before"] == first[1]["before"] > first[0]["after"] and first[1]["before"] > first[1]["after"]
    assert first[0]["after"] != first[1]["after"] and first[0]["num_bytes"] > 3 * first[1]["num_bytes"]


def test_hosts_have_the_learning_rate_of_the_one_process_at_each_step(config: Path) -> None:
    """Also where the warm-up counts samples: those of all hosts, from the beginning of the run."""
    run = load_run(config, ["inner.warmup_steps=null", "inner.warmup_samples=20", "inner.schedule=constant"]).value
    rates = {}
    for num_hosts in (1, 4):
        for host in range(num_hosts):
            works = [finetune.round_of(run, InstanceId(host), number, num_hosts) for number in (0, 1)]
            made = [learning_rate_schedule(work, inner=run.inner, initial_batch=run.batch.initial_batch) for work in works]
            rates[num_hosts, host] = [schedule.learning_rate(step, None) for schedule in made for step in range(4)]
            assert [work.share.first_sample for work in works] == [host * 16 // num_hosts, 16 + host * 16 // num_hosts]
    whole = run.inner.learning_rate
    for found in rates.values():
        assert found == pytest.approx([whole * part for part in (0.2, 0.4, 0.6, 0.8, 1.0, 1.0, 1.0, 1.0)])
