"""The daemon's client of one fs worker: sends requests and receives replies on the loop, without blocking.

Rules kept in this file:

1. A worker has one request at a time. The caller ensures that.
2. A worker is killed if it does not begin a reply within `SILENT_SECONDS`, or does not complete it within as
   many more: a compromised worker must not keep its slot by sending byte after byte. A killed worker may hang
   in the kernel; the pool does not wait for it.
3. The descriptor of a reply is passed to an owner at once, or closed.
"""

from __future__ import annotations

import asyncio
import os
import socket
import struct
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING

from execprotocol.errors import InternalError, InvalidRequest, NotFound, RpcError
from execserver.filesystem.cancel import RequestCancelled
from execserver.filesystem.descriptors import Descriptor
from execserver.fsworker import frames

if TYPE_CHECKING:
    from execserver.fsworker.process import WorkerProcess

SILENT_SECONDS = 30.0
"""Longer than any pause of a healthy disk, and shorter than the timeouts of clients."""

_PIECE_BYTES = 256 << 10
"""Read from the socket at a time. More would block the loop for longer than a piece of output does."""

_MAX_ERROR_BYTES = 64 << 10
"""Of an error message, which may name two paths."""

_ROOM = socket.CMSG_SPACE(struct.calcsize("i"))

_ERRORS: tuple[type[RpcError], ...] = (InvalidRequest, NotFound, InternalError)

Adopt = Callable[[int], Descriptor]
Answer = tuple[bytes, Descriptor | None]


class WorkerLost(InternalError):
    """The worker ended, or was killed, before it answered."""


