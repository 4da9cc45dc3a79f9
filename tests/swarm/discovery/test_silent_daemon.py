"""A call to the p2p daemon can fail while the daemon lives: no descriptor is free, or too many calls wait."""

import asyncio
import errno
from collections.abc import Awaitable, Callable, Coroutine
from types import SimpleNamespace
from typing import Any, cast

import pytest

from adloco_p2p.config.run_config import RunConfig
from adloco_p2p.core.model.scalars import Digest, PeerId
from adloco_p2p.errors import DaemonSilent, SwarmError
from adloco_p2p.runtime.bootstrap_node import _Visitors
from adloco_p2p.runtime.follow_swarm import _ObserverNode
from adloco_p2p.swarm.discovery import gathering
from adloco_p2p.swarm.discovery.gathering import gather
from adloco_p2p.swarm.discovery.peer_maintenance import PeerMaintenance
from adloco_p2p.swarm.discovery.run_records import Discovery
from adloco_p2p.swarm.p2p.swarm_node import SwarmNode

RUN = Digest("ab" * 32)
ME, OTHER = PeerId("me"), PeerId("other")
ADDRESS = f"/ip4/192.0.2.1/tcp/4001/p2p/{ME}"
TURNS = 3


class Daemon:
    """Fails the first calls, and then answers."""

    def __init__(self, *, num_failures: int = 1, returncode: int | None = None) -> None:
        self.peer_id = ME
        self.num_answers = 0
        self._num_failures = num_failures
        self._child = SimpleNamespace(returncode=returncode)

    def _answer(self) -> None:
        if self._num_failures:
            self._num_failures -= 1
            raise OSError(errno.EMFILE, "Too many open files")
        self.num_answers += 1

    async def list_peers(self) -> list[SimpleNamespace]:
        self._answer()
        return [SimpleNamespace(peer_id=OTHER)]

    async def get_visible_maddrs(self, *, latest: bool) -> list[str]:
        assert latest
        self._answer()
        return [ADDRESS]


def node_on(daemon: Daemon) -> SwarmNode:
    node = SwarmNode.__new__(SwarmNode)  # nothing else of a started one is used
    node.p2p, node.me = daemon, ME
    node._book = cast(Any, SimpleNamespace(add_peers=lambda *_, **__: None))
    return node


class NoRecords:
    def __init__(self) -> None:
        self.announced: list[tuple[str, ...]] = []

    async def find_peers(self, run: Digest) -> tuple[()]:
        del run
        return ()

    async def announce_peer(self, run: Digest, addresses: tuple[str, ...]) -> None:
        del run
        self.announced.append(addresses)

    async def announce_run(self, run: Digest, **_: object) -> None:
        del run


def maintenance(node: SwarmNode, discovery: NoRecords) -> PeerMaintenance:
    return PeerMaintenance(node, cast(Discovery, discovery), run=RUN, roster=list, members=frozenset, write=lambda _: None)


async def _announce(node: SwarmNode) -> None:
    discovery = NoRecords()
    try:
        await maintenance(node, discovery).announce(name="run", author=ME)
    except asyncio.CancelledError:
        assert discovery.announced == [(ADDRESS,)]
        raise


async def _refresh(node: SwarmNode) -> None:
    await maintenance(node, NoRecords()).refresh_connections()


async def _compare(node: SwarmNode) -> None:
    await maintenance(node, NoRecords()).compare_clocks()


async def _follow(node: SwarmNode) -> None:
    await _ObserverNode(node, RunConfig(), [OTHER]).refresh_connections(cast(Discovery, NoRecords()))


async def _count(node: SwarmNode) -> None:
    said: list[str] = []
    try:
        await _Visitors(said.append).watch(node)
    except asyncio.CancelledError:
        assert said == ["1 peer connected"]
        raise


LOOPS = [_announce, _refresh, _compare, _follow, _count]
Loop = Callable[[SwarmNode], Coroutine[Any, Any, None]]


def a_few_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """End a loop by cancelling it when it pauses after some turns."""
    pauses = 0

    async def pause(_: float) -> None:
        nonlocal pauses
        pauses += 1
        if pauses > TURNS:
            raise asyncio.CancelledError

    monkeypatch.setattr(asyncio, "sleep", pause)


@pytest.mark.parametrize("loop", LOOPS)
def test_one_failed_call_costs_a_turn(loop: Loop, monkeypatch: pytest.MonkeyPatch) -> None:
    a_few_turns(monkeypatch)
    daemon = Daemon()
    with pytest.raises(asyncio.CancelledError):
        asyncio.run(loop(node_on(daemon)))
    assert daemon.num_answers >= TURNS - 1


@pytest.mark.parametrize("loop", LOOPS)
def test_a_dead_daemon_ends_a_loop(loop: Loop, monkeypatch: pytest.MonkeyPatch) -> None:
    a_few_turns(monkeypatch)
    with pytest.raises(SwarmError, match="does not answer") as raised:
        asyncio.run(loop(node_on(Daemon(num_failures=100, returncode=-9))))
    assert raised.value.code == "E306" and not isinstance(raised.value, DaemonSilent)


@pytest.mark.parametrize("call", [SwarmNode.addresses, SwarmNode.peers_connected])
@pytest.mark.parametrize("returncode", [None, -9])
def test_a_failed_call_says_whether_the_daemon_lives(
    call: Callable[[SwarmNode], Awaitable[object]], returncode: int | None
) -> None:
    async def ask() -> None:
        await call(node_on(Daemon(returncode=returncode)))

    with pytest.raises(SwarmError, match="Too many open files") as raised:
        asyncio.run(ask())
    assert raised.value.code == "E306" and isinstance(raised.value, DaemonSilent) == (returncode is None)


def test_nobody_counts_as_out_of_reach_because_the_daemon_is_silent() -> None:
    near = maintenance(node_on(Daemon()), NoRecords())
    gone = PeerId("gone")
    near._unreached = frozenset({gone, OTHER})

    async def ask_twice() -> list[tuple[PeerId, ...]]:
        return [await near.out_of_reach([gone, OTHER]) for _ in range(2)]

    assert asyncio.run(ask_twice()) == [(), (gone,)]


@pytest.mark.parametrize("num_failures", [1, 2])
def test_founders_are_waited_for_although_the_daemon_is_silent_once(num_failures: int, monkeypatch: pytest.MonkeyPatch) -> None:
    async def ping_all(_: object, peers: list[PeerId]) -> dict[PeerId, SimpleNamespace]:
        return {peer: SimpleNamespace(run=RUN) for peer in peers}

    monkeypatch.setattr(gathering, "ping_all", ping_all)
    monkeypatch.setattr(gathering, "LOOK_SECONDS", 0.0)
    node = node_on(Daemon(num_failures=num_failures))
    whole = gather(node, cast(Discovery, NoRecords()), RUN, [OTHER], has_begun=lambda: False, report=lambda _: None)
    assert asyncio.run(whole) == []
