"""From which peers data comes, as the core is told."""

import asyncio

import pytest

from adloco_p2p.core.model.events import DataReceived
from adloco_p2p.core.model.scalars import PeerId
from adloco_p2p.runtime.adapters import data_senders
from adloco_p2p.runtime.adapters.data_senders import note_senders
from adloco_p2p.swarm.transport.traffic import Traffic


def test_senders_of_averages_and_states_are_posted_once_and_those_of_gossip_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data_senders, "PERIOD_SECONDS", 0.0)
    traffic, posted = Traffic(), list[DataReceived]()

    async def running() -> None:
        noting = asyncio.create_task(note_senders(traffic, posted.append))
        for sent in (((traffic.averaging, "b"), (traffic.state, "a")), ((traffic.gossip, "c"),), ((traffic.averaging, "b"),)):
            for meter, sender in sent:
                meter.note_received(PeerId(sender), 1)
            for _ in range(10):  # so many turns of the loop, with at least three periods
                await asyncio.sleep(0)
        noting.cancel()

    asyncio.run(running())
    assert [event.peers for event in posted] == [("a", "b"), ("b",)]
