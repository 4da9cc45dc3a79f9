"""The guard's measurements in real training: rises of the loss where nobody lies, and what alarms change where hosts do.

python -m benchmarks.guard             false alarms, the effect on attacks, and the cost of measuring; 3 s a run on an idle core
python -m benchmarks.guard --seeds 1   one seed of each row

Training, liars, rules and outer step are those of `benchmarks/robustness`; drawn rows, tolerance and the way back are the
product's, with one honest pair. As in the product, an alarm about round r acts before round r + 2.
"""

import argparse
import time
from collections import deque
from dataclasses import dataclass, field, replace

import torch

from adloco_p2p.core.model.plan import REPORT_LAG
from adloco_p2p.core.planning.guard import LEAST_TOLERANCE, MOST_TOLERANCE, RISE_FACTOR, STRICT_ROUNDS
from adloco_p2p.data.feed import IndexedFeed
from adloco_p2p.numerics.aggregation.registry import STRICT
from adloco_p2p.numerics.digest import state_digests
from adloco_p2p.training.evaluate import heldout_loss
from adloco_p2p.training.hosting import GUARD_ROWS
from adloco_p2p.training.model import build_model
from adloco_p2p.training.shell import ModelShell
from benchmarks.robustness.cells import Cell
from benchmarks.robustness.run import Swarm

CLEAN = [Cell(), Cell(data="uneven"), Cell(rule="robust"), Cell(rule="robust", data="uneven"), Cell(codec="topk2")]
LONG = [replace(cell, rounds=64, momentum=0.9) for cell in (Cell(), Cell(rule="robust", data="uneven"), Cell(codec="sign"))]
ATTACKED = [
    Cell(liars=2, attack=attack, rule=rule)
    for attack, rule in (("flip x10", "mean"), ("scale 1e3", "mean"), ("hidden", "clip"), ("minmax", "robust"))
]


@dataclass(slots=True)
class Watched:
    """The figures of one run under the guard."""

    rises: list[float] = field(default_factory=list)
    """The rise of the loss in each judged round."""
    alarms: int = 0
    loss: float | None = None
    measuring_seconds: float = 0.0
    """Seconds of one host of the pair, per round."""
    training_seconds: float = 0.0
    """Seconds of one host, per round."""


def watched(cell: Cell, seed: int, *, acts: bool) -> Watched:
    """Train a cell; `acts`: alarms have consequences."""
    torch.set_num_threads(1)
    swarm, found = Swarm(cell, seed), Watched()
    feed = IndexedFeed(swarm.rows, vocab_size=swarm.vocab_size, seed=seed)
    length = swarm.run.data.sequence_length
    module = build_model(swarm.run.model, vocab_size=swarm.vocab_size, sequence_length=length, seed=0)
    shell = ModelShell(module, device=torch.device("cpu"), is_bfloat16=False)
    own_rule, recent = swarm.rule, deque([0.0], maxlen=16)
    states: list[tuple[torch.Tensor, torch.Tensor]] = []
    judged_from, back_at = 0, -1
    for number in range(cell.rounds):
        if number == back_at:
            swarm.outer, swarm.momentum = (part.clone() for part in states[number - REPORT_LAG])
        swarm.rule = STRICT if number < judged_from and back_at >= 0 else own_rule
        states.append((swarm.outer.clone(), swarm.momentum.clone()))
        begun = time.process_time()
        swarm.round(number)
        found.training_seconds += (time.process_time() - begun) / cell.hosts / cell.rounds
        if swarm.has_diverged:  # the step is refused
            swarm.outer, swarm.momentum = (part.clone() for part in states[number])
            continue
        rows = feed.drawn(state_digests(swarm.outer, swarm.momentum)[1], GUARD_ROWS)
        begun = time.process_time()
        before, after = (heldout_loss(shell, outer, rows, micro_batch=GUARD_ROWS) for outer in (states[-1][0], swarm.outer))
        found.measuring_seconds += (time.process_time() - begun) / cell.rounds
        if number < judged_from:
            continue
        found.rises.append(after - before)
        if after - before <= min(MOST_TOLERANCE, max(LEAST_TOLERANCE, RISE_FACTOR * max(recent))):
            recent.append(max(0.0, after - before))
            continue
        found.alarms += 1
        if acts and number + REPORT_LAG < cell.rounds and number > 0:
            back_at, judged_from = number + REPORT_LAG, number + REPORT_LAG + STRICT_ROUNDS
    found.loss = swarm.loss()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.guard", description=__doc__)
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3, 4, 5])
    seeds: list[int] = parser.parse_args().seeds
    print("nobody lies              rounds  alarms  largest rise  training s  measuring s (of one host, per round)", flush=True)
    for cell in (*CLEAN, *LONG):
        runs = [watched(cell, seed, acts=True) for seed in seeds]
        rises = [rise for run in runs for rise in run.rises]
        seconds = [sum(getattr(run, name) for run in runs) / len(runs) for name in ("training_seconds", "measuring_seconds")]
        name = f"{cell.rule}, {cell.data}, {cell.codec}"
        alarms = sum(run.alarms for run in runs)
        print(f"{name:<24} {len(rises):4}  {alarms:4}  {max(rises):+.4f}  {seconds[0]:.3f}  {seconds[1]:.3f}", flush=True)
    print("two of eight lie          seed  loss of honest hosts, unguarded, guarded; alarms", flush=True)
    for cell in ATTACKED:
        for seed in seeds:
            honest = watched(replace(cell, attack="", rule="mean"), seed, acts=False).loss
            plain, guarded = (watched(cell, seed, acts=acts) for acts in (False, True))
            name = f"{cell.attack}, {cell.rule}"
            print(f"{name:<24} {seed}  {honest}  {plain.loss}  {guarded.loss}  {guarded.alarms}", flush=True)


if __name__ == "__main__":
    main()
