"""Does the batch test find the batch where no schedule is known? Its constant, and schedules, carried over to other tasks.

python -m benchmarks.carried_over run       train what the kept records and carried_over.jsonl lack; 5 to 80 core seconds a run
python -m benchmarks.carried_over report    the tables, from both, into docs/results/carried_over.md; keeps the records of both

The task at home is that of `benchmarks.method` with H 8. In the noisy one half of the training bytes are replaced by bytes
drawn from the same text; held-out text is whole. In the quiet one rows have 256 bytes for 64, and a run has half as many.
Nothing else differs: start, learning rate, warm-up, H. Nothing is tuned on the two, but that schedules of other ends are run.

Carried over from home are the preset's eta, with a cap that no request is meant to reach, and the linear ramp that takes as
many rounds there (84; on seed 0 the test took 83), so that both stand for one price at home. Seesaw has no constant but a cap.
Chosen on seed 0, by requests and rounds and no loss: H 8, at which the request lay between start and cap on all three tasks,
and the tasks. One more was tried and left out, rows of 16 bytes, which asked for about what home does. On seed 0 the test took
53 of 128 rounds on the noisy task and 59 of 64 on the quiet one.

Methods that take different numbers of rounds are compared by loss at a price: PRICE nats for each doubling of the rounds. It
lies between what ramps of `benchmarks.small_vocabulary` pay for the first halving of the rounds (0.024) and the next (0.08).

Planned before any run of seeds 1 to 3, on three seeds, paired, at this price: on each task AdLoCo minus the ramp carried over,
and minus Seesaw; on the noisy and the quiet one AdLoCo minus the best schedule there, that whose mean is lowest (it is chosen
on the same seeds, which favours it). The test finds the batch if on both of these its mean is below that of the ramp carried
over, on all seeds, and within 0.02 of that of the best schedule. All else is exploratory, other prices too. The request is
called interior where it is neither the start, nor at the bound of growth, nor at the cap; its share is one of the samples.

Added when seed 1 of the noisy task was known (the test was below all schedules), before any of their runs: constant batches of
16 and 32, with the learning rate times the root, on the noisy and the quiet task. They count among the schedules there.

Added when seeds 1 to 3 were known, before any run of them: seeds 4 and 5 of all rows. The planned verdict is that of three
seeds and stays; what five show is given beside it, and would be called an advantage of the test over a schedule if the interval
at PRICE lay below zero.

Added when all of these were known, before any run of them: three further tasks, each unlike home in one thing. *Words* has a
vocabulary of 512 tokens, trained on the text of home, for bytes; *wide* a model of 117,120 parameters; *slow* half the learning
rate. Their front has ramps to 12, 32 and 64, and constant batches of 8, 16 and 32. Five seeds. Planned: the verdict above, on
these three; and the regret of a method on a task, its mean at PRICE minus that of the row of the task whose mean is lowest, the
test counted. Over the five tasks on which nothing was tuned, the method with the lowest mean regret is nearest the front. It is
called nearer than another only where the interval of their difference, paired by task, excludes zero.

Corrected intervals were added long after. COMPARISONS counts the planned ones: on six tasks the ramp and Seesaw, on five the
best schedule, and the nearest method beside the six others.
"""

import argparse
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from functools import cache, partial
from math import log2, sqrt
from statistics import fmean

import numpy as np

from adloco_p2p.data.corpus import documents
from adloco_p2p.data.feed import IndexedFeed, open_feed
from adloco_p2p.data.indexing import IndexedRows
from adloco_p2p.data.packing import TokenRows
from benchmarks.method.figures import estimate, losses_of, shown
from benchmarks.method.report import rewrite
from benchmarks.method.rows import Row, adloco, diloco
from benchmarks.method.run import BASE, CACHE, load_base, run_row
from benchmarks.method.store import RESULTS, Record, command_line, digest_of, key_of, pack, records_by_key, train_missing
from benchmarks.package_text import packed, sides_of, tokenized

