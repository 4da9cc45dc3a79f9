"""How should a merge weigh instances that ask for different batches? Two instances, one of which has noisy data of its own.

python -m benchmarks.unequal_requests run       train what kept records and unequal_requests.jsonl lack; half a minute each
python -m benchmarks.unequal_requests report    the table from both, into docs/results/method.md; keeps the records of both

The data sets are the texts of the home and the noisy task of `benchmarks.carried_over`: in the second, half of the training
bytes are replaced. Model, swarm, H and the batch test are those of home. The instances are forked from one that was trained on
both for an eighth of the samples. They are merged at the end. The losses of merges with other weights, and of merges at
PLACES, cost no training. All losses are on the held-out text, which is clean.

Planned before any run of seeds 1 to 5, paired, at each of PLACES: the merge by equal weights, by samples and by inverse noise,
minus the merge by requests, which is the usual one (AdLoCo's). Expected: where the instance with noisy data asks for
more, requests favour the worse model, and their merge is above that by equal weights. All runs were made twice, because in the
first the names of the data sets were exchanged. Intervals corrected for these nine comparisons were added later, and the row
with the guard, which is exploratory.
"""

import argparse
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import accumulate
from statistics import fmean

import torch

from adloco_p2p.config.run_config import RunConfig
from adloco_p2p.core.model.instance_plan import InstancePlan
from adloco_p2p.core.model.plan import RoundPlan
from adloco_p2p.core.model.scalars import InstanceId
from adloco_p2p.data.feed import IndexedFeed, feed_over
from adloco_p2p.numerics.reduction import weighted_average
from adloco_p2p.training.evaluate import heldout_loss
from adloco_p2p.training.model import build_model
from adloco_p2p.training.shell import ModelShell
from benchmarks.carried_over import CAP, ETA, HOME, NOISY, START, H, text_of
from benchmarks.method.clock import SMALL
from benchmarks.method.device import Setting
from benchmarks.method.figures import estimate, losses_of, shown
from benchmarks.method.merging import Watch, merge_weights
from benchmarks.method.report import keep_tables
from benchmarks.method.run import EVALUATED_TOKENS, HELDOUT_ROWS, HELDOUT_SEED, load_base
from benchmarks.method.store import RESULTS, Record, command_line, train_missing
from benchmarks.method.world import World

KEPT = RESULTS / "unequal_requests.jsonl.gz"
"""Records of earlier runs; a reader's own go beside them."""
SEEDS = [1, 2, 3, 4, 5]
KINDS = ("clean", "noisy")
"""Sorted, as the product numbers data sets."""
HOSTS = 4
SAMPLES = 16_384
"""Twice those of home: each instance reads about as many."""
FORK = 32
"""Rounds before the fork, with the batch at its start an eighth of the samples."""
PLACES = (0.5, 0.75, 1.0)
"""Shares of the samples after which merges are measured."""
WAYS = ("request", "equal", "samples", "inverse noise")

_COMMON = (
    "data.source=text",
    f"data.mixture={{{', '.join(f'{kind}: 1.0' for kind in KINDS)}}}",
    f"batch.initial_batch={START}",
    f"batch.max_batch={CAP}",
    f"batch.eta={ETA}",
    "inner.batch_scaling=sqrt",
    f"work.inner_steps={H}",
    f"work.samples={SAMPLES}",
)
_FORKED = ("instances.count=2", f"instances.fork_round={FORK}", "merge.guard=false", "merge.policy=none")
ONE, CLEAN, OWN, MIXED = "one instance on both", "one instance on clean text", "data of their own", "both on both"
GUARDED = f"{OWN}, guarded"
ROWS = {
    ONE: ("instances.count=1",),
    CLEAN: ("instances.count=1", f"data.mixture={{{KINDS[0]}: 1.0, {KINDS[1]}: 1.0e-9}}"),
    OWN: (*_FORKED, f"instances.data=[{', '.join(KINDS)}]"),
    MIXED: _FORKED,
    GUARDED: (*_FORKED, "merge.guard=true", f"instances.data=[{', '.join(KINDS)}]"),
}
"""Settings beside the common ones; of one setting twice, the later counts."""


def run_of(name: str, seed: int) -> RunConfig:
    return load_base([*_COMMON, *ROWS[name], f"seed={seed}"])


@dataclass(slots=True)
class _History(Watch):
    """Keeps the outer parameters of every round in which all instances were averaged."""

    rounds: list[tuple[tuple[InstancePlan, ...], list[torch.Tensor]]] = field(default_factory=list)

    def applied(self, world: World, plan: RoundPlan, instance: InstanceId, outer: torch.Tensor) -> None:
        Watch.applied(self, world, plan, instance, outer)
        if plan.is_last or len(self.outers) < len(self.plans):
            return
        if self.rounds and self.rounds[-1][0] == self.plans:  # the other instance of the same round came first
            self.rounds.pop()
        self.rounds.append((self.plans, [own.clone() for _, own in sorted(self.outers.items())]))


