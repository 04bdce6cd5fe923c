"""`fs/*` in a sandbox: the operations of `Files`, done by the fs worker of a policy.

The worker opens files and the daemon reads and writes them, as it does with files of its own; everything
else is the worker's. What the daemon adds is the patterns of what must not be read: they hold for files
that were made after the worker's sandbox too.
"""

from __future__ import annotations

import asyncio
import errno
import marshal
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from execprotocol.errors import RpcError, file_error
from execserver.filesystem.blocking import BlockingCalls
from execserver.filesystem.descriptors import Descriptor, Descriptors
from execserver.filesystem.digest import digest_opened
from execserver.filesystem.files import HandleMode
from execserver.filesystem.listing import entries_json, entries_of, seen_of, walk_json
from execserver.filesystem.opening import require_regular
from execserver.filesystem.reading import LargeFile, begin_reading_opened, check_reply_size
from execserver.filesystem.replacing import Attributes
from execserver.filesystem.small import SmallFiles
from execserver.filesystem.tree_operations import PLAIN, Wish
from execserver.filesystem.walk import WalkLimits
from execserver.filesystem.writing import Content, check_content, write_opened
from execserver.fsworker.client import Adopt, Answer
from execserver.fsworker.pool import WorkerPool
from execserver.sandbox.glob_patterns import refuse_denied
from execserver.sandbox.policy import Policy, normal

if TYPE_CHECKING:
    from execprotocol.filesystem import DigestResult, Metadata


T = TypeVar("T")

_CHECKED_AT_ONCE = 64 << 10
"""Characters of base64 that are looked through on the loop's thread: some microseconds."""

_LISTED_AT_ONCE = 4 << 10
"""Bytes of a list that are made JSON on the loop's thread: some fifty names."""

_MOST_PATH_BYTES = 64 << 10
"""Far more than the kernel takes; the worker need not see it to say so."""


