"""Attacks a run with everybody who has its link. Each attack gives a row: what was sent, what happened, and whether the run
withstood it.

python -m benchmarks.adversary                       the findings of the review of trust, and variants that are not in it
python -m benchmarks.adversary --only A1 B5          rows by finding or by name
python -m benchmarks.adversary --live                the stranger's attacks against live processes over loopback, too

The attacks meet the production classes: in the simulated world (`arena.py`), and, where they concern bytes and streams, the
classes of the border themselves (`border.py`). A seed repeats everything except the live rows.

A row that is marked as a gap is expected to fail, and is printed as open, with the reason. The exit code is 1 where another row
fails, or where an open one does not.
"""

import argparse
import random
import sys
import time
from collections.abc import Sequence

from benchmarks.adversary.border import BORDER
from benchmarks.adversary.claims import CLAIMS
from benchmarks.adversary.ends import ENDS
from benchmarks.adversary.found import FOUND
from benchmarks.adversary.looks import LOOKS
from benchmarks.adversary.paid_seats import PAID_SEATS
from benchmarks.adversary.records import RECORDS
from benchmarks.adversary.review import REVIEW
from benchmarks.adversary.scenario import Scenario, named
from benchmarks.adversary.silence import SILENCE
from benchmarks.adversary.variants import VARIANTS


def scenarios() -> list[Scenario]:
    """Return all scenarios but the live ones; those of the review in the order of its findings."""
    reviewed = [row for row in (*REVIEW, *BORDER, *SILENCE) if row.finding]
    found = sorted(reviewed, key=lambda row: (row.finding[0], int(row.finding[1:])))
    unreviewed = (row for row in SILENCE if not row.finding)
    return [*found, *VARIANTS, *PAID_SEATS, *CLAIMS, *ENDS, *FOUND, *RECORDS, *LOOKS, *unreviewed]


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
    verdicts = [shown(row, seed) for row in chosen]
    num_open = verdicts.count("open")
    num_withstood = verdicts.count("pass") + verdicts.count("shut")
    print(f"{num_withstood} of {len(chosen)} attacks were withstood, {num_open} are known to succeed")
    return 0 if set(verdicts) <= {"pass", "open"} else 1


def shown(row: Scenario, seed: int) -> str:
    """Play the scenario, print its line, and return its verdict."""
    began = time.perf_counter()
    outcome = row.play(seed)
    verdict = row.verdict(outcome)
    spent = time.perf_counter() - began
    gap = f"  [known gap: {row.gap}]" if row.gap else ""
    print(
        f"{verdict}  {row.finding or 'new':<4} {row.name:<42} {outcome.sent}  ->  {outcome.happened}  ({spent:.1f} s){gap}",
        flush=True,
    )
    return verdict


if __name__ == "__main__":
    sys.exit(main())
