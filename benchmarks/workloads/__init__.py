"""The workloads, in the order in which they run and are printed."""

from benchmarks.workloads import (
    agent_day,
    files,
    forwarding,
    library,
    lifecycle,
    output,
    processes,
    requests,
    sandboxes,
    searches,
    watches,
)
from benchmarks.workloads.model import FULL, QUICK, Row, Sizes, Workload

__all__ = ["FULL", "QUICK", "WORKLOADS", "Row", "Sizes", "Workload"]

WORKLOADS: tuple[Workload, ...] = (
    *agent_day.WORKLOADS,
    *requests.WORKLOADS,
    *processes.WORKLOADS,
    *output.WORKLOADS,
    *files.WORKLOADS,
    *sandboxes.WORKLOADS,
    *lifecycle.WORKLOADS,
    *library.WORKLOADS,
    *searches.WORKLOADS,
    *watches.WORKLOADS,
    *forwarding.WORKLOADS,
)
