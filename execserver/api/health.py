"""How the daemon is: `server/health` for clients, pages for whoever watches it over HTTP.

`server/health` needs no handshake, and answers the same before and after one. A handshake would
give each probe a session, which would then wait 80 s for a client to come back; and it would keep
nothing from anybody, because it asks for nothing: who may talk to the daemon is decided before the
first message, and who may can run commands.

`docs/how-to/monitor.md`.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Sequence
from http import HTTPStatus
from typing import TYPE_CHECKING

from execserver import __version__
from execserver.rpc.handlers import Caller, Handlers
from execserver.telemetry.definitions import Gauges, take
from execserver.telemetry.exposition import Readings, render
from execserver.telemetry.measures import measures
from execserver.transports.http_upgrade import STOPPING, Content, Head, Page, Pages

if TYPE_CHECKING:
    from execprotocol.environment import Health, NoParams


def handlers(gauges: Gauges) -> Handlers:
    """The handler of `server/health`."""

    def health(caller: Caller, params: NoParams) -> Health:
        return {
            "status": "stopping" if gauges.stopping() else "ok",
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
        }

    return {"server/health": health}


def pages(gauges: Gauges) -> Pages:
    """`/readyz` for everybody; `/livez` and `/metrics` for those who may connect."""

    def ready(head: Head) -> Content:
        if gauges.stopping():
            return Content(STOPPING.encode(), status=HTTPStatus.SERVICE_UNAVAILABLE)
        return Content()

    def live(head: Head) -> Content:
        """The loop got here, so it turns."""
        return Content()

    def show_metrics(head: Head) -> Awaitable[Content]:
        readings = take(measures, gauges)
        accept = ", ".join(head.all("accept"))
        return asyncio.get_running_loop().run_in_executor(None, _render, readings, accept)

    return {
        "/readyz": Page(ready, public=True),
        "/livez": Page(live),
        "/metrics": Page(show_metrics),
    }


def _render(readings: Sequence[Readings], accept: str) -> Content:
    content_type, body = render(readings, accept)
    return Content(body, content_type)
