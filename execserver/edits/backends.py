"""Who carries out the parts of `fs/applyEdits`: threads of this process, or the fs worker of a policy.

The two are told the same and do the same (`edit_looking.py`, `edit_operations.py`, `edit_steps.py`). As with
other requests a worker opens files, and the daemon writes them.
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
from execserver.edits.plan import Edit, about
from execserver.fault_points import reach
from execserver.filesystem import edit_looking, edit_operations, edit_steps
from execserver.filesystem.blocking import BlockingCalls
from execserver.filesystem.cancel import Abandoned, give_up_if
from execserver.filesystem.descriptors import Descriptor
from execserver.filesystem.edit_model import Json, Look, Staged, Staging, Step, Watched, packed
from execserver.filesystem.writing import Content, write_new
from execserver.fsworker.client import WorkerLost
from execserver.fsworker.pool import WorkerPool
from execserver.sandbox.glob_patterns import refuse_denied
from execserver.sandbox.policy import Policy

T = TypeVar("T")

_AT_ONCE = 64
"""Steps or names in one request to a worker: on any disk well within the time that it may be silent."""

_ATTEMPTS = 3
"""Workers that may die of the same steps, each of which can be done again."""


class Hands(Protocol):
    """Called on the loop's thread. All errors are `RpcError`s."""

    def look(self, edits: Sequence[Edit]) -> Awaitable[list[Look]]:
        """Look at all paths (`edit_looking.look`)."""

    def stage(
        self, stagings: Sequence[tuple[Edit, int, Staging]], contents: Sequence[Content]
    ) -> Awaitable[list[tuple[Staged, str]]]:
        """Make new files with their contents, and say their digests (`edit_staging.stage`).

        Args:
            stagings: each with its edit and the place of that in the request.
            contents: of each one.
        """

    def require_still(self, watched: Sequence[Watched]) -> Awaitable[None]:
        """Refuse to go on if a target is not as it was (`edit_looking.require_still`)."""

    def do(self, steps: Sequence[Step]) -> Awaitable[None]:
        """Do steps (`edit_steps.do`)."""

    def undo(self, steps: Sequence[Step]) -> Awaitable[None]:
        """Undo steps (`edit_steps.undo`)."""

    def discard(self, files: Sequence[str], folders: Sequence[str]) -> Awaitable[None]:
        """Remove names of ours (`edit_staging.discard`)."""

    def sync(self, folders: Sequence[str]) -> Awaitable[None]:
        """Make names durable (`edit_steps.sync`)."""


class Requests:
    """What a connection, or the replaying at a start, has for edits: threads and a reason to go on.

    Its threads do not end with the connection: what is begun has to be brought to an end.
    """

    def __init__(self) -> None:
        self.calls = BlockingCalls()
        self.stop = threading.Event()
        """Set when the connection has ended."""

    def close(self) -> None:
        """The connection has ended."""
        self.stop.set()


class DirectHands:
    """Threads of this process."""

    def __init__(self, requests: Requests) -> None:
        self._calls = requests.calls
        self._stop = requests.stop

    def look(self, edits: Sequence[Edit]) -> Awaitable[list[Look]]:
        """See `Hands`."""
        return self._calls.run(self._look, edits)

    def stage(
        self, stagings: Sequence[tuple[Edit, int, Staging]], contents: Sequence[Content]
    ) -> Awaitable[list[tuple[Staged, str]]]:
        """See `Hands`."""
        return self._calls.run(self._stage, stagings, contents)

    def require_still(self, watched: Sequence[Watched]) -> Awaitable[None]:
        """See `Hands`."""
        return self._calls.run(edit_looking.require_still, watched)

    def do(self, steps: Sequence[Step]) -> Awaitable[None]:
        """See `Hands`."""
        return self._calls.run(edit_steps.do, steps, partial(reach, "edits-step"))

    def undo(self, steps: Sequence[Step]) -> Awaitable[None]:
        """See `Hands`."""
        return self._calls.run(edit_steps.undo, steps, partial(reach, "edits-undone-step"))

    def discard(self, files: Sequence[str], folders: Sequence[str]) -> Awaitable[None]:
        """See `Hands`."""
        return self._calls.run(edit_operations.discard, files, folders)

    def sync(self, folders: Sequence[str]) -> Awaitable[None]:
        """See `Hands`."""
        return self._calls.run(edit_steps.sync, folders)

    # -- in the thread

    def _look(self, edits: Sequence[Edit]) -> list[Look]:
        return [
            _naming(index, edit, edit_looking.look, edit.path, stop=self._stop, **_wishes(edit))
            for index, edit in enumerate(edits)
        ]

    def _stage(
        self, stagings: Sequence[tuple[Edit, int, Staging]], contents: Sequence[Content]
    ) -> list[tuple[Staged, str]]:
        made = []
        for (edit, index, staging), content in zip(stagings, contents, strict=True):
            give_up_if(self._stop)
            number, staged = _naming(index, edit, edit_operations.stage, staging, self._stop)
            try:
                reach("edits-staging")
                made.append((staged, _naming(index, edit, _filled, number, content)))
            finally:
                os.close(number)
            reach("edits-staged")
        return made


