"""The bootstrap, a peer that only helps others to find each other: it serves the DHT, and relays for peers behind NATs."""

import asyncio
import contextlib
from collections.abc import Callable, Sequence

from adloco_p2p.config.peer_config import PeerConfig
from adloco_p2p.errors import DaemonSilent
from adloco_p2p.runtime.adapters import signals
from adloco_p2p.runtime.adapters.metrics_endpoint import MetricsEndpoint
from adloco_p2p.storage.workdir import HELPING, Workdir
from adloco_p2p.swarm.discovery.reachability import AdlocoReachability
from adloco_p2p.swarm.p2p.swarm_node import SwarmNode
from adloco_p2p.views import units
from adloco_p2p.views.metrics import Measure, bootstrap_measures

COUNT_SECONDS = 10.0
"""The time between two counts of the connected peers."""

Say = Callable[[str], None]


async def serve(*, workdir: Workdir, config: PeerConfig, initial_peers: Sequence[str], say: Say) -> None:
    """Run the bootstrap until the user stops it. Raises SwarmError if the daemon ends by itself."""
    visitors = _Visitors(say)
    metrics = MetricsEndpoint(config, visitors.measures, visitors.readiness)
    swarm_node = await SwarmNode.start(workdir=workdir.path, config=config, initial_peers=initial_peers, is_helper=True)
    try:
        reachability = AdlocoReachability(swarm_node.p2p, run=None, dial=swarm_node.dial_from_outside)
        await reachability.start()
        await metrics.start()
        stopped = asyncio.Event()
        signals.install(asyncio.get_running_loop(), stopped.set)
        workdir.enter(HELPING)
        say(await swarm_node.describe_reachability())
        say(f"initial peers: {' '.join(await swarm_node.addresses())}")
        works = (swarm_node.watch_daemon(), stopped.wait(), visitors.watch(swarm_node))
        tasks = [asyncio.ensure_future(work) for work in works]
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in tasks:
            task.cancel()
        for task in done:
            task.result()
        await reachability.stop()
    finally:
        await metrics.stop()
        await swarm_node.stop()


class _Visitors:
    """Counts the peers that are connected now."""

    def __init__(self, say: Say) -> None:
        self._say = say
        self._count: int | None = None

    def measures(self) -> list[Measure]:
        return bootstrap_measures(self._count)

    def readiness(self) -> tuple[bool, str]:
        return self._count is not None, f"{units.plural(self._count or 0, 'peer')} connected"

    async def watch(self, swarm_node: SwarmNode) -> None:
        """Count the connected peers, and print the count when it has changed, until cancelled."""
        while True:
            with contextlib.suppress(DaemonSilent):
                count = len(await swarm_node.peers_connected())
                if count != (self._count or 0):
                    self._say(f"{units.plural(count, 'peer')} connected")
                self._count = count
            await asyncio.sleep(COUNT_SECONDS)
