"""`fs/*` in a sandbox: `Files`, carried out by the fs worker of a policy.

The worker opens files, and the daemon reads and writes them through descriptors. The worker carries out all
other operations itself. The daemon checks the patterns of the policy, which also apply to files that are
newer than the worker's sandbox.
"""

from __future__ import annotations

import asyncio
import errno
import marshal
import os
from collections.abc import Callable, Coroutine, Iterable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar, TypeVarTuple

from execprotocol.errors import RpcError, file_error
from execserver.filesystem import operations
from execserver.filesystem.blocking import BlockingCalls
from execserver.filesystem.cancel import RequestCancelled
from execserver.filesystem.descriptors import Descriptor, Descriptors
from execserver.filesystem.files import HandleMode, OperationCall, content_size
from execserver.filesystem.opening import require_regular
from execserver.filesystem.operations import Operation
from execserver.filesystem.reading import (
    LargeFile,
    begin_reading_opened,
    check_reply_size,
    described_only,
    digest_opened,
    find_opened,
    may_hold,
)
from execserver.filesystem.small import SmallFiles
from execserver.filesystem.writing import Content, check_content, write_opened
from execserver.fsworker.client import Adopt, Answer
from execserver.fsworker.pool import WorkerPool
from execserver.sandbox.glob_patterns import refuse_denied
from execserver.sandbox.policy import Policy, normal

if TYPE_CHECKING:
    from execprotocol.filesystem import DigestResult, FoundFile

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

_CHECKED_AT_ONCE = 64 << 10
"""Characters of base64 that are checked on the loop's thread: some microseconds."""

_LISTED_AT_ONCE = 4 << 10
"""Bytes of a list that is encoded on the loop's thread: some fifty names."""

_MAX_PATH_BYTES = 64 << 10
"""Far more than the kernel accepts: the daemon refuses such a path without asking the worker."""


class ConfinedRequests:
    """The requests of one connection to workers; they are cancelled when it ends."""

    def __init__(self) -> None:
        self._answers: set[asyncio.Future[Answer]] = set()

    def add(self, answer: asyncio.Future[Answer]) -> asyncio.Future[Answer]:
        """Keep a request until it is answered."""
        self._answers.add(answer)
        answer.add_done_callback(self._answers.discard)
        return answer

    def close(self) -> None:
        """The connection has ended."""
        for answer in list(self._answers):
            answer.cancel()


