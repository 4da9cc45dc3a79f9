"""Outer learning rate and momentum, tuned for each H of DiLoCo and for batches that grow: what do few rounds cost then?

python -m benchmarks.tuned_outer run       train what the kept records and tuned_outer.jsonl lack; some 10 core seconds a run
python -m benchmarks.tuned_outer report    the tables from both, into docs/results/tuned.md; keeps the records of both

Model, text, samples, peers, stages and seeds are those of `benchmarks.tuned`, and so are the inner learning rate and its
warm-up, which won there: those of H 32 and H 64 for every H, and its own for every batch that grows. Each row gets nine pairs
of outer rate and momentum on the first tuning seed, so 15 runs of tuning, and its winner runs on five seeds that chose nothing.
All of it is exploratory.
"""

import argparse
from collections.abc import Mapping
from functools import partial
from statistics import fmean

from benchmarks import tuned
from benchmarks.method.figures import estimate, losses_of, shown
from benchmarks.method.report import rewrite
from benchmarks.method.rows import LINEAR, SEESAW, Row, diloco
from benchmarks.method.store import RESULTS, Record, command_line, pack, records_by_key
from benchmarks.tuned import CAPPED, FIRST, METHODS, OTHERS, SEEDS, TEST, Pair, Runs, Search, train

KEPT = RESULTS / "tuned_outer.jsonl.gz"
"""Records of runs that were made before; a reader's own go beside them."""
LENGTHS = (16, 32, 64, 128, 256)
RATES = ("0.5", "0.7", "1.0")
USUAL: dict[int, Pair] = {32: ("0.7", "0.5"), 64: ("0.7", "0.7")}
"""Outer rate and momentum of the rows of `benchmarks.tuned`."""
GROWING: dict[str, Pair] = {TEST: ("6e-3", 2048), CAPPED: ("8.5e-3", 2048), SEESAW: ("8.5e-3", 1024), LINEAR: ("8.5e-3", 1024)}
"""Rows of `benchmarks.tuned` with H 32, each with the inner rate and the samples of warm-up that won there."""


def momenta(inner_steps: int) -> tuple[str, ...]:
    """Longer rounds are fewer, and were better with a larger momentum where both were tried."""
    return ("0.3", "0.5", "0.7") if inner_steps <= 32 else ("0.5", "0.7", "0.9")


def grid(inner_steps: int) -> list[Pair]:
    return [(rate, momentum) for rate in RATES for momentum in momenta(inner_steps)]


def row_of(name: str, pair: Pair) -> Row:
    rate, momentum = pair
    inner, samples = GROWING.get(name, ("8.5e-3", 2048))
    settings = (f"inner.learning_rate={inner}", "inner.warmup_steps=null", f"inner.warmup_samples={samples}")
    outer = f"outer.learning_rate={rate}"
    if name in GROWING:
        return METHODS[name](*settings, outer, f"outer.momentum={momentum}")
    return diloco(8, int(name.removeprefix("H ")), *settings, outer, momentum=float(momentum), name=f"DiLoCo B 8 {name}")


GRIDS = {f"H {inner_steps}": grid(inner_steps) for inner_steps in LENGTHS} | {name: grid(32) for name in GROWING}
SEARCH = Search(grids=GRIDS, row_of=row_of)


