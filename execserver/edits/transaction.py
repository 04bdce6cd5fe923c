"""The transaction of an `fs/applyEdits`, in the server that began it or in a later one.

    "staging" ─▶ new files ─▶ check targets ─▶ "forward" ─▶ steps ─▶ "done" ─▶ clean up
              └─ on failure ─▶ clean up                  └─ on failure ─▶ "back" ─▶ undo ─▶ clean up

The quoted words are lines of the journal entry. Rules kept in this file:

1. Until the line "forward" is durable, all paths of the user show the old tree, and a failure leaves it so.
   From then on the steps are done, even if the client is gone.
2. If a step fails, all steps are undone. A later server continues in the direction of the last line.
3. The second names of old files stay until the line "done" is durable: until then the steps can be undone.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

from execprotocol.errors import InternalError, RpcError
from execserver.edits.backends import Backend, EditContext
from execserver.edits.journal import JournalEntry
from execserver.edits.plan import Edit, Plan
from execserver.fault_points import reach
from execserver.filesystem.cancel import raise_if_cancelled
from execserver.filesystem.writing import Content
from execserver.telemetry.logs import Logger

log = Logger()


class Transaction:
    """A journal entry, and the backend that carries it out."""

    def __init__(self, entry: JournalEntry, backend: Backend, context: EditContext) -> None:
        self._entry = entry
        self._backend = backend
        self._context = context

    async def carry_out(
        self, edits: Sequence[Edit], plan: Plan, contents: Sequence[Content]
    ) -> list[str | None]:
        """Carry out the whole transaction, whose entry has begun.

        Args:
            edits: the edits.
            plan: the plan for them.
            contents: one for each edit.

        Returns:
            For each edit the SHA-256 of the new content, in hexadecimal digits; None for a removed file.

        Raises:
            RpcError: nothing is changed, unless the message says so.
        """
        reach("edits-begun")
        try:
            digests = await self._stage_all(edits, plan, contents)
        except BaseException:
            await self._clean_up()
            raise
        reach("edits-recorded")
        await self._roll_forward()
        reach("edits-over")
        return digests

    async def resume(self) -> None:
        """Complete a transaction that a dead server has begun.

        Raises:
            RpcError: the steps were undone, or could be neither done nor undone; then the entry stays.
        """
        match self._entry.contents.state:
            case "forward":
                await self._roll_forward()
            case "back":
                await self._roll_back("")
            case "staging" | "done":
                await self._clean_up()

    async def _stage_all(
        self, edits: Sequence[Edit], plan: Plan, contents: Sequence[Content]
    ) -> list[str | None]:
        """Stage the new files, and write the line "forward". Returns the digests."""
        calls = self._context.calls
        stagings = [(edits[index], index, staging) for index, staging in plan.stagings]
        made = await self._backend.stage(stagings, [contents[index] for _, index, _ in stagings])
        staged = [each for each, _ in made]
        await self._backend.require_unchanged(await calls.run(plan.expected_states, staged))
        await self._backend.sync([*plan.folders, *plan.touched])
        reach("edits-ready")
        raise_if_cancelled(self._context.stop)
        await calls.run(lambda: self._entry.forward(plan.steps(staged), plan.touched))
        digests: list[str | None] = [None] * len(edits)
        for (_, index, _), (_, digest) in zip(stagings, made, strict=True):
            digests[index] = digest
        return digests

    async def _roll_forward(self) -> None:
        entry, calls = self._entry, self._context.calls
        try:
            await self._backend.do(entry.contents.steps)
            await self._backend.sync(entry.contents.touched)
            reach("edits-done")
            await calls.run(entry.done)
        except Exception as caught:
            error = caught if isinstance(caught, RpcError) else InternalError(f"unexpected error: {caught!r}")
            with suppress(RpcError):  # a full disk; undoing needs no space
                await calls.run(entry.back)
            reach("edits-back")
            await self._roll_back(f"{error.message}; and ")
            raise type(error)(f"{error.message}; nothing is changed", name=error.name) from None
        reach("edits-tidy")
        await self._clean_up()

    async def _roll_back(self, why: str) -> None:
        try:
            await self._backend.undo(self._entry.contents.steps)
            await self._backend.sync(self._entry.contents.touched)
        except Exception as error:
            self._entry.leave()
            raise InternalError(
                f"{why}what was done already could not be undone: {error}. Some of the edits are "
                "carried out and some are not; the daemon tries to undo them again when it starts next",
                name="edits_half_done",
            ) from None
        await self._clean_up()

    async def _clean_up(self) -> None:
        """Remove the temporary files, and the entry. The next start retries what fails."""
        contents = self._entry.contents
        try:
            await self._backend.discard(contents.files, contents.folders)
            await self._backend.sync(contents.touched)
            reach("edits-tidied")
            await self._context.calls.run(self._entry.remove)
        except Exception as error:
            log.warning("files of edits could not be removed yet", record=self._entry.name, reason=str(error))
            self._entry.leave()
