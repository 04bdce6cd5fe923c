"""Files by path, behind one interface: in this process, or in a sandbox (`fsworker/confined_files.py`)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, Literal, NamedTuple, Protocol, TypeVar, TypeVarTuple

from execprotocol.errors import RpcError, file_error

# Operations import these two late, for the start of an fs worker. The daemon loads them at its own start,
# before the table of descriptors is full or the files are replaced.
from execserver.filesystem import replacing, tree_operations  # noqa: F401
from execserver.filesystem.blocking import BlockingCalls
from execserver.filesystem.cancel import RequestCancelled, raise_if_cancelled
from execserver.filesystem.descriptors import Descriptor, Descriptors
from execserver.filesystem.opening import open_to_read, open_to_replace
from execserver.filesystem.operations import Operation
from execserver.filesystem.reading import LargeFile, begin_reading, digest, find
from execserver.filesystem.writing import write_file

if TYPE_CHECKING:
    from execprotocol.filesystem import DigestResult, FoundFile
    from execserver.filesystem.cancel import StopFlag

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

HandleMode = Literal["read", "replace"]


class OperationCall(NamedTuple, Generic[T]):
    """An operation of the table, and its arguments after the stop flag."""

    operation: Operation[*tuple[Any, ...], T]
    arguments: tuple[Any, ...]


class Files(Protocol):
    """Operations on native paths. Called on the loop's thread; all errors are `RpcError`s."""

    def run(self, operation: Operation[*Ts, T], *arguments: *Ts) -> Awaitable[T]:
        """Carry out an operation of the table (`operations.py`)."""

    def list_json(
        self,
        operation: Operation[*Ts, Iterable[T]],
        to_json: Callable[[Iterable[T]], bytes],
        *arguments: *Ts,
    ) -> Awaitable[bytes]:
        """Carry out an operation that gives a list, and encode the list, in a thread if it is long."""

    def begin_reading(self, path: str, max_reply_bytes: int | None) -> Awaitable[bytes | LargeFile]:
        """The content of a file in base64, or the open file if it is large (`reading.begin_reading`)."""

    def write(self, path: str, text: str | memoryview) -> Awaitable[None]:
        """Make a file or replace its content, which is given in base64 (`writing.write_file`)."""

    def open(self, path: str, mode: HandleMode, permissions: int | None = None) -> Awaitable[Descriptor]:
        """Open a regular file; the descriptor belongs to the connection."""

    def digest(self, path: str, size: int | None = None) -> Awaitable[DigestResult]:
        """The digest of a file (`reading.digest`)."""

    def run_each(self, requests: Sequence[OperationCall[T]]) -> Awaitable[list[T | RpcError]]:
        """Carry out operations of the table one after the other; the result or the error of each."""

    def find(self, paths: Sequence[str], most: int) -> Awaitable[list[FoundFile | RpcError]]:
        """Describe paths, and read small files up to so many bytes in total (`reading.find`)."""


class DirectFiles:
    """`Files` in threads of this process, without limits."""

    def __init__(self, calls: BlockingCalls, descriptors: Descriptors) -> None:
        self._calls = calls
        self._descriptors = descriptors

    def run(self, operation: Operation[*Ts, T], *arguments: *Ts) -> Awaitable[T]:
        """See `Files`."""
        return self._calls.run(operation.function, self._calls.stop, *arguments)

    def list_json(
        self,
        operation: Operation[*Ts, Iterable[T]],
        to_json: Callable[[Iterable[T]], bytes],
        *arguments: *Ts,
    ) -> Awaitable[bytes]:
        """See `Files`."""
        stop: StopFlag = self._calls.stop
        return self._calls.run(lambda: to_json(operation.function(stop, *arguments)))

    def begin_reading(self, path: str, max_reply_bytes: int | None) -> Awaitable[bytes | LargeFile]:
        """See `Files`."""
        return self._calls.run(begin_reading, path, max_reply_bytes, self._descriptors)

    def write(self, path: str, text: str | memoryview) -> Awaitable[None]:
        """See `Files`."""
        return self._calls.run(write_file, path, text)

    def open(self, path: str, mode: HandleMode, permissions: int | None = None) -> Awaitable[Descriptor]:
        """See `Files`."""
        return self._calls.run(_open, path, mode, permissions, self._descriptors)

    def digest(self, path: str, size: int | None = None) -> Awaitable[DigestResult]:
        """See `Files`."""
        return self._calls.run(digest, path, self._calls.stop, size)

    def run_each(self, requests: Sequence[OperationCall[T]]) -> Awaitable[list[T | RpcError]]:
        """See `Files`."""
        return self._calls.run(_run_each, requests, self._calls.stop)

    def find(self, paths: Sequence[str], most: int) -> Awaitable[list[FoundFile | RpcError]]:
        """See `Files`."""
        return self._calls.run(_find_each, paths, most, self._calls.stop)


def content_size(found: FoundFile | RpcError) -> int:
    """How many bytes of content a result of `find` has."""
    text = "" if isinstance(found, RpcError) else found.get("dataBase64", "")
    return len(text) // 4 * 3 - text[-2:].count("=")


def _run_each(requests: Sequence[OperationCall[T]], stop: StopFlag) -> list[T | RpcError]:
    outcomes = []
    for request in requests:
        raise_if_cancelled(stop)
        outcomes.append(_outcome(partial(request.operation.function, stop, *request.arguments)))
    return outcomes


def _find_each(paths: Sequence[str], most: int, stop: StopFlag) -> list[FoundFile | RpcError]:
    outcomes = []
    for path in paths:
        raise_if_cancelled(stop)
        outcome = _outcome(partial(find, path, most))
        most -= content_size(outcome)
        outcomes.append(outcome)
    return outcomes


def _outcome(function: Callable[[], T]) -> T | RpcError:
    try:
        return function()
    except RequestCancelled:
        raise
    except RpcError as error:
        return error
    except OSError as error:
        return file_error(error)


def _open(path: str, mode: HandleMode, permissions: int | None, descriptors: Descriptors) -> Descriptor:
    fd = open_to_read(path)[0] if mode == "read" else open_to_replace(path, permissions)
    return descriptors.adopt(fd)
