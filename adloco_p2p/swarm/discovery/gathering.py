"""The start of a run that has founders: none of them begins before all are there."""

import asyncio
import time
from collections.abc import Callable, Sequence

from adloco_p2p.core.model.scalars import Digest, PeerId
from adloco_p2p.swarm.discovery.join import connect_to_run
from adloco_p2p.swarm.discovery.reachability import ping_all
from adloco_p2p.swarm.discovery.run_records import Discovery
from adloco_p2p.swarm.p2p.swarm_node import SwarmNode

GATHER_SECONDS = 600.0
"""After this time the run begins without the founders that are missing; their seats end as those of silent members do."""
LOOK_SECONDS = 0.5


async def gather(
    swarm_node: SwarmNode,
    discovery: Discovery,
    run: Digest,
    founders: Sequence[PeerId],
    *,
    report: Callable[[list[PeerId]], None],
) -> None:
    """Return when each of the other founders answers as a node of the run, which it does once it is ready to train, or time is
    up. `report` is called with those that are missing, whenever they change; in the end the empty list, or those that never
    came."""
    missing, reported = list(founders), list[PeerId]()
    deadline = time.monotonic() + GATHER_SECONDS
    while time.monotonic() < deadline:
        if missing != reported:
            report(missing)
            reported = list(missing)
        if not missing:
            return
        await connect_to_run(swarm_node, discovery, run, should_retry=True, members=founders)
        answers = await ping_all(swarm_node.p2p, missing)
        here = {peer for peer, answer in answers.items() if answer.run == run}
        missing = [peer for peer in missing if peer not in here]
        if missing:
            await asyncio.sleep(LOOK_SECONDS)
