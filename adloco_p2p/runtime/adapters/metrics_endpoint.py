"""The metrics endpoint of a running node."""

from adloco_p2p.config.peer_config import PeerConfig
from adloco_p2p.runtime.adapters.event_broadcast import EventBroadcaster
from adloco_p2p.views.metrics import measures
from adloco_p2p.web.exposition import metrics_route
from adloco_p2p.web.server import Address, Server, parse_host


class MetricsEndpoint:
    """Serves /metrics from `start` to `stop`; does nothing where the machine's settings do not ask for it."""

    def __init__(self, config: PeerConfig, broadcaster: EventBroadcaster) -> None:
        """Raises ConfigError for an address that is none."""
        self._server: Server | None = None
        if config.metrics_port:
            address = Address(host=parse_host("metrics_host", config.metrics_host), port=config.metrics_port)
            self._server = Server(address, {"/metrics": metrics_route(lambda: measures(broadcaster.status))})

    async def start(self) -> None:
        """Raises SwarmError where the address cannot be used."""
        if self._server is not None:
            await self._server.start()

    async def stop(self) -> None:
        if self._server is not None:
            await self._server.stop()
