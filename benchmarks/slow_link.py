"""What one host behind a slow link costs three others with fast ones: whole peers in virtual time, without tensors.

python -m benchmarks.slow_link                              a vector of 45 MB at 2 and at 12 MB/s; two minutes of an idle core
python -m benchmarks.slow_link --compute-seconds 120 --seeds 3 --rounds 40

Four runs for each computing time of a round: the fast hosts alone, with the slow one in as many as the rule gives it
(`work.link_tolerance` 0.1), with the slow one planned for every average and left out by the quorum (null, `work.quorum` 0.7),
and with the slow one in every average (both null). The pace is that of the fast hosts, from the eighth round on; the last
column says in how many averages the plans count on the slow one.
"""

import argparse
from statistics import fmean

from adloco_p2p.sim.slow_link import Links, Pace, pace_with_slow_link

ROWS = {
    "without it": (0.1, None),
    "in some averages": (0.1, None),
    "left out by the quorum": (None, 0.7),
    "in every average": (None, None),
}
"""With `work.link_tolerance` and `work.quorum`."""


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
