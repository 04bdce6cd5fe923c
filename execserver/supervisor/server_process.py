"""One server process, as the supervisor sees it: its start, its channel, its end."""

from __future__ import annotations

import os
import select
import signal
import socket
from collections.abc import Iterator, Mapping, Sequence

from execserver import membership
from execserver.supervisor import launch
from execserver.supervisor.packets import CHANNEL_VARIABLE, channel_pair, receive_packet, send_packet

CHANNEL_DESCRIPTOR = 3


class ServerProcess:
    """A child with its channel. `ready`, `stopping` and `upgrading` are what it has said so far."""

    def __init__(self, pid: int, pidfd: int, channel: socket.socket) -> None:
        self.pid = pid
        self.pidfd = pidfd
        """Readable when every thread of it has ended."""
        self.channel = channel
        self.hung_up = False
        """Its end of the channel is closed: there will be no more messages."""
        self.ready = self.stopping = self.upgrading = False
        self.ready_at = 0.0
        """When it first said so (monotonic); 0 before."""
        self.faulty = False
        """It broke the protocol, and was killed for it."""
        self._poll = select.poll()  # select(2) takes no descriptor above 1023
        self._poll.register(pidfd, select.POLLIN)

    def send(self, message: object) -> None:
        """Send a message without waiting.

        Raises:
            OSError: the channel is full, or the server is gone.
        """
        send_packet(self.channel, message)

    def messages(self) -> Iterator[Mapping[str, object]]:
        """The messages that are there.

        Raises:
            ChannelError: no message of ours.
        """
        while True:
            try:
                packet = receive_packet(self.channel)
            except BlockingIOError:
                return
            if packet is None:
                self.hung_up = True
                return
            yield packet[0]

    def ended(self) -> bool:
        """Whether all of it has ended."""
        return bool(self._poll.poll(0))

    def is_dying(self) -> bool:
        """Whether it was killed but has not ended yet, perhaps because a system call does not return.

        Asked for every orphan that ended, of which a fork bomb leaves thousands a second: it takes 20 µs.
        """
        try:
            descriptor = os.open(f"/proc/{self.pid}/status", os.O_RDONLY | os.O_CLOEXEC)
            try:
                status = os.read(descriptor, 4096)
            finally:
                os.close(descriptor)
        except OSError:
            return False
        pending = _hexadecimal(status, b"\nShdPnd:\t") | _hexadecimal(status, b"\nSigPnd:\t")
        return b"\nState:\tZ" in status or bool(pending >> (signal.SIGKILL - 1) & 1)

    def kill(self) -> None:
        """SIGKILL, if it is not reaped."""
        try:
            signal.pidfd_send_signal(self.pidfd, signal.SIGKILL)
        except ProcessLookupError:
            return


def _hexadecimal(status: bytes, name: bytes) -> int:
    begin = status.index(name) + len(name)
    return int(status[begin : status.index(b"\n", begin)], 16)


def start(
    command: Sequence[str],
    environment: Mapping[bytes, bytes],
    instance: int,
    hello: Mapping[str, object],
    descriptors: Sequence[int],
) -> ServerProcess:
    """Start a server with its hello waiting on the channel.

    Args:
        command: program and arguments.
        environment: without the channel's variable.
        instance: for its tag.
        hello: the first message.
        descriptors: that go with it.

    Raises:
        OSError: the program cannot be started.
    """
    ours, theirs = channel_pair()
    tagged = membership.own_limit()
    try:
        send_packet(ours, hello, descriptors)
        try:
            membership.set_own_tag(membership.tag_value(instance))
        except membership.TagUnavailableError as error:
            launch.say(f"orphans in their own session may outlive a killed supervisor: {error}")
        pid = os.posix_spawn(
            command[0],
            list(command),
            {**environment, CHANNEL_VARIABLE.encode(): b"%d" % CHANNEL_DESCRIPTOR},
            file_actions=[
                (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                (os.POSIX_SPAWN_DUP2, 2, 1),
                (os.POSIX_SPAWN_DUP2, theirs.fileno(), CHANNEL_DESCRIPTOR),
            ],
            setsid=True,  # Ctrl-C is for the supervisor
            setsigdef=signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP},
            setsigmask=[],
        )
    except OSError:
        ours.close()
        raise
    finally:
        # An outer execserver that we run under must still find *us* by its tag.
        membership.clear_own_tag(tagged)
        theirs.close()
    return ServerProcess(pid, os.pidfd_open(pid), ours)  # a child of ours: it is there until it is reaped
