"""An observer's failures end it with a message, and not with a page that stands still."""

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from adloco_p2p.config.run_config import RunConfig
from adloco_p2p.core.model.effects import Send
from adloco_p2p.core.model.messages import PullEntries
from adloco_p2p.core.model.scalars import PeerId
from adloco_p2p.runtime.follow_swarm import _ObserverNode
from adloco_p2p.swarm.p2p.swarm_node import SwarmNode
from adloco_p2p.swarm.transport.gossip import GossipWire

OTHER = PeerId("other")


def observer_node() -> _ObserverNode:
    without_network = cast(SwarmNode, SimpleNamespace(p2p=SimpleNamespace(peer_id="me"), me=PeerId("me")))
    return _ObserverNode(without_network, RunConfig(), [OTHER])


def test_what_fails_in_a_sending_task_ends_the_observer(monkeypatch: pytest.MonkeyPatch) -> None:
    async def breaks(*_: Any) -> bool:
        raise AssertionError("a bug while sending")

    async def scenario() -> None:
        node = observer_node()
        node._send([Send(peer=OTHER, message=PullEntries(locator=()))])
        await node.failure()

    monkeypatch.setattr(GossipWire, "send", breaks)
    with pytest.raises(AssertionError, match="a bug while sending"):
        asyncio.run(scenario())


def test_what_fails_while_a_message_is_taken_ends_the_observer(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        node = observer_node()
        monkeypatch.setattr(node.observer, "receive", lambda *_: 1 / 0)
        node._wire._inbox.put(OTHER, PullEntries(locator=()), 1, is_stranger=False)
        await node.receive()

    with pytest.raises(ZeroDivisionError):
        asyncio.run(scenario())
