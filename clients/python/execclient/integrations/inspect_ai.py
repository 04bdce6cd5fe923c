"""The sandbox environment `execserver` of Inspect: each sample has a session and a directory at a daemon.

Inspect loads this module by its entry point (group `inspect_ai`); `docs/how-to/inspect-ai.md` describes it.
"""

from __future__ import annotations

import asyncio
import errno
import os
import posixpath
import shlex
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from logging import getLogger
from pathlib import Path
from typing import Any, ClassVar, Literal, overload

try:
    import inspect_ai  # noqa: F401
except ImportError as error:
    raise ImportError(
        'execclient.integrations.inspect_ai needs Inspect: pip install "execclient[inspect_ai]"'
    ) from error

import anyio
from inspect_ai.util import (
    ExecResult,
    OutputLimitExceededError,
    SandboxConnection,
    SandboxEnvironment,
    SandboxEnvironmentConfigType,
    SandboxEnvironmentLimits,
    SandboxUnavailableError,
    SandboxUserUnsupportedError,
    sandboxenv,
)
from pydantic import BaseModel, Field

from execclient.client import Executor, connect
from execclient.environment_policy import Inherit
from execclient.errors import (
    CommandNotRun,
    ExecServerError,
    ExecutorClosed,
    NotFound,
    Refused,
    SessionAttached,
    SessionLost,
)
from execclient.file_session import repeated
from execclient.govern.sandbox import ReadOnly, WorkspaceWrite
from execclient.integrations.settings import SandboxSetting
from execclient.process import Process

FOLDER = ".cache/execserver/inspect"
"""Of the samples, in the home folder of the daemon's user: commands of all samples may write to `/tmp`."""

ONE_WRITE_BYTES = 1 << 20
"""Larger files are the input of a command, which continues after a lost connection; a write begins anew."""

CLEANUP_SECONDS = 300.0
"""For the removal of a working directory."""

REMOVE = 'chmod -R u+rwx "$1"; rm -rf "$1"'
"""A sample may have left folders without the permission to write to them."""

TOOLS_PROGRAM, TOOLS_STATE = "inspect-sandbox-tools", "INSPECT_SANDBOX_TOOLS_DIR"
"""The program that Inspect installs below `/var/tmp` for some tools, and the variable for the folder of its
server: without it, all samples of a machine would share one server."""

NOT_FOUND = 127
"""The exit code of a command that does not exist, as in a shell."""

_logger = getLogger(__name__)


class ExecServerSandboxConfig(BaseModel, frozen=True, extra="forbid"):
    """The configuration of the sandbox environment `execserver`."""

    url: str | None = None
    """The daemon; by default `EXECSERVER_URL`, else the daemon's default socket."""
    token_file: str | None = None
    """A file with the bearer token; by default as for `execclient.connect`."""
    sandbox: SandboxSetting = WorkspaceWrite()
    """Limits commands and file access; None for no limits. The workspace is the working directory."""
    inherit: Inherit = "core"
    """The variables of the daemon that commands inherit: all, the core (HOME, PATH, …) or none."""
    ttl: float | None = Field(default=None, gt=0)
    """Seconds for which the daemon keeps a sample without a connection; by default `--session-ttl` (80 s)."""

    def connect(self, session_id: str | None = None) -> connect:
        """A new session at the daemon, or a session that exists."""
        return connect(
            self.url,
            token_file=self.token_file,
            ttl=None if session_id else self.ttl,
            session_id=session_id,
            client_name="inspect",
        )


def _configuration(config: SandboxEnvironmentConfigType | None) -> ExecServerSandboxConfig:
    if config is None:
        return ExecServerSandboxConfig()
    if isinstance(config, str):
        return ExecServerSandboxConfig.model_validate_json(Path(config).read_bytes())
    if not isinstance(config, ExecServerSandboxConfig):
        raise TypeError(f"the config of the sandbox execserver is an ExecServerSandboxConfig, not {config!r}")
    return config


class CommandTimeoutError(TimeoutError):
    """A command reached its time limit, and was killed with its descendants."""

    def __init__(self, message: str, truncated_output: str) -> None:
        super().__init__(message)
        self.truncated_output = truncated_output
        """What it had printed; Inspect shows it to the model."""


