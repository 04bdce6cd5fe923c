"""Plans and applies patches to the files of an executor, never to those of this machine.

A server with `fs/applyEdits` gets all edits in one request and makes all or none of them; edits beyond the
sandbox go in a second request. A file that cannot be replaced, such as a mount point, is written in place
before the others, and restored if these fail. Any other server gets the edits one after the other, in the
order of the patch; after a failure the earlier edits stay, and the error lists them.

No edit is made twice, and none to a file that changed after planning: each request compares the file before
it writes. If the answer is lost with the connection, the files tell whether the edit was made.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from execclient.connection.connection import Json
from execclient.errors import CallFailed, OutcomeUnknown, RequestTooLarge
from execclient.file_session import Calls
from execclient.patch.diff import unified_diff
from execclient.patch.errors import CannotRead, PatchConflict, PatchError, PatchFileError
from execclient.patch.files import RemoteFiles
from execclient.patch.model import Edit, EditKind, digest_of
from execclient.patch.parse import Patch, UpdateFile
from execclient.patch.plan import EntryPoint, Plan, absolute, touched_paths
from execclient.patch.plan import plan as plan_patch
from execprotocol.limits import MAX_EDITS
from execprotocol.path_uri import path_to_uri

MAX_ATTEMPTS = 3
"""Attempts of a request whose answers are lost."""

_READS_AT_A_TIME = 8
"""Enough to hide the latency; a reply may hold a whole file."""

_TRANSACTION = "fs/applyEdits"

_IN_PLACE = "Written in place, since it cannot be replaced"

_OF_ONE_EDIT = re.compile(
    r"edits\[(?P<index>[0-9]+)\] .*(?:\(os error (?:1|13|16|18|30)\)|cannot be kept when it is replaced)",
    re.DOTALL,
)
"""The server's message for a file that cannot be replaced (`docs/protocol.md`, A6 and A11): EPERM, EACCES,
EBUSY, EXDEV, EROFS, or another owner."""


@dataclass(frozen=True, slots=True)
class Beyond:
    """Paths that the sandbox of a patch does not allow to write, with the sandbox approved for them."""

    paths: frozenset[str]
    sandbox: Mapping[str, Json] | None
    """The member `sandbox` of a request."""


@dataclass(frozen=True, slots=True)
class AppliedFile:
    """The result for one file."""

    kind: EditKind
    path: str
    """Absolute, at the executor; the new path of a move."""
    sha256: str | None
    """The digest of the new content; None if the file was removed."""
    moved_from: str | None = None


@dataclass(frozen=True, slots=True)
class Applied:
    """A patch that was applied."""

    edits: tuple[Edit, ...]
    text: str
    """The text for the model."""
    files: tuple[AppliedFile, ...]
    cwd: str
    was_atomic: bool
    """Whether the edits were made in one step (one for each sandbox), and not file by file."""
    already_applied: bool = False
    """Whether an earlier call had applied the patch; then nothing was done."""
    in_place: tuple[str, ...] = ()
    """Files that could not be replaced, such as mount points, and were written in place."""

    def diff(self, root: str | None = None) -> str:
        """The changes as a unified diff, with paths relative to `root`, by default `cwd`."""
        changes = [change for edit in self.edits for change in edit.changes()]
        return unified_diff(changes, root=root or self.cwd)


async def plan_at(
    executor: Calls,
    patch: Patch,
    *,
    cwd: str,
    sandbox: Mapping[str, Json] | None = None,
    entry: EntryPoint = "tool",
) -> Plan:
    """Plan a patch of the files of an executor. Changes nothing.

    Args:
        executor: the executor with the files.
        patch: the patch.
        cwd: the base of relative paths, absolute, at the executor.
        sandbox: the sandbox for reading, the member `sandbox` of a request.
        entry: see `plan`.

    Raises:
        PatchError: see `plan`.
        OutcomeUnknown, SessionLost, ExecutorClosed, CallTimeout: the executor is out of reach.
    """
    files = RemoteFiles(executor, sandbox)
    paths = touched_paths(patch, cwd)
    limit = asyncio.Semaphore(_READS_AT_A_TIME)
    found: dict[str, bytes | CannotRead | None] = {}

    async def take(path: str) -> None:
        async with limit:
            found[path] = await files.read(path)

    try:
        async with asyncio.TaskGroup() as group:
            for path in paths:
                group.create_task(take(path))
    except BaseExceptionGroup as failures:
        # All failures have the same cause: the executor is out of reach.
        raise failures.exceptions[0] from None
    links = {path: path for path in paths}
    for hunk in patch.hunks:
        if isinstance(hunk, UpdateFile) and hunk.move_to is not None:
            for path in (absolute(hunk.path, cwd), absolute(hunk.move_to, cwd)):
                links[path] = await files.resolve(path)

    def read(path: str) -> bytes | None:
        content = found[path]
        if isinstance(content, CannotRead):
            raise content
        return content

    # In a thread: matching a large patch takes time, and must not block other calls.
    return await asyncio.to_thread(plan_patch, patch, read, cwd=cwd, entry=entry, resolve=links.__getitem__)


async def apply(
    plan: Plan,
    executor: Calls,
    *,
    sandbox: Mapping[str, Json] | None = None,
    beyond: Beyond | None = None,
) -> Applied:
    """Carry out a plan.

    Args:
        plan: a plan for this executor's files.
        executor: the executor with the files.
        sandbox: the sandbox for writing, the member `sandbox` of a request.
        beyond: paths with another sandbox. They are written in a step of their own, after all others.

    Raises:
        PatchConflict: a file has neither its planned old content nor its planned new content.
        PatchFileError: a file could not be written or removed; the error has the edits made before it.
        OutcomeUnknown: the connection was lost, and the outcome could not be found out after a reconnect.
        SessionLost, ExecutorClosed, CallTimeout: the executor is out of reach.
    """
    was_atomic = False
    run = _Run(executor, sandbox, beyond)
    if plan.edits:
        if _TRANSACTION in executor.capabilities:
            was_atomic = await run.all_at_once(plan)
        if not was_atomic:
            await run.one_by_one(plan)
    files = tuple(
        AppliedFile(edit.kind, edit.target, edit.after_digest, edit.path if edit.move_to else None)
        for edit in plan.edits
    )
    in_place = tuple(change.path for change in run.in_place)
    text = plan.text + "".join(f"{_IN_PLACE}: {path}\n" for path in in_place)
    was_atomic = was_atomic and not in_place
    return Applied(plan.edits, text, files, plan.cwd, was_atomic, plan.already_applied, in_place)


@dataclass(frozen=True, slots=True)
class _Change:
    """The change of one path."""

    path: str
    before: bytes | None
    after: bytes | None
    is_known: bool
    is_new: bool
    """Whether its directory may have to be created."""


def _changes(edit: Edit) -> list[_Change]:
    """The changes of an edit, in the order of the reference."""
    if edit.move_to is None:
        return [_Change(edit.path, edit.before, edit.after, edit.is_known, edit.kind == "add")]
    return [
        _Change(edit.move_to, edit.replaced, edit.after, edit.is_known, is_new=True),
        _Change(edit.path, edit.before, None, is_known=True, is_new=False),
    ]


def _net_changes(edits: Iterable[Edit]) -> list[_Change]:
    """The changes of all edits, merged to one for each path."""
    net: dict[str, _Change] = {}
    for edit in edits:
        for change in _changes(edit):
            known = net.get(change.path)
            if known is not None:
                is_new = known.is_new or change.is_new
                change = _Change(change.path, known.before, change.after, known.is_known, is_new)
            net[change.path] = change
    return [change for change in net.values() if change.before != change.after or not change.is_known]


class _Run:
    """Carries out one plan."""

    def __init__(self, executor: Calls, sandbox: Mapping[str, Json] | None, beyond: Beyond | None) -> None:
        self._files = RemoteFiles(executor, sandbox)
        self._beyond = RemoteFiles(executor, None if beyond is None else beyond.sandbox)
        self._beyond_paths = frozenset[str]() if beyond is None else beyond.paths
        self.in_place: list[_Change] = []
        """The changes that were written in place, outside of a transaction."""

    async def all_at_once(self, plan: Plan) -> bool:
        """Make all edits of a sandbox in one request; False if the request would be too large."""
        try:
            return await self._all_at_once(plan)
        except PatchError:
            await self._restore_in_place()
            raise

    async def _all_at_once(self, plan: Plan) -> bool:
        changes = _net_changes(plan.edits)
        inside = [change for change in changes if change.path not in self._beyond_paths]
        outside = [change for change in changes if change.path in self._beyond_paths]
        if max(len(inside), len(outside)) > MAX_EDITS:
            return False  # they go one by one
        if not await self._transaction(inside):
            return False
        try:
            # If this one is too large, `one_by_one` finds that the first transaction is done.
            return await self._transaction(outside)
        except PatchError as error:
            done = {change.path for change in inside}
            error.edits = tuple(
                edit for edit in plan.edits if all(change.path in done for change in _changes(edit))
            )
            raise

    async def _transaction(self, changes: Sequence[_Change]) -> bool:
        """Make changes that have the same sandbox; False if one request cannot hold them."""
        changes = list(changes)
        while True:
            try:
                return await self._request(changes)
            except PatchFileError as error:
                index = _irreplaceable(changes, error)
                if index is None:
                    raise
                change = changes.pop(index)
                try:
                    await self._files_of(change).write(change.path, change.after or b"", with_parents=False)
                except CallFailed:
                    raise error from None
                self.in_place.append(change)

    async def _restore_in_place(self) -> None:
        """Restore the files that were written in place."""
        while self.in_place:
            change = self.in_place.pop()
            with suppress(CallFailed):
                await self._files_of(change).write(change.path, change.before or b"", with_parents=False)

    async def _request(self, changes: Sequence[_Change]) -> bool:
        request = {"edits": [_edit_on_the_wire(change) for change in changes]}
        for attempt in range(MAX_ATTEMPTS):
            try:
                if changes:
                    await self._files_of(changes[0]).call(_TRANSACTION, request)
            except RequestTooLarge:
                return False
            except OutcomeUnknown:
                if await self._are_done(changes):
                    return True
                if attempt == MAX_ATTEMPTS - 1:
                    raise
            except CallFailed as error:
                if attempt and await self._are_done(changes):
                    return True
                await self._require_unchanged(changes)
                path = changes[0].path
                raise PatchFileError(f"Failed to apply the patch: {error.message}", path) from error
            else:
                return True
        return False

    def _files_of(self, change: _Change) -> RemoteFiles:
        return self._beyond if change.path in self._beyond_paths else self._files

    async def one_by_one(self, plan: Plan) -> None:
        done: list[Edit] = []
        try:
            for edit in plan.edits:
                for change in _changes(edit):
                    await self._carry_out(change, edit)
                done.append(edit)
        except PatchError as error:
            error.edits = tuple(done)
            raise

    async def _carry_out(self, change: _Change, edit: Edit) -> None:
        failure = _failure(change, edit)
        for attempt in range(MAX_ATTEMPTS):
            try:
                if await self._is_done(change):
                    return
                if change.after is None:
                    await self._files_of(change).remove(change.path)
                else:
                    await self._files_of(change).write(change.path, change.after, with_parents=change.is_new)
            except OutcomeUnknown:
                if attempt == MAX_ATTEMPTS - 1:
                    raise
            except CallFailed as error:
                raise PatchFileError(failure, change.path, error.message) from error
            except RequestTooLarge as error:
                raise PatchFileError(failure, change.path, str(error)) from error
            else:
                return

    async def _is_done(self, change: _Change) -> bool:
        """Whether the path has its new content.

        Raises:
            PatchConflict: it has neither the new nor the old content.
        """
        if not change.is_known:
            return False
        found = await self._files_of(change).digest(change.path)
        if found == digest_of(change.after):
            return True
        if found != digest_of(change.before):
            raise _conflict(change.path)
        return False

    async def _are_done(self, changes: Sequence[_Change]) -> bool:
        """Whether a transaction was carried out. Files with known old content tell it for the others, too."""
        known = [change for change in changes if change.is_known]
        states = [await self._is_done(change) for change in known]
        if any(states) and not all(states):
            raise _conflict(next(each.path for each, state in zip(known, states, strict=True) if state))
        return bool(states) and all(states)

    async def _require_unchanged(self, changes: Iterable[_Change]) -> None:
        for change in changes:
            try:
                found = await self._files_of(change).digest(change.path)
            except CallFailed:
                continue
            if change.is_known and found != digest_of(change.before):
                raise _conflict(change.path)


def _irreplaceable(changes: Sequence[_Change], error: PatchFileError) -> int | None:
    """The index of the change whose file cannot be replaced, if it may be writable in place."""
    cause = error.__cause__
    found = _OF_ONE_EDIT.match(cause.message) if isinstance(cause, CallFailed) else None
    if found is None:
        return None
    index = int(found["index"])
    is_change = index < len(changes) and changes[index].is_known
    written = is_change and changes[index].before is not None and changes[index].after is not None
    return index if written else None


def _conflict(path: str) -> PatchConflict:
    return PatchConflict(
        f"{path} changed after the patch was checked against it: read it and try again", path
    )


def _failure(change: _Change, edit: Edit) -> str:
    if change.after is not None:
        return f"Failed to write file {change.path}"
    if edit.kind == "move":
        return f"Failed to remove original {change.path}"
    return f"Failed to delete file {change.path}"


def _edit_on_the_wire(change: _Change) -> Json:
    edit: dict[str, Json] = {
        "op": "remove" if change.after is None else "write",
        "path": path_to_uri(change.path),
        "expected": None,
    }
    if change.is_known:
        digest = digest_of(change.before)
        edit["expected"] = {"absent": True} if digest is None else {"sha256": digest}
    if change.after is not None:
        edit["dataBase64"] = change.after
        edit["createParents"] = change.is_new
        edit["modeFrom"] = None
    return edit
