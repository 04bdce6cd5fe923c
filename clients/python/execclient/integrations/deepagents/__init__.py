"""A sandbox for deepagents at an execserver daemon.

    with ExecServerSandbox(connect(), root_dir="/srv/app") as sandbox:
        agent = create_deep_agent(model="anthropic:claude-opus-5-5", backend=sandbox)

Each operation is one coroutine on the loop of the sandbox's own thread (`operations`). The methods of
deepagents wait for it, and their asynchronous forms await it from any event loop.
"""

from __future__ import annotations

try:
    import deepagents  # noqa: F401
except ImportError as error:
    raise ImportError(
        'execclient.integrations.deepagents needs deepagents: pip install "execclient[deepagents]"'
    ) from error

import errno
import functools
import posixpath
import warnings
from collections.abc import Callable, Coroutine, Mapping
from types import TracebackType
from typing import Any, Concatenate, ParamSpec, Self, TypeVar

from deepagents.backends.local_shell import DEFAULT_EXECUTE_TIMEOUT
from deepagents.backends.protocol import ReadResult
from deepagents.backends.sandbox import BaseSandbox

from execclient import Executor, WorkspaceWrite, connect
from execclient.arguments import AnyPath, Sandbox
from execclient.integrations.deepagents.operations import Operations
from execclient.loop_thread import LoopThread

__all__ = ["ExecServerSandbox"]

MAX_COMMAND_BYTES = 10 << 20

P = ParamSpec("P")
R = TypeVar("R")


def _blocking(
    operation: Callable[Concatenate[Operations, P], Coroutine[Any, Any, R]],
) -> Callable[Concatenate[Any, P], R]:
    """The method with the arguments of an operation that waits for its result."""

    @functools.wraps(operation)
    def call(self: ExecServerSandbox, /, *args: P.args, **kwargs: P.kwargs) -> R:
        return self._thread.call(lambda: operation(self._operations, *args, **kwargs))

    return call


def _awaiting(
    operation: Callable[Concatenate[Operations, P], Coroutine[Any, Any, R]],
) -> Callable[Concatenate[Any, P], Coroutine[Any, Any, R]]:
    """The same, to be awaited on any event loop. Cancelling cancels the operation, and kills its command."""

    @functools.wraps(operation)
    async def call(self: ExecServerSandbox, /, *args: P.args, **kwargs: P.kwargs) -> R:
        return await self._thread.call_async(lambda: operation(self._operations, *args, **kwargs))

    return call


class ExecServerSandbox(BaseSandbox):
    """A folder at a daemon, with its commands and files, for `create_deep_agent(backend=…)`.

    Paths are those of the executor's machine; relative ones begin at `root_dir`. Commands are run by `sh`.

    Args:
        connection: how to connect, with all options of `execclient.connect`, and not entered yet; by default
            to the default daemon. `connect(keep=True, ttl=86400)` lets commands run on after the end of this
            program. `connect(session_id=sandbox.id, keep=True)` reattaches.
        root_dir: the working directory of commands, and the workspace of `sandbox`; it must exist. By default
            the daemon's working directory.
        sandbox: for commands and files: a policy of execclient, or None for no limits.
        timeout: seconds for a command; `execute(…, timeout=…)` overrides it, 0 sets no limit.
        max_output_bytes: output of a command that is returned: half from the beginning, half from the end.
        env: variables for commands.
        inherit_env: inherit all variables of the daemon, and not only its core (`HOME`, `PATH` and so on).

    Raises:
        ConnectionFailed: the connection failed.
        SessionLost: there is no such session to reattach to.
        NotFound, NotADirectoryError: `root_dir`.
    """

    def __init__(
        self,
        connection: connect | None = None,
        *,
        root_dir: AnyPath | None = None,
        sandbox: Sandbox | None = WorkspaceWrite(),  # noqa: B008 - a value that does not change
        timeout: int = DEFAULT_EXECUTE_TIMEOUT,
        max_output_bytes: int = MAX_COMMAND_BYTES,
        env: Mapping[str, str] | None = None,
        inherit_env: bool = False,
    ) -> None:
        opening = connect() if connection is None else connection
        if not isinstance(opening, connect):
            raise TypeError(f"connection is connect(URL, …) of execclient, not {opening!r}")
        self._thread: LoopThread[Executor] = LoopThread(lambda: opening)
        executor = self._thread.enter()
        try:
            root = posixpath.join(executor.cwd, root_dir or "")
            self._operations = Operations(
                executor,
                executor.files(sandbox, workspace=root),
                sandbox,
                root,
                timeout,
                max_output_bytes,
                dict(env or {}),
                inherit_env,
                self.grep_exclude_dirs,
            )
            if not self._thread.call(lambda: executor.fs.stat(root)).is_dir:
                raise NotADirectoryError(errno.ENOTDIR, "root_dir is not a folder", root)
        except BaseException:
            self._thread.close()
            raise

    @property
    def id(self) -> str:
        """The session, for `connect(session_id=…)`."""
        return self._operations.executor.session_id

    def close(self) -> None:
        """End the session and kill its commands, unless the connection was told to `keep` them."""
        self._thread.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __del__(self) -> None:
        thread: LoopThread[Executor] | None = getattr(self, "_thread", None)
        if thread is not None and not thread.closed:
            warnings.warn(f"{self!r} was not closed", ResourceWarning, stacklevel=2, source=self)
            thread.request_close()

    execute = _blocking(Operations.execute)
    aexecute = _awaiting(Operations.execute)
    ls = _blocking(Operations.ls)
    als = _awaiting(Operations.ls)
    write = _blocking(Operations.write)
    awrite = _awaiting(Operations.write)
    edit = _blocking(Operations.edit)
    aedit = _awaiting(Operations.edit)
    delete = _blocking(Operations.delete)
    adelete = _awaiting(Operations.delete)
    upload_files = _blocking(Operations.upload_files)
    aupload_files = _awaiting(Operations.upload_files)
    download_files = _blocking(Operations.download_files)
    adownload_files = _awaiting(Operations.download_files)
    grep = _blocking(Operations.grep)
    agrep = _awaiting(Operations.grep)
    glob = _blocking(Operations.glob)
    aglob = _awaiting(Operations.glob)

    def read(self, file_path: str, offset: int = 0, limit: int = 2000) -> ReadResult:
        """A page of a text file, or a small binary file in base64."""
        result = self._thread.call(lambda: self._operations.read(file_path, offset, limit))
        return super().read(file_path, offset, limit) if result is None else result

    async def aread(self, file_path: str, offset: int = 0, limit: int = 2000) -> ReadResult:
        """As `read`."""
        result = await self._thread.call_async(lambda: self._operations.read(file_path, offset, limit))
        return await super().aread(file_path, offset, limit) if result is None else result
