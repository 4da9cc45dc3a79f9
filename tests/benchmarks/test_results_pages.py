"""The pages of docs/results against the kept records, and the figures of docs/results.md and README.md against those pages."""

import gzip
import re
import shutil
from argparse import Namespace
from collections.abc import Callable, Mapping
from itertools import pairwise
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest

from benchmarks import (
    carried_over,
    critical_batch,
    decayed,
    divided,
    islands,
    longer_rounds,
    million,
    muon,
    not_built,
    outer_state,
    presets,
    seed_scalar,
    sizes,
    small_vocabulary,
    tuned,
    tuned_larger,
    tuned_outer,
    unequal_machines,
    unequal_requests,
    uneven_swarms,
)
from benchmarks.assessed import report as assessed
from benchmarks.method import __main__ as method
from benchmarks.method import rows
from benchmarks.method.figures import losses_of, shown, student
from benchmarks.method.report import rewrite, write
from benchmarks.method.rows import LINEAR, SEESAW, TUNING_SEED
from benchmarks.method.store import Record, read_records, records_by_key
from benchmarks.robustness import report as robustness
from benchmarks.text_runs import COUNTED, Runs
from benchmarks.wan import grid, grid_tables
from benchmarks.wan import islands as wan_islands
from benchmarks.wan import methods as wan_methods
from benchmarks.wan import shipped as wan_shipped

ROOT = Path(__file__).parents[2]
DOCS, README = ROOT / "docs", ROOT / "README.md"
RESULTS = DOCS / "results"
INTERVAL = re.compile(r"-?\d+\.\d+ \+- \d+\.\d+")
PLANNED = {
    "planned": ("carried_over.md", carried_over.COMPARISONS),
    "regrets": ("carried_over.md", carried_over.COMPARISONS),
    "tuned planned": ("tuned.md", tuned.COMPARISONS),
    "decayed": ("tuned.md", len(decayed.METHODS)),
    "small vocabulary prices": ("sizes.md", len(small_vocabulary.PRICES)),
    "longer rounds planned": ("sizes.md", len(longer_rounds.COMPARED)),
    "tuned larger planned": ("sizes.md", len(tuned_larger.COMPARED)),
    "tuned at full length planned": ("sizes.md", len(tuned_larger.COMPARED)),
    "unequal requests, planned": ("method.md", 9),
    "islands, planned": ("method.md", len(islands.COMPARISONS)),
    "unequal machines": ("method.md", unequal_machines.COMPARISONS),
    "divided, planned": ("divided.md", divided.COMPARISONS),
}
"""The tables of planned comparisons, where they stand, and how many comparisons they are corrected for."""
SIDES = ("DiLoCo", "AdLoCo")
TABLE_ROW = re.compile(r"^\|.*\|$", re.MULTILINE)


def test_the_tables_of_the_method_follow_from_its_records(tmp_path: Path) -> None:
    for name in ("method.md", "time.md"):
        shutil.copy(RESULTS / name, tmp_path / name)
    write(records_of(method.KEPT), tmp_path, samples=method.SAMPLES)
    for name in ("method.md", "time.md"):
        assert (tmp_path / name).read_text() == (RESULTS / name).read_text()


