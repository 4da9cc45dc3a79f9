"""The start of a run with founders, none of whom begins before all are there."""

import asyncio
import time
from collections.abc import Callable, Sequence

from adloco_p2p.core.model.scalars import Digest, PeerId
from adloco_p2p.swarm.discovery.join import connect_to_run
from adloco_p2p.swarm.discovery.reachability import ping_all
from adloco_p2p.swarm.discovery.run_records import Discovery
from adloco_p2p.swarm.p2p.swarm_node import SwarmNode

GATHER_SECONDS = 600.0
"""After this time the run begins without the missing founders; their seats end as those of silent members do."""
LOOK_SECONDS = 0.5


async def gather(
    swarm_node: SwarmNode,
    discovery: Discovery,
    run: Digest,
    founders: Sequence[PeerId],
    *,
    report: Callable[[list[PeerId]], None],
) -> None:
    """Wait until all other founders answer as nodes of the run, which they do once they are ready to train, or until time is
    up. `report` is called with the missing founders whenever they change."""
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
