"""Typing, sizes, signals and kills of one page, of a console that was started with `write`."""

from __future__ import annotations

import asyncio
from contextlib import suppress

from execclient import ExecServerError, OutputGap, Process
from execclient.console.view import DaemonView


class Controls:
    """The processes that a page types into.

    A process is attached to with its first act, with the right to set the size of its terminal. The output
    that comes with this is thrown away: the page reads it at its own pace.

    Args:
        view: reaches the processes.
    """

    def __init__(self, view: DaemonView) -> None:
        self._view = view
        self._attached: dict[tuple[str, str], _Attached] = {}
        self._turn = asyncio.Lock()
        """What is typed arrives in order: acts take turns, in the order of their requests."""

    async def write(self, session_id: str, process_id: str, data: str) -> None:
        """Type, or write to the standard input. Raises as `Process.write`."""
        async with self._turn:
            await (await self._process(session_id, process_id)).write(data, whole_lines=False)

    async def close_stdin(self, session_id: str, process_id: str) -> None:
        """Raises as `Process.close_stdin`."""
        async with self._turn:
            await (await self._process(session_id, process_id)).close_stdin()

    async def resize(self, session_id: str, process_id: str, rows: int, cols: int) -> None:
        """Raises as `Process.resize`."""
        async with self._turn:
            await (await self._process(session_id, process_id)).resize(rows, cols)

    async def signal(self, session_id: str, process_id: str, name: str) -> None:
        """Send a signal to the process group. Raises as `Process.signal`."""
        await (await self._process(session_id, process_id)).signal(name)

    async def kill(self, session_id: str, process_id: str) -> None:
        """Kill the process and all its descendants."""
        await (await self._process(session_id, process_id)).kill()

    async def close(self) -> None:
        """Leave the processes, which run on."""
        attached, self._attached = self._attached, {}
        for each in attached.values():
            await each.leave()

    async def _process(self, session_id: str, process_id: str) -> Process:
        executor = await self._view.executor(session_id)
        held = self._attached.get((session_id, process_id))
        if held is not None and not held.drain.done():
            return held.process
        last = (self._view.find(session_id, process_id) or {}).get("lastSeq", 0)
        process = await executor.attach(
            process_id, session_id=session_id, after_seq=last, interactive=True, buffer_bytes=1
        )
        self._attached[session_id, process_id] = _Attached(process)
        return process


class _Attached:
    def __init__(self, process: Process) -> None:
        self.process = process
        self.drain = asyncio.create_task(self._drain())

    async def _drain(self) -> None:
        """Throw the output away, until the process or its session has ended."""
        while True:
            try:
                async for _ in self.process:
                    pass
                await self.process.wait()
            except OutputGap:
                continue
            except ExecServerError:
                pass
            return

    async def leave(self) -> None:
        self.drain.cancel()
        with suppress(ExecServerError):
            await self.process.detach()
