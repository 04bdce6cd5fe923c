"""Renders readings of metrics as a page in the text formats of Prometheus.

The library is only used for the text: no global registry, no server, no threads. It takes 50 ms to load, at
the first page.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Literal, NamedTuple, Protocol

if TYPE_CHECKING:
    from prometheus_client import Metric

MetricKind = Literal["counter", "gauge", "histogram"]
Labels = tuple[str, ...]
Bounds = tuple[tuple[str, float], ...]


class Number(NamedTuple):
    """One value of a counter or gauge."""

    labels: Labels
    value: float


class Distribution(NamedTuple):
    """One histogram: cumulative counts up to `+Inf`, and the sum of all values."""

    labels: Labels
    buckets: Bounds
    total: float


Reading = Number | Distribution


class Described(Protocol):
    """The description of a metric in any table."""

    @property
    def name(self) -> str:
        """The name."""

    @property
    def kind(self) -> MetricKind:
        """The kind."""

    @property
    def help(self) -> str:
        """The help text."""

    @property
    def labels(self) -> Labels:
        """The label names."""


class Readings(NamedTuple):
    """All values of one metric at one moment."""

    definition: Described
    values: list[Reading]


class RenderedPage(NamedTuple):
    """A page in one of the two text formats."""

    content_type: str
    body: bytes


def render(readings: Sequence[Readings], accept: str) -> RenderedPage:
    """The page, with the metrics of the operating-system process (`process_…`) added.

    Args:
        readings: the values.
        accept: the request's `Accept`; without OpenMetrics in it, text format 0.0.4 is used.
    """
    from prometheus_client import CollectorRegistry, ProcessCollector
    from prometheus_client.exposition import choose_encoder
    from prometheus_client.registry import Collector

    class Taken(Collector):
        def collect(self) -> Iterator[Metric]:
            return map(_family, readings)

    registry = CollectorRegistry()
    registry.register(Taken())
    ProcessCollector(registry=registry)
    encode, content_type = choose_encoder(accept)
    return RenderedPage(content_type, encode(registry))


def _family(readings: Readings) -> Metric:
    from prometheus_client import core

    each = readings.definition
    if each.kind == "histogram":
        histogram = core.HistogramMetricFamily(each.name, each.help, labels=each.labels)
        for value in readings.values:
            assert isinstance(value, Distribution)
            histogram.add_metric(value.labels, value.buckets, value.total)
        return histogram
    make = core.CounterMetricFamily if each.kind == "counter" else core.GaugeMetricFamily
    family = make(each.name, each.help, labels=each.labels)
    for value in readings.values:
        assert isinstance(value, Number)
        family.add_metric(value.labels, value.value)
    return family
