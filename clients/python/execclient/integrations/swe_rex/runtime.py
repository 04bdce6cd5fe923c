"""The runtime: sessions, commands and files at an execserver daemon."""

from __future__ import annotations

import asyncio
import io
import logging
import os
import threading
import uuid
import weakref
from contextlib import suppress
from functools import partial
from typing import Any, Self

from swerex.exceptions import (
    BashIncorrectSyntaxError,
    CommandTimeoutError,
    NoExitCodeError,
    NonZeroExitCodeError,
    SessionDoesNotExistError,
    SessionExistsError,
)
from swerex.runtime.abstract import (
    AbstractRuntime,
    Action,
    BashAction,
    BashInterruptAction,
    BashObservation,
    CloseBashSessionResponse,
    CloseResponse,
    CloseSessionRequest,
    CloseSessionResponse,
    Command,
    CommandResponse,
    CreateBashSessionResponse,
    CreateSessionRequest,
    CreateSessionResponse,
    IsAliveResponse,
    Observation,
    ReadFileRequest,
    ReadFileResponse,
    UploadRequest,
    UploadResponse,
    WriteFileRequest,
    WriteFileResponse,
)
from swerex.utils.log import get_logger

from execclient import ExecServerError, ExecutorClosed
from execclient.arguments import AnyPath
from execclient.expect import RemoteSpawn
from execclient.file_session import repeated
from execclient.integrations.swe_rex.bash_session import BashSession, bash_argv, prompt_mark
from execclient.integrations.swe_rex.daemon import Daemon, ExecServerRuntimeConfig
from execclient.shells import stderr_to_stdout

__all__ = ["ExecServerRuntime", "ExecServerRuntimeConfig"]

_ALIVE_SECONDS = 10.0
"""For the answer to `is_alive`, by default."""

_PREFIX = "swerex"
"""Of the process ids of bash sessions: `swerex:NAME:NUMBER`."""


