"""The messages between the server, the forker and the network proxies (`proxies.py`, `program.py`).

Each is JSON in one packet of a SOCK_SEQPACKET pair, perhaps with descriptors:

    server → forker   Launch    and the proxy's control socket, and a file with a `ProxyStart` in JSON
    server → proxy    Enter     and the launcher's report, and the gate of the sandbox
                      Answer    to an Ask
                      Resume    a new server takes over: what is not answered is asked again
    proxy → server    Ready     its listeners on the host are there
                      Entered   its listeners in the sandbox are there, and the gate is open
                      Failed    it ends
                      Ask       a host without a verdict
                      Decided   a decision

A proxy outlives its server, and the next one may have another version: members are added with defaults, and
unknown members and messages are ignored.
"""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Sequence

import msgspec

from execprotocol.network import Decision, NetworkRequest
from execserver.network.rules import NetworkDecision, ProxyPolicy
from execserver.network.variables import Ports

_MOST_BYTES = 65_536
"""A message has a host name and a reason."""

_ROOM = socket.CMSG_SPACE(4 * struct.calcsize("i"))


class _Message(msgspec.Struct, tag_field="type", frozen=True):
    pass


class Launch(_Message, tag="launch", frozen=True):
    """Fork a proxy."""


class ProxyStart(msgspec.Struct, frozen=True):
    """The start of a proxy. The rules may be long, so they come in a file."""

    policy: ProxyPolicy

    inside: Ports | None
    """The ports of its listeners in a sandbox; None for listeners on the host."""


class Enter(_Message, tag="enter", frozen=True):
    """Listen inside the sandbox of this start, then open its gate."""

    owner: int
    """The ownership tag that the first process inside bears."""


class Answer(_Message, tag="answer", frozen=True):
    """The client's decision."""

    id: int
    decision: Decision


class Resume(_Message, tag="resume", frozen=True):
    """A new server takes over."""


class Ready(_Message, tag="ready", frozen=True):
    """The listeners on the host are there."""

    ports: Ports


class Entered(_Message, tag="entered", frozen=True):
    """The listeners inside are there."""


class Failed(_Message, tag="failed", frozen=True):
    """The proxy ends."""

    reason: str


class Ask(_Message, tag="ask", frozen=True):
    """A host without a verdict."""

    id: int
    request: NetworkRequest
    timeout_s: float
    """How long the proxy still waits."""


class Decided(_Message, tag="decided", frozen=True):
    """A decision, for the record."""

    decision: NetworkDecision


AnyMessage = Launch | Enter | Answer | Resume | Ready | Entered | Failed | Ask | Decided

_encode = msgspec.json.Encoder().encode
_decoder = msgspec.json.Decoder(AnyMessage)


def send(channel: socket.socket, message: AnyMessage, descriptors: Sequence[int] = ()) -> None:
    """Send one message; the receiver gets copies of the descriptors.

    Raises:
        BlockingIOError: the channel is full; never, if it blocks.
        OSError: the other end is gone.
    """
    ancillary = []
    if descriptors:
        rights = struct.pack(f"{len(descriptors)}i", *descriptors)
        ancillary.append((socket.SOL_SOCKET, socket.SCM_RIGHTS, rights))
    channel.sendmsg([_encode(message)], ancillary, socket.MSG_NOSIGNAL)


def receive(channel: socket.socket) -> tuple[AnyMessage | None, list[int]]:
    """The next message and its descriptors, which are close-on-exec; None for one that is not known.

    Raises:
        BlockingIOError: there is none; never, if the channel blocks.
        EOFError: the other end is closed.
        OSError: no descriptor is left for those of the message.
    """
    try:
        data, ancillary, flags, _ = channel.recvmsg(_MOST_BYTES, _ROOM, socket.MSG_CMSG_CLOEXEC)
    except ConnectionResetError:
        # It ended without reading our messages. The error comes once, and its messages follow.
        data, ancillary, flags, _ = channel.recvmsg(_MOST_BYTES, _ROOM, socket.MSG_CMSG_CLOEXEC)
    descriptors: list[int] = []
    for _level, _kind, content in ancillary:
        descriptors += struct.unpack(f"{len(content) // 4}i", content[: len(content) // 4 * 4])
    if flags & socket.MSG_CTRUNC:
        for each in descriptors:
            os.close(each)
        raise OSError("a message lost descriptors: the descriptor table is full")
    if not data:
        raise EOFError
    try:
        return _decoder.decode(data), descriptors
    except msgspec.DecodeError:
        return None, descriptors
