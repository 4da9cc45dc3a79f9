"""The adapter of a running node to the control API."""

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any, assert_never

from adloco_p2p.core.model.commands import Command
from adloco_p2p.core.model.protocol import unfollowed
from adloco_p2p.runtime.adapters.event_broadcast import EventBroadcaster
from adloco_p2p.runtime.node.loop import Node
from adloco_p2p.swarm.transport.rate_limiter import RateLimiter
from adloco_p2p.views.node_status import summary
from adloco_p2p.views.status import Status


class ControlAdapter:
    """Serves the control API from a running node; see `control.server.Controlled`."""

    def __init__(self, node: Node, broadcaster: EventBroadcaster, rate_limiter: RateLimiter | None) -> None:
        self._node = node
        self._broadcaster = broadcaster
        self._rate_limiter = rate_limiter

    def status(self) -> Mapping[str, Any]:
        return summary(self._broadcaster.status)

    def watch(self) -> AsyncIterator[tuple[Sequence[str], bool]]:
        return self._broadcaster.watch()

    def command(self, name: Command) -> str:
        words = describe(name, self._broadcaster.status)
        self._node.command(name)
        return words

    def set_bandwidth(self, up_bytes_per_second: int | None, down_bytes_per_second: int | None) -> Mapping[str, Any] | None:
        if self._rate_limiter is None:
            return None
        self._rate_limiter.set_caps(up_bytes_per_second=up_bytes_per_second, down_bytes_per_second=down_bytes_per_second)
        return asdict(self._rate_limiter.traffic())


def describe(name: Command, status: Status) -> str:
    """Describe the effect of the command in this state, in words for the user."""
    if status.state == "finished":
        return "the run is complete; the peer goes once the others have it too"
    is_paused = status.state == "paused"
    outgrown = unfollowed(status.plans[-1].protocol) if status.plans else ""
    match name:
        case "pause" if is_paused:
            return "it is paused already"
        case "pause" if status.state == "stopping":
            return "it is leaving already"
        case "pause" | "resume" if outgrown:
            return outgrown
        case "pause":
            return "pauses after this round; p in its live view, or `adloco-peer resume`, ends it"
        case "resume":
            return "takes part again" if is_paused or status.state == "pausing" else "it is not paused"
        case "drain" if is_paused:
            return "leaves now; everything is saved"
        case "drain":
            return "ends the round under way, hands over what only this peer has, saves and leaves"
        case "leave":
            return "leaves now, without the round under way"
        case "checkpoint":
            return "it is paused: everything is saved" if is_paused else "saves at the next round boundary"
    assert_never(name)
