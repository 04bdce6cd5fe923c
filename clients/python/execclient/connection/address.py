"""Where a daemon is, and how to get there: a URL, and what goes with it.

    unix:///PATH                lines over a Unix socket
    ws://HOST[:PORT][/PATH]     WebSocket
    wss://HOST[:PORT][/PATH]    WebSocket over TLS
    stdio:                      lines over the standard streams of a child that is spawned for it
    relay+https://HOST[:PORT][/BASE]?environment=ID
                                an executor that is connected to a relay, encrypted from end to end;
                                relay+http:// without TLS around it

A bearer token is sent on WebSockets and to relays only, and unencrypted only to this machine: who
listens on the way could run commands.
"""

from __future__ import annotations

import asyncio
import os
import ssl as tls
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol
from urllib.parse import SplitResult, urlsplit

from execclient.arguments import AnyPath
from execclient.connection.channel import CONNECT_SECONDS
from execclient.connection.connection import Connection, Json
from execclient.connection.loopback import is_loopback
from execclient.connection.sockets import open_unix
from execclient.connection.stdio import open_child
from execclient.errors import ConnectionFailed, ExecServerError, InsecureToken, UnsupportedUrl
from execprotocol.daemon_thread import run_in_daemon_thread

URL_VARIABLE = "EXECSERVER_URL"
TOKEN_VARIABLE = "EXECSERVER_TOKEN"  # noqa: S105 - a name
TOKEN_FILE_VARIABLE = "EXECSERVER_TOKEN_FILE"  # noqa: S105 - a name
EXECUTOR_KEY_VARIABLE = "EXECSERVER_EXECUTOR_KEY_SHA256"
KEY_FILE_VARIABLE = "EXECSERVER_CLIENT_KEY_FILE"

STDIO = "stdio:"

MAX_TOKEN_BYTES = 8 << 10
"""A server's whole HTTP head may have 16 KiB."""

WEB_SOCKETS, RELAYS = ("ws", "wss"), ("relay+http", "relay+https")
"""Schemes."""

PAUSE_SECONDS = 0.1
"""As the stock client."""

OnEvent = Callable[[str, Json], None]
OnLost = Callable[[Connection, ExecServerError], None]


class Target(Protocol):
    """A daemon, as often as it takes."""

    @property
    def url(self) -> str:
        """Where it is."""

    @property
    def recoverable(self) -> bool:
        """Whether a session there outlives its connection."""

    @property
    def renewable(self) -> bool:
        """Whether being denied access may pass: the token is looked up anew for each connection."""

    @property
    def longest_pause(self) -> float:
        """Seconds between two tries to get a lost connection back, at most."""

    async def open(self, on_event: OnEvent, on_lost: OnLost) -> Connection:
        """Connect.

        Raises:
            ConnectionFailed: no connection came about.
        """


@dataclass(frozen=True, slots=True)
class UnixTarget:
    """A Unix socket."""

    url: str
    path: str
    recoverable: bool = True
    renewable: bool = False
    longest_pause: float = PAUSE_SECONDS

    async def open(self, on_event: OnEvent, on_lost: OnLost) -> Connection:
        """As `Target.open`."""
        connection = Connection(on_event, on_lost)
        await open_unix(self.path, self.url, connection)
        return connection


@dataclass(frozen=True, slots=True)
class ChildTarget:
    """A child of our own, which is gone with its connection."""

    command: tuple[str, ...] | None
    url: str = STDIO
    recoverable: bool = False
    renewable: bool = False
    longest_pause: float = PAUSE_SECONDS

    async def open(self, on_event: OnEvent, on_lost: OnLost) -> Connection:
        """As `Target.open`."""
        connection = Connection(on_event, on_lost)
        await open_child(self.command, connection)
        return connection


@dataclass(frozen=True, slots=True)
class Token:
    """A bearer token, or the file that has it."""

    value: str | None = field(repr=False)
    file: Path | None

    async def read(self) -> str:
        """The token.

        Raises:
            ConnectionFailed: the file cannot be read, or what it has is no token.
        """
        if self.file is None:
            return _checked(self.value or "", "the token")
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                content = await run_in_daemon_thread(_beginning, self.file)
        except TimeoutError:
            raise ConnectionFailed(
                f"cannot read the token file {self.file}: it did not come within {CONNECT_SECONDS:g} s"
            ).about(path=str(self.file)) from None
        except (OSError, ValueError) as error:
            failure = ConnectionFailed(f"cannot read the token file {self.file}: {error}")
            raise failure.about(path=str(self.file), errno=getattr(error, "errno", None)) from error
        return _checked(content.strip(), f"the token file {self.file}")


