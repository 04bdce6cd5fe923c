"""Connect to an executor behind a relay, by its name or out of a pool.

    relay+https://HOST[:PORT][/BASE]?environment=ID
    relay+https://HOST[:PORT][/BASE]?pool=NAME[&label=NAME[=VALUE]]…
    …&wait=SECONDS      keep trying for so long while no executor is available; 1 for pools, else 0

The registry gives out the executor's key, so its operator could intercept connections: pin the key
(`executor_key_sha256`) if you do not run the registry. Without a pin, the key of the first connection is
trusted, and no other one after it. `docs/protocol.md`, "Relay" and "Pools".

The module imports cryptography, httpcore and picows: import it only for such a URL.
"""

from __future__ import annotations

import asyncio
import random
import ssl
import string
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple, TypeVar
from urllib.parse import parse_qsl, urlunsplit

from execclient.connection.channel import CONNECT_SECONDS
from execclient.connection.connection import Connection
from execclient.connection.relay_channel import RelayClientChannel
from execclient.connection.target import OnEvent, OnLost, Token
from execclient.errors import (
    AccessDenied,
    ConnectionFailed,
    EnvironmentOffline,
    PoolFull,
    UnsupportedUrl,
    UntrustedServer,
    WrongExecutor,
)
from execprotocol.daemon_thread import run_in_daemon_thread
from execprotocol.proxies import Proxies
from execprotocol.relay.contract import (
    ENVIRONMENT_OFFLINE,
    POOL_FULL,
    ConnectAnswer,
    ContractError,
    check_environment_id,
    split_url,
)
from execprotocol.relay.dial import DialFailed, DialRefused, dial
from execprotocol.relay.key_files import KeyFileError, load_key_pair
from execprotocol.relay.keys import KeyPair, PublicKeys
from execprotocol.relay.pools import check_pool_name, parse_labels
from execprotocol.relay.registry_client import (
    RegistryClient,
    RegistryError,
    RegistryRefused,
    RegistryUnreachable,
)
from execprotocol.trace_context import active_headers

Given = TypeVar("Given")
Parsed = TypeVar("Parsed")

FINGERPRINT_DIGITS = 64

GIVE_ONE = (
    "give one of the relay's for clients with token=, token_file=, EXECSERVER_TOKEN or EXECSERVER_TOKEN_FILE"
)

UNAUTHORIZED, FORBIDDEN = 401, 403

LONGEST_PAUSE_SECONDS = 1.0
"""Between two attempts to reconnect: each is a request to a shared server."""

WAIT_PAUSES = (0.2, 2.0)
"""The first and the longest pause between two attempts of `wait=`. Each has a random part of half."""

POOL_WAIT_SECONDS = 1.0
"""For pools without `wait=`. The relay learns a fraction of a second late that a session has ended: the next
command of a script must not find the pool full because of the one before."""

MAX_WAIT_SECONDS = 7 * 86400.0

_FORMS = "relay+https://HOST[:PORT][/BASE]?environment=ID or ?pool=NAME[&label=NAME[=VALUE]]"

MAX_UNANSWERED_BYTES = 56 << 20
"""Limit of unanswered requests; the next one waits. An executor that stops reading a stream keeps up to 128
MiB and then resets the stream: this limit and one message of the largest size fit."""


class RelayAddress(NamedTuple):
    """The parts of a relay URL. One of `environment_id` and `pool` is None."""

    base_url: str
    host: str
    environment_id: str | None
    pool: str | None
    labels: Mapping[str, str | None]
    """Those that the executor must have; None: with any value."""
    wait: float
    """Seconds."""