class ConfinedFiles:
    """`Files` under a policy, for one connection."""

    def __init__(
        self,
        pool: WorkerPool,
        policy: Policy,
        requests: ConfinedRequests,
        calls: BlockingCalls,
        descriptors: Descriptors,
        small: SmallFiles,
    ) -> None:
        self._pool = pool
        self._small = small
        self._policy = policy
        self._requests = requests
        self._calls = calls
        self._descriptors = descriptors

    async def run(self, operation: Operation[*Ts, T], *arguments: *Ts) -> T:
        """See `Files`."""
        return operation.result.decode(await self._run(operation, arguments))

    async def list_json(
        self,
        operation: Operation[*Ts, Iterable[T]],
        to_json: Callable[[Iterable[T]], bytes],
        *arguments: *Ts,
    ) -> bytes:
        """See `Files`."""
        body = await self._run(operation, arguments)
        if len(body) <= _LISTED_AT_ONCE:
            return to_json(operation.result.decode(body))
        return await self._calls.run(lambda: to_json(operation.result.decode(body)))

    async def begin_reading(self, path: str, max_reply_bytes: int | None) -> bytes | LargeFile:
        """See `Files`."""
        descriptor = await self._open_to_read(path)
        try:
            content = self._small.read_opened(descriptor)
        except BaseException:
            self._descriptors.release(descriptor)
            raise
        if content is not None:
            self._descriptors.release(descriptor)
            check_reply_size(len(content), max_reply_bytes)
            return content
        return await self._calls.run(
            begin_reading_opened, descriptor, path, max_reply_bytes, self._descriptors
        )

    async def write(self, path: str, text: str | memoryview) -> None:
        """See `Files`."""
        if len(text) <= _CHECKED_AT_ONCE:
            content = check_content(text)
        else:
            content = await self._calls.run(check_content, text)
        descriptor = await self._open("open_to_write", path)
        try:
            written = self._small.write_opened(descriptor, content)
        except BaseException:
            self._descriptors.release(descriptor)
            raise
        if written:
            self._descriptors.release(descriptor)
        else:
            await self._calls.run(_write, descriptor, content, self._descriptors)

    async def open(self, path: str, mode: HandleMode, permissions: int | None = None) -> Descriptor:
        """See `Files`."""
        opened = (
            self._open_to_read(path) if mode == "read" else self._open("open_to_replace", path, permissions)
        )
        return await self._calls.run(_require_regular, await opened, path, self._descriptors)

    async def digest(self, path: str, size: int | None = None) -> DigestResult:
        """See `Files`."""
        descriptor = await self._open_to_read(path)
        descriptor = await self._calls.run(_require_regular, descriptor, path, self._descriptors)
        return await self._calls.run(digest_opened, descriptor, self._descriptors, self._calls.stop, size)

    async def run_each(self, requests: Sequence[OperationCall[T]]) -> list[T | RpcError]:
        """See `Files`."""
        outcomes: list[T | RpcError] = []
        for operation, arguments in requests:
            running: Coroutine[Any, Any, T] = self.run(operation, *arguments)
            outcomes.append(await _outcome(running))
        return outcomes

    async def find(self, paths: Sequence[str], most: int) -> list[FoundFile | RpcError]:
        """See `Files`."""
        outcomes = []
        for path in paths:
            outcome = await _outcome(self._find(path, most))
            most -= content_size(outcome)
            outcomes.append(outcome)
        return outcomes

    async def _find(self, path: str, most: int) -> FoundFile:
        described = await self.run(operations.metadata, path, True)
        if not may_hold(described, most):
            return described_only(described)
        descriptor = await self._open_to_read(path)
        is_link = described["isSymlink"]
        return await self._calls.run(find_opened, descriptor, self._descriptors, most, is_link)

    # -- requests

    async def _run(self, operation: Operation[*Ts, T], arguments: tuple[*Ts]) -> bytes:
        """Have the worker carry out an operation of the table; the body of its reply."""
        values: tuple[object, ...] = arguments
        newest = operation.newest
        if self._policy.deny_globs:
            for position, follow in operation.reads:
                path = values[position]
                assert isinstance(path, str)
                newest |= await self._require_readable(path, follow=follow)
        return (await self._request(None, operation.name, *values, newest=newest))[0]

    def _request(
        self, adopt: Adopt | None, name: str, *arguments: object, newest: bool = False
    ) -> asyncio.Future[Answer]:
        values = [_encoded(value) for value in arguments]
        payload = marshal.dumps([name, *values])
        answer = self._pool.ask(self._policy, self._requests, payload, adopt, newest=newest)
        return self._requests.add(answer)

    async def _open(self, operation: str, path: str, *numbers: int | None) -> Descriptor:
        _, descriptor = await self._request(self._descriptors.adopt, operation, path, *numbers)
        assert descriptor is not None
        return descriptor

    async def _open_to_read(self, path: str) -> Descriptor:
        self._refuse_denied(path)
        resolved, descriptor = await self._open_resolved(path)
        if self._policy.deny_globs and not resolved.endswith(normal(path)):
            # Opened through a link. The link, or a denied file of that name, may be newer than the sandbox.
            self._descriptors.release(descriptor)
            resolved, descriptor = await self._open_resolved(path, newest=True)
        try:
            self._refuse_denied(resolved)
        except RpcError:
            self._descriptors.release(descriptor)
            raise
        return descriptor

    async def _open_resolved(self, path: str, *, newest: bool = False) -> tuple[str, Descriptor]:
        answer = self._request(self._descriptors.adopt, "open_to_read", path, newest=newest)
        resolved, descriptor = await answer
        assert descriptor is not None
        return os.fsdecode(resolved), descriptor

    # -- patterns

    async def _require_readable(self, path: str, *, follow: bool = True) -> bool:
        """Refuse a path that a pattern denies, as it is written or as it is resolved.

        Returns:
            Whether links were followed, so that the request needs a worker that is newer than they are.
        """
        self._refuse_denied(path)
        folder, name = ("", path) if follow else os.path.split(path)
        try:
            resolved = await self.run(operations.canonicalize, path if follow else folder)
        except RpcError:
            # The operation reports the same error.
            return False
        self._refuse_denied(resolved if follow else os.path.join(resolved, name))
        return follow and not resolved.endswith(normal(path))

    def _refuse_denied(self, path: str) -> None:
        refuse_denied(self._policy.deny_globs, path)


def _encoded(argument: object) -> object:
    """An argument for the worker (`frames.py`).

    Raises:
        InternalError: a path is too long.
    """
    if isinstance(argument, bytes):
        return (argument,)
    if not isinstance(argument, str):
        return argument
    encoded = os.fsencode(argument)
    if len(encoded) > _MAX_PATH_BYTES:
        raise file_error(OSError(errno.ENAMETOOLONG, os.strerror(errno.ENAMETOOLONG)))
    return encoded


async def _outcome(result: Coroutine[Any, Any, T]) -> T | RpcError:
    try:
        return await result
    except RequestCancelled:
        raise
    except RpcError as error:
        return error


def _write(descriptor: Descriptor, content: Content, descriptors: Descriptors) -> None:
    try:
        with descriptor.borrow() as fd:
            # As `opening` does it: a fifo or a device would block.
            os.set_blocking(fd, False)
            write_opened(fd, content)
    finally:
        descriptors.release(descriptor)


def _require_regular(descriptor: Descriptor, path: str, descriptors: Descriptors) -> Descriptor:
    """Check that the worker has opened a regular file; otherwise release the descriptor."""
    try:
        with descriptor.borrow() as fd:
            # `require_regular` closes a descriptor that it refuses.
            copied = os.dup(fd)
        require_regular(copied, path)
        os.close(copied)
    except BaseException:
        descriptors.release(descriptor)
        raise
    return descriptor
