"""URLs of daemons, and the targets that they name.

    unix:///PATH                lines over a Unix socket
    ws://HOST[:PORT][/PATH]     WebSocket
    wss://HOST[:PORT][/PATH]    WebSocket over TLS
    stdio:                      lines over the standard streams of a child process
    relay+https://HOST[:PORT][/BASE]?environment=ID, or ?pool=NAME[&label=NAME[=VALUE]]…
                                an executor that is connected to a relay, with end-to-end encryption;
                                relay+http:// without TLS

A bearer token is sent to WebSocket servers and relays only, and unencrypted to this machine only: a listener
on the network could use the token to run commands.
"""

from __future__ import annotations

import os
import ssl as tls
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import SplitResult, urlsplit

from execclient.arguments import AnyPath
from execclient.connection.connection import Connection
from execclient.connection.sockets import open_unix
from execclient.connection.target import OnEvent, OnLost, Target, Token, is_loopback
from execclient.errors import InsecureToken, UnsupportedUrl
from execprotocol.proxies import PROXY_VARIABLE, Proxies

URL_VARIABLE = "EXECSERVER_URL"
TOKEN_VARIABLE = "EXECSERVER_TOKEN"  # noqa: S105 - a name
TOKEN_FILE_VARIABLE = "EXECSERVER_TOKEN_FILE"  # noqa: S105 - a name
EXECUTOR_KEY_VARIABLE = "EXECSERVER_EXECUTOR_KEY_SHA256"
KEY_FILE_VARIABLE = "EXECSERVER_CLIENT_KEY_FILE"

STDIO = "stdio:"

WEB_SOCKETS, RELAYS = ("ws", "wss"), ("relay+http", "relay+https")
"""Schemes."""

PAUSE_SECONDS = 0.1
"""As the stock client."""


@dataclass(frozen=True, slots=True)
class UnixTarget:
    """A Unix socket."""

    url: str
    path: str
    recoverable: bool = True
    renewable: bool = False
    chooses: bool = False
    longest_pause: float = PAUSE_SECONDS

    async def open(self, on_event: OnEvent, on_lost: OnLost, *, resuming: bool) -> Connection:
        """As `Target.open`."""
        connection = Connection(on_event, on_lost)
        await open_unix(self.path, self.url, connection)
        return connection


@dataclass(frozen=True, slots=True)
class ChildTarget:
    """A child process, which ends with its connection."""

    command: tuple[str, ...] | None
    url: str = STDIO
    recoverable: bool = False
    renewable: bool = False
    chooses: bool = False
    longest_pause: float = PAUSE_SECONDS

    async def open(self, on_event: OnEvent, on_lost: OnLost, *, resuming: bool) -> Connection:
        """As `Target.open`."""
        # Here, because only this target needs it and what it imports.
        from execclient.connection.stdio import open_child

        connection = Connection(on_event, on_lost)
        await open_child(self.command, connection)
        return connection


@dataclass(frozen=True, slots=True)
class WebSocketTarget:
    """A WebSocket server."""

    url: str
    parts: SplitResult
    token: Token | None
    context: tls.SSLContext | None
    proxies: Proxies | None = None
    recoverable: bool = True
    chooses: bool = False
    longest_pause: float = PAUSE_SECONDS

    @property
    def renewable(self) -> bool:
        """As `Target.renewable`."""
        return self.token is not None and self.token.file is not None

    async def open(self, on_event: OnEvent, on_lost: OnLost, *, resuming: bool) -> Connection:
        """As `Target.open`."""
        try:
            # Here, because picows takes 75 ms, which other targets do not need.
            from execclient.connection.websocket import open_websocket
        except ImportError as error:
            raise _missing_extra(self.parts.scheme, "ws", error) from error

        headers = {}
        if self.token is not None:
            headers["Authorization"] = f"Bearer {await self.token.read()}"
        connection = Connection(on_event, on_lost)
        await open_websocket(
            self.parts, connection, headers=headers, context=self.context, proxies=self.proxies
        )
        return connection


def default_url() -> str:
    """`EXECSERVER_URL`, else the default socket of a daemon."""
    given = os.environ.get(URL_VARIABLE)
    if given:
        return given
    # As in the daemon: a variable that is not an absolute path is ignored.
    base = os.environ.get("XDG_RUNTIME_DIR", "")
    if not base.startswith("/"):
        base = state_home()
    return f"unix://{base.rstrip('/')}/execserver/execserver.sock"


def state_home() -> str:
    """The folder for state of the user's programs: `XDG_STATE_HOME`, else `~/.local/state`."""
    base = os.environ.get("XDG_STATE_HOME", "")
    if base.startswith("/"):
        return base
    home = os.environ.get("HOME", "")
    return f"{(home if home.startswith('/') else _account_home()).rstrip('/')}/.local/state"


