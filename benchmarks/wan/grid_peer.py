"""A peer of `benchmarks.wan.grid`: the real node, whose device only takes time, and a count of what its DHT sends.

    python -m benchmarks.wan.grid_peer SECONDS FILE start run.yaml --workdir DIR

An inner step takes SECONDS, or longer where this machine is busy, and no processor: once a round all parameters move by noise,
a part of it the same on all peers. FILE gets a line for each request of the DHT: unix seconds, bytes sent, bytes received.
"""

import signal
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from adloco_p2p.core.model.events import InnerResult
from benchmarks.wan.grid_cell import STEP_TOKENS

LOSS = 1.0
"""The loss of every step, since nothing is computed."""
CHANGE = 1e-4
"""The change of a parameter in a round, root mean square."""
PERIOD = 64
"""Rounds after which the noise repeats itself."""
DHT = "DHTProtocol."
"""The beginning of the names of the DHT's requests."""

Handler = Callable[[bytes, Any], Awaitable[bytes]]


class Noise:
    """Vectors of one length, another one in each round: half of each, by power, is the same on all peers."""

    def __init__(self, size: int, *, seed: int) -> None:
        drawn = [torch.randn(size + PERIOD, generator=torch.Generator().manual_seed(number)) for number in (0, seed)]
        self._values = (drawn[0] + drawn[1]) * (CHANGE / 2**0.5)

    def of_round(self, round: int) -> torch.Tensor:
        return self._values[round % PERIOD : len(self._values) - PERIOD + round % PERIOD]


def steps_that_sleep(step_seconds: float, *, seed: int) -> Callable[..., InnerResult | None]:
    """Return a replacement of `run_inner_steps` whose inner steps take that long and train nothing. `seed`: the seed of this
    peer's noise, not 0."""
    noise: list[Noise] = []

    def sleep(_shell: object, instance: Any, _batches: object, **given: Any) -> InnerResult | None:
        begun, share, steps = time.monotonic(), given["share"], 0
        if not noise:
            noise.append(Noise(len(instance.local), seed=seed))
        while steps < share.inner_steps and not given["is_enough"](steps) and not given["should_stop"]():
            if not steps:
                instance.local.add_(noise[0].of_round(instance.round))
                instance.is_at_boundary = False
            steps += 1
            time.sleep(max(0.0, begun + steps * step_seconds - time.monotonic()))
            given["on_progress"](steps, LOSS, STEP_TOKENS)
        if not steps:
            return None
        return InnerResult(
            samples=steps * share.effective_batch,
            tokens=steps * STEP_TOKENS,
            inner_steps=steps,
            batch_samples=share.effective_batch,
            accumulation_steps=1,
            loss=LOSS,
            seconds=time.monotonic() - begun,
            half_batch=None,
            micro_batch_limit=given["micro_batch_limit"],
        )

    return sleep


def count_dht(path: Path) -> None:
    """Add a line to the file for every request of the DHT from now on, of this peer or of another."""
    from hivemind.p2p.p2p_daemon_bindings.p2pclient import Client

    call, add = Client.call_unary_handler, Client.add_unary_handler
    file = path.open("a", buffering=1)

    def count(sent: int, received: int) -> None:
        file.write(f"{time.time():.3f} {sent} {received}\n")

    async def counted_call(self: Client, peer_id: Any, proto: str, data: bytes) -> bytes:
        answer = await call(self, peer_id, proto, data)
        if proto.startswith(DHT):
            count(len(data), len(answer))
        return answer

    async def counted_add(self: Client, proto: str, handler: Handler, balanced: bool = False) -> None:
        async def counted(request: bytes, remote: Any) -> bytes:
            answer = await handler(request, remote)
            count(len(answer), len(request))
            return answer

        await add(self, proto, counted if proto.startswith(DHT) else handler, balanced=balanced)

    Client.call_unary_handler, Client.add_unary_handler = counted_call, counted_add


def main(words: Sequence[str]) -> int:
    step_seconds, path, *arguments = words
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # as in `benchmarks.paced`
    from adloco_p2p.training import hosting

    seed = 1 + int(Path(path).stem.rpartition("-")[2])
    hosting.run_inner_steps = steps_that_sleep(float(step_seconds), seed=seed)  # type: ignore[attr-defined]
    count_dht(Path(path))
    signal.signal(signal.SIGINT, signal.default_int_handler)
    from adloco_p2p.cli import main as node

    return node(arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