def run_row(name: str, seed: int) -> Record:
    """Train a row and return its record."""
    torch.set_num_threads(1)
    started, run, history = time.process_time(), run_of(name, seed), _History()
    (clean, vocab_size), (noisy, _) = text_of(HOME), text_of(NOISY)
    feed = feed_over(run, (clean, noisy), vocab_size=vocab_size)
    world = World(Setting(run=run, speeds=(1.0,) * HOSTS, profile=SMALL), feed, on_applied=history.applied)
    world.run()
    module = build_model(run.model, vocab_size=vocab_size, sequence_length=run.data.sequence_length, seed=0)
    shell = ModelShell(module, device=torch.device("cpu"), is_bfloat16=False)
    heldout = IndexedFeed(clean, vocab_size=vocab_size, seed=HELDOUT_SEED).heldout(HELDOUT_ROWS)
    micro_batch = EVALUATED_TOKENS // run.data.sequence_length

    def loss(outer: torch.Tensor) -> float:
        return round(heldout_loss(shell, outer, heldout, micro_batch=micro_batch), 5)

    assert history.final is not None
    record: Record = {"row": name, "seed": seed, "parameters": shell.layout.num_parameters, "loss": loss(history.final)}
    record |= {"rounds": len(history.requests), "requests": history.requests}
    if run.merge.guard and run.instances.count > 1:
        record["refused"] = any("refused" in merge.reason for plan in world.plans.values() for merge in plan.merges)
    if run.instances.count > 1:
        places = [placed_at(place, history) for place in PLACES]
        record["merges"] = [
            {
                "requests": [plan.requested_batch for plan in plans],
                "alone": [loss(outer) for outer in vectors],
                "weights": (weights := merge_weights(plans)),
                "merged": {way: loss(weighted_average(vectors, of_way)) for way, of_way in weights.items()},
            }
            for plans, vectors in places
        ]
    return {**record, "processor_seconds": round(time.process_time() - started, 1)}


def placed_at(place: float, history: _History) -> tuple[tuple[InstancePlan, ...], list[torch.Tensor]]:
    """Return the plans and the outer parameters of the first round after which this share of the samples was spent."""
    spent = accumulate(H * sum(plan.requested_batch for plan in plans) for plans, _ in history.rounds)
    total = sum(H * sum(plan.requested_batch for plan in plans) for plans, _ in history.rounds)
    number = next(number for number, samples in enumerate(spent) if samples >= place * total)
    return history.rounds[number]


def train(arguments: argparse.Namespace) -> None:
    """Train all rows of one seed before the next seed."""
    jobs = [(f"{name}, seed {seed}", partial(run_row, name, seed)) for seed in arguments.seeds for name in ROWS]
    train_missing(KEPT, arguments.output, jobs)


def table(records: Sequence[Record]) -> list[str]:
    """Return the final loss of each row."""
    lines = ["| row | seeds | rounds | final loss | minus one instance on both | merges refused |", "|" + "---|" * 6]
    losses = {name: losses_of(record for record in records if record["row"] == name) for name in ROWS}
    for name, found in losses.items():
        if found:
            rounds = estimate([record["rounds"] for record in records if record["row"] == name]).mean
            minus = shown(found, losses[ONE]) if name != ONE else ""
            refused = [record["refused"] for record in records if record["row"] == name and "refused" in record]
            cells = [f"{len(found)}", f"{rounds:.0f}", estimate([*found.values()]).shown(3), minus]
            lines.append(row(name, [*cells, f"{sum(refused)} of {len(refused)}" if refused else ""]))
    return lines


def merge_table(records: Sequence[Record]) -> list[str]:
    """Return the instances with data of their own, and their merges by each kind of weights, at PLACES."""
    head = " | ".join(f"after {place:.0%}" for place in PLACES)
    lines = [f"| {OWN} | {head} |", "|---" * (1 + len(PLACES)) + "|"]
    found = [record for record in records if record["row"] == OWN]
    at = [[record["merges"][number] for record in found] for number in range(len(PLACES))]
    lines.append(row("requests, clean and noisy", [means([merge["requests"] for merge in merges], 0) for merges in at]))
    for number, kind in enumerate(KINDS):
        alone = [estimate([merge["alone"][number] for merge in merges]).shown(3) for merges in at]
        lines.append(row(f"the instance of the {kind} text", alone))
    for way in WAYS:
        losses = [estimate([merge["merged"][way] for merge in merges]).shown(3) for merges in at]
        weights = [means([merge["weights"][way] for merge in merges], 2) for merges in at]
        cells = [f"{loss} ({of_both})" for loss, of_both in zip(losses, weights, strict=True)]
        lines.append(row(f"merged by {way}", cells))
    return lines


def planned_table(records: Sequence[Record]) -> list[str]:
    """Return the planned comparisons: merges by other weights minus that by requests."""
    usual, *others = WAYS
    head = " | ".join(f"after {place:.0%} | corrected" for place in PLACES)
    lines = [f"| merged by, minus by {usual} | {head} |", "|---" * (1 + 2 * len(PLACES)) + "|"]
    merges = {record["seed"]: record["merges"] for record in records if record["row"] == OWN}

    def losses(way: str, place: int) -> dict[int, float]:
        return {seed: of_seed[place]["merged"][way] for seed, of_seed in merges.items()}

    comparisons = len(others) * len(PLACES)
    for way in others:
        sides = [(losses(way, place), losses(usual, place)) for place in range(len(PLACES))]
        lines.append(row(way, [shown(*pair, count) for pair in sides for count in (1, comparisons)]))
    return lines


def row(name: str, cells: Sequence[str]) -> str:
    return f"| {name} | {' | '.join(cells)} |"


def means(rows: Sequence[Sequence[float]], digits: int) -> str:
    """Return the mean of each place of equally long rows."""
    return ", ".join(f"{fmean(column):.{digits}f}" for column in zip(*rows, strict=True))


TABLES = {
    "unequal requests": table,
    "unequal requests, weights": merge_table,
    "unequal requests, planned": planned_table,
}


def tabulate(arguments: argparse.Namespace) -> None:
    keep_tables(KEPT, arguments.runs, "method.md", TABLES)


def main() -> None:
    command_line("unequal_requests", __doc__, seeds=SEEDS, train=train, tabulate=tabulate).act()


if __name__ == "__main__":
    main()
