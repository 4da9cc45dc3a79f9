"""The tables of counts beside the small models, and what the pages say of them."""

import sys
from statistics import fmean

import pytest

from benchmarks import carried_over, counted, muon, presets, tuned
from benchmarks.counted import KEPT, PAGES, Text, table
from benchmarks.method import __main__ as method
from benchmarks.method.rows import LONG, TUNING_SEED
from benchmarks.method.store import RESULTS, read_records, records_by_key
from benchmarks.robustness import report as robustness
from benchmarks.wan import methods as wan_methods

RECORDS = records_by_key(KEPT, [])


def loss_of(page: str, order: int, *, name: str = "as it is", samples: int | None = None) -> float:
    """Return the loss of a table of Witten and Bell that a page shows."""
    texts = [text for text in PAGES[page] if text.name == name and samples in (None, text.samples)]
    (text,) = texts
    return float(RECORDS[text.key]["losses"][f"{order}-grams"])


def words_of(page: str) -> str:
    return " ".join((RESULTS / page).read_text().split())


@pytest.mark.parametrize("page", PAGES)
def test_the_table_of_a_page_follows_from_the_records(page: str) -> None:
    lines = "\n".join(table(PAGES[page], RECORDS))
    assert f"<!-- counted -->\n\n{lines}\n\n<!-- end -->" in (RESULTS / page).read_text()


@pytest.mark.skipif(sys.version_info[:2] != (3, 11), reason="the kept records count the texts of Python 3.11")
@pytest.mark.parametrize("text", [Text(samples=method.SAMPLES), PAGES["carried_over.md"][3], PAGES["method.md"][2]])
def test_the_kept_counts_can_be_made_again(text: Text) -> None:
    kept = {name: value for name, value in RECORDS[text.key].items() if name != "key"}
    assert counted.count(text) == kept


def test_long_runs_of_diloco_end_below_the_table_of_three_tokens_as_the_page_says() -> None:
    losses: dict[str, list[float]] = {}
    for record in read_records(method.KEPT):
        if record["row"].startswith("long: ") and record["seed"] != TUNING_SEED:
            losses.setdefault(record["row"], []).append(record["loss"])
    limit = round(loss_of("method.md", 3, samples=LONG * method.SAMPLES), 3)
    below = {name: limit - round(fmean(some), 3) for name, some in losses.items()}
    plain = [gap for name, gap in below.items() if name.startswith("long: DiLoCo B 8 ")]
    assert f"end below that table of three, by {min(plain):.3f} to {max(plain):.3f}" in words_of("method.md")
    assert max(gap for name, gap in below.items() if not name.startswith("long: DiLoCo B 8 ")) == pytest.approx(0.0, abs=5e-4)


def test_all_other_small_models_end_above_the_tables_that_the_pages_name() -> None:
    short = [record["loss"] for record in read_records(method.KEPT) if record["samples"] == method.SAMPLES]
    assert min(short) > loss_of("method.md", 3, samples=method.SAMPLES)
    assert min(record["loss"] for record in read_records(tuned.KEPT)) > loss_of("tuned.md", 3)
    records = records_by_key(carried_over.KEPT, [])
    for task in carried_over.TASKS:
        found = carried_over.found_of(task, records)
        least = min(record["loss"] for some in found.values() for record in some.values())
        assert least > loss_of("carried_over.md", 2 if task.name in ("noisy", "words") else 3, name=task.name)


def test_the_codecs_were_compared_above_the_table_of_four_tokens() -> None:
    runs: dict[tuple[bool, int], list[float]] = {}
    for record in read_records(presets.KEPT):
        cell = presets.Cell(**record["cell"])
        samples = cell.hosts * cell.inner_steps * cell.rounds
        runs.setdefault((record["parameters"] == 20_864, samples), []).append(record["loss"])
    listed = sorted(text.samples for text in PAGES["bytes.md"])
    for (is_small, samples), losses in runs.items():
        nearest = max(some for some in listed if some <= samples)  # 51,200 rows stand beside 32,768
        assert min(losses) > loss_of("bytes.md", 4, samples=nearest) - 0.02
        three = loss_of("bytes.md", 3, samples=nearest)
        assert (min(losses) < three) == (samples >= (65_536 if is_small else 32_768))
        assert max(losses) > three or not is_small or samples > listed[-1]


def test_the_larger_models_of_the_other_pages_end_below_tables() -> None:
    cells, page, finals = muon.Cells(), "muon.md", dict[tuple[str, str], list[float]]()
    for size in muon.SIZES:
        for kind in muon.KINDS:
            rows = [muon._best_row(cells, size, batch, kind) for batch in muon.SIZES[size].rates]
            found = [[cells.find(row, seed, muon.SIZES[size].samples) for seed in muon.SEEDS] for row in rows]
            losses = [[record["loss"] for record in of_row if record is not None] for of_row in found]
            finals[size, kind] = [fmean(of_row) for of_row in losses if of_row]
    small, large = (size.samples for size in muon.SIZES.values())
    assert min(finals["small", "adamw"] + finals["small", "muon"]) > loss_of(page, 3, samples=small)
    assert max(finals["large", "adamw"] + finals["large", "muon"]) < loss_of(page, 4, samples=large)
    (text,) = (text for text in PAGES[page] if text.samples == large)
    strongest = RECORDS[text.key]["losses"]["6-grams, Kneser-Ney"]
    assert strongest == min(RECORDS[text.key]["losses"].values())
    assert max(finals["large", "muon"]) < strongest < min(finals["large", "adamw"])

    real = [record["loss"] for record in read_records(wan_methods.KEPT)]
    orders = [loss_of("time.md", order, samples=wan_methods.SAMPLES) for order in (4, 3)]
    assert orders[0] < min(real) and max(real) < orders[1]


def test_runs_of_sixteen_rounds_end_above_the_table_of_two_tokens() -> None:
    records = robustness.Records(read_records(robustness.KEPT))
    means = [float(cell) for cell in robustness.price_table(records)[-1].strip("| ").split(" | ")[1:]]
    assert len(means) == len(robustness.SWARMS) and min(means) > loss_of("robustness.md", 2, samples=4096)