class ExecServerRuntime(AbstractRuntime):
    """Sessions, commands and files at an execserver daemon, within one sandbox.

    It connects at the first call. Each call may come from another event loop: an `asyncio.run` for each.
    If the program ends without `close`, the session ends with it; if the program is killed, the daemon ends
    the session later, unless another runtime continues with it (`session_id`).

    Args:
        logger: as of other runtimes.
        **kwargs: the settings, those of `ExecServerRuntimeConfig`.
    """

    def __init__(self, *, logger: logging.Logger | None = None, **kwargs: Any) -> None:
        self._config = ExecServerRuntimeConfig(**kwargs)
        self._sessions: dict[str, tuple[str, BashSession]] = {}
        """By name: the process id, and the shell."""
        self._starting: set[str] = set()
        """The names of sessions that are about to be created."""
        self._opening = threading.Lock()
        self._daemon: Daemon | None = None
        self._closed = False
        self.logger = logger or get_logger("rex-runtime")

    @classmethod
    def from_config(cls, config: ExecServerRuntimeConfig) -> Self:
        """A runtime with these settings."""
        return cls(**dict(config))

    @property
    def session_id(self) -> str | None:
        """The session at the daemon, for another runtime; None before the first call."""
        return self._config.session_id if self._daemon is None else self._daemon.executor.session_id

    async def is_alive(self, *, timeout: float | None = None) -> IsAliveResponse:  # noqa: ASYNC109 - theirs
        """Whether the daemon answers in time, 10 seconds by default. Raises nothing."""
        try:
            async with asyncio.timeout(_ALIVE_SECONDS if timeout is None else timeout):
                daemon = await self._open()
                await daemon.call(lambda _: daemon.files.exists(daemon.cwd))
        except (ExecServerError, OSError, ValueError) as error:
            return IsAliveResponse(is_alive=False, message=f"{type(error).__name__}: {error}")
        return IsAliveResponse(is_alive=True)

    async def create_session(self, request: CreateSessionRequest) -> CreateSessionResponse:
        """Start a bash on a terminal.

        Raises:
            SessionExistsError: there is one of this name.
            CommandTimeoutError: the files of `startup_source` took longer than `startup_timeout`.
        """
        daemon, name = await self._open(), request.session
        if name in self._starting or await self._find(daemon, name):
            raise SessionExistsError(f"session {name} already exists")
        self._starting.add(name)
        try:
            return await self._create(daemon, request)
        finally:
            self._starting.discard(name)

    async def _create(self, daemon: Daemon, request: CreateSessionRequest) -> CreateBashSessionResponse:
        name = request.session
        process_id = f"{_PREFIX}:{name}:{uuid.uuid4().hex[:8]}"
        session = await self._shell(daemon, process_id)
        self._sessions[name] = process_id, session
        try:
            output = await session.start()
            if request.startup_source:
                sources = " ; ".join(f"source {path}" for path in request.startup_source)
                sourcing = BashAction(command=sources, timeout=request.startup_timeout)
                output += (await session.run(sourcing)).output
        except BaseException:
            await self._end(daemon, name)
            raise
        return CreateBashSessionResponse(output=output)

    async def run_in_session(self, action: Action) -> Observation:
        """Run a command in a bash session, or interrupt the command in it.

        Raises:
            SessionDoesNotExistError: there is no session of this name, or the command has ended its shell.
            BashIncorrectSyntaxError: the command is not valid; nothing was run.
            CommandTimeoutError: the command reached its time limit, and runs on; a `BashInterruptAction` ends
                it. The output that it had comes with the next observation.
            NonZeroExitCodeError, NoExitCodeError: with `check="raise"`.
        """
        daemon = await self._open()
        if not await self._find(daemon, action.session):
            raise SessionDoesNotExistError(f"session {action.session!r} does not exist")
        _, session = self._sessions[action.session]
        try:
            if isinstance(action, BashInterruptAction):
                return await session.interrupt(action)
            if action.is_interactive_command or action.is_interactive_quit:
                return await session.interact(action)
            await self._check_syntax(daemon, action.command)
            return _checked(action, await session.run(action))
        except SessionDoesNotExistError:
            await self._end(daemon, action.session)
            raise

    async def close_session(self, request: CloseSessionRequest) -> CloseSessionResponse:
        """Kill the bash of a session with all its descendants.

        Raises:
            SessionDoesNotExistError: there is none of this name.
        """
        daemon = await self._open()
        if not await self._find(daemon, request.session):
            raise SessionDoesNotExistError(f"session {request.session!r} does not exist")
        await self._end(daemon, request.session)
        return CloseBashSessionResponse()

    async def execute(self, command: Command) -> CommandResponse:
        """Run a command by itself, as `subprocess.run` does. Cancelling kills it with all its descendants.

        Raises:
            CommandTimeoutError: it reached its time limit and was killed; the message has its output.
            NonZeroExitCodeError: with `check`.
            FileNotFoundError: the program or the working directory is missing.
        """
        daemon = await self._open()
        argv = _argv(command)
        result = await daemon.call(
            lambda executor: executor.run(
                stderr_to_stdout(argv) if command.merge_output_streams else argv,
                cwd=daemon.path(command.cwd or ""),
                # As in `subprocess`: given variables are all that there are.
                env=daemon.env if command.env is None else command.env,
                inherit="all" if command.env is None else "none",
                timeout=command.timeout,
                sandbox=daemon.sandbox,
            )
        )
        stdout, stderr = (text.decode(errors="backslashreplace") for text in (result.stdout, result.stderr))
        if result.timed_out:
            raise CommandTimeoutError(
                f"Timeout ({command.timeout}s) exceeded while running command. "
                f"Stdout:\n{stdout!r}\nStderr:\n{stderr!r}"
            )
        if command.check and result.exit_code:
            raise NonZeroExitCodeError(
                _with_reason(
                    command.error_msg,
                    f"Command {command.command!r} failed with exit code {result.exit_code}. "
                    f"Stdout:\n{stdout!r}\nStderr:\n{stderr!r}",
                )
            )
        return CommandResponse(stdout=stdout, stderr=stderr, exit_code=result.exit_code)

    async def read_file(self, request: ReadFileRequest) -> ReadFileResponse:
        """The text of a file, as `Path.read_text` has it, with UTF-8 as the default encoding."""
        daemon = await self._open()
        data = await daemon.call(lambda _: daemon.files.read_bytes(daemon.path(request.path)))
        text = io.TextIOWrapper(io.BytesIO(data), encoding=request.encoding or "utf-8", errors=request.errors)
        return ReadFileResponse(content=text.read())

    async def write_file(self, request: WriteFileRequest) -> WriteFileResponse:
        """Write a text file as UTF-8, and create missing folders."""
        daemon = await self._open()
        path, data = daemon.path(request.path), request.content.encode()
        await daemon.call(lambda _: repeated(partial(daemon.files.write_bytes, path, data, parents=True)))
        return WriteFileResponse()

    async def upload(self, request: UploadRequest) -> UploadResponse:
        """Copy a file or a folder of this machine to the daemon's.

        Raises:
            ValueError: the source is neither.
            OSError: a part of the folder could not be copied; the others were.
        """
        daemon, source = await self._open(), request.source_path
        target = daemon.path(request.target_path)
        if await asyncio.to_thread(os.path.isdir, source):
            copied = await daemon.call(lambda _: daemon.files.upload_tree(source, target))
            if copied.left_out:
                names = ", ".join(f"{each.path}: {each.reason}" for each in copied.left_out)
                raise OSError(f"not everything of {source} was copied: {names}")
        elif await asyncio.to_thread(os.path.isfile, source):
            await daemon.call(lambda _: repeated(lambda: _upload(daemon, source, target)))
        else:
            raise ValueError(f"Source path {source} is not a file or directory")
        return UploadResponse()

    async def close(self) -> CloseResponse:
        """End everything, unless `keep` is set. Later calls raise `ExecutorClosed`."""
        self._closed = True
        self._sessions.clear()
        if self._daemon is not None:
            await asyncio.to_thread(self._daemon.executor.close)
        return CloseResponse()

    # -- inside

    async def _open(self) -> Daemon:
        if self._daemon is None:
            await asyncio.to_thread(self._connect)
        if self._closed or self._daemon is None:
            raise ExecutorClosed("the runtime is closed: make another one")
        return self._daemon

    def _connect(self) -> None:
        with self._opening:
            if self._daemon is None and not self._closed:
                self._daemon = Daemon(self._config)
                weakref.finalize(self, self._daemon.executor.close)

    async def _find(self, daemon: Daemon, name: str) -> bool:
        """Whether there is a session of this name; takes over one of an earlier runtime."""
        if name not in self._sessions and self._config.session_id is not None:
            for each in await daemon.call(lambda executor: executor.processes()):
                if each.process_id.rpartition(":")[0] == f"{_PREFIX}:{name}" and each.state == "running":
                    session = await self._shell(daemon, each.process_id)
                    await asyncio.to_thread(session.skip_old_output)
                    self._sessions[name] = each.process_id, session
        return name in self._sessions

    async def _shell(self, daemon: Daemon, process_id: str) -> BashSession:
        """The bash with this process id: a new one, or that of an earlier runtime."""
        mark = prompt_mark(daemon.executor.session_id, process_id)
        spawn = await asyncio.to_thread(
            RemoteSpawn,
            bash_argv(mark),
            executor=daemon.executor,
            encoding="utf-8",
            codec_errors="backslashreplace",
            cwd=daemon.cwd,
            env=daemon.env,
            sandbox=daemon.sandbox,
            id=process_id,
            if_exists="attach",
        )
        return BashSession(spawn, mark)

    async def _end(self, daemon: Daemon, name: str) -> None:
        process_id, session = self._sessions.pop(name)
        await daemon.call(lambda executor: executor.kill_trees({process_id}))
        with suppress(ExecServerError):
            await asyncio.to_thread(session.close)

    async def _check_syntax(self, daemon: Daemon, command: str) -> None:
        result = await daemon.call(
            lambda executor: executor.run(
                ["bash", "-n"], input=command.encode("utf-8", "surrogateescape"), sandbox=daemon.sandbox
            )
        )
        if result.exit_code:
            outputs = {"bash_stdout": result.text, "bash_stderr": result.stderr_text}
            raise BashIncorrectSyntaxError(
                f"Error (exit code {result.exit_code}) while checking bash command \n{command!r}\n"
                f"---- Stderr ----\n{result.stderr_text}\n---- Stdout ----\n{result.text}",
                extra_info=outputs,
            )


async def _upload(daemon: Daemon, source: str, target: str) -> None:
    if await daemon.files.is_dir(target):
        target = os.path.join(target, os.path.basename(source))
    await daemon.files.mkdir(os.path.dirname(target), parents=True)
    await daemon.files.upload(source, target)


def _argv(command: Command) -> list[AnyPath]:
    words = [command.command] if isinstance(command.command, str) else command.command
    return ["/bin/sh", "-c", *words] if command.shell else [*words]


def _checked(action: BashAction, observation: BashObservation) -> BashObservation:
    """The observation, with or without the exit code as `check` has it.

    Raises:
        NoExitCodeError, NonZeroExitCodeError: with `check="raise"`.
    """
    if action.check == "ignore":
        observation.exit_code = None
    elif action.check == "raise" and observation.exit_code != 0:
        kind = NoExitCodeError if observation.exit_code is None else NonZeroExitCodeError
        message = f"Command {action.command!r} failed with exit code {observation.exit_code}."
        raise kind(_with_reason(action.error_msg, f"{message} Here is the output:\n{observation.output!r}"))
    return observation


def _with_reason(reason: str, message: str) -> str:
    return f"{reason}: {message}" if reason else message
