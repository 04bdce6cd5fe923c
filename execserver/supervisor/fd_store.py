"""The descriptor fd_store: what a server wants to outlive it (messages and slots: `fd_store_protocol.py`).

1. Nothing is asked about a descriptor but the pid behind the pidfd in slot `PROCESS`, and that only when
   the server that registered it is dead: from then on the process is a child of ours (`adopt`).
2. An adopted process that ended is told to every server until one confirms or releases it, and not reaped
   before (`must_not_reap`).
3. Reading is lazy: the first message wakes us, the rest of 50 ms is read in one go. A nudge ends the wait.
   Nothing is lost by it: messages outlive their sender, and are read to the end after its death.
4. A number whose descriptors did not all arrive is *broken*: it is dropped, said once, and handed to nobody;
   the next server kills what bears its tag.
5. Towards the server nothing waits: what does not fit is sent when there is room. What is to be sent is
   looked up at that moment, so it may be replaced or released meanwhile.
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
# Our own work needs these even when what is kept fills the descriptor table: channels, pidfds, /proc.
_RESERVED_DESCRIPTORS = 64
# The user's descriptors in flight are at their limit; no event tells when they are not.
_CROWDED_RETRY_S = 0.01


class _Entry:
    """What is kept under one number."""

    def __init__(self) -> None:
        self.slots: dict[int, list[int]] = {}
        self.pid: int | None = None
        """Of an adopted process; None before, and when its end is confirmed."""
        self.adopted = False
        self.status: int | None = None


class FdStore:
    """What is kept, and the channel to the server of the moment."""

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self._entries: dict[int, _Entry] = {}
        self._numbers: dict[int, int] = {}
        """The numbers of adopted processes whose end nobody confirmed, by pid."""
        self._broken: set[int] = set()
        self._channel: socket.socket | None = None
        self._nudge = -1
        self._waiting = False
        self._unsent: deque[tuple[int, int, int]] = deque()
        """(kind, number, slot)"""

    def connect(self) -> tuple[socket.socket, int]:
        """Begin with a new server; returns its ends: the channel and the nudge pipe.

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
        """Read what a dead server left, and close its channel."""
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
        """The server is dead: find out which of our children are kept."""
        for number, entry in self._entries.items():
            if number != SERVICE and not entry.adopted and entry.slots.get(PROCESS):
                entry.adopted = True
                entry.pid = _pid_behind(entry.slots[PROCESS][0])
                if entry.pid is not None:
                    self._numbers[entry.pid] = number

    def hand_over(self) -> None:
        """Give the new server everything, as fast as it reads."""
        for number, entry in self._entries.items():
            self._unsent += [(KEPT, number, slot) for slot in entry.slots]
        ended = [number for number in self._numbers.values() if self._entries[number].status is not None]
        self._unsent += [(EXITED, number, 0) for number in ended]
        self._unsent.append((HANDED, 0, 0))
        self._flush()

    def must_not_reap(self, pid: int, status: int) -> bool:
        """Whether the child that ended so is to stay a zombie; the server is told of its end once."""
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
        """Look at the adopted processes by their pids.

        While a server hangs in the kernel they are its children, not ours, and no signal tells of their end.
        """
        for pid in list(self._numbers):
            status = status_of_zombie(pid)
            if status is not None:
                self.must_not_reap(pid, status)

    def read(self) -> None:
        """Take every message that is there."""
        self._loop.cancel(self.read)
        self._waiting = False
        # What comes with messages leaves some places in the descriptor table to us.
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft - _RESERVED_DESCRIPTORS, soft // 2), hard))
        try:
            goes_on = self._read_all()
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        if goes_on:
            self._watch()

    def _read_all(self) -> bool:
        """False at the end of the channel."""
        while self._channel is not None:
            try:
                message = fd_store_protocol.receive(self._channel, socket.MSG_DONTWAIT)
            except BlockingIOError:
                break
            except ChannelError as error:
                launch.report(str(error))
                continue
            except OSError as error:  # no memory; it is still there when we come back
                launch.report(f"registrations cannot be read: {error}")
                break
            if message is None:  # of the server's death its pidfd tells
                self._loop.forget(self._channel.fileno())
                return False
            self._take(message)
        return True

    def close(self) -> None:
        """Let go of everything."""
        self.disconnect()
        for number in list(self._entries):
            self._release(number)

    def _watch(self) -> None:
        if self._channel is not None:
            readable = None if self._waiting else self._first_came
            self._loop.watch(self._channel.fileno(), readable, self._flush if self._unsent else None)

    def _first_came(self) -> None:
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
                f"descriptor table full: what the server has as number {number} would not survive it"
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
        """From now on it is reaped like everybody else."""
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
                    self._unsent.clear()  # of the server's death its pidfd tells
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
    """The pid of an unreaped process; None when it is reaped, or when this is no pidfd."""
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
        except OSError:  # a network file system tells here of what it could not store; it is closed
            continue
