"""The standard input of one process: each write is accepted once, and the end of input follows the last one.

The supervisor keeps the input open, too, so the child reads end of file only after both have closed it.
"""

from __future__ import annotations

import asyncio
import errno
import time
from collections import OrderedDict
from collections.abc import Iterable
from functools import partial
from typing import TYPE_CHECKING, Protocol

from execprotocol.errors import InternalError, InvalidRequest, os_error_text
from execprotocol.limits import REMEMBERED_WRITE_IDS
from execserver.processes.deadlines import Deadline
from execserver.processes.exit import Leader
from execserver.processes.output_reader import OutputReader
from execserver.processes.poller import WRITABLE, DescriptorPoller, Watch
from execserver.processes.prompt_output import wait_for_output
from execserver.processes.recovery_state import RecoveryState
from execserver.processes.reserved_descriptors import ReservedDescriptors
from execserver.processes.spawn import Spawned
from execserver.processes.stdin import InputBudget, StdinWriter
from execserver.processes.terminal_lines import begun_line
from execserver.spool.records import FOREIGN_MARK, stored_write_id
from execserver.telemetry.logs import Logger
from execserver.telemetry.measures import measures

if TYPE_CHECKING:
    from execprotocol.process import CloseStdinResult, WriteResult

log = Logger()

_RETRY_SECONDS = 0.1
"""When the supervisor is asked again to close the input."""


class InputOwner(Protocol):
    """The process that reads the input."""

    number: int
    process_id: str
    tty: bool
    leader: Leader

    @property
    def running(self) -> bool:
        """Whether the leader has not been reaped."""

    def keep_input(self, fd: int) -> None:
        """Have the supervisor keep the file that accepted input goes through.

        Raises:
            OSError: it cannot be kept.
        """


