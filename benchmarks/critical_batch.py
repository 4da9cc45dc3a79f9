"""Does the request of the batch test follow the critical batch? Runs branched at three points, on tasks of `carried_over`.

python -m benchmarks.critical_batch run       what the kept records and critical_batch.jsonl lack; half a core minute each
python -m benchmarks.critical_batch report    the table, from both, into docs/results/carried_over.md; keeps the records of both

A run of DiLoCo with the constant batch of `benchmarks.carried_over` (the hosts of `benchmarks.uneven_steps`, the cosine of the
product) is branched when a quarter, a half and three quarters of its samples are spent. Every branch trains an eighth of the
samples from there, with one of BATCHES and the learning rate of that point times the root of its batch over the start, at most
twice (`inner.batch_scaling_cap`). The critical batch is the largest whose branch ends at most TOLERANCE nats above that of the
start, by linear interpolation over the logarithm of the batch; `request` is what the test asks for there, from the window of
the product (five rounds).

Planned before any run, with two seeds: over the nine places (task and point), the rank correlation of the request and the
critical batch, each the geometric mean of the seeds. The request follows the critical batch if it is at least 0.7 (chance gives
that once in forty) and does not where it is below 0.4. Other tolerances are exploratory.
"""

import argparse
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import pairwise
from math import exp, log
from random import Random
from statistics import correlation, fmean

import torch

from adloco_p2p.core.model.gradient_statistics import NoiseSample
from adloco_p2p.core.planning.batch_ramp import half_cosine
from adloco_p2p.core.planning.batch_sizing import demanded_batch
from adloco_p2p.core.planning.pseudo_gradient_noise import noise_of
from adloco_p2p.data.feed import IndexedFeed
from adloco_p2p.training.evaluate import heldout_loss
from adloco_p2p.training.model import build_model
from adloco_p2p.training.shell import ModelShell
from benchmarks.carried_over import FIRST, START, TEST, H, rows, text_of
from benchmarks.carried_over import Task as Kind
from benchmarks.method.report import rewrite
from benchmarks.method.run import BASE, EVALUATED_TOKENS, HELDOUT_ROWS, HELDOUT_SEED, load_base
from benchmarks.method.store import RESULTS, Record, command_line, digest_of, pack, records_by_key, train_missing
from benchmarks.uneven_steps import Host, Task, scalars

KEPT = RESULTS / "critical_batch.jsonl.gz"
SEEDS = [1, 2]
HOSTS = 4
PLACES = (0.25, 0.5, 0.75)
BRANCH = 8
"""The divisor of the samples that a branch trains."""
BATCHES = (8, 16, 32, 64, 128)
"""The batches of branches; a branch too short for one round of a batch leaves it out."""
TOLERANCE, OTHER_TOLERANCES = 0.02, (0.01, 0.05)
RATE = 6e-3


