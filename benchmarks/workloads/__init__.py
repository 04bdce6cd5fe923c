"""The workloads, in the order in which they run and are printed."""

from benchmarks.workloads import files, library, lifecycle, output, processes, requests, sandboxes
from benchmarks.workloads.model import FULL, QUICK, Row, Sizes, Workload

__all__ = ["FULL", "QUICK", "WORKLOADS", "Row", "Sizes", "Workload"]

WORKLOADS: tuple[Workload, ...] = (
    *requests.WORKLOADS,
    *processes.WORKLOADS,
    *output.WORKLOADS,
    *files.WORKLOADS,
    *sandboxes.WORKLOADS,
    *lifecycle.WORKLOADS,
    *library.WORKLOADS,
)
