"""Workspaces of pydantic-ai at an execserver daemon.

    agent = Agent("anthropic:claude-opus-5-5", capabilities=[ExecServerWorkspace("/srv/app")])

Each operation has a connection and a session of its own, so a backend holds nothing between two operations.
It works on any event loop, and any number of backends and processes may share a workspace.
"""

from __future__ import annotations

import asyncio
import errno
import math
import posixpath
import uuid
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from functools import partial
from typing import Any, NamedTuple, TypeVar

try:
    import pydantic_ai  # noqa: F401
except ImportError as error:
    raise ImportError(
        'execclient.integrations.pydantic_ai needs pydantic-ai: pip install "execclient[pydantic_ai]"'
    ) from error

import anyio
from pydantic_ai import workspaces as api
from pydantic_ai.capabilities import AbstractCapability
from pydantic_ai.tools import AgentDepsT, RunContext
from pydantic_ai.workspaces import CommandResult, FileEntry, WorkspaceRef, WorkspaceUnavailableError

from execclient import (
    Executor,
    FileSystem,
    NotFound,
    ReadOnly,
    Refused,
    WorkspaceWrite,
    arguments,
    connect,
)
from execclient.file_session import repeated
from execclient.govern.sandbox import SandboxPolicy
from execclient.results import RunResult

__all__ = ["ExecServerWorkspace", "ExecServerWorkspaceBackend"]

PROVIDER = "execserver"

MAX_OUTPUT_BYTES = 64 << 20
"""Of each stream of a command, and of both together."""

_PREVIEW_BYTES = 64 << 10
"""Of each stream, in the error for too much output."""

_LIST = """
cd -- "$1" && [ -r . ] || exit 1
for name in * .[!.]* ..?*; do
    if [ -d "$name" ]; then printf 'd%s\\0' "$name"
    elif [ -e "$name" ] || [ -L "$name" ]; then printf -- '-%s\\0' "$name"
    fi
done"""
"""Lists a directory. `fs/readDirectory` leaves out dangling links, which a workspace lists."""

T = TypeVar("T")


class _Opened(NamedTuple):
    executor: Executor
    files: FileSystem
    root: str


@dataclass
class ExecServerWorkspace(AbstractCapability[AgentDepsT]):
    """Gives runs a workspace at an execserver daemon: a folder, with sandboxed commands and files."""

    working_dir: str | None = None
    """The folder, absolute or relative to the daemon's working directory. By default the first operation
    creates a new one in `root`."""
    _: KW_ONLY
    url: str | None = None
    """Of the daemon, as for `execclient.connect`; likewise `token_file`."""
    token_file: str | None = None
    root: str = "."
    """Where new folders are created; by default the daemon's working directory."""
    sandbox: SandboxPolicy | None = field(default_factory=WorkspaceWrite)
    """For commands and files, with the folder as the workspace; None for no sandbox."""
    env: Mapping[str, str] | None = field(default=None, repr=False)
    """Variables for all commands, besides the core of the daemon's: `HOME`, `PATH`, `LANG` and so on."""
    job_seconds: float = 86_400.0
    """How long a job may run on that a command without a sandbox has left behind. At most the daemon's
    `--max-session-ttl` (7 days)."""
    read_only: bool = False
    """Whether to refuse all commands and changes of files, by a `ReadOnlyWorkspace`."""
    id: str | None = "execserver_workspace"
    """Fixed, so that a later one replaces an earlier one; distinct ids keep both."""

    def __post_init__(self) -> None:
        arguments.check_sandbox(self.sandbox)

    @classmethod
    def combine(
        cls, capabilities: Sequence[AbstractCapability[AgentDepsT]]
    ) -> AbstractCapability[AgentDepsT]:
        """The last one, as a whole."""
        return capabilities[-1]

    def get_workspace(
        self, ctx: RunContext[AgentDepsT], *, ref: WorkspaceRef | None
    ) -> api.WorkspaceBackend | None:
        """A backend for a new workspace, or for that of a `ref`; None for that of another provider."""
        if ref is not None and ref.provider != PROVIDER:
            return None
        backend = self.backend(ref)
        return api.ReadOnlyWorkspace(api.Workspace(backend)) if self.read_only else backend

    def backend(self, ref: WorkspaceRef | None = None) -> ExecServerWorkspaceBackend:
        """A backend for use without an agent, without I/O.

        Args:
            ref: a workspace to attach to: `working_dir`, or one that was created in `root`. Another one is
                a `WorkspaceUnavailableError` at the first operation: a `ref` gives access to no other folder.
        """
        return ExecServerWorkspaceBackend(self, ref)


