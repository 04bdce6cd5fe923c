"""One request of `fs/applyEdits` from its record on, in the server that began it or in a later one.

    record "staging" ─▶ new files ─▶ look again ─▶ record "forward" ─▶ steps ─▶ record "done" ─▶ tidy
                   └──────────────── tidy             └─ one fails ─▶ record "back" ─▶ undo ─▶ tidy

Rules kept in this file:

1. Until the line "forward" is durable every path of the user's shows the old tree, and whatever ends the
   request leads back there. From then on the steps are done, whether or not anybody still waits for them.
2. A step that cannot be done turns around, and all are undone. Whoever finds the record goes on in the
   direction that it says.
3. The second names of old files stay until the line "done" is durable: so long it can be turned around.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

from execprotocol.errors import InternalError, RpcError
from execserver.edits.backends import Hands, Requests
from execserver.edits.journal import Record
from execserver.edits.plan import Edit, Plan
from execserver.fault_points import reach
from execserver.filesystem.cancel import give_up_if
from execserver.filesystem.writing import Content
from execserver.telemetry.logs import Logger

log = Logger()


class Transaction:
    """A record, and who does what it says."""

    def __init__(self, record: Record, hands: Hands, requests: Requests) -> None:
        self._record = record
        self._hands = hands
        self._requests = requests

    async def carry_out(
        self, edits: Sequence[Edit], plan: Plan, contents: Sequence[Content]
    ) -> list[str | None]:
        """Do all of it, after the record was begun.

        Args:
            edits: the edits.
            plan: theirs.
            contents: of each edit.

        Returns:
            Of each edit the SHA-256 of what is there now, in hexadecimal digits; None for nothing.

        Raises:
            RpcError: nothing is changed, unless the message says so.
        """
        reach("edits-begun")
        try:
            digests = await self._prepare(edits, plan, contents)
        except BaseException:
            await self._tidy()
            raise
        reach("edits-recorded")
        await self._go_forward()
        reach("edits-over")
        return digests

    async def end(self) -> None:
        """Go on with what a dead server has begun.

        Raises:
            RpcError: it was undone, or could be neither done nor undone; then the record stays.
        """
        match self._record.contents.state:
            case "forward":
                await self._go_forward()
            case "back":
                await self._go_back("")
            case "staging" | "done":
                await self._tidy()

    async def _prepare(
        self, edits: Sequence[Edit], plan: Plan, contents: Sequence[Content]
    ) -> list[str | None]:
        """Make all that the steps need, up to the line "forward"; the digests."""
        calls = self._requests.calls
        stagings = [(edits[index], index, staging) for index, staging in plan.stagings]
        made = await self._hands.stage(stagings, [contents[index] for _, index, _ in stagings])
        staged = [each for each, _ in made]
        await self._hands.require_still(await calls.run(plan.still, staged))
        await self._hands.sync([*plan.folders, *plan.touched])
        reach("edits-ready")
        give_up_if(self._requests.stop)
        await calls.run(lambda: self._record.forward(plan.steps(staged), plan.touched))
        digests: list[str | None] = [None] * len(edits)
        for (_, index, _), (_, digest) in zip(stagings, made, strict=True):
            digests[index] = digest
        return digests

    async def _go_forward(self) -> None:
        record, calls = self._record, self._requests.calls
        try:
            await self._hands.do(record.contents.steps)
            await self._hands.sync(record.contents.touched)
            reach("edits-done")
            await calls.run(record.done)
        except Exception as caught:
            error = caught if isinstance(caught, RpcError) else InternalError(f"a fault of ours: {caught!r}")
            with suppress(RpcError):  # a disk that takes no line; undoing needs no room
                await calls.run(record.back)
            reach("edits-back")
            await self._go_back(f"{error.message}; and ")
            raise type(error)(f"{error.message}; nothing is changed", name=error.name) from None
        reach("edits-tidy")
        await self._tidy()

    async def _go_back(self, why: str) -> None:
        try:
            await self._hands.undo(self._record.contents.steps)
            await self._hands.sync(self._record.contents.touched)
        except Exception as error:
            self._record.leave()
            raise InternalError(
                f"{why}what was done already could not be undone: {error}. Some of the edits are "
                "carried out and some are not; the daemon tries to undo them again when it starts next",
                name="edits_half_done",
            ) from None
        await self._tidy()

    async def _tidy(self) -> None:
        """Remove what is left of ours, and the record. What cannot be removed is for the next start."""
        contents = self._record.contents
        try:
            await self._hands.discard(contents.files, contents.folders)
            await self._hands.sync(contents.touched)
            reach("edits-tidied")
            await self._requests.calls.run(self._record.remove)
        except Exception as error:
            log.warning(
                "files of edits could not be removed yet", record=self._record.name, reason=str(error)
            )
            self._record.leave()
