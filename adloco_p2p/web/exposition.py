"""Measures in the text form of Prometheus, or OpenMetrics where the monitor asks for it."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Protocol

from aiohttp import web
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector, CollectorRegistry

from adloco_p2p.web.server import Handler


class Measure(Protocol):
    """A metric, as `views.metrics` declares it."""

    @property
    def name(self) -> str: ...
    @property
    def kind(self) -> str: ...
    @property
    def meaning(self) -> str: ...
    @property
    def label_names(self) -> tuple[str, ...]: ...
    @property
    def samples(self) -> Mapping[tuple[str, ...], float]: ...


def exposition(measures: Iterable[Measure], accept: str) -> tuple[bytes, str]:
    """Return the body and its content type, for the `Accept` header of the request."""
    registry = CollectorRegistry()
    registry.register(_Collected(measures))
    encode, content_type = choose_encoder(accept)
    return encode(registry), content_type


def metrics_route(measure: Callable[[], Iterable[Measure]]) -> Handler:
    """Return a handler that answers a scrape with the present result of `measure`."""

    async def serve(request: web.Request) -> web.Response:
        body, content_type = exposition(measure(), request.headers.get("Accept", ""))
        return web.Response(body=body, headers={"Content-Type": content_type})

    return serve


class _Collected(Collector):
    def __init__(self, measures: Iterable[Measure]) -> None:
        self._measures = list(measures)

    def collect(self) -> Iterator[Metric]:
        for measure in self._measures:
            family = CounterMetricFamily if measure.kind == "counter" else GaugeMetricFamily
            metric = family(measure.name, measure.meaning, labels=measure.label_names)
            for labels, value in measure.samples.items():
                metric.add_metric(labels, value)
            yield metric
