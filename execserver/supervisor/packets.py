"""Messages on the channel between supervisor and server: JSON, each in one SOCK_SEQPACKET packet.

The channels of network proxies have the same packets (`network/messages.py`).
"""

from __future__ import annotations

import os
import select
import socket
import struct
from collections.abc import Mapping, Sequence

from execserver.supervisor.spawning import CHANNEL_VARIABLE, channel_descriptors

__all__ = [
    "CHANNEL_VARIABLE",
    "MAX_DESCRIPTORS",
    "VERSION",
    "ChannelError",
    "SupervisorGoneError",
    "channel_pair",
    "receive_bytes",
    "receive_packet",
    "send_bytes",
    "send_packet",
    "socket_of",
]

VERSION = 3
# The kernel passes at most 253 descriptors with one message.
MAX_DESCRIPTORS = 253
# A message holds at most the listening URLs; 64 listeners with the longest paths are 10 kB. One of a network
# proxy holds a host and a reason.
_MAX_PACKET = 65536


class ChannelError(Exception):
    """The channel cannot be used: it is missing, has another version, or lost descriptors."""


class SupervisorGoneError(ChannelError):
    """The supervisor ended before the server was up. What the service has started must be killed."""


def channel_pair() -> tuple[socket.socket, socket.socket]:
    """Both ends of a channel: the supervisor's, which does not block, and the server's.

    Raises:
        OSError: no descriptors or memory.
    """
    ours, theirs = map(socket_of, channel_descriptors())
    ours.setblocking(False)
    return ours, theirs


def socket_of(channel: int) -> socket.socket:
    """The socket with that descriptor."""
    return socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET, 0, channel)


def send_packet(channel: socket.socket, message: object, descriptors: Sequence[int] = ()) -> None:
    """Send one message; the receiver gets copies of `descriptors`.

    Raises:
        BlockingIOError: the channel is full (only of a non-blocking socket).
        BrokenPipeError: the peer is gone.
    """
    import json  # takes five milliseconds; by now the sockets are bound and clients can connect

    send_bytes(channel, json.dumps(message).encode(), descriptors)


def receive_packet(channel: socket.socket) -> tuple[dict[str, object], list[int]] | None:
    """The next message with its descriptors (close-on-exec), or None if the peer's end is closed.

    Raises:
        BlockingIOError: no message (only of a non-blocking socket).
        ChannelError: the message is invalid, or was cut because the descriptor table is full.
    """
    import json

    data, descriptors = receive_bytes(channel)
    if not data:
        return None
    try:
        message = json.loads(data)
        if not isinstance(message, dict) or not isinstance(message.get("type"), str):
            raise ChannelError("a message is not an object with a type")
    except (ChannelError, ValueError, RecursionError) as error:
        for descriptor in descriptors:
            os.close(descriptor)
        raise ChannelError(str(error)) from None
    return message, descriptors


def send_bytes(channel: socket.socket, data: bytes, descriptors: Sequence[int] = ()) -> None:
    """Send one packet; the receiver gets copies of `descriptors`.

    Raises:
        BlockingIOError: the channel is full (only of a non-blocking socket).
        BrokenPipeError: the peer is gone.
    """
    ancillary = []
    if descriptors:
        rights = struct.pack(f"{len(descriptors)}i", *descriptors)
        ancillary.append((socket.SOL_SOCKET, socket.SCM_RIGHTS, rights))
    channel.sendmsg([data], ancillary, socket.MSG_NOSIGNAL)


def receive_bytes(channel: socket.socket) -> tuple[bytes, list[int]]:
    """The next packet with its descriptors (close-on-exec); an empty one if the peer's end is closed.

    Raises:
        BlockingIOError: no packet (only of a non-blocking socket).
        ChannelError: the packet was cut because it is too long or the descriptor table is full.
    """
    room = socket.CMSG_SPACE(MAX_DESCRIPTORS * 4)
    try:
        data, ancillary, flags, _ = channel.recvmsg(_MAX_PACKET, room, socket.MSG_CMSG_CLOEXEC)
    except ConnectionResetError:
        # The peer ended without reading our packets. The error comes once, and its packets follow.
        data, ancillary, flags, _ = channel.recvmsg(_MAX_PACKET, room, socket.MSG_CMSG_CLOEXEC)
    descriptors: list[int] = []
    for level, kind, content in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            usable = len(content) - len(content) % 4
            descriptors += struct.unpack(f"{usable // 4}i", content[:usable])
    if data and flags & (socket.MSG_CTRUNC | socket.MSG_TRUNC):
        for descriptor in descriptors:
            os.close(descriptor)
        raise ChannelError("a message lost descriptors or data: the descriptor table is full")
    return data, descriptors


def wait_for_hello(environment: Mapping[str, str]) -> bool:
    """Wait until the supervisor has bound its listeners and sent the hello, or has closed the channel.

    The message is not received here. Without a supervisor this returns at once.

    Returns:
        False if the supervisor closed the channel without a hello: it cannot serve.
    """
    value = environment.get(CHANNEL_VARIABLE, "")
    if not (value.isascii() and value.isdigit()):
        return True
    poll = select.poll()
    poll.register(int(value), select.POLLIN)
    poll.poll()
    channel = socket_of(int(value))
    try:
        return channel.recv(1, socket.MSG_PEEK) != b""
    except OSError:
        return True  # `ServerChannel` reports the error
    finally:
        channel.detach()
