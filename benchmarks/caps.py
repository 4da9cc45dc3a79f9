"""Do the caps hold? Peers average over loopback, the first one under caps of upload and download.

    python -m benchmarks.caps [--peers 3] [--up 2] [--down 2] [--seconds 30] [--millions 4] [--budget 60]

Rates in megabytes per second. Asked is what the user sets; measured is what the kernel counted in the TCP connections of the
first peer's network daemon (`ss -ti`, bytes sent and received): encryption and multiplexing included, not what the node thinks
that it sent. Every cap is measured alone and both together, each over seconds in which averaging never stops; `worst` is the
fullest second and the fullest five.

`small messages` is how long one message of gossip and its answer take between the same two peers on the same connection, while
nothing else passes, uncapped, and under the caps. `budget` is a day's budget of so many megabytes: at which traffic the node
would have paused, when it pauses at the end of the round, and how much a round takes. Needs `ss` (iproute2); no root.
"""

import argparse
import asyncio
import itertools
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

import torch
from hivemind.p2p import P2P

from adloco_p2p.config.peer_config import PeerConfig
from adloco_p2p.core.model import canonical
from adloco_p2p.core.model.messages import Ping
from adloco_p2p.core.model.scalars import PeerId
from adloco_p2p.runtime.adapters.daily_schedule import DailySchedule, DayBook
from adloco_p2p.swarm.allreduce.averager import Averager
from adloco_p2p.swarm.transport.endpoint import Endpoint
from adloco_p2p.swarm.transport.gossip import GossipWire
from adloco_p2p.swarm.transport.rate_limiter import RateLimiter
from adloco_p2p.swarm.transport.traffic import Traffic
from benchmarks.averaging_peer import BenchmarkIdentity
from benchmarks.unplanned import unplanned

RUN = canonical.digest("benchmarks.caps")
SETTLE_SECONDS = 3.0
"""Seconds before counting begins, in which buffers and token buckets settle."""
ROUND_SECONDS = 600.0
MESSAGE_PAUSE_SECONDS = 0.2


@dataclass
class Member:
    """One peer: a network daemon, an averager under a governor, gossip."""

    p2p: P2P
    identity: BenchmarkIdentity
    traffic: Traffic = field(default_factory=Traffic)

    def __post_init__(self) -> None:
        self.peer = PeerId(self.p2p.peer_id.to_base58())
        self.rate_limiter = RateLimiter(self.traffic)
        averaging = Endpoint(self.p2p, pace=self.rate_limiter, meter=self.traffic.averaging)
        self.averager = Averager(averaging, **self.identity.signing)
        self.wire = GossipWire(
            Endpoint(self.p2p, meter=self.traffic.gossip),
            run=RUN,
            kinds={"Ping": Ping},
            on_message=_ignore,
            on_refused=lambda *_: None,
        )

    def counted(self) -> tuple[int, int]:
        """Return the bytes sent and received in the daemon's TCP connections, as the kernel counts them."""
        listed = subprocess.run(["ss", "-tinpHO", "state", "established"], capture_output=True, text=True, check=True).stdout
        own = [line for line in listed.splitlines() if f"pid={self.p2p._child.pid}," in line]
        sums = [sum(int(count) for line in own for count in re.findall(rf"\b{name}:(\d+)", line)) for name in _COUNTS]
        return sums[0], sums[1]


_COUNTS = ("bytes_acked", "bytes_received")


async def _ignore(sender: PeerId, message: object) -> None:
    del sender, message


class Swarm:
    """All members in one event loop; averaging goes on until it is stopped."""

    def __init__(self, members: list[Member], *, size: int) -> None:
        self.members = members
        self._vectors = [torch.randn(size, generator=torch.Generator().manual_seed(index)) for index in range(len(members))]
        self._number = 0

    async def average(self) -> None:
        """Do one round of all members."""
        self._number += 1
        weights = tuple((member.peer, 1) for member in self.members)
        rounds = [
            member.averager.average(
                unplanned(
                    round=self._number,
                    key=canonical.digest(("round", self._number)),
                    weights=weights,
                    timeout_seconds=ROUND_SECONDS,
                ),
                vector,
            )
            for member, vector in zip(self.members, self._vectors, strict=True)
        ]
        await asyncio.gather(*rounds)

    async def while_averaging(self, work: Callable[[], Awaitable[None]]) -> None:
        async def average_on() -> None:
            while True:
                await self.average()

        task = asyncio.create_task(average_on())
        try:
            await work()
        finally:
            task.cancel()
            await asyncio.wait([task])
        if not task.cancelled() and (error := task.exception()) is not None:
            raise error

    async def rates(self, seconds: float) -> list[tuple[float, float]]:
        """Return the megabytes per second that the first member sent and received, second by second."""
        samples: list[tuple[float, int, int]] = []

        async def sample() -> None:
            await asyncio.sleep(SETTLE_SECONDS)
            begun = time.monotonic()
            for number in range(int(seconds) + 1):
                await asyncio.sleep(max(0.0, begun + number - time.monotonic()))
                samples.append((time.monotonic(), *await asyncio.to_thread(self.members[0].counted)))

        await self.while_averaging(sample)
        return [
            ((after[1] - before[1]) / 1e6 / (after[0] - before[0]), (after[2] - before[2]) / 1e6 / (after[0] - before[0]))
            for before, after in itertools.pairwise(samples)
        ]

    async def message_seconds(self, seconds: float) -> list[float]:
        """Return how long messages from the second member to the first, and their answers, take."""
        found: list[float] = []
        first, second = self.members[:2]
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            begun = time.perf_counter()
            if await second.wire.send(first.peer, Ping(target=first.peer, is_relayed=False)):
                found.append(time.perf_counter() - begun)
            await asyncio.sleep(MESSAGE_PAUSE_SECONDS)
        return found


