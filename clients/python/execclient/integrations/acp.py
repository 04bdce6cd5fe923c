"""The terminals and files of an ACP client, at an execserver daemon.

    class Editor(ExecServerClient, acp.Client):
        async def session_update(self, session_id, update, **kwargs): ...
        async def request_permission(self, session_id, tool_call, options, **kwargs): ...

    async with connect() as executor:
        client = Editor(executor, workspace="/srv/app")

Needs the extra: `pip install "execclient[acp]"`.
"""

from __future__ import annotations

import asyncio
import errno
import posixpath
import re
import signal
from contextlib import suppress
from functools import partial
from typing import Any

try:
    import acp  # noqa: F401
except ImportError as error:
    raise ImportError(
        'execclient.integrations.acp needs agent-client-protocol: pip install "execclient[acp]"'
    ) from error

from acp import RequestError
from acp.schema import (
    CreateTerminalResponse,
    EnvVariable,
    KillTerminalResponse,
    ReadTextFileResponse,
    ReleaseTerminalResponse,
    TerminalExitStatus,
    TerminalOutputResponse,
    WaitForTerminalExitResponse,
    WriteTextFileResponse,
)

from execclient import (
    ExecServerError,
    Executor,
    OutputGap,
    Process,
    Refused,
    WorkspaceWrite,
    arguments,
)
from execclient.file_session import repeated
from execclient.govern.sandbox import SandboxPolicy
from execclient.shells import stderr_to_stdout

__all__ = ["ExecServerClient"]

OUTPUT_BYTES = 16 << 20
"""Output kept of a terminal whose request has no `outputByteLimit`."""

_SPARE_BYTES = 64 << 10
"""Output beyond the limit that may wait until it is dropped together."""

_TURN_SECONDS = 0.1

_NOT_FOUND, _INVALID, _FAILED = -32002, -32602, -32603

_SIGNALS = 128
"""An exit code is this plus the number of a signal."""


class ExecServerClient:
    """The methods of an `acp.Client` for terminals and files, as a base class beside it.

    An agent uses them if the `initialize` request of the client has the capability `terminal` and both of
    `fs`. Errors are `acp.RequestError`, whose message has the reason.

    Args:
        executor: runs the commands. Terminals end with it, unless `connect` was told to `keep` its session.
        workspace: the folder of the ACP sessions: where commands start, and the workspace of the sandbox.
            Absolute, or relative to the daemon's working directory, which is the default.
        sandbox: for commands and files; None for no sandbox.
    """

    def __init__(
        self,
        executor: Executor,
        *,
        workspace: str = "",
        sandbox: SandboxPolicy | None = WorkspaceWrite(),  # noqa: B008 - a value that does not change
    ) -> None:
        self._executor = executor
        self.workspace = posixpath.normpath(posixpath.join(executor.cwd, workspace))
        """Its absolute path, for `new_session`."""
        # Fixed here: the working directory of a call is no workspace.
        self._sandbox = arguments.sandbox(sandbox, self.workspace, "workspace")
        self._files = executor.files(sandbox, workspace=self.workspace)
        self._terminals: dict[tuple[str, str], _Terminal] = {}

    async def create_terminal(
        self,
        session_id: str,
        command: str,
        args: list[str] | None = None,
        env: list[EnvVariable] | None = None,
        cwd: str | None = None,
        output_byte_limit: int | None = None,
        **kwargs: Any,
    ) -> CreateTerminalResponse:
        """Start a command. Without `args` it is a line for `/bin/sh`, as agents send it.

        A program that does not exist is a command that exits with 127.
        """
        argv = [command, *args] if args else ["/bin/sh", "-c", command]
        folder = self.workspace if cwd is None else _absolute(cwd, "cwd")
        try:
            process = await self._executor.start(
                stderr_to_stdout(argv),
                cwd=folder,
                env={each.name: each.value for each in env or ()},
                sandbox=self._sandbox,
            )
        except (OSError, ValueError, ExecServerError) as error:
            raise _request_error(error) from error
        limit = OUTPUT_BYTES if output_byte_limit is None else output_byte_limit
        self._terminals[session_id, process.id] = _Terminal(process, limit)
        return CreateTerminalResponse(terminal_id=process.id)

    async def terminal_output(
        self, session_id: str, terminal_id: str, **kwargs: Any
    ) -> TerminalOutputResponse:
        """The output of both streams in the order of writing; all of it once there is an exit status.

        Beyond the limit the beginning is dropped, up to a whole character.
        """
        terminal = self._terminal(session_id, terminal_id)
        status = None
        if terminal.process.exit_code is not None:
            await terminal.exited()
            code, name = terminal.exit_status()
            status = TerminalExitStatus(exit_code=code, signal=name)
        output, truncated = terminal.output()
        return TerminalOutputResponse(output=output, truncated=truncated, exit_status=status)

    async def wait_for_terminal_exit(
        self, session_id: str, terminal_id: str, **kwargs: Any
    ) -> WaitForTerminalExitResponse:
        """Wait for the exit of the command: its exit code, or the name of the signal that killed it."""
        terminal = self._terminal(session_id, terminal_id)
        try:
            await terminal.exited()
        except ExecServerError as error:
            raise _request_error(error) from error
        code, name = terminal.exit_status()
        return WaitForTerminalExitResponse(exit_code=code, signal=name)

    async def kill_terminal(self, session_id: str, terminal_id: str, **kwargs: Any) -> KillTerminalResponse:
        """Kill the command with all its descendants. The terminal and its output remain."""
        await self._terminal(session_id, terminal_id).process.kill()
        return KillTerminalResponse()

    async def release_terminal(
        self, session_id: str, terminal_id: str, **kwargs: Any
    ) -> ReleaseTerminalResponse:
        """Forget a terminal; a command that still runs is killed."""
        terminal = self._terminal(session_id, terminal_id)
        del self._terminals[session_id, terminal_id]
        await terminal.close()
        return ReleaseTerminalResponse()

    async def release_terminals(self, session_id: str | None = None) -> None:
        """Release all terminals of an ACP session, or of all: an agent that has died does not."""
        for session, terminal_id in [*self._terminals]:
            if session_id in (None, session):
                await self.release_terminal(session, terminal_id)

    async def read_text_file(
        self, session_id: str, path: str, line: int | None = None, limit: int | None = None, **kwargs: Any
    ) -> ReadTextFileResponse:
        """The text of a file, or `limit` lines of it from line `line` on, counted from 1."""
        try:
            text = await self._files.read_text(_absolute(path, "path"))
        except (OSError, ValueError, ExecServerError) as error:
            raise _request_error(error) from error
        if line or limit is not None:
            first = max(0, (line or 1) - 1)
            # Not `splitlines`, which also splits at form feeds and other characters.
            lines = re.findall(r"[^\n]*\n|[^\n]+", text)
            text = "".join(lines[first : None if limit is None else first + limit])
        return ReadTextFileResponse(content=text)

    async def write_text_file(
        self, session_id: str, path: str, content: str, **kwargs: Any
    ) -> WriteTextFileResponse:
        """Write a file in place, as UTF-8; missing folders above it are created."""
        _absolute(path, "path")
        try:
            await repeated(partial(self._files.write_text, path, content, parents=True))
        except (OSError, ValueError, ExecServerError) as error:
            raise _request_error(error) from error
        return WriteTextFileResponse()

    def _terminal(self, session_id: str, terminal_id: str) -> _Terminal:
        try:
            return self._terminals[session_id, terminal_id]
        except KeyError:
            reason = f"there is no terminal {terminal_id}, or it was released"
            raise RequestError(_NOT_FOUND, reason, {"terminalId": terminal_id}) from None


