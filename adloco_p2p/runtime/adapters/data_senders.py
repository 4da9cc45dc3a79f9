"""The peers from which data of averages and states comes, for the core: signs of life while their heartbeats wait behind it."""

import asyncio
from collections.abc import Callable

from adloco_p2p.core.model.events import DataReceived
from adloco_p2p.swarm.transport.traffic import Traffic

PERIOD_SECONDS = 1.0
"""As often as heartbeats are sent."""


async def note_senders(traffic: Traffic, post: Callable[[DataReceived], None]) -> None:
    """Post, once in a period, from which peers data has come. Runs until it is cancelled."""
    while True:
        await asyncio.sleep(PERIOD_SECONDS)
        if senders := traffic.averaging.take_senders() | traffic.state.take_senders():
            post(DataReceived(peers=tuple(sorted(senders))))
