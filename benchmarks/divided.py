"""Do instances pay where machines or data are divided, with a model that beats a table of counts? 270,816 parameters.

python -m benchmarks.divided run --seeds 1 2    train what the kept records and divided.jsonl lack; 3 to 8 core minutes a run
python -m benchmarks.divided report             the tables from both, into docs/results/divided.md; keeps the records of both

The questions of `benchmarks.islands` and `unequal_machines`, and data of their own, with the model, vocabulary and Muon of
`benchmarks.small_vocabulary`. The learning rate is the one tuned there, times the root of the ratio of an instance's batch to
the batch of that tuning; nothing else is tuned. Instances are forked from one and merged at the end with the guard on. The
merge is also computed from the same instances with the guard off and by other weights, which costs no training: of two
instances at three points between them, where every kind of weights lies.

Planned before any run, paired by seed, corrected for all ten at once (COMPARISONS): does a second island pay (one instance
without a border, and one over both, minus one island alone), and does an instance for each island (minus one island alone, and
minus one over both); one instance for each kind of machine minus one over all, and minus the large machines alone, and one over
all minus the large ones alone; instances with data of their own minus one instance on the mixture, and minus as many on the
mixture, and these minus one. Looked at when seeds 1 to 3 were known: the instances on their own kinds, not merged.
"""

import argparse
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from math import sqrt
from statistics import fmean

import torch

from adloco_p2p.config.run_config import RunConfig
from adloco_p2p.core.model.plan import RoundPlan
from adloco_p2p.core.model.scalars import InstanceId
from adloco_p2p.data.feed import IndexedFeed, feed_over
from adloco_p2p.numerics.batch import Batch, Feed
from adloco_p2p.numerics.reduction import weighted_average
from adloco_p2p.training.evaluate import heldout_loss
from adloco_p2p.training.model import build_model
from adloco_p2p.training.shell import ModelShell
from benchmarks import islands, unequal_machines
from benchmarks.method.clock import PROFILES
from benchmarks.method.device import Setting
from benchmarks.method.figures import estimate, losses_of, shown
from benchmarks.method.merging import Watch, merge_weights
from benchmarks.method.report import rewrite
from benchmarks.method.rows import Row, adloco
from benchmarks.method.run import BASE, EVALUATED_TOKENS, HELDOUT_ROWS, HELDOUT_SEED, load_base, settings_of
from benchmarks.method.store import RESULTS, Record, command_line, key_of, pack, records_by_key, train_missing
from benchmarks.method.world import World
from benchmarks.package_kinds import KINDS, count_losses, heldout_rows, rows_of_kinds
from benchmarks.package_text import prepared
from benchmarks.small_vocabulary import PARAMETERS, SAMPLES, SCALE, SHAPE, START, H
from benchmarks.text_runs import COUNTED

KEPT = RESULTS / "divided.jsonl.gz"
"""Records of earlier runs; a reader's own go beside them."""
SEEDS = [1, 2, 3, 4, 5]
RATE = 2e-2
"""Muon's learning rate with a batch of START, tuned in `benchmarks.small_vocabulary`."""
POINTS = (0.25, 0.5, 0.75)
"""Weights of the second of two instances."""
ISLAND_BATCH, ISLAND_SECONDS = 4, 8000.0
"""Samples of a host per inner step, and the emulated time of every run: one instance over both islands reads 20 tokens per
parameter."""
MACHINE_SECONDS = 1570.0
"""The most emulated time of a run on unequal machines, likewise."""
FORK = 40
"""Rounds before instances get data of their own: about a quarter of the samples."""
ORDERS, KNESER_NEY = (3, 4, 5), (3, 4, 6)
COUNTED_KINDS = "tables of counts, kinds"
"""The key of the record of the tables of counts of each kind."""

_MODEL = (*(f"model.architecture.{name}={number}" for name, number in SHAPE.items()), "data.sequence_length=256")


def _settings(batch: int) -> tuple[str, ...]:
    """Return the model's settings and the learning rate of an instance with this batch."""
    return (*_MODEL, "inner.kind=muon", f"inner.learning_rate={RATE * sqrt(batch / START):.3g}")


# --- the rows --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """One way to use the machines or the data."""

    name: str
    row: Row
    samples: int
    has_kinds: bool = False
    """Whether it reads the three kinds of text, and not the text of `benchmarks.small_vocabulary`."""

    def key(self, seed: int, text: str) -> str:
        return key_of(self.row, seed, samples=self.samples, base=BASE.read_text("utf-8") + text)


