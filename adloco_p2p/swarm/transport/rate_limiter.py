"""Holds all traffic of a peer under its caps.

Tensors and state wait for their turn; gossip never does: it is charged afterwards, so that tensors wait the longer. Under a
cap data is sent in pieces of a tenth of a second, so that a small message on the same connection waits for no more than that.
A download is held back by not reading, which the transport's flow control hands on to the sender.

Payload and our own framing are counted; `OVERHEAD` stands for what encryption, multiplexing and TCP add.
"""

import time
from collections import deque
from collections.abc import Callable

from adloco_p2p.core.model.telemetry import Bandwidth
from adloco_p2p.swarm.transport.framed_stream import FRAME_BYTES
from adloco_p2p.swarm.transport.token_bucket import TokenBucket
from adloco_p2p.swarm.transport.traffic import Traffic

OVERHEAD = 1.07
"""Bytes on the link per byte counted; `benchmarks.wan.averaging` measures it as `wire`."""
PIECE_SECONDS = 0.1
SMALLEST_PIECE_BYTES = 4096
RATE_SECONDS = 10.0
"""Over which measured rates are averaged, at most."""


class RateLimiter:
    """For one event loop. Its owner counts the used part of the day's budget and passes it to `set_budget`."""

    def __init__(
        self,
        traffic: Traffic,
        *,
        up_bytes_per_second: int = 0,
        down_bytes_per_second: int = 0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._traffic = traffic
        self._clock = clock
        self._up = TokenBucket(0.0, burst=1.0, clock=clock)
        self._down = TokenBucket(0.0, burst=1.0, clock=clock)
        self._gossip = (0, 0)
        self._samples: deque[tuple[float, int, int]] = deque()
        self._budget_bytes, self._budget_left_bytes = 0, 0
        self._asked = up_bytes_per_second, down_bytes_per_second
        self._quiet: tuple[int, int] | None = None
        self._apply_caps()

    def set_caps(self, *, up_bytes_per_second: int | None, down_bytes_per_second: int | None) -> None:
        """Set the user's caps from now on; None keeps a cap as it is, 0 removes it. In quiet hours the lower of both caps
        holds."""
        up, down = self._asked
        self._asked = (
            up if up_bytes_per_second is None else up_bytes_per_second,
            down if down_bytes_per_second is None else down_bytes_per_second,
        )
        self._apply_caps()

    def set_quiet_caps(self, caps: tuple[int, int] | None) -> None:
        """Quiet hours begin, with caps up and down of their own (0: none), or end. The caps of the user stay."""
        self._quiet = caps
        self._apply_caps()

    def _apply_caps(self) -> None:
        quiet = self._quiet or (0, 0)
        self._up_cap, self._down_cap = (_lower(*pair) for pair in zip(self._asked, quiet, strict=True))
        for bucket, cap in ((self._up, self._up_cap), (self._down, self._down_cap)):
            bucket.set_rate(cap, burst=OVERHEAD * _piece_bytes(cap))

    def set_budget(self, budget_bytes: int, left_bytes: int) -> None:
        """Of today; for `traffic`. A budget of 0 is none."""
        self._budget_bytes, self._budget_left_bytes = budget_bytes, max(0, left_bytes)

    # --- for those who send and receive ---

    @property
    def up_piece_bytes(self) -> int:
        """Most that may be asked of `sending` at once."""
        return _piece_bytes(self._up_cap)

    @property
    def down_piece_bytes(self) -> int:
        """Most that should be read at once."""
        return _piece_bytes(self._down_cap)

    async def sending(self, num_bytes: int) -> None:
        """Wait before so many bytes of tensors or state are sent."""
        self._charge_gossip()
        await self._up.take(OVERHEAD * num_bytes)

    def received(self, num_bytes: int) -> float:
        """Charge received bytes of tensors or state; returns the seconds for which no more should be read there."""
        self._charge_gossip()
        return self._down.debt_seconds(OVERHEAD * num_bytes)

    def _charge_gossip(self) -> None:
        sent, received = self._traffic.gossip.sent_bytes, self._traffic.gossip.received_bytes
        self._up.debt_seconds(OVERHEAD * (sent - self._gossip[0]))
        self._down.debt_seconds(OVERHEAD * (received - self._gossip[1]))
        self._gossip = sent, received

    # --- for the views ---

    def traffic(self) -> Bandwidth:
        """Totals of this process, rates over the last seconds, caps, and the day's budget."""
        now, (sent, received) = self._clock(), self._traffic.total
        while self._samples and now - self._samples[0][0] > RATE_SECONDS:
            self._samples.popleft()
        self._samples.append((now, sent, received))
        since, sent_before, received_before = self._samples[0]
        seconds = now - since
        return Bandwidth(
            sent_bytes=sent,
            received_bytes=received,
            up_bytes_per_second=(sent - sent_before) / seconds if seconds > 0 else None,
            down_bytes_per_second=(received - received_before) / seconds if seconds > 0 else None,
            up_cap_bytes_per_second=self._up_cap,
            down_cap_bytes_per_second=self._down_cap,
            budget_bytes=self._budget_bytes,
            budget_left_bytes=self._budget_left_bytes if self._budget_bytes else None,
            is_quiet=self._quiet is not None,
        )


def _lower(cap: int, other: int) -> int:
    """Of two caps, where 0 is none."""
    return min(cap, other) if cap and other else cap or other


def _piece_bytes(cap: int) -> int:
    return FRAME_BYTES if cap == 0 else min(FRAME_BYTES, max(SMALLEST_PIECE_BYTES, round(cap * PIECE_SECONDS)))