@dataclass(frozen=True, slots=True)
class WebSocketTarget:
    """A WebSocket."""

    url: str
    parts: SplitResult
    token: Token | None
    context: tls.SSLContext | None
    recoverable: bool = True
    longest_pause: float = PAUSE_SECONDS

    @property
    def renewable(self) -> bool:
        """As `Target.renewable`."""
        return self.token is not None and self.token.file is not None

    async def open(self, on_event: OnEvent, on_lost: OnLost) -> Connection:
        """As `Target.open`."""
        try:
            from execclient.connection.websocket import open_websocket  # picows: 75 ms
        except ImportError as error:
            raise _missing_extra(self.parts.scheme, "ws", error) from error

        headers = {}
        if self.token is not None:
            headers["Authorization"] = f"Bearer {await self.token.read()}"
        connection = Connection(on_event, on_lost)
        await open_websocket(self.parts, connection, headers=headers, context=self.context)
        return connection


def default_url() -> str:
    """`EXECSERVER_URL`, else the socket on which a daemon listens when it is told nothing."""
    given = os.environ.get(URL_VARIABLE)
    if given:
        return given
    # As the daemon has it: of each, what is no absolute path is ignored.
    base = os.environ.get("XDG_RUNTIME_DIR", "")
    if not base.startswith("/"):
        base = os.environ.get("XDG_STATE_HOME", "")
    if not base.startswith("/"):
        home = os.environ.get("HOME", "")
        base = f"{(home if home.startswith('/') else _account_home()).rstrip('/')}/.local/state"
    return f"unix://{base.rstrip('/')}/execserver/execserver.sock"


def _account_home() -> str:
    import pwd  # for those few who have no HOME

    try:
        return pwd.getpwuid(os.geteuid()).pw_dir
    except KeyError:
        return "/"


def target(
    url: str | None = None,
    *,
    token: str | None = None,
    token_file: AnyPath | None = None,
    command: Sequence[str] | None = None,
    ssl: tls.SSLContext | None = None,
    executor_key_sha256: str | None = None,
    key_file: AnyPath | None = None,
    allow_insecure_token: bool = False,
) -> Target:
    """The daemon at a URL, by default `default_url()`; nothing is looked up or opened yet.

    Args:
        url: one of those above.
        token: for WebSockets and relays; else from `token_file`, `EXECSERVER_TOKEN` or
            `EXECSERVER_TOKEN_FILE`.
        token_file: is read at each connect, and trimmed.
        command: for `stdio:`, what to spawn.
        ssl: for `wss:` and `relay+https:`, which certificates to believe, and our own.
        executor_key_sha256: for relays, the fingerprint of the executor's key; else from
            `EXECSERVER_EXECUTOR_KEY_SHA256`, else whichever key it has at first.
        key_file: for relays, our own key pair; else that of `EXECSERVER_CLIENT_KEY_FILE`, else a new one.
        allow_insecure_token: send the token over `ws:` or `relay+http:` to another machine, too.

    Raises:
        UnsupportedUrl: it is none of those, or does not go with the other arguments.
        InsecureToken: the token would cross a network unencrypted.
    """
    if isinstance(command, str | bytes):
        raise TypeError("command is a list of strings, as ['ssh', 'host', 'execserver', …], not one string")
    url = url or (STDIO if command is not None else default_url())
    scheme = url.partition(":")[0]
    _refuse_strangers(
        url,
        {
            "token": (token is None, scheme in WEB_SOCKETS + RELAYS),
            "token_file": (token_file is None, scheme in WEB_SOCKETS + RELAYS),
            "ssl": (ssl is None, scheme in ("wss", "relay+https")),
            "executor_key_sha256": (executor_key_sha256 is None, scheme in RELAYS),
            "key_file": (key_file is None, scheme in RELAYS),
            "command": (command is None, scheme == "stdio"),
        },
    )
    if scheme in WEB_SOCKETS:
        found = _token(token, token_file)
        return WebSocketTarget(url, _web_address(url, found, allow_insecure_token), found, ssl)
    if scheme in RELAYS:
        try:
            from execclient.connection.relay import (  # cryptography and more: 150 ms
                RelayTarget,
                relay_address,
            )
        except ImportError as error:
            raise _missing_extra(scheme, "relay", error) from error
        found = _token(token, token_file)
        if found is not None and scheme == "relay+http" and not allow_insecure_token:
            _keep_secret(relay_address(url).host, "relay+https://")
        own = key_file if key_file is not None else os.environ.get(KEY_FILE_VARIABLE) or None
        return RelayTarget(
            url,
            found,
            ssl,
            # An empty one is refused there: what should have filled it failed, and nobody would be pinned.
            executor_key_sha256=(
                os.environ.get(EXECUTOR_KEY_VARIABLE) if executor_key_sha256 is None else executor_key_sha256
            ),
            key_file=None if own is None else Path(own),
        )
    if url in (STDIO, "stdio"):
        return ChildTarget(None if command is None else tuple(command))
    return UnixTarget(url, socket_path(url))


