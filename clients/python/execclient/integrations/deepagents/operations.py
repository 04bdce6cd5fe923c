"""The operations of a sandbox for deepagents, as coroutines on the loop of its executor."""

from __future__ import annotations

import io
import posixpath
from base64 import b64encode
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

from deepagents.backends.protocol import (
    DEFAULT_GREP_TIMEOUT,
    INVALID_PATH,
    IS_DIRECTORY,
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
from deepagents.backends.sandbox import MAX_BINARY_BYTES

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
    FileSystem,
    NotFound,
    OutcomeUnknown,
    OutputGap,
    TransferFailed,
    Unsupported,
)
from execclient.arguments import Sandbox
from execclient.file_session import repeated
from execclient.integrations.deepagents.answers import explained, output_text, page, reason, shown, too_large
from execclient.search import find, search

MAX_GREP_MATCHES, MAX_GREP_BYTES = 10_000, 4 << 20
WHOLE_FILE_BYTES = 4 << 20
"""Of larger text files a page is read by the script of deepagents, which needs `python3` at the executor."""

_FAILURES = (CallFailed, TransferFailed, ValueError)
"""Failures that are reported to the model. A lost session is an error of the program."""

_SEARCH_FAILURES = (*_FAILURES, CommandNotRun, NotADirectoryError, Unsupported)


