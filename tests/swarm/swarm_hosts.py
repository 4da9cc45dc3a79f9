"""Real hosts on loopback, in one process and one event loop."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

from adloco_p2p.config.peer_config import PeerConfig
from adloco_p2p.swarm.p2p.swarm_node import SwarmNode

LOCAL = PeerConfig(host_maddrs=("/ip4/127.0.0.1/tcp/0",), daemon_start_seconds=240.0)


@asynccontextmanager
async def started_hosts(workdir: Path, count: int) -> AsyncIterator[list[SwarmNode]]:
    """The first begins alone, the others join through it; all are stopped at the end."""
    async with AsyncExitStack() as stack:
        hosts: list[SwarmNode] = []
        for number in range(count):
            initial_peers = await hosts[0].addresses() if hosts else ()
            directory = workdir / f"peer-{number}"
            directory.mkdir(exist_ok=True)
            host = await SwarmNode.start(workdir=directory, config=LOCAL, initial_peers=initial_peers)
            stack.push_async_callback(host.stop)
            hosts.append(host)
        yield hosts