class ProcessInput:
    """The input of a process that has a pipe or a terminal for it.

    Args:
        owner: the process.
        recovery: is told of each write before it is accepted.
        reserved: descriptors for a write when the table is full.
        deadline: is postponed by each write; None if the process has none.
    """

    __slots__ = (
        "_begun_line",
        "_deadline",
        "_foreign_write_ids",
        "_outputs",
        "_owner",
        "_recovery",
        "_reserved",
        "_terminal",
        "_watch",
        "_write_ids",
        "ended",
        "writer",
    )

    def __init__(
        self,
        owner: InputOwner,
        outputs: OutputReader,
        recovery: RecoveryState,
        reserved: ReservedDescriptors,
        deadline: Deadline | None,
    ) -> None:
        self.writer: StdinWriter | None = None
        """None when the process is closed, or its input was ended before this server took over."""
        self.ended = False
        """Whether a client has ended the input."""
        self._owner = owner
        self._outputs = outputs
        self._recovery = recovery
        self._reserved = reserved
        self._deadline = deadline
        self._terminal: int | None = None
        """The terminal; None for a pipe."""
        self._begun_line = 0
        """The bytes of the last line that was written to the terminal, as far as they are known."""
        self._watch: Watch | None = None
        """Of a pipe, until the supervisor has closed it, too."""
        self._write_ids: OrderedDict[str, None] = OrderedDict()
        self._foreign_write_ids: OrderedDict[str, None] | None = None
        """Those of other sessions; rare."""

    def connect(self, spawned: Spawned, poller: DescriptorPoller, budget: InputBudget) -> None:
        """Write to these descriptors. A pipe belongs to this object from now on.

        Raises:
            OSError: the kernel cannot watch them.
        """
        owner = self._owner
        journal = partial(self._recovery.written, owner.number)
        if spawned.relay is not None:
            outputs, ends = self._outputs, spawned.relay[2:]
            self._terminal = spawned.outputs[0]
            self.writer = StdinWriter(
                self._terminal, budget, outputs.want_writable, owner.keep_input, journal, ends
            )
            outputs.serve_input(self)
        elif spawned.stdin is not None:
            watch = self._watch = poller.watch(spawned.stdin, 0, self._on_writable)
            self.writer = StdinWriter(
                watch.fd, budget, partial(watch.want, WRITABLE), owner.keep_input, journal
            )

    def restore(
        self, file: int | None, accepted_end: int, write_ids: Iterable[str], foreign_write_ids: Iterable[str]
    ) -> None:
        """Continue where a previous server stopped.

        Args:
            file: the file with the accepted input, which belongs to this object from now on.
            accepted_end: the length of all accepted input.
            write_ids: the remembered ids of the process's own session, oldest first.
            foreign_write_ids: likewise of other sessions.

        Raises:
            OSError: the descriptors are not what they should be.
        """
        self._write_ids = OrderedDict.fromkeys(write_ids)
        self._foreign_write_ids = OrderedDict.fromkeys(foreign_write_ids) or None
        if self.writer is not None:
            self.writer.restore(file, accepted_end)
            if self.ended and self._owner.running:
                self.writer.close_when_delivered(self._close_pipe)

    @property
    def kept(self) -> bool:
        """Whether the supervisor may still hold the pipe open."""
        return self._watch is not None

    def write(
        self, data: bytes, write_id: str, session: str | None = None, *, whole_lines: bool = False
    ) -> WriteResult:
        """Accept input once per write id.

        Args:
            data: the input.
            write_id: the client's name for it.
            session: the session that it comes from, if that is not the process's own: ids are per session.
            whole_lines: whether to refuse a line that a terminal would cut.

        Raises:
            InternalError: the process is gone.
            InvalidRequest: a line is too long.
        """
        ids = self._write_ids
        if session is not None or write_id[0] == FOREIGN_MARK:
            write_id = stored_write_id(write_id, session)
            ids = ids if session is None else self._ids_of_others()
        if write_id in ids:
            return {"status": "accepted"}
        if self.ended:
            return {"status": "stdinClosed"}
        writer = self.writer
        if writer is None or writer.closed:
            raise InternalError("failed to write to process stdin")
        begun = 0
        if whole_lines and self._terminal is not None:
            begun = begun_line(self._terminal, self._begun_line, data)
        try:
            self._append(writer, data, write_id)
        except OSError as error:
            raise InternalError(f"nothing was written: {os_error_text(error)}") from None
        self._begun_line = begun
        ids[write_id] = None
        if len(ids) > REMEMBERED_WRITE_IDS:
            ids.popitem(last=False)
        if self._deadline is not None:
            self._deadline.touch(time.monotonic())
        measures.stdin_bytes += len(data)
        self._take_prompt_output(writer)
        return {"status": "accepted"}

    def end(self) -> CloseStdinResult:
        """Accept no more input: accepted input is delivered, then end of file.

        Raises:
            InvalidRequest: the input is a terminal.
            InternalError: no memory to record that; nothing has changed.
        """
        owner = self._owner
        if owner.tty:
            raise InvalidRequest(
                f"process {owner.process_id} is on a terminal: write 0x04 (end of file) at the start of a "
                "line instead",
                name="has_terminal",
                field="processId",
            )
        if owner.running and not self.ended:
            try:
                self._recovery.stdin_closed(owner.number)
            except OSError as error:
                raise InternalError(f"the input stays open: {os_error_text(error)}") from None
            self.ended = True
            if self.writer is not None and not self.writer.closed:
                self.writer.close_when_delivered(self._close_pipe)
        return {"status": "accepted"}

    def drop_kept(self) -> bool:
        """Have the supervisor close the pipe, too: a process that holds the other end may wait for that
        before it closes its output. False when that is not possible now.
        """
        owner = self._owner
        pidfd = owner.leader.pidfd
        assert pidfd is not None
        try:
            with self._outputs.descriptors() as ends:
                self._recovery.keep_ends(owner.number, [pidfd, *ends])
        except OSError as error:
            log.warning("the input cannot end now", process=owner.process_id, reason=os_error_text(error))
            return False
        return True

    def close(self) -> None:
        """The child is gone: drop what is queued, and close the pipe."""
        if self.writer is not None and not self.writer.closed:
            self.writer.close()
            if self._watch is not None:
                self._watch.close()

    def release(self) -> None:
        """Close, and accept nothing from now on."""
        self.close()
        self.writer = self._watch = None
        del self._owner  # it refers to this object

    # -- as the input of a terminal

    @property
    def waiting(self) -> bool:
        """Whether something is queued that the terminal did not take."""
        return self.writer is not None and self.writer.waiting

    def flush(self) -> None:
        """Write what the child takes now."""
        if self.writer is not None:
            self.writer.flush()

    # -- inside

    def _on_writable(self, _events: int) -> None:
        self.flush()

    def _ids_of_others(self) -> OrderedDict[str, None]:
        if self._foreign_write_ids is None:
            self._foreign_write_ids = OrderedDict()
        return self._foreign_write_ids

    def _append(self, writer: StdinWriter, data: bytes, write_id: str) -> None:
        try:
            writer.write(data, write_id)
        except OSError as error:
            if error.errno not in (errno.EMFILE, errno.ENFILE):
                raise
            with self._reserved.released():
                writer.write(data, write_id)

    def _take_prompt_output(self, writer: StdinWriter) -> None:
        """Take the child's immediate output, so that it is sent together with the reply to the write."""
        if not writer.waiting and writer.predictor.is_prompt():
            outputs = self._outputs.readable()
            if outputs:
                wait_for_output(writer.predictor, outputs)

    def _close_pipe(self) -> None:
        """Everything was delivered."""
        if self._watch is not None:
            self._watch.close()
            self._try_to_drop_kept()

    def _try_to_drop_kept(self) -> None:
        if self._watch is None or not self._owner.running:
            return
        if self.drop_kept():
            self._watch = None
        else:
            asyncio.get_running_loop().call_later(_RETRY_SECONDS, self._try_to_drop_kept)
