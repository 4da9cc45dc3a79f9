"""The parts of `python -m benchmarks.presets`, and the prices that `plan` shows."""

from dataclasses import asdict
from typing import Any

import pytest

from adloco_p2p.config.run_config import AVERAGING_PRESETS
from adloco_p2p.views.cost_model import MEASURED_PRICES, PRICED
from benchmarks.method.store import read_records
from benchmarks.presets import KEPT, WAYS, Cell, Noise, bytes_up, codecs_of, key_of, price_of, run_of, table


def record(way: str, seed: int, loss: float) -> dict[str, Any]:
    cell = asdict(Cell(way=way))
    return {"cell": cell, "seed": seed, "parameters": 20_864, "loss": loss, "noise_sent": 0.3, "noise_made": 0.1}


def test_the_noise_is_that_of_the_mean_over_the_signal_by_hand() -> None:
    """(3, 0) and (1, 2): the mean is (2, 1), each is 2 from it by squares, so the mean's noise is 2 and the signal 5 - 2."""
    noise = Noise()
    noise.add([9.0, 5.0], 5.0)
    assert noise.ratio == pytest.approx(2 / 3)


def test_losses_are_paired_by_seed() -> None:
    records = [record("dense", 1, 2.0), record("dense", 2, 3.0), record("sign", 1, 2.5), record("sign", 2, 3.5)]
    records += [record("dense, momentum 0.9", 1, 2.25), record("dense, momentum 0.9", 2, 3.25)]
    (line,) = [line for line in table(records) if "| sign |" in line]
    bytes_and_loss = "0.126 | 0.126 | 2 | 3.000 +- 6.353"
    assert line == f"| 20,864 | 8 | 32 | 64 | sign | {bytes_and_loss} | +0.500 +- 0.000 | +0.250 +- 0.000 | 3.00 |"


def test_every_preset_is_measured_with_its_own_settings_and_runs_of_equal_settings_are_one() -> None:
    assert set(AVERAGING_PRESETS) <= set(WAYS)
    sparse = run_of(Cell(way="sparse"), 1)
    assert (sparse.averaging.codec, sparse.outer.kind, sparse.averaging.feedback) == ("topk2", "sgd", 0.95)
    assert (sparse.averaging.division, run_of(Cell(way="sparse, all"), 1).averaging.division) == ("named", "all")
    keys = {key_of(Cell(way=way), seed) for way in WAYS for seed in (1, 2)}
    assert len(keys) == 2 * (len(WAYS) - 2)  # with H 32 and 64 rounds `dense` has a momentum of 0.5, and `sign` of 0.9
    assert key_of(Cell(way="dense"), 1) == key_of(Cell(way="dense, momentum 0.5"), 1)
    assert key_of(Cell(way="dense", inner_steps=128), 1) == key_of(Cell(way="dense, momentum 0.7", inner_steps=128), 1)
    assert key_of(Cell(way="sign"), 1) == key_of(Cell(way="sign, momentum 0.9"), 1)
    assert key_of(Cell(way="sign", rounds=32), 1) == key_of(Cell(way="sign, momentum 0.5", rounds=32), 1)
    assert key_of(Cell(way="sign", hosts=4), 1) not in keys


def test_a_warm_up_begins_dense_and_its_bytes_are_those_of_all_rounds() -> None:
    cell = Cell(way="sparse, dense for 3", rounds=4)
    codecs = codecs_of(cell, run_of(cell, 1))
    sizes = [codec.num_bytes(4096) - codec.num_bytes(0) for codec in codecs]
    assert len(codecs) == 4 and sizes[0] > sizes[1] > sizes[2] > sizes[3] == 84
    assert bytes_up(cell) == pytest.approx(sum(sizes) / 4 / 4096, rel=1e-3)


def test_plan_shows_the_price_that_the_kept_records_give() -> None:
    records = read_records(KEPT)
    kept = {Cell(**record["cell"]) for record in records}
    (parameters,) = {record["parameters"] for record in records if record["cell"]["width"] == 32}
    assert PRICED.endswith(f"{parameters:,} parameters and 64 rounds")
    measured = {Cell(way=way, hosts=hosts): price for way, prices in MEASURED_PRICES.items() for hosts, price in prices.items()}
    assert measured.keys() == {cell for cell in kept if cell.way in MEASURED_PRICES and cell.rounds == 64 and cell.width == 32}
    for cell, (price, half_width) in measured.items():
        spread = "" if half_width is None else f" +- {half_width:.3f}"
        assert price_of(records, cell) == f"{price:+.3f}{spread}"