def _account_home() -> str:
    import pwd  # for the rare environment without HOME

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
    proxy: str | None = None,
) -> Target:
    """The daemon at a URL, by default `default_url()`. Nothing is opened or resolved yet.

    Args:
        url: one of those above.
        token: for WebSocket servers and relays; else from `token_file`, `EXECSERVER_TOKEN` or
            `EXECSERVER_TOKEN_FILE`.
        token_file: is read at each connect, and stripped.
        command: for `stdio:`, the command to spawn.
        ssl: for `wss:` and `relay+https:`, the certificates to trust, and the client's own.
        executor_key_sha256: for relays, the fingerprint of the executor's key; else from
            `EXECSERVER_EXECUTOR_KEY_SHA256`, else the key of the first connection is trusted.
        key_file: for relays, the client's key pair; else from `EXECSERVER_CLIENT_KEY_FILE`, else a new one.
        allow_insecure_token: send the token over `ws:` or `relay+http:` to another machine, too.
        proxy: for WebSocket servers and relays, the proxy to dial through; else from `EXECSERVER_PROXY`, else
            from `HTTPS_PROXY`, `HTTP_PROXY`, `ALL_PROXY` and `NO_PROXY`.

    Raises:
        UnsupportedUrl: the URL is none of those above, or does not go with the other arguments.
        InsecureToken: the token would cross a network unencrypted.
    """
    if isinstance(command, str | bytes):
        raise TypeError("command is a list of strings, as ['ssh', 'host', 'execserver', …], not one string")
    url = url or (STDIO if command is not None else default_url())
    scheme = url.partition(":")[0]
    takes_token = scheme in WEB_SOCKETS + RELAYS
    _refuse_unused(url, "token", token, used=takes_token)
    _refuse_unused(url, "token_file", token_file, used=takes_token)
    _refuse_unused(url, "ssl", ssl, used=scheme in ("wss", "relay+https"))
    _refuse_unused(url, "executor_key_sha256", executor_key_sha256, used=scheme in RELAYS)
    _refuse_unused(url, "key_file", key_file, used=scheme in RELAYS)
    _refuse_unused(url, "proxy", proxy, used=takes_token)
    _refuse_unused(url, "command", command, used=scheme == "stdio")
    if takes_token:
        found = _token(token, token_file)
        if scheme in RELAYS:
            return _relay_target(
                url, found, ssl, executor_key_sha256, key_file, allow_insecure_token, _proxies(proxy)
            )
        parts = _web_address(url, found, allow_insecure_token)
        return WebSocketTarget(url, parts, found, ssl, _proxies(proxy))
    if url in (STDIO, "stdio"):
        return ChildTarget(None if command is None else tuple(command))
    return UnixTarget(url, socket_path(url))


def _relay_target(
    url: str,
    token: Token | None,
    ssl: tls.SSLContext | None,
    executor_key_sha256: str | None,
    key_file: AnyPath | None,
    allow_insecure_token: bool,
    proxies: Proxies,
) -> Target:
    try:
        # Here, because cryptography and other packages take 150 ms.
        from execclient.connection.relay import RelayTarget, relay_address
    except ImportError as error:
        raise _missing_extra(url.partition(":")[0], "relay", error) from error
    if token is not None and url.startswith("relay+http:") and not allow_insecure_token:
        _require_loopback(relay_address(url).host, "relay+https://")
    own = key_file if key_file is not None else os.environ.get(KEY_FILE_VARIABLE) or None
    # `RelayTarget` refuses an empty fingerprint: its source has failed, and no executor would be pinned.
    pinned = os.environ.get(EXECUTOR_KEY_VARIABLE) if executor_key_sha256 is None else executor_key_sha256
    return RelayTarget(
        url,
        token,
        ssl,
        executor_key_sha256=pinned,
        key_file=None if own is None else Path(own),
        proxies=proxies,
    )


def _proxies(given: str | None) -> Proxies:
    explicit = os.environ.get(PROXY_VARIABLE) if given is None else given
    try:
        return Proxies(explicit, PROXY_VARIABLE if given is None else "proxy=", os.environ)
    except ValueError as error:
        raise UnsupportedUrl(str(error)) from None


def socket_path(url: str) -> str:
    """The path in a `unix:///PATH` URL. Raises `UnsupportedUrl` for another kind of URL."""
    if url.startswith("unix:///") and "\0" not in url and not url.endswith("/"):
        return url.removeprefix("unix://")
    raise UnsupportedUrl(
        f"cannot connect to {url!r}: it is none of unix:///ABSOLUTE/PATH, ws://HOST:PORT, wss://HOST, "
        "stdio:, relay+https://HOST?environment=ID, relay+https://HOST?pool=NAME"
    )


def _refuse_unused(url: str, name: str, value: object, *, used: bool) -> None:
    if value is not None and not used:
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
        # The URL is not shown: the part before the @ may be a secret.
        raise UnsupportedUrl("a WebSocket URL has no user and no fragment; a token goes into token=")
    if token is not None and parts.scheme == "ws" and not allow_insecure_token:
        assert parts.hostname is not None
        _require_loopback(parts.hostname, "wss://")
    return parts


def _require_loopback(host: str, encrypted: str) -> None:
    if not is_loopback(host):
        raise InsecureToken(
            f"the token would cross the network to {host} unencrypted, and anyone who reads it can run "
            f"commands there: use {encrypted}, or a tunnel (ssh -L) to an address of this machine, or pass "
            "allow_insecure_token=True"
        )


def _token(value: str | None, file: AnyPath | None) -> Token | None:
    if value is not None and file is not None:
        raise UnsupportedUrl("token= and token_file= exclude each other")
    if value is None and file is None:
        value = os.environ.get(TOKEN_VARIABLE) or None
        file = None if value else os.environ.get(TOKEN_FILE_VARIABLE) or None
    if value is None and file is None:
        return None
    return Token(value, None if file is None else Path(file))
