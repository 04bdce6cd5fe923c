"""A sandbox for deepagents at an execserver daemon.

    with ExecserverSandbox(connect(), root_dir="/srv/app") as sandbox:
        agent = create_deep_agent(model="anthropic:claude-opus-5-5", backend=sandbox)

Each operation is one coroutine on the loop of the sandbox's own thread. The methods of deepagents wait for
it, and their asynchronous forms await it from any event loop.
"""

from __future__ import annotations

import errno
import io
import posixpath
import warnings
from base64 import b64encode
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from types import TracebackType
from typing import Self, TypeVar

from deepagents.backends.local_shell import DEFAULT_EXECUTE_TIMEOUT
from deepagents.backends.protocol import (
    DEFAULT_GREP_TIMEOUT,
    FILE_NOT_FOUND,
    INVALID_PATH,
    IS_DIRECTORY,
    PERMISSION_DENIED,
    DeleteResult,
    EditResult,
    ExecuteResponse,
    FileData,
    FileDownloadResponse,
    FileUploadResponse,
    GlobResult,
    GrepMatch,
    GrepResult,
    LsResult,
    ReadResult,
    WriteResult,
)
from deepagents.backends.sandbox import MAX_BINARY_BYTES, MAX_OUTPUT_BYTES, TRUNCATION_MSG, BaseSandbox

# `_get_backend_read_file_type` is not public, but there is no other way: the tool `read_file` shows a file by
# the type that this gives to its name, so a backend has to return base64 for just these. LangSmith's does so.
from deepagents.backends.utils import (
    EMPTY_OLD_STRING_ERROR,
    _get_backend_read_file_type,
    normalize_read_bounds,
)

from execclient import (
    CallFailed,
    CommandNotRun,
    Executor,
    NotFound,
    OutcomeUnknown,
    OutputGap,
    RunResult,
    TransferFailed,
    WorkspaceWrite,
    connect,
)
from execclient.arguments import AnyPath, Sandbox
from execclient.loop_thread import LoopThread
from execclient.search import find, search

__all__ = ["ExecserverSandbox"]

MAX_COMMAND_BYTES = 10 << 20
MAX_GREP_MATCHES, MAX_GREP_BYTES = 10_000, 4 << 20
WHOLE_FILE_BYTES = 4 << 20
"""Of larger text files a page is read by the script of deepagents, which needs `python3` at the executor."""

_ATTEMPTS = 20
"""Of what may be done twice, if connections are lost."""

_FAILURES = (CallFailed, TransferFailed, ValueError)
"""What a model can do something about. A lost session is an error of the program."""

T = TypeVar("T")