class ExecServerWorkspaceBackend(
    api.WorkspaceBackend, api.SupportsCommands, api.SupportsFilesystem, api.SupportsRealpath
):
    """A folder at a daemon. It is the environment: remove the folder to delete the environment."""

    def __init__(self, settings: ExecServerWorkspace[Any], ref: WorkspaceRef | None = None) -> None:
        self._settings = settings
        self._ref = ref
        self._known = False
        """Whether the settings allow the folder of `_ref`, which existed."""
        self._new_name = f"workspace-{uuid.uuid4().hex[:12]}"
        # A sandbox that limits files ends with its command: then no process is left that needs the session.
        self._keeps = not isinstance(settings.sandbox, ReadOnly | WorkspaceWrite)

    @property
    def ref(self) -> WorkspaceRef | None:
        """The folder, for a later backend of the same settings; None before the first operation."""
        return self._ref

    async def working_dir(self) -> str:
        """The folder: absolute and without links."""

        async def root(opened: _Opened) -> str:
            return opened.root

        return await self._with(root)

    async def run(
        self,
        command: api.WorkspaceCommand,
        *,
        shell: bool = False,
        env: Mapping[str, str] | None = None,
        timeout: float | None = None,  # noqa: ASYNC109 - the command ends, not the call
    ) -> CommandResult:
        """Run a command in the folder, to its end.

        Background processes end with the sandbox of their command; the standard error then says so.

        Raises:
            WorkspaceTimeoutError: the command was killed at `timeout`; the error has its output.
            WorkspaceOutputLimitError: there were more than 64 MiB of output.
            WorkspaceUnavailableError: the folder does not exist, or was removed meanwhile.
        """
        if isinstance(command, str) is not shell:
            raise TypeError("a str needs shell=True, and a sequence of arguments shell=False")
        if timeout is not None and not (math.isfinite(timeout) and timeout > 0):
            raise ValueError(f"timeout is a positive number of seconds or None, not {timeout!r}")
        argv = ["/bin/sh", "-c", command] if isinstance(command, str) else list(command)
        if not argv:
            raise ValueError("command is empty")

        async def run(opened: _Opened) -> CommandResult:
            executor, root = opened.executor, opened.root
            try:
                result = await self._run(opened, argv, env, timeout)
            except (FileNotFoundError, PermissionError) as error:
                await _check(executor, root)
                missing = isinstance(error, FileNotFoundError)  # as a shell reports it
                return CommandResult(exit_code=127 if missing else 126, stdout="", stderr=f"{error}\n")
            if self._keeps:
                # Only now: the session of a client that dies during the command ends soon, with the command.
                await executor.call("session/setTtl", {"ttlMs": round(self._settings.job_seconds * 1000)})
            # The command may have ended because its folder was removed.
            await _check(executor, root)
            return _command_result(result, timeout)

        return await self._with(run, is_command=True)

    async def read_bytes(self, path: str) -> bytes:
        """The content of a regular file."""
        return await self._with(partial(_read, path), path)

    async def write_bytes(self, path: str, data: bytes) -> None:
        """Write a file in place; missing folders above it are created."""
        await self._with(partial(_write, path, data), path)

    async def stat(self, path: str) -> FileEntry:
        """The status of a path; links are followed."""

        async def stat(opened: _Opened) -> FileEntry:
            status = await opened.files.stat(path)
            size = status.size if status.is_file else None
            return FileEntry(name=posixpath.basename(path), path=path, is_dir=status.is_dir, size=size)

        return await self._with(stat, path)

    async def list_dir(self, path: str) -> Sequence[FileEntry]:
        """The entries of a directory, by name, without sizes."""

        async def names(opened: _Opened) -> Sequence[FileEntry]:
            if not (await opened.files.stat(path)).is_dir:
                raise NotADirectoryError(errno.ENOTDIR, "Not a directory", path)
            result = await self._run(opened, ["/bin/sh", "-c", _LIST, "sh", path])
            if result.exit_code:
                raise PermissionError(errno.EACCES, result.stderr_text.strip() or "Permission denied", path)
            # File names are bytes, which `surrogateescape` keeps.
            found = result.stdout.decode(errors="surrogateescape").split("\0")[:-1]
            return [
                FileEntry(name=name, path=posixpath.join(path, name), is_dir=kind == "d", size=None)
                for name, kind in sorted((each[1:], each[0]) for each in found)
            ]

        return await self._with(names, path)

    async def make_dir(self, path: str) -> None:
        """Create a directory and those above it."""
        await self._with(lambda opened: opened.files.mkdir(path, parents=True), path)

    async def remove(self, path: str) -> None:
        """Remove a file, a link, or a directory with its content.

        Raises:
            ValueError: it is the folder of the workspace, or one above it.
        """
        was_there = False

        async def remove(opened: _Opened) -> None:
            nonlocal was_there
            folder, name = posixpath.split(posixpath.normpath(path))
            target = posixpath.join(await opened.files.resolve(folder), name)
            if f"{opened.root}/".startswith(f"{target.rstrip('/')}/"):
                raise ValueError(f"{path} is the workspace or above it, and is not removed")
            missing_ok = was_there  # an attempt whose connection was lost may have removed it
            was_there = was_there or await _exists(target, opened)
            await opened.files.remove(target, recursive=True, missing_ok=missing_ok)

        await self._with(remove, path)

    async def exists(self, path: str) -> bool:
        """Whether a path exists; links are followed."""
        return await self._with(partial(_exists, path), path)

    async def realpath(self, path: str) -> str:
        """The path without links, of which parts may be missing; then it needs `realpath -m` (coreutils)."""

        async def resolve(opened: _Opened) -> str:
            try:
                if ".." not in path.split("/"):  # in a request `..` would mean the text before it
                    return await opened.files.resolve(path)
            except OSError:
                pass
            result = await self._run(opened, ["realpath", "-m", "--", path])
            if result.exit_code:
                raise OSError(errno.EINVAL, result.stderr_text.strip(), path)
            return result.stdout.decode(errors="surrogateescape").removesuffix("\n")

        return await self._with(resolve, path)

    async def _run(
        self,
        opened: _Opened,
        argv: Sequence[str],
        env: Mapping[str, str] | None = None,
        seconds: float | None = None,
    ) -> RunResult:
        return await opened.executor.run(
            argv,
            cwd=opened.root,
            env={**(self._settings.env or {}), **(env or {})},
            inherit="core",
            timeout=seconds,
            sandbox=self._settings.sandbox,
            max_output_bytes=MAX_OUTPUT_BYTES,
        )

    async def _with(
        self, work: Callable[[_Opened], Awaitable[T]], path: str = "/", *, is_command: bool = False
    ) -> T:
        """Do something over a connection of its own.

        Work on files is done again after a lost connection: the result is the same. Commands are not.
        """
        if not posixpath.isabs(path):
            raise ValueError(f"path must be absolute, not {path!r}")

        async def working() -> T:
            settings = self._settings
            keep = is_command and self._keeps
            async with connect(settings.url, token_file=settings.token_file, keep=keep) as executor:
                opened = await repeated(partial(self._open, executor))
                if is_command:
                    return await work(opened)
                return await repeated(partial(work, opened))

        try:
            return await _in_a_task(working())
        except OSError as error:
            if error.errno == errno.EROFS:
                reason = f"{path}: the sandbox does not allow writing here"
                raise api.WorkspaceReadOnlyError(reason) from error
            raise

    async def _open(self, executor: Executor) -> _Opened:
        """The folder, which the first operation creates.

        Raises:
            WorkspaceUnavailableError: it does not exist, or is not one that these settings allow.
        """
        if not self._known:
            self._ref = await self._find(executor.fs)
            self._known = True
        assert self._ref is not None
        root, sandbox = self._ref.id, self._settings.sandbox
        await _check(executor, root)
        files = executor.files(sandbox, workspace=root)
        return _Opened(executor, files, root)

    async def _find(self, files: FileSystem) -> WorkspaceRef:
        folder, ref = self._settings.working_dir, self._ref
        try:
            if folder is None:
                parent = await files.resolve(self._settings.root)
                folder = posixpath.join(parent, self._new_name)
                if ref is None:
                    await files.mkdir(folder, parents=True)
                elif posixpath.dirname(ref.id) == parent:
                    folder = ref.id
            found = WorkspaceRef(provider=PROVIDER, id=await files.resolve(folder))
        except NotFound as error:
            raise WorkspaceUnavailableError(f"there is no folder {error.path} at the daemon") from error
        if ref not in (None, found):
            raise WorkspaceUnavailableError(f"{ref} is not a workspace of these settings")
        return found


