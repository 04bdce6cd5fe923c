"""Patience with a slow machine, which costs nothing on a fast one."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

from execclient.tools.result import ToolResult
from execclient.tools.toolset import Toolset


async def until(condition: Callable[[], bool], seconds: float = 10) -> None:
    """Let the event loop go on until something holds."""
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.01)


async def shown(tools: Toolset, result: ToolResult, text: str) -> str:
    """What a session has printed from an answer on, looked at again, for 15 s, until `text` is there."""
    output = result.aggregated_output
    for _ in range(3):
        if text in output or result.process_id is None:
            break
        result = await tools.call("write_stdin", {"process_id": result.process_id, "yield_time_ms": 5_000})
        output += result.aggregated_output
    return output


async def limited(
    call: Callable[[int], Awaitable[ToolResult]], begun: Path, *limits: int
) -> tuple[ToolResult, int]:
    """A call whose time limit is to pass; the next limit if its command had not come to make a file by then.

    Returns:
        The answer, and the limit that it is about.
    """
    for limit in limits:
        result = await call(limit)
        if begun.exists():
            return result, limit
    raise AssertionError(f"the command did not begin within {limits}: {result.content}")
