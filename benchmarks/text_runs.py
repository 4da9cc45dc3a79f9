"""Runs on the text of the packages at one size: their records, and their table beside the tables of counts."""

import argparse
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from benchmarks.method.figures import estimate, losses_of, shown, tried_words
from benchmarks.method.report import rewrite
from benchmarks.method.rows import TUNING_SEED, Row
from benchmarks.method.run import BASE, run_row
from benchmarks.method.store import Act, Record, Store, command_line, key_of
from benchmarks.method.store import pack as keep
from benchmarks.package_text import PACKAGE_CHARACTERS, Prepared, kneser_ney_losses, ngram_losses, prepared

COUNTED = "tables of counts"
"""The key of the record of these tables."""
POINTS = 8
"""How often a run is measured."""
PRICED = ("rounds", "bytes_per_peer", "loss")
TUNING_HEAD = ("| row | tried | constant: loss |", "|---|---|---|")
"""The head of a table of `tuning_line`s."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """What all runs of a page have in common."""

    kept: Path
    """Records of earlier runs; a reader's own go beside them."""
    vocab_size: int
    samples: int
    tuning_samples: int
    """Samples of a run of the tuning seed."""
    order: int
    """Tokens of the longest table of counts."""
    kneser_ney: tuple[int, ...] = ()
    """Orders of the tables that are smoothed by Kneser and Ney."""
    package_characters: int = PACKAGE_CHARACTERS

    def prepared(self) -> Prepared:
        """Return the text of this machine."""
        return prepared(self.vocab_size, self.package_characters)

    def samples_of(self, seed: int) -> int:
        return self.tuning_samples if seed == TUNING_SEED else self.samples


class Runs(Store):
    """The runs of one size, each with its text."""

    def __init__(self, scale: Scale, *files: Path, text: str | None = None) -> None:
        """`text`: the digest of the training text, which is part of every key; None: that of the last tables of counts."""
        super().__init__(scale.kept, *files)
        self.scale = scale
        self.text = text or self.records[COUNTED]["text"]

    def find(self, row: Row, seed: int) -> Record | None:
        return self.records.get(self.key(row, seed))

    def of_seeds(self, row: Row, seeds: Sequence[int]) -> dict[int, Record]:
        """Return the records of the seeds that were run."""
        return {seed: record for seed in seeds if (record := self.find(row, seed)) is not None}

    def count(self) -> None:
        """Make the tables of counts, unless they are of this text."""
        if self.records.get(COUNTED, {}).get("text") != self.text:
            scale, (rows, _, size) = self.scale, self.scale.prepared()
            losses = ngram_losses(rows, scale.vocab_size, scale.samples, scale.order)
            harder = kneser_ney_losses(rows, scale.vocab_size, scale.samples, scale.kneser_ney)
            record = {"text": self.text, "bytes_per_token": round(size, 4), "losses": losses, "kneser_ney": harder}
            self.keep(COUNTED, record)

    def train(self, row: Row, seed: int) -> None:
        """Train the row; takes minutes where there is no record yet."""
        if self.find(row, seed) is not None:
            return
        started, scale = time.monotonic(), self.scale
        text = scale.prepared()[0], scale.vocab_size
        record = run_row(row, seed, samples=scale.samples_of(seed), text=text, points=POINTS)
        self.keep(self.key(row, seed), {**record, "text": self.text})
        shown = [setting for setting in row.settings if not setting.startswith(("model.", "data."))]
        print(f"seed {seed}  {row.name:24s} {record['loss']:.4f}  {time.monotonic() - started:.0f} s  {shown}", flush=True)

    def keep_all(self) -> None:
        """Keep the records of this text beside the page."""
        keep([record for _, record in sorted(self.records.items()) if record["text"] == self.text], self.scale.kept)

    def key(self, row: Row, seed: int) -> str:
        return key_of(row, seed, samples=self.scale.samples_of(seed), base=BASE.read_text("utf-8") + self.text)

    def best(self, candidates: Mapping[str, Row], seed: int = TUNING_SEED) -> str:
        """Return the constant whose run of the seed ended lowest, once all of them were run."""
        missing = [constant for constant, row in candidates.items() if self.find(row, seed) is None]
        assert not missing, f"not run with {', '.join(missing)}"
        best = self.best_so_far(candidates, seed)
        assert best is not None
        return best

    def best_so_far(self, candidates: Mapping[str, Row], seed: int = TUNING_SEED) -> str | None:
        """Return the best constant of those that were run, if any were."""
        losses = self.tried(candidates, seed)
        return min(losses, key=losses.__getitem__, default=None)

    def tried(self, candidates: Mapping[str, Row], seed: int = TUNING_SEED) -> dict[str, float]:
        """Return final losses of the seed."""
        found = {constant: self.find(row, seed) for constant, row in candidates.items()}
        return {constant: record["loss"] for constant, record in found.items() if record is not None}


