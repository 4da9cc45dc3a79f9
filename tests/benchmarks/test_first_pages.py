"""Figures of README.md and docs/results.md that no table of a page states in these words, from the kept records."""

from collections.abc import Mapping
from pathlib import Path
from statistics import fmean

import pytest

from benchmarks import critical_batch
from benchmarks.method import __main__ as method
from benchmarks.method.rows import TUNING_SEED
from benchmarks.method.store import Record, read_records, records_by_key
from benchmarks.wan import grid, shipped
from benchmarks.wan.grid_cell import PARAMETERS, STEP_SECONDS, Cell
from benchmarks.wan.grid_tables import PUBLISHED, grouped, utilisation
from tests.config.test_device_share import share_of

DOCS = Path(__file__).parents[2] / "docs"
H, MBIT, TENTH = 128, 50.0, 10


@pytest.fixture(scope="module")
def readme() -> str:
    return " ".join((DOCS.parent / "README.md").read_text().split())


@pytest.fixture(scope="module")
def first_page() -> str:
    return " ".join((DOCS / "results.md").read_text().split())


def quietest(cells: Mapping[Cell, list[Record]], preset: str, overlap: str) -> str:
    """Return the whole per cent of time computing in the run beside which the least else ran."""
    runs = cells[Cell(preset=preset, overlap=overlap, inner_steps=H, mbit=MBIT, scale=TENTH)]
    return f"{100 * utilisation(min(runs, key=lambda run: run['load'])):.0f}"


def test_the_readme_has_the_part_of_the_time_that_peers_behind_a_slow_link_compute(readme: str) -> None:
    cells = grouped(read_records(grid.KEPT))
    alone, hidden = ([quietest(cells, preset, overlap) for preset in ("int8", "sparse")] for overlap in ("none", "forecast"))
    published, whole = PUBLISHED[H]
    setting = f"behind 50 Mbit/s compute: {PARAMETERS / 1e6:.1f}M values, an average after every {H} steps"
    assert f"{setting} of {STEP_SECONDS * 1e3:g} ms" in readme
    assert f"| {alone[0]} % with `int8`, {alone[1]} % with `sparse`, {hidden[0]} and {hidden[1]} % with overlap (" in readme
    row = readme.partition(setting)[2]
    assert row.index(f"{100 * whole:.1f} %") < row.index(f"(published: {100 * published:.1f} %)") < 500


def test_the_first_page_has_the_time_computing_with_hidden_averages_and_without(first_page: str) -> None:
    records = read_records(method.KEPT)

    def computing(row: str) -> float:
        return fmean(r["utilisation"] for r in records if r["row"] == row and r["seed"] != TUNING_SEED)

    hidden, alone = (computing(f"H 64, overlap {way}") for way in ("forecast, m 0.5", "none, m 0.7"))
    assert f"for {hidden:.1%} of the time computing instead of {alone:.1%}" in first_page


def test_the_first_page_has_the_time_computing_of_the_shipped_runs(first_page: str) -> None:
    (share,) = {f"{100 * share_of(name, hosts=8, teraflops=50.0).share:.1f}" for name in ("c4-150m", "c4-300m")}
    (record,) = read_records(shipped.KEPT)
    assert f"| {share} %, calculated; real nodes with stand-in devices, {shipped.measured_share(record):.1%} |" in first_page


def test_the_first_page_has_the_rank_correlation_of_request_and_critical_batch(first_page: str) -> None:
    lines = critical_batch.table(records_by_key(critical_batch.KEPT, []))
    (row,) = (line.split("|") for line in lines if "rank correlation with the request" in line)
    at_planned_tolerance = row[4].strip()
    assert f"| rank correlation {at_planned_tolerance} | `critical_batch` |" in first_page
