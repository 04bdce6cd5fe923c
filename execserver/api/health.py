"""Health of the daemon: `server/health` for clients, and pages for monitoring over HTTP.

`server/health` needs no handshake, and answers the same before and after one. A handshake would give each
probe a session, which is kept for 80 s, and would protect nothing: authentication comes before the first
message, and every authenticated client may run commands.

`docs/how-to/monitor.md`.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Sequence
from http import HTTPStatus
from typing import TYPE_CHECKING

from execserver import __version__
from execserver.host import Host
from execserver.rpc.handlers import Caller, Handlers
from execserver.telemetry.definitions import Gauges, take
from execserver.telemetry.exposition import Readings, render
from execserver.telemetry.measures import measures
from execserver.transports.http_upgrade import STOPPING, Head, HttpPage, HttpPages, PageContent

if TYPE_CHECKING:
    from execprotocol.environment import Health, NoParams
    from execserver.audit.trail import AuditTrail


def handlers(gauges: Gauges, host: Host, trail: AuditTrail | None) -> Handlers:
    """The handler of `server/health`."""

    def health(caller: Caller, params: NoParams) -> Health:
        numbers: Health = {
            "status": "stopping" if gauges.stopping() else "draining" if gauges.draining() else "ok",
            "version": __version__,
            "pid": os.getpid(),
            "uptimeSeconds": round(gauges.uptime_seconds, 3),
            "connections": gauges.connections(),
            "sessions": gauges.sessions(),
            "processes": gauges.processes(),
            "retainedOutputBytes": gauges.retained_output_bytes(),
            "retainedOutputLimitBytes": gauges.retained_output_limit_bytes,
            "queuedInputBytes": gauges.queued_input_bytes(),
            "lostOutputBytes": measures.gap_bytes,
            "requireSandbox": host.require_sandbox,
        }
        if trail is not None:
            numbers["audit"] = {"acts": trail.last.n, "problem": trail.problem}
        return numbers

    return {"server/health": health}


def pages(gauges: Gauges) -> HttpPages:
    """The pages: `/readyz` needs no credentials; `/livez` and `/metrics` need those of a client."""

    def ready(head: Head) -> PageContent:
        if gauges.stopping():
            return PageContent(STOPPING.encode(), status=HTTPStatus.SERVICE_UNAVAILABLE)
        if gauges.draining():
            return PageContent(b"draining", status=HTTPStatus.SERVICE_UNAVAILABLE)
        return PageContent()

    def live(head: Head) -> PageContent:
        """Empty: the answer itself shows that the loop turns."""
        return PageContent()

    def show_metrics(head: Head) -> Awaitable[PageContent]:
        readings = take(measures, gauges)
        accept = ", ".join(head.all("accept"))
        return asyncio.get_running_loop().run_in_executor(None, _render, readings, accept)

    return {
        "/readyz": HttpPage(ready, public=True),
        "/livez": HttpPage(live),
        "/metrics": HttpPage(show_metrics),
    }


def _render(readings: Sequence[Readings], accept: str) -> PageContent:
    content_type, body = render(readings, accept)
    return PageContent(body, content_type)
