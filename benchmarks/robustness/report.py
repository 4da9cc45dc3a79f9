"""Tables of docs/results/robustness.md from records: what lies and rules cost, in nats of held-out loss, paired by seed."""

import argparse
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from benchmarks.method.figures import estimate, paired
from benchmarks.method.report import rewrite
from benchmarks.method.store import RESULTS, Record, pack, records_by_key
from benchmarks.robustness.attacks import ATTACKS
from benchmarks.robustness.cells import RULES, Cell

KEPT = RESULTS / "robustness.jsonl.gz"
"""Records of runs that were made before; a reader's own go beside them."""
MOST_SEEDS = 10
SWARMS = {
    "float32, even": Cell(),
    "float32, uneven": Cell(data="uneven"),
    "int8, even": Cell(codec="int8"),
    "int8, uneven": Cell(codec="int8", data="uneven"),
    "sign, even": Cell(codec="sign"),
    "sign, uneven": Cell(codec="sign", data="uneven"),
    "sparse, even": Cell(codec="topk2", division="named"),
    "sparse, uneven": Cell(codec="topk2", division="named", data="uneven"),
}
"""Codec or preset, and data; `sparse` is `topk2` with the mean per place."""
ATTACKED = {
    "robust-robust": {name: replace(cell, liars=2, rule="robust") for name, cell in SWARMS.items()},
    "robust-rules": {rule: Cell(liars=2, rule=rule) for rule in RULES},
    "robust-per-place": {rule: replace(SWARMS["sparse, even"], liars=2, rule=rule) for rule in ("mean", "clip", "robust")},
    "robust-long": {
        name: Cell(codec="sign", data=data, rounds=64, momentum=0.9, liars=2, rule="robust")
        for name, data in (("sign, even", "even"), ("sign, uneven", "uneven"))
    },
    "robust-others": {
        "one of eight": Cell(liars=1, rule="robust"),
        "three of ten": Cell(hosts=10, liars=3, rule="robust"),
        "two of eight, `topk2`": Cell(liars=2, codec="topk2", rule="robust"),
    },
}
"""Tables of attacks by the mark of their place in docs/results/robustness.md: the swarm of each column."""


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
    attacked = {name: attack_table(found, columns) for name, columns in ATTACKED.items()}
    honest = {
        "robust-price": price_table(found),
        "robust-honest": honest_table(found),
        "robust-left-out": left_out_table(found),
    }
    return honest | attacked


def price_table(records: Records) -> list[str]:
    """Nobody lies; against the plain mean of the same codec and data."""
    lines = _head(["rule", *SWARMS])
    for rule in RULES[1:]:
        lines.append(_row([f"`{rule}`", *(records.difference(replace(cell, rule=rule)) for cell in SWARMS.values())]))
    plain = [[record["loss"] for record in records.of(cell)[:MOST_SEEDS]] for cell in SWARMS.values()]
    return [*lines, _row(["`mean`: loss", *(f"{estimate(losses).mean:.3f}" if losses else "" for losses in plain)])]


def attack_table(records: Records, columns: Mapping[str, Cell]) -> list[str]:
    """Each attack in each swarm, against its honest hosts alone."""
    lines = _head(["attack", *columns])
    for attack in ATTACKS:
        found = [records.difference(replace(cell, attack=attack)) for cell in columns.values()]
        if any(found):
            lines.append(_row([attack, *found]))
    return lines if len(lines) > 2 else ["Not run so far."]


def honest_table(records: Records) -> list[str]:
    """How near honest hosts come to being left out, and to being copies, where nobody lies."""
    nearness = ("least median cosine over the median host's", "least distance over the usual one")
    lines = _head(["swarm", "rounds", *nearness, "honest hosts left out"])
    for name, cell in SWARMS.items():
        some = records.of(replace(cell, rule="robust"))
        ratios = [ratio for record in some for ratio in record["least_ratio"]]
        distances = [ratio for record in some for ratio in record["nearest"]]
        if some:
            out = sum(len(hosts) for record in some for hosts in record["left_out"])
            lines.append(_row([name, f"{len(ratios)}", f"{min(ratios):.2f}", f"{min(distances):.2f}", f"{out}"]))
    return lines


def left_out_table(records: Records) -> list[str]:
    """Whom `robust` left out under each attack: of all swarms, data and codecs together."""
    lines = _head(["attack", "rounds", "liars left out, of", "honest hosts left out, of"])
    for attack in ATTACKS:
        rounds = liars = honest = all_liars = all_honest = 0
        for cell, record in records.all():
            if (cell.attack, cell.rule) != (attack, "robust"):
                continue
            num_honest, count = cell.hosts - cell.liars, len(record["left_out"])
            rounds, all_liars, all_honest = rounds + count, all_liars + count * cell.liars, all_honest + count * num_honest
            out = [host for hosts in record["left_out"] for host in hosts]
            honest += sum(host < num_honest for host in out)
            liars += sum(host >= num_honest for host in out)
        if rounds:
            lines.append(_row([attack, f"{rounds}", f"{liars} of {all_liars}", f"{honest} of {all_honest}"]))
    return lines


def _head(names: Sequence[str]) -> list[str]:
    return [_row(names), _row(["---"] * len(names))]


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
