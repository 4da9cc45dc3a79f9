"""Caps that hold: under a virtual clock to the byte, and over real streams."""

import asyncio
from typing import Any

import pytest
import torch

from adloco_p2p.core.model.telemetry import Bandwidth
from adloco_p2p.swarm.allreduce.averaged import Averaged
from adloco_p2p.swarm.transport.framed_stream import FRAME_BYTES
from adloco_p2p.swarm.transport.rate_limiter import OVERHEAD, PIECE_SECONDS, SMALLEST_PIECE_BYTES, RateLimiter
from adloco_p2p.swarm.transport.token_bucket import TokenBucket
from adloco_p2p.swarm.transport.traffic import Traffic
from tests.swarm.averaging_peers import Peers, vectors_of


class VirtualTime:
    def __init__(self) -> None:
        self.now = 0.0

    def clock(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        self.now += seconds
        await asyncio.sleep(0)


def test_what_passes_never_exceeds_burst_and_rate() -> None:
    time = VirtualTime()

    async def pass_pieces() -> list[tuple[float, int]]:
        bucket = TokenBucket(1000.0, burst=250.0, clock=time.clock, sleep=time.sleep)
        passed: list[tuple[float, int]] = []

        async def sender(size: int) -> None:
            for _ in range(40):
                await bucket.take(size)
                passed.append((time.now, size))

        await asyncio.gather(sender(250), sender(100), sender(7))
        return passed

    passed = asyncio.run(pass_pieces())
    total = 0
    for now, size in passed:
        total += size
        assert total <= 250 + 1000 * now + 1e-6
    assert total == 40 * 357
    assert time.now == pytest.approx((total - 250) / 1000, abs=0.01)  # and nothing is given away


def test_another_rate_holds_for_those_who_wait() -> None:
    time = VirtualTime()
    bucket = TokenBucket(1.0, burst=10.0, clock=time.clock, sleep=time.sleep)

    async def lift() -> None:
        bucket.set_rate(0.0, burst=1.0)

    async def wait() -> float:
        await bucket.take(10)
        await asyncio.gather(bucket.take(10_000), lift())
        return time.now

    assert asyncio.run(wait()) < 1


def test_gossip_never_waits_and_tensors_wait_for_it() -> None:
    now = [0.0]
    traffic = Traffic()
    rate_limiter = RateLimiter(traffic, down_bytes_per_second=100_000, clock=lambda: now[0])
    quiet = rate_limiter.received(10_000)
    now[0] = 100.0
    traffic.gossip.received_bytes += 50_000
    assert quiet < 0.11
    assert rate_limiter.received(10_000) == pytest.approx(OVERHEAD * 0.5)


def test_who_waits_does_not_wait_for_what_others_charge_meanwhile() -> None:
    time = VirtualTime()

    async def sleep_beside_a_flood(seconds: float) -> None:
        await time.sleep(seconds)
        bucket.charge(10_000.0, max_debt_seconds=10.0)
        assert time.now < 60, "waits for ever"

    bucket = TokenBucket(100.0, burst=10.0, clock=time.clock, sleep=sleep_beside_a_flood)
    bucket.charge(10_000.0, max_debt_seconds=10.0)

    async def wait() -> list[float]:
        ends = []
        for _ in range(3):
            await bucket.take(10)
            ends.append(time.now)
        return ends

    assert asyncio.run(wait()) == pytest.approx([10.1, 20.2, 30.3], abs=0.01)


def test_a_flood_of_gossip_makes_tensors_wait_for_ten_seconds_at_most() -> None:
    now, traffic, cap = [0.0], Traffic(), 1_000_000
    rate_limiter = RateLimiter(traffic, down_bytes_per_second=cap, clock=lambda: now[0])
    own = OVERHEAD * 1000 / cap
    for _ in range(300):
        now[0] += 1.0
        traffic.gossip.received_bytes += 12 * cap
        assert rate_limiter.received(1000) <= 10.0 + own
    assert rate_limiter.received(0) >= 10.0, "a flood is charged"
    rate_limiter.set_caps(up_bytes_per_second=None, down_bytes_per_second=cap // 20)
    assert rate_limiter.received(0) <= 10.0 + own, "nor does it last longer under a lower cap"
    now[0] += 10.0 + own
    assert rate_limiter.received(1000) <= 20 * own


def test_a_cap_that_ends_leaves_no_debt() -> None:
    now, traffic, quiet = [0.0], Traffic(), 50_000
    rate_limiter = RateLimiter(traffic, clock=lambda: now[0])
    rate_limiter.set_quiet_caps((quiet, quiet))
    now[0] += 8 * 3600
    traffic.gossip.received_bytes += 8 * 3600 * 60_000
    rate_limiter.set_quiet_caps(None)
    assert rate_limiter.received(1000) == 0.0
    traffic.gossip.received_bytes += 10**9  # under no cap, so it is charged to none
    rate_limiter.set_quiet_caps((quiet, quiet))
    assert rate_limiter.received(1000) <= OVERHEAD * 1000 / quiet


@pytest.mark.parametrize(
    ("cap", "piece"),
    [(0, FRAME_BYTES), (1, SMALLEST_PIECE_BYTES), (1_000_000, round(1e6 * PIECE_SECONDS)), (10**9, FRAME_BYTES)],
)
def test_pieces_are_a_tenth_of_a_second(cap: int, piece: int) -> None:
    rate_limiter = RateLimiter(Traffic(), up_bytes_per_second=cap, down_bytes_per_second=cap)
    assert rate_limiter.up_piece_bytes == rate_limiter.down_piece_bytes == piece


def test_the_views_get_rates_caps_and_budget() -> None:
    now = [0.0]
    traffic = Traffic()
    rate_limiter = RateLimiter(traffic, up_bytes_per_second=7, clock=lambda: now[0])
    assert rate_limiter.traffic().up_bytes_per_second is None
    traffic.averaging.sent_bytes, traffic.state.received_bytes, now[0] = 500, 100, 2.0
    rate_limiter.set_budget(1000, 400)
    assert rate_limiter.traffic() == Bandwidth(
        sent_bytes=500,
        received_bytes=100,
        up_bytes_per_second=250.0,
        down_bytes_per_second=50.0,
        up_cap_bytes_per_second=7,
        down_cap_bytes_per_second=0,
        budget_bytes=1000,
        budget_left_bytes=400,
        is_quiet=False,
    )


@pytest.mark.parametrize("direction", ["up", "down"])
def test_an_average_keeps_to_the_caps_of_each_peer(direction: str) -> None:
    """A cap only makes an average slower than it says, never faster: so this is no claim about the machine."""
    size, cap = 400_000, 800_000
    caps: dict[str, Any] = {f"{direction}_bytes_per_second": cap}
    with Peers(2, part_bytes=1 << 16, paces={0: RateLimiter(Traffic(), **caps)}) as peers:
        (capped, other) = peers.average("capped", vectors_of(2, size), (1, 1))
        assert isinstance(capped, Averaged) and isinstance(other, Averaged), (capped, other)
        assert torch.equal(capped.vector, other.vector)
        ahead = 2 * (256 << 10)  # of each of the two streams: what sockets hold is sent, and not read yet
        through = 4 * size * OVERHEAD - cap * PIECE_SECONDS - ahead
        assert max(capped.seconds, other.seconds) >= through / cap
    assert peers.loop_errors == []
