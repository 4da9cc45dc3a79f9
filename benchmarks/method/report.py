"""Tables and plots from records. The text of docs/results/ is written by hand; what stands between marks is written here."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from adloco_p2p.views.cost_model import Link, Workload, bounds, growing_rounds
from benchmarks.method.clock import LARGE, SMALL, STEADY
from benchmarks.method.figures import (
    BYTES,
    ROUNDS,
    SAMPLES,
    SECONDS,
    STEPS,
    Estimate,
    at_loss,
    estimate,
    front,
    losses_of,
    paired,
    timed,
    with_end,
)
from benchmarks.method.plots import FEWEST_SEEDS, plot_curves, plot_pareto, plot_unequal
from benchmarks.method.rows import FULL, GROUPS, LONG_FIXED, LONG_START, ONE, SAME_START, TUNED, TUNING_SEED, Row
from benchmarks.method.run import BASE, load_base
from benchmarks.method.store import Record, key_of, pack, records_by_key

Runs = Mapping[str, Sequence[Record]]
"""The records of each row, one per seed."""
NEAR = 0.10
"""Nats above the final loss of the DiLoCo with the same start: the loss at which costs are compared."""


def write(records: Sequence[Record], folder: Path, *, samples: int) -> None:
    """Rewrite every table between its marks in `folder`, docs/results, and the plots and packed records there. `samples`: those
    of a row of length 1; records of other runs are left out."""
    tuned = [record for record in records if record["seed"] == TUNING_SEED]
    others = [record for record in records if record["seed"] != TUNING_SEED]
    runs = {group: _of(tuned if group == "tuning" else others, rows(), samples) for group, rows in GROUPS.items()}
    equal = {name: found for group in ("main", "ablations") for name, found in runs[group].items()}
    tables = {
        "main": main_table(runs["main"]),
        "reached": reached_table(runs["main"]),
        "near": near_table(runs["main"]),
        "long": long_table(runs["long"]),
        "fronts": front_table(equal),
        "ablations": ablation_table(runs["ablations"], runs["main"]),
        "unequal": unequal_table(runs["unequal"]),
        "controls": main_table(runs["controls"], runs["main"]),
        "plan": plan_table(runs["main"]),
        "tuning": tuning_table(runs["tuning"]),
        "settings": settings_table({name: row for rows in GROUPS.values() for name, row in _named(rows()).items()}),
    }
    rewrite(folder / "method.md", tables)
    rewrite(folder / "time.md", {"overlap": overlap_table(runs["overlap"])})
    groups = {name: name.split()[0].strip(",") if name in runs["main"] else "AdLoCo, ablations" for name in equal}
    plot_pareto(equal, differences(equal), groups, folder / "pareto.svg")
    plot_curves(runs["main"], folder / "curves.svg")
    plot_unequal(runs["unequal"], SECONDS, folder / "unequal.svg")
    shown = {record["key"]: record for group in runs.values() for some in group.values() for record in some}
    pack([shown[key] for key in sorted(shown)], folder / "method.jsonl.gz")


def rewrite(page: Path, tables: Mapping[str, Sequence[str]]) -> None:
    """Write the lines of every table between its marks on the page."""
    text = page.read_text("utf-8")
    for name, lines in tables.items():
        text = placed(text, name, lines)
    page.write_text(text, "utf-8")


def keep_tables(
    kept: Path, others: Iterable[Path], page: str, tables: Mapping[str, Callable[[Sequence[Record]], Sequence[str]]]
) -> None:
    """Rewrite these tables of a page beside the kept records, from these and those of further files, and keep all records."""
    found = records_by_key(kept, others)
    records = [found[key] for key in sorted(found)]
    rewrite(kept.parent / page, {name: table(records) for name, table in tables.items()})
    pack(records, kept)


def placed(text: str, name: str, lines: Sequence[str]) -> str:
    """Return the text with `lines` between the marks of table `name`. Raises ValueError where the marks are missing."""
    pattern = re.compile(rf"(<!-- {name} -->\n).*?(<!-- end -->)", re.DOTALL)
    if not pattern.search(text):
        raise ValueError(f"the page has no place for the table {name}: <!-- {name} --> ... <!-- end -->")
    return pattern.sub(lambda found: f"{found[1]}" + "\n".join(["", *lines, "", ""]) + f"{found[2]}", text, count=1)


def _named(rows: Sequence[Row]) -> dict[str, Row]:
    return {row.name: row for row in rows}


def _of(records: Sequence[Record], rows: Sequence[Row], samples: int) -> dict[str, list[Record]]:
    """Return the records of the rows by what was run, not by name: rows may be renamed, and a row of two tables is run once."""
    known = {record["key"]: record for record in records}
    base = BASE.read_text("utf-8")
    seeds = sorted({record["seed"] for record in records})
    found = {row.name: [known.get(key_of(row, seed, samples=samples, base=base)) for seed in seeds] for row in rows}
    return {name: [record for record in some if record] for name, some in found.items() if any(some)}


def _costs(records: Sequence[Record], cost: Callable[[Record], float]) -> Estimate:
    return estimate([cost(record) for record in records])


def differences(runs: Runs) -> dict[str, Estimate]:
    """Return final losses minus that of DiLoCo with the same start, paired by seed, so that rows of different seeds compare."""
    start = losses_of(runs.get(SAME_START, ()))
    found = {name: paired(losses_of(records), start) for name, records in runs.items()}
    return {name: difference for name, difference in found.items() if difference is not None}


# --- tables ----------------------------------------------------------------------------------------------------------


def main_table(runs: Runs, bases: Runs | None = None) -> list[str]:
    """Return every row beside DiLoCo of the same start and with H tuned, which are in `bases` where not among the rows."""
    bases = runs if bases is None else bases
    lines = [
        f"| row | seeds | final loss | minus {SAME_START} | minus {TUNED} | rounds | inner steps | MB sent per peer "
        "| s, measured model | h, 150M emulated |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for name, records in runs.items():
        cells = [
            name,
            str(len(records)),
            _costs(records, lambda r: r["loss"]).shown(3),
            *(_minus(records, bases.get(other, ())) if other != name else "" for other in (SAME_START, TUNED)),
            *_counts(records),
            f"{_costs(records, lambda r: timed(r, SMALL)[-1][SECONDS]).mean:.0f}",
            f"{_costs(records, lambda r: timed(r, LARGE)[-1][SECONDS]).mean / 3600:.2f}",
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return lines


def _minus(records: Sequence[Record], others: Sequence[Record]) -> str:
    difference = paired(losses_of(records), losses_of(others))
    return difference.shown(3) if difference else ""


def _counts(records: Sequence[Record]) -> list[str]:
    """Return rounds, inner steps, and MB sent per peer."""
    return [
        f"{_costs(records, lambda r: r['rounds']).mean:.0f}",
        f"{_costs(records, lambda r: r['inner_steps']).mean:.0f}",
        f"{_costs(records, lambda r: r['bytes_per_peer']).mean / 1e6:.1f}",
    ]


def ablation_table(runs: Runs, main: Runs) -> list[str]:
    """Return each row beside the one that it changes: the whole method, or its form with one instance."""
    lines = [
        f"| row | seeds | final loss | minus the row that it changes | minus {SAME_START} | minus {TUNED} "
        "| rounds | inner steps | MB sent per peer |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for name, records in runs.items():
        base = ONE if name == FULL or name.startswith("one") else FULL
        cells = [
            name,
            str(len(records)),
            _costs(records, lambda r: r["loss"]).shown(3),
            _minus(records, main.get(base, ())) if name != ONE else "",
            *(_minus(records, main.get(other, ())) for other in (SAME_START, TUNED)),
            *_counts(records),
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return lines


def overlap_table(runs: Runs) -> list[str]:
    """Return each H beside its row without overlap; times by the emulated clock of the real state machines."""
    lines = [
        f"| row | seeds | final loss | minus no overlap | rounds | computing | h, {STEADY.name} |",
        "|---|---|---|---|---|---|---|",
    ]
    plain = {name.partition(",")[0]: losses_of(records) for name, records in runs.items() if "overlap none" in name}
    for name, records in runs.items():
        others = {} if "overlap none" in name else plain.get(name.partition(",")[0], {})
        difference = paired(losses_of(records), others)
        cells = [
            name,
            str(len(records)),
            _costs(records, lambda r: r["loss"]).shown(3),
            difference.shown(3) if difference else "",
            f"{_costs(records, lambda r: r['rounds']).mean:.0f}",
            f"{_costs(records, lambda r: r['utilisation']).mean:.1%}",
            f"{_costs(records, lambda r: r['seconds']).mean / 3600:.2f}",
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return lines


def reached_table(runs: Runs) -> list[str]:
    """Return the cost of reaching the target loss, as how many times less than the two DiLoCo rows."""
    if SAME_START not in runs or TUNED not in runs:
        return ["(the DiLoCo rows are missing)"]
    targets = {record["seed"]: record["loss"] + NEAR for record in runs[SAME_START]}
    costs = (("samples", SAMPLES), ("rounds", ROUNDS), ("bytes", BYTES), ("inner steps", STEPS), ("150M emulated", SECONDS))
    head = " | ".join(label for label, _ in costs)
    lines = [f"| row | against | {head} |", "|---|---|" + "---|" * len(costs)]
    for name, records in runs.items():
        for other in (SAME_START, TUNED):
            if name == other:
                continue
            cells = [_advantage(records, runs[other], targets, column) for _, column in costs]
            lines.append(f"| {name} | {other} | {' | '.join(cells)} |")
    return lines


def near_table(runs: Runs) -> list[str]:
    """Return how many times fewer rounds than DiLoCo of the same start are needed, by how near its final loss has to be."""
    distances = (0.03, 0.05, NEAR)
    head = " | ".join(f"to {distance:.2f} above" for distance in distances)
    lines = [f"| row | in the whole run | {head} |", "|---|---|" + "---|" * len(distances)]
    start = runs.get(SAME_START, ())
    wholes = {record["seed"]: record["rounds"] for record in start}
    for name, records in runs.items():
        ratios = [wholes[record["seed"]] / record["rounds"] for record in records if record["seed"] in wholes]
        if name == SAME_START or not ratios:
            continue
        targets = [{record["seed"]: record["loss"] + distance for record in start} for distance in distances]
        cells = [_advantage(records, start, target, ROUNDS) for target in targets]
        lines.append(f"| {name} | {estimate(ratios).shown(2)} | {' | '.join(cells)} |")
    return lines


def long_table(runs: Runs) -> list[str]:
    """Return runs several times as long, beside DiLoCo of the same start and the well-chosen fixed batch."""
    lines = [
        f"| row | seeds | final loss | minus {LONG_START} | minus {LONG_FIXED} | rounds | inner steps | MB sent per peer "
        f"| rounds to {NEAR:.2f} above, times fewer | bytes | inner steps |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    start = runs.get(LONG_START, ())
    targets = {record["seed"]: record["loss"] + NEAR for record in start}
    for name, records in runs.items():
        cells = [
            name,
            str(len(records)),
            _costs(records, lambda r: r["loss"]).shown(3),
            *(_minus(records, runs.get(other, ())) if other != name else "" for other in (LONG_START, LONG_FIXED)),
            *_counts(records),
            *(_advantage(records, start, targets, cost) if name != LONG_START else "" for cost in (ROUNDS, BYTES, STEPS)),
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return lines


def _advantage(records: Sequence[Record], others: Sequence[Record], targets: Mapping[int, float], column: int) -> str:
    """Return the others' cost over ours at the target of each seed; above 1 is better."""
    theirs = {record["seed"]: record for record in others if record["seed"] in targets}
    ours = [record for record in records if record["seed"] in theirs]
    ratios = []
    for record in ours:
        seed = record["seed"]
        own = at_loss(timed(record, LARGE), targets[seed], column)
        other = at_loss(timed(theirs[seed], LARGE), targets[seed], column)
        if own == 0:
            return "sends nothing"
        if own is not None and other is not None:
            ratios.append(other / own)
    missed = len(ours) - len(ratios)
    if not ratios:
        return "not reached"
    return estimate(ratios).shown(2) + (f", {missed} of {len(ours)} not reached" if missed else "")


