"""`execserver ports` and `execserver forward`: the ports of processes, and connections to them from here."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import NamedTuple, NoReturn

from execclient import ExecServerError, Executor, Forward, ListeningPort, StreamFailed
from execclient.commands.daemon import DaemonOptions, Processes
from execclient.commands.failures import CommandExit, print_message
from execclient.commands.signals import Signalled, Signals
from execclient.session.session import cancel
from execprotocol.command_line import printable

PATIENCE_SECONDS = 600.0
"""In which a lost connection must be replaced: a forward is left alone for hours, on machines that sleep."""

_SEPARATOR = "  "


class _Column(NamedTuple):
    heading: str
    text: Callable[[ListeningPort], str]


_COLUMNS = (
    _Column("PORT", lambda each: str(each.port)),
    _Column("ADDRESS", lambda each: each.address),
    _Column("NAME", lambda each: each.name),
    _Column("PID", lambda each: str(each.pid)),
    _Column("ID", lambda each: each.process_id or ""),
    _Column("SANDBOX", lambda each: "yes" if each.sandboxed else ""),
    _Column("SESSION", lambda each: each.session_id),
)


async def ports(daemon: DaemonOptions, *, as_json: bool) -> int:
    """Print the ports that processes of all sessions listen on, or of the recorded ones."""
    async with AsyncExitStack() as stack:
        processes = Processes(daemon, stack)
        found = [
            port
            for executor in await processes.sessions()
            for port in await executor.ports(all_sessions=processes.shows_all)
        ]
    if as_json:
        print(json.dumps([_members(each) for each in found], indent=2), flush=True)
    else:
        print("\n".join(_table(found)), flush=True)
    return 0


def _members(port: ListeningPort) -> dict[str, object]:
    ids = {"processId": port.process_id, "sessionId": port.session_id, "pid": port.pid}
    return {"port": port.port, "address": port.address, **ids, "name": port.name, "sandboxed": port.sandboxed}


def _table(found: Sequence[ListeningPort]) -> list[str]:
    columns = [[each.heading, *(printable(each.text(port)) for port in found)] for each in _COLUMNS]
    widths = [max(map(len, column)) for column in columns]
    rows = zip(*columns, strict=True)
    return [
        _SEPARATOR.join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]


@dataclass(frozen=True, slots=True)
class ForwardOptions:
    """The options of `forward`."""

    port: int
    """At the executor."""
    local_port: int | None
    """Of this machine; None for the same number, or a free one."""
    process_id: str | None
    session_id: str | None


async def forward(daemon: DaemonOptions, options: ForwardOptions) -> int:
    """Forward a port until a signal ends the command.

    Raises:
        CommandExit: there is no such process, several listen on the port, or the local port is in use.
    """
    async with AsyncExitStack() as stack:
        signals = stack.enter_context(Signals())
        try:
            await signals.unless_signalled(_Forwarding(daemon, options, stack).run())
        except Signalled:
            return 0
    raise AssertionError("it forwards without end")


class _Listener(NamedTuple):
    """A process that listens on the port, and the session through which it is reached."""

    executor: Executor
    process_id: str | None
    session_id: str
    name: str

    def __str__(self) -> str:
        process = "" if self.process_id is None else f"process {self.process_id} of "
        return f"{self.name} ({process}session {self.session_id})"


class _Forwarding:
    """Follows which process listens on the port, and forwards to it.

    Args:
        daemon: the daemon.
        options: of the command.
        stack: closes the sessions, after the port of this machine.
    """

    def __init__(self, daemon: DaemonOptions, options: ForwardOptions, stack: AsyncExitStack) -> None:
        self._options = options
        self._stack = stack
        self._processes = Processes(daemon, stack, patience=PATIENCE_SECONDS)
        self._listeners: dict[tuple[str, str | None, str, int], _Listener] = {}
        self._target: _Listener | None = None
        self._forward: Forward
        self._has_printed = False

    async def run(self) -> NoReturn:
        """Forward without end.

        Raises:
            CommandExit: there is no such process, several listen, or the port of this machine cannot be used.
            SessionLost: the session of the command, or that of the process, has ended.
        """
        executors = await self._executors()
        for executor in executors:
            for port in await executor.ports(all_sessions=self._processes.shows_all):
                self._change(executor, port, listening=True)
        several = self._choose()
        if several:
            names = ", ".join(map(str, several))
            raise CommandExit(f"several processes listen on it; choose with --process or --session: {names}")
        await self._listen(executors[0])
        self._report(None)
        await self._follow(executors)

    async def _executors(self) -> list[Executor]:
        if self._options.process_id is None:
            return await self._processes.sessions(self._options.session_id)
        return [(await self._processes.find(self._options.process_id, self._options.session_id))[0]]

    async def _listen(self, executor: Executor) -> None:
        options = self._options
        forward = executor.forward(options.port, local_port=options.local_port, on_error=self._failed)
        try:
            self._forward = await self._stack.enter_async_context(forward)
        except OSError as error:
            raise CommandExit(f"cannot listen on this machine: {error.strerror}") from error
        self._lead()

    async def _follow(self, executors: Sequence[Executor]) -> NoReturn:
        """Let the port lead to the process that listens, as that changes."""
        watches = {
            await self._stack.enter_async_context(
                each.watch_ports(all_sessions=self._processes.shows_all)
            ): each
            for each in executors
        }
        waiting = {asyncio.ensure_future(anext(events)): events for events in watches}
        try:
            while True:
                done, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
                for each in done:
                    events = waiting.pop(each)
                    self._change(watches[events], *each.result())
                    waiting[asyncio.ensure_future(anext(events))] = events
                before = self._target
                self._choose()
                if self._target != before:
                    self._lead()
                    self._report(before)
        finally:
            await cancel(waiting)

    def _change(self, executor: Executor, port: ListeningPort, listening: bool) -> None:
        options = self._options
        if port.port != options.port or options.process_id not in (None, port.process_id):
            return
        if options.session_id not in (None, port.session_id):
            return
        if listening:
            self._listeners[port.key] = _Listener(executor, port.process_id, port.session_id, port.name)
        else:
            self._listeners.pop(port.key, None)

    def _choose(self) -> list[_Listener]:
        """Choose a process that listens, that of before if it still does; returns the choices of several."""
        choices = list(dict.fromkeys(self._listeners.values()))
        if self._target not in choices:
            self._target = choices[0] if choices else None
        return choices if len(choices) > 1 else []

    def _lead(self) -> None:
        if (target := self._target) is not None:
            to = target.executor.forward(
                self._options.port, process=target.process_id, session_id=target.session_id
            )
            self._forward.route = to.route

    def _report(self, before: _Listener | None) -> None:
        port = self._options.port
        if self._target is not None:
            print_message(f"{self._target} listens on port {port}")
            if not self._has_printed:
                print(self._forward.url, flush=True)
                self._has_printed = True
        elif before is not None:
            print_message(f"{before} no longer listens on port {port}")
        else:
            print_message(f"no process listens on port {port} yet")

    def _failed(self, error: ExecServerError) -> None:
        # A listener that resets a connection is no news.
        if self._target is not None and not isinstance(error, StreamFailed):
            print_message(f"a connection to port {self._options.port} has failed: {error}")