class WorkerClient:
    """The connection to a worker.

    Args:
        process: the worker; owned by this object from now on.
        idle: called after each reply, when the worker can take the next request.
        lost: called once when the worker can no longer be used; not after `end`.
        exited: called once when its process has ended.
        silent_seconds: the timeout of a request.
    """

    def __init__(
        self,
        process: WorkerProcess,
        idle: Callable[[], None],
        lost: Callable[[WorkerClient], None],
        exited: Callable[[WorkerClient], None],
        silent_seconds: float = SILENT_SECONDS,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._process = process
        self._idle = idle
        self._lost = lost
        self._exited = exited
        self._silent_seconds = silent_seconds
        self._fd = process.socket.fileno()
        self._unsent = b""
        self._received = bytearray()
        self._reply_bytes: int | None = None
        self._opened = -1
        self._adopt: Adopt | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._answer: asyncio.Future[Answer] | None = None
        self.alive = True
        """Whether the worker can be used."""
        self.ready: asyncio.Future[Answer] = self._loop.create_future()
        """Done when the worker has started; fails if it ends before that."""
        self._loop.add_reader(self._fd, self._readable)
        self._loop.add_reader(process.pidfd, self._ended)
        self._expect(self.ready, None)

    @property
    def short_lived(self) -> bool:
        """Whether to end it soon (`WorkerProcess.short_lived`)."""
        return self._process.short_lived

    @property
    def busy(self) -> bool:
        """Whether a request is not answered yet."""
        return self._answer is not None

    def ask(self, request: bytes, answer: asyncio.Future[Answer], adopt: Adopt | None = None) -> None:
        """Send a request. If `answer` is cancelled, the worker is asked to cancel, and stays busy until then.

        Args:
            request: the name of the operation and its arguments, marshalled.
            answer: receives the body of the reply, `WorkerLost`, or the error that the worker reports.
            adopt: takes ownership of the descriptor of the file that the worker opens. If None, the worker
                must not open any.
        """
        assert self.alive
        self._expect(answer, adopt)
        self._send(frames.request_frame(request))

    def end(self) -> None:
        """Kill the worker; a running request fails. `lost` is not called."""
        self._fail("was ended", report=False)

    def stderr_text(self) -> str:
        """The end of the worker's standard error."""
        return self._process.stderr_text()

    # -- requests

    def _expect(self, answer: asyncio.Future[Answer], adopt: Adopt | None) -> None:
        assert self._answer is None
        self._answer, self._adopt = answer, adopt
        answer.add_done_callback(self._answer_done)
        self._timer = self._loop.call_later(self._silent_seconds, self._silent)

    def _answer_done(self, future: asyncio.Future[Answer]) -> None:
        if future.cancelled() and future is self._answer and self.alive:
            self._send(frames.CANCEL)

    def _send(self, data: bytes) -> None:
        if self._unsent:
            self._unsent += data
            return
        try:
            sent = self._process.socket.send(data)
        except BlockingIOError:
            sent = 0
        except OSError:
            # The worker has closed the socket. The reader of replies reports that.
            return
        if sent < len(data):
            self._unsent = data[sent:]
            self._loop.add_writer(self._fd, self._writable)

    def _writable(self) -> None:
        data, self._unsent = self._unsent, b""
        self._loop.remove_writer(self._fd)
        self._send(data)

    # -- replies

    def _readable(self) -> bool:
        """Read a piece of a reply. Returns whether there may be more."""
        try:
            data, ancillary, flags, _ = self._process.socket.recvmsg(
                _PIECE_BYTES, _ROOM, socket.MSG_CMSG_CLOEXEC
            )
        except BlockingIOError:
            return False
        except OSError:
            # Reset: the worker ended without having read the request.
            data, ancillary, flags = b"", [], 0
        received = _descriptors(ancillary)
        if self._opened < 0 and received:
            self._opened = received.pop()
        for fd in received:
            os.close(fd)
        if flags & socket.MSG_CTRUNC:
            self._fail("could not pass an open file: the daemon has too many open files")
        elif not data:
            self._fail("ended")
        elif self._answer is None:
            self._fail("sent data without a request")
        else:
            self._received += data
            self._take_reply()
        return self.alive

    def _take_reply(self) -> None:
        received = self._received
        if self._reply_bytes is None:
            if len(received) < frames.REPLY_HEAD_BYTES:
                return
            body_bytes = int.from_bytes(received[1 : frames.REPLY_HEAD_BYTES], "little")
            if body_bytes > frames.MAX_BODY_BYTES:
                self._fail(f"has an answer of {body_bytes} bytes; at most {frames.MAX_BODY_BYTES} are taken")
                return
            self._reply_bytes = frames.REPLY_HEAD_BYTES + body_bytes
            self._restart_timer()
        if len(received) < self._reply_bytes:
            return
        status, body = received[0], bytes(received[frames.REPLY_HEAD_BYTES : self._reply_bytes])
        more = len(received) > self._reply_bytes
        self._received = bytearray()
        self._reply_bytes = None
        if more or (self._opened >= 0 and self._adopt is None):
            self._fail("sent data without a request")
            return
        self._deliver(status, body)

    def _deliver(self, status: int, body: bytes) -> None:
        answer, adopt, opened = self._answer, self._adopt, self._opened
        assert answer is not None
        self._settle()
        if status == frames.DONE and adopt is not None and opened < 0:
            status, body = frames.BROKEN, b"it did not pass the file that it opened"
        if opened >= 0 and (answer.done() or adopt is None or status != frames.DONE):
            os.close(opened)
        if not answer.done():
            if status != frames.DONE:
                answer.set_exception(_error(status, body))
            else:
                try:
                    answer.set_result((body, None if adopt is None else adopt(opened)))
                except RequestCancelled as error:
                    answer.set_exception(error)
        self._idle()

    def _settle(self) -> None:
        """Forget the request."""
        if self._timer is not None:
            self._timer.cancel()
        self._answer = self._adopt = self._timer = None
        self._opened = -1

    def _restart_timer(self) -> None:
        """A reply has begun. The worker has all of it before it sends any of it."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_later(self._silent_seconds, self._silent)

    # -- the end

    def _silent(self) -> None:
        self._timer = None
        self._fail(f"did not answer for {self._silent_seconds:g} s and was ended")

    def _fail(self, what: str, *, report: bool = True) -> None:
        """Kill the worker, and fail its request."""
        if not self.alive:
            return
        self.alive = False
        self._loop.remove_reader(self._fd)
        if self._unsent:
            self._loop.remove_writer(self._fd)
        self._process.kill()
        future, opened = self._answer, self._opened
        self._settle()
        if opened >= 0:
            os.close(opened)
        if future is not None and not future.done():
            stderr = self._process.stderr_text()
            future.set_exception(
                WorkerLost(f"the sandbox's fs worker {what}" + (f": {stderr}" if stderr else ""))
            )
            # The caller may be gone; the error must not count as unhandled.
            future.exception()
        if report:
            self._lost(self)

    def _ended(self) -> None:
        """The process has ended. Its last reply may still be in the socket."""
        self._loop.remove_reader(self._process.pidfd)
        while self.alive and self._readable():
            pass
        self._fail("ended")
        with suppress(OSError):
            self._process.release()
        self._exited(self)


def _descriptors(ancillary: list[tuple[int, int, bytes]]) -> list[int]:
    found: list[int] = []
    for level, kind, content in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            usable = len(content) - len(content) % 4
            found += struct.unpack(f"{usable // 4}i", content[:usable])
    return found


def _error(status: int, body: bytes) -> Exception:
    """The exception of an unsuccessful reply."""
    text = body[:_MAX_ERROR_BYTES].decode("utf-8", "replace")
    if status == frames.REFUSED:
        code, name, field, message = [*text.split("\0", 3), "", "", ""][:4]
        kind = next((kind for kind in _ERRORS if str(kind.code) == code), InternalError)
        return kind(message, name=name or None, field=field or None)
    return RuntimeError(f"in the sandbox's fs worker: {text}")
