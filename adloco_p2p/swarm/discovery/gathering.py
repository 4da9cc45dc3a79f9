"""The start of a run with founders, none of whom begins before all are there."""

import asyncio
import contextlib
import time
from collections.abc import Callable, Sequence

from adloco_p2p.core.model.scalars import Digest, PeerId
from adloco_p2p.errors import DaemonSilent
from adloco_p2p.swarm.discovery.join import RunConnections, connect_to_run
from adloco_p2p.swarm.discovery.reachability import ping_all
from adloco_p2p.swarm.discovery.run_records import Discovery
from adloco_p2p.swarm.p2p.dht_records import PeerRecord
from adloco_p2p.swarm.p2p.swarm_node import SwarmNode

GATHER_SECONDS = 600.0
"""After this time the run begins without the missing founders; their seats end as those of silent members do."""
LOOK_SECONDS = 0.5
GIVE_WAY_SECONDS = 3.0
"""The time that a founder with a smaller name has to dial this one. Founders that come up together would otherwise dial each
other at the same moment: both can fail then, and libp2p refuses to dial again for more than five seconds."""


async def gather(
    swarm_node: SwarmNode,
    discovery: Discovery,
    run: Digest,
    founders: Sequence[PeerId],
    *,
    has_begun: Callable[[], bool],
    report: Callable[[list[PeerId]], None],
) -> list[PeerId]:
    """Wait until all other founders answer as nodes of the run, which they do once they are ready to train, until one of them
    has begun, or until time is up. Return the founders that are missing then. `report` is called with the missing ones whenever
    they change."""
    missing, reported = list(founders), list[PeerId]()
    seen_at: dict[PeerId, float] = {}
    connecting: asyncio.Task[RunConnections] | None = None
    deadline = time.monotonic() + GATHER_SECONDS
    try:
        while missing and time.monotonic() < deadline and not has_begun():
            if missing != reported:
                report(missing)
                reported = list(missing)
            if connecting is None or connecting.done():
                now = time.monotonic()
                for record in _found(connecting):
                    seen_at.setdefault(record.peer, now)
                awaited = {peer for peer in missing if peer < swarm_node.me and now < seen_at.get(peer, now) + GIVE_WAY_SECONDS}
                connecting = asyncio.create_task(
                    connect_to_run(swarm_node, discovery, run, should_retry=False, members=founders, awaited=awaited)
                )
            await asyncio.wait([connecting], timeout=LOOK_SECONDS)
            connected = set[PeerId]()
            with contextlib.suppress(DaemonSilent):
                connected |= set(await swarm_node.peers_connected())
            answers = await ping_all(swarm_node.p2p, [peer for peer in missing if peer in connected])
            here = {peer for peer, answer in answers.items() if answer.run == run}
            missing = [peer for peer in missing if peer not in here]
            if missing and connecting.done():
                await asyncio.sleep(LOOK_SECONDS)
    finally:
        if connecting is not None:
            connecting.cancel()
            await asyncio.gather(connecting, return_exceptions=True)
    if not missing:
        report(missing)
    return missing


def _found(connecting: asyncio.Task[RunConnections] | None) -> tuple[PeerRecord, ...]:
    """Return what the last attempt to connect has found. Raises its error, unless only the daemon was silent."""
    if connecting is None or isinstance(connecting.exception(), DaemonSilent):
        return ()
    return connecting.result().records
