"""The worker's loop: takes requests from descriptor 0, one after the other, until the daemon closes it.

Only `sendmsg`, `recvmsg` and `recvfrom` are used on the socket: the system-call filter of a sandbox without
network forbids most others. `docs/explanation/security.md`.
"""

from __future__ import annotations

# The C module: `socket` itself takes longer to import than the interpreter to start.
import _socket
import marshal
import os
import sys
import time

from execprotocol.errors import RpcError, file_error
from execserver.fsworker import frames
from execserver.fsworker.program.operations import Handlers

_POLL_SECONDS = 0.01
"""Seconds between two checks for cancellation, each of which is a system call."""


def serve() -> None:
    """Answer requests until the daemon is gone."""
    # The arguments save a system call that the filter forbids.
    connection = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM, 0, fileno=0)
    try:
        handlers = Handlers(_CancelPoll(connection))
        _reply(connection, frames.DONE, b"")
        while True:
            size = int.from_bytes(_receive(connection, frames.REQUEST_HEAD_BYTES), "little")
            # A size of 0 is a cancellation that came after the reply.
            if size:
                _answer(connection, handlers, marshal.loads(_receive(connection, size)))  # noqa: S302
    except (EOFError, ConnectionError):
        return


def _answer(connection: _socket.socket, handlers: Handlers, request: list[object]) -> None:
    name, *arguments = request
    opened = None
    try:
        body, opened = handlers.answer(str(name), arguments)
        status = frames.DONE
    except OSError as error:
        status, body = frames.REFUSED, _error_body(file_error(error))
    except RpcError as error:
        status, body = frames.REFUSED, _error_body(error)
    except Exception as error:
        status, body = frames.BROKEN, f"{type(error).__name__}: {error}".encode("utf-8", "replace")
    try:
        _reply(connection, status, body, opened)
    finally:
        if opened is not None:
            os.close(opened)


def _error_body(error: RpcError) -> bytes:
    parts = (str(error.code), error.name, error.field or "", error.message)
    return "\0".join(parts).encode("utf-8", "replace")


def _reply(connection: _socket.socket, status: int, body: bytes, opened: int | None = None) -> None:
    ancillary = []
    if opened is not None:
        rights = opened.to_bytes(4, sys.byteorder)
        ancillary.append((_socket.SOL_SOCKET, _socket.SCM_RIGHTS, rights))
    view = memoryview(frames.reply_head(status, len(body)) + body)
    while view:
        view = view[connection.sendmsg([view], ancillary) :]
        ancillary = []


def _receive(connection: _socket.socket, size: int) -> bytes:
    parts = []
    while size:
        part = connection.recv(size)
        if not part:
            raise EOFError
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


class _CancelPoll:
    """The stop flag of the running request: set by a cancellation, or by the end of the daemon.

    The daemon sends nothing else while a request runs.
    """

    def __init__(self, connection: _socket.socket) -> None:
        self._connection = connection
        self._next_poll = 0.0

    def is_set(self) -> bool:
        """Check the socket, at most every `_POLL_SECONDS`."""
        now = time.monotonic()
        if now < self._next_poll:
            return False
        self._next_poll = now + _POLL_SECONDS
        try:
            # Data or the end of the stream: both cancel.
            self._connection.recv(1, _socket.MSG_PEEK | _socket.MSG_DONTWAIT)
        except BlockingIOError:
            return False
        return True