async def measure(arguments: argparse.Namespace) -> None:
    known: list[object] = []
    members: list[Member] = []
    for _ in range(arguments.peers):
        identity = BenchmarkIdentity()
        p2p = await P2P.create(initial_peers=known, startup_timeout=60, identity_path=identity.path)
        known += await p2p.get_visible_maddrs()
        members.append(Member(p2p, identity))
    try:
        for member in members:
            await member.averager.start()
            await member.wire.start()
        inboxes = [asyncio.create_task(member.wire.pump()) for member in members]
        swarm = Swarm(members, size=round(arguments.millions * 1e6))
        await swarm.average()  # opens connections and their windows
        await _budget(swarm, arguments)  # first, while little of the day's budget is used
        await _caps(swarm, arguments)
        await _messages(swarm, arguments)
        for inbox in inboxes:
            inbox.cancel()
    finally:
        for member in members:
            await member.averager.stop()
            await member.wire.stop()
        for member in members:
            await member.p2p.shutdown()


async def _caps(swarm: Swarm, arguments: argparse.Namespace) -> None:
    up, down = arguments.up, arguments.down
    print("\ncap up    cap down  way   asked  measured  of asked  worst second  worst 5 s   (MB/s)", flush=True)
    for asked in ((up, 0.0), (0.0, down), (up, down)):
        _set(swarm.members[0], *asked)
        rates = await swarm.rates(arguments.seconds)
        for way, cap, values in zip(("up", "down"), asked, zip(*rates, strict=True), strict=True):
            fives = [statistics.mean(values[index : index + 5]) for index in range(len(values) - 4)]
            mean = statistics.mean(values)
            print(
                f"{asked[0] or '-':<9} {asked[1] or '-':<9} {way:<5} {cap or '-':>5}  {mean:>8.2f}"
                f"  {f'{mean / cap:.0%}' if cap else '-':>8}  {max(values):>12.2f}  {max(fives):>9.2f}",
                flush=True,
            )


async def _messages(swarm: Swarm, arguments: argparse.Namespace) -> None:
    print("\nsmall messages            median       99 %   longest   (milliseconds)")
    _say_messages("nothing else passes", await swarm.message_seconds(arguments.seconds / 2))
    for words, caps in (("averaging, uncapped", (0.0, 0.0)), ("averaging, both caps", (arguments.up, arguments.down))):
        _set(swarm.members[0], *caps)
        found: list[float] = []

        async def send(found: list[float] = found) -> None:
            await asyncio.sleep(SETTLE_SECONDS)
            found += await swarm.message_seconds(arguments.seconds)

        await swarm.while_averaging(send)
        _say_messages(words, found)


def _say_messages(words: str, found: list[float]) -> None:
    ordered = sorted(1e3 * seconds for seconds in found)
    late = ordered[min(len(ordered) - 1, round(0.99 * len(ordered)))]
    print(f"{words:<22} {statistics.median(ordered):>9.1f}  {late:>9.1f}  {ordered[-1]:>8.1f}", flush=True)


async def _budget(swarm: Swarm, arguments: argparse.Namespace) -> None:
    first = swarm.members[0]
    _set(first, 0.0, 0.0)
    paused: list[str] = []
    with tempfile.TemporaryDirectory() as folder:
        budget = round(arguments.budget * 1e6)
        before = sum(first.traffic.total)
        schedule = DailySchedule(
            PeerConfig(daily_budget_bytes=before + budget),
            first.rate_limiter,
            book=DayBook(Path(folder) / "traffic.json"),
            command=lambda _, reason: paused.append(reason),
            is_paused=lambda: bool(paused),
            now=lambda: datetime.fromisoformat("2026-03-04T12:00"),
        )
        totals = [before]
        while not paused:
            await swarm.average()
            schedule.look()
            totals.append(sum(first.traffic.total))
    used, rounds = (totals[-1] - before) / 1e6, len(totals) - 1
    print(
        f"budget of {budget / 1e6:.1f} MB: pauses after {used:.1f} MB, {rounds} rounds of {used / rounds:.1f} MB: {paused[0]}"
    )


def _set(member: Member, up: float, down: float) -> None:
    member.rate_limiter.set_caps(up_bytes_per_second=round(up * 1e6), down_bytes_per_second=round(down * 1e6))


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n", 1)[0])
    parser.add_argument("--peers", type=int, default=3)
    parser.add_argument("--up", type=float, default=2.0, help="MB/s")
    parser.add_argument("--down", type=float, default=2.0, help="MB/s")
    parser.add_argument("--seconds", type=float, default=30.0, help="of each measurement")
    parser.add_argument("--millions", type=float, default=4.0, help="of float32 values that are averaged")
    parser.add_argument("--budget", type=float, default=60.0, help="MB of a day")
    asyncio.run(measure(parser.parse_args()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
