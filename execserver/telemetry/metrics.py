"""The daemon's metrics page: what was counted and what is held.

Reading the numbers takes 0.1 ms and happens on the loop's thread, where they are written. Making
the text takes milliseconds, and the first time 50 ms for loading a library, so that happens in
a thread (`exposition.py`).
"""

from __future__ import annotations

from execserver.telemetry.definitions import DEFINITIONS
from execserver.telemetry.exposition import Content, Readings, render
from execserver.telemetry.gauges import Gauges
from execserver.telemetry.measures import Measures

__all__ = ["Content", "Readings", "render", "take"]


def take(measures: Measures, gauges: Gauges) -> list[Readings]:
    """Read every metric; on the loop's thread."""
    return [Readings(each, list(each.read(measures, gauges))) for each in DEFINITIONS]
