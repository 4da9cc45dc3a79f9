"""Clocks that are minutes off do no harm to the DHT."""

import asyncio
import re
import subprocess
import sys
from pathlib import Path

import hivemind
import pytest

from adloco_p2p.core.model.scalars import Digest
from adloco_p2p.swarm.discovery.run_records import Discovery
from adloco_p2p.swarm.p2p.dht_clock import DhtClock, correction
from adloco_p2p.swarm.p2p.hivemind_patches import READERS
from tests.swarm.swarm_hosts import started_hosts

RUN = Digest("ab" * 32)
LIFETIME_SECONDS, SLOW_SECONDS = 290.0, 95.0
"""Of records; and what a slow machine may take, less than the clock is off."""
SHIFTED_PROCESS = """
import sys, time
real = time.time
time.time = lambda: real() + float(sys.argv[1])  # before anybody has imported it: the whole process has this clock

import asyncio
from pathlib import Path
from adloco_p2p.config.peer_config import PeerConfig
from adloco_p2p.core.model.scalars import Digest
from adloco_p2p.swarm.discovery.run_records import Discovery
from adloco_p2p.swarm.p2p.swarm_node import SwarmNode

async def main():
    config = PeerConfig(host_maddrs=("/ip4/127.0.0.1/tcp/0",), daemon_start_seconds=240.0)
    host = await SwarmNode.start(workdir=Path(sys.argv[2]), config=config, initial_peers=sys.argv[3:])
    discovery = Discovery(host.dht, host.identity, wall_clock=host.clock)
    assert await discovery.announce_peer(Digest("ab" * 32), await host.addresses(), lifetime_seconds=290.0)
    seen = await discovery.find_peers(Digest("ab" * 32))
    print(host.clock.correction_seconds, *(record.peer for record in seen), flush=True)
    await asyncio.to_thread(sys.stdin.read)
    await host.stop()

asyncio.run(main())
"""


@pytest.mark.parametrize("shift_seconds", [-600, 600])
def test_a_peer_whose_clock_is_ten_minutes_off_finds_others_and_is_found(tmp_path, shift_seconds):
    async def scenario():
        async with started_hosts(tmp_path, 1) as (first,):
            discovery = Discovery(first.dht, first.identity, wall_clock=first.clock)
            assert await discovery.announce_peer(RUN, await first.addresses(), lifetime_seconds=LIFETIME_SECONDS)
            (tmp_path / "shifted").mkdir()
            arguments = [str(shift_seconds), str(tmp_path / "shifted"), *await first.addresses()]
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-c", SHIFTED_PROCESS, *arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE
            )
            assert process.stdin is not None and process.stdout is not None
            try:
                correction_seconds, *seen = (await process.stdout.readline()).decode().split()
                assert seen == [first.me]
                assert float(correction_seconds) == pytest.approx(-shift_seconds, abs=SLOW_SECONDS)
                (record,) = await discovery.find_peers(RUN)
                assert record.expiration == pytest.approx(first.clock() + LIFETIME_SECONDS, abs=SLOW_SECONDS)
            finally:
                process.stdin.close()
                await process.wait()

    asyncio.run(scenario())


def test_the_clock_counts_what_has_elapsed_and_not_what_the_wall_clock_says():
    wall, elapsed = [1000.0], [50.0]
    clock = DhtClock(wall_clock=lambda: wall[0], elapsed=lambda: elapsed[0])
    assert clock() == 1000.0
    wall[0], elapsed[0] = 9999.0, 57.0  # NTP set it right meanwhile
    assert clock() == 1007.0
    clock.shift(-300.0)
    assert clock() == 707.0 and clock.correction_seconds == -300.0


@pytest.mark.parametrize(
    ("offsets", "seconds"),
    [
        ([], 0.0),
        ([0.9, 0.9], 0.0),
        ([5.0, 3.0, 400.0], 5.0),
        ([-5.0, -7.0], -7.0),
        ([1e308, 1e308], 0.0),  # their mean is not finite
        ([1e308, 1e308, 4.0], 4.0),
        ([float("nan"), float("inf"), 4.0], 4.0),
    ],
)
def test_the_clock_follows_the_median_of_possible_offsets(offsets: list[float], seconds: float):
    assert correction(offsets) == seconds


def test_every_reader_of_the_time_in_hivemind_is_known():
    """Modules of hivemind that a DHT of ours runs; the stock averager and the experts are not among them."""
    root = Path(hivemind.__file__).parent
    asks = re.compile(r"\bget_dht_time\(\)")
    candidates = [*(root / "dht").glob("*.py"), *(root / "utils").glob("*.py"), *(root / "p2p").rglob("*.py")]
    readers = {path for path in candidates if asks.search(re.sub(r'(?s)""".*?"""', "", path.read_text()))}
    assert {Path(module.__file__) for module in READERS} == readers
