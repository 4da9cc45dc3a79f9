"""The cost of one host behind a slow link to three others with fast ones: whole peers in virtual time, without tensors.

python -m benchmarks.slow_link                              a vector of 45 MB at 2 and at 12 MB/s; two minutes of an idle core
python -m benchmarks.slow_link --compute-seconds 120 --seeds 3 --rounds 40

Four runs for each computing time of a round: the fast hosts alone, with the slow one in as many as the rule gives it
(`work.link_tolerance` 0.1), with the slow one planned for every average and left out by the quorum (null, `work.quorum` 0.7),
and with the slow one in every average (both null). The pace is that of the fast hosts, from the eighth round on; the last
column says in how many averages the plans count on the slow one.
"""

import argparse
from dataclasses import dataclass, replace
from statistics import fmean

from adloco_p2p.core.model.rules import WorkRules
from adloco_p2p.sim.faults import Faults
from adloco_p2p.sim.identities import name_of
from adloco_p2p.sim.links import VECTOR_BYTES
from adloco_p2p.sim.world import Parts, World
from benchmarks.steady_hosts import constant_rules, speed_device

ROWS = {
    "without it": (0.1, None),
    "in some averages": (0.1, None),
    "left out by the quorum": (None, 0.7),
    "in every average": (None, None),
}
"""Each way with its `work.link_tolerance` and `work.quorum`."""
FAST_HOSTS, BATCH, STEPS = 3, 240, 4
SETTLED_ROUND = 8
"""The round from which the pace is measured: links are known after three rounds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """The pace of the hosts with fast links."""

    samples_per_second: float
    """The sum over these hosts."""
    slow_in_average: int
    """The measured rounds whose average contained the slow host's pseudo-gradient."""
    num_rounds: int
    """The measured rounds."""
    reason: str
    """The reason of the last plan that names the slow host's link period; empty where none does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Links:
    """The seconds that a pseudo-gradient takes."""

    fast_seconds: float = 3.75
    """45 MB at 12 MB/s."""
    slow_seconds: float | None = 22.5
    """45 MB at 2 MB/s; None: there is no slow host."""


def pace_with_slow_link(
    seed: int, *, rounds: int, compute_seconds: float, links: Links, tolerance: float | None = 0.1, quorum: float | None = None
) -> Pace:
    """Return the pace of three hosts with fast links beside one with a slow one. `tolerance`: `work.link_tolerance`, `quorum`:
    `work.quorum`. Raises Violation."""
    slow = name_of(FAST_HOSTS) if links.slow_seconds is not None else None
    rules = constant_rules(WorkRules(rounds=rounds, inner_steps=STEPS, link_tolerance=tolerance, quorum=quorum), batch=BATCH)
    rates = dict.fromkeys(range(FAST_HOSTS), VECTOR_BYTES / links.fast_seconds)
    if links.slow_seconds is not None:
        rates[FAST_HOSTS] = VECTOR_BYTES / links.slow_seconds
    world = World(
        seed,
        peers=len(rates),
        rounds=rounds,
        faults=replace(Faults(), faults_end_at=0.0, skew_seconds=0.0),
        round_seconds=compute_seconds,
        rules=rules,
        parts=Parts(rates=rates, device=speed_device(BATCH * STEPS / FAST_HOSTS)),
    )
    world.limit_seconds = 4 * rounds * (compute_seconds + max(links.fast_seconds, links.slow_seconds or 0.0))
    world.run()
    ended = {number: sorted(times)[FAST_HOSTS - 1] for number, times in world.reported.items() if len(times) >= FAST_HOSTS}
    first, last = SETTLED_ROUND - 1, max(ended)
    plans = [entry.plan for entry in world.ledger() if first < entry.plan.round <= last]
    done = [share.samples for plan in plans for item in plan.instances for share in item.hosts if share.peer != slow]
    told = [plan.reason for plan in plans if slow is not None and f"{slow} is " in plan.reason]
    due = [
        share.contributes(plan.round) for plan in plans for item in plan.instances for share in item.hosts if share.peer == slow
    ]
    return Pace(
        samples_per_second=sum(done) / (ended[last] - ended[first]),
        slow_in_average=sum(due),
        num_rounds=last - first,
        reason=told[-1] if told else "",
    )


def measured(way: str, args: argparse.Namespace, compute_seconds: float) -> list[Pace]:
    slow_seconds = None if way == "without it" else args.megabytes / args.slow
    links = Links(fast_seconds=args.megabytes / args.fast, slow_seconds=slow_seconds)
    tolerance, quorum = ROWS[way]
    return [
        pace_with_slow_link(
            seed, rounds=args.rounds, compute_seconds=compute_seconds, links=links, tolerance=tolerance, quorum=quorum
        )
        for seed in range(args.seeds)
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--compute-seconds", type=float, nargs="+", default=[12.0, 60.0, 120.0])
    parser.add_argument("--megabytes", type=float, default=45.0, help="of a pseudo-gradient as it travels")
    parser.add_argument("--slow", type=float, default=2.0, help="MB/s of the slow host, up and down")
    parser.add_argument("--fast", type=float, default=12.0, help="MB/s of each of the others")
    parser.add_argument("--rounds", type=int, default=72)
    parser.add_argument("--seeds", type=int, default=1)
    args = parser.parse_args()
    print("| round of the others alone computes | the slow host | samples/s of the others | their pace | averages with it |")
    print("|---:|---|---:|---:|---:|")
    for compute_seconds in args.compute_seconds:
        alone = 0.0
        for way in ROWS:
            paces = measured(way, args, compute_seconds)
            rate = fmean(pace.samples_per_second for pace in paces)
            alone = alone or rate
            part = sum(pace.slow_in_average for pace in paces) / sum(pace.num_rounds for pace in paces)
            print(f"| {compute_seconds:g} s | {way} | {rate:.1f} | {rate / alone:.0%} | {part:.0%} |", flush=True)


if __name__ == "__main__":
    main()
