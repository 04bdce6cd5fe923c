"""The one connection on standard input and output."""

from __future__ import annotations

import asyncio
import os
import stat
import threading
from collections.abc import Callable

from execserver.spool.system_calls import enlarge_pipe
from execserver.telemetry.logs import Logger
from execserver.transports.base import BULK_READ_BYTES, MakeHandler
from execserver.transports.byte_stream import ByteStreamChannel, Spin

PIPE_BYTES = 1 << 20
"""The size of the pipes. With the default of 64 KiB, output is a quarter to a half slower."""

log = Logger()


def serve_stdio(
    fd_in: int,
    fd_out: int,
    make_handler: MakeHandler,
    spin_us: int = 0,
    may_spin: Callable[[], bool] = lambda: True,
) -> ByteStreamChannel:
    """Serve one connection on two descriptors; `connection_lost` is called when the input ends.

    The descriptors are not closed. They are set to non-blocking, which affects every process that shares
    them, and restored at the end.

    Args:
        fd_in: anything readable; a thread copies what the loop cannot watch (a file, /dev/null).
        fd_out: anything writable.
        make_handler: makes the handler of the connection.
        spin_us: microseconds of further reads after each batch of messages; 0 for none.
        may_spin: called before each of those reads.
    """
    blocking = {fd: os.get_blocking(fd) for fd in (fd_in, fd_out)}  # before the loop sees them
    pump = None if _watchable(fd_in) else _Pump(fd_in)
    source = pump.fd if pump else fd_in

    def release() -> None:
        for fd, was in blocking.items():
            try:
                os.set_blocking(fd, was)
            except OSError as error:
                log.debug("descriptor not restored", fd=fd, error=str(error))
        if pump:
            pump.close()

    for fd in (source, fd_out):
        os.set_blocking(fd, False)
        _enlarge(fd)
    spin = Spin(spin_us / 1e6, may_spin) if spin_us > 0 else None
    channel = ByteStreamChannel(source, fd_out, "stdio", release, spin)
    channel.start(make_handler)
    return channel


def _watchable(fd: int) -> bool:
    loop = asyncio.get_running_loop()
    try:
        loop.add_reader(fd, lambda: None)
    except PermissionError:  # epoll refuses what is always ready
        return False
    loop.remove_reader(fd)
    return True


def _enlarge(fd: int) -> None:
    if not stat.S_ISFIFO(os.fstat(fd).st_mode):
        return
    try:
        enlarge_pipe(fd, PIPE_BYTES)
    except OSError as error:  # above the user's share of pipe memory: slower, not wrong
        log.debug("pipe not enlarged", fd=fd, error=str(error))


class _Pump:
    """A thread that copies a descriptor into a pipe, whose read end is `fd`."""

    def __init__(self, source: int) -> None:
        self._source = source
        self.fd, self._sink = os.pipe()
        threading.Thread(target=self._copy, name="stdin", daemon=True).start()

    def close(self) -> None:
        """Close the read end; the thread ends at its next write."""
        os.close(self.fd)

    def _copy(self) -> None:
        try:
            while piece := os.read(self._source, BULK_READ_BYTES):
                rest = memoryview(piece)
                while rest:
                    rest = rest[os.write(self._sink, rest) :]
        except OSError as error:
            log.debug("standard input ended", error=str(error))
        finally:
            os.close(self._sink)