class RelayTarget:
    """An executor behind a relay.

    Out of a pool, the relay chooses an executor for each new session; its reconnects go to the same executor,
    which `url` names from then on.

    Args:
        url: `relay+https://…` or `relay+http://…`.
        token: for the registry.
        context: for TLS; None: trust the system's certificates.
        executor_key_sha256: the required fingerprint of the executor's key; None: trust the first one.
        key_file: the client's key pair, for executors with a list of clients; None: generate a new one.
        proxies: chooses the proxies; None: connect directly.

    Raises:
        UnsupportedUrl: the URL or the fingerprint is invalid, or a fingerprint is given for a pool.
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
        self._address = address = relay_address(url)
        self._environment_id = address.environment_id
        self._token = token
        self._context = context
        self._registry = RegistryClient(
            address.base_url, self._read_token, ssl_context=context, seconds=CONNECT_SECONDS, proxies=proxies
        )
        self._proxies = proxies
        self._pinned = None if executor_key_sha256 is None else _fingerprint(executor_key_sha256)
        if self._pinned is not None and address.pool is not None:
            raise UnsupportedUrl(
                "executor_key_sha256= (EXECSERVER_EXECUTOR_KEY_SHA256) does not go with a pool, whose "
                "executors have a key each: leave it out, or name one executor with ?environment="
            )
        self._given_url = url
        self._key_file = key_file
        self._own: KeyPair | None = None
        self._met: str | None = None
        """The fingerprint of the executor at the first connection."""

    @property
    def chooses(self) -> bool:
        """As `Target.chooses`."""
        return self._address.pool is not None

    @property
    def url(self) -> str:
        """The URL of the executor; that of the pool until one is chosen."""
        if self._address.pool is None or self._environment_id is None:
            return self._given_url
        return f"relay+{self._address.base_url}?environment={self._environment_id}"

    async def open(self, on_event: OnEvent, on_lost: OnLost, *, resuming: bool) -> Connection:
        """As `Target.open`. A new session is tried for the time of `wait=` in the URL.

        Raises:
            EnvironmentOffline: no executor is connected; or `PoolFull`: those of the pool take no sessions.
            AccessDenied: the registry or the executor refused this client.
            WrongExecutor: the executor has another key than the pinned one, or than before.
            UntrustedServer: the relay's certificate is not trusted.
            UnsupportedUrl: a session is to be resumed at an unknown executor of the pool.
            ConnectionFailed: any other failure to connect.
        """
        own = await self._own_key()
        if resuming and self._environment_id is None:
            raise UnsupportedUrl(
                f"a session cannot be resumed by the URL of a pool, {self._given_url}: connect to its "
                "executor, by the `url` that the object of the session had"
            )
        if resuming or not self._address.wait:
            return await self._open_once(own, on_event, on_lost, resuming=resuming)
        clock = asyncio.get_running_loop().time
        deadline = clock() + self._address.wait
        pause, longest = WAIT_PAUSES
        while True:
            try:
                return await self._open_once(own, on_event, on_lost, resuming=False)
            except (AccessDenied, UntrustedServer):
                raise
            except ConnectionFailed:
                if clock() >= deadline:
                    raise
            chosen = random.uniform(0.5, 1.0) * pause  # noqa: S311  spreads load, hides nothing
            await asyncio.sleep(min(chosen, max(0.0, deadline - clock())))
            pause = min(2 * pause, longest)

    async def _open_once(
        self, own: KeyPair, on_event: OnEvent, on_lost: OnLost, *, resuming: bool
    ) -> Connection:
        answer = await self._authorized(own.public, resuming=resuming)
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

    async def _authorized(self, key: PublicKeys, *, resuming: bool) -> ConnectAnswer:
        pool = self._address.pool
        if pool is not None and not resuming:
            self._environment_id = self._met = None
        try:
            if self._environment_id is not None:
                return await self._registry.connect(self._environment_id, key)
            assert pool is not None
            answer = await self._registry.connect_pool(pool, key, self._address.labels)
        except RegistryError as error:
            raise self._connect_error(error) from error
        self._environment_id = answer.environment_id
        return answer

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
            if error.code in (ENVIRONMENT_OFFLINE, POOL_FULL):
                return self._unavailable(error)
            if error.status == UNAUTHORIZED:
                return AccessDenied(f"{error}: {GIVE_ONE}", error.status)
            if error.status == FORBIDDEN:
                return AccessDenied(
                    f"{error}: the token must be one for clients, and for {self._place}", error.status
                )
        if isinstance(error, RegistryUnreachable) and error.untrusted:
            return UntrustedServer(
                f"{error}. To trust its authority, pass ssl=ssl.create_default_context(cafile=…)"
            )
        return ConnectionFailed(f"cannot connect to {self.url}: {error}")

    @property
    def _place(self) -> str:
        if self._environment_id is None:
            return f"the pool {self._address.pool}"
        return f"the environment {self._environment_id}"

    def _unavailable(self, error: RegistryRefused) -> EnvironmentOffline:
        relay, name = self._registry.shown, self._environment_id or self._address.pool or ""
        if error.code == POOL_FULL:
            return PoolFull(
                f"no executor of {self._place} at {relay} takes a session now ({error.message}): try again "
                "later, wait for one with &wait=SECONDS in the URL, or start another one",
                name,
            )
        if self._environment_id is None:
            return EnvironmentOffline(
                f"no executor of {self._place} at {relay} can be chosen ({error.message}): start one with "
                f"`execserver serve --remote {relay} --pool {name}`",
                name,
            )
        # The id of a pool's member is not given out: it comes from the key of the executor.
        option = f"--environment-id {name}" if self._address.pool is None else f"--pool {self._address.pool}"
        return EnvironmentOffline(
            f"no executor is connected for {self._place} at {relay}: start one with `execserver serve "
            f"--remote {relay} {option}`",
            name,
        )


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
        raise UnsupportedUrl(f"cannot connect to {url!r}: it is no {_FORMS}")
    if parts.username is not None or parts.fragment:
        # Not shown, because the part before the @ may be a secret.
        raise UnsupportedUrl("a relay's URL has no user and no fragment; a token goes into token=")
    given: dict[str, list[str]] = {}
    for name, value in queries:
        given.setdefault(name, []).append(value)
    names, labels, waits = given.keys() - {"label", "wait"}, given.get("label", []), given.get("wait", [""])
    if (
        names not in ({"environment"}, {"pool"})
        or len(given[next(iter(names))]) != 1
        or len(waits) != 1
        or (labels and "pool" not in names)
    ):
        raise UnsupportedUrl(
            f"a relay's URL names one environment or one pool, and no more: {_FORMS}[&wait=SECONDS]"
        )
    try:
        environment_id = check_environment_id(given["environment"][0]) if "environment" in names else None
        pool = _checked(check_pool_name, given["pool"][0], "pool") if "pool" in names else None
        wanted = _checked(parse_labels, labels, "label")
        usual = POOL_WAIT_SECONDS if pool is not None else 0.0
        wait = _checked(_seconds, waits[0], "wait") if "wait" in given else usual
    except ContractError as error:
        raise UnsupportedUrl(f"cannot connect to {url!r}: {error}") from None
    scheme = parts.scheme.removeprefix("relay+")
    base_url = urlunsplit((scheme, parts.netloc, parts.path.rstrip("/"), "", ""))
    assert parts.hostname is not None
    return RelayAddress(base_url, parts.hostname, environment_id, pool, wanted, wait)


def _checked(parse: Callable[[Given], Parsed], given: Given, name: str) -> Parsed:
    try:
        return parse(given)
    except ValueError as error:
        raise ContractError(f"`{name}` {error}") from None


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds <= MAX_WAIT_SECONDS:
        raise ValueError(f"must be seconds from 0 to {MAX_WAIT_SECONDS:.0f}, not {text[:40]!r}")
    return seconds


def _fingerprint(text: str) -> str:
    digits = text.strip().lower()
    if len(digits) != FINGERPRINT_DIGITS or not set(digits) <= set(string.hexdigits):
        raise UnsupportedUrl(
            f"executor_key_sha256= (EXECSERVER_EXECUTOR_KEY_SHA256) is {FINGERPRINT_DIGITS} hexadecimal "
            "digits, as `execserver relay key FILE` and `execserver relay environments` show them; leave it "
            "out to trust the key of the first connection"
        )
    return digits