def front_table(runs: Runs) -> list[str]:
    """Return the fronts of rows with enough seeds. A run without an exchange is only on the front of the inner steps."""
    lines = [f"| cost | rows on the front, cheapest first (cost, loss minus {SAME_START}) |", "|---|---|"]
    losses = {name: loss for name, loss in differences(runs).items() if len(runs[name]) >= FEWEST_SEEDS}
    for label, column, unit in (("outer rounds", ROUNDS, 1.0), ("MB sent per peer", BYTES, 1e-6), ("inner steps", STEPS, 1.0)):
        costs = {name: _costs(runs[name], lambda r, c=column: with_end(r)[-1][c]).mean * unit for name in losses}  # type: ignore[misc]
        compared = [name for name in losses if column == STEPS or runs[name][0]["bytes_per_peer"] > 0]
        names = front({name: (costs[name], losses[name].mean) for name in compared})
        lines.append(
            f"| {label} | " + "; ".join(f"{name} ({costs[name]:.1f}, {losses[name].shown(3)})" for name in names) + " |"
        )
    return lines


def unequal_table(runs: Runs) -> list[str]:
    """Return the rows of unequal peers by the clock of the emulation, at the target of the row that waits."""
    lines = [
        "| row | final loss | hours | hours to the loss of waiting DiLoCo's end + 0.10 | rounds |",
        "|---|---|---|---|---|",
    ]
    if not runs:
        return lines
    first = next(iter(runs.values()))
    targets = {record["seed"]: record["loss"] + NEAR for record in first}
    for name, records in runs.items():
        reached = [
            at_loss(with_end(record), targets[record["seed"]], SECONDS) for record in records if record["seed"] in targets
        ]
        known = [seconds / 3600 for seconds in reached if seconds is not None]
        cells = [
            name,
            _costs(records, lambda r: r["loss"]).shown(3),
            _costs(records, lambda r: r["seconds"] / 3600).shown(2),
            estimate(known).shown(2) if len(known) == len(reached) and known else "not reached",
            f"{_costs(records, lambda r: r['rounds']).mean:.0f}",
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return lines


def plan_table(runs: Runs) -> list[str]:
    """Return the estimates of `adloco-peer plan` beside the counts; extrapolated where half of the samples are spent."""
    lines = [
        "| row | rounds counted | at most | at least | from half way on as it is | growing as so far |",
        "|---|---|---|---|---|---|",
    ]
    for name, records in runs.items():
        record = records[0]
        batch = load_base(record["settings"]).batch
        (requested, _, steps, hosts), *_ = record["log"][0]
        work = Workload(num_samples=record["samples"], num_workers=hosts, inner_steps=steps, initial_batch=requested / hosts)
        growth_cap = batch.growth_cap if batch.is_tested else 1.0
        known = bounds(work, _ANY_LINK, growth_cap=growth_cap, max_batch=batch.max_batch)
        at_most, at_least = [str(item.rounds) for item in known] if len(known) == 2 else [str(known[0].rounds), ""]
        cells = [at_most, at_least, *_from_half_way(record, batch.max_batch)]
        lines.append(f"| {name} | {record['rounds']} | {' | '.join(cells)} |")
    return lines


_ANY_LINK = Link(num_parameters=1, num_workers=1, bytes_per_value=4, megabits_per_second=1)
"""A link for counts of rounds, which do not depend on it."""


def _from_half_way(record: Record, max_batch: int) -> tuple[str, str]:
    """Return the rounds of the whole run, as `plan --workdir` extrapolates them once half of the samples are spent."""
    spent = [sum(requested * steps for requested, _, steps, _ in line) for line in record["log"]]
    before = [sum(spent[:number]) for number in range(len(spent))]
    now = max(number for number, done in enumerate(before) if done <= record["samples"] / 2)
    left = record["samples"] - before[now]
    growth = max(0.0, (spent[now] - spent[0]) / max(1, now))
    most = max_batch * sum(line[2] for line in record["log"][now])
    rounds = [growing_rounds(left, per_round=spent[now], growth=rate, most_per_round=most) for rate in (0.0, growth)]
    return str(now + rounds[0]), str(now + rounds[1])


def tuning_table(runs: Runs) -> list[str]:
    lines = ["| tried | final loss | rounds | inner steps |", "|---|---|---|---|"]
    lines += [
        f"| {name} | {some[0]['loss']:.3f} | {some[0]['rounds']} | {some[0]['inner_steps']} |" for name, some in runs.items()
    ]
    return lines


def settings_table(rows: Mapping[str, Row]) -> list[str]:
    lines = ["| row | `--set` beside benchmarks/method/base.yaml | beside the configuration |", "|---|---|---|"]
    usual = Row(name="", settings=())
    for name, row in rows.items():
        beside = []
        if row.speeds != usual.speeds:
            beside.append(f"peers of speed {', '.join(f'{speed:g}' for speed in row.speeds)}")
        if row.clock != usual.clock:
            beside.append(f"clock: {row.clock}")
        if row.micro_batch_limit != usual.micro_batch_limit:
            beside.append(f"`--peer-set max_micro_batch={row.micro_batch_limit}`")
        if row.steps_exponent:
            beside.append(f"H times (B / B0)^{row.steps_exponent:g}, at most {row.most_steps}: not in the product")
        if row.decay_rounds:
            beside.append(f"learning rate over {row.decay_rounds} rounds")
        if row.is_last_gradient:
            beside.append("the test reads last gradients: not in the product")
        lines.append(f"| {name} | `{' '.join(row.settings)}` | {'; '.join(beside)} |")
    return lines
