"""The running node as the control API sees it."""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any, cast

from adloco_p2p.control.endpoint import parse_listen
from adloco_p2p.control.server import ControlServer
from adloco_p2p.core.events import Command
from adloco_p2p.runtime.compose import LocalPeer
from adloco_p2p.runtime.loop import Node
from adloco_p2p.runtime.ports import Governor
from adloco_p2p.runtime.watching import Watched
from adloco_p2p.views import derived
from adloco_p2p.views.status import Status
from adloco_p2p.views.summary import summary

BANDWIDTH_SECONDS = 2.0
"""How often the views are told of rates."""


def control_server(node: Node, local: LocalPeer, governor: Governor | None) -> ControlServer:
    """The control API of a node, to be started and stopped with it."""
    return ControlServer(
        Controlled(node, local.view, governor),
        workdir=local.workdir.path,
        listen=parse_listen(local.peer_config.control_address),
    )


async def show_bandwidth(local: LocalPeer, governor: Governor) -> None:
    """Tell the views what passes, for ever."""
    while True:
        await asyncio.sleep(BANDWIDTH_SECONDS)
        local.sink.write("bandwidth", dict(governor.traffic()))


class Controlled:
    """See `control.server.Controlled`."""

    def __init__(self, node: Node, watched: Watched, governor: Governor | None) -> None:
        self._node = node
        self._watched = watched
        self._governor = governor

    def status(self) -> Mapping[str, Any]:
        return summary(self._watched.status)

    def watch(self) -> AsyncIterator[tuple[Sequence[str], bool]]:
        return self._watched.watch()

    def command(self, name: str) -> str:
        words = describe(name, self._watched.status)
        self._node.command(cast(Command, name))
        return words

    def set_bandwidth(self, up_bytes_per_second: int | None, down_bytes_per_second: int | None) -> Mapping[str, Any] | None:
        if self._governor is None:
            return None
        self._governor.set_caps(up_bytes_per_second=up_bytes_per_second, down_bytes_per_second=down_bytes_per_second)
        return derived.bandwidth(self._watched.status) | dict(self._governor.traffic())


def describe(name: str, status: Status) -> str:
    """What the command leads to in this state."""
    match name, status.state:
        case _, "finished":
            return "the run is complete; the peer goes once the others have it too"
        case "pause", "paused":
            return "it is paused already"
        case "pause", "stopping":
            return "it is leaving already"
        case "pause", _:
            return f"ends round {status.current_round}, then pauses; `resume` brings it back"
        case "resume", "paused" | "pausing":
            return "takes part again"
        case "resume", _:
            return "it is not paused"
        case "drain", "paused":
            return "leaves now; everything is saved"
        case "drain", _:
            return f"ends round {status.current_round}, hands over, saves and leaves"
        case "leave", _:
            return "leaves now, without the round under way"
        case "checkpoint", "paused":
            return "it is paused: everything is saved"
        case "checkpoint", _:
            return "saves at the next round boundary"
    raise AssertionError(f"no such command: {name}")
