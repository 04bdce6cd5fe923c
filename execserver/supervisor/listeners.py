"""Listen URLs: which are accepted, and which listeners the command line asks for.

    unix:///PATH    absolute path; the default is our private folder's execserver.sock
    ws://IP:PORT    a literal address, [v6] in brackets; port 0 takes a free one
    stdio           also stdio://; at most once

The listeners themselves are in `listener.py`.
"""

from __future__ import annotations

import socket
from collections.abc import Mapping, Sequence

from execserver.private_folder import FolderError, state_folder
from execserver.supervisor.config_file import ConfigFileError, flag_values, listen_values
from execserver.supervisor.listener import (
    Listener,
    ListenError,
    StdioListener,
    TcpListener,
    UnixListener,
)
from execserver.supervisor.remote import requested_remote

LISTEN_VARIABLE = "EXECSERVER_LISTEN"
# All listeners are sent in one message of at most 253 descriptors.
MAX_LISTENERS = 64

_FORMS = "unix:///ABSOLUTE/PATH, ws://IP:PORT, ws://[IPv6]:PORT, stdio"


def requested(
    arguments: Sequence[str], environment: Mapping[str, str], passed: Sequence[Listener] = ()
) -> list[Listener]:
    """The listeners that arguments, environment and configuration file ask for, not bound.

    The command line comes before `EXECSERVER_LISTEN`, the configuration file and the default.

    Listeners that the service manager passed come first, a registry of remote clients (`remote.py`) comes
    last; either replaces the default. The result is empty if the file or the registry settings are invalid:
    the server checks both and reports the error.

    Args:
        arguments: the command line after `serve`. Only `--listen`, `--config` and the registry are read here.
        environment: for `EXECSERVER_LISTEN` (separated by spaces), `XDG_RUNTIME_DIR` and the path of the
        file.
        passed: from socket activation (`activation.py`).

    Raises:
        ListenError: a value is invalid or missing.
    """
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
    """The requested listeners without the registry, perhaps none; None if the file is invalid."""
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
    """The passed listeners and one for each URL, not bound.

    Raises:
        ListenError: a value is invalid, or the listeners cannot be combined.
    """
    listeners = [*passed, *map(parse, values)]
    if sum(listener.kind == "stdio" for listener in listeners) > 1:
        raise ListenError("--listen stdio is given more than once: there is only one stdin")
    if len(listeners) > MAX_LISTENERS:
        raise ListenError(f"{len(listeners)} listeners are asked for, at most {MAX_LISTENERS} are possible")
    return listeners


def default_listener(environment: Mapping[str, str]) -> UnixListener:
    """The default socket, in a folder that only this user can enter.

    Raises:
        ListenError: neither XDG_RUNTIME_DIR nor a home folder is known.
    """
    base = environment.get("XDG_RUNTIME_DIR", "")
    try:
        # The XDG specification: a relative path is invalid and ignored.
        folder = f"{base.rstrip('/')}/execserver" if base.startswith("/") else state_folder(environment)
    except FolderError as error:
        raise ListenError(f"no place for the default socket: {error}, or use --listen") from None
    return UnixListener(f"{folder}/execserver.sock", private_folder=True)


def parse(value: str) -> Listener:
    """The listener for a listen URL.

    Raises:
        ListenError: the value has none of the accepted forms.
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
        ListenError: one cannot be bound; the others are closed again.
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
    for value in flag_values("--listen", arguments):
        if value is None:
            raise ListenError(f"--listen needs a value: {_FORMS}", exit_code=2)
        values.append(value)
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