def socket_path(url: str) -> str:
    """The path in a `unix:///PATH` URL. Raises `UnsupportedUrl`: it is another kind of URL."""
    if url.startswith("unix:///") and "\0" not in url and not url.endswith("/"):
        return url.removeprefix("unix://")
    raise UnsupportedUrl(
        f"cannot connect to {url!r}: it is none of unix:///ABSOLUTE/PATH, ws://HOST:PORT, wss://HOST, "
        "stdio:, relay+https://HOST?environment=ID"
    )


def _refuse_strangers(url: str, arguments: dict[str, tuple[bool, bool]]) -> None:
    for name, (absent, fits) in arguments.items():
        if not absent and not fits:
            raise UnsupportedUrl(f"{name}= does not go with {url}")


def _missing_extra(scheme: str, extra: str, error: ImportError) -> UnsupportedUrl:
    return UnsupportedUrl(
        f'{scheme}: needs packages that are not installed ({error}): pip install "execclient[{extra}]"'
    )


def _web_address(url: str, token: Token | None, allow_insecure_token: bool) -> SplitResult:
    try:
        parts = urlsplit(url)
        wrong = not parts.hostname or parts.port == 0
    except ValueError:
        wrong = True
    if wrong or not url.isascii() or any(character <= " " for character in url):
        raise UnsupportedUrl(
            f"cannot connect to {url!r}: it is no ws://HOST:PORT or wss://HOST[:PORT][/PATH]"
        )
    if parts.username is not None or parts.fragment:
        # Not shown: what stands before the @ may be a secret.
        raise UnsupportedUrl("a WebSocket URL has no user and no fragment; a token goes into token=")
    if token is not None and parts.scheme == "ws" and not allow_insecure_token:
        assert parts.hostname is not None
        _keep_secret(parts.hostname, "wss://")
    return parts


def _keep_secret(host: str, encrypted: str) -> None:
    if not is_loopback(host):
        raise InsecureToken(
            f"the token would cross the network to {host} unencrypted, and whoever sees it can run commands "
            f"there: use {encrypted}, or a tunnel (ssh -L) to an address of this machine, or say "
            "allow_insecure_token=True"
        )


def _token(value: str | None, file: AnyPath | None) -> Token | None:
    if value is not None and file is not None:
        raise UnsupportedUrl("token= and token_file= are two answers to one question")
    if value is None and file is None:
        value = os.environ.get(TOKEN_VARIABLE) or None
        file = None if value else os.environ.get(TOKEN_FILE_VARIABLE) or None
    if value is None and file is None:
        return None
    return Token(value, None if file is None else Path(file))


def _beginning(file: Path) -> str:
    with file.open("rb") as opened:
        return opened.read(MAX_TOKEN_BYTES + 1).decode()


def _checked(token: str, whose: str) -> str:
    if not token:
        raise ConnectionFailed(f"{whose} is empty")
    if len(token) > MAX_TOKEN_BYTES or not all("!" <= character <= "~" for character in token):
        raise ConnectionFailed(f"{whose} has characters that no token has, or too many")
    return token
