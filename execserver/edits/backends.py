"""The backends that carry out the parts of `fs/applyEdits`: threads of this process, or an fs worker.

Both use `filesystem/edit_operations.py`. As with other requests, the daemon writes the files that a worker
opens.
"""

from __future__ import annotations

import asyncio
import json
import marshal
import os
import stat
import threading
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial
from typing import Protocol, TypedDict, TypeVar

from execprotocol.errors import InternalError, RpcError, file_error
from execserver.edits.plan import Edit, edit_error
from execserver.fault_points import reach
from execserver.filesystem import edit_operations
from execserver.filesystem.blocking import BlockingCalls
from execserver.filesystem.cancel import RequestCancelled, raise_if_cancelled
from execserver.filesystem.descriptors import Descriptor
from execserver.filesystem.edit_model import (
    Inspection,
    Json,
    Staged,
    Staging,
    Step,
    TargetState,
    path_to_json,
)
from execserver.filesystem.writing import Content, write_new
from execserver.fsworker.client import WorkerLost
from execserver.fsworker.pool import WorkerPool
from execserver.sandbox.glob_patterns import refuse_denied
from execserver.sandbox.policy import Policy

T = TypeVar("T")

_BATCH_SIZE = 64
"""Steps or names in one request to a worker: any disk takes far less time for them than `SILENT_SECONDS`."""

_ATTEMPTS = 3
"""How many workers are tried for the same steps if each of them is lost."""


class Backend(Protocol):
    """Carries out the parts of `fs/applyEdits`. Called on the loop's thread; all errors are `RpcError`s."""

    def inspect(self, edits: Sequence[Edit]) -> Awaitable[list[Inspection]]:
        """Inspect the targets of all edits (`edit_operations.inspect`)."""

    def stage(
        self, stagings: Sequence[tuple[Edit, int, Staging]], contents: Sequence[Content]
    ) -> Awaitable[list[tuple[Staged, str]]]:
        """Make the new files with their contents, and return their digests (`edit_operations.stage`).

        Args:
            stagings: each with its edit and the index of the edit.
            contents: the content of each new file.
        """

    def require_unchanged(self, watched: Sequence[TargetState]) -> Awaitable[None]:
        """Check that all targets are unchanged (`edit_operations.require_unchanged`)."""

    def do(self, steps: Sequence[Step]) -> Awaitable[None]:
        """Do steps (`edit_operations.do`)."""

    def undo(self, steps: Sequence[Step]) -> Awaitable[None]:
        """Undo steps (`edit_operations.undo`)."""

    def discard(self, files: Sequence[str], folders: Sequence[str]) -> Awaitable[None]:
        """Remove temporary files and folders (`edit_operations.discard`)."""

    def sync(self, folders: Sequence[str]) -> Awaitable[None]:
        """Make names durable (`edit_operations.sync`)."""


class EditContext:
    """What a connection, or the replay at a start, has for edits: its calls in threads and its stop flag.

    Its calls do not end with the connection: a transaction that has begun is always completed.
    """

    def __init__(self) -> None:
        self.calls = BlockingCalls()
        self.stop = threading.Event()
        """Set when the connection has ended."""

    def close(self) -> None:
        """The connection has ended."""
        self.stop.set()


class DirectBackend:
    """Carries out edits in threads of this process."""

    def __init__(self, context: EditContext) -> None:
        self._calls = context.calls
        self._stop = context.stop

    def inspect(self, edits: Sequence[Edit]) -> Awaitable[list[Inspection]]:
        """See `Backend`."""
        return self._calls.run(self._inspect, edits)

    def stage(
        self, stagings: Sequence[tuple[Edit, int, Staging]], contents: Sequence[Content]
    ) -> Awaitable[list[tuple[Staged, str]]]:
        """See `Backend`."""
        return self._calls.run(self._stage, stagings, contents)

    def require_unchanged(self, watched: Sequence[TargetState]) -> Awaitable[None]:
        """See `Backend`."""
        return self._calls.run(edit_operations.require_unchanged, watched)

    def do(self, steps: Sequence[Step]) -> Awaitable[None]:
        """See `Backend`."""
        return self._calls.run(edit_operations.do, steps, partial(reach, "edits-step"))

    def undo(self, steps: Sequence[Step]) -> Awaitable[None]:
        """See `Backend`."""
        return self._calls.run(edit_operations.undo, steps, partial(reach, "edits-undone-step"))

    def discard(self, files: Sequence[str], folders: Sequence[str]) -> Awaitable[None]:
        """See `Backend`."""
        return self._calls.run(edit_operations.discard, files, folders)

    def sync(self, folders: Sequence[str]) -> Awaitable[None]:
        """See `Backend`."""
        return self._calls.run(edit_operations.sync, folders)

    # -- in the thread

    def _inspect(self, edits: Sequence[Edit]) -> list[Inspection]:
        return [
            _for_edit(
                index, edit, edit_operations.inspect, edit.path, stop=self._stop, **_inspect_options(edit)
            )
            for index, edit in enumerate(edits)
        ]

    def _stage(
        self, stagings: Sequence[tuple[Edit, int, Staging]], contents: Sequence[Content]
    ) -> list[tuple[Staged, str]]:
        made = []
        for (edit, index, staging), content in zip(stagings, contents, strict=True):
            raise_if_cancelled(self._stop)
            fd, staged = _for_edit(index, edit, edit_operations.stage, staging, self._stop)
            try:
                reach("edits-staging")
                made.append((staged, _for_edit(index, edit, _write_durably, fd, content)))
            finally:
                os.close(fd)
            reach("edits-staged")
        return made


