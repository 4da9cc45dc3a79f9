"""Does a run withstand those who have its link? One row per attack: what was sent, what happened, whether the run withstood it.

python -m benchmarks.adversary                       the findings of the review of trust, and variants that are not in it
python -m benchmarks.adversary --only A1 B5          rows by finding or by name
python -m benchmarks.adversary --live                the stranger's attacks against live processes over loopback, too

The attacks meet the production classes: in the simulated world (`arena.py`), and, where they are about bytes and streams, the
classes of the border themselves (`border.py`). Exit code 1 where a row fails. A seed repeats all of it but the live rows.
"""

import argparse
import random
import sys
import time
from collections.abc import Sequence

from benchmarks.adversary.border import BORDER
from benchmarks.adversary.review import REVIEW
from benchmarks.adversary.scenario import Scenario, named
from benchmarks.adversary.variants import VARIANTS


def scenarios() -> list[Scenario]:
    """All but the live ones; those of the review by finding."""
    found = sorted((*REVIEW, *BORDER), key=lambda row: (row.finding[0], int(row.finding[1:])))
    return [*found, *VARIANTS]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.adversary", description=(__doc__ or "").split("\n\n", 1)[0])
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME", help="findings, or names of rows")
    parser.add_argument("--live", action="store_true", help="live processes, too; minutes")
    parser.add_argument("--seed", type=int, help="of the worlds; printed")
    asked = parser.parse_args(arguments)
    seed = asked.seed if asked.seed is not None else random.SystemRandom().randrange(1 << 31)
    print(f"seed {seed}", flush=True)
    rows = scenarios()
    if asked.live:
        from benchmarks.adversary.live import LIVE  # it needs the whole node

        rows += LIVE
    try:
        chosen = named(rows, asked.only)
    except KeyError as unknown:
        print(f"no row is named {unknown}; there are: {', '.join(dict.fromkeys(row.finding or row.name for row in rows))}")
        return 2
    failed = [row for row in chosen if not shown(row, seed)]
    print(f"{len(chosen) - len(failed)} of {len(chosen)} attacks were withstood")
    return 1 if failed else 0


def shown(row: Scenario, seed: int) -> bool:
    """Play it, and print its line. Whether the run withstood it."""
    began = time.perf_counter()
    outcome = row.play(seed)
    verdict = "pass" if outcome.has_passed else "FAIL"
    spent = time.perf_counter() - began
    print(
        f"{verdict}  {row.finding or 'new':<4} {row.name:<42} {outcome.sent}  ->  {outcome.happened}  ({spent:.1f} s)",
        flush=True,
    )
    return outcome.has_passed


if __name__ == "__main__":
    sys.exit(main())
