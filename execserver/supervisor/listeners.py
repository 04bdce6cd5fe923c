"""Listen URLs: which are accepted, and how they are bound.

    unix:///PATH    absolute path; the default is our private folder's execserver.sock
    ws://IP:PORT    a literal address, [v6] in brackets; port 0 takes a free one
    stdio           also stdio://; at most once

A socket *file* is replaced only when nobody listens on it, and removed only while it is the
one that we bound. Check and bind happen under a lock on the folder, so that of two daemons
that start at once one wins and the other one names it.
"""

from __future__ import annotations

import errno
import os
import socket
import stat
import struct
from collections.abc import Mapping, Sequence

from execprotocol.trust import UntrustedError, check_way
from execserver.private_folder import (
    FolderError,
    create,
    lock_folder,
    open_folder,
    open_private,
    state_folder,
)
from execserver.supervisor.config_file import ConfigFileError, listen_values

LISTEN_VARIABLE = "EXECSERVER_LISTEN"
# Clients that come while the server starts wait in the backlog (the kernel caps it by somaxconn).
BACKLOG = 1024
# sun_path is 108 bytes with its terminating zero.
MAX_UNIX_PATH = 107
# All listeners travel in one message of at most 253 descriptors.
MAX_LISTENERS = 64

_FORMS = "unix:///ABSOLUTE/PATH, ws://IP:PORT, ws://[IPv6]:PORT, stdio"


class ListenError(Exception):
    """What to say on stderr, and the exit code: 1, or 2 for a malformed command line."""

    def __init__(self, message: str, exit_code: int = 1) -> None:
        super().__init__(message)
        self.exit_code = exit_code


class Listener:
    """One thing to serve on. `url` and `descriptors` are final after `bind`."""

    kind: str
    url: str
    descriptors: tuple[int, ...] = ()

    def bind(self) -> None:
        """Begin to listen.

        Raises:
            ListenError: not possible, and why.
        """

    def close(self) -> None:
        """Stop listening and remove what `bind` left behind (idempotent)."""


class StdioListener(Listener):
    """The client at our own stdin and stdout."""

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
        """Listen; port 0 becomes the number that the kernel chose."""
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
        """Listen, in the place of a dead daemon's socket file if there is one."""
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
        """Remove the file if it is still ours, and stop listening (idempotent)."""
        if self._socket is None:
            return
        try:
            # Removed while still listening: until then nobody else takes it for stale.
            status = os.lstat(self._path)
            if (status.st_dev, status.st_ino) == self._identity:
                os.unlink(self._path)
        except OSError:
            pass  # gone, or out of reach by now: there is nothing left to tidy
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
            raise ListenError(f"cannot listen on {self.url}: a file that is no socket is there")
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
            # The file gets the socket's own mode: right from the first moment, without a umask.
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


def requested(
    arguments: Sequence[str], environment: Mapping[str, str], passed: Sequence[Listener] = ()
) -> list[Listener]:
    """The listeners that the command line asks for, else `EXECSERVER_LISTEN`, else the configuration file,
    else the default. Not bound. A registry of remote clients (`remote.py`) comes last, and stands in for the
    default, too. None at all when the file or the registry is no good: the server looks at both and says why.

    Listeners that the service manager passed come first; they stand in for the default, not for what is
    asked for.

    Args:
        arguments: what follows `serve`. Everything but `--listen` and `--config` is left to the server.
        environment: for `EXECSERVER_LISTEN` (separated by spaces), `XDG_RUNTIME_DIR` and the file's place.
        passed: from socket activation (`activation.py`).

    Raises:
        ListenError: a value is not accepted, or one is missing.
    """
    from execserver.supervisor.remote import requested_remote  # which needs what is here

    listeners = _requested_here(arguments, environment, passed)
    if listeners is None:
        return []
    stdin_is_taken = any(listener.kind == "stdio" for listener in listeners)
    try:
        remote = requested_remote(arguments, environment, stdin_is_taken=stdin_is_taken)
    except (ConfigFileError, ListenError):
        return []
    if remote is None:
        return listeners or [default_listener(environment)]
    return [*listeners, remote]


