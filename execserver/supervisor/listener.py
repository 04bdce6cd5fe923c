"""One thing to listen on: the client at stdin and stdout, a TCP address, or a Unix socket.

A socket file is replaced only if no process listens on it, and removed only while it is the file that we
bound. Check and bind happen under a lock on the folder: of two daemons that start at once one wins, and the
other one names the winner.
"""

from __future__ import annotations

import errno
import os
import socket
import stat
import struct

from execprotocol.trust import UntrustedError, check_way
from execserver.private_folder import FolderError, create, lock_folder, open_folder, open_private

# Clients that connect while the server starts wait in the backlog (the kernel caps it by somaxconn).
BACKLOG = 1024
# sun_path is 108 bytes with its terminating zero.
MAX_UNIX_PATH = 107


class ListenError(Exception):
    """A message for stderr, and the exit code: 1, or 2 for a malformed command line."""

    def __init__(self, message: str, exit_code: int = 1) -> None:
        super().__init__(message)
        self.exit_code = exit_code


class Listener:
    """An address to listen on. `url` and `descriptors` are final after `bind`."""

    kind: str
    url: str
    descriptors: tuple[int, ...] = ()

    def bind(self) -> None:
        """Begin to listen.

        Raises:
            ListenError: not possible; the text has the reason.
        """

    def close(self) -> None:
        """Stop listening and remove the socket file (idempotent)."""


class StdioListener(Listener):
    """The client at stdin and stdout."""

    kind = "stdio"
    url = "stdio"
    descriptors = (0, 1)


class TcpListener(Listener):
    """A WebSocket address."""

    kind = "tcp"

    def __init__(self, host: str, port: int) -> None:
        self._family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._address = (host, port)
        self._socket: socket.socket | None = None
        self.url = self._url(port)

    def bind(self) -> None:
        """Listen; port 0 becomes the port that the kernel chose."""
        listening = socket.socket(self._family, socket.SOCK_STREAM)
        try:
            # A restart must not wait for old connections in TIME_WAIT.
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listening.bind(self._address)
            listening.listen(BACKLOG)
        except OSError as error:
            listening.close()
            raise ListenError(f"cannot listen on {self.url}: {error.strerror}") from None
        self._socket = listening
        self.url = self._url(listening.getsockname()[1])
        self.descriptors = (listening.fileno(),)

    def close(self) -> None:
        """Stop listening (idempotent)."""
        if self._socket is not None:
            self._socket.close()

    def _url(self, port: int) -> str:
        host = self._address[0]
        return f"ws://[{host}]:{port}" if ":" in host else f"ws://{host}:{port}"


class UnixListener(Listener):
    """A socket file of mode 0600."""

    kind = "unix"

    def __init__(self, path: str, *, private_folder: bool = False) -> None:
        self.url = f"unix://{path}"
        self._path = path
        self._private_folder = private_folder
        self._socket: socket.socket | None = None
        self._identity: tuple[int, int] | None = None

    def bind(self) -> None:
        """Listen; the socket file of a dead daemon is replaced."""
        if len(os.fsencode(self._path)) > MAX_UNIX_PATH:
            raise ListenError(
                f"cannot listen on {self.url}: the path has {len(os.fsencode(self._path))} bytes, "
                f"a Unix socket takes at most {MAX_UNIX_PATH}"
            )
        try:
            check_way(self._path)
            folder = self._open_folder()
            try:
                lock_folder(folder, os.path.dirname(self._path))
                self._remove_stale()
                self._bind()
            finally:
                os.close(folder)
        except (FolderError, UntrustedError) as error:
            raise ListenError(f"cannot listen on {self.url}: {error}") from None
        except OSError as error:
            raise ListenError(f"cannot listen on {self.url}: {error.strerror}") from None

    def close(self) -> None:
        """Remove the socket file if it is still ours, and stop listening (idempotent)."""
        if self._socket is None:
            return
        try:
            # Removed while still listening, so that no other daemon takes it for stale.
            status = os.lstat(self._path)
            if (status.st_dev, status.st_ino) == self._identity:
                os.unlink(self._path)
        except OSError:
            pass  # gone, or in a folder that cannot be changed any more
        self._socket.close()
        self._socket = None

    def _open_folder(self) -> int:
        folder = os.path.dirname(self._path)
        if self._private_folder:
            return open_private(folder)
        create(folder)
        return open_folder(folder)

    def _remove_stale(self) -> None:
        try:
            status = os.lstat(self._path)
        except FileNotFoundError:
            return
        if not stat.S_ISSOCK(status.st_mode):
            raise ListenError(f"cannot listen on {self.url}: the file exists and is no socket")
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
            probe.setblocking(False)
            result = probe.connect_ex(self._path)
            if result == errno.ECONNREFUSED:
                os.unlink(self._path)
                return
            owner = ""
            if result == 0:
                credentials = probe.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
                owner = f" by process {struct.unpack('3i', credentials)[0]}"
            elif result not in (errno.EAGAIN, errno.EPROTOTYPE):  # full backlog; another socket type
                raise OSError(result, os.strerror(result))
        raise ListenError(f"cannot listen on {self.url}: in use{owner}")

    def _bind(self) -> None:
        listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            # The file gets the socket's mode at once, regardless of the umask.
            os.fchmod(listening.fileno(), 0o600)
            listening.bind(self._path)
            status = os.lstat(self._path)
            listening.listen(BACKLOG)
        except OSError:
            listening.close()
            raise
        self._socket = listening
        self._identity = (status.st_dev, status.st_ino)
        self.descriptors = (listening.fileno(),)