class ConfinedRequests:
    """The requests of one connection that workers have; they are withdrawn when it ends."""

    def __init__(self) -> None:
        self._answers: set[asyncio.Future[Answer]] = set()

    def add(self, answer: asyncio.Future[Answer]) -> asyncio.Future[Answer]:
        """Remember a request until it is answered."""
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

    async def create_directory(self, path: str, *, recursive: bool, permissions: int | None = None) -> None:
        """See `Files`."""
        await self._ask("create_directory", _encoded(path), recursive, permissions)

    async def metadata(self, path: str, *, extended: bool = False) -> Metadata:
        """See `Files`."""
        numbers = [int(number) for number in (await self._ask("metadata", _encoded(path))).split()]
        directory, file, link, size, modified, permissions, modified_ns, accessed_ns = numbers
        found: Metadata = {
            "isDirectory": bool(directory),
            "isFile": bool(file),
            "isSymlink": bool(link),
            "size": size,
            "createdAtMs": 0,
            "modifiedAtMs": modified,
        }
        if extended:
            found["permissions"] = permissions
            found["modifiedAtNs"], found["accessedAtNs"] = modified_ns, accessed_ns
        return found

    async def set_metadata(self, path: str, wanted: Attributes) -> None:
        """See `Files`."""
        await self._ask("set_metadata", _encoded(path), *wanted.numbers())

    async def canonicalize(self, path: str) -> str:
        """See `Files`."""
        return os.fsdecode(await self._ask("canonicalize", _encoded(path)))

    async def read_directory(self, path: str) -> bytes:
        """See `Files`."""
        newest = await self._require_readable(path)
        body = await self._ask("read_directory", _encoded(path), newest=newest)
        return await self._made(body, lambda: entries_json(entries_of(body)))

    async def walk(self, path: str, limits: WalkLimits) -> bytes:
        """See `Files`."""
        limits.check()
        await self._require_readable(path)
        numbers = (
            limits.max_depth,
            limits.max_directories,
            limits.max_entries,
            limits.follow_links,
            limits.prune_hidden,
        )
        body = await self._ask("walk", _encoded(path), *map(int, numbers), newest=True)
        return await self._made(body, lambda: walk_json(seen_of(body)))

    async def remove(self, path: str, *, recursive: bool, force: bool) -> None:
        """See `Files`."""
        await self._ask("remove", _encoded(path), recursive, force)

    async def copy(self, source: str, destination: str, *, recursive: bool, wish: Wish = PLAIN) -> bool:
        """See `Files`."""
        # A link is copied as one, and not read.
        await self._require_readable(source, follow=False)
        paths = _encoded(source), _encoded(destination)
        return bool(await self._ask("copy", *paths, recursive, *map(int, wish), newest=True))

    async def install(self, source: str, destination: str, wanted: Attributes) -> bool:
        """See `Files`."""
        # As with a rename. The destination is read when it has to be written in place.
        await self._require_readable(source, follow=False)
        await self._require_readable(destination)
        paths = _encoded(source), _encoded(destination)
        return bool(await self._ask("install", *paths, *wanted.numbers(), newest=True))

    async def rename(self, source: str, destination: str, *, overwrite: bool) -> None:
        """See `Files`."""
        # What must not be read would be readable under a name that no pattern has.
        await self._require_readable(source, follow=False)
        await self._ask("rename", _encoded(source), _encoded(destination), overwrite, newest=True)

    async def digest(self, path: str, size: int | None = None) -> DigestResult:
        """See `Files`."""
        descriptor = await self._open_to_read(path)
        descriptor = await self._calls.run(_require_regular, descriptor, path, self._descriptors)
        return await self._calls.run(digest_opened, descriptor, self._descriptors, self._calls.stop, size)

    # -- asking

    async def _ask(self, operation: str, *arguments: bytes | int | None, newest: bool = False) -> bytes:
        return (await self._request(None, operation, *arguments, newest=newest))[0]

    def _request(
        self, adopt: Adopt | None, operation: str, *arguments: bytes | int | None, newest: bool = False
    ) -> asyncio.Future[Answer]:
        payload = marshal.dumps((operation, *arguments))
        answer = self._pool.ask(self._policy, self._requests, payload, adopt, newest=newest)
        return self._requests.add(answer)

    async def _open(self, operation: str, path: str, *numbers: int | None) -> Descriptor:
        _, descriptor = await self._request(self._descriptors.adopt, operation, _encoded(path), *numbers)
        assert descriptor is not None
        return descriptor

    async def _open_to_read(self, path: str) -> Descriptor:
        self._refuse_denied(path)
        resolved, descriptor = await self._open_resolved(path)
        if self._policy.deny_globs and not resolved.endswith(normal(path)):
            # Through a link, which may be newer than the worker's sandbox, and so may a denial by its name.
            self._descriptors.release(descriptor)
            resolved, descriptor = await self._open_resolved(path, newest=True)
        try:
            self._refuse_denied(resolved)
        except RpcError:
            self._descriptors.release(descriptor)
            raise
        return descriptor

    async def _open_resolved(self, path: str, *, newest: bool = False) -> tuple[str, Descriptor]:
        answer = self._request(self._descriptors.adopt, "open_to_read", _encoded(path), newest=newest)
        resolved, descriptor = await answer
        assert descriptor is not None
        return os.fsdecode(resolved), descriptor

    async def _made(self, body: bytes, make: Callable[[], bytes]) -> bytes:
        return make() if len(body) <= _LISTED_AT_ONCE else await self._calls.run(make)

    # -- patterns

    async def _require_readable(self, path: str, *, follow: bool = True) -> bool:
        """Refuse a path that a pattern denies, by its text or by where it leads; whether links lead there, so
        that it takes a worker that knows them.
        """
        if not self._policy.deny_globs:
            return False
        self._refuse_denied(path)
        folder, name = ("", path) if follow else os.path.split(path)
        try:
            resolved = await self.canonicalize(path if follow else folder)
        except RpcError:
            # The operation itself will say what is wrong with it.
            return False
        self._refuse_denied(resolved if follow else os.path.join(resolved, name))
        return follow and not resolved.endswith(normal(path))

    def _refuse_denied(self, path: str) -> None:
        refuse_denied(self._policy.deny_globs, path)


def _encoded(path: str) -> bytes:
    """A path as the kernel takes it.

    Raises:
        InternalError: the kernel would not.
    """
    encoded = os.fsencode(path)
    if len(encoded) > _MOST_PATH_BYTES:
        raise file_error(OSError(errno.ENAMETOOLONG, os.strerror(errno.ENAMETOOLONG)))
    return encoded


def _write(descriptor: Descriptor, content: Content, descriptors: Descriptors) -> None:
    try:
        with descriptor.borrow() as number:
            # As `opening` does it. What is no regular file would otherwise be waited for.
            os.set_blocking(number, False)
            write_opened(number, content)
    finally:
        descriptors.release(descriptor)


def _require_regular(descriptor: Descriptor, path: str, descriptors: Descriptors) -> Descriptor:
    """The descriptor, if it is what the worker was asked to open; else it is released."""
    try:
        with descriptor.borrow() as number:
            # Closes what it refuses, so it gets a number of its own.
            copied = os.dup(number)
        require_regular(copied, path)
        os.close(copied)
    except BaseException:
        descriptors.release(descriptor)
        raise
    return descriptor