class _Terminal:
    """A command and the end of its output.

    Args:
        process: the command.
        limit: bytes of output that are kept.
    """

    def __init__(self, process: Process, limit: int) -> None:
        self.process = process
        self._limit = limit
        self._kept = bytearray()
        self._truncated = False
        self._reading = asyncio.create_task(self._read())

    def output(self) -> tuple[str, bool]:
        """The kept output, and whether some was dropped."""
        self._trim()
        return self._kept.decode(), self._truncated

    def exit_status(self) -> tuple[int | None, str | None]:
        """The exit code, or the name of the signal that ended the command.

        In a sandbox an exit code of a signal, such as 137, is taken for one.
        """
        code = self.process.exit_code
        if code is not None and code > _SIGNALS and self.process.cause not in (None, "normal"):
            with suppress(ValueError):
                return None, signal.Signals(code - _SIGNALS).name
        return code, None

    async def exited(self) -> None:
        """Wait for the exit and the output before it. Raises as `Process.wait`."""
        await self.process.wait()
        if not self._reading.done():
            await self.process.linger()
            # What has arrived is read in one turn; a background process may keep the output open.
            await asyncio.wait({self._reading}, timeout=_TURN_SECONDS)

    async def close(self) -> None:
        """Kill the command if it still runs, and read no more."""
        if self.process.exit_code is None:
            await self.process.kill()
        self._reading.cancel()
        await asyncio.wait({self._reading})

    async def _read(self) -> None:
        chunks = self.process.text()
        while True:
            try:
                async for chunk in chunks:
                    self._kept += chunk.text.encode()
                    if len(self._kept) > self._limit + _SPARE_BYTES:
                        self._trim()
                return
            except OutputGap:
                self._truncated = True
            except ExecServerError:
                return  # no more will arrive; `exited` says why

    def _trim(self) -> None:
        first = len(self._kept) - self._limit
        if first <= 0:
            return
        while first < len(self._kept) and self._kept[first] & 0xC0 == 0x80:  # within a character
            first += 1
        del self._kept[:first]
        self._truncated = True


def _absolute(path: str, name: str) -> str:
    if not posixpath.isabs(path):
        raise RequestError(_INVALID, f"{name} must be absolute, not {path!r}")
    return path


def _request_error(error: Exception) -> RequestError:
    """The error of the executor as one of ACP."""
    text, code = str(error), _FAILED
    path = error.path if isinstance(error, ExecServerError) else None
    if isinstance(error, FileNotFoundError):
        code = _NOT_FOUND
    elif isinstance(error, ValueError | Refused | IsADirectoryError | NotADirectoryError):
        code = _INVALID
    elif isinstance(error, OSError) and error.errno == errno.EROFS:
        text = f"{path}: the sandbox does not allow writing here"
    return RequestError(code, text, None if path is None else {"path": path})
