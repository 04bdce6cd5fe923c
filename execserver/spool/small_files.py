"""The beginning of each process's output, in slots of one file in memory.

Most commands print little. A file of their own would cost as much as the command, and a descriptor as long as
the output is kept, which makes every later spawn slower: the kernel copies the table of descriptors for it.

Rules kept in this file:

1. The file has one offset for all slots, which tells how far the last move got (`data_file.py`). It is set to
   where a move begins *before* the index says that one begins there: what another process left in a slot
   is never taken for somebody else's output.
2. A place in a slot is a number that no place in a data file has (`FIRST_PLACE` and above).
3. Who has which slot is known from the index.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Collection

from execserver.spool.data_file import DataFile
from execserver.spool.system_calls import punch_hole

SLOT_BYTES = 128 << 10
"""Twice what is moved into one at a time. Memory is taken by what is in it, not by its size."""

FIRST_PLACE = 1 << 37
"""Above every position in a ring."""

_MOST_SLOTS = FIRST_PLACE // SLOT_BYTES
_KEPT_FREE = 256
"""Free slots whose memory is not given back: the next process wants some."""

_FLAGS = os.SPLICE_F_NONBLOCK | os.SPLICE_F_MOVE


class SmallFiles:
    """All slots.

    Args:
        fd: a file in memory, which belongs to this object; the supervisor has it too.
        taken: the slots that are in use.
    """

    def __init__(self, fd: int, taken: Collection[int] = ()) -> None:
        self.fd = fd
        self._next = max(taken, default=-1) + 1
        self._free = [slot for slot in range(self._next - 1, -1, -1) if slot not in taken]
        self.offset = -1
        """Where the descriptor's offset is; -1 while that is not known."""

    @classmethod
    def create(cls) -> SmallFiles:
        """No slot in use.

        Raises:
            OSError: no descriptor is to be had.
        """
        return cls(os.memfd_create("execserver-small-output", os.MFD_CLOEXEC))

    def new(self) -> SmallFile:
        """A slot for a process.

        Raises:
            OSError: there is none.
        """
        if self._free:
            return SmallFile(self, self._free.pop())
        if self._next == _MOST_SLOTS:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self._next += 1
        return SmallFile(self, self._next - 1)

    def give_back(self, slot: int, used: int) -> None:
        """A process does not want its slot any more."""
        self._free.append(slot)
        if used and len(self._free) > _KEPT_FREE:
            punch_hole(self.fd, slot * SLOT_BYTES, SLOT_BYTES)

    def close(self) -> None:
        """Close the descriptor."""
        os.close(self.fd)


class SmallFile(DataFile):
    """One slot, as a data file that never wraps.

    Args:
        slots: all of them.
        slot: its number.
        used: how much is in it.
    """

    __slots__ = ("_slot", "_slots")

    def __init__(self, slots: SmallFiles, slot: int, used: int = 0) -> None:
        # Not the ring's: nothing of it applies but its interface.
        self.fd = slots.fd
        self.capacity = SLOT_BYTES
        self.in_memory = True
        self.can_splice = True
        self.position = FIRST_PLACE + slot * SLOT_BYTES + used
        self._slots = slots
        self._slot = slot

    @property
    def _begin(self) -> int:
        return FIRST_PLACE + self._slot * SLOT_BYTES

    def prepare(self) -> None:
        """Move the offset to where the next move begins."""
        start = self.position - FIRST_PLACE
        if self._slots.offset != start:
            self._slots.offset = -1
            self._slots.offset = os.lseek(self.fd, start, os.SEEK_SET)

    def moved_beyond(self, place: int) -> int:
        """Bytes that the last move of a dead server brought here, if it began at this place."""
        reached = os.lseek(self.fd, 0, os.SEEK_CUR) + FIRST_PLACE
        # The end of a slot is where the next one begins, and no slot is ever full.
        return reached - place if place <= reached < self._begin + SLOT_BYTES else 0

    def splice_from(self, fd: int, most: int) -> int:
        """As of a ring."""
        room = self._begin + SLOT_BYTES - self.position
        slots = self._slots
        offset, slots.offset = slots.offset, -1
        size = os.splice(fd, self.fd, min(most, room), flags=_FLAGS)
        self.position += size
        slots.offset = offset + size if offset >= 0 else -1
        return size

    def read(self, position: int, length: int) -> bytes:
        """As of a ring."""
        data = os.pread(self.fd, length, position - FIRST_PLACE)
        if len(data) != length:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return data

    def give_back(self, held: int, at_least: int) -> None:
        """The whole slot is given back, or nothing."""

    def close(self) -> None:
        """Give the slot back."""
        self._slots.give_back(self._slot, self.position - self._begin)


def slot_of(place: int) -> int | None:
    """The slot that a place is in; None for a position in a ring."""
    return (place - FIRST_PLACE) // SLOT_BYTES if place >= FIRST_PLACE else None
