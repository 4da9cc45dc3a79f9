"""`python -m benchmarks.seed_scalar`: one round by hand, its replay, and cells on a model of seconds."""

import argparse
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from benchmarks import seed_scalar
from benchmarks.method.store import RESULTS, read_records
from benchmarks.seed_scalar import SCALAR, Cost, Space, pays_below_kbit, probed, replay_, signs, times_passes, train_cells
from tests.e2e.tiny_chat import write_adapter_config


def test_signs_come_from_a_generator_in_whole_numbers() -> None:
    """These are of PCG64, which numpy promises not to change."""
    assert signs(2, 10).tolist() == [1, 1, -1, -1, -1, -1, -1, 1, -1, 1]
    assert signs(0, 3).tolist() == [-1, 1, -1]
    many = signs(2, 100_001)
    assert torch.equal(many[:10], signs(2, 10)) and many.abs().unique().tolist() == [1] and many.mean().abs() < 0.02


def test_a_round_on_a_quadratic_by_hand() -> None:
    """L = a^2 + 2 b^2 has the gradient (2, 4) at (1, 1). Along (1, 1), of seed 2, that is 6, along (-1, 1), of seed 0, 2; so
    the step is 0.1 / 2 * (6 (1, 1) + 2 (-1, 1)) = (0.2, 0.4)."""

    def loss(theta: torch.Tensor) -> float:
        a, b = theta.double().tolist()
        return float(a**2 + 2 * b**2)

    after, published = probed(torch.ones(2), [loss, loss], [2, 0], eps=0.5, rate=0.1)
    assert [scalar for (scalar,) in SCALAR.iter_unpack(published)] == pytest.approx([6, 2])
    assert after.tolist() == pytest.approx([0.8, 0.6])


def test_hosts_that_replay_what_was_published_have_the_same_bytes() -> None:
    """As those that measured it: the ledger of scalars is the training."""
    start = torch.randn(1001, generator=torch.Generator().manual_seed(3))
    theta, joiner, ledger = start, start.clone(), []
    for number in range(5):
        seeds = [10 * number, 10 * number + 1, 10 * number + 2]
        losses = [lambda at, place=place: float(at.roll(place).cos().sum() + at.square().sum()) for place in range(3)]
        theta, published = probed(theta, losses, seeds, eps=1e-2, rate=1e-3)
        ledger.append((seeds, published))
    for seeds, published in ledger:
        assert len(published) == 4 * len(seeds)
        replay_(joiner, published, seeds, rate=1e-3)
    assert joiner.numpy().tobytes() == theta.numpy().tobytes() != start.numpy().tobytes()


def test_scalars_pay_where_sending_takes_longer_than_their_further_passes() -> None:
    """LoRA begins with 0.644 in 192 passes. Scalars that lose 0.161 in 192 take four times the passes: 3,000 more, which are
    750 s for each of four hosts at 1 s a pass. 1 MB in that time is 10.7 kbit/s."""
    lora = Cost(rate=1e-3, before=3.0, after=2.0, passes=1000, sent=1_000_000)
    scalars = Cost(rate=1e-3, before=3.161, after=3.0, passes=192, sent=12)
    times = times_passes(scalars)
    assert times == pytest.approx(4.0)
    assert pays_below_kbit(lora, times, pass_seconds=1.0) == pytest.approx(8000 / 750)
    assert times_passes(replace(scalars, after=4.0)) == float("inf")


def test_the_beginning_of_lora_is_that_of_its_page() -> None:
    page = (RESULTS.parent / "finetune.md").read_text()
    before, after = seed_scalar.LORA_FIRST
    assert f"| before | {before} | | |\n| 0 | {after} | 1 | |\n" in page


def test_cells_are_trained_once_and_other_seeds_have_the_best_rate_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = write_adapter_config(tmp_path, "yes yes yes", evaluation={"rows": 4})
    monkeypatch.setattr(seed_scalar, "KEPT", tmp_path / "none.jsonl.gz")
    spaces = {"whole model": Space(settings=("model.lora.rank=0",), rates=(1e-6, 1e-3))}
    monkeypatch.setattr(seed_scalar, "SPACES", spaces)
    monkeypatch.setattr(seed_scalar, "TUNING_ROUNDS", 3)
    monkeypatch.setattr(seed_scalar, "ROUNDS", 4)
    output = tmp_path / "a.jsonl"
    arguments = argparse.Namespace(config=config, spaces=list(spaces), seeds=[2], output=output)
    train_cells(arguments)
    first = output.read_bytes()
    train_cells(arguments)  # nothing is left to do
    slow, fast, last, lower = read_records(output)
    assert output.read_bytes() == first and [slow["rate"], fast["rate"]] == [1e-6, 1e-3]
    assert fast["curve"][-1][1] < slow["curve"][-1][1]
    assert (last["rate"], last["seed"], last["parameters"]) == (1e-3, 2, 18_624) and lower["rate"] == 1e-6
    assert [number for number, _ in last["curve"]] == [0, 4] and last["curve"][1][1] < last["curve"][0][1]