def _requested_here(
    arguments: Sequence[str], environment: Mapping[str, str], passed: Sequence[Listener]
) -> list[Listener] | None:
    """What is to be listened on, perhaps nothing; None when the file is no good."""
    if values := _flag_values(arguments):
        return listeners_from(values, passed)
    if values := environment.get(LISTEN_VARIABLE, "").split():
        try:
            return listeners_from(values, passed)
        except ListenError as error:
            raise ListenError(f"{LISTEN_VARIABLE}: {error}") from None
    try:
        return listeners_from(listen_values(arguments, environment), passed)
    except (ConfigFileError, ListenError):
        return None


def listeners_from(values: Sequence[str], passed: Sequence[Listener] = ()) -> list[Listener]:
    """The passed listeners and one for each URL. Not bound.

    Raises:
        ListenError: a value is not accepted, or they do not go together.
    """
    listeners = [*passed, *map(parse, values)]
    if sum(listener.kind == "stdio" for listener in listeners) > 1:
        raise ListenError("--listen stdio is given more than once: there is only one stdin")
    if len(listeners) > MAX_LISTENERS:
        raise ListenError(f"{len(listeners)} listeners are asked for, at most {MAX_LISTENERS} are possible")
    return listeners


def default_listener(environment: Mapping[str, str]) -> UnixListener:
    """The socket in a folder that only this user can enter.

    Raises:
        ListenError: neither XDG_RUNTIME_DIR nor a home folder says where.
    """
    base = environment.get("XDG_RUNTIME_DIR", "")
    try:
        # The XDG specification: a relative path is invalid and ignored.
        folder = f"{base.rstrip('/')}/execserver" if base.startswith("/") else state_folder(environment)
    except FolderError as error:
        raise ListenError(f"no place for the default socket: {error}, or use --listen") from None
    return UnixListener(f"{folder}/execserver.sock", private_folder=True)


def parse(value: str) -> Listener:
    """One listen URL.

    Raises:
        ListenError: not one of the accepted forms.
    """
    if value in ("stdio", "stdio://"):
        return StdioListener()
    if value.startswith("unix:///") and "\0" not in value and not value.endswith("/"):
        return UnixListener(value.removeprefix("unix://"))
    if value.startswith("ws://"):
        address = _literal_address(value.removeprefix("ws://"))
        if address is not None:
            return TcpListener(*address)
    raise ListenError(f"unsupported --listen value {value!r}; accepted: {_FORMS}")


def bind_all(listeners: Sequence[Listener]) -> None:
    """Bind every listener, or none.

    Raises:
        ListenError: one is not possible; the others are closed again.
    """
    for index, listener in enumerate(listeners):
        try:
            listener.bind()
        except ListenError:
            for bound in listeners[:index]:
                bound.close()
            raise


def _flag_values(arguments: Sequence[str]) -> list[str]:
    values = []
    remaining = iter(arguments)
    for argument in remaining:
        if argument == "--":
            break
        if argument == "--listen":
            value = next(remaining, None)
            if value is None or value.startswith("-"):
                raise ListenError(f"--listen needs a value: {_FORMS}", exit_code=2)
            values.append(value)
        elif argument.startswith("--listen="):
            values.append(argument.removeprefix("--listen="))
    return values


def _literal_address(text: str) -> tuple[str, int] | None:
    host, colon, port = text.rpartition(":")
    if not colon or not (port.isascii() and port.isdigit() and len(port) <= 5 and int(port) <= 65535):
        return None
    family = socket.AF_INET
    if host.startswith("[") and host.endswith("]"):
        family, host = socket.AF_INET6, host[1:-1]
    try:
        socket.inet_pton(family, host)
    except (OSError, ValueError):
        return None
    return host, int(port)