@sandboxenv(name="execserver")
class ExecServerSandboxEnvironment(SandboxEnvironment):
    """The working directory of a sample, and a session for its commands."""

    _open: ClassVar[dict[ExecServerSandboxEnvironment, asyncio.AbstractEventLoop]] = {}

    def __init__(self, executor: Executor, config: ExecServerSandboxConfig) -> None:
        super().__init__()
        self.executor = executor
        """The session with the daemon, for what Inspect's interface lacks."""
        self._place = _place(executor, executor.session_id)
        self.directory = posixpath.join(self._place, "work")
        """The working directory, absolute, at the daemon."""
        policy = self._policy = config.sandbox
        if isinstance(policy, WorkspaceWrite):
            # Of other samples. The entry for the deepest path decides, which is the working directory.
            policy = replace(policy, deny_read=(*policy.deny_read, posixpath.dirname(self._place)))
        # Made here: `run` would take the directory that a call names as the workspace.
        self._tools = posixpath.join(self._place, "tools")
        folders = [self.directory, self._tools]
        self._sandbox = None if policy is None else policy.context(self.directory, folders)
        self._files = executor.files(self._sandbox)
        self._inherit = config.inherit
        self._users: list[str] = []
        self._server: Process | None = None
        self._starting = asyncio.Lock()
        self._open[self] = asyncio.get_running_loop()

    # -- the life of a sample

    @classmethod
    def config_files(cls) -> list[str]:
        """A file of this name beside a task is its configuration."""
        return ["execserver.json"]

    @classmethod
    def config_deserialize(cls, config: dict[str, Any]) -> BaseModel:
        """The configuration in a log."""
        return ExecServerSandboxConfig.model_validate(config)

    @classmethod
    async def task_init(cls, task_name: str, config: SandboxEnvironmentConfigType | None) -> None:
        """Fail before the first sample if the daemon does not answer, or cannot confine commands."""
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            raise RuntimeError("the sandbox execserver needs asyncio: unset INSPECT_ASYNC_BACKEND") from None
        settings = _configuration(config)
        async with settings.connect() as executor:
            home = _home(executor)
            if settings.sandbox is not None:
                await executor.run(["true"], cwd=home, sandbox=ReadOnly(), check=True)

    @classmethod
    async def sample_init(
        cls, task_name: str, config: SandboxEnvironmentConfigType | None, metadata: dict[str, str]
    ) -> dict[str, SandboxEnvironment]:
        """Open a session, and create the working directory."""
        settings = _configuration(config)
        executor = await settings.connect()
        environment = cls(executor, settings)
        try:
            await _shell(executor, 'mkdir -p "$1/work" "$1/tools"', environment._place)
        except BaseException:
            await environment.end()
            raise
        return {"default": environment}

    @classmethod
    async def sample_cleanup(
        cls,
        task_name: str,
        config: SandboxEnvironmentConfigType | None,
        environments: dict[str, SandboxEnvironment],
        interrupted: bool,
    ) -> None:
        """Kill what the sample left running, remove the working directory, and end the session."""
        for environment in environments.values():
            await environment.as_type(cls).end()

    @classmethod
    async def task_cleanup(
        cls, task_name: str, config: SandboxEnvironmentConfigType | None, cleanup: bool
    ) -> None:
        """End what is left; or, with `--no-sandbox-cleanup`, leave it, and print how to reach and end it."""
        here = asyncio.get_running_loop()
        for environment in [each for each, loop in cls._open.items() if loop is here]:
            await (environment.end() if cleanup else environment.keep())

    @classmethod
    async def cli_cleanup(cls, id: str | None) -> None:  # noqa: A002 - Inspect's name
        """End sessions and remove working directories that evaluations left at the daemon.

        Without an `id`, those that `--no-sandbox-cleanup` has kept, and those whose session has expired.
        """
        settings = ExecServerSandboxConfig()
        async with settings.connect() as executor:
            folder = _place(executor)
            found = []
            with suppress(NotFound):
                found = [entry.name for entry in await executor.fs.iterdir(folder)]
            if id is not None and id not in found:
                _show(f"There is no sandbox {id} at {executor.url}; EXECSERVER_URL names another daemon.")
            names = [name for name in found if id in (None, name)]
            await asyncio.gather(*(_clean_up(executor, settings, name, end=name == id) for name in names))

    async def end(self) -> None:
        """Kill what still runs, remove the working directory, and end the session. May be called again."""
        if self not in self._open:
            return
        del self._open[self]
        with anyio.CancelScope(shield=True):  # another sample may fail, and cancel this one meanwhile
            try:
                processes = await self.executor.processes()
                await self.executor.kill_trees({process.process_id for process in processes})
                await _shell(self.executor, REMOVE, self._place)
            except (ExecServerError, OSError) as error:
                _logger.warning(f"{self.directory} is not removed: {error}")
            finally:
                await self.executor.close()

    async def keep(self) -> None:
        """Leave the session and the working directory, and print how to reach and to remove them."""
        command = (await self.connection()).command
        del self._open[self]
        await _shell(self.executor, 'touch "$1/kept"', self._place)
        await self.executor.detach()
        _show(f"\n{self.directory} is kept. To open a shell there, and to remove it:\n  {command}")
        _show(f"  inspect sandbox cleanup execserver {self.executor.session_id}")

    # -- commands

    async def exec(
        self,
        cmd: list[str],
        input: str | bytes | None = None,  # noqa: A002 - Inspect's name
        cwd: str | None = None,
        env: dict[str, str] | None = None,
        user: str | None = None,
        timeout: int | None = None,  # noqa: ASYNC109 - the daemon ends the command
        timeout_retry: bool = True,
        concurrency: bool = True,
    ) -> ExecResult[str]:
        """Run a command within the sandbox.

        `timeout_retry` has no effect: the time limit is that of the command, which is not run twice. Neither
        has `concurrency`: commands are no processes of the evaluation.
        """
        try:
            with _unavailable():
                await self._check_user(user)
                if cmd and posixpath.basename(cmd[0]) == TOOLS_PROGRAM:
                    env = {**(env or {}), TOOLS_STATE: posixpath.join(self._tools, "state")}
                    if self._policy is not None:
                        started = await self._tools_server(cmd[0], env, network=self._policy.network_allowed)
                        if not started.success or cmd[1:] == ["start-server"]:
                            return started
                result = await self.executor.run(
                    cmd,
                    input=input,
                    cwd=self._path(cwd or "."),
                    env=env,
                    inherit=self._inherit,
                    timeout=timeout,
                    sandbox=self._sandbox,
                    max_output_bytes=SandboxEnvironmentLimits.MAX_EXEC_OUTPUT_SIZE,
                )
        except FileNotFoundError as error:
            return ExecResult(False, NOT_FOUND, "", f"{error}\n")
        stdout, stderr = result.text, result.stderr_text
        if result.timed_out:
            raise CommandTimeoutError(f"Command timed out after {timeout} seconds", stdout + stderr)
        if result.stdout_truncated or result.stderr_truncated:
            raise OutputLimitExceededError(SandboxEnvironmentLimits.MAX_EXEC_OUTPUT_SIZE_STR, stdout + stderr)
        return ExecResult(result.exit_code == 0, result.exit_code, stdout, stderr)

    async def _tools_server(self, program: str, env: dict[str, str], *, network: bool) -> ExecResult[str]:
        """Start the server of Inspect's tools once, in a sandbox that stays until the sample ends."""
        async with self._starting:
            # Without the network there are no sockets. A tool that needs the server reports that by itself.
            if not network or (self._server is not None and self._server.exit_code is None):
                return ExecResult(True, 0, "", "")
            argv = ["sh", "-c", '"$1" start-server || exit; echo started; exec sleep infinity', "sh", program]
            self._server = await self.executor.start(
                argv, cwd=self.directory, env=env, inherit=self._inherit, sandbox=self._sandbox
            )
            printed = []
            async for line in self._server.lines():
                if line == "started":
                    return ExecResult(True, 0, "", "")
                printed.append(line)
            return ExecResult(False, await self._server.wait(), "", "\n".join(printed))

    async def _check_user(self, user: str | None) -> None:
        if user is None:
            return
        if not self._users:
            argv = ["sh", "-c", "id -u; id -un"]
            names = await self.executor.run(argv, cwd=self.directory, sandbox=self._sandbox)
            self._users = names.text.split()
        if user not in self._users:
            raise SandboxUserUnsupportedError(
                f"commands run as the user of the daemon ({', '.join(self._users)}), not as {user!r}: start "
                "one as that user, and name its url in the config of the sandbox"
            )

    async def connection(self, *, user: str | None = None) -> SandboxConnection:
        """A command that opens a shell in the working directory, under the policy of the sample."""
        if self not in self._open:
            raise ConnectionError("the sandbox is not running: its sample has ended")
        await self._check_user(user)
        command = ["execserver", "run", "--url", self.executor.url, "--cwd", self.directory, "--tty"]
        if isinstance(self._policy, ReadOnly | WorkspaceWrite):
            command += ["--sandbox", self._policy.kind, *(["--network"] if self._policy.network else [])]
        if isinstance(self._policy, WorkspaceWrite):
            command += [word for root in self._policy.writable_roots for word in ("--writable", root)]
        return SandboxConnection(type="execserver", command=shlex.join([*command, "--", "bash", "--login"]))

    # -- files

    async def write_file(self, file: str, contents: str | bytes) -> None:
        """Create a file with its parent directories, or replace the content of a file."""
        path = self._path(file)
        data = contents.encode() if isinstance(contents, str) else contents
        whole = len(data) <= ONE_WRITE_BYTES
        with _permission_errors(path):
            await repeated(partial(self._files.write_bytes, path, data if whole else b"", parents=True))
        if not whole:
            argv = ["sh", "-c", 'exec cat > "$1"', "sh", path]
            await self.executor.run(argv, input=data, sandbox=self._sandbox, check=True)

    @overload
    async def read_file(self, file: str, text: Literal[True] = True) -> str: ...

    @overload
    async def read_file(self, file: str, text: Literal[False]) -> bytes: ...

    async def read_file(self, file: str, text: bool = True) -> str | bytes:
        """The content of a file, with unchanged line ends."""
        path, limit = self._path(file), SandboxEnvironmentLimits.MAX_READ_FILE_SIZE
        status = await self._files.stat(path)
        if status.is_dir:
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
        data = b"" if status.size > limit else await self._files.read_bytes(path)
        if max(status.size, len(data)) > limit:
            raise OutputLimitExceededError(SandboxEnvironmentLimits.MAX_READ_FILE_SIZE_STR, None)
        return data.decode() if text else data

    def _path(self, path: str) -> str:
        return posixpath.join(self.directory, path)