async def _read(path: str, opened: _Opened) -> bytes:
    try:
        return await opened.files.read_bytes(path)
    except Refused:
        raise await _not_a_file(path, opened) from None


async def _write(path: str, data: bytes, opened: _Opened) -> None:
    try:
        await opened.files.write_bytes(path, data, parents=True)
    except Refused:
        raise await _not_a_file(path, opened) from None


async def _exists(path: str, opened: _Opened) -> bool:
    try:
        return await opened.files.exists(path)
    except OSError as error:
        if error.errno in (errno.ENOTDIR, errno.ELOOP):
            return False
        raise


async def _not_a_file(path: str, opened: _Opened) -> OSError:
    if await opened.files.is_dir(path):
        return IsADirectoryError(errno.EISDIR, "Is a directory", path)
    return OSError(errno.EINVAL, "Not a regular file", path)


def _command_result(result: RunResult, seconds: float | None) -> CommandResult:
    if result.timed_out:
        message = f"the command was killed after its time limit of {seconds:g} s"
        raise api.WorkspaceTimeoutError(message, stdout=result.text, stderr=result.stderr_text)
    if result.aggregated_truncated:
        limit = MAX_OUTPUT_BYTES
        message = f"more than {limit >> 20} MiB of output: redirect it to a file, and read parts of that"
        previews = (each[:_PREVIEW_BYTES] for each in (result.stdout, result.stderr))
        stdout, stderr = (each.decode(errors="replace") for each in previews)
        raise api.WorkspaceOutputLimitError(message, limit=limit, stdout=stdout, stderr=stderr)
    stderr = result.stderr_text
    if result.ended_with_sandbox:
        names = ", ".join(result.ended_with_sandbox["names"])
        stderr += f"\nexecserver: background processes ended with the sandbox of this command: {names}\n"
    return CommandResult(exit_code=result.exit_code, stdout=result.text, stderr=stderr)


async def _check(executor: Executor, root: str) -> None:
    if not await executor.fs.is_dir(root):
        raise WorkspaceUnavailableError(f"the folder {root} of the workspace is gone")


async def _in_a_task(work: Coroutine[None, None, T]) -> T:
    """Cancel work once. A cancelled scope of anyio also cancels each later await, such as those of a kill."""
    task = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        task.cancel()
        with anyio.CancelScope(shield=True):
            await asyncio.wait({task})
        raise