@dataclass(frozen=True, slots=True)
class Operations:
    """The methods of a backend, under the names of deepagents. Fields are those of `ExecServerSandbox`."""

    executor: Executor
    files: FileSystem
    """Within `sandbox`."""
    sandbox: Sandbox | None
    root_dir: str
    timeout: int
    max_output_bytes: int
    env: Mapping[str, str]
    inherit_env: bool
    exclude_dirs: tuple[str, ...]
    """Names of folders that `grep` does not enter."""

    async def execute(self, command: str, *, timeout: int | None = None) -> ExecuteResponse:  # noqa: ASYNC109 - the command ends, with a result
        """Run a command in the folder, by `sh`. Over its time it is killed with all that it started."""
        seconds = self.timeout if timeout is None else timeout
        lost = False
        try:
            result = await self.executor.run(
                ["sh", "-c", command],
                cwd=self.root_dir,
                env=self.env,
                inherit="all" if self.inherit_env else "core",
                timeout=seconds or None,
                sandbox=self.sandbox,
                max_output_bytes=self.max_output_bytes,
            )
        except OutputGap as gap:
            if gap.result is None:
                raise
            result, lost = gap.result, True
        except (CallFailed, CommandNotRun) as error:
            return ExecuteResponse(output=f"Error: the command was not run: {error}")
        output = output_text(result, self.max_output_bytes)
        if result.timed_out:
            output += f"\nError: Command timed out after {seconds} seconds, and was killed."
        return ExecuteResponse(output, result.exit_code, lost or bool(result.aggregated_truncated))

    async def ls(self, path: str) -> LsResult:
        """The names in a folder, without dangling links."""
        try:
            folder = self._path(path)
            entries = await self.files.iterdir(folder)
        except _FAILURES as error:
            return LsResult(error=f"Path '{path}': {reason(error)}")
        names = sorted((posixpath.join(folder, entry.name), entry.is_dir) for entry in entries)
        return LsResult(entries=[{"path": shown(name), "is_dir": is_dir} for name, is_dir in names])

    async def read(self, file_path: str, offset: int = 0, limit: int = 2000) -> ReadResult | None:
        """A page of a text file, or a small binary file in base64; None for a large text file."""
        binary = _get_backend_read_file_type(file_path) != "text"
        try:
            path = self._path(file_path)
            status = await self.files.stat(path)
            if not status.is_file:
                return ReadResult(error=f"File '{file_path}': not_a_file")
            if status.size > (MAX_BINARY_BYTES if binary else WHOLE_FILE_BYTES):
                return too_large(file_path) if binary else None
            data = await self.files.read_bytes(path)
        except _FAILURES as error:
            return ReadResult(error=f"File '{file_path}': {reason(error)}")
        if not binary:
            try:
                return page(file_path, data.decode(), *normalize_read_bounds(offset, limit))
            except UnicodeDecodeError:
                pass
        if len(data) > MAX_BINARY_BYTES:
            return too_large(file_path)
        return ReadResult(file_data=FileData(content=b64encode(data).decode(), encoding="base64"))

    async def write(self, file_path: str, content: str) -> WriteResult:
        """Create or replace a file, with the folders above it. It appears whole or not at all."""
        try:
            await self._put(self._path(file_path), content.encode())
        except _FAILURES as error:
            return WriteResult(error=f"Failed to write file '{file_path}': {explained(error)}")
        return WriteResult(path=file_path)

    async def edit(
        self, file_path: str, old_string: str, new_string: str, replace_all: bool = False
    ) -> EditResult:
        """Replace a text in a file. The file keeps its line ends, and is replaced as a whole."""
        if not old_string:
            return EditResult(error=EMPTY_OLD_STRING_ERROR)
        try:
            path = self._path(file_path)
            text = (await self.files.read_bytes(path)).decode()
            # `read` returns CRLF as LF.
            ends = next((ends for ends in (str, _crlf, _lf) if ends(old_string) in text), None)
            if ends is None:
                return EditResult(error=f"Error: String not found in file: '{old_string}'")
            count = text.count(ends(old_string))
            if count > 1 and not replace_all:
                hint = "Use replace_all=True to replace all occurrences."
                return EditResult(
                    error=f"Error: String '{old_string}' appears multiple times ({count}). {hint}"
                )
            await self._put(path, text.replace(ends(old_string), ends(new_string)).encode())
        except UnicodeDecodeError:
            return EditResult(error=f"Error: File '{file_path}' is not a text file")
        except NotFound:
            return EditResult(error=f"Error: File '{file_path}' not found")
        except _FAILURES as error:
            return EditResult(error=f"Error editing file '{file_path}': {explained(error)}")
        return EditResult(path=file_path, occurrences=count)

    async def delete(self, file_path: str) -> DeleteResult:
        """Delete a file, or a folder with all that is in it."""
        try:
            path = self._path(file_path)
            exists = await self.files.exists(path)
            try:
                await self.files.remove(path, recursive=True)
            except OutcomeUnknown:
                await repeated(partial(self.files.remove, path, recursive=True, missing_ok=exists))
        except NotFound:
            return DeleteResult(error=f"Error: '{file_path}' not found")
        except _FAILURES as error:
            return DeleteResult(error=f"Error deleting file '{file_path}': {explained(error)}")
        return DeleteResult(path=file_path)

    async def upload_files(self, files: list[tuple[str, bytes]]) -> list[FileUploadResponse]:
        """Write files, each with the folders above it. Paths are absolute."""
        responses = []
        for path, content in files:
            response = FileUploadResponse(path, None if _is_absolute(path) else INVALID_PATH)
            if response.error is None:
                try:
                    await self._put(path, content)
                except _FAILURES as error:
                    response.error = reason(error)
            responses.append(response)
        return responses

    async def download_files(self, paths: list[str]) -> list[FileDownloadResponse]:
        """The content of files. Paths are absolute."""
        responses = []
        for path in paths:
            response = FileDownloadResponse(path, error=None if _is_absolute(path) else INVALID_PATH)
            if response.error is None:
                try:
                    if (await self.files.stat(path)).is_dir:
                        response.error = IS_DIRECTORY
                    else:
                        response.content = await self.files.read_bytes(path)
                except _FAILURES as error:
                    response.error = reason(error)
            responses.append(response)
        return responses

    async def grep(
        self, pattern: str, path: str | None = None, glob: str | None = None, *, max_count: int | None = None
    ) -> GrepResult:
        """Search for a text, as `execclient.search.search`: by default in the folder, and 10,000 lines."""
        try:
            found = await search(
                self.executor,
                pattern,
                self._path(path or "."),
                glob=glob,
                exclude_dirs=self.exclude_dirs,
                sandbox=self.sandbox,
                workspace=self.root_dir,
                max_matches=MAX_GREP_MATCHES if max_count is None else max_count,
                max_bytes=MAX_GREP_BYTES,
                timeout=DEFAULT_GREP_TIMEOUT,
            )
        except _SEARCH_FAILURES as error:
            return GrepResult(error=f"Path '{path or '.'}': {reason(error)}")
        matches = [GrepMatch(path=shown(path), line=line, text=text) for path, line, text in found.matches]
        return GrepResult(matches=matches, truncated=found.truncated is not None)

    async def glob(self, pattern: str, path: str | None = None) -> GlobResult:
        """Find files by name, as `execclient.search.find`, by default in the folder."""
        try:
            found = await find(
                self.executor,
                pattern,
                self._path(path or "."),
                sandbox=self.sandbox,
                workspace=self.root_dir,
                timeout=DEFAULT_GREP_TIMEOUT,
            )
        except _SEARCH_FAILURES as error:
            return GlobResult(error=f"Path '{path or '.'}': {reason(error)}")
        return GlobResult(
            matches=[{"path": shown(path), "is_dir": False} for path in found.paths],
            truncated=bool(found.truncated or found.unread),
            truncation_reason="budget" if found.truncated else "unreadable" if found.unread else None,
        )

    def _path(self, path: str) -> str:
        return posixpath.join(self.root_dir, path)

    async def _put(self, path: str, content: bytes) -> None:
        async def put() -> None:
            try:
                await self.files.upload(io.BytesIO(content), path)
            except NotFound:
                await self.files.mkdir(posixpath.dirname(path), parents=True)
                await self.files.upload(io.BytesIO(content), path)

        await repeated(put)


def _is_absolute(path: str) -> bool:
    return path.startswith("/") and "\0" not in path


def _crlf(text: str) -> str:
    return _lf(text).replace("\n", "\r\n")


def _lf(text: str) -> str:
    return text.replace("\r\n", "\n")
