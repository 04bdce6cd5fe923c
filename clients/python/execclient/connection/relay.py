"""Connect to an executor behind a relay.

    relay+https://HOST[:PORT][/BASE]?environment=ID

The registry gives out the executor's key, so its operator could intercept connections: pin the key
(`executor_key_sha256`) if you do not run the registry. Without a pin, the key of the first connection is
trusted, and no other one after it. `docs/protocol.md`, "Relay".

The module imports cryptography, httpcore and picows: import it only for such a URL.
"""

from __future__ import annotations

import asyncio
import ssl
import string
from pathlib import Path
from typing import NamedTuple
from urllib.parse import parse_qsl, urlunsplit

from execclient.connection.channel import CONNECT_SECONDS
from execclient.connection.connection import Connection
from execclient.connection.relay_channel import RelayClientChannel
from execclient.connection.target import OnEvent, OnLost, Token
from execclient.errors import (
    AccessDenied,
    ConnectionFailed,
    EnvironmentOffline,
    UnsupportedUrl,
    UntrustedServer,
    WrongExecutor,
)
from execprotocol.daemon_thread import run_in_daemon_thread
from execprotocol.proxies import Proxies
from execprotocol.relay.contract import ENVIRONMENT_OFFLINE, ContractError, check_environment_id, split_url
from execprotocol.relay.dial import DialFailed, DialRefused, dial
from execprotocol.relay.key_files import KeyFileError, load_key_pair
from execprotocol.relay.keys import KeyPair, PublicKeys
from execprotocol.relay.registry_client import (
    RegistryClient,
    RegistryError,
    RegistryRefused,
    RegistryUnreachable,
)
from execprotocol.trace_context import active_headers

FINGERPRINT_DIGITS = 64

GIVE_ONE = (
    "give one of the relay's for clients with token=, token_file=, EXECSERVER_TOKEN or EXECSERVER_TOKEN_FILE"
)

UNAUTHORIZED, FORBIDDEN = 401, 403

LONGEST_PAUSE_SECONDS = 1.0
"""Between two attempts to reconnect: each is a request to a shared server."""

MAX_UNANSWERED_BYTES = 56 << 20
"""Limit of unanswered requests; the next one waits. An executor that stops reading a stream keeps up to 128
MiB and then resets the stream: this limit and one message of the largest size fit."""


class RelayAddress(NamedTuple):
    """The parts of a relay URL."""

    base_url: str
    host: str
    environment_id: str


