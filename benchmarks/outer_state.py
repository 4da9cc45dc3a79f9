"""The cost of each `outer.state` in loss beside float32: 8, 6 or 4 bytes per parameter on the way to a joiner.

python -m benchmarks.outer_state run               train what the kept records and outer_state.jsonl lack; 30 s of a core a seed
python -m benchmarks.outer_state report            the table from both, into docs/results/bytes.md; keeps the records of both

Model, data and inner steps are those of `benchmarks.presets`, in 8 hosts; all hosts of all states train at once. Outer momenta
are those that go with H: the later one forgets, the longer counts what was rounded.
"""

import argparse
import time
from collections.abc import Sequence
from functools import partial
from typing import get_args, get_type_hints

import torch

from adloco_p2p.config.run_config import OuterConfig
from adloco_p2p.core.model.scalars import InstanceId
from adloco_p2p.data.feed import IndexedFeed
from adloco_p2p.training.hosted_instances import STATE_DTYPES
from adloco_p2p.training.seeds import derived_seed
from benchmarks.method.figures import estimate, paired
from benchmarks.method.report import keep_tables
from benchmarks.method.run import indexed, load_base
from benchmarks.method.store import RESULTS, Record, command_line, train_missing
from benchmarks.robustness.training import Trainees, apply_, measure_of, rows_of_host, schedule_of

STATES: tuple[str, ...] = get_args(get_type_hints(OuterConfig)["state"])
HOSTS, STEPS = 8, 1024
CELLS = ((32, 0.5), (64, 0.7))
"""H, and the outer momentum."""
KEPT = RESULTS / "outer_state.jsonl.gz"
"""Records of earlier runs; a reader's own go beside them."""


def run_cell(inner_steps: int, outer_momentum: float, seed: int) -> Record:
    """Return held-out losses at the end, by state, with one row a host and step."""
    torch.set_num_threads(1)
    started, rounds = time.process_time(), STEPS // inner_steps
    settings = [f"work.rounds={rounds}", f"work.inner_steps={inner_steps}", f"outer.momentum={outer_momentum}", f"seed={seed}"]
    run = load_base(settings)
    rows, vocab_size = indexed()
    feed = IndexedFeed(rows, vocab_size=vocab_size, seed=seed)
    trainees = Trainees(run, vocab_size=vocab_size, num_hosts=HOSTS * len(STATES))
    outers = [trainees.start.to(STATE_DTYPES[state][0], copy=True) for state in STATES]
    momenta = [torch.zeros_like(trainees.start, dtype=STATE_DTYPES[state][1]) for state in STATES]
    for number in range(rounds):
        taken = [rows_of_host(run, feed, host, number, turn=number * HOSTS + host) for host in range(HOSTS)]
        starts = torch.stack([outer.float() for outer in outers]).repeat_interleave(HOSTS, dim=0)  # [states * hosts, P]
        deltas = starts - trainees.inner_round(starts, taken * len(STATES), schedule_of(run, number))
        averages = deltas.view(len(STATES), HOSTS, -1).mean(dim=1)
        for outer, momentum, averaged in zip(outers, momenta, averages, strict=True):
            rounding_seed = derived_seed(run.seed, "outer rounding", InstanceId(0), number)
            apply_(run, outer, momentum, averaged, rounding_seed=rounding_seed)
    measure = measure_of(run, rows, vocab_size)
    losses = [measure(outer.float()) for outer in outers]
    return {
        "inner_steps": inner_steps,
        "momentum": outer_momentum,
        "seed": seed,
        "parameters": len(trainees.start),
        "losses": {state: round(loss, 5) for state, loss in zip(STATES, losses, strict=True)},
        "processor_seconds": round(time.process_time() - started, 1),
    }


def key_of(inner_steps: int, outer_momentum: float, seed: int) -> str:
    return f"H {inner_steps}, momentum {outer_momentum}, seed {seed}"


def train(arguments: argparse.Namespace) -> None:
    jobs = ((key_of(*cell, seed), partial(run_cell, *cell, seed)) for seed in arguments.seeds for cell in CELLS)
    train_missing(KEPT, arguments.output, jobs)


def table(records: Sequence[Record]) -> list[str]:
    """Return one line per cell and state, with the loss beside that of `float32` with the same seed."""
    lines = ["| H, outer momentum | `outer.state` | bytes of state | seeds | loss | beside `float32` |", "|" + "---|" * 6]
    for cell in CELLS:
        some = [record for record in records if (record["inner_steps"], record["momentum"]) == cell]
        for state in STATES:
            losses, exact = ({record["seed"]: record["losses"][one] for record in some} for one in (state, "float32"))
            beside = paired(losses, exact)
            if beside is None:
                continue
            num_bytes = sum(dtype.itemsize for dtype in STATE_DTYPES[state])
            shown = "" if state == "float32" else f"{'+' if beside.mean >= 0 else ''}{beside.shown(4)}"
            loss = estimate(list(losses.values())).shown(3)
            lines.append(f"| {cell[0]}, {cell[1]} | {state} | {num_bytes} | {len(some)} | {loss} | {shown} |")
    return lines


def tabulate(arguments: argparse.Namespace) -> None:
    keep_tables(KEPT, arguments.runs, "bytes.md", {"states": table})


def main() -> None:
    command_line("outer_state", __doc__, seeds=range(1, 7), train=train, tabulate=tabulate).act()


if __name__ == "__main__":
    main()
