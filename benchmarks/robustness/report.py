"""Tables of docs/results/robustness.md from records: what lies and rules cost, in nats of held-out loss, paired by seed."""

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import product

from benchmarks.method.figures import estimate, paired
from benchmarks.method.report import rewrite
from benchmarks.method.store import RESULTS, Record, pack, records_by_key
from benchmarks.robustness.attacks import ATTACKS
from benchmarks.robustness.cells import RULES, Cell, judged

KEPT = RESULTS / "robustness.jsonl.gz"
"""Records of runs that were made before; a reader's own go beside them."""
MOST_SEEDS = 10
BEFORE = "robust before"
"""The rule `robust` as it was: by the mean of the others, copies with the weight of each."""
SOME = ("clip", BEFORE, "robust")
ATTACKED = {
    "robust-two": (Cell(liars=2), ("mean", BEFORE, *RULES[1:])),
    "robust-uneven": (Cell(liars=2, data="uneven"), SOME),
    "robust-int8": (Cell(liars=2, codec="int8"), SOME),
    "robust-topk2": (Cell(liars=2, codec="topk2"), SOME),
    "robust-per-place": (Cell(liars=2, codec="topk2", division="named"), ("mean", *SOME)),
    "robust-sign": (Cell(liars=2, codec="sign"), ("robust",)),
    "robust-one": (Cell(liars=1), SOME),
    "robust-three": (Cell(hosts=10, liars=3), SOME),
}
"""Tables of attacks, by the mark of their place in docs/results/robustness.md."""


def by(cell: Cell, rule: str) -> Cell:
    """The cell by the rule of a column or row."""
    return replace(cell, rule="robust", judge="mean") if rule == BEFORE else judged(cell, rule)


class Records:
    """Runs by what was run."""

    def __init__(self, records: Sequence[Record]) -> None:
        self._by_cell: dict[Cell, dict[int, Record]] = {}
        for record in sorted(records, key=lambda record: record["seed"]):
            self._by_cell.setdefault(Cell(**record["cell"]), {})[record["seed"]] = record

    def of(self, cell: Cell) -> Sequence[Record]:
        return list(self._by_cell.get(cell, {}).values())

    def all(self) -> Iterator[tuple[Cell, Record]]:
        return ((cell, record) for cell, by_seed in self._by_cell.items() for record in by_seed.values())

    def difference(self, cell: Cell) -> str:
        """Final loss minus that of the honest hosts alone by the plain mean, over the seeds of both."""
        ours, theirs = ({record["seed"]: record["loss"] for record in self.of(one)} for one in (cell, cell.baseline))
        common = sorted(ours.keys() & theirs.keys())[:MOST_SEEDS]
        if not common:
            return ""
        lost = sum(ours[seed] is None or ours[seed] > 2 * theirs[seed] for seed in common)
        if lost:
            return f"destroyed ({lost} of {len(common)})"
        found = paired({seed: ours[seed] for seed in common}, {seed: theirs[seed] for seed in common})
        assert found is not None
        return f"{'+' if found.mean >= 0 else ''}{found.shown(3)} ({len(common)})"


def tabulate(arguments: argparse.Namespace) -> None:
    """Rewrite the tables of docs/results/robustness.md, and keep the records."""
    records = records_by_key(KEPT, arguments.runs)
    rewrite(RESULTS / "robustness.md", tables(Records(list(records.values()))))
    pack([records[key] for key in sorted(records)], KEPT)


def tables(found: Records) -> dict[str, list[str]]:
    """By the marks of their places."""
    attacked = {name: attack_table(found, cell, rules) for name, (cell, rules) in ATTACKED.items()}
    honest = {
        "robust-price": price_table(found),
        "robust-honest": honest_table(found),
        "robust-left-out": left_out_table(found),
    }
    return honest | attacked


def price_table(records: Records) -> list[str]:
    """Nobody lies; against the plain mean of the same codec and data."""
    kinds = [(codec, data) for codec in ("float32", "int8", "topk2", "sign") for data in ("even", "uneven")]
    kinds = [kind for kind in kinds if records.of(Cell(codec=kind[0], data=kind[1]))]
    lines = _head(["rule", *(f"{codec}, {data}" for codec, data in kinds)])
    for rule in (BEFORE, *RULES[1:]):
        cells = [by(Cell(codec=codec, data=data), rule) for codec, data in kinds]
        lines.append(_row([f"`{rule}`", *(records.difference(cell) for cell in cells)]))
    plain = [estimate([r["loss"] for r in records.of(Cell(codec=c, data=d))[:MOST_SEEDS]]).mean for c, d in kinds]
    return [*lines, _row(["`mean`: loss", *(f"{loss:.3f}" for loss in plain)])]


def attack_table(records: Records, cell: Cell, rules: Sequence[str]) -> list[str]:
    """Each attack of the liars of `cell` by each rule, against the honest hosts alone."""
    lines = _head(["attack", *(f"`{rule}`" for rule in rules)])
    for attack in ATTACKS:
        found = [records.difference(by(replace(cell, attack=attack), rule)) for rule in rules]
        if any(found):
            lines.append(_row([attack, *found]))
    return lines if len(lines) > 2 else ["Not run so far."]


def honest_table(records: Records) -> list[str]:
    """How near honest hosts come to being left out, and to being copies, where nobody lies."""
    nearness = ("least agreement over the median one", "least distance over the usual one")
    lines = _head(["data, codec", "rule", "threshold", "rounds", *nearness, "honest hosts left out"])
    cells = [
        by(Cell(data=data, codec=codec, least_cosine=threshold), rule)
        for data in ("even", "uneven")
        for codec in ("float32", "int8", "topk2", "sign")
        for rule in (BEFORE, "robust")
        for threshold in (0.1, 0.3)
    ]
    for cell in cells:
        some = records.of(cell)
        agreements = [ratio for record in some for ratio in record["least_ratio"]]
        distances = [ratio for record in some for ratio in record.get("nearest", [])]
        if agreements:
            rule = f"`{'robust' if cell.judge == 'pairs' else BEFORE}`"
            nearest = f"{min(distances):.2f}" if distances else ""
            out = sum(len(hosts) for record in some for hosts in record["left_out"])
            kind = [f"{cell.data}, {cell.codec}", rule, f"{cell.least_cosine}"]
            lines.append(_row([*kind, f"{len(agreements)}", f"{min(agreements):.2f}", nearest, f"{out}"]))
    return lines


def left_out_table(records: Records) -> list[str]:
    """Whom `robust` left out under each attack, now and before: of all swarms, data and codecs together."""
    lines = _head(["attack", "rule", "rounds", "liars left out, of", "honest hosts left out, of"])
    for attack, judge in product(ATTACKS, ("mean", "pairs")):
        rounds = liars = honest = all_liars = all_honest = 0
        for cell, record in records.all():
            if (cell.attack, cell.rule, cell.judge) != (attack, "robust", judge):
                continue
            num_honest, count = cell.hosts - cell.liars, len(record["left_out"])
            rounds, all_liars, all_honest = rounds + count, all_liars + count * cell.liars, all_honest + count * num_honest
            out = [host for hosts in record["left_out"] for host in hosts]
            honest += sum(host < num_honest for host in out)
            liars += sum(host >= num_honest for host in out)
        if rounds:
            rule = f"`{'robust' if judge == 'pairs' else BEFORE}`"
            lines.append(_row([attack, rule, f"{rounds}", f"{liars} of {all_liars}", f"{honest} of {all_honest}"]))
    return lines


def _head(names: Sequence[str]) -> list[str]:
    return [_row(names), _row(["---"] * len(names))]


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
