"""The program of a stream: connects to a listener and copies both ways.

    stdin ──▶ listener ──▶ stdout, and the line `eof` on stderr at its end

It is a process of a session as any other, so what it writes survives the server. It ends with 0 when both
directions have ended, and with 1 after an error, whose text is on stderr.

Only what a bare interpreter has, and little of that: its start is the latency of a connection.
"""

from __future__ import annotations

import _socket
import _thread
import fcntl
import os
import sys
import termios
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import NoReturn

CONNECT_SECONDS = 10.0

END_LINE = b"eof\n"

_PIECE_BYTES = 256 << 10

_PIPE_BYTES, _LARGE_PIPE_BYTES = 64 << 10, 1 << 20
"""What a pipe holds, and what that of a large input does."""

_BIND_ADDRESS_NO_PORT = 24
"""IP_BIND_ADDRESS_NO_PORT of <linux/in.h>: `connect` chooses the port."""

_FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS = 0.001, 0.25
"""Between the looks at whether the pipe is empty, at the end of the output."""


def main() -> NoReturn:
    """Run with the arguments ADDRESS PORT REPORT NAMESPACE.

    REPORT is a descriptor that gets `ok PORT` with our own port, or `failed TEXT`. NAMESPACE is a descriptor
    of the network namespace of the listener, or -1 for ours.
    """
    address, port, report, namespace = sys.argv[-4], *map(int, sys.argv[-3:])
    try:
        if namespace < 0:
            peer = _connect(address, port)
        else:
            peer = _connect_inside(namespace, address, port)
            os.close(namespace)
        _report(report, f"ok {peer.getsockname()[1]}")
    except OSError as error:
        _report(report, f"failed {_text(error)}")
        _fail(_text(error))
    given = _Input(peer)
    try:
        _copy_output(peer)
        _announce_end(lambda: given.over)
        given.wait()
        failure = given.failure
    except OSError as error:
        failure = error
    if failure is not None:
        _fail(_text(failure))
    os._exit(0)  # at once: there is nothing to tidy up


def _report(descriptor: int, text: str) -> None:
    try:  # noqa: SIM105 - loading `contextlib` takes time
        os.write(descriptor, text.encode())
    except BrokenPipeError:
        pass  # the server that asked is gone; the next one has this stream
    os.close(descriptor)


def _fail(text: str) -> NoReturn:
    try:
        os.write(2, text.encode() + b"\n")
    finally:
        os._exit(1)


def _text(error: OSError) -> str:
    return error.strerror or str(error) or type(error).__name__


def _connect(address: str, port: int) -> _socket.socket:
    """Connect from the listener's own address, which only an address of this machine can be: a process may
    listen on one of another machine (IP_FREEBIND), to which a connection would leave this one.
    """
    peer = _socket.socket(_socket.AF_INET6 if ":" in address else _socket.AF_INET, _socket.SOCK_STREAM)
    peer.settimeout(CONNECT_SECONDS)
    peer.setsockopt(_socket.IPPROTO_IP, _BIND_ADDRESS_NO_PORT, 1)
    peer.bind((address, 0))
    peer.connect((address, port))
    peer.settimeout(None)
    peer.setsockopt(_socket.IPPROTO_TCP, _socket.TCP_NODELAY, 1)
    return peer


def _connect_inside(namespace: int, address: str, port: int) -> _socket.socket:
    """Connect in another network namespace. The socket belongs to it, and we stay where we are."""
    ours, theirs = _socket.socketpair(_socket.AF_UNIX, _socket.SOCK_SEQPACKET)
    child = os.fork()
    if not child:
        _send_connection(theirs, namespace, address, port)
    theirs.close()
    text, control, _, _ = ours.recvmsg(4096, _socket.CMSG_LEN(4))
    os.waitpid(child, 0)
    ours.close()
    if not control:
        raise OSError(text.decode() or "the process that joined the namespace of the sandbox was killed")
    return _socket.socket(fileno=int.from_bytes(control[0][2], sys.byteorder))


def _send_connection(result: _socket.socket, namespace: int, address: str, port: int) -> NoReturn:
    """In the child."""
    try:
        from execserver.network.joining import join_network  # needs ctypes, which few streams do

        join_network(namespace)
        peer = _connect(address, port)
        descriptor = peer.fileno().to_bytes(4, sys.byteorder)
        result.sendmsg([b"\0"], [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, descriptor)])
    except OSError as error:
        result.send(_text(error).encode())
    finally:
        os._exit(0)


class _Input:
    """The direction from the pipe to the listener, in a thread of its own."""

    def __init__(self, peer: _socket.socket) -> None:
        self._peer = peer
        self._running = _thread.allocate_lock()
        self._running.acquire()
        self.failure: OSError | None = None
        _thread.start_new_thread(self._copy, ())

    def wait(self) -> None:
        """Return when it has ended."""
        with self._running:
            pass

    @property
    def over(self) -> bool:
        """Whether it has ended."""
        return not self._running.locked()

    def _copy(self) -> None:
        try:
            while data := os.read(0, _PIECE_BYTES):
                self._peer.sendall(data)
                if len(data) == _PIPE_BYTES:
                    _enlarge_pipe()
            self._peer.shutdown(_socket.SHUT_WR)
        except OSError as error:
            self.failure = error
        finally:
            self._running.release()


def _enlarge_pipe() -> None:
    """Let the pipe of the input hold what the client sends at a time. Only for large inputs: the memory of
    all pipes of a user is limited.
    """
    try:  # noqa: SIM105 - loading `contextlib` takes time
        fcntl.fcntl(0, fcntl.F_SETPIPE_SZ, _LARGE_PIPE_BYTES)
    except OSError:
        pass  # it goes on as it is


def _copy_output(peer: _socket.socket) -> None:
    buffer = memoryview(bytearray(_PIECE_BYTES))
    while size := peer.recv_into(buffer):
        piece = buffer[:size]
        while piece:
            piece = piece[os.write(1, piece) :]


def _announce_end(both_ended: Callable[[], bool]) -> None:
    """Write the line once the pipe is empty: what comes by another pipe could overtake what is in it."""
    pause = _FIRST_PAUSE_SECONDS
    while not both_ended():
        if not int.from_bytes(fcntl.ioctl(1, termios.FIONREAD, bytes(4)), sys.byteorder):
            os.write(2, END_LINE)
            return
        time.sleep(pause)
        pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)


if __name__ == "__main__":
    main()
