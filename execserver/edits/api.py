"""`fs/applyEdits`: several files are changed as one. `docs/protocol.md`, "Edits".

    look at all paths ─▶ plan ─▶ transaction

Rules kept in this file:

1. A request goes on when its connection ends, unless its steps are not recorded yet (`transaction.py`).
2. What was asked for under a policy is done, undone and tidied up under that policy, by an fs worker, also
   at a later start.
3. What dead servers have begun is ended before anybody can look, unless that takes too long.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from typing import TypeVar

from execprotocol.errors import RpcError
from execserver.edits.backends import ConfinedHands, DirectHands, Hands, Requests
from execserver.edits.journal import Contents, Record, Records
from execserver.edits.plan import Edit, about, make_plan
from execserver.edits.transaction import Transaction
from execserver.filesystem.writing import Content, check_content
from execserver.fsworker.pool import WorkerPool
from execserver.sandbox.policy import Policy
from execserver.telemetry.logs import Logger

log = Logger()

T = TypeVar("T")

START_SECONDS = 5.0
"""How long a start waits for what dead servers have begun. A dead mount must not keep the service down."""

_LOOK_AGAIN_SECONDS = 5.0
"""How soon records are looked at again that somebody had locked: a server that dies slowly, perhaps."""

_STOP_SECONDS = 2.0
"""How long a stop waits for what is being done; the rest is for the next start."""


class Edits:
    """All edits of the daemon. Methods are called on the loop's thread.

    Args:
        open_folder: gives the state folder; blocks, and raises an `RpcError` when there is none.
        pool: works under policies.
    """

    def __init__(self, open_folder: Callable[[], str], pool: WorkerPool) -> None:
        self._open_folder = open_folder
        self._pool = pool
        self._running: set[asyncio.Task[object]] = set()
        self._again: asyncio.TimerHandle | None = None
        self._own: set[str] = set()
        """Names of the records that this server works at, or found and could not bring to an end."""

    async def apply(
        self, edits: Sequence[Edit], policy: Policy | None, requests: Requests
    ) -> list[str | None]:
        """Carry out edits: all of them, or none.

        Args:
            edits: 1 to `MAX_EDITS`.
            policy: what limits them; None for nothing.
            requests: the connection's.

        Returns:
            Of each edit the SHA-256 of what is there now, in hexadecimal digits; None for nothing.

        Raises:
            RpcError: nothing is changed, unless the message says so.
        """
        return await self._to_the_end(self._apply(edits, policy, requests))

    async def replay(self) -> None:
        """End what dead servers have begun, or wait `START_SECONDS` for that. Never raises."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self._to_the_end(self._replay()), START_SECONDS)

    async def close(self) -> None:
        """Wait a moment for what is being done."""
        if self._again is not None:
            self._again.cancel()
        if self._running:
            await asyncio.wait(self._running, timeout=_STOP_SECONDS)

    async def _apply(
        self, edits: Sequence[Edit], policy: Policy | None, requests: Requests
    ) -> list[str | None]:
        hands, calls = self._hands(policy, requests), requests.calls
        contents = await calls.run(_contents, edits)
        looks = await hands.look(edits)
        plan = await calls.run(make_plan, edits, looks, secrets.token_hex(8))
        record = await calls.run(self._begin, Contents(policy, plan.files, plan.folders))
        self._own.add(record.name)
        try:
            return await Transaction(record, hands, requests).carry_out(edits, plan, contents)
        finally:
            self._own.discard(record.name)

    def _begin(self, contents: Contents) -> Record:
        return Records(self._open_folder()).begin(contents)

    # -- what others left

    async def _replay(self) -> None:
        requests = Requests()
        try:
            found, unknown, locked = await requests.calls.run(self._left)
        except RpcError as error:
            log.warning("edits that were not finished cannot be looked for", reason=error.message)
            return
        if unknown:
            log.warning("records of edits were not understood", names=unknown)
        if locked:
            loop = asyncio.get_running_loop()
            self._again = loop.call_later(_LOOK_AGAIN_SECONDS, self._replay_again)
        self._own.update(record.name for record in found)
        await asyncio.gather(*(self._end(record, requests) for record in found))

    async def _end(self, record: Record, requests: Requests) -> None:
        state = record.contents.state
        hands = self._hands(record.contents.policy, requests)
        try:
            await Transaction(record, hands, requests).end()
        except Exception as error:
            log.warning("edits of a server before were not done", record=record.name, reason=str(error))
        else:
            self._own.discard(record.name)
            log.info("ended the edits of a server before", record=record.name, state=state)

    def _left(self) -> tuple[list[Record], list[str], bool]:
        return Records(self._open_folder()).left(frozenset(self._own))

    def _replay_again(self) -> None:
        self._again = None
        self._begin_task(self._replay())

    # -- tasks

    def _hands(self, policy: Policy | None, requests: Requests) -> Hands:
        return DirectHands(requests) if policy is None else ConfinedHands(self._pool, policy, requests)

    async def _to_the_end(self, work: Coroutine[object, object, T]) -> T:
        """Await something that goes on when whoever awaits it is cancelled."""
        return await asyncio.shield(self._begin_task(work))

    def _begin_task(self, work: Coroutine[object, object, T]) -> asyncio.Task[T]:
        task = asyncio.get_running_loop().create_task(work)
        self._running.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[T]) -> None:
        self._running.discard(task)
        if not task.cancelled():
            task.exception()  # Who asked may be gone, and what nobody fetched is no news.


def _contents(edits: Sequence[Edit]) -> list[Content]:
    found = []
    for index, edit in enumerate(edits):
        try:
            found.append(check_content(edit.text or "", "fs/applyEdits"))
        except RpcError as error:
            raise about(index, edit.path, error, "dataBase64") from None
    return found
