"""A FUSE server whose look-ups take 20 ms: a slow disk. Run by `mounts.py`, which gives `device`.

It has one directory with one file, `file`, of 4 bytes (`linux/fuse.h`, protocol 7.31).
"""

from __future__ import annotations

import errno
import os
import select
import struct
import sys
import time

device: int = globals()["device"]

LOOKUP, FORGET, GETATTR, OPEN, READ, INIT, OPENDIR = 1, 2, 3, 14, 15, 26, 27
ROOT, FILE = 1, 2
CONTENT = b"slow"


def attributes(node: int) -> bytes:
    """`struct fuse_attr`."""
    mode, size = (0o40755, 0) if node == ROOT else (0o100644, len(CONTENT))
    times = (0, 0, 0, 0, 0, 0)
    return struct.pack("<3Q3Q3I7I", node, size, 1, *times, mode, 1, os.getuid(), os.getgid(), 0, 4096, 0)


def answer(opcode: int, node: int, body: bytes) -> bytes | int:
    """The body of the answer, or an error number."""
    if opcode == INIT:
        return struct.pack("<4I2H2I2H8I", 7, 31, 0, 0, 0, 0, 4096, 1, 0, 0, *[0] * 8)
    if opcode == LOOKUP:
        time.sleep(0.02)
        if body != b"file\0":
            return errno.ENOENT
        return struct.pack("<4Q2I", FILE, 0, 0, 0, 0, 0) + attributes(FILE)
    if opcode == GETATTR:
        return struct.pack("<Q2I", 0, 0, 0) + attributes(node)
    if opcode in (OPEN, OPENDIR):
        return struct.pack("<Q2I", 0, 0, 0)
    if opcode == READ:
        offset, length = struct.unpack_from("<QI", body, 8)
        return CONTENT[offset : offset + length]
    return errno.ENOSYS


while sys.stdin not in select.select([device, sys.stdin], [], [])[0]:
    request = os.read(device, 1 << 20)
    _, opcode, unique, node = struct.unpack_from("<2I2Q", request)
    if opcode == FORGET:
        continue
    reply = answer(opcode, node, request[40:])
    error, reply = (-reply, b"") if isinstance(reply, int) else (0, reply)
    os.write(device, struct.pack("<IiQ", 16 + len(reply), error, unique) + reply)
