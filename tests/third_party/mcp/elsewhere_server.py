"""An MCP server of the official SDK that is reached by `execserver run`.

`python elsewhere_server.py JOURNAL` writes a line into the file for each call, and one to stderr.
"""

from __future__ import annotations

import os
import random
import sys
from pathlib import Path

from mcp.server.mcpserver import MCPServer

server = MCPServer("elsewhere", log_level="ERROR")


def text_of(seed: int, length: int) -> str:
    """A text without a pattern, so that a lost or doubled piece shows."""
    return random.Random(seed).randbytes(length // 2).hex()


@server.tool()
async def number(value: int) -> str:
    """Return the number with the process ID of the server."""
    with Path(sys.argv[1]).open("a") as journal:
        journal.write(f"{value}\n")
    sys.stderr.write(f"call {value}\n")
    sys.stderr.flush()
    return f"{value} from {os.getpid()}"


@server.tool()
async def large(seed: int, length: int) -> str:
    """Return the text of a seed."""
    return text_of(seed, length)


@server.tool()
async def matches(seed: int, text: str) -> str:
    """Return whether the text is that of the seed."""
    return "yes" if text == text_of(seed, len(text)) else "no"


@server.tool()
async def end(status: int) -> str:
    """End the server before it answers."""
    os._exit(status)


if __name__ == "__main__":
    server.run()
