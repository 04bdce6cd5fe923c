"""The index of all output: where each numbered event of each process is.

Rules kept in this file:

1. The arena is a file in memory that outlives the server, and the only index there is.
2. All writes are aligned stores of 8 bytes, and one store commits each operation: a server that is killed
   between two stores leaves the state before the operation or after it.
3. A block belongs to one process. Numbers are dense, so the number of an event tells its block.
4. Words that were never committed are invisible, and are overwritten by the next operation.

The file consists of blocks of 128 words. The first block holds the version of this layout. Any other
belongs to the process whose number is its first word, or is free when that is 0. It has a head of 8 words
and 40 records of three words: the offset of the event in the whole output of its process, its time, and a
word with its kind, the place of its bytes, and a bit that makes the record valid. Block 0 of a process also
holds the state of the process as a whole. In layout 1, records had no time, and each block had 60; processes
of a server with that layout keep such blocks.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import sys
import weakref

from execserver.spool.process_index import BLOCK_WORDS, ORDINAL, OWNER, WITH_TIMES
from execserver.spool.process_index import ProcessIndex as ProcessIndex

_STEP_BYTES = 1 << 20
"""How much the file grows at a time. A step is mapped once, and stays where it is."""

_STEP_BLOCKS = _STEP_BYTES // (8 * BLOCK_WORDS)
LAYOUT_VERSION = 2
EARLIER_LAYOUTS = (1,)
"""The layouts of earlier versions that this one can continue."""

_OURS = 0x6578_6563_6C6F_0000
_LAYOUT = _OURS + LAYOUT_VERSION
"""The first word of the file: ours, and the version of the layout in its last two bytes."""

_NOTHING = memoryview(bytes(8 * (BLOCK_WORDS - 1))).cast("Q")
"""The content of a new block after its owner."""

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t) + (ctypes.c_int,) * 3 + (ctypes.c_int64,)
_libc.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
_MAP_FAILED = ctypes.c_void_p(-1).value


class IndexArena:
    """All blocks.

    Args:
        fd: a file that `create` made, in this server or a previous one; it belongs to the arena.

    Raises:
        OSError: it cannot be mapped.
        ValueError: it has another layout.
    """

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self._views: list[memoryview] = []
        self._free: list[int] = []
        self._addresses: list[int] = []
        # Not by `mmap`, which takes a descriptor for each mapping: the index must be able to grow when the
        # table of descriptors is full.
        self._unmap = weakref.finalize(self, _unmap, self._addresses, _STEP_BYTES)
        for step in range(os.fstat(fd).st_size // _STEP_BYTES):
            self._map(step)
        layout = self._views[0][0] - _OURS if self._views else 0
        if layout not in (LAYOUT_VERSION, *EARLIER_LAYOUTS):
            raise ValueError("the index has a layout that this version does not know")

    @classmethod
    def create(cls) -> IndexArena:
        """An empty arena.

        Raises:
            OSError: no descriptor or no memory is available.
        """
        fd = os.memfd_create("execserver-index", os.MFD_CLOEXEC)
        try:
            os.truncate(fd, _STEP_BYTES)
            os.pwrite(fd, _LAYOUT.to_bytes(8, sys.byteorder), 0)
            arena = cls(fd)
        except BaseException:
            os.close(fd)
            raise
        arena._free.extend(range(_STEP_BLOCKS - 1, 0, -1))
        return arena

    def restore(self) -> dict[int, ProcessIndex]:
        """The indices that the previous server left, by process. Call it once, before anything else."""
        owned: dict[int, dict[int, int]] = {}
        self._views[0][0] = _LAYOUT  # before there is a record with a time
        for step, view in enumerate(self._views):
            owners = view[OWNER::BLOCK_WORDS].tolist()
            for place, owner in enumerate(owners):
                block = step * _STEP_BLOCKS + place
                if block == 0:
                    continue
                if owner:
                    ordinal = view[place * BLOCK_WORDS + ORDINAL] & ~WITH_TIMES
                    owned.setdefault(owner, {})[ordinal] = block
                else:
                    self._free.append(block)
        self._free.reverse()
        restored = {}
        for number, blocks in owned.items():
            if 0 in blocks:
                restored[number] = ProcessIndex(self, number, [blocks[key] for key in sorted(blocks)])
            else:
                # Its block 0 was freed, the others were to follow.
                for block in blocks.values():
                    self.free_block(block)
        return restored

    def open(self, number: int) -> ProcessIndex:
        """The index of a new process.

        Args:
            number: from 1; never used before.

        Raises:
            OSError: no memory.
        """
        return ProcessIndex(self, number, [self.allocate(number, 0)])

    def free(self, index: ProcessIndex) -> None:
        """Forget a process. Its index is empty from now on."""
        blocks = index.detach()
        # Without its block 0 a process is gone.
        for block in blocks:
            self.free_block(block)

    def close(self) -> None:
        """Close the descriptor. The mapping ends with the last reference to the arena or an index."""
        os.close(self.fd)

    # -- for `ProcessIndex`

    def allocate(self, number: int, ordinal: int) -> int:
        """Give an empty block to a process.

        Raises:
            OSError: no memory.
        """
        if not self._free:
            self._grow()
        block = self._free.pop()
        view, base = self.place(block)
        view[base + 1 : base + BLOCK_WORDS] = _NOTHING
        view[base + ORDINAL] = ordinal or WITH_TIMES
        view[base + OWNER] = number
        return block

    def free_block(self, block: int) -> None:
        """Take a block from its process."""
        view, base = self.place(block)
        view[base + OWNER] = 0
        self._free.append(block)

    def place(self, block: int) -> tuple[memoryview, int]:
        """Where the words of a block are."""
        return self._views[block // _STEP_BLOCKS], block % _STEP_BLOCKS * BLOCK_WORDS

    def _grow(self) -> None:
        step = len(self._views)
        os.truncate(self.fd, (step + 1) * _STEP_BYTES)
        self._map(step)
        self._free.extend(range((step + 1) * _STEP_BLOCKS - 1, step * _STEP_BLOCKS - 1, -1))

    def _map(self, step: int) -> None:
        address = _libc.mmap(
            None, _STEP_BYTES, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_SHARED, self.fd, step * _STEP_BYTES
        )
        if address == _MAP_FAILED:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))
        self._addresses.append(address)
        words = (ctypes.c_ubyte * _STEP_BYTES).from_address(address)
        self._views.append(memoryview(words).cast("B").cast("Q"))


def _unmap(addresses: list[int], size: int) -> None:
    for address in addresses:
        _libc.munmap(address, size)