BOTH, ALONE, BRIDGED = "one instance over both islands, H 128", "one island alone", "one an island, guarded"
NO_BORDER = "one instance, no border, H 16"
ALL, LARGE, EACH = "one instance over all machines", "the large machines alone", "one for each kind of machine, guarded"
ONE, OWN, MIXED = "one instance on the mixture", "three with data of their own, guarded", "three on the mixture, guarded"
PLANNED = (
    (NO_BORDER, ALONE),
    (BOTH, ALONE),
    (BRIDGED, ALONE),
    (BRIDGED, BOTH),
    (EACH, ALL),
    (EACH, LARGE),
    (ALL, LARGE),
    (OWN, ONE),
    (OWN, MIXED),
    (MIXED, ONE),
)
COMPARISONS = len(PLANNED)


def _islands(names: Mapping[str, str]) -> Iterator[Way]:
    """Return the rows of these arms of `benchmarks.islands`, and their names here."""
    arms = {arm.name: arm for arm in islands.arms(2)}
    for of_islands, name in names.items():
        arm = replace(arms[of_islands], batch=ISLAND_BATCH, seconds=ISLAND_SECONDS)
        arm = replace(arm, more=_settings(arm.instance_batch))
        yield Way(name=name, row=replace(arm.row, name=name), samples=arm.samples)


def _machines() -> Iterator[Way]:
    fits = {ALL: 21_888, LARGE: 16_896, EACH: 17_280}  # whole rounds within MACHINE_SECONDS, the last merge among them
    for arm, (name, samples) in zip(unequal_machines.ARMS[:3], fits.items(), strict=True):
        row = replace(arm, more=_settings(arm.batch)).row
        yield Way(name=name, row=replace(row, name=name), samples=samples)


def _data() -> Iterator[Way]:
    common = (
        *_settings(START),
        "data.source=text",
        f"data.mixture={{{', '.join(f'{kind}: 1.0' for kind in KINDS)}}}",
        f"batch.initial_batch={START}",
        "batch.max_batch=64",
        "batch.eta=2.5",
        "batch.growth_cap=1.07",
        "inner.batch_scaling=sqrt",
        f"work.inner_steps={H}",
    )
    three = (f"instances.fork_round={FORK}", "merge.policy=none", "merge.guard=true")
    own = f"instances.data=[{', '.join(KINDS)}]"
    for name, count, more in ((ONE, 1, ()), (OWN, 3, (*three, own)), (MIXED, 3, three)):
        yield Way(name=name, row=adloco(name, *common, *more, count=count), samples=SAMPLES, has_kinds=True)


GROUPS = {
    "islands": tuple(_islands({islands.LONG: BOTH, islands.ALONE: ALONE, islands.GUARDED: BRIDGED})),
    "machines": tuple(_machines()),
    "data": tuple(_data()),
    "border": tuple(_islands({islands.NO_BORDER: NO_BORDER})),
}
WAYS = tuple(way for group in GROUPS.values() for way in group)


# --- one run ---------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Counted(Watch):
    """Counts rounds in which all instances were averaged, and the most inner steps of a host."""

    rounds: int = 0
    inner_steps: int = 0
    _seen: set[int] = field(default_factory=set)

    def applied(self, world: World, plan: RoundPlan, instance: InstanceId, outer: torch.Tensor) -> None:
        Watch.applied(self, world, plan, instance, outer)
        if plan.is_last or plan.round in self._seen:
            return
        self._seen.add(plan.round)
        self.rounds += 1
        self.inner_steps += max(share.inner_steps for item in plan.instances for share in item.hosts)


def run_way(way: Way, seed: int) -> Record:
    """Train a row and return its record. Losses are those of the held-out rows of each text."""
    torch.set_num_threads(1)
    started = time.process_time()
    run = load_base(settings_of(way.row, seed, samples=way.samples))
    feed, heldout = _texts(way, run)
    watch = _Counted()
    setting = Setting(
        run=run,
        speeds=way.row.speeds,
        profile=PROFILES[way.row.clock],
        micro_batch_limit=way.row.micro_batch_limit,
        max_instances=way.row.max_instances,
    )
    world = World(setting, feed, on_applied=watch.applied)
    world.run()
    module = build_model(run.model, vocab_size=SCALE.vocab_size, sequence_length=run.data.sequence_length, seed=0)
    shell = ModelShell(module, device=torch.device("cpu"), is_bfloat16=False)

    def losses(outer: torch.Tensor) -> list[float]:
        micro_batch = EVALUATED_TOKENS // run.data.sequence_length
        return [round(heldout_loss(shell, outer, rows, micro_batch=micro_batch), 5) for rows in heldout]

    assert watch.final is not None and shell.layout.num_parameters == PARAMETERS
    final = losses(watch.final)
    record: Record = {
        "row": way.name,
        "seed": seed,
        "text": text_of(way.has_kinds),
        "final": final,
        "loss": round(fmean(final), 5),
    }
    record |= {"rounds": watch.rounds, "inner_steps": watch.inner_steps, "seconds": round(world.seconds, 2)}
    record |= {"bytes_per_peer": round(world.bytes_per_peer), "requests": watch.requests}
    record["merges"] = [merge.reason for plan in world.plans.values() for merge in plan.merges]
    if len(watch.outers) > 1:
        vectors = [outer for _, outer in sorted(watch.outers.items())]
        record |= {"alone": [losses(vector) for vector in vectors], "weights": (weights := merge_weights(watch.plans))}
        record["merged"] = {way: losses(weighted_average(vectors, of_way)) for way, of_way in weights.items()}
        if len(vectors) == 2:
            record["between"] = [losses(weighted_average(vectors, [1.0 - point, point])) for point in POINTS]
    return {**record, "processor_seconds": round(time.process_time() - started, 1)}


