"""The metrics endpoint of a running node, or of a bootstrap."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from adloco_p2p.config.peer_config import PeerConfig
from adloco_p2p.runtime.adapters.event_broadcast import EventBroadcaster
from adloco_p2p.views.health import readiness
from adloco_p2p.views.metrics import Measure, measures

if TYPE_CHECKING:
    from adloco_p2p.web.server import Readiness, Server


class MetricsEndpoint:
    """Serves /metrics, /healthz and /readyz from `start` to `stop`, if the machine's settings ask for it."""

    def __init__(self, config: PeerConfig, measure: Callable[[], Sequence[Measure]], readiness: "Readiness") -> None:
        """Raises ConfigError for an invalid address."""
        self._server: Server | None = None
        if config.metrics_port:
            from adloco_p2p.web import exposition, server  # imported here, with libraries that few nodes need

            address = server.Address(host=server.parse_host("metrics_host", config.metrics_host), port=config.metrics_port)
            self._server = server.Server(
                address, {"/metrics": exposition.metrics_route(measure), **server.health_routes(readiness)}
            )

    async def start(self) -> None:
        """Start to serve. Raises SwarmError if the address cannot be used."""
        if self._server is not None:
            await self._server.start()

    async def stop(self) -> None:
        if self._server is not None:
            await self._server.stop()


def node_endpoint(config: PeerConfig, broadcaster: EventBroadcaster) -> MetricsEndpoint:
    """Return the endpoint of a node, with figures from its status. Raises ConfigError for an invalid address."""
    return MetricsEndpoint(config, lambda: measures(broadcaster.status), lambda: readiness(broadcaster.status))
