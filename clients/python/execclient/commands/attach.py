"""`execserver attach`: connect your terminal to a running process, and detach from it again."""

from __future__ import annotations

import asyncio
import os
from contextlib import AsyncExitStack

from execclient.commands.daemon import DaemonOptions, Listed, Processes
from execclient.commands.failures import print_message
from execclient.commands.foreground import Background, Detached, DetachKeys, Foreground
from execclient.commands.signals import Signals
from execclient.commands.streams import is_empty_input
from execclient.commands.terminal import LEAVE_SCREEN, RawTerminal, screen_size

REDRAW_SECONDS = 0.1
"""Between two changes of the size. A full-screen program reads the size some time after the signal, and
draws nothing if it has not changed by then."""


async def attach(
    daemon: DaemonOptions,
    process_id: str,
    session_id: str | None,
    *,
    keys: bytes,
    read_only: bool,
    since_seq: int | None,
) -> int:
    """Print the output of a process and forward input to it.

    Returns:
        The exit code of the process, or 0 after the detach keys.
    """
    async with AsyncExitStack() as stack:
        executor, listed = await Processes(daemon, stack).find(process_id, session_id)
        if listed["state"] != "running" and since_seq is None:
            code = listed["exitCode"]
            print_message(f"{process_id} has already exited with {code}; see: execserver logs {process_id}")
            return int(code or 0)
        process = await executor.attach(
            process_id,
            session_id=listed["sessionId"],
            after_seq=listed["lastSeq"] if since_seq is None else since_seq,
            interactive=not read_only,
        )
        foreground = Foreground(executor, process, owned=False)
        background: list[Background] = []
        signals = stack.enter_context(Signals())
        is_raw = bool(listed["tty"]) and os.isatty(0) and not read_only
        if is_raw:
            terminal = stack.enter_context(RawTerminal())
            background.append(terminal.follow_size(foreground.resize))
        if not read_only and not is_empty_input():
            # A typed Ctrl-D is meant for the process. The end of a file or a pipe is not: other clients
            # may go on writing.
            is_typed = os.isatty(0) and not listed["tty"]
            at_end = foreground.close_input if is_typed else foreground.leave_input_open
            typing = foreground.forward_input(at_end, DetachKeys(keys) if os.isatty(0) else None)
            background.append(_redraw_before(typing, foreground, listed) if is_raw else typing)
        try:
            return await foreground.run_until_exit(signals, *background)
        except Detached:
            pass
    if is_raw and os.isatty(1):
        os.write(1, LEAVE_SCREEN)
    print_message(f"detached from {process_id}; to return: execserver attach {process_id}")
    return 0


async def _redraw_before(typing: Background, foreground: Foreground, listed: Listed) -> None:
    """Set the size before input is forwarded: the input may depend on it."""
    try:
        await _redraw(foreground, listed)
        await typing
    finally:
        typing.close()


async def _redraw(foreground: Foreground, listed: Listed) -> None:
    """Set the size of this terminal, and make the program draw its screen, which the daemon does not keep."""
    size = screen_size()
    if size is None:
        return
    rows, columns = size
    if listed.get("size") == {"rows": rows, "cols": columns} and rows > 1:
        await foreground.resize(rows - 1, columns)
        await asyncio.sleep(REDRAW_SECONDS)
    await foreground.resize(rows, columns)