class ExecserverSandbox(BaseSandbox):
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
        self._thread = LoopThread(lambda: opening)
        self._executor: Executor = self._thread.enter()
        self._sandbox = sandbox
        self._timeout = timeout
        self._max_output_bytes = max_output_bytes
        self._env = dict(env or {})
        self._inherit_env = inherit_env
        try:
            self.root_dir = posixpath.join(self._executor.cwd, root_dir or "")
            files = self._executor.fs
            self._files = files if sandbox is None else files.confined(sandbox, workspace=self.root_dir)
            if not self._thread.call(lambda: self._files.stat(self.root_dir)).is_dir:
                raise NotADirectoryError(errno.ENOTDIR, "root_dir is not a folder", self.root_dir)
        except BaseException:
            self._thread.close()
            raise

    @property
    def id(self) -> str:
        """The session, for `connect(session_id=…)`."""
        return self._executor.session_id

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

    # -- commands

    def execute(self, command: str, *, timeout: int | None = None) -> ExecuteResponse:
        """Run a command. One that is over its time is killed with all that it started."""
        return self._thread.call(lambda: self._execute(command, timeout))

    async def aexecute(self, command: str, *, timeout: int | None = None) -> ExecuteResponse:  # noqa: ASYNC109
        """As `execute`. Cancelling kills the command."""
        return await self._thread.call_async(lambda: self._execute(command, timeout))

    async def _execute(self, command: str, timeout: int | None) -> ExecuteResponse:  # noqa: ASYNC109
        seconds = self._timeout if timeout is None else timeout
        lost = False
        try:
            result = await self._executor.run(
                ["sh", "-c", command],
                cwd=self.root_dir,
                env=self._env,
                inherit="all" if self._inherit_env else "core",
                timeout=seconds or None,
                sandbox=self._sandbox,
                max_output_bytes=self._max_output_bytes,
            )
        except OutputGap as gap:
            if gap.result is None:
                raise
            result, lost = gap.result, True
        except (CallFailed, CommandNotRun) as error:
            return ExecuteResponse(output=f"Error: the command was not run: {error}")
        output = _output(result, self._max_output_bytes)
        if result.timed_out:
            output += f"\nError: Command timed out after {seconds} seconds, and was killed."
        return ExecuteResponse(output, result.exit_code, lost or bool(result.aggregated_truncated))

    # -- files

    def ls(self, path: str) -> LsResult:
        """The names in a folder, without dangling links."""
        return self._thread.call(lambda: self._ls(path))

    async def als(self, path: str) -> LsResult:
        """As `ls`."""
        return await self._thread.call_async(lambda: self._ls(path))

    async def _ls(self, path: str) -> LsResult:
        try:
            folder = self._path(path)
            entries = await self._files.iterdir(folder)
        except _FAILURES as error:
            return LsResult(error=f"Path '{path}': {_reason(error)}")
        names = sorted((posixpath.join(folder, entry.name), entry.is_dir) for entry in entries)
        return LsResult(entries=[{"path": _shown(name), "is_dir": is_dir} for name, is_dir in names])

    def read(self, file_path: str, offset: int = 0, limit: int = 2000) -> ReadResult:
        """A page of a text file, or a small binary file in base64."""
        result = self._thread.call(lambda: self._read(file_path, offset, limit))
        return super().read(file_path, offset, limit) if result is None else result

    async def aread(self, file_path: str, offset: int = 0, limit: int = 2000) -> ReadResult:
        """As `read`."""
        result = await self._thread.call_async(lambda: self._read(file_path, offset, limit))
        return await super().aread(file_path, offset, limit) if result is None else result

    async def _read(self, file_path: str, offset: int, limit: int) -> ReadResult | None:
        """None for a large text file."""
        binary = _get_backend_read_file_type(file_path) != "text"
        try:
            path = self._path(file_path)
            status = await self._files.stat(path)
            if not status.is_file:
                return ReadResult(error=f"File '{file_path}': not_a_file")
            if status.size > (MAX_BINARY_BYTES if binary else WHOLE_FILE_BYTES):
                return _too_large(file_path) if binary else None
            data = await self._files.read_bytes(path)
        except _FAILURES as error:
            return ReadResult(error=f"File '{file_path}': {_reason(error)}")
        if not binary:
            try:
                return _page(file_path, data.decode(), *normalize_read_bounds(offset, limit))
            except UnicodeDecodeError:
                pass
        if len(data) > MAX_BINARY_BYTES:
            return _too_large(file_path)
        return ReadResult(file_data=FileData(content=b64encode(data).decode(), encoding="base64"))

    def write(self, file_path: str, content: str) -> WriteResult:
        """Create or replace a file, with the folders above it. It appears whole or not at all."""
        return self._thread.call(lambda: self._write(file_path, content))

    async def awrite(self, file_path: str, content: str) -> WriteResult:
        """As `write`."""
        return await self._thread.call_async(lambda: self._write(file_path, content))

    async def _write(self, file_path: str, content: str) -> WriteResult:
        try:
            await self._put(self._path(file_path), content.encode())
        except _FAILURES as error:
            return WriteResult(error=f"Failed to write file '{file_path}': {_explained(error)}")
        return WriteResult(path=file_path)

    def edit(
        self,
        file_path: str,
        old_string: str,
        new_string: str,
        replace_all: bool = False,
    ) -> EditResult:
        """Replace a text in a file. The file keeps its line ends, and is replaced as a whole."""
        return self._thread.call(lambda: self._edit(file_path, old_string, new_string, replace_all))

    async def aedit(
        self,
        file_path: str,
        old_string: str,
        new_string: str,
        replace_all: bool = False,
    ) -> EditResult:
        """As `edit`."""
        return await self._thread.call_async(
            lambda: self._edit(file_path, old_string, new_string, replace_all)
        )

    async def _edit(self, file_path: str, old: str, new: str, replace_all: bool) -> EditResult:
        if not old:
            return EditResult(error=EMPTY_OLD_STRING_ERROR)
        try:
            path = self._path(file_path)
            text = (await self._files.read_bytes(path)).decode()
            # `read` returns CRLF as LF.
            ends = next((ends for ends in (str, _crlf, _lf) if ends(old) in text), None)
            if ends is None:
                return EditResult(error=f"Error: String not found in file: '{old}'")
            count = text.count(ends(old))
            if count > 1 and not replace_all:
                hint = "Use replace_all=True to replace all occurrences."
                return EditResult(error=f"Error: String '{old}' appears multiple times ({count}). {hint}")
            await self._put(path, text.replace(ends(old), ends(new)).encode())
        except UnicodeDecodeError:
            return EditResult(error=f"Error: File '{file_path}' is not a text file")
        except NotFound:
            return EditResult(error=f"Error: File '{file_path}' not found")
        except _FAILURES as error:
            return EditResult(error=f"Error editing file '{file_path}': {_explained(error)}")
        return EditResult(path=file_path, occurrences=count)

    def delete(self, file_path: str) -> DeleteResult:
        """Delete a file, or a folder with all that is in it."""
        return self._thread.call(lambda: self._delete(file_path))

    async def adelete(self, file_path: str) -> DeleteResult:
        """As `delete`."""
        return await self._thread.call_async(lambda: self._delete(file_path))

    async def _delete(self, file_path: str) -> DeleteResult:
        try:
            path = self._path(file_path)
            exists = await self._files.exists(path)
            try:
                await self._files.remove(path, recursive=True)
            except OutcomeUnknown:
                await _again(partial(self._files.remove, path, recursive=True, missing_ok=exists))
        except NotFound:
            return DeleteResult(error=f"Error: '{file_path}' not found")
        except _FAILURES as error:
            return DeleteResult(error=f"Error deleting file '{file_path}': {_explained(error)}")
        return DeleteResult(path=file_path)

    def upload_files(self, files: list[tuple[str, bytes]]) -> list[FileUploadResponse]:
        """Write files, each with the folders above it. Paths are absolute."""
        return self._thread.call(lambda: self._upload(files))

    async def aupload_files(self, files: list[tuple[str, bytes]]) -> list[FileUploadResponse]:
        """As `upload_files`."""
        return await self._thread.call_async(lambda: self._upload(files))

    async def _upload(self, files: list[tuple[str, bytes]]) -> list[FileUploadResponse]:
        responses = []
        for path, content in files:
            response = FileUploadResponse(path, None if _is_absolute(path) else INVALID_PATH)
            if response.error is None:
                try:
                    await self._put(path, content)
                except _FAILURES as error:
                    response.error = _reason(error)
            responses.append(response)
        return responses

    def download_files(self, paths: list[str]) -> list[FileDownloadResponse]:
        """The content of files. Paths are absolute."""
        return self._thread.call(lambda: self._download(paths))

    async def adownload_files(self, paths: list[str]) -> list[FileDownloadResponse]:
        """As `download_files`."""
        return await self._thread.call_async(lambda: self._download(paths))

    async def _download(self, paths: list[str]) -> list[FileDownloadResponse]:
        responses = []
        for path in paths:
            response = FileDownloadResponse(path, error=None if _is_absolute(path) else INVALID_PATH)
            if response.error is None:
                try:
                    if (await self._files.stat(path)).is_dir:
                        response.error = IS_DIRECTORY
                    else:
                        response.content = await self._files.read_bytes(path)
                except _FAILURES as error:
                    response.error = _reason(error)
            responses.append(response)
        return responses

    # -- searches

    def grep(
        self, pattern: str, path: str | None = None, glob: str | None = None, *, max_count: int | None = None
    ) -> GrepResult:
        """Search for a text, as `execclient.search.search`: by default in `root_dir`, and 10,000 lines."""
        return self._thread.call(lambda: self._grep(pattern, path, glob, max_count))

    async def agrep(
        self, pattern: str, path: str | None = None, glob: str | None = None, *, max_count: int | None = None
    ) -> GrepResult:
        """As `grep`."""
        return await self._thread.call_async(lambda: self._grep(pattern, path, glob, max_count))

    async def _grep(
        self, pattern: str, path: str | None, glob: str | None, max_count: int | None
    ) -> GrepResult:
        try:
            found = await search(
                self._executor,
                pattern,
                self._path(path or "."),
                glob=glob,
                exclude_dirs=self.grep_exclude_dirs,
                sandbox=self._sandbox,
                workspace=self.root_dir,
                max_matches=MAX_GREP_MATCHES if max_count is None else max_count,
                max_bytes=MAX_GREP_BYTES,
                timeout=DEFAULT_GREP_TIMEOUT,
            )
        except (*_FAILURES, CommandNotRun) as error:
            return GrepResult(error=f"Path '{path or '.'}': {_reason(error)}")
        matches = [GrepMatch(path=_shown(path), line=line, text=text) for path, line, text in found.matches]
        return GrepResult(matches=matches, truncated=found.truncated is not None)

    def glob(self, pattern: str, path: str | None = None) -> GlobResult:
        """Find files by name, as `execclient.search.find`. By default in `root_dir`."""
        return self._thread.call(lambda: self._glob(pattern, path))

    async def aglob(self, pattern: str, path: str | None = None) -> GlobResult:
        """As `glob`."""
        return await self._thread.call_async(lambda: self._glob(pattern, path))

    async def _glob(self, pattern: str, path: str | None) -> GlobResult:
        try:
            found = await find(
                self._executor,
                pattern,
                self._path(path or "."),
                sandbox=self._sandbox,
                workspace=self.root_dir,
                timeout=DEFAULT_GREP_TIMEOUT,
            )
        except (*_FAILURES, NotADirectoryError) as error:
            return GlobResult(error=f"Path '{path or '.'}': {_reason(error)}")
        return GlobResult(
            matches=[{"path": _shown(path), "is_dir": False} for path in found.paths],
            truncated=bool(found.truncated or found.unread),
            truncation_reason="budget" if found.truncated else "unreadable" if found.unread else None,
        )

    # -- parts of these

    def _path(self, path: str) -> str:
        return posixpath.join(self.root_dir, path)

    async def _put(self, path: str, content: bytes) -> None:
        async def put() -> None:
            try:
                await self._files.upload(io.BytesIO(content), path)
            except NotFound:
                await self._files.mkdir(posixpath.dirname(path), parents=True)
                await self._files.upload(io.BytesIO(content), path)

        await _again(put)


