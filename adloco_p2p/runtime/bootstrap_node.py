"""A peer that only helps others to find each other: the DHT, and a relay for peers behind NATs."""

import asyncio
from collections.abc import Callable, Sequence

from adloco_p2p.config.peer_config import PeerConfig
from adloco_p2p.errors import SwarmError
from adloco_p2p.runtime.adapters import signals
from adloco_p2p.storage.workdir import HELPING, Workdir
from adloco_p2p.swarm.discovery.reachability import AdlocoReachability
from adloco_p2p.swarm.p2p.swarm_node import SwarmNode


async def serve(*, workdir: Workdir, config: PeerConfig, initial_peers: Sequence[str], say: Callable[[str], None]) -> None:
    """Until the user stops it. Raises SwarmError where the daemon ends by itself."""
    swarm_node = await SwarmNode.start(workdir=workdir.path, config=config, initial_peers=initial_peers, is_helper=True)
    try:
        reachability = AdlocoReachability(swarm_node.p2p, run=None, dial=swarm_node.dial_from_outside)
        await reachability.start()
        stopped = asyncio.Event()
        signals.install(asyncio.get_running_loop(), stopped.set)
        workdir.enter(HELPING)
        say(await swarm_node.describe_reachability())
        say(f"initial peers: {' '.join(await swarm_node.addresses())}")
        ended = asyncio.create_task(swarm_node.wait_until_dead())
        asked = asyncio.create_task(stopped.wait())
        await asyncio.wait([ended, asked], return_when=asyncio.FIRST_COMPLETED)
        if ended.done():
            raise SwarmError("the p2p daemon ended; start again", code="E306")
        ended.cancel()
        await reachability.stop()
    finally:
        await swarm_node.stop()
