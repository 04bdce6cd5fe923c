"""Write the reference page of the metrics from their table.

`python -m tools.wire_docs.metrics_reference [--check] FILE`. With `--check` nothing is written, and the exit
status says whether the file is what would be written.
"""

from __future__ import annotations

import sys

from execserver.telemetry.definitions import DEFINITIONS, bucket_bound
from execserver.telemetry.measures import LATENCY_BUCKETS
from execserver.telemetry.relay_definitions import RELAY_DEFINITIONS
from tools.wire_docs.generated import write_or_check_page

_HEADER = """\
# Metrics

<!-- Made by `make schemas` from execserver/telemetry/definitions.py; do not edit. -->

What `GET /metrics` shows ([how to monitor](../how-to/monitor.md)). Counters begin at 0 with each
server process. No label ever holds anything that a client sent: methods that do not exist count
as `unknown`. A series of `execserver_requests_total`, of the durations or of
`execserver_connections_refused_total` appears with its first event.

| name | kind | labels | what it says |
| --- | --- | --- | --- |
"""

_FOOTER = """
Durations are counted in buckets up to {bounds} seconds.

The metrics of the server's operating-system process follow the common names:
`process_cpu_seconds_total`, `process_resident_memory_bytes`, `process_virtual_memory_bytes`,
`process_start_time_seconds`, `process_open_fds`, `process_max_fds`.
"""

_RELAY_HEADER = """
## Of a relay

`execserver relay serve` is a program of its own, and these are on its page, with those of its
operating-system process: `GET /metrics` on the control socket in its state folder, and on `--metrics-listen`.
Counters begin at 0 with each relay. No label ever holds what a peer sent, but for the names of pools, which
are those of the operator's tokens. A relay without NATS has no series of the fleet (`…_fleet_…`, `…_nats_…`,
`…_bus_…`, `…_link_…`, `…_store_…`, `…_health_…`). A series of a pool or of an operation appears with its
first executor or its first call.

| name | kind | labels | what it says |
| --- | --- | --- | --- |
"""


def reference() -> str:
    """The reference page of the manual."""
    lines = [_HEADER]
    for each in DEFINITIONS:
        labels = ", ".join(f"`{label}`" for label in each.labels)
        lines.append(f"| `{each.name}` | {each.kind} | {labels} | {each.help} |\n")
    bounds = ", ".join(bucket_bound(bound) for bound in LATENCY_BUCKETS)
    lines += [_FOOTER.format(bounds=bounds), _RELAY_HEADER]
    for relay in RELAY_DEFINITIONS:
        labels = ", ".join(f"`{label}`" for label in relay.labels)
        lines.append(f"| `{relay.name}` | {relay.kind} | {labels} | {relay.help} |\n")
    return "".join(lines)


def main(argv: list[str]) -> int:
    """Write or check the reference page."""
    return write_or_check_page(argv, "tools.wire_docs.metrics_reference", "the metrics", reference)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