async def _again(act: Callable[[], Awaitable[T]]) -> T:
    """The result of what may be done twice, which is done again after a lost connection."""
    for _ in range(_ATTEMPTS - 1):
        try:
            return await act()
        except OutcomeUnknown:
            continue
    return await act()


def _output(result: RunResult, limit: int) -> str:
    """Both streams in the order in which they were read. A notice stands for what was left out."""
    data = result.aggregated
    if not result.aggregated_truncated:
        return data.decode("utf-8", "replace")
    head = limit - limit // 2
    notice = f"\n... [{result.aggregated_truncated} bytes left out] ...\n"
    return data[:head].decode("utf-8", "replace") + notice + data[head:].decode("utf-8", "replace")


def _page(file_path: str, text: str, offset: int, limit: int) -> ReadResult:
    """Some lines, as the script of deepagents returns them: ends are LF, and none is at the end."""
    if not text:
        return ReadResult(file_data=FileData(content="", encoding="utf-8"))
    if limit == 0:
        return ReadResult(file_data=FileData(content="", encoding="utf-8"), no_lines_requested=True)
    lines = text.replace("\r\n", "\n").replace("\r", "\n").removesuffix("\n").split("\n")
    if offset >= len(lines):
        return ReadResult(
            error=f"File '{file_path}': Line offset {offset} exceeds file length ({len(lines)} lines)"
        )
    content = "\n".join(lines[offset : offset + limit])
    end = min(offset + limit, len(lines))
    room = MAX_OUTPUT_BYTES - len(TRUNCATION_MSG.encode())
    encoded = content.encode()
    if len(encoded) > room:
        content = encoded[:room].decode(errors="ignore")
        # The next page begins with the line that is cut here, unless it is the only one.
        end = offset + (content.count("\n") or 1)
        content += TRUNCATION_MSG
    return ReadResult(
        file_data=FileData(content=content, encoding="utf-8"),
        total_lines=len(lines),
        start_line=offset + 1,
        end_line=end,
        next_offset=end if end < len(lines) else None,
    )


def _too_large(file_path: str) -> ReadResult:
    return ReadResult(
        error=f"File '{file_path}': Binary file exceeds maximum preview size of {MAX_BINARY_BYTES} bytes"
    )


def _reason(error: Exception) -> str:
    """The word of deepagents for a failure, else its text."""
    if isinstance(error, NotFound):
        return FILE_NOT_FOUND
    if isinstance(error, PermissionError) or (isinstance(error, OSError) and error.errno == errno.EROFS):
        return PERMISSION_DENIED
    if isinstance(error, IsADirectoryError):
        return IS_DIRECTORY
    if isinstance(error, NotADirectoryError):
        return "not_a_directory"
    return str(error)


def _explained(error: Exception) -> str:
    reason = _reason(error)
    return reason if reason == str(error) else f"{reason}: {error}"


def _is_absolute(path: str) -> bool:
    return path.startswith("/") and "\0" not in path


def _shown(path: str) -> str:
    """A path for a model: a name that is not UTF-8 would fail in its request."""
    return path.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def _crlf(text: str) -> str:
    return _lf(text).replace("\n", "\r\n")


def _lf(text: str) -> str:
    return text.replace("\r\n", "\n")
