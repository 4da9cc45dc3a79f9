"""The running node as the control API sees it."""

from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any, cast

from adloco_p2p.core.model.events import Command
from adloco_p2p.runtime.adapters.event_broadcast import EventBroadcaster
from adloco_p2p.runtime.node.loop import Node
from adloco_p2p.runtime.node.ports import RateLimiter
from adloco_p2p.views import derived
from adloco_p2p.views.status import Status
from adloco_p2p.views.summary import summary


class ControlAdapter:
    """See `control.server.ControlAdapter`."""

    def __init__(self, node: Node, broadcaster: EventBroadcaster, rate_limiter: RateLimiter | None) -> None:
        self._node = node
        self._broadcaster = broadcaster
        self._rate_limiter = rate_limiter

    def status(self) -> Mapping[str, Any]:
        return summary(self._broadcaster.status)

    def watch(self) -> AsyncIterator[tuple[Sequence[str], bool]]:
        return self._broadcaster.watch()

    def command(self, name: str) -> str:
        words = describe(name, self._broadcaster.status)
        self._node.command(cast(Command, name))
        return words

    def set_bandwidth(self, up_bytes_per_second: int | None, down_bytes_per_second: int | None) -> Mapping[str, Any] | None:
        if self._rate_limiter is None:
            return None
        self._rate_limiter.set_caps(up_bytes_per_second=up_bytes_per_second, down_bytes_per_second=down_bytes_per_second)
        return derived.bandwidth(self._broadcaster.status) | dict(self._rate_limiter.traffic())


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