def winner_table(runs: Runs, others: Runs) -> list[str]:
    """Return one line per H, with the loss beside that of H 32, that of the rows of `benchmarks.tuned` (`others`) and that of
    the batch test there."""
    head = ("H", "rounds", "outer rate", "momentum", "seeds", "final loss", "minus H 32", "minus its usual pair")
    lines = [f"| {' | '.join((*head, f'{TEST}, minus this', 'MB sent per peer'))} |", "|" + "---|" * 10]
    base = losses_of(runs.of_winner("H 32").values()) if "H 32" in runs.whole else {}
    test = losses_of(others.of_winner(TEST).values())
    for name in (name for name in runs.whole if name not in GROWING):
        (rate, momentum), some = runs.winner(name), runs.of_winner(name)
        losses = losses_of(some.values())
        rounds, sent = (fmean(record[what] for record in some.values()) for what in ("rounds", "bytes_per_peer"))
        usual = losses_of(others.of_winner(f"DiLoCo B 8 {name}").values()) if name in ("H 32", "H 64") else {}
        beside = ["" if losses == base else shown(losses, base), shown(losses, usual), shown(test, losses)]
        cells = [name.removeprefix("H "), f"{rounds:.0f}", rate, momentum, len(some), estimate([*losses.values()]).shown(3)]
        lines.append(f"| {' | '.join(map(str, [*cells, *beside, f'{sent / 1e6:.1f}']))} |")
    return lines


def growing_table(runs: Runs, others: Runs) -> list[str]:
    """Return one line per batch that grows, with its loss beside the same row with the usual outer step (`others`), and, at
    the winning outer step of both, beside the linear ramp and DiLoCo with H 32 and H 64."""
    bases = [name for name in (LINEAR, "H 32", "H 64") if name in runs.whole]
    beside = [f"minus {base}" for base in bases]
    head = ("row", "rounds", "outer rate", "momentum", "seeds", "final loss", "minus its usual pair", *beside)
    lines = [f"| {' | '.join(head)} |", "|" + "---|" * len(head)]
    for name in (name for name in GROWING if name in runs.whole):
        (rate, momentum), some = runs.winner(name), runs.of_winner(name)
        losses = losses_of(some.values())
        cells = [name, f"{fmean(record['rounds'] for record in some.values()):.0f}", rate, momentum, len(some)]
        cells += [estimate([*losses.values()]).shown(3), shown(losses, losses_of(others.of_winner(name).values()))]
        cells += ["" if base == name else shown(losses, losses_of(runs.of_winner(base).values())) for base in bases]
        lines.append(f"| {' | '.join(map(str, cells))} |")
    return lines


def grid_table(runs: Runs) -> list[str]:
    """All that was tried: the loss on the first tuning seed and, of the finalists, the mean over three."""
    lines = [f"| row | momentum | {' | '.join(f'outer rate {rate}' for rate in RATES)} |", "|" + "---|" * 5]
    for name in runs.whole:
        finalists, winner = runs.finalists(name), runs.winner(name)
        for momentum in dict.fromkeys(momentum for _, momentum in SEARCH.grids[name]):
            cells = []
            for pair in [(rate, momentum) for rate in RATES]:
                whole = " (**{:.3f}**)" if pair == winner else " ({:.3f})"
                mean = whole.format(runs.mean(name, pair, FIRST, *OTHERS)) if pair in finalists else ""
                cells.append(f"{runs.mean(name, pair, FIRST):.3f}{mean}")
            lines.append(f"| {name} | {momentum} | {' | '.join(cells)} |")
    return lines


def tables(records: Mapping[str, Record]) -> dict[str, list[str]]:
    runs = Runs(records, SEARCH)
    others = Runs(records_by_key(tuned.KEPT, []))
    return {
        "tuned outer": winner_table(runs, others),
        "tuned outer growing": growing_table(runs, others),
        "tuned outer grid": grid_table(runs),
    }


def tabulate(arguments: argparse.Namespace) -> None:
    """Rewrite the tables, and pack the records of whole rows."""
    records = records_by_key(KEPT, arguments.runs)
    rewrite(RESULTS / "tuned.md", tables(records))
    pack([records[key] for key in sorted(Runs(records, SEARCH).keys() & records.keys())], KEPT)


def main() -> None:
    line = command_line("tuned_outer", __doc__, seeds=SEEDS, train=partial(train, search=SEARCH, kept=KEPT), tabulate=tabulate)
    line.run.add_argument("--methods", nargs="+", choices=list(SEARCH.grids), default=list(SEARCH.grids), metavar="ROW")
    line.act()


if __name__ == "__main__":
    main()