class ConfinedBackend:
    """Carries out edits by the worker of a policy.

    Each request is independent of the others: another worker may answer the next one.
    """

    def __init__(self, pool: WorkerPool, policy: Policy, context: EditContext) -> None:
        self._pool = pool
        self._policy = policy
        self._context = context

    async def inspect(self, edits: Sequence[Edit]) -> list[Inspection]:
        """See `Backend`."""
        return [await self._inspect(index, edit) for index, edit in enumerate(edits)]

    async def stage(
        self, stagings: Sequence[tuple[Edit, int, Staging]], contents: Sequence[Content]
    ) -> list[tuple[Staged, str]]:
        """See `Backend`."""
        made = []
        for (edit, index, staging), content in zip(stagings, contents, strict=True):
            raise_if_cancelled(self._context.stop)
            try:
                body, descriptor = await self._ask("stage", staging.to_json(), adopt=Descriptor)
                assert descriptor is not None
                digest = await self._context.calls.run(_fill, descriptor, content)
            except RpcError as error:
                raise _edit_error(index, edit, error) from None
            made.append((_parsed(Staged.from_json, body), digest))
            reach("edits-staged")
        return made

    async def require_unchanged(self, watched: Sequence[TargetState]) -> None:
        """See `Backend`."""
        await self._in_batches("require_unchanged", [each.to_json() for each in watched])

    async def do(self, steps: Sequence[Step]) -> None:
        """See `Backend`."""
        await self._in_batches("do", [step.to_json() for step in steps])

    async def undo(self, steps: Sequence[Step]) -> None:
        """See `Backend`."""
        first: RpcError | None = None
        for batch in reversed(list(_batches([step.to_json() for step in steps]))):
            try:
                await self._ask_repeatable("undo", batch)
            except RpcError as error:
                first = first or error
        if first is not None:
            raise first

    async def discard(self, files: Sequence[str], folders: Sequence[str]) -> None:
        """See `Backend`."""
        first: RpcError | None = None
        for part, paths in (("discard_files", files), ("discard_folders", folders)):
            for batch in _batches([path_to_json(path) for path in paths]):
                try:
                    await self._ask_repeatable(part, batch)
                except RpcError as error:
                    first = first or error
        if first is not None:
            raise first

    async def sync(self, folders: Sequence[str]) -> None:
        """See `Backend`."""
        await self._in_batches("sync", [path_to_json(folder) for folder in folders])

    # -- requests

    async def _inspect(self, index: int, edit: Edit) -> Inspection:
        raise_if_cancelled(self._context.stop)
        options = _inspect_options(edit)
        mode_from = options["mode_from"]
        mode_from_json = mode_from and path_to_json(mode_from)
        given: Json = [path_to_json(edit.path), options["writes"], options["digest"], mode_from_json]
        try:
            self._refuse_denied(edit.path)
            body, _ = await self._ask("inspect", given, newest=True)
            inspection = _parsed(Inspection.from_json, body)
            for path in (inspection.target, inspection.read):
                self._refuse_denied(path)
        except RpcError as error:
            raise _edit_error(index, edit, error) from None
        return inspection

    async def _in_batches(self, part: str, items: Sequence[object]) -> None:
        for batch in _batches(items):
            await self._ask_repeatable(part, batch)

    async def _ask_repeatable(self, part: str, given: Json) -> None:
        """Send a request that can be repeated, and repeat it if its worker is lost."""
        for _ in range(_ATTEMPTS - 1):
            try:
                await self._ask(part, given)
                return
            except WorkerLost:
                continue
        await self._ask(part, given)

    def _ask(
        self,
        part: str,
        given: Json,
        *,
        adopt: Callable[[int], Descriptor] | None = None,
        newest: bool = False,
    ) -> asyncio.Future[tuple[bytes, Descriptor | None]]:
        payload = marshal.dumps(("edit", part, json.dumps(given).encode()))
        return self._pool.ask(self._policy, self._context, payload, adopt, newest=newest)

    def _refuse_denied(self, path: str) -> None:
        # The digest would disclose the content, and a new file would not be hidden.
        refuse_denied(self._policy.deny_globs, path)


class _InspectOptions(TypedDict):
    writes: bool
    digest: bool
    mode_from: str | None


def _inspect_options(edit: Edit) -> _InspectOptions:
    return {"writes": edit.writes, "digest": edit.expected is not None, "mode_from": edit.mode_from}


def _write_durably(fd: int, content: Content) -> str:
    digest = write_new(fd, content)
    os.fsync(fd)
    return digest


def _fill(descriptor: Descriptor, content: Content) -> str:
    try:
        with descriptor.borrow() as fd:
            # A compromised worker could pass a descriptor that blocks.
            os.set_blocking(fd, False)
            if not stat.S_ISREG(os.fstat(fd).st_mode):
                raise InternalError("the sandbox's fs worker opened something other than a regular file")
            return _write_durably(fd, content)
    finally:
        descriptor.close()


def _for_edit(index: int, edit: Edit, work: Callable[..., T], *arguments: object, **named: object) -> T:
    """Do some work for an edit; its errors name the edit."""
    try:
        return work(*arguments, **named)
    except OSError as error:
        raise edit_error(index, edit.path, file_error(error)) from None
    except RpcError as error:
        raise _edit_error(index, edit, error) from None


def _edit_error(index: int, edit: Edit, error: RpcError) -> RpcError:
    return error if isinstance(error, RequestCancelled | WorkerLost) else edit_error(index, edit.path, error)


def _batches(items: Sequence[object]) -> Iterable[Json]:
    for start in range(0, len(items), _BATCH_SIZE):
        yield list(items[start : start + _BATCH_SIZE])


def _parsed(read: Callable[[Json], T], body: bytes) -> T:
    try:
        return read(json.loads(body))
    except (ValueError, TypeError) as error:
        raise InternalError(f"the sandbox's fs worker gave an invalid answer: {error}") from None
