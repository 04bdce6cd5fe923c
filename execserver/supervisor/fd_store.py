"""The fd store: descriptors of a server that outlive it (messages and slots: `fd_store_protocol.py`).

1. A descriptor is never examined, except the pidfd in slot `PROCESS` for its pid, and that only when the
   server that stored it is dead: from then on the process is a child of ours (`adopt`).
2. The end of an adopted process is sent to every server until one confirms or releases it; until then the
   process is not reaped (`must_not_reap`).
3. Reading is lazy: the first message starts a wait of 50 ms, after which all messages are read at once. A
   nudge ends the wait. No message is lost: messages outlive their sender, and are read to the end after its
   death.
4. A number whose descriptors did not all arrive is *broken*: it is dropped, reported once, and not handed
   over; the new server kills the processes with its tag.
5. Sending never blocks: a message that does not fit is sent later. Its content is looked up when it is sent,
   so it may be replaced or released before.
"""

from __future__ import annotations

import errno
import os
import resource
import socket
from collections import deque

from execserver.supervisor import fd_store_protocol, launch
from execserver.supervisor.children import status_of_zombie
from execserver.supervisor.fd_store_protocol import (
    DROP,
    EVERY_SLOT,
    EXITED,
    HANDED,
    KEEP,
    KEPT,
    PROCESS,
    REAPED,
    RELEASE,
    SERVICE,
)
from execserver.supervisor.loop import Loop
from execserver.supervisor.packets import ChannelError, channel_pair

LAZY_S = 0.05
# Left free for our own work when the stored descriptors fill the table: channels, pidfds, /proc.
_RESERVED_DESCRIPTORS = 64
# Interval of retries while the user's descriptors in flight are at their limit; there is no event for its
# end.
_CROWDED_RETRY_S = 0.01


class _Entry:
    """The slots of one number."""

    def __init__(self) -> None:
        self.slots: dict[int, list[int]] = {}
        self.pid: int | None = None
        """Of an adopted process; None before, and after its end is confirmed."""
        self.adopted = False
        self.status: int | None = None