KEPT = RESULTS / "carried_over.jsonl.gz"
"""Records of earlier runs; a reader's own go beside them."""
SEEDS = [1, 2, 3, 4, 5]
POINTS = 8
START, H, ETA, CAP = 8, 8, "1.7", 512
HOME_END, SEESAW_CAP = 18, 32
"""The end and the cap of the schedules that are carried over."""
COMPARISONS = 6 * 2 + 5 + 6
"""All planned ones."""
PRICE, OTHER_PRICES = 0.05, (0.025, 0.1)
"""Nats for each doubling of the rounds."""
GROWTH = 1.5
"""The bound of growth in a round, the usual `batch.growth_cap`."""
WIDER = {
    "hidden_size": 64,
    "intermediate_size": 176,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
}
"""The shape of a Llama of 117,120 parameters with the vocabulary of bytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """A text to learn, with the ends of ramps and the constant batches of its front beside what is carried over."""

    name: str
    samples: int
    length: int = 64
    """Bytes of a row."""
    noise: float = 0.0
    """Share of the training bytes that are replaced."""
    vocab_size: int = 0
    """Tokens of a vocabulary that is trained on the text; 0: bytes."""
    settings: tuple[str, ...] = ()
    """What else is unlike home."""
    rate: float = 6e-3
    """The learning rate for the start."""
    ends: tuple[int, ...] = ()
    constants: tuple[int, ...] = ()


HOME = Task(name="home", samples=8192)
NOISY = Task(name="noisy", samples=8192, noise=0.5, ends=(32, 64, 128), constants=(8, 16, 32))
QUIET = Task(name="quiet", samples=4096, length=256, ends=(12, 32), constants=(8, 16, 32))
FIRST = (HOME, NOISY, QUIET)
"""The tasks of the first verdict."""
WORDS = Task(name="words", samples=8192, vocab_size=512, ends=(12, 32, 64), constants=(8, 16, 32))
WIDE = Task(
    name="wide",
    samples=8192,
    settings=tuple(f"model.architecture.{name}={number}" for name, number in WIDER.items()),
    ends=(12, 32, 64),
    constants=(8, 16, 32),
)
SLOW = Task(name="slow", samples=8192, rate=3e-3, ends=(12, 32, 64), constants=(8, 16, 32))
TASKS = (*FIRST, WORDS, WIDE, SLOW)
TEST, SEESAW = f"AdLoCo, eta {ETA}", f"Seesaw, at most {SEESAW_CAP}"


def ramp(end: int) -> str:
    return f"linear ramp {START} -> {end}"


CARRIED = (ramp(HOME_END), SEESAW)


def rows(task: Task) -> dict[str, Row]:
    """Return the rows by name: first those of the planned comparisons, then the rest of the front."""
    own_rate = () if task.rate == HOME.rate else (f"inner.learning_rate={task.rate:g}",)
    length = f"data.sequence_length={task.length}"
    common = (length, f"work.inner_steps={H}", *task.settings, *own_rate)
    tested = (*common, f"batch.eta={ETA}", "inner.batch_scaling=sqrt")

    def scheduled(kind: str, end: int) -> tuple[str, ...]:
        return (*tested, "batch.test=schedule", f"batch.ramp={kind}", f"batch.max_batch={end}")

    found = [
        adloco(TEST, *tested, f"batch.max_batch={CAP}"),
        adloco(ramp(HOME_END), *scheduled("linear", HOME_END)),
        adloco(SEESAW, *scheduled("seesaw", SEESAW_CAP)),
    ]
    found += [adloco(ramp(end), *scheduled("linear", end)) for end in task.ends]
    for batch in task.constants:
        rate = own_rate if batch == START else (f"inner.learning_rate={task.rate * sqrt(batch / START):.3g}",)
        found.append(diloco(batch, H, length, *task.settings, *rate, momentum=0.5, name=f"DiLoCo B {batch} H {H}"))
    return {row.name: row for row in found}


# --- the runs --------------------------------------------------------------------------------------------------------


@cache
def text_of(task: Task) -> tuple[IndexedRows, int]:
    """Return the rows of a task, and the size of their vocabulary."""
    if task.vocab_size:
        return in_tokens(task.vocab_size, task.length), task.vocab_size
    feed = open_feed(load_base([f"data.sequence_length={task.length}"]), cache_dir=CACHE)
    assert isinstance(feed, IndexedFeed)
    assert isinstance(feed.rows.training, TokenRows)
    noisy = with_noise(feed.rows.training, task.noise)
    return replace(feed.rows, training=noisy), feed.vocab_size


def with_noise(rows: TokenRows, share: float) -> TokenRows:
    """Return the rows with about this share of their tokens replaced by tokens drawn from all of them, always the same."""
    chance, ids = np.random.default_rng(0), rows.ids.copy()
    is_replaced = chance.random(ids.shape) < share
    ids[is_replaced] = chance.choice(rows.ids.reshape(-1), size=int(is_replaced.sum()))
    return replace(rows, ids=ids)


def in_tokens(vocab_size: int, length: int) -> IndexedRows:
    """Return the text of home in tokens of a vocabulary that is trained on its training side."""
    sides = sides_of(documents(), load_base().data.heldout_fraction)
    training, heldout = tokenized(sides, vocab_size)
    return packed(training, heldout, vocab_size, length=length)


def run_key(task: Task, row: Row, seed: int) -> str:
    base = BASE.read_text("utf-8")
    text = [task.length, task.noise, *([task.vocab_size] if task.vocab_size else [])]
    return digest_of([key_of(row, seed, samples=task.samples, base=base), *text])


def run_one(task: Task, row: Row, seed: int) -> Record:
    return {"task": task.name, **run_row(row, seed, samples=task.samples, text=text_of(task), points=POINTS)}


def train(arguments: argparse.Namespace) -> None:
    """Train one seed after the other, so that an early end leaves whole seeds."""
    jobs = [
        (run_key(task, row, seed), partial(run_one, task, row, seed))
        for seed in arguments.seeds
        for task in TASKS
        for row in rows(task).values()
    ]
    train_missing(KEPT, arguments.output, jobs)


# --- the tables ------------------------------------------------------------------------------------------------------

Found = Mapping[str, Mapping[int, Record]]
"""The records of one task, by row and seed."""


def found_of(task: Task, records: Mapping[str, Record]) -> Found:
    """Return the records of whole seeds, those that all rows of the task have."""
    seeds = sorted({record["seed"] for record in records.values()})
    runs = {name: {seed: records.get(run_key(task, row, seed)) for seed in seeds} for name, row in rows(task).items()}
    whole = [seed for seed in seeds if all(some[seed] is not None for some in runs.values())]
    return {name: {seed: record for seed in whole if (record := some[seed]) is not None} for name, some in runs.items()}


def at_price(records: Mapping[int, Record], price: float = PRICE) -> dict[int, float]:
    """Return the loss plus `price` for each doubling of the rounds, by seed."""
    return {seed: record["loss"] + price * log2(record["rounds"]) for seed, record in records.items()}


def best_schedule(found: Found, price: float = PRICE) -> str:
    """Return the row without statistics whose mean at that price is lowest."""
    means = {name: fmean(at_price(some, price).values()) for name, some in found.items() if name != TEST}
    return min(means, key=means.__getitem__)


def interior(record: Record) -> float:
    """Return the share of the samples whose request was interior, as the module's docstring defines it."""
    requests = [instance[0] for (instance,) in record["log"]]
    bounds = [START, *(int(GROWTH * before) for before in requests)]
    free = [now for now, bound in zip(requests, bounds, strict=False) if now not in (START, CAP, bound)]
    return sum(free) / sum(requests)