class Trunk:
    """A run of DiLoCo that can be branched."""

    def __init__(self, kind: Kind, seed: int) -> None:
        self.kind = kind
        rows_of, vocab_size = text_of(kind)
        run = load_base([*rows(kind)[TEST].settings, f"seed={seed}"])
        self.rules, self.scaling_cap = run.rules, run.inner.batch_scaling_cap
        module = build_model(run.model, vocab_size=vocab_size, sequence_length=kind.length, seed=seed)
        self.shell = ModelShell(module, device=torch.device("cpu"), is_bfloat16=False)
        self.task = Task(shell=self.shell, rows=rows_of, chance=Random(seed), rate=RATE)
        self.outer = torch.cat([parameter.detach().reshape(-1) for parameter in self.shell.parameters])
        self.hosts = [Host(torch.zeros_like(self.outer), torch.zeros_like(self.outer)) for _ in range(HOSTS)]
        self.momentum = torch.zeros_like(self.outer)
        self.heldout = IndexedFeed(rows_of, vocab_size=vocab_size, seed=HELDOUT_SEED).heldout(HELDOUT_ROWS)

    def round(self, batch: int) -> NoiseSample:
        """Do one round of H steps of `batch` rows, shared by all hosts, and return what the hosts would report about it."""
        vectors = [self.task.pseudo_gradient(self.outer, host, steps=H, batch=batch // HOSTS) for host in self.hosts]
        found, averaged = scalars(vectors, [H] * HOSTS, batch // HOSTS)
        average = torch.stack(vectors).mean(0)
        self.momentum = 0.5 * self.momentum + average
        self.outer = self.outer - 0.7 * (average + 0.5 * self.momentum)
        return noise_of(found, averaged, num_hosts=HOSTS)

    def branch(self, batch: int, samples: int) -> float:
        """Return the held-out loss after so many samples from here; the run stays where it is."""
        state = self.outer, self.momentum, self.hosts, self.task.rate, self.task.chance
        self.hosts, self.task.chance = [host.copy() for host in self.hosts], Random(0)
        self.task.rate *= min(self.scaling_cap, (batch / START) ** 0.5)
        for _ in range(samples // (H * batch)):
            self.round(batch)
        loss = heldout_loss(self.shell, self.outer, self.heldout, micro_batch=EVALUATED_TOKENS // self.kind.length)
        self.outer, self.momentum, self.hosts, self.task.rate, self.task.chance = state
        return loss


def run_one(kind: Kind, seed: int) -> Record:
    """Return the requests and the losses of the branches at all places of one run."""
    torch.set_num_threads(1)
    trunk, history = Trunk(kind, seed), list[NoiseSample]()
    num_rounds, samples, floor = kind.samples // (H * START), kind.samples // BRANCH, trunk.rules.final_fraction
    branched = [round(place * num_rounds) for place in PLACES]
    places = []
    for number in range(branched[-1] + 1):
        trunk.task.rate = RATE * (floor + (1.0 - floor) * half_cosine(number / num_rounds))
        if number in branched:
            request, _ = demanded_batch(history, inner_steps=H, rules=trunk.rules.batch)
            losses = {batch: round(trunk.branch(batch, samples), 5) for batch in BATCHES if samples >= H * batch}
            places.append({"request": request, "losses": losses})
        history.append(trunk.round(START))
    return {"task": kind.name, "seed": seed, "places": places}


def key(kind: Kind, seed: int) -> str:
    constants = [HOSTS, PLACES, BRANCH, BATCHES, RATE, BASE.read_text("utf-8"), rows(kind)[TEST].settings]
    return digest_of([*constants, kind.samples, kind.length, kind.noise, seed])


def critical(losses: Mapping[str, float], tolerance: float) -> float:
    """Return the critical batch as the module's docstring defines it; the largest batch that was tried, where no branch ends
    higher."""
    batches = sorted(losses, key=int)
    bound = losses[batches[0]] + tolerance
    for before, after in pairwise(batches):
        if losses[after] > bound:
            part = (bound - losses[before]) / (losses[after] - losses[before])
            return exp(log(int(before)) + part * log(int(after) / int(before)))
    return float(batches[-1])


def ranks(values: Sequence[float]) -> list[float]:
    """Return the ranks of the values; equal values share the mean of their places."""
    ordered = sorted(values)
    return [ordered.index(value) + (ordered.count(value) - 1) / 2 for value in values]


def rank_correlation(left: Sequence[float], right: Sequence[float]) -> float:
    return correlation(ranks(left), ranks(right))


def mean_of(values: Sequence[float]) -> float:
    """Return the geometric mean."""
    return exp(fmean(log(value) for value in values))


def table(records: Mapping[str, Record]) -> list[str]:
    """Return a table of the means over the seeds, and the rank correlation of each column with the requests and with the time
    of the run."""
    tolerances = (TOLERANCE, *OTHER_TOLERANCES)
    seeds = sorted({record["seed"] for record in records.values()})
    head = " | ".join(f"critical batch, {tolerance:g} above" for tolerance in tolerances)
    lines = [f"| task | samples spent | request | {head} | loss above that of {START} |", "|---" * (4 + len(tolerances)) + "|"]
    requests, found = list[float](), {tolerance: list[float]() for tolerance in tolerances}
    for kind in FIRST:
        runs = [records[key(kind, seed)]["places"] for seed in seeds if key(kind, seed) in records]
        for number, place in enumerate(PLACES):
            here = [places[number] for places in runs]
            requests.append(mean_of([item["request"] for item in here]))
            for tolerance in tolerances:
                found[tolerance].append(mean_of([critical(item["losses"], tolerance) for item in here]))
            batches = [batch for batch in here[0]["losses"] if int(batch) > START]
            above = {batch: fmean(item["losses"][batch] - item["losses"][str(START)] for item in here) for batch in batches}
            cells = [kind.name, f"{place:.0%}", f"{requests[-1]:.1f}", *(f"{values[-1]:.0f}" for values in found.values())]
            cells.append(", ".join(f"{batch}: {loss:.3f}" for batch, loss in above.items()))
            lines.append(f"| {' | '.join(cells)} |")
    for name, ordered in (("the request", requests), ("the samples spent", PLACES * len(FIRST))):
        correlations = " | ".join(f"{rank_correlation(ordered, values):.2f}" for values in found.values())
        lines.append(f"| rank correlation with {name} | | | {correlations} | |")
    return lines


def train(arguments: argparse.Namespace) -> None:
    jobs = [(key(kind, seed), partial(run_one, kind, seed)) for seed in arguments.seeds for kind in FIRST]
    train_missing(KEPT, arguments.output, jobs)


def tabulate(arguments: argparse.Namespace) -> None:
    """Write the table and the packed records. Runs with other constants are left out."""
    records = records_by_key(KEPT, arguments.runs)
    known = {key(kind, seed) for kind in FIRST for seed in {record["seed"] for record in records.values()}}
    shown = {name: record for name, record in sorted(records.items()) if name in known}
    rewrite(RESULTS / "carried_over.md", {"critical": table(shown)})
    pack(shown.values(), RESULTS / KEPT.name)


def main() -> None:
    command_line("critical_batch", __doc__, seeds=SEEDS, train=train, tabulate=tabulate).act()


if __name__ == "__main__":
    main()
