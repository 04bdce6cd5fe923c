"""The relay's control socket: HTTP over a Unix socket in the state folder, for the command line.

Only the folder's owner can reach it. Standard library only, so that the command line need not load the
server. The socket is reached through the folder's descriptor, because its path may be longer than the 107
bytes of a socket address.
"""

from __future__ import annotations

import contextlib
import http.client
import os
import socket
from pathlib import Path

from execserver.private_folder import FolderError, open_folder

SOCKET_NAME = "control.sock"

ANSWER_SECONDS = 10.0
"""How long a busy relay may take to answer."""

BACKLOG = 16


class NoRelayError(Exception):
    """No relay answers. The text is for the user."""


def bind(folder: int) -> socket.socket:
    """Listen in a state folder that is locked by this process; a socket there is of a dead relay.

    Args:
        folder: descriptor of the state folder.

    Raises:
        OSError: the socket cannot be bound.
    """
    with contextlib.suppress(FileNotFoundError):
        os.unlink(SOCKET_NAME, dir_fd=folder)
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        # The file gets the socket's mode, whatever the umask is, and never has another one.
        os.fchmod(listening.fileno(), 0o600)
        listening.bind(_short_path(folder))
        listening.listen(BACKLOG)
    except OSError:
        listening.close()
        raise
    return listening


def ask_relay(state_dir: Path, path: str) -> bytes:
    """The body of `GET PATH` on the control socket of a running relay.

    Args:
        state_dir: of the relay.
        path: `/environments`, `/metrics` or `/nats`.

    Raises:
        NoRelayError: no relay runs with that folder, or the relay does not answer.
    """
    try:
        folder = open_folder(str(state_dir))
    except FolderError as error:
        raise NoRelayError(f"no relay runs with --state-dir {state_dir}: {error}") from None
    try:
        connection = _Connection(_short_path(folder))
        try:
            connection.request("GET", path)
            answer = connection.getresponse()
            body = answer.read()
        finally:
            connection.close()
    except (FileNotFoundError, ConnectionRefusedError):
        raise NoRelayError(
            f"no relay runs with --state-dir {state_dir}; start one with `execserver relay serve`"
        ) from None
    except (OSError, http.client.HTTPException) as error:
        raise NoRelayError(f"the relay with --state-dir {state_dir} does not answer: {error}") from None
    finally:
        os.close(folder)
    if answer.status != http.client.OK:
        raise NoRelayError(f"the relay with --state-dir {state_dir} answers {answer.status} to {path}")
    return body


class _Connection(http.client.HTTPConnection):
    """HTTP over a Unix socket."""

    def __init__(self, path: str) -> None:
        super().__init__("relay", timeout=ANSWER_SECONDS)
        self._path = path

    def connect(self) -> None:
        """Connect to the socket file."""
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


def _short_path(folder: int) -> str:
    return f"/proc/self/fd/{folder}/{SOCKET_NAME}"