def run_table(runs: Runs, rows: Sequence[Row], seeds: Sequence[int]) -> list[str]:
    """Return every row that has a seed, its loss paired with that of the first row, and the tables of counts."""
    counted = runs.records[COUNTED]
    size = counted["bytes_per_token"]
    lines = [
        "| row | seeds | final loss, nats per token | per byte | minus DiLoCo | rounds | inner steps | MB sent per peer |",
        "|---|---|---|---|---|---|---|---|",
    ]
    found = {row.name: runs.of_seeds(row, seeds) for row in rows}
    losses = {name: losses_of(some.values()) for name, some in found.items()}
    first = rows[0].name
    for name, some in found.items():
        if not some:
            continue
        loss = estimate([*losses[name].values()])
        counts = [fmean(record[what] for record in some.values()) for what in ("rounds", "inner_steps", "bytes_per_peer")]
        costs = f"{counts[0]:.0f} | {counts[1]:.0f} | {counts[2] / 1e6:.0f}"
        minus = shown(losses[name], losses[first]) if name != first else ""
        lines.append(f"| {name} | {len(some)} | {loss.shown(3)} | {loss.mean / size:.3f} | {minus} | {costs} |")
    tables = {f"{order}-grams": loss for order, loss in counted["losses"].items()}
    tables |= {f"{order}-grams, Kneser-Ney": loss for order, loss in counted.get("kneser_ney", {}).items()}
    lines += [f"| table of {name} | | {loss:.3f} | {loss / size:.3f} | | | | |" for name, loss in tables.items()]
    return lines


def price_table(
    runs: Runs,
    planned: Sequence[tuple[Row, Row]],
    seeds: Sequence[int],
    *,
    comparisons: int,
    exploratory: Sequence[tuple[Row, Row]] = (),
    names: tuple[str, str] = ("batch", "schedule"),
) -> list[str]:
    """Return rows beside those that they are compared with, on the seeds that both have. `comparisons`: how many are planned,
    for all of which at once the corrected intervals hold. `names`: the names of the two at the head."""
    lines = [
        f"| {' | '.join(names)} | seeds | rounds | MB sent per peer | final loss | {' minus '.join(names)} | corrected"
        " | by seed |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for pair in (*planned, *exploratory):
        ours, theirs = (losses_of(runs.of_seeds(row, seeds).values()) for row in pair)
        common = sorted(ours.keys() & theirs.keys())
        if not common:
            continue
        sides = [[runs.of_seeds(row, common)[seed] for seed in common] for row in pair]
        rounds, sent, losses = ([fmean(record[what] for record in side) for side in sides] for what in PRICED)
        cells = (
            f"{rounds[0]:.0f} : {rounds[1]:.0f}",
            f"{sent[0] / 1e6:.0f} : {sent[1] / 1e6:.0f}",
            f"{losses[0]:.3f} : {losses[1]:.3f}",
            shown(ours, theirs),
            shown(ours, theirs, comparisons) if pair in planned else "",
        )
        each = ", ".join(f"{ours[seed] - theirs[seed]:.3f}" for seed in common)
        lines.append(f"| {pair[0].name} | {pair[1].name} | {len(common)} | {' | '.join(cells)} | {each} |")
    return lines


def tuning_line(runs: Runs, name: str, what: str, candidates: Mapping[str, Row], seed: int = TUNING_SEED) -> str:
    """Return final losses of the seed by the constants that were tried, with the best marked."""
    return f"| {name} | {what} | {tried_words(runs.tried(candidates, seed), runs.best_so_far(candidates, seed))} |"


def run_command(
    name: str,
    doc: str | None,
    *,
    scale: Scale,
    seeds: Sequence[int],
    train: Act,
    tables: Callable[[Runs], dict[str, list[str]]],
) -> None:
    """Run `python -m benchmarks.NAME`: `run` trains what the records lack, `report` rewrites the tables of the page and keeps
    all records of its text."""

    def tabulate(arguments: argparse.Namespace) -> None:
        runs = Runs(scale, *arguments.runs)
        rewrite(scale.kept.parent / "sizes.md", tables(runs))
        runs.keep_all()

    command_line(name, doc, seeds=seeds, train=train, tabulate=tabulate).act()
