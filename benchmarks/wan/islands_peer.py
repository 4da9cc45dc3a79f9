"""A peer of `benchmarks.wan.islands`: the real node, with a device of a stated speed and, where asked, one more rule of plans.

    python -m benchmarks.wan.islands_peer SECONDS ROUNDS SCALE start run.yaml --workdir DIR

An inner step takes SECONDS, or longer where this machine is busy (`benchmarks.paced`). Every ROUNDS rounds all instances get
their mean and go on apart (`benchmarks.method.mutual_merges`); 0: never. The first plan takes every peer for one that offers to
host as many instances as it does in all later plans, by its own setting `max_instances`: one. In the product the first plan
assumes that every founder hosts all instances, which would cost the first two rounds. A chunk of a state has a SCALE-th of its
bytes: the state of a small model would be one or two chunks, and a fetcher asks every donor for a chunk that is late.
"""

import signal
import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from adloco_p2p.core.model.plan import RoundPlan
from benchmarks.paced import pace

VALUE_BYTES = 4


def plan_for_islands(every: int) -> None:
    """Make plans of this process follow these rules from now on. All peers of a run need the same ones."""
    from adloco_p2p.core.planning import round_plan
    from adloco_p2p.runtime.adapters import plan_rule
    from benchmarks.method.mutual_merges import with_mutual_merges

    def next_plan(*told: Any, **more: Any) -> RoundPlan:
        return with_mutual_merges(round_plan.next_plan(*told, **more), every=every)

    plan_rule.next_plan = next_plan  # type: ignore[attr-defined]
    plan_rule.UNKNOWN_CAPACITY = replace(plan_rule.UNKNOWN_CAPACITY, max_instances=1)


def divide_chunks(scale: float) -> None:
    """Make chunks of states smaller by this factor, in whole values."""
    from adloco_p2p.numerics import digest

    digest.CHUNK_BYTES = max(1, round(digest.CHUNK_BYTES / scale / VALUE_BYTES)) * VALUE_BYTES


def main(words: Sequence[str]) -> int:
    step_seconds, every, scale, *arguments = words
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # as in `benchmarks.paced`
    pace(float(step_seconds))
    plan_for_islands(int(every))
    divide_chunks(float(scale))
    signal.signal(signal.SIGINT, signal.default_int_handler)
    from adloco_p2p.cli import main as node

    return node(arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
