"""The rate limiter, which keeps all traffic of a peer under its caps.

Tensors and states wait for their turn. Gossip never waits: it is charged afterwards, so that tensors wait longer. Under a cap,
data is sent in pieces of a tenth of a second, so that a small message on the same connection waits no longer than that. A
download is slowed by not reading, which the transport's flow control passes on to the sender.

Payload and our own framing are counted; `OVERHEAD` accounts for encryption, multiplexing and TCP.
"""

import time
from collections import deque
from collections.abc import Callable

from adloco_p2p.core.model.telemetry import Bandwidth
from adloco_p2p.swarm.transport.framed_stream import FRAME_BYTES
from adloco_p2p.swarm.transport.token_bucket import TokenBucket
from adloco_p2p.swarm.transport.traffic import Traffic

OVERHEAD = 1.07
"""Bytes on the link per counted byte; `benchmarks.wan.averaging` measures it as `wire`."""
PIECE_SECONDS = 0.1
SMALLEST_PIECE_BYTES = 4096
GOSSIP_DEBT_SECONDS = 10.0
"""The longest that tensors and states wait for gossip that has passed. The cap does not hold for gossip beyond that: anybody
can send some, and what has come cannot be sent back."""
RATE_SECONDS = 10.0
"""The longest period over which measured rates are averaged."""


class RateLimiter:
    """Limits the traffic of one peer. Its owner counts the day's budget and passes it to `set_budget`. Belongs to one event
    loop."""

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
        """Set the user's caps; None keeps a cap, 0 removes it. In quiet hours the lower of the two caps applies."""
        up, down = self._asked
        self._asked = (
            up if up_bytes_per_second is None else up_bytes_per_second,
            down if down_bytes_per_second is None else down_bytes_per_second,
        )
        self._apply_caps()

    def set_quiet_caps(self, caps: tuple[int, int] | None) -> None:
        """Begin quiet hours with their caps up and down (0: none), or end them with None. The user's caps stay."""
        self._quiet = caps
        self._apply_caps()

    def _apply_caps(self) -> None:
        self._charge_gossip()  # to the caps under which it passed
        quiet = self._quiet or (0, 0)
        self._up_cap, self._down_cap = (_lower(*pair) for pair in zip(self._asked, quiet, strict=True))
        for bucket, cap in ((self._up, self._up_cap), (self._down, self._down_cap)):
            bucket.set_rate(cap, burst=OVERHEAD * _piece_bytes(cap))

    def set_budget(self, budget_bytes: int, left_bytes: int) -> None:
        """Set the budget of today and its rest, which `traffic` reports. A budget of 0 is none."""
        self._budget_bytes, self._budget_left_bytes = budget_bytes, max(0, left_bytes)

    # --- for senders and receivers ---

    @property
    def up_piece_bytes(self) -> int:
        """The most bytes that may be passed to `sending` at once."""
        return _piece_bytes(self._up_cap)

    @property
    def down_piece_bytes(self) -> int:
        """The most bytes that should be read at once."""
        return _piece_bytes(self._down_cap)

    async def sending(self, num_bytes: int) -> None:
        """Wait until so many bytes of tensors or states may be sent."""
        self._charge_gossip()
        await self._up.take(OVERHEAD * num_bytes)

    def received(self, num_bytes: int) -> float:
        """Charge received bytes of tensors or states; return for how many seconds no more should be read there."""
        self._charge_gossip()
        return self._down.debt_seconds(OVERHEAD * num_bytes)

    def _charge_gossip(self) -> None:
        sent, received = self._traffic.gossip.sent_bytes, self._traffic.gossip.received_bytes
        self._up.charge(OVERHEAD * (sent - self._gossip[0]), max_debt_seconds=GOSSIP_DEBT_SECONDS)
        self._down.charge(OVERHEAD * (received - self._gossip[1]), max_debt_seconds=GOSSIP_DEBT_SECONDS)
        self._gossip = sent, received

    # --- for the views ---

    def traffic(self) -> Bandwidth:
        """Return the totals of this process, rates over the last seconds, caps, and the day's budget."""
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
    """Return the lower of two caps, where 0 is none."""
    return min(cap, other) if cap and other else cap or other


def _piece_bytes(cap: int) -> int:
    return FRAME_BYTES if cap == 0 else min(FRAME_BYTES, max(SMALLEST_PIECE_BYTES, round(cap * PIECE_SECONDS)))
