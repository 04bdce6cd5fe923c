"""The metrics page: what was counted and what is held, in the text formats of Prometheus.

Reading the numbers takes 0.1 ms and happens on the loop's thread, where they are written. Making
the text takes milliseconds, and the first time 50 ms for loading the library, so that happens in
a thread. The library is used for the text alone: no registry of its own, no server, no threads.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from execserver.telemetry.definitions import DEFINITIONS, Definition, Distribution, Number, Reading
from execserver.telemetry.gauges import Gauges
from execserver.telemetry.measures import Measures

if TYPE_CHECKING:
    from prometheus_client import Metric


class Readings(NamedTuple):
    """All values of one metric at one moment."""

    definition: Definition
    values: list[Reading]


class Content(NamedTuple):
    """A page in one of the two text formats."""

    content_type: str
    body: bytes


def take(measures: Measures, gauges: Gauges) -> list[Readings]:
    """Read every metric; on the loop's thread."""
    return [Readings(each, list(each.read(measures, gauges))) for each in DEFINITIONS]


def render(readings: Sequence[Readings], accept: str) -> Content:
    """The page, with the metrics of the operating-system process (`process_…`) added.

    Args:
        readings: what was taken.
        accept: the request's `Accept`: OpenMetrics when asked for, else text format 0.0.4.
    """
    # 45 ms, which only those pay who look.
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
    return Content(content_type, encode(registry))


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
