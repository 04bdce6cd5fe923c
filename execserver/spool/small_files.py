"""The beginning of each process's output, in slots of one file in memory.

Most commands print little. A file for each would cost as much as the command, and a descriptor as long as the
output is kept. That makes every later spawn slower: the kernel copies the table of descriptors.

Rules kept in this file:

1. The file has one offset for all slots, which tells how far the last move got (`data_file.py`). It is set to
   the beginning of a move *before* the index records that place: what a process left in a slot is never taken
   for another process's output.
2. A place in a slot is a number that no place in a data file has (`FIRST_PLACE` and above).
3. The index tells which process has which slot.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Collection

from execserver.spool.data_file import DataFile
from execserver.spool.system_calls import punch_hole

SLOT_BYTES = 128 << 10
"""Twice the size of a move. A slot takes memory for its content, not for its size."""

FIRST_PLACE = 1 << 37
"""Above every position in a ring."""

_MOST_SLOTS = FIRST_PLACE // SLOT_BYTES
_KEPT_FREE = 256
"""Free slots that keep their memory for the next processes."""

_FLAGS = os.SPLICE_F_NONBLOCK | os.SPLICE_F_MOVE


class SmallOutputs:
    """All slots.

    Args:
        fd: a file in memory, which belongs to this object; the supervisor has it too.
        taken: the numbers of the slots in use.
    """

    def __init__(self, fd: int, taken: Collection[int] = ()) -> None:
        self.fd = fd
        self._next = max(taken, default=-1) + 1
        self._free = [slot for slot in range(self._next - 1, -1, -1) if slot not in taken]
        self.offset = -1
        """The descriptor's offset; -1 while that is not known."""

    @classmethod
    def create(cls) -> SmallOutputs:
        """A file without slots in use.

        Raises:
            OSError: no descriptor is available.
        """
        return cls(os.memfd_create("execserver-small-output", os.MFD_CLOEXEC))

    def new(self) -> SmallFile:
        """A slot for a process.

        Raises:
            OSError: all slots are in use.
        """
        if self._free:
            return SmallFile(self, self._free.pop())
        if self._next == _MOST_SLOTS:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self._next += 1
        return SmallFile(self, self._next - 1)

    def free_space(self, slot: int, used: int) -> None:
        """Take a slot back from its process."""
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
        used: the number of bytes in it.
    """

    __slots__ = ("_slot", "_slots")

    def __init__(self, slots: SmallOutputs, slot: int, used: int = 0) -> None:
        # Without `DataFile.__init__`, which opens a ring: only the interface is the same.
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
        """Bytes that the last move of the previous server brought here, if it began at this place."""
        reached = os.lseek(self.fd, 0, os.SEEK_CUR) + FIRST_PLACE
        # The end of a slot is where the next one begins, and no slot is ever full.
        return reached - place if place <= reached < self._begin + SLOT_BYTES else 0

    def splice_from(self, fd: int, most: int) -> int:
        """As for a ring."""
        room = self._begin + SLOT_BYTES - self.position
        slots = self._slots
        offset, slots.offset = slots.offset, -1
        size = os.splice(fd, self.fd, min(most, room), flags=_FLAGS)
        self.position += size
        slots.offset = offset + size if offset >= 0 else -1
        return size

    def read(self, position: int, length: int) -> bytes:
        """As for a ring."""
        data = os.pread(self.fd, length, position - FIRST_PLACE)
        if len(data) != length:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return data

    def free_space(self, held: int, at_least: int) -> None:
        """Nothing: a slot is freed as a whole."""

    def close(self) -> None:
        """Give the slot back."""
        self._slots.free_space(self._slot, self.position - self._begin)


def slot_of(place: int) -> int | None:
    """The slot of a place; None for a position in a ring."""
    return (place - FIRST_PLACE) // SLOT_BYTES if place >= FIRST_PLACE else None
