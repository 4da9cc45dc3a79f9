"""Do the batches of a swarm of unequal machines follow those of equal ones? Whole runs that train, with 4 to 32 hosts.

python -m benchmarks.uneven_swarms run       train what kept records and uneven_swarms.jsonl lack; a core minute or two a run
python -m benchmarks.uneven_swarms report    the tables from both, into docs/results/method.md; keeps the records of both

The speeds of the hosts are spread evenly in their logarithm, over a factor of 1, 1.3 or 8, and work is shared by speed
(`work.share: speed`), so that hosts differ in samples and, where batches are small, in inner steps. Model, text and H are those
of `benchmarks.method`. A run starts with a row for each host and step, eight with four hosts; the samples of a run grow like
that start, and eta falls like its root, so that swarms of every size ask for the same multiple of their start. The cap is 64
times the start, which no run is meant to reach. Seed 0 was used to see that requests move.

Planned before any run, with five seeds, paired: the mean over the rounds that both have of log(request of the uneven swarm /
request of the even one), for each number of hosts and both factors. The batches follow if both ends of the corrected interval
(COMPARISONS) lie within 20 % and, in every round, so does the mean over the seeds. The final losses are exploratory.
"""

import argparse
from collections.abc import Mapping, Sequence
from functools import partial
from math import exp, log, sqrt
from statistics import fmean

from benchmarks.method.clock import SLOW
from benchmarks.method.figures import estimate, losses_of, shown
from benchmarks.method.report import rewrite
from benchmarks.method.rows import Row, adloco
from benchmarks.method.run import BASE, run_row
from benchmarks.method.store import RESULTS, Record, command_line, key_of, pack, records_by_key, train_missing

KEPT = RESULTS / "uneven_swarms.jsonl.gz"
"""Records of earlier runs; a reader's own go beside them."""
SEEDS = [1, 2, 3, 4, 5]
HOSTS = (4, 8, 16, 32)
FACTORS = (1.3, 8.0)
"""The fastest speed over the slowest, where speeds are unequal."""
EVEN = 1.0
COMPARISONS = len(HOSTS) * len(FACTORS)
START, ETA, SAMPLES = 8, 1.7, 8192
"""Those of four and eight hosts."""
WITHIN = 0.2


def start_of(hosts: int) -> int:
    return max(START, hosts)


def row_of(hosts: int, factor: float) -> Row:
    start = start_of(hosts)
    settings = (
        f"batch.initial_batch={start}",
        f"batch.max_batch={64 * start}",
        f"batch.eta={ETA * sqrt(START / start):.4g}",
        "inner.batch_scaling=sqrt",
        f"work.share={'equal' if factor == EVEN else 'speed'}",
    )
    speeds = tuple(factor ** (place / (hosts - 1)) for place in range(hosts))
    return adloco(f"{hosts} hosts, factor {factor:g}", *settings, speeds=speeds, clock=SLOW.name)


def samples_of(hosts: int) -> int:
    return SAMPLES * start_of(hosts) // START


def key(hosts: int, factor: float, seed: int) -> str:
    return key_of(row_of(hosts, factor), seed, samples=samples_of(hosts), base=BASE.read_text("utf-8"))


def train(arguments: argparse.Namespace) -> None:
    """Train all rows of one seed before the next seed."""
    jobs = [
        (key(hosts, factor, seed), partial(run_row, row_of(hosts, factor), seed, samples=samples_of(hosts)))
        for seed in arguments.seeds
        for hosts in HOSTS
        for factor in (EVEN, *FACTORS)
    ]
    train_missing(KEPT, arguments.output, jobs)


# --- the figures -----------------------------------------------------------------------------------------------------


def requests(record: Record) -> list[int]:
    """Return the requested batch of every round."""
    return [requested for ((requested, *_),) in record["log"]]


def log_ratios(uneven: Record, even: Record) -> list[float]:
    """Return, for every round that both have, the logarithm of the requested batch over that of the even swarm."""
    return [log(one / other) for one, other in zip(requests(uneven), requests(even), strict=False)]


def farthest_round(by_seed: Sequence[Sequence[float]]) -> float:
    """Return the mean over the seeds of the log ratios of the round where it is farthest from zero, of those that all have."""
    return max((fmean(of_round) for of_round in zip(*by_seed, strict=False)), key=abs)


def ratio_shown(logs: Sequence[float], comparisons: int = 1) -> str:
    """Return the geometric mean of ratios and its interval."""
    found = estimate(logs, comparisons)
    if found.half_width is None:
        return f"{exp(found.mean):.2f}"
    return f"{exp(found.mean):.2f}, {exp(found.mean - found.half_width):.2f} to {exp(found.mean + found.half_width):.2f}"


def follows(by_seed: Sequence[Sequence[float]]) -> bool:
    """Return whether batches follow, as planned."""
    found = estimate([fmean(ratios) for ratios in by_seed], COMPARISONS)
    reach = abs(found.mean) + (found.half_width or 0.0)
    return max(reach, abs(farthest_round(by_seed))) <= log(1 + WITHIN)


def table(records: Mapping[str, Record]) -> list[str]:
    """Return the requests of uneven swarms beside those of even ones."""
    lines = [
        "| hosts | factor | seeds | last request | even | most steps | ratio of requests | corrected | farthest round"
        " | follow | final loss minus even |",
        "|" + "---|" * 11,
    ]
    for hosts in HOSTS:
        even = _of_seeds(records, hosts, EVEN)
        for factor in FACTORS:
            uneven = _of_seeds(records, hosts, factor)
            common = sorted(uneven.keys() & even.keys())
            if not common:
                continue
            by_seed = [log_ratios(uneven[seed], even[seed]) for seed in common]
            means = [fmean(ratios) for ratios in by_seed]
            lasts = [fmean(requests(found[seed])[-1] for seed in common) for found in (uneven, even)]
            steps = max(most for seed in common for ((_, _, most, _),) in uneven[seed]["log"])
            cells = [
                f"{hosts} | {factor:g} | {len(common)} | {lasts[0]:.0f} | {lasts[1]:.0f} | {steps}",
                ratio_shown(means),
                ratio_shown(means, COMPARISONS),
                f"{exp(farthest_round(by_seed)):.2f}",
                "yes" if follows(by_seed) else "no",
                shown(losses_of(uneven.values()), losses_of(even.values())),
            ]
            lines.append(f"| {' | '.join(cells)} |")
    return lines


def _of_seeds(records: Mapping[str, Record], hosts: int, factor: float) -> dict[int, Record]:
    seeds = sorted({record["seed"] for record in records.values()})
    return {seed: records[name] for seed in seeds if (name := key(hosts, factor, seed)) in records}


def tabulate(arguments: argparse.Namespace) -> None:
    """Write the table and the packed records. Runs with other settings are left out."""
    records = records_by_key(KEPT, arguments.runs)
    seeds = {record["seed"] for record in records.values()}
    known = {key(hosts, factor, seed) for hosts in HOSTS for factor in (EVEN, *FACTORS) for seed in seeds}
    kept = {name: record for name, record in sorted(records.items()) if name in known}
    rewrite(RESULTS / "method.md", {"uneven swarms": table(kept)})
    pack(kept.values(), RESULTS / KEPT.name)


def main() -> None:
    command_line("uneven_swarms", __doc__, seeds=SEEDS, train=train, tabulate=tabulate).act()


if __name__ == "__main__":
    main()
