"""The protocol of the fd store: the server stores descriptors in the supervisor, a new server gets them back.

`fd_store_client.py` is the server's end, `fd_store.py` the supervisor's. A message is one packet of a
SOCK_SEQPACKET pair: `HEADER` and, for KEEP and KEPT, descriptors. The server chooses numbers and slots. The
supervisor has two rules for them:

1. The first descriptor in slot `PROCESS` of a number from 1 on is the pidfd of a process to wait for.
2. A new server gets everything that its predecessor did not release: each slot as KEPT, each unconfirmed end
   as EXITED, then HANDED.

    server → supervisor
      KEEP      number, slot, descriptors: store these instead of the slot's content (none: empty it)
      RELEASE   number: drop all its slots, and confirm its end
      REAPED    number: its end is recorded, the process may be reaped
      DROP      value, then that many words: empty these slots; each word is a number and, in its last eight
                bits, a slot, or `EVERY_SLOT` for a RELEASE
    supervisor → server
      KEPT      number, slot, descriptors
      EXITED    number, value: it ended with this status, as from `os.waitpid`
      HANDED    the last message

The supervisor reads this channel lazily (`fd_store.py`); a byte in the *nudge* pipe makes it read at once.
"""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Sequence

from execserver.supervisor.packets import ChannelError

HEADER = struct.Struct("=BBHIQ")
"""kind, slot, flags (0), value, number"""

KEEP, RELEASE, REAPED, KEPT, EXITED, HANDED, DROP = range(1, 8)

SERVICE = 0
"""The number of the service itself, which is no process."""
LEDGER, ARENA, SMALL, GROUPS = 1, 2, 3, 8
"""Slots of the service."""
PROCESS, DATA, MEMORY, INPUT, STATUS, NETWORK, OOM, SANDBOX = 0, 1, 2, 3, 4, 5, 8, 16
"""Slots of a process: pidfd and our ends of its pipes, data file, ring in memory, stdin file, the sandbox
launcher's report, the control socket of its network proxy, the count of its memory limit, and from `SANDBOX`
on the locks of its sandbox."""

EVERY_SLOT = 255

MAX_DROPS = 512
"""In one message: 4 KiB."""

MAX_DESCRIPTORS = 200
"""In one message. The kernel passes 253; the rest is a reserve."""

# Computed once, because every process start sends a message.
_DO_NOT_WAIT, _LEVEL, _KIND = int(socket.MSG_DONTWAIT), int(socket.SOL_SOCKET), int(socket.SCM_RIGHTS)
_FEW = [struct.Struct(f"{count}i").pack for count in range(8)]

_MOST_BYTES = HEADER.size + 8 * MAX_DROPS + 1
_RIGHTS_ROOM = socket.CMSG_SPACE(253 * 4)


class Message:
    """One packet.

    `drops` are the (number, slot) of a DROP. `lost`: whether descriptors are missing; then the others are
    closed.
    """

    __slots__ = ("descriptors", "drops", "kind", "lost", "number", "slot", "value")

    def __init__(
        self,
        kind: int,
        slot: int,
        value: int,
        number: int,
        descriptors: list[int],
        lost: bool,
        drops: Sequence[tuple[int, int]] = (),
    ) -> None:
        self.kind = kind
        self.slot = slot
        self.value = value
        self.number = number
        self.descriptors = descriptors
        self.lost = lost
        self.drops = drops


def send(
    channel: socket.socket,
    kind: int,
    number: int = 0,
    slot: int = 0,
    value: int = 0,
    descriptors: Sequence[int] = (),
) -> None:
    """Send one message without blocking.

    Raises:
        BlockingIOError: the channel is full.
        OSError: ETOOMANYREFS: too many descriptors of this user are in flight; EPIPE: the peer is gone.
    """
    header = (HEADER.pack(kind, slot, 0, value, number),)
    if not descriptors:
        channel.sendmsg(header, (), _DO_NOT_WAIT)
        return
    count = len(descriptors)
    rights = _FEW[count](*descriptors) if count < len(_FEW) else struct.pack(f"{count}i", *descriptors)
    channel.sendmsg(header, ((_LEVEL, _KIND, rights),), _DO_NOT_WAIT)


def send_drops(channel: socket.socket, drops: Sequence[tuple[int, int]]) -> None:
    """Send a DROP of at most `MAX_DROPS` (number, slot) without blocking.

    Raises:
        BlockingIOError: the channel is full.
        OSError: EPIPE: the peer is gone.
    """
    words = [number << 8 | slot for number, slot in drops]
    header = HEADER.pack(DROP, 0, 0, len(words), 0)
    channel.sendmsg([header, struct.pack(f"={len(words)}Q", *words)], [], socket.MSG_DONTWAIT)


def receive(channel: socket.socket, flags: int = 0) -> Message | None:
    """The next message; None if the peer's end is closed.

    Args:
        channel: the socket.
        flags: `socket.MSG_DONTWAIT`, or 0.

    Raises:
        BlockingIOError: no message (with MSG_DONTWAIT).
        ChannelError: the message is invalid.
    """
    flags |= socket.MSG_CMSG_CLOEXEC
    try:
        data, ancillary, state, _ = channel.recvmsg(_MOST_BYTES, _RIGHTS_ROOM, flags)
    except ConnectionResetError:
        # The peer ended without reading our messages. The error comes once, and its messages follow.
        data, ancillary, state, _ = channel.recvmsg(_MOST_BYTES, _RIGHTS_ROOM, flags)
    descriptors: list[int] = []
    for _, _, content in ancillary:
        whole = len(content) // 4
        descriptors += struct.unpack(f"{whole}i", content[: whole * 4])
    if not data:
        return None
    lost = bool(state & socket.MSG_CTRUNC)
    fits = _fits(data)
    if lost or not fits:
        for descriptor in descriptors:
            os.close(descriptor)
        descriptors = []
    if not fits:
        raise ChannelError(f"an fd store message of {len(data)} bytes: supervisor and server differ")
    kind, slot, _, value, number = HEADER.unpack_from(data)
    if kind != DROP:
        return Message(kind, slot, value, number, descriptors, lost)
    words = struct.unpack_from(f"={value}Q", data, HEADER.size)
    return Message(kind, slot, value, number, descriptors, lost, [(word >> 8, word & 255) for word in words])


def _fits(data: bytes) -> bool:
    if len(data) < HEADER.size:
        return False
    words = HEADER.unpack_from(data)[3] if data[0] == DROP else 0
    return len(data) == HEADER.size + 8 * words