class ConfinedHands:
    """The worker of a policy.

    Every request to it stands alone: another worker may answer the next one.
    """

    def __init__(self, pool: WorkerPool, policy: Policy, requests: Requests) -> None:
        self._pool = pool
        self._policy = policy
        self._requests = requests

    async def look(self, edits: Sequence[Edit]) -> list[Look]:
        """See `Hands`."""
        return [await self._look(index, edit) for index, edit in enumerate(edits)]

    async def stage(
        self, stagings: Sequence[tuple[Edit, int, Staging]], contents: Sequence[Content]
    ) -> list[tuple[Staged, str]]:
        """See `Hands`."""
        made = []
        for (edit, index, staging), content in zip(stagings, contents, strict=True):
            give_up_if(self._requests.stop)
            try:
                body, descriptor = await self._ask("stage", staging.to_json(), adopt=Descriptor)
                assert descriptor is not None
                digest = await self._requests.calls.run(_fill, descriptor, content)
            except RpcError as error:
                raise _named(index, edit, error) from None
            made.append((_understood(Staged.from_json, body), digest))
            reach("edits-staged")
        return made

    async def require_still(self, watched: Sequence[Watched]) -> None:
        """See `Hands`."""
        await self._in_batches("require_still", [each.to_json() for each in watched])

    async def do(self, steps: Sequence[Step]) -> None:
        """See `Hands`."""
        await self._in_batches("do", [step.to_json() for step in steps])

    async def undo(self, steps: Sequence[Step]) -> None:
        """See `Hands`."""
        first: RpcError | None = None
        for batch in reversed(list(_batches([step.to_json() for step in steps]))):
            try:
                await self._persist("undo", batch)
            except RpcError as error:
                first = first or error
        if first is not None:
            raise first

    async def discard(self, files: Sequence[str], folders: Sequence[str]) -> None:
        """See `Hands`."""
        first: RpcError | None = None
        for part, paths in (("discard_files", files), ("discard_folders", folders)):
            for batch in _batches([packed(path) for path in paths]):
                try:
                    await self._persist(part, batch)
                except RpcError as error:
                    first = first or error
        if first is not None:
            raise first

    async def sync(self, folders: Sequence[str]) -> None:
        """See `Hands`."""
        await self._in_batches("sync", [packed(folder) for folder in folders])

    # -- asking

    async def _look(self, index: int, edit: Edit) -> Look:
        give_up_if(self._requests.stop)
        wishes = _wishes(edit)
        mode_from = wishes["mode_from"]
        given: Json = [
            packed(edit.path), wishes["writes"], wishes["digest"], mode_from and packed(mode_from)
        ]  # fmt: skip
        try:
            self._refuse_denied(edit.path)
            body, _ = await self._ask("look", given, newest=True)
            look = _understood(Look.from_json, body)
            for path in (look.target, look.read):
                self._refuse_denied(path)
        except RpcError as error:
            raise _named(index, edit, error) from None
        return look

    async def _in_batches(self, part: str, items: Sequence[object]) -> None:
        for batch in _batches(items):
            await self._persist(part, batch)

    async def _persist(self, part: str, given: Json) -> None:
        """Ask for what can be done again, of another worker if one is lost."""
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
        return self._pool.ask(self._policy, self._requests, payload, adopt, newest=newest)

    def _refuse_denied(self, path: str) -> None:
        # Its digest would say what is in it, and what is new would not be hidden.
        refuse_denied(self._policy.deny_globs, path)


class _Wishes(TypedDict):
    writes: bool
    digest: bool
    mode_from: str | None


def _wishes(edit: Edit) -> _Wishes:
    return {"writes": edit.writes, "digest": edit.expected is not None, "mode_from": edit.mode_from}


def _filled(number: int, content: Content) -> str:
    digest = write_new(number, content)
    os.fsync(number)
    return digest


def _fill(descriptor: Descriptor, content: Content) -> str:
    try:
        with descriptor.borrow() as number:
            # A worker that was taken over could hand out what would be waited for.
            os.set_blocking(number, False)
            if not stat.S_ISREG(os.fstat(number).st_mode):
                raise InternalError("the sandbox's fs worker made something that is no file")
            return _filled(number, content)
    finally:
        descriptor.close()


def _naming(index: int, edit: Edit, work: Callable[..., T], *arguments: object, **named: object) -> T:
    """Do something for an edit; its errors say for which."""
    try:
        return work(*arguments, **named)
    except OSError as error:
        raise about(index, edit.path, file_error(error)) from None
    except RpcError as error:
        raise _named(index, edit, error) from None


def _named(index: int, edit: Edit, error: RpcError) -> RpcError:
    return error if isinstance(error, Abandoned | WorkerLost) else about(index, edit.path, error)


def _batches(items: Sequence[object]) -> Iterable[Json]:
    for start in range(0, len(items), _AT_ONCE):
        yield list(items[start : start + _AT_ONCE])


def _understood(read: Callable[[Json], T], body: bytes) -> T:
    try:
        return read(json.loads(body))
    except (ValueError, TypeError) as error:
        raise InternalError(f"the sandbox's fs worker gave an answer that is none: {error}") from None
