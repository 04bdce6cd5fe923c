"""`execserver attach`: sit down at a process that runs, and get up again."""

from __future__ import annotations

import asyncio
import os
from contextlib import AsyncExitStack

from execclient.commands.daemon import Daemon, Listed, find
from execclient.commands.failures import complain
from execclient.commands.foreground import Detached, DetachKeys, Foreground, Work
from execclient.commands.signals import Signals
from execclient.commands.streams import is_empty_input
from execclient.commands.terminal import LEAVE_SCREEN, RawTerminal, screen_size

REDRAW_SECONDS = 0.1
"""Between two changes of size: full-screen programs look at the size when they get round to it, and
one that is as it was draws nothing."""


async def attach(
    daemon: Daemon,
    process_id: str,
    session_id: str | None,
    *,
    keys: bytes,
    read_only: bool,
    since_seq: int | None,
) -> int:
    """Show a process and hand it what is typed; its exit code, or 0 when the keys were typed."""
    async with AsyncExitStack() as stack:
        executor = await stack.enter_async_context(daemon.connect())
        listed = await find(executor, process_id, session_id)
        if listed["state"] != "running" and since_seq is None:
            code = listed["exitCode"]
            complain(f"{process_id} has ended already, with {code}; its output: execserver logs {process_id}")
            return int(code or 0)
        process = await executor.attach(
            process_id,
            session_id=listed["sessionId"],
            after_seq=listed["lastSeq"] if since_seq is None else since_seq,
            interactive=not read_only,
        )
        foreground = Foreground(executor, process, ours=False)
        beside: list[Work] = []
        signals = stack.enter_context(Signals())
        is_raw = bool(listed["tty"]) and os.isatty(0) and not read_only
        if is_raw:
            terminal = stack.enter_context(RawTerminal())
            beside.append(terminal.follow_size(foreground.resize))
        if not read_only and not is_empty_input():
            # Ctrl-D is meant; that a file or a pipe of ours ends is no reason to close what is not ours.
            is_typed = os.isatty(0) and not listed["tty"]
            at_end = foreground.close_input if is_typed else foreground.leave_input_open
            typing = foreground.forward_input(at_end, DetachKeys(keys) if os.isatty(0) else None)
            beside.append(_redraw_before(typing, foreground, listed) if is_raw else typing)
        try:
            return await foreground.until_over(signals, *beside)
        except Detached:
            pass
    if is_raw and os.isatty(1):
        os.write(1, LEAVE_SCREEN)
    complain(f"detached from {process_id}; back to it: execserver attach {process_id}")
    return 0


async def _redraw_before(typing: Work, foreground: Foreground, listed: Listed) -> None:
    """First the size is right: what is typed may ask for it."""
    try:
        await _redraw(foreground, listed)
        await typing
    finally:
        typing.close()


async def _redraw(foreground: Foreground, listed: Listed) -> None:
    """Give it our size, and have it draw what nobody has kept: its screen."""
    size = screen_size()
    if size is None:
        return
    rows, columns = size
    if listed.get("size") == {"rows": rows, "cols": columns} and rows > 1:
        await foreground.resize(rows - 1, columns)
        await asyncio.sleep(REDRAW_SECONDS)
    await foreground.resize(rows, columns)
