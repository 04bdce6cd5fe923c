"""An executor behind a relay: relay+https:// and relay+http://, to whoever has an environment's name.

    relay+https://HOST[:PORT][/BASE]?environment=ID

The registry gives out the executor's key, so who runs the registry could sit in the middle: pin the key
(`executor_key_sha256`) where that is somebody else. Without a pin the first connection's is believed, and
no other one after it. `docs/protocol.md`, "Relay".

It imports cryptography, httpcore and picows: import it only when there is such a URL.
"""

from __future__ import annotations

import asyncio
import ssl
import string
from pathlib import Path
from typing import NamedTuple
from urllib.parse import SplitResult, parse_qsl, urlsplit, urlunsplit

from execclient.connection.channel import CONNECT_SECONDS
from execclient.connection.connection import Connection
from execclient.connection.relay_channel import RelayChannel
from execclient.connection.target import OnEvent, OnLost, Token
from execclient.errors import (
    AccessDenied,
    ConnectionFailed,
    EnvironmentOffline,
    UnsupportedUrl,
    UntrustedServer,
    WrongExecutor,
)
from execprotocol.daemon_thread import aside
from execprotocol.relay.contract import ENVIRONMENT_OFFLINE, ContractError, check_environment_id
from execprotocol.relay.dial import DialFailed, DialRefused, dial
from execprotocol.relay.key_files import KeyFileError, load_key_pair
from execprotocol.relay.keys import KeyPair, PublicKeys
from execprotocol.relay.registry_client import (
    RegistryClient,
    RegistryError,
    RegistryRefused,
    RegistryUnreachable,
)

FINGERPRINT_DIGITS = 64

GIVE_ONE = (
    "give one of the relay's for clients with token=, token_file=, EXECSERVER_TOKEN or EXECSERVER_TOKEN_FILE"
)

UNAUTHORIZED, FORBIDDEN = 401, 403

LONGEST_PAUSE_SECONDS = 1.0
"""Between two tries to get a lost connection back: each is a request to a server that others use, too."""


MAX_UNANSWERED_BYTES = 56 << 20
"""Of requests, above which the next one waits. An executor that does not read one stream of its socket keeps
what comes, up to 128 MiB, and then ends the stream; so much and one message of the largest size fit."""


class RelayAddress(NamedTuple):
    """What a URL says."""

    base_url: str
    host: str
    environment_id: str


class RelayTarget:
    """An executor at a relay.

    Args:
        url: as it was given.
        token: for the registry.
        context: which certificates to believe; None for those of the system.
        executor_key_sha256: the fingerprint that the executor's key must have; None for whichever it has at
            first.
        key_file: our own key pair, which an executor may ask for; None for a new one.

    Raises:
        UnsupportedUrl: the URL or the fingerprint is none.
    """

    recoverable = True
    renewable = True
    """A relay that was started anew has forgotten whom it authorized."""
    longest_pause = LONGEST_PAUSE_SECONDS

    def __init__(
        self,
        url: str,
        token: Token | None,
        context: ssl.SSLContext | None,
        *,
        executor_key_sha256: str | None = None,
        key_file: Path | None = None,
    ) -> None:
        self.url = url
        address = relay_address(url)
        self._environment_id = address.environment_id
        self._token = token
        self._context = context
        self._registry = RegistryClient(
            address.base_url, self._read_token, ssl_context=context, seconds=CONNECT_SECONDS
        )
        self._pinned = None if executor_key_sha256 is None else _fingerprint(executor_key_sha256)
        self._key_file = key_file
        self._own: KeyPair | None = None
        self._met: str | None = None
        """The fingerprint of the executor that we have been connected to."""

    async def open(self, on_event: OnEvent, on_lost: OnLost) -> Connection:
        """As `Target.open`.

        Raises:
            EnvironmentOffline: no executor is there now.
            AccessDenied: the registry or the executor does not want us.
            WrongExecutor: the executor has another key than the pinned one, or than before.
            UntrustedServer: the relay's certificate does not hold.
            ConnectionFailed: anything else that kept us from connecting.
        """
        own = await self._own_key()
        try:
            answer = await self._registry.connect(self._environment_id, own.public)
        except RegistryError as error:
            raise self._no_way(error) from error
        self._check(answer.executor_key)
        connection = Connection(on_event, on_lost, MAX_UNANSWERED_BYTES)
        channel = RelayChannel(connection, answer, own, self.url)
        try:
            await dial(answer.url, channel, ssl_context=self._context)
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
                        self._own = await aside(load_key_pair, self._key_file, create=False)
                except TimeoutError:
                    raise ConnectionFailed(
                        f"cannot read the key file {self._key_file}: it did not come within "
                        f"{CONNECT_SECONDS:g} s"
                    ) from None
                except KeyFileError as error:
                    raise ConnectionFailed(str(error)) from None
        return self._own

    def _check(self, key: PublicKeys) -> None:
        found = key.fingerprint
        if self._pinned is not None and found != self._pinned:
            raise WrongExecutor(
                f"the executor of {self.url} has the key {found}, and not the one that was asked for, "
                f"{self._pinned}: another executor runs there, or somebody is in between"
            )
        if self._met is not None and found != self._met:
            raise WrongExecutor(
                f"the executor of {self.url} was replaced by another one (its key is {found} now, and was "
                f"{self._met}), which knows nothing of this session"
            )

    def _no_way(self, error: RegistryError) -> ConnectionFailed:
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
                f"{error}. If it is right and only unknown here, pass "
                "ssl=ssl.create_default_context(cafile=…)"
            )
        return ConnectionFailed(f"cannot connect to {self.url}: {error}")


def relay_address(url: str) -> RelayAddress:
    """Take a URL apart.

    Raises:
        UnsupportedUrl: it is none of a relay.
    """
    try:
        parts: SplitResult = urlsplit(url)
        wrong = not parts.hostname or parts.port == 0
        queries = parse_qsl(parts.query, keep_blank_values=True, strict_parsing=True) if parts.query else []
    except ValueError:
        wrong = True
    if wrong or not url.isascii() or any(character <= " " for character in url):
        raise UnsupportedUrl(
            f"cannot connect to {url!r}: it is no relay+https://HOST[:PORT][/BASE]?environment=ID"
        )
    if parts.username is not None or parts.fragment:
        # Not shown: what stands before the @ may be a secret.
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
            "out to believe whichever key is there"
        )
    return digits