def run_table(runs: Mapping[Task, Found]) -> list[str]:
    lines = [
        f"| task: row | seeds | final loss | rounds | largest batch | minus {TEST} | minus {TEST}, at the price |",
        "|---|---|---|---|---|---|---|",
    ]
    for task, found in runs.items():
        ours, ours_priced = losses_of(found[TEST].values()), at_price(found[TEST])
        for name, some in found.items():
            largest = fmean(max(instance[0] for (instance,) in record["log"]) for record in some.values())
            cells = [f"{task.name}: {name}", str(len(some)), estimate([*losses_of(some.values()).values()]).shown(3)]
            cells += [f"{fmean(record['rounds'] for record in some.values()):.0f}", f"{largest:.0f}"]
            pairs = ((losses_of(some.values()), ours), (at_price(some), ours_priced))
            cells += [shown(left, right) if name != TEST else "" for left, right in pairs]
            lines.append(f"| {' | '.join(cells)} |")
    return lines


def planned_table(runs: Mapping[Task, Found]) -> list[str]:
    """Return the planned comparisons of the module's docstring, and the same at other prices."""
    prices = (PRICE, *OTHER_PRICES)
    at = [f"at {price:g} a doubling" for price in prices]
    head = " | ".join([at[0], f"{at[0]}, corrected", *at[1:]])
    lines = [f"| {TEST}, minus | {head} | by seed, at {PRICE:g} |", "|---" * (3 + len(prices)) + "|"]
    for task, found in runs.items():
        others = [(name, name) for name in CARRIED] + ([("the best schedule", "")] if task.ends else [])
        for what, name in others:
            named = [name or best_schedule(found, price) for price in prices]
            cells = []
            for other, price in zip(named, prices, strict=True):
                difference = shown(at_price(found[TEST], price), at_price(found[other], price))
                cells.append(difference if name else f"{difference} ({other})")
            ours, theirs = at_price(found[TEST]), at_price(found[named[0]])
            cells.insert(1, shown(ours, theirs, COMPARISONS))
            each = ", ".join(f"{ours[seed] - theirs[seed]:.3f}" for seed in sorted(ours))
            lines.append(f"| {task.name}: {what} | {' | '.join(cells)} | {each} |")
    return lines