class FdStore:
    """The stored descriptors, and the channel to the current server."""

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self._entries: dict[int, _Entry] = {}
        self._numbers: dict[int, int] = {}
        """The numbers of adopted processes whose end is not confirmed, by pid."""
        self._broken: set[int] = set()
        self._channel: socket.socket | None = None
        self._nudge = -1
        self._waiting = False
        self._unsent: deque[tuple[int, int, int]] = deque()
        """(kind, number, slot)"""

    def connect(self) -> tuple[socket.socket, int]:
        """Open the channel for a new server; returns its ends: the channel and the nudge pipe.

        Raises:
            OSError: no descriptors or memory.
        """
        ours, theirs = channel_pair()
        try:
            self._nudge, nudge = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        except OSError:
            ours.close()
            theirs.close()
            raise
        self._channel = ours
        self._loop.watch(self._nudge, self._nudged)
        self._watch()
        return theirs, nudge

    def disconnect(self) -> None:
        """Read the remaining messages of a dead server, and close its channel."""
        self._unsent.clear()
        if self._channel is None:
            return
        self.read()
        self._loop.forget(self._channel.fileno())
        self._loop.forget(self._nudge)
        self._channel.close()
        os.close(self._nudge)
        self._channel = None

    def adopt(self) -> None:
        """Find the pids of stored processes after the death of their server."""
        for number, entry in self._entries.items():
            if number != SERVICE and not entry.adopted and entry.slots.get(PROCESS):
                entry.adopted = True
                entry.pid = _pid_behind(entry.slots[PROCESS][0])
                if entry.pid is not None:
                    self._numbers[entry.pid] = number

    def hand_over(self) -> None:
        """Send everything to the new server, as fast as it reads."""
        for number, entry in self._entries.items():
            self._unsent += [(KEPT, number, slot) for slot in entry.slots]
        ended = [number for number in self._numbers.values() if self._entries[number].status is not None]
        self._unsent += [(EXITED, number, 0) for number in ended]
        self._unsent.append((HANDED, 0, 0))
        self._flush()

    def must_not_reap(self, pid: int, status: int) -> bool:
        """Whether an ended child has to stay a zombie; its end is sent to the server once."""
        number = self._numbers.get(pid)
        if number is None:
            return False
        entry = self._entries[number]
        if entry.status is None:
            entry.status = status
            if self._channel is not None:
                self._unsent.append((EXITED, number, 0))
                self._flush()
        return True

    def look_for_ends(self) -> None:
        """Check the adopted processes by their pids.

        While a server hangs in the kernel they are its children and not ours, so no signal reports their end.
        """
        for pid in list(self._numbers):
            status = status_of_zombie(pid)
            if status is not None:
                self.must_not_reap(pid, status)

    def read(self) -> None:
        """Read all available messages."""
        self._loop.cancel(self.read)
        self._waiting = False
        # Descriptors in messages must leave some places in the table free.
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft - _RESERVED_DESCRIPTORS, soft // 2), hard))
        try:
            is_open = self._read_all()
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        if is_open:
            self._watch()

    def _read_all(self) -> bool:
        """Read all messages; returns False at the end of the channel."""
        while self._channel is not None:
            try:
                message = fd_store_protocol.receive(self._channel, socket.MSG_DONTWAIT)
            except BlockingIOError:
                break
            except ChannelError as error:
                launch.report(str(error))
                continue
            except OSError as error:  # no memory; the message is read later
                launch.report(f"messages for the fd store cannot be read: {error}")
                break
            if message is None:  # the server's pidfd reports its death
                self._loop.forget(self._channel.fileno())
                return False
            self._take(message)
        return True

    def close(self) -> None:
        """Close all descriptors."""
        self.disconnect()
        for number in list(self._entries):
            self._release(number)

    def _watch(self) -> None:
        if self._channel is not None:
            readable = None if self._waiting else self._first_message
            self._loop.watch(self._channel.fileno(), readable, self._flush if self._unsent else None)

    def _first_message(self) -> None:
        self._waiting = True
        self._loop.call_in(LAZY_S, self.read)
        self._watch()

    def _nudged(self) -> None:
        if not os.read(self._nudge, 4096):
            self._loop.forget(self._nudge)
        self.read()

    def _take(self, message: fd_store_protocol.Message) -> None:
        number = message.number
        if message.kind == KEEP:
            self._keep(message)
        elif message.kind == RELEASE:
            self._release(number)
        elif message.kind == DROP:
            for dropped, slot in message.drops:
                self._drop(dropped, slot)
        elif message.kind == REAPED and number in self._entries:
            self._confirm(self._entries[number])

    def _keep(self, message: fd_store_protocol.Message) -> None:
        number = message.number
        if message.lost and number not in self._broken:
            launch.report(
                f"descriptor table full: number {number} of the server would not survive the server"
            )
            self._release(number)
            self._broken.add(number)
        if number in self._broken:
            _close(message.descriptors)
            return
        slots = self._entries.setdefault(number, _Entry()).slots
        _close(slots.pop(message.slot, []))
        if message.descriptors:
            slots[message.slot] = message.descriptors

    def _drop(self, number: int, slot: int) -> None:
        if slot == EVERY_SLOT:
            self._release(number)
            return
        if slot == PROCESS:
            self._broken.discard(number)
        entry = self._entries.get(number)
        if entry is not None:
            _close(entry.slots.pop(slot, []))
            if not entry.slots and entry.pid is None:
                del self._entries[number]

    def _release(self, number: int) -> None:
        self._broken.discard(number)
        entry = self._entries.pop(number, None)
        if entry is not None:
            self._confirm(entry)
            for descriptors in entry.slots.values():
                _close(descriptors)

    def _confirm(self, entry: _Entry) -> None:
        """Let the process be reaped like others."""
        if entry.pid is not None:
            del self._numbers[entry.pid]
            entry.pid = None

    def _flush(self) -> None:
        self._loop.cancel(self._flush)
        while self._unsent and self._channel is not None:
            try:
                self._send(*self._unsent[0])
            except BlockingIOError:
                break
            except OSError as error:
                if error.errno in (errno.EPIPE, errno.ECONNRESET):
                    self._unsent.clear()  # the server's pidfd reports its death
                else:
                    self._loop.call_in(_CROWDED_RETRY_S, self._flush)
                    return
            else:
                self._unsent.popleft()
        self._watch()

    def _send(self, kind: int, number: int, slot: int) -> None:
        assert self._channel is not None
        if kind == HANDED:
            fd_store_protocol.send(self._channel, HANDED)
            return
        entry = self._entries.get(number)
        if entry is None:
            return
        if kind == KEPT and slot in entry.slots:
            fd_store_protocol.send(self._channel, KEPT, number, slot, 0, entry.slots[slot])
        elif kind == EXITED and entry.pid is not None and entry.status is not None:
            fd_store_protocol.send(self._channel, EXITED, number, 0, entry.status)


def _pid_behind(pidfd: int) -> int | None:
    """The pid of an unreaped process; None if it is reaped, or if this is no pidfd."""
    with open(f"/proc/self/fdinfo/{pidfd}", "rb") as file:
        for line in file:
            if line.startswith(b"Pid:"):
                pid = int(line.split()[1])
                return pid if pid > 0 else None
    return None


def _close(descriptors: list[int]) -> None:
    for descriptor in descriptors:
        try:
            os.close(descriptor)
        except OSError:  # a network file system may report a failed write here; the descriptor is closed
            continue