def _texts(way: Way, run: RunConfig) -> tuple[Feed, tuple[Batch, ...]]:
    """Return the training rows, and the held-out rows of each text."""
    vocab_size = SCALE.vocab_size
    if way.has_kinds:
        parts, _ = rows_of_kinds(vocab_size)
        return feed_over(run, parts, vocab_size=vocab_size), heldout_rows(parts, vocab_size)
    rows = prepared(vocab_size)[0]
    heldout = IndexedFeed(rows, vocab_size=vocab_size, seed=HELDOUT_SEED).heldout(HELDOUT_ROWS)
    return IndexedFeed(rows, vocab_size=vocab_size, seed=run.seed), (heldout,)


def count() -> Record:
    """Return the losses of the tables of counts on each kind, and the digest of their text."""
    return {"text": text_of(True), "losses": count_losses(SCALE.vocab_size, SAMPLES, ORDERS, KNESER_NEY)}


# --- the command -----------------------------------------------------------------------------------------------------


def train(arguments: argparse.Namespace) -> None:
    """Make the tables of counts, then train all rows of one seed before the next seed."""
    ways = [way for group in arguments.groups for way in GROUPS[group]]
    texts = {has_kinds: text_of(has_kinds) for has_kinds in {way.has_kinds for way in ways}}
    jobs = [(way.key(seed, texts[way.has_kinds]), partial(run_way, way, seed)) for seed in arguments.seeds for way in ways]
    train_missing(KEPT, arguments.output, [*([(COUNTED_KINDS, count)] if True in texts else []), *jobs])


def text_of(has_kinds: bool) -> str:
    """Return the digest of the text and the size of its vocabulary."""
    vocab_size = SCALE.vocab_size
    digest = rows_of_kinds(vocab_size)[1] if has_kinds else prepared(vocab_size)[1]
    return f"{digest} in {vocab_size} tokens"


Runs = Mapping[str, Mapping[int, Record]]
"""The records of each row, by seed."""


def tabulate(arguments: argparse.Namespace) -> None:
    """Write the tables of docs/results/divided.md, and the packed records. Runs with other settings, or on other texts than
    the tables of counts, are left out."""
    records = records_by_key(KEPT, arguments.runs)
    runs = runs_of(records)
    counted = [records[COUNTED_KINDS]] if COUNTED_KINDS in records else []
    rewrite(RESULTS / "divided.md", tables(runs, counted[0]["losses"] if counted else {}))
    pack([*counted, *(record for found in runs.values() for record in found.values())], RESULTS / KEPT.name)


def runs_of(records: Mapping[str, Record]) -> Runs:
    packages = records_by_key(SCALE.kept, ())[COUNTED]["text"]
    kinds = records[COUNTED_KINDS]["text"] if COUNTED_KINDS in records else ""
    seeds = sorted({record["seed"] for record in records.values() if "seed" in record})
    keys = {way.name: {seed: way.key(seed, kinds if way.has_kinds else packages) for seed in seeds} for way in WAYS}
    return {name: {seed: records[key] for seed, key in of_way.items() if key in records} for name, of_way in keys.items()}


# --- the tables ------------------------------------------------------------------------------------------------------


def tables(runs: Runs, counted: Mapping[str, Sequence[float]]) -> dict[str, list[str]]:
    return {
        "divided": run_table(runs),
        "divided, planned": planned_table(runs),
        "divided, between": between_table(runs),
        "divided, kinds": kinds_table(runs, counted),
        "divided, own kinds": own_kinds_table(runs),
    }


