"""Measures the card's wait between two rounds: the whole node alone, averaging with nobody, with 124 million parameters.

A gap is the time from the end of a round's inner steps, when the card has nothing to do, to the first inner step of the next
round: pseudo-gradient, outer step, digest, checkpoint and plan, where they do not run beside the training. The average in
memory is a part of it. The second line has the time of each call of the training room in a gap; the rest is the average, the
plan and the loop.
"""

import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import torch

from adloco_p2p.core.model.events import InnerResult
from adloco_p2p.core.model.rules import InstanceRules
from adloco_p2p.training.hosting import Hosting
from benchmarks.gpu.card import GPT2, describe, peer_of, random_rows, run_of
from benchmarks.node_overhead import whole_run

ROUNDS, STEPS, BATCH, MICRO = 5, 8, 64, 32
TARGET, ROUND_SECONDS = 0.01, 60.0


class Timed:
    """Records when a peer's inner steps began and ended, and which calls came in between."""

    def __init__(self, peer: Hosting) -> None:
        self.spans: list[tuple[float, float]] = []
        self.between: list[Counter[str]] = []
        """Seconds by call in the time after each round's inner steps."""
        run_inner = peer.run_inner

        def timed(*arguments: Any, **more: Any) -> InnerResult | None:
            started = time.perf_counter()
            result = run_inner(*arguments, **more)
            torch.cuda.synchronize()
            self.spans.append((started, time.perf_counter()))
            self.between.append(Counter())
            return result

        peer.run_inner = timed  # type: ignore[method-assign]
        peer.pseudo_gradient = self._noted("pseudo-gradient", peer.pseudo_gradient)  # type: ignore[method-assign]
        peer.apply_outer = self._noted("outer step and digest", peer.apply_outer)  # type: ignore[method-assign]
        peer.snapshot = self._noted("copy for a checkpoint", peer.snapshot)  # type: ignore[method-assign]

    def _noted(self, name: str, work: Callable[..., Any]) -> Callable[..., Any]:
        def noted(*arguments: Any, **more: Any) -> Any:
            started = time.perf_counter()
            result = work(*arguments, **more)
            torch.cuda.synchronize()
            if self.between:  # not what comes before the first round
                self.between[-1][name] += time.perf_counter() - started  # type: ignore[assignment]
            return result

        return noted

    @property
    def gaps(self) -> list[float]:
        return [start - end for (_, end), (start, _) in zip(self.spans, self.spans[1:], strict=False)]


def measure(name: str, **changes: Any) -> None:
    base = run_of(GPT2)
    run = replace(
        base,
        work=replace(base.work, rounds=ROUNDS, inner_steps=STEPS),
        batch=replace(base.batch, initial_batch=BATCH),
        instances=InstanceRules(count=1, start="same"),
        evaluation=replace(base.evaluation, period_rounds=0),
        **changes,
    )
    peer = peer_of(run, random_rows(), max_micro_batch=MICRO)
    timed = Timed(peer)
    with tempfile.TemporaryDirectory() as folder:
        whole_run(run, peer, Path(folder) / "run", checkpoint_period=4)()
    gaps = timed.gaps[1:]  # the first one allocates
    inner = median(end - start for start, end in timed.spans[1:])
    typical = median(gaps)
    print(
        f"{name:24s} inner steps {inner:6.2f} s, gap {typical:6.3f} s (most {max(gaps):.3f}):"
        f" {typical / (inner + typical):6.1%} of these rounds, {typical / ROUND_SECONDS:6.2%} of {ROUND_SECONDS:.0f} s",
        flush=True,
    )
    calls = timed.between[1:-1]
    parts = {part: median(call[part] for call in calls) for part in dict.fromkeys(part for call in calls for part in call)}
    print(f"{'':24s} {', '.join(f'{part} {seconds:.3f} s' for part, seconds in parts.items())}", flush=True)


def main() -> None:
    print(f"{describe()}, {torch.get_num_threads()} threads; target {TARGET:.0%} of a round of {ROUND_SECONDS:.0f} s")
    measure("float32 outer state")
    torch.cuda.empty_cache()
    base = run_of(GPT2)
    measure("bfloat16 outer momentum", outer=replace(base.outer, state="mixed"))


if __name__ == "__main__":
    main()
