"""What each `outer.state` costs in loss beside float32: 8, 6 or 4 bytes per parameter on the way to a joiner.

    python -m benchmarks.outer_state [--seeds 1 2 3 4 5] [--states mixed bfloat16] [--samples 8192]

The runs of `benchmarks.method` (its model, data and simulated swarm of four), canonical DiLoCo with a momentum that forgets
late, as what is rounded counts longest there. Prints every loss, and of each form the mean difference from float32 over the
seeds with its standard error.
"""

import argparse
from math import sqrt
from statistics import fmean, stdev

from benchmarks.method.rows import diloco
from benchmarks.method.run import run_row

INNER_STEPS, MOMENTUM = 16, 0.9


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3, 4, 5])
    parser.add_argument("--samples", type=int, default=8192)
    parser.add_argument("--states", nargs="+", default=["mixed", "bfloat16"])
    arguments = parser.parse_args()
    losses: dict[str, list[float]] = {state: [] for state in ("float32", *arguments.states)}
    for seed in arguments.seeds:
        for state, found in losses.items():
            row = diloco(8, INNER_STEPS, f"outer.state={state}", momentum=MOMENTUM)
            record = run_row(row, seed, samples=arguments.samples)
            found.append(record["loss"])
        shown = "  ".join(f"{state} {found[-1]:.4f}" for state, found in losses.items())
        print(f"seed {seed}, {record['rounds']} rounds: {shown}", flush=True)
    for state in arguments.states:
        more = [one - exact for one, exact in zip(losses[state], losses["float32"], strict=True)]
        error = stdev(more) / sqrt(len(more)) if len(more) > 1 else float("nan")
        print(f"{state}: {fmean(more):+.4f} +- {error:.4f}", flush=True)


if __name__ == "__main__":
    main()