def request_table(runs: Mapping[Task, Found]) -> list[str]:
    """Return the requests of the test in the course of its runs."""
    parts = (0.25, 0.5, 0.75, 1.0)
    head = " | ".join(f"request at {part:.0%}" for part in parts)
    lines = [f"| task | seed | {head} | interior |", "|---" * (3 + len(parts)) + "|"]
    for task, found in runs.items():
        for seed, record in found[TEST].items():
            requests = [instance[0] for (instance,) in record["log"]]
            done = np.cumsum([H * request for request in requests]) / task.samples
            at = [requests[min(int(np.searchsorted(done, part)), len(requests) - 1)] for part in parts]
            lines.append(f"| {task.name} | {seed} | {' | '.join(map(str, at))} | {interior(record):.0%} |")
    return lines


def regrets(found: Found) -> dict[str, float]:
    """Return for each row its mean at the price minus that of the lowest row of the task."""
    means = {name: fmean(at_price(some).values()) for name, some in found.items()}
    return {name: mean - min(means.values()) for name, mean in means.items()}


def regret_table(runs: Mapping[Task, Found]) -> list[str]:
    """Return the regrets of the rows that all tasks have on which nothing was tuned, and their differences, paired by task."""
    by_task = {task: regrets(found) for task, found in runs.items() if task.ends}
    of_row = {name: {number: of[name] for number, of in enumerate(by_task.values())} for name in _in_all(by_task.values())}
    nearest = min(of_row, key=lambda name: fmean(of_row[name].values()))
    lines = [
        f"| row | {' | '.join(task.name for task in by_task)} | mean | minus {TEST}, by task"
        f" | minus {nearest}, by task | the same, corrected |",
        "|---" * (5 + len(by_task)) + "|",
    ]
    for name, found in of_row.items():
        cells = [f"{regret:.3f}" for regret in (*found.values(), fmean(found.values()))]
        sides = ((TEST, 1), (nearest, 1), (nearest, COMPARISONS))
        cells += [shown(found, of_row[other], count) if name != other else "" for other, count in sides]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return lines


def _in_all(tables: Collection[Mapping[str, float]]) -> list[str]:
    """Return the names that all tables have, in the order of the first."""
    first, *others = tables
    return [name for name in first if all(name in other for other in others)]


def tabulate(arguments: argparse.Namespace) -> None:
    """Write the tables and the packed records. Runs with other settings are left out."""
    records = records_by_key(KEPT, arguments.runs)
    runs = {task: found_of(task, records) for task in TASKS}
    tables = {"carried over": run_table(runs), "planned": planned_table(runs), "requests": request_table(runs)}
    tables["regrets"] = regret_table(runs)
    rewrite(RESULTS / "carried_over.md", tables)
    pack([record for found in runs.values() for some in found.values() for record in some.values()], RESULTS / KEPT.name)


def main() -> None:
    command_line("carried_over", __doc__, seeds=SEEDS, train=train, tabulate=tabulate).act()


if __name__ == "__main__":
    main()
