"""A peer whose device takes a stated time for an inner step, however busy this machine is, so that many peers fit on few cores.

    python -m benchmarks.paced [--row-seconds SECONDS] SECONDS join --initial-peers ADDRESS --workdir DIR

It is the real node: it computes every step, and then waits for what is left of the step's time: SECONDS, and more for each row
of the peer's batch where `--row-seconds` says so, as a batch that grows needs. With `work.share: equal` a round then lasts as
long for one host as for many.
"""

import argparse
import signal
import sys
import time
from collections.abc import Callable
from typing import Any

OnProgress = Callable[[int, object, int], None]


def pace(step_seconds: float, *, row_seconds: float = 0.0) -> None:
    """Make inner steps of this process take that long, and `row_seconds` for each of their rows, or longer, from now on."""
    from adloco_p2p.training.hosting import Hosting

    compute = Hosting.run_inner

    def run_inner(
        self: Hosting,
        effect: Any,
        *,
        should_stop: Callable[[], bool],
        is_enough: Callable[[int], bool],
        on_progress: OnProgress,
    ) -> Any:
        begun = time.monotonic()
        seconds = step_seconds + row_seconds * effect.share.effective_batch

        def paced_progress(step: int, loss: object, tokens: int) -> None:
            on_progress(step, loss, tokens)
            while (left := begun + step * seconds - time.monotonic()) > 0 and not should_stop():
                time.sleep(min(left, 0.1))

        return compute(self, effect, should_stop=should_stop, is_enough=is_enough, on_progress=paced_progress)

    Hosting.run_inner = run_inner  # type: ignore[assignment, method-assign]


def main() -> int:
    parser = argparse.ArgumentParser(description="A member of a run with a device of a stated speed.")
    parser.add_argument("--row-seconds", type=float, default=0.0, help="more for each row of an inner step")
    parser.add_argument("step_seconds", type=float)
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="of adloco-peer")
    asked = parser.parse_args()
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # extensions report an interrupt during their import as an error
    pace(asked.step_seconds, row_seconds=asked.row_seconds)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    from adloco_p2p.cli import main as node

    return node(asked.arguments)


if __name__ == "__main__":
    sys.exit(main())
