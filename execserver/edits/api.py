"""`fs/applyEdits`: change several files at once. `docs/protocol.md`, "Edits".

    inspect all paths ─▶ plan ─▶ transaction

Rules kept in this file:

1. A transaction whose steps are recorded continues when its connection ends (`transaction.py`).
2. A request under a policy is done, undone and cleaned up under that policy, by an fs worker, also at a later
   start.
3. A start completes the transactions of dead servers before the first connection, unless that takes too long.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from typing import TypeVar

from execprotocol.errors import RpcError
from execserver.edits.backends import Backend, ConfinedBackend, DirectBackend, EditContext
from execserver.edits.journal import EntryContents, Journal, JournalEntry
from execserver.edits.plan import Edit, edit_error, make_plan
from execserver.edits.transaction import Transaction
from execserver.filesystem.writing import Content, check_content
from execserver.fsworker.pool import WorkerPool
from execserver.sandbox.policy import Policy
from execserver.telemetry.logs import Logger

log = Logger()

T = TypeVar("T")

START_SECONDS = 5.0
"""How long a start waits for the transactions of dead servers, which a dead mount may hold up."""

_RETRY_SECONDS = 5.0
"""How soon locked entries are tried again: the server that has locked them may be about to end."""

_STOP_SECONDS = 2.0
"""How long a stop waits for running transactions; the next start completes the rest."""


class Edits:
    """All edits of the daemon. Methods are called on the loop's thread.

    Args:
        open_folder: returns the state folder; blocks, and raises an `RpcError` if there is none.
        pool: carries out requests with a policy.
    """

    def __init__(self, open_folder: Callable[[], str], pool: WorkerPool) -> None:
        self._open_folder = open_folder
        self._pool = pool
        self._running: set[asyncio.Task[object]] = set()
        self._retry: asyncio.TimerHandle | None = None
        self._own: set[str] = set()
        """Names of the entries that this server carries out, or found and could not complete."""

    async def apply(
        self, edits: Sequence[Edit], policy: Policy | None, context: EditContext
    ) -> list[str | None]:
        """Carry out edits: all of them, or none.

        Args:
            edits: 1 to `MAX_EDITS`.
            policy: limits them; None for no limits.
            context: the connection's.

        Returns:
            For each edit the SHA-256 of the new content, in hexadecimal digits; None for a removed file.

        Raises:
            RpcError: nothing is changed, unless the message says so.
        """
        return await self._shielded(self._apply(edits, policy, context))

    async def replay(self) -> None:
        """Complete the transactions of dead servers, and wait up to `START_SECONDS`. Never raises."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self._shielded(self._replay()), START_SECONDS)

    async def close(self) -> None:
        """Wait a moment for running transactions."""
        if self._retry is not None:
            self._retry.cancel()
        if self._running:
            await asyncio.wait(self._running, timeout=_STOP_SECONDS)

    async def _apply(
        self, edits: Sequence[Edit], policy: Policy | None, context: EditContext
    ) -> list[str | None]:
        backend, calls = self._backend(policy, context), context.calls
        contents = await calls.run(_contents, edits)
        inspections = await backend.inspect(edits)
        plan = await calls.run(make_plan, edits, inspections, secrets.token_hex(8))
        entry = await calls.run(self._begin, EntryContents(policy, plan.files, plan.folders))
        self._own.add(entry.name)
        try:
            return await Transaction(entry, backend, context).carry_out(edits, plan, contents)
        finally:
            self._own.discard(entry.name)

    def _begin(self, contents: EntryContents) -> JournalEntry:
        return Journal(self._open_folder()).begin(contents)

    # -- transactions of dead servers

    async def _replay(self) -> None:
        context = EditContext()
        try:
            found, unknown, locked = await context.calls.run(self._take_unfinished)
        except RpcError as error:
            log.warning("edits that were not finished cannot be looked for", reason=error.message)
            return
        if unknown:
            log.warning("records of edits were not understood", names=unknown)
        if locked:
            loop = asyncio.get_running_loop()
            self._retry = loop.call_later(_RETRY_SECONDS, self._retry_replay)
        self._own.update(entry.name for entry in found)
        await asyncio.gather(*(self._resume(entry, context) for entry in found))

    async def _resume(self, entry: JournalEntry, context: EditContext) -> None:
        state = entry.contents.state
        backend = self._backend(entry.contents.policy, context)
        try:
            await Transaction(entry, backend, context).resume()
        except Exception as error:
            log.warning("edits of a server before were not done", record=entry.name, reason=str(error))
        else:
            self._own.discard(entry.name)
            log.info("ended the edits of a server before", record=entry.name, state=state)

    def _take_unfinished(self) -> tuple[list[JournalEntry], list[str], bool]:
        return Journal(self._open_folder()).take_unfinished(frozenset(self._own))

    def _retry_replay(self) -> None:
        self._retry = None
        self._create_task(self._replay())

    # -- tasks

    def _backend(self, policy: Policy | None, context: EditContext) -> Backend:
        return DirectBackend(context) if policy is None else ConfinedBackend(self._pool, policy, context)

    async def _shielded(self, work: Coroutine[object, object, T]) -> T:
        """Await work that continues if the caller is cancelled."""
        return await asyncio.shield(self._create_task(work))

    def _create_task(self, work: Coroutine[object, object, T]) -> asyncio.Task[T]:
        task = asyncio.get_running_loop().create_task(work)
        self._running.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[T]) -> None:
        self._running.discard(task)
        if not task.cancelled():
            task.exception()  # The caller may be gone; the error must not count as unhandled.


def _contents(edits: Sequence[Edit]) -> list[Content]:
    found = []
    for index, edit in enumerate(edits):
        try:
            found.append(check_content(edit.text or "", "fs/applyEdits"))
        except RpcError as error:
            raise edit_error(index, edit.path, error, "dataBase64") from None
    return found