def run_table(runs: Runs) -> list[str]:
    lines = ["| row | seeds | rounds | inner steps | emulated minutes | MB sent per peer | final loss |", "|" + "---|" * 7]
    for name, found in runs.items():
        if found:
            some = list(found.values())
            means = {what: fmean(record[what] for record in some) for what in ("rounds", "inner_steps", "bytes_per_peer")}
            is_timed = not any(way.has_kinds for way in WAYS if way.name == name)
            minutes = f"{fmean(record['seconds'] for record in some) / 60:.0f}" if is_timed else ""
            cells = [str(len(some)), f"{means['rounds']:.0f}", f"{means['inner_steps']:.0f}", minutes]
            cells += [f"{means['bytes_per_peer'] / 1e6:.0f}", estimate([*losses_of(some).values()]).shown(3)]
            lines.append(f"| {name} | {' | '.join(cells)} |")
    return lines


def planned_table(runs: Runs) -> list[str]:
    lines = ["| row | minus | seeds | difference | corrected | by seed |", "|" + "---|" * 6]
    for names in PLANNED:
        left, right = (losses_of(runs[name].values()) for name in names)
        if common := sorted(left.keys() & right.keys()):
            differences = [shown(left, right, number) for number in (1, COMPARISONS)]
            each = ", ".join(f"{left[seed] - right[seed]:.3f}" for seed in common)
            lines.append(f"| {' | '.join([*names, str(len(common)), *differences, each])} |")
    return lines


def between_table(runs: Runs) -> list[str]:
    """Return the losses of the mean of two instances before the last merge, from one of them to the other, and whether the
    guard refused it."""
    head = " | ".join(f"{point:.2f}" for point in (0.0, *POINTS, 1.0))
    lines = [f"| weight of the second instance | seeds | {head} | merges refused |", "|" + "---|" * (5 + len(POINTS))]
    for name in (BRIDGED, EACH):
        if some := list(runs[name].values()):
            columns = [[record["alone"][0][0], *(of[0] for of in record["between"]), record["alone"][1][0]] for record in some]
            losses = [estimate(column).shown(3) for column in zip(*columns, strict=True)]
            refused = sum(any("refused" in reason for reason in record["merges"]) for record in some)
            lines.append(f"| {name} | {len(some)} | {' | '.join(losses)} | {refused} of {len(some)} |")
    return lines


def kinds_table(runs: Runs, counted: Mapping[str, Sequence[float]]) -> list[str]:
    """Return the losses by kind: of the rows, of the instances with data of their own before the last merge, of that merge by
    other weights, and of the tables of counts."""
    lines = [f"| model | weights | {' | '.join(KINDS)} | mean |", "|" + "---|" * 6]

    def add(name: str, weights: str, losses: Sequence[Sequence[float]]) -> None:
        by_kind = [fmean(column) for column in zip(*losses, strict=True)]
        lines.append(f"| {name} | {weights} | {' | '.join(f'{loss:.3f}' for loss in (*by_kind, fmean(by_kind)))} |")

    if not any(runs[name] for name in (ONE, OWN, MIXED)):
        return ["None of these rows has been run yet."]
    for name in (ONE, OWN, MIXED):
        if runs[name]:
            add(name, "", [record["final"] for record in runs[name].values()])
    if own := list(runs[OWN].values()):
        for number, kind in enumerate(KINDS):
            add(f"the instance of {kind}", "", [record["alone"][number] for record in own])
        for way in own[0]["weights"]:
            shares = zip(*(record["weights"][way] for record in own), strict=True)
            add(f"merged by {way}", ", ".join(f"{fmean(share):.2f}" for share in shares), [one["merged"][way] for one in own])
    for name, losses in counted.items():
        add(f"table of {name}", "", [losses])
    return lines


def own_kinds_table(runs: Runs) -> list[str]:
    """Return the loss of each instance with data of its own on its own kind, before the last merge, beside the other rows."""
    lines = [f"| kind | seeds | its instance | minus {ONE} | minus {MIXED} |", "|" + "---|" * 5]
    numbers = range(len(KINDS))
    for kind, some in [*((KINDS[number], [number]) for number in numbers), ("mean of the three", [*numbers])]:
        ours = {seed: fmean(record["alone"][number][number] for number in some) for seed, record in runs[OWN].items()}
        others = [
            {seed: fmean(record["final"][number] for number in some) for seed, record in runs[name].items()}
            for name in (ONE, MIXED)
        ]
        if ours:
            cells = [estimate([*ours.values()]).shown(3), *(shown(ours, theirs) for theirs in others)]
            lines.append(f"| {kind} | {len(ours)} | {' | '.join(cells)} |")
    return lines


def main() -> None:
    line = command_line("divided", __doc__, seeds=SEEDS, train=train, tabulate=tabulate)
    line.run.add_argument("--groups", nargs="+", choices=list(GROUPS), default=list(GROUPS), help="of rows, in this order")
    line.act()


if __name__ == "__main__":
    main()
