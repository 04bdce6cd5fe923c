"""Serves one host over stdin and stdout."""

from __future__ import annotations

import asyncio
import os
import signal

from mcp.server.stdio import stdio_server

from execclient.integrations.mcp.server import McpServer
from execclient.integrations.mcp.workspace import Options


async def serve_stdio(options: Options) -> int:
    """Serve until stdin ends; returns the exit status. Raises as `Workspace.check`."""
    if not os.isatty(0):
        # ^C in the terminal of a host is sent to its servers, too, and is no message for them.
        asyncio.get_running_loop().add_signal_handler(signal.SIGINT, lambda: None)
    served = McpServer(options)
    await served.workspace.check()
    try:
        async with stdio_server() as (incoming, outgoing):
            await served.server.run(incoming, outgoing, served.server.create_initialization_options())
    finally:
        await served.close()
    return 0