class RelayTarget:
    """An executor behind a relay.

    Args:
        url: `relay+https://…` or `relay+http://…`.
        token: for the registry.
        context: for TLS; None: trust the system's certificates.
        executor_key_sha256: the required fingerprint of the executor's key; None: trust the first one.
        key_file: the client's key pair, for executors with a list of clients; None: generate a new one.
        proxies: chooses the proxies; None: connect directly.

    Raises:
        UnsupportedUrl: the URL or the fingerprint is invalid.
    """

    recoverable = True
    renewable = True
    """True, because a restarted relay has lost its authorizations."""
    longest_pause = LONGEST_PAUSE_SECONDS

    def __init__(
        self,
        url: str,
        token: Token | None,
        context: ssl.SSLContext | None,
        *,
        executor_key_sha256: str | None = None,
        key_file: Path | None = None,
        proxies: Proxies | None = None,
    ) -> None:
        self.url = url
        address = relay_address(url)
        self._environment_id = address.environment_id
        self._token = token
        self._context = context
        self._registry = RegistryClient(
            address.base_url, self._read_token, ssl_context=context, seconds=CONNECT_SECONDS, proxies=proxies
        )
        self._proxies = proxies
        self._pinned = None if executor_key_sha256 is None else _fingerprint(executor_key_sha256)
        self._key_file = key_file
        self._own: KeyPair | None = None
        self._met: str | None = None
        """The fingerprint of the executor at the first connection."""

    async def open(self, on_event: OnEvent, on_lost: OnLost) -> Connection:
        """As `Target.open`.

        Raises:
            EnvironmentOffline: no executor is connected.
            AccessDenied: the registry or the executor refused this client.
            WrongExecutor: the executor has another key than the pinned one, or than before.
            UntrustedServer: the relay's certificate is not trusted.
            ConnectionFailed: any other failure to connect.
        """
        own = await self._own_key()
        try:
            answer = await self._registry.connect(self._environment_id, own.public)
        except RegistryError as error:
            raise self._connect_error(error) from error
        self._check(answer.executor_key)
        connection = Connection(on_event, on_lost, MAX_UNANSWERED_BYTES)
        channel = RelayClientChannel(connection, answer, own, self.url)
        try:
            await dial(
                answer.url,
                channel,
                ssl_context=self._context,
                headers=active_headers(),
                proxies=self._proxies,
            )
            await channel.established(CONNECT_SECONDS)
        except DialRefused as error:
            raise ConnectionFailed(f"cannot connect to {self.url}: {error}") from error
        except DialFailed as error:
            kind = UntrustedServer if error.untrusted else ConnectionFailed
            raise kind(f"cannot connect to {self.url}: {error}") from error
        except BaseException:
            channel.abort()
            await channel.ended()
            raise
        self._met = answer.executor_key.fingerprint
        return connection

    async def _read_token(self) -> str:
        if self._token is None:
            raise AccessDenied(f"{self.url} wants a token: {GIVE_ONE}", UNAUTHORIZED)
        return await self._token.read()

    async def _own_key(self) -> KeyPair:
        if self._own is None:
            if self._key_file is None:
                self._own = KeyPair.generate()
            else:
                try:
                    async with asyncio.timeout(CONNECT_SECONDS):
                        self._own = await run_in_daemon_thread(load_key_pair, self._key_file, create=False)
                except TimeoutError:
                    raise ConnectionFailed(
                        f"cannot read the key file {self._key_file}: the disk did not answer within "
                        f"{CONNECT_SECONDS:g} s"
                    ) from None
                except KeyFileError as error:
                    raise ConnectionFailed(str(error)) from None
        return self._own

    def _check(self, key: PublicKeys) -> None:
        found = key.fingerprint
        if self._pinned is not None and found != self._pinned:
            raise WrongExecutor(
                f"the executor of {self.url} has the key {found}, and not the pinned one, {self._pinned}: "
                "another executor runs there, or the connection is intercepted"
            )
        if self._met is not None and found != self._met:
            raise WrongExecutor(
                f"the executor of {self.url} was replaced by another one (its key is {found} now, and was "
                f"{self._met}), which knows nothing of this session"
            )

    def _connect_error(self, error: RegistryError) -> ConnectionFailed:
        if isinstance(error, RegistryRefused):
            if error.code == ENVIRONMENT_OFFLINE:
                return EnvironmentOffline(
                    f"no executor is connected for the environment {self._environment_id} at "
                    f"{self._registry.shown}: start one with `execserver serve --remote "
                    f"{self._registry.shown} --environment-id {self._environment_id}`",
                    self._environment_id,
                )
            if error.status == UNAUTHORIZED:
                return AccessDenied(f"{error}: {GIVE_ONE}", error.status)
            if error.status == FORBIDDEN:
                return AccessDenied(
                    f"{error}: the token must be one for clients, and for the environment "
                    f"{self._environment_id}",
                    error.status,
                )
        if isinstance(error, RegistryUnreachable) and error.untrusted:
            return UntrustedServer(
                f"{error}. To trust its authority, pass ssl=ssl.create_default_context(cafile=…)"
            )
        return ConnectionFailed(f"cannot connect to {self.url}: {error}")


def relay_address(url: str) -> RelayAddress:
    """Parse the URL of a relay.

    Raises:
        UnsupportedUrl: the URL is invalid.
    """
    parts = split_url(url, "relay+https", "relay+http")
    try:
        query = parts.query if parts is not None else ""
        queries = parse_qsl(query, keep_blank_values=True, strict_parsing=True) if query else []
    except ValueError:
        parts = None
    if parts is None:
        raise UnsupportedUrl(
            f"cannot connect to {url!r}: it is no relay+https://HOST[:PORT][/BASE]?environment=ID"
        )
    if parts.username is not None or parts.fragment:
        # Not shown, because the part before the @ may be a secret.
        raise UnsupportedUrl("a relay's URL has no user and no fragment; a token goes into token=")
    if [name for name, _ in queries] != ["environment"]:
        raise UnsupportedUrl(
            "a relay's URL names the environment and nothing else: relay+https://HOST[:PORT][/BASE]?environment=ID"
        )
    try:
        environment_id = check_environment_id(queries[0][1])
    except ContractError as error:
        raise UnsupportedUrl(f"cannot connect to {url!r}: {error}") from None
    scheme = parts.scheme.removeprefix("relay+")
    base_url = urlunsplit((scheme, parts.netloc, parts.path.rstrip("/"), "", ""))
    assert parts.hostname is not None
    return RelayAddress(base_url, parts.hostname, environment_id)


def _fingerprint(text: str) -> str:
    digits = text.strip().lower()
    if len(digits) != FINGERPRINT_DIGITS or not set(digits) <= set(string.hexdigits):
        raise UnsupportedUrl(
            f"executor_key_sha256= (EXECSERVER_EXECUTOR_KEY_SHA256) is {FINGERPRINT_DIGITS} hexadecimal "
            "digits, as `execserver relay key FILE` and `execserver relay environments` show them; leave it "
            "out to trust the key of the first connection"
        )
    return digits
