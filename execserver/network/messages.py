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

import socket
from collections.abc import Sequence

import msgspec

from execprotocol.network import Decision, NetworkRequest
from execserver.network.rules import NetworkDecision, ProxyPolicy
from execserver.network.variables import Ports
from execserver.supervisor.packets import ChannelError, receive_bytes, send_bytes


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
    send_bytes(channel, _encode(message), descriptors)


def receive(channel: socket.socket) -> tuple[AnyMessage | None, list[int]]:
    """The next message and its descriptors, which are close-on-exec; None for one that is not known.

    Raises:
        BlockingIOError: there is none; never, if the channel blocks.
        EOFError: the other end is closed.
        OSError: no descriptor is left for those of the message.
    """
    try:
        data, descriptors = receive_bytes(channel)
    except ChannelError as error:
        raise OSError(str(error)) from None
    if not data:
        raise EOFError
    try:
        return _decoder.decode(data), descriptors
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None, descriptors
