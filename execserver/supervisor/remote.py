"""The registry of remote clients: its URL, the environment's name, and its state that outlives a server.

    --remote https://HOST[:PORT][/PREFIX]    http:// on loopback only: the token travels in its headers
    --environment-id ID                      letters, digits, - and _, at most 256
    --pool NAME                              instead: the name that the executors of a pool share

Nothing is bound, the server connects to the registry. The supervisor keeps a file in memory with the state
that a new server needs: a line with the token from stdin (empty if it comes from elsewhere), and a line that
the first server writes, with the seed of its key (`relay/executor/identity.py`).
"""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Mapping, Sequence

from execprotocol.relay.pools import NAME_CHARACTERS, check_pool_name, pool_of
from execserver.supervisor.config_file import document, flag_values
from execserver.supervisor.listener import Listener, ListenError

REMOTE, ENVIRONMENT_ID, POOL, TOKEN_STDIN = "remote", "environment_id", "pool", "remote_token_stdin"

MAX_TOKEN_BYTES = 16 << 10
"""Of a token's line, as in the stock executor. A longer token does not fit in a header."""

MAX_ENVIRONMENT_ID = 256
"""Characters; as in the contract with registries (`execprotocol.relay.contract`), not loaded here."""

_SCHEME = "relay+"
_ENVIRONMENT_QUERY, _POOL_QUERY = "?environment=", "?pool="
_YES = frozenset(("1", "true", "t", "yes", "y", "on"))
"""The values of a variable that mean true, as in the settings model."""


class RemoteListener(Listener):
    """A registry through which clients connect.

    Args:
        base: the checked URL.
        name: the checked name of the environment, or of the pool.
        in_pool: whether it is a pool's.
        token_on_stdin: whether the token is the first line of stdin.
    """

    kind = "remote"

    def __init__(self, base: str, name: str, *, in_pool: bool = False, token_on_stdin: bool) -> None:
        self.url = f"{_SCHEME}{base}{_POOL_QUERY if in_pool else _ENVIRONMENT_QUERY}{name}"
        self._token_on_stdin = token_on_stdin

    def bind(self) -> None:
        """Read the token if it comes on stdin, and make the file in memory.

        Raises:
            ListenError: stdin has no token, or no memory or descriptor is left.
        """
        try:
            token = _token_line() if self._token_on_stdin else b""
            memory = os.memfd_create("execserver-remote", os.MFD_CLOEXEC)
            self.descriptors = (memory,)
            os.write(memory, token + b"\n")
        except OSError as error:
            raise ListenError(f"cannot serve {self.url}: {error.strerror}") from None

    def close(self) -> None:
        """Close the file in memory (idempotent)."""
        for descriptor in self.descriptors:
            os.close(descriptor)
        self.descriptors = ()


def place_in(url: str) -> tuple[str, str | None, str | None]:
    """The base URL, the environment's name and the pool's in the `url` of a `RemoteListener`; one of the two
    names is None.
    """
    base, _, query = url.removeprefix(_SCHEME).rpartition("?")
    name = query.partition("=")[2]
    return (base, None, name) if f"?{query}".startswith(_POOL_QUERY) else (base, name, None)


def requested_remote(
    arguments: Sequence[str], environment: Mapping[str, str], *, stdin_is_taken: bool
) -> RemoteListener | None:
    """The registry in the settings (flags, variables or file); None without one.

    Args:
        arguments: the command line after `serve`.
        environment: the variables.
        stdin_is_taken: whether a client uses stdin. Then no token is read, and the server reports the error.

    Raises:
        ConfigFileError: the file cannot be used.
        ListenError: the settings are invalid. The server's error text has more detail.
    """
    in_file = document(arguments, environment)
    base = _value(REMOTE, arguments, environment, in_file)
    if base is None:
        return None
    environment_id = _value(ENVIRONMENT_ID, arguments, environment, in_file)
    pool = _value(POOL, arguments, environment, in_file)
    if (environment_id is None) == (pool is None):
        raise ListenError("--remote needs either --environment-id or --pool")
    on_stdin = _switch(TOKEN_STDIN, arguments, environment, in_file) and not stdin_is_taken
    name = check_environment_id(environment_id) if environment_id is not None else check_pool(pool or "")
    return RemoteListener(check_registry_url(base), name, in_pool=pool is not None, token_on_stdin=on_stdin)


