"""The client of the fd store, in the server (messages: `fd_store_protocol.py`).

When a call has returned, the descriptor is safe for the new server, and the process will be waited for, even
if the server dies at once: messages outlive their sender.
"""

from __future__ import annotations

import errno
import os
import select
import socket
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

from execserver.supervisor.fd_store_protocol import (
    ARENA,
    DATA,
    EXITED,
    HANDED,
    INPUT,
    KEEP,
    LEDGER,
    MAX_DESCRIPTORS,
    MAX_DROPS,
    MEMORY,
    PROCESS,
    REAPED,
    RELEASE,
    SANDBOX,
    SERVICE,
    STATUS,
    receive,
    send,
    send_drops,
)
from execserver.supervisor.packets import ChannelError, SupervisorGoneError

__all__ = [
    "ARENA",
    "DATA",
    "INPUT",
    "LEDGER",
    "MAX_DESCRIPTORS",
    "MEMORY",
    "PROCESS",
    "SANDBOX",
    "SERVICE",
    "STATUS",
    "EndedProcess",
    "FdStoreClient",
    "StoredSlot",
]

# In-flight descriptors of one user are limited. The supervisor receives ours within milliseconds; if the
# limit is still reached after this time, they belong to other programs.
_CROWDED_S = 2.0
_CROWDED_RETRY_S = 0.001


class StoredSlot(NamedTuple):
    """The content of a slot. The receiver owns the descriptors (close-on-exec)."""

    number: int
    slot: int
    descriptors: list[int]


class EndedProcess(NamedTuple):
    """A process of an earlier server that has ended; `status` is for `os.waitstatus_to_exitcode`."""

    number: int
    status: int


class FdStoreClient:
    """The client of the fd store. Not for several threads at once."""

    def __init__(self, channel: socket.socket, nudge: int) -> None:
        """Use these ends of the channel.

        Args:
            channel: a blocking socket; belongs to the client from now on.
            nudge: the write end of the pipe that wakes the supervisor; belongs to the client from now on.
        """
        self._socket = channel
        self._nudge = nudge
        os.set_blocking(nudge, False)
        self._room = select.poll()  # select(2) takes no descriptor above 1023
        self._room.register(channel, select.POLLOUT)

    def keep(self, number: int, slot: int, descriptors: Sequence[int], *, urgent: bool = False) -> None:
        """Store copies of descriptors, which replace the content of the slot.

        Args:
            number: 0 for the service, else a process.
            slot: 0 to 255.
            descriptors: at most `MAX_DESCRIPTORS`; none empties the slot.
            urgent: close the replaced ones at once and not within 50 ms, because a peer waits for the close.

        Raises:
            OSError: ETOOMANYREFS: other programs of this user hold the limit of descriptors in flight.
        """
        self._send(KEEP, number, slot, descriptors)
        if urgent:
            self._wake()

    def release(self, number: int, *, urgent: bool = False) -> None:
        """Drop all slots of a number, and reap its process, now or when it ends.

        Args:
            number: unknown ones are ignored.
            urgent: at once and not within 50 ms, because the peer of a terminal or pipe waits for the close.
        """
        self._send(RELEASE, number)
        if urgent:
            self._wake()

    def drop(self, slots: Sequence[tuple[int, int]]) -> None:
        """Empty many (number, slot) with one message; `EVERY_SLOT` releases the number."""
        for first in range(0, len(slots), MAX_DROPS):
            self._when_there_is_room(partial(send_drops, self._socket, slots[first : first + MAX_DROPS]))

    def reaped(self, number: int) -> None:
        """Confirm that the end of an adopted process is recorded: it is reaped, and not reported again."""
        self._send(REAPED, number)

    def fileno(self) -> int:
        """The descriptor, which is readable when `receive` has a result."""
        return self._socket.fileno()

    def receive(self) -> EndedProcess | None:
        """The next ended process of an earlier server; None if there is none or the supervisor is gone."""
        while True:
            try:
                message = receive(self._socket, socket.MSG_DONTWAIT)
            except BlockingIOError:
                return None
            if message is None:
                return None
            if message.kind == EXITED:
                return EndedProcess(message.number, message.value)

    def take_over(self) -> list[StoredSlot | EndedProcess]:
        """Receive everything that the previous server had stored. Call it once, if `Hello.take_over`.

        A process whose descriptors do not fit in our descriptor table is missing, and released.

        Raises:
            SupervisorGoneError: the supervisor ended.
            ChannelError: descriptors of the service itself did not fit.
        """
        handed: list[StoredSlot | EndedProcess] = []
        lost: set[int] = set()
        while (message := receive(self._socket)) is not None and message.kind != HANDED:
            if message.lost:
                lost.add(message.number)
            elif message.kind == EXITED:
                handed.append(EndedProcess(message.number, message.value))
            else:
                handed.append(StoredSlot(message.number, message.slot, message.descriptors))
        failed = message is None or SERVICE in lost
        for entry in handed:
            if isinstance(entry, StoredSlot) and (failed or entry.number in lost):
                for descriptor in entry.descriptors:
                    os.close(descriptor)
        if message is None:
            raise SupervisorGoneError("the supervisor ended during the takeover")
        if failed:
            raise ChannelError(_FULL)
        for number in lost:
            self.release(number)
        return [entry for entry in handed if entry.number not in lost]

    def close(self) -> None:
        """Close both descriptors."""
        self._socket.close()
        os.close(self._nudge)

    def _send(self, kind: int, number: int, slot: int = 0, descriptors: Sequence[int] = ()) -> None:
        try:
            send(self._socket, kind, number, slot, 0, descriptors)
        except OSError:
            self._when_there_is_room(lambda: send(self._socket, kind, number, slot, 0, descriptors))

    def _when_there_is_room(self, send_it: Callable[[], None]) -> None:
        crowded_until = 0.0
        while True:
            try:
                return send_it()
            except BlockingIOError:
                self._wake()
                self._room.poll()
            except (BrokenPipeError, ConnectionResetError):
                return None  # the supervisor is gone, and its pidfd reports it
            except OSError as error:
                now = time.monotonic()
                crowded_until = crowded_until or now + _CROWDED_S
                if error.errno != errno.ETOOMANYREFS or now >= crowded_until:
                    raise
                self._wake()
                time.sleep(_CROWDED_RETRY_S)

    def _wake(self) -> None:
        try:
            os.write(self._nudge, b"\0")
        except (BlockingIOError, BrokenPipeError):
            return  # it is already awake, or gone


_FULL = "the takeover lost descriptors: the descriptor table is full"