def _show(text: str) -> None:
    print(text)  # noqa: T201 - as other sandbox environments do


def _home(executor: Executor) -> str:
    if executor.home is None:
        raise RuntimeError(
            f"the user of the daemon at {executor.url} has no home folder for working directories"
        )
    return executor.home


def _place(executor: Executor, session_id: str = "") -> str:
    """The folder of a sample. Its name is the id of the session, so that a clean-up finds both."""
    return posixpath.join(_home(executor), FOLDER, session_id)


async def _shell(executor: Executor, script: str, place: str) -> None:
    """Make or remove the folder of a sample; within a sandbox if the daemon requires one."""
    sandbox = WorkspaceWrite() if executor.info.get("requireSandbox") else None
    argv = ["sh", "-c", script, "sh", place]
    await executor.run(argv, cwd=_home(executor), sandbox=sandbox, timeout=CLEANUP_SECONDS, check=True)


async def _clean_up(executor: Executor, config: ExecServerSandboxConfig, name: str, *, end: bool) -> None:
    place = _place(executor, name)
    try:
        session = await config.connect(name)
    except SessionLost:
        pass  # it has expired
    except SessionAttached:
        _show(f"{name} is in use by an evaluation, and stays.")
        return
    else:
        # An evaluation may only have lost its connection for a moment.
        if not end and not await executor.fs.exists(posixpath.join(place, "kept")):
            await session.detach()
            _show(f"{name} was in use a moment ago, and stays. `cleanup execserver {name}` removes it.")
            return
        await session.close()
    await _shell(executor, REMOVE, place)
    _show(f"{name} is removed.")


@contextmanager
def _unavailable() -> Iterator[None]:
    """Raise `SandboxUnavailableError` for a failure of the sandbox, and not of the command."""
    try:
        yield
    except PermissionError:
        raise
    except (ConnectionError, CommandNotRun, ExecutorClosed, Refused) as error:
        raise SandboxUnavailableError(str(error)) from error


@contextmanager
def _permission_errors(path: str) -> Iterator[None]:
    """A path that the sandbox keeps read-only is the `PermissionError` that Inspect knows."""
    try:
        yield
    except OSError as error:
        if error.errno != errno.EROFS:
            raise
        raise PermissionError(error.errno, os.strerror(errno.EROFS), path) from error