def check_registry_url(url: str) -> str:
    """Check a registry's URL; returns it without trailing slashes.

    Raises:
        ListenError: another scheme, no host, unused parts (user, query), or plain http to another machine.
    """
    from urllib.parse import urlsplit  # takes milliseconds, needed only with a registry

    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:
        host = port = None
    if host is None or port == 0 or not url.isascii() or any(character <= " " for character in url):
        raise ListenError("must be a URL, https://HOST[:PORT][/PREFIX]")
    if parts.scheme not in ("https", "http"):
        raise ListenError(f"must begin with https://, not {parts.scheme}://: the registry gives the rest")
    if "@" in parts.netloc or "?" in url or "#" in url:
        raise ListenError("must have no user, query or fragment: the token goes elsewhere")
    if parts.scheme == "http" and not _is_loopback(host):
        raise ListenError(
            "must begin with https:// unless it is on loopback: plain http would reveal the token"
        )
    return url.rstrip("/")


def check_environment_id(text: str) -> str:
    """Check an environment's name.

    Raises:
        ListenError: the name is invalid.
    """
    if not 1 <= len(text) <= MAX_ENVIRONMENT_ID or not NAME_CHARACTERS.issuperset(text):
        raise ListenError(f"must be 1 to {MAX_ENVIRONMENT_ID} letters, digits, - or _, not {text[:40]!r}")
    if pool_of(text) is not None:
        raise ListenError("must not end with -- and 16 hexadecimal digits: join the pool with --pool instead")
    return text


def check_pool(text: str) -> str:
    """Check the name of a pool. Raises ListenError."""
    try:
        return check_pool_name(text)
    except ValueError as error:
        raise ListenError(str(error)) from None


def _is_loopback(host: str) -> bool:
    if host in ("localhost", "::1"):
        return True
    try:
        return socket.inet_pton(socket.AF_INET, host)[0] == 127
    except OSError:
        return False


def _value(
    name: str, arguments: Sequence[str], environment: Mapping[str, str], in_file: Mapping[str, object]
) -> str | None:
    found = None
    for value in flag_values("--" + name.replace("_", "-"), arguments, hyphens=True):
        found = value or ""
    if found is None:
        found = environment.get(_variable(name), "").strip() or None
    if found is None:
        in_file_value = in_file.get(name)
        if in_file_value is not None and not isinstance(in_file_value, str):
            raise ListenError(f"{name} must be text")
        found = in_file_value
    return found


def _switch(
    name: str, arguments: Sequence[str], environment: Mapping[str, str], in_file: Mapping[str, object]
) -> bool:
    flag = name.replace("_", "-")
    given = [argument for argument in arguments if argument in (f"--{flag}", f"--no-{flag}")]
    if given:
        return given[-1] == f"--{flag}"
    text = environment.get(_variable(name), "").strip()
    return text.lower() in _YES if text else in_file.get(name) is True


def _variable(name: str) -> str:
    return "EXECSERVER_" + name.upper()


def _token_line() -> bytes:
    """Read the first line of stdin.

    At a terminal the user can interrupt it: the default signal handlers are restored meanwhile, because the
    supervisor's handlers only wake the loop.
    """
    line = b""
    handlers = {number: signal.signal(number, signal.SIG_DFL) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        while b"\n" not in line and len(line) <= MAX_TOKEN_BYTES and (piece := os.read(0, 4096)):
            line += piece
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
    token = line.partition(b"\n")[0].strip()
    if not token:
        raise ListenError("--remote-token-stdin: standard input has no token in its first line")
    if len(token) > MAX_TOKEN_BYTES:
        raise ListenError(f"--remote-token-stdin: the token has more than {MAX_TOKEN_BYTES} bytes")
    return token
