"""A server process of the supervisor: its start, its channel and its end."""

from __future__ import annotations

import os
import select
import signal
from collections.abc import Iterator, Mapping, Sequence

from execserver.supervisor.packets import receive_packet, send_packet, socket_of
from execserver.supervisor.spawning import spawn


class ServerProcess:
    """A child with its channel. `ready`, `stopping` and `upgrading`: whether it has sent these messages.

    Args:
        pid: of an unreaped child.
        channel: the descriptor of our end; it belongs to this object from now on.
    """

    def __init__(self, pid: int, channel: int) -> None:
        self.pid = pid
        self.pidfd = os.pidfd_open(pid)  # safe: an unreaped child keeps its pid
        """Readable when every thread of it has ended."""
        self.channel = socket_of(channel)
        self.hung_up = False
        """Whether its end of the channel is closed, so that no more messages follow."""
        self.ready = self.stopping = self.upgrading = False
        self.ready_at = 0.0
        """The time of its first `ready` (monotonic); 0 before."""
        self.faulty = False
        """Whether it was killed because it broke the protocol."""
        self._poll = select.poll()  # select(2) takes no descriptor above 1023
        self._poll.register(self.pidfd, select.POLLIN)

    def send(self, message: object) -> None:
        """Send a message without blocking.

        Raises:
            OSError: the channel is full, or the server is gone.
        """
        send_packet(self.channel, message)

    def send_hello(self, hello: Mapping[str, object], descriptors: Sequence[int]) -> None:
        """Send the first message and its descriptors. It is no error if the server has already ended.

        Raises:
            OSError: no descriptors or memory.
        """
        try:
            send_packet(self.channel, hello, descriptors)
        except (BrokenPipeError, ConnectionResetError):
            return

    def discard(self) -> None:
        """Kill and reap a server that has not received its hello."""
        self.kill()
        os.waitpid(self.pid, 0)
        os.close(self.pidfd)
        self.channel.close()

    def dismiss(self, seconds: float) -> int:
        """Let a server that has not received its hello check its arguments and settings, and end.

        Args:
            seconds: how long to wait for its end, before it is killed.

        Returns:
            Its exit code: 0 unless it has reported that something is wrong with them.
        """
        self.channel.close()
        if not self._poll.poll(seconds * 1000):
            self.kill()
        _, status = os.waitpid(self.pid, 0)
        os.close(self.pidfd)
        return max(os.waitstatus_to_exitcode(status), 0)

    def messages(self) -> Iterator[Mapping[str, object]]:
        """The available messages.

        Raises:
            ChannelError: a message is invalid.
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
        """Whether all its threads have ended."""
        return bool(self._poll.poll(0))

    def is_dying(self) -> bool:
        """Whether it was killed but has not ended yet, perhaps because a system call does not return.

        Takes 20 µs. It is called for every ended orphan, and a fork bomb leaves thousands of them per second.
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
        """Send SIGKILL, unless it is reaped."""
        try:
            signal.pidfd_send_signal(self.pidfd, signal.SIGKILL)
        except ProcessLookupError:
            return


def _hexadecimal(status: bytes, name: bytes) -> int:
    begin = status.index(name) + len(name)
    return int(status[begin : status.index(b"\n", begin)], 16)


def start(command: Sequence[str], environment: Mapping[bytes, bytes], instance: int) -> ServerProcess:
    """Start a server, which waits for its hello.

    Args:
        command: program and arguments.
        environment: without the channel's variable.
        instance: the number for its tag.

    Raises:
        OSError: the program cannot be started.
    """
    return ServerProcess(*spawn(command, environment, instance))