@pytest.mark.parametrize(
    ("benchmark", "name"),
    [
        (carried_over, "carried_over.md"),
        (critical_batch, "carried_over.md"),
        (unequal_machines, "method.md"),
        (islands, "method.md"),
        (tuned, "tuned.md"),
        (divided, "divided.md"),
    ],
    ids=["carried over", "critical batch", "unequal machines", "islands", "tuned", "divided"],
)
def test_the_tables_follow_from_their_records(
    benchmark: Any, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = Path(shutil.copy(RESULTS / name, tmp_path))
    monkeypatch.setattr(benchmark, "RESULTS", tmp_path)
    benchmark.tabulate(Namespace(runs=[]))
    assert page.read_text() == (RESULTS / name).read_text()
    again, kept = (gzip.decompress(path.read_bytes()) for path in (tmp_path / benchmark.KEPT.name, benchmark.KEPT))
    assert again == kept, "compressed they may differ: Python and zlib decide"


def records_of(path: Path) -> list[Record]:
    """By their keys, as `report` takes them."""
    records = {record["key"]: record for record in read_records(path)}
    return [records[key] for key in sorted(records)]


Tables = dict[str, list[str]]
TABLES: dict[str, tuple[str, Callable[[], Tables]]] = {
    "presets": ("bytes.md", lambda: presets.tables(records_of(presets.KEPT))),
    "not built": ("bytes.md", lambda: {"not built": not_built.table(not_built.BYTES, records_of(not_built.KEPT))}),
    "steps of others": (
        "method.md",
        lambda: {"steps of others": not_built.table(not_built.STEPS_OF_OTHERS, records_of(not_built.KEPT))},
    ),
    "outer state": ("bytes.md", lambda: {"states": outer_state.table(records_of(outer_state.KEPT))}),
    "grid": ("time.md", lambda: {"grid": grid_tables.utilisation_table(records_of(grid.KEPT))}),
    "shipped": ("time.md", lambda: {"shipped": wan_shipped.table(records_of(wan_shipped.KEPT))}),
    "grid, bytes": ("time.md", lambda: {"wire": grid_tables.bytes_table(records_of(grid.KEPT))}),
    "islands, real": ("method.md", lambda: {"islands, real": wan_islands.table(records_of(wan_islands.KEPT))}),
    "tuned outer": ("tuned.md", lambda: tuned_outer.tables(records_by_key(tuned_outer.KEPT, []))),
    "unequal requests": (
        "method.md",
        lambda: {name: table(records_of(unequal_requests.KEPT)) for name, table in unequal_requests.TABLES.items()},
    ),
    "uneven swarms": (
        "method.md",
        lambda: {"uneven swarms": uneven_swarms.table(records_by_key(uneven_swarms.KEPT, []))},
    ),
    "decayed": ("tuned.md", lambda: {"decayed": decayed.table(records_of(decayed.KEPT))}),
    "muon": ("muon.md", lambda: muon.tables(muon.Cells(), muon.SEEDS)),
    "seeds and scalars": ("seed_scalar.md", lambda: {"seed scalar": seed_scalar.table(records_of(seed_scalar.KEPT))}),
    "sizes": ("sizes.md", lambda: sizes.tables(Runs(sizes.SCALE))),
    "small vocabulary": ("sizes.md", lambda: small_vocabulary.tables(Runs(small_vocabulary.SCALE))),
    "longer rounds": ("sizes.md", lambda: longer_rounds.tables(Runs(small_vocabulary.SCALE))),
    "tuned larger": ("sizes.md", lambda: tuned_larger.tables(Runs(small_vocabulary.SCALE))),
    "million": ("million.md", lambda: million.tables(Runs(million.SCALE))),
    "rules": ("robustness.md", lambda: robustness.tables(robustness.Records(records_of(robustness.KEPT)))),
    "assessed": ("robustness.md", lambda: assessed.tables(records_of(assessed.KEPT))),
    "methods, real": ("time.md", lambda: {"methods, real": wan_methods.table(records_of(wan_methods.KEPT))}),
}


@pytest.mark.parametrize(("name", "tables"), TABLES.values(), ids=TABLES)
def test_a_page_has_the_tables_that_follow_from_the_records(name: str, tables: Callable[[], Tables], tmp_path: Path) -> None:
    page, found = Path(shutil.copy(RESULTS / name, tmp_path)), tables()
    assert any(len(lines) > 2 for lines in found.values()), "no whole seed among the kept records"
    rewrite(page, found)
    assert page.read_text() == (RESULTS / name).read_text()


def test_the_page_of_the_largest_models_says_what_its_runs_and_its_tuning_show() -> None:
    runs, page = Runs(million.SCALE), " ".join((RESULTS / "million.md").read_text().split())
    tried = {kind: [runs.find(row, TUNING_SEED) for row in million.tuning(kind).values()] for kind in million.KINDS}
    adamw, muon = (min(record["loss"] for record in tried[kind] if record is not None) for kind in ("AdamW", "Muon"))
    assert f"Muon ends {adamw - muon:.3f} below AdamW at its best rate" in page
    rate = runs.best(million.tuning("AdamW"))
    record = runs.find(million.exploratory("AdamW", rate)[0], 1)
    assert record is not None
    counted = runs.records[COUNTED]
    strongest = min(*counted["losses"].values(), *counted["kneser_ney"].values())
    assert strongest == counted["kneser_ney"]["6"]
    assert (
        f"The strongest, of six tokens by Kneser and Ney, is at {strongest:.3f}, and all runs of full length end below it"
        in page
    )
    assert all(run["loss"] < strongest for run in runs.records.values() if run.get("seed", TUNING_SEED) != TUNING_SEED)
    foremost = (*million.planned("AdamW", rate)[:3], *million.foremost("Muon", runs.best(million.tuning("Muon"))))
    constant, slow, ramp, with_muon = (losses_of(runs.of_seeds(row, million.SEEDS).values()) for row in foremost)
    rounds = [{run["rounds"] for run in runs.of_seeds(row, million.SEEDS).values()} for row in foremost]
    assert rounds == [{200}, {93}, {94}, {91}]

    def by_seed(high: Mapping[int, float], low: Mapping[int, float]) -> str:
        return " and ".join(f"{high[seed] - low[seed]:.3f}" for seed in (1, 2))

    above, gain, apart = by_seed(slow, constant), by_seed(slow, with_muon), shown(slow, ramp)
    beside = {seed: ramp[seed] - constant[seed] for seed in (1, 2)}
    for words in (
        f"it ends {above} above DiLoCo with 32 rows, in 93 rounds instead of 200",
        f"With the preset's growth one seed ends {record['loss'] - constant[1]:.3f} above, in {record['rounds']} rounds",
        f"in 94 rounds it ends {by_seed(slow, ramp)} below AdLoCo in as many, {beside[1]:.3f} above DiLoCo on the first seed"
        f" and {-beside[2]:.3f} below it on the second",
        f"Two seeds show no difference by their interval ({apart})",
        f"ends {by_seed(constant, with_muon)} below DiLoCo with AdamW**, in 91 rounds, and {gain} below AdLoCo with AdamW",
        f"Of that {gain} remain in runs of full length",
    ):
        assert words in page
    first = (DOCS / "results.md").read_text()
    for row in (
        f"93 rounds instead of 200, a higher loss | 1,313,488 parameters, 2 seeds | {above} | `million`",
        f"It ends higher on both seeds, in as many rounds | the same, 2 seeds | {apart} | `million`",
        f"Lower, in 91 rounds; that is Muon's gain | the same, 2 seeds | {shown(with_muon, constant)} | `million`",
    ):
        assert row in first
    asked = [instance[0] for (instance,) in record["log"]]
    assert (max(asked[:8]), asked.index(128), len(asked)) == (35, 14, 59)
    assert "its cap of 128 in the 15th of 59" in page


def test_the_page_of_sizes_says_which_tables_of_counts_each_model_passes() -> None:
    runs = Runs(small_vocabulary.SCALE)
    lines = small_vocabulary.tables(runs)["small vocabulary"][2:]
    losses = {cells[1].strip(): cells[3].split()[0] for cells in (line.split("|") for line in lines)}
    tables = {name: loss for name, loss in losses.items() if name.startswith("table of ")}
    easy = min(tables[f"table of 3-grams{smoothed}"] for smoothed in ("", ", Kneser-Ney"))
    middle, hard = (tables["table of 4-grams"], tables["table of 5-grams"]), tables["table of 4-grams, Kneser-Ney"]
    models = {name: loss for name, loss in losses.items() if name not in tables}
    page = " ".join((RESULTS / "sizes.md").read_text().split())
    two = models.pop(small_vocabulary.TWO)
    assert easy < two and f"**All models but that of two instances ({two}) end below the tables of three tokens**" in page
    assert all(hard < loss < easy for loss in models.values())
    for where, bounds in (("below both", (hard, min(middle))), ("between them", middle), ("above both", (max(middle), easy))):
        there = [f"{name} ({loss})" for name, loss in models.items() if bounds[0] < loss < bounds[1]]
        assert f"{where}: {'; '.join(there)}." in page or not there


def test_the_readme_has_the_figures_of_both_sizes() -> None:
    """Rounds, megabytes sent per peer and inner steps, then the loss: of the methods tuned alike, and of the larger models."""

    def cells(lines: list[str], name: str, loss: int) -> str:
        row = next(found for found in ([cell.strip() for cell in line.split("|")] for line in lines) if found[1] == name)
        return f"{row[6]} | {row[8]} | {row[7]} | {row[loss].split()[0]}"

    small = tuned.winner_table(tuned.Runs(records_by_key(tuned.KEPT, [])))[2:]
    large = small_vocabulary.tables(Runs(small_vocabulary.SCALE))["small vocabulary"][2:]
    test, ramp, seesaw = (
        "AdLoCo, the batch by gradient noise",
        "the batch by a linear ramp",
        "the batch by Seesaw, as the learning rate falls",
    )
    tuned_alike = {
        test: tuned.TEST,
        ramp: LINEAR,
        seesaw: SEESAW,
        "DiLoCo with twice the batch": tuned.FIXED,
        "DiLoCo, H 64": tuned.LONG_H,
        "DiLoCo, H 32": tuned.START,
    }
    larger = {
        test: small_vocabulary.TEST,
        ramp: small_vocabulary.STEEP,
        seesaw: small_vocabulary.SEESAW,
        "DiLoCo with four times the batch": f"DiLoCo B {small_vocabulary.LARGEST} H {small_vocabulary.H}",
        f"DiLoCo, H {small_vocabulary.H}": small_vocabulary.FIXED,
    }
    readme = README.read_text()
    for named, lines, loss in ((tuned_alike, small, 5), (larger, large, 3)):
        assert "\n" + "\n".join(f"| {name} | {cells(lines, row, loss)} |" for name, row in named.items()) + "\n" in readme


def test_the_first_page_states_what_tuning_alike_moved_on_one_seed() -> None:
    runs = tuned.Runs(records_by_key(tuned.KEPT, []))

    def above(other: str) -> tuple[float, float]:
        """The test, with the pair of most rows of `method` and with each method's winner, on the first tuning seed."""
        plain, best = (
            {row: runs.mean(row, pair, tuned.FIRST) for row, pair in pairs.items()}
            for pairs in (
                dict.fromkeys((tuned.TEST, other), ("6e-3", 512)),
                {row: runs.winner(row) for row in (tuned.TEST, other)},
            )
        )
        return plain[tuned.TEST] - plain[other], best[tuned.TEST] - best[other]

    (before, after), (below, over) = above(tuned.LONG_H), above(LINEAR)
    moved = f"from {before:.3f} above DiLoCo of H 64 to {after:.3f}, and from {-below:.3f} below the linear ramp to {over:.3f}"
    assert f"{moved} above it" in " ".join((DOCS / "results.md").read_text().split())


def test_the_first_page_counts_the_rounds_of_the_records() -> None:
    page = (DOCS / "results.md").read_text()
    by_method, small, large = records_of(method.KEPT), tuned.Runs(records_by_key(tuned.KEPT, [])), Runs(small_vocabulary.SCALE)

    def times_fewer(base: str, row: str) -> float:
        """Paired by seed, beyond the tuning seed."""
        both = [
            {r["seed"]: r["rounds"] for r in by_method if r["row"] == name and r["seed"] != TUNING_SEED} for name in (base, row)
        ]
        return fmean(both[0][seed] / both[1][seed] for seed in both[0].keys() & both[1].keys())

    def of_tuned(row: str) -> str:
        return f"{fmean(record['rounds'] for record in small.of_winner(row).values()):.0f}"

    counted = {
        line.split("|")[1].strip(): line.split("|")[6].strip() for line in small_vocabulary.tables(large)["small vocabulary"]
    }
    constant = counted[f"DiLoCo B {small_vocabulary.LARGEST} H {small_vocabulary.H}"]
    test, start = of_tuned(tuned.TEST), counted[small_vocabulary.FIXED]
    both = (int(counted[small_vocabulary.SLOW_LOW]) + int(counted[small_vocabulary.SEESAW])) // 2
    for words in (
        f"It trades: {times_fewer(rows.SAME_START, rows.ONE):.2f} times fewer rounds",
        f"It trades: {times_fewer(rows.LONG_START, 'long: AdLoCo, eta 2.5, at most 24'):.1f} times fewer rounds",
        f"It trades: {test} rounds instead of {of_tuned(tuned.START)}",
        f"Higher, in {test} rounds instead of {of_tuned(tuned.LONG_H)}",
        f"No difference shown: {test} rounds instead of {of_tuned(tuned.FIXED)}",
        f"both take some {both} rounds instead of {start}",
        f"ends as low in {constant} rounds instead of {counted[small_vocabulary.TEST]}",
    ):
        assert words in page


def test_no_exploratory_row_stands_among_the_planned_differences() -> None:
    runs = tuned.Runs(records_by_key(tuned.KEPT, []))
    planned = tuned.tables(runs)["tuned planned"][2:]
    assert [line.split(" | ")[0].strip("| ") for line in planned] == [
        row for row in runs.whole if row not in (tuned.TEST, tuned.CAPPED)
    ]


@pytest.mark.parametrize("page", sorted(RESULTS.glob("*.md")), ids=lambda page: page.name)
def test_every_interval_in_the_text_of_a_page_stands_in_one_of_its_tables(page: Path) -> None:
    """Or the opposite does: where a table subtracts, the text says by how much one is higher, or lower."""
    text = page.read_text()
    known = {interval.lstrip("-") for row in TABLE_ROW.findall(text) for interval in INTERVAL.findall(row)}
    found = {interval.lstrip("-") for interval in INTERVAL.findall(TABLE_ROW.sub("", text))}
    assert not found - known


@pytest.mark.parametrize("page", [DOCS / "results.md", README], ids=lambda page: page.name)
def test_every_interval_on_a_first_page_stands_in_a_table(page: Path) -> None:
    tables = "\n".join(row for path in RESULTS.glob("*.md") for row in TABLE_ROW.findall(path.read_text()))
    known = set(INTERVAL.findall(tables))
    found = INTERVAL.findall(page.read_text())
    assert found
    assert not [figure for figure in found if figure not in known]


def corrected_intervals(table: str) -> list[tuple[str, str]]:
    """Of a table, every interval that the next cell widens, and that wider one, which has its cell for itself."""
    beside = [pair for row in TABLE_ROW.findall(table) for pair in pairwise(cell.strip() for cell in row.split("|"))]
    found = [(one[0], wide) for left, wide in beside if (one := INTERVAL.match(left)) and INTERVAL.fullmatch(wide)]
    return [(one, wide) for one, wide in found if one.split()[0] == wide.split()[0] and width_of(one) < width_of(wide)]


def width_of(interval: str) -> float:
    return float(interval.split()[2])


def is_off_zero(interval: str) -> bool:
    return abs(float(interval.split()[0])) > width_of(interval)


@pytest.mark.parametrize("mark", PLANNED)
def test_a_planned_difference_that_does_not_survive_the_correction_is_nowhere_told_without_it(mark: str) -> None:
    page, comparisons = PLANNED[mark]
    text = (RESULTS / page).read_text()
    found = corrected_intervals(text.split(f"<!-- {mark} -->")[1].split("<!-- end -->")[0])
    assert found
    for plain, wide in found:
        widened = [student(degrees, comparisons) / student(degrees) for degrees in (2, 4)]
        assert any(width_of(wide) == pytest.approx(ratio * width_of(plain), abs=5e-4 * (1 + ratio)) for ratio in widened)
    fallen = {plain.lstrip("-") for plain, wide in found if is_off_zero(plain) and not is_off_zero(wide)}
    paragraphs = [" ".join(part.split()) for part in re.split(r"\n\s*(?:- |\n)", TABLE_ROW.sub("", text))]
    told = [part for part in paragraphs if any(plain in part for plain in fallen)]
    assert not [part for part in told if "orrected" not in part]


def test_all_planned_comparisons_are_counted() -> None:
    tables = {mark: (RESULTS / page).read_text().split(f"<!-- {mark} -->")[1] for mark, (page, _) in PLANNED.items()}
    counted = {mark: len(corrected_intervals(table.split("<!-- end -->")[0])) for mark, table in tables.items()}
    assert counted.pop("planned") + counted.pop("regrets") == carried_over.COMPARISONS
    assert counted.pop("unequal machines") == unequal_machines.COMPARISONS + 1, "one of them stands there from both sides"
    assert counted == {mark: PLANNED[mark][1] for mark in counted}


def test_the_first_page_answers_in_at_most_twelve_words() -> None:
    """A table is read in a minute, or it is not read: what needs a sentence stands on the page of its benchmark."""
    rows = [row.strip("| ").split(" | ") for row in TABLE_ROW.findall((DOCS / "results.md").read_text())]
    answers = [row[1] for row in rows if len(row) == 5 and row[1] != "answer"]
    assert len(answers) > 15
    assert not [answer for answer in answers if len(answer.replace("---", "").split()) > 12]


def test_the_tuning_runs_that_the_first_page_counts_are_in_the_table() -> None:
    """A page of results says how often each side was tuned."""
    table = (RESULTS / "method.md").read_text().split("<!-- tuning -->")[1].split("<!-- end -->")[0]
    short, long = ("| ", "| long: ")
    counts = [sum(line.startswith(length + side) for line in table.splitlines()) for length in (short, long) for side in SIDES]
    text = "{1} configurations of AdLoCo were tried and {0} of DiLoCo, for the long runs {3} and {2}".format(*counts)
    assert text in " ".join((DOCS / "results.md").read_text().split())


def test_the_page_of_divided_machines_says_what_its_runs_show() -> None:
    runs = divided.runs_of(records_by_key(divided.KEPT, []))
    page, first = " ".join((RESULTS / "divided.md").read_text().split()), (DOCS / "results.md").read_text()
    losses = {name: losses_of(found.values()) for name, found in runs.items()}

    def apart(name: str, base: str) -> str:
        return shown(losses[name], losses[base])

    def worse(name: str) -> str:
        """How much the equal mean of the two is worse than the worse one, by seed; and that no mean between is better."""
        found = runs[name].values()
        assert all(point[0] > max(alone[0] for alone in record["alone"]) for record in found for point in record["between"])
        assert all("refused" in record["merges"][-1] for record in found)
        means = [record["between"][1][0] - max(alone[0] for alone in record["alone"]) for record in found]
        return f"{min(means):.2f} to {max(means):.2f}"

    over_both, alone, over_all, large = divided.BOTH, divided.ALONE, divided.ALL, divided.LARGE
    for words in (
        f"One instance over both ends {apart(over_both, alone)} above one island alone",
        f"It ends {apart(divided.BRIDGED, alone)} above one island alone; beside one instance over both"
        f" ({apart(divided.BRIDGED, over_both)})",
        f"level with the large machines alone ({apart(over_all, large)})",
        f"An instance for each kind ends {apart(divided.EACH, over_all)} above one over all,"
        f" and {apart(divided.EACH, large)} above the large ones alone",
        f"{worse(divided.BRIDGED)} worse than the worse of them on islands, {worse(divided.EACH)} on unequal machines",
    ):
        assert words in page
    for name, base in ((divided.BRIDGED, alone), (divided.EACH, over_all), (divided.OWN, divided.ONE)):
        assert f"| 270,816 parameters, 5 seeds | {apart(name, base)} | `divided` |" in first
    assert f"| {apart(over_both, alone)}; fast links: {apart(divided.NO_BORDER, alone)} | `divided` |" in first
    counted = Runs(small_vocabulary.SCALE).records[COUNTED]
    easy, hard = counted["losses"]["3"], counted["kneser_ney"]["3"]
    assert f"({easy:.3f} and, by Kneser and Ney, {hard:.3f})" in page
    below = {name for name, found in losses.items() if found and fmean(found.values()) < hard}
    assert below - {divided.ONE, divided.OWN, divided.MIXED} == {alone, over_all, large, divided.NO_BORDER}


def test_the_page_of_divided_machines_says_what_data_of_their_own_show() -> None:
    records = records_by_key(divided.KEPT, [])
    runs, page = divided.runs_of(records), " ".join((RESULTS / "divided.md").read_text().split())
    one, own, mixed = runs[divided.ONE], runs[divided.OWN], runs[divided.MIXED]
    losses = {name: losses_of(found.values()) for name, found in runs.items()}

    def apart(name: str, base: str) -> str:
        return shown(losses[name], losses[base])

    assert all("accepted" in record["merges"][-1] for found in (own, mixed) for record in found.values())
    assert {tuple(record["requests"][-1]) for record in own.values()} == {(64, 64, 64)}
    gains = {
        name: [min(fmean(alone) for alone in record["alone"]) - record["loss"] for record in runs[name].values()]
        for name in (divided.OWN, divided.MIXED)
    }
    by_noise = [record["loss"] - fmean(record["merged"]["inverse noise"]) for record in own.values()]
    tables = {name: found for name, found in records[divided.COUNTED_KINDS]["losses"].items() if name.startswith("3-grams")}
    kinds = [fmean(record["final"][number] for record in one.values()) for number in range(3)]
    passed = [loss < min(table[number] for table in tables.values()) for number, loss in enumerate(kinds)]
    assert passed == [True, False, True] and kinds[1] > max(table[1] for table in tables.values())
    assert min(fmean(losses[name].values()) for name in (divided.OWN, divided.MIXED)) > max(map(fmean, tables.values()))
    for words in (
        f"three instances with data of their own end {apart(divided.OWN, divided.ONE)} above one instance on the mixture, and"
        f" {apart(divided.OWN, divided.MIXED)} above three on the mixture, which themselves end"
        f" {apart(divided.MIXED, divided.ONE)} above one.",
        f"by {min(gains[divided.OWN]):.2f} to {max(gains[divided.OWN]):.2f} for instances with data of their own and by"
        f" {fmean(gains[divided.MIXED]):.2f} for those on the mixture",
        f"inverse noise change the mean by {fmean(by_noise):.3f}",
    ):
        assert words in page
