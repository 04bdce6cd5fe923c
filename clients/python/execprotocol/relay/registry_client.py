"""The client of a registry, for both peers: POST requests, each on its own connection.

1. Redirects are not followed: the token is for one host. A proxy of `https` forwards TLS only (CONNECT).
2. Answers are checked here, their environment and URL included.
3. Tokens, tickets and bodies do not appear in errors; of a refusal, the registry's message for people does.
4. A request names the active span (`trace_context.active_headers`), for the registry's log.

Only this module of the package imports httpcore, which takes 50 ms: import the module lazily.
`docs/protocol.md`, "Relay".
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import socket
import ssl
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import TypeVar
from urllib.parse import SplitResult, urlsplit

import h11
import httpcore

from execprotocol.daemon_thread import ADDRESS_SECONDS, addresses, causes_of, run_in_daemon_thread
from execprotocol.proxies import CREDENTIALS_REQUIRED, Proxies, Proxy, ProxyFailed
from execprotocol.relay import contract
from execprotocol.relay.contract import (
    ConnectAnswer,
    ConnectRequest,
    ContractError,
    PoolConnectRequest,
    PoolEntry,
    RegisterAnswer,
    RegisterRequest,
    StatusRequest,
    ValidateRequest,
)
from execprotocol.relay.frames import printable
from execprotocol.relay.keys import PublicKeys
from execprotocol.relay.pools import member_id
from execprotocol.trace_context import active_headers

REQUEST_SECONDS = 10.0
"""For one request, from the connect to the last byte. As the stock peers."""

MAX_ANSWER_BYTES = 64 << 10
"""The largest valid answer has about 8 KiB."""

MAX_TEXT = 200
"""Limit for the registry's texts in errors, in characters."""

SECRET_CHARACTERS = 8
"""A shorter token is no secret, and may be part of any text."""

HTTP_OK = 200
PASSING_STATUSES = (408, 429)
"""With any 5xx: the same request may succeed later."""

CONFLICT = 409
"""With `environment_offline`: the environment is known, and no executor is connected."""

_UUID = re.compile(r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}\Z")

Answer = TypeVar("Answer")


class RegistryError(Exception):
    """The registry gave no usable answer. The message says why, and contains no secret."""


class RegistryUnreachable(RegistryError):
    """The registry did not answer.

    Attributes:
        untrusted: whether the registry's certificate is not trusted.
        refused: whether the connection was refused: no server listens there.
    """

    def __init__(self, message: str, *, untrusted: bool = False, refused: bool = False) -> None:
        super().__init__(message)
        self.untrusted = untrusted
        self.refused = refused


class RegistryRefused(RegistryError):
    """The registry answered with an error status.

    Attributes:
        status: of its HTTP response.
        code: its error code, for programs; empty if there is none.
        message: its error message, for people; empty if there is none.
    """

    def __init__(self, shown: str, status: int, code: str, message: str) -> None:
        texts = ", ".join(part for part in (code, message) if part)
        super().__init__(f"{shown} refused it with {status}" + (f" ({texts})" if texts else ""))
        self.status = status
        self.code = code
        self.message = message

    @property
    def retry(self) -> bool:
        """Whether the same request may succeed later."""
        offline = self.status == CONFLICT and self.code == contract.ENVIRONMENT_OFFLINE
        return offline or self.status in PASSING_STATUSES or self.status >= 500


class RegistryClient:
    """Sends requests to a registry.

    Args:
        base_url: `http` or `https`, with an optional path prefix; slashes at its end are ignored.
        token: returns the bearer token of each request. Its exceptions are raised to the caller.
        ssl_context: for `https`; None: trust the system's certificates (`SSL_CERT_FILE`).
        seconds: for one request.
        proxies: chooses the proxy; None: connect directly.

    Raises:
        ValueError: the URL is invalid.
    """

    def __init__(
        self,
        base_url: str,
        token: Callable[[], Awaitable[str]],
        *,
        ssl_context: ssl.SSLContext | None = None,
        seconds: float = REQUEST_SECONDS,
        proxies: Proxies | None = None,
    ) -> None:
        self._base = _base(base_url)
        self._proxies = proxies
        self._token = token
        self._context = ssl_context
        self._seconds = seconds
        self._networks: set[_Network] = set()
        """The connections of the requests under way."""

    @property
    def shown(self) -> str:
        """The registry's URL, for people."""
        return f"{self._base.scheme}://{self._base.netloc}{self._base.path}"

    async def register(
        self, environment_id: str, key: PublicKeys, pool: PoolEntry | None = None
    ) -> RegisterAnswer:
        """Register an executor.

        Args:
            environment_id: valid for `contract.check_environment_id`.
            key: the executor's.
            pool: its description, if the id is that of a member of a pool.

        Raises:
            RegistryUnreachable, RegistryRefused, RegistryError: the executor is not registered.
        """
        body = await self._post(
            contract.path(environment_id, "register"), RegisterRequest(key, pool).to_json()
        )
        answer = self._parsed(RegisterAnswer.parse, body)
        self._check(environment_id, answer.environment_id, answer.url)
        return answer

    async def connect(self, environment_id: str, key: PublicKeys) -> ConnectAnswer:
        """Request access to an executor. As `register`, with the harness's key."""
        body = await self._post(contract.path(environment_id, "connect"), ConnectRequest(key).to_json())
        answer = self._parsed(ConnectAnswer.parse, body)
        self._check(environment_id, answer.environment_id, answer.url)
        return answer

    async def connect_pool(
        self, pool: str, key: PublicKeys, labels: Mapping[str, str | None]
    ) -> ConnectAnswer:
        """Request access to an executor of a pool, which the registry chooses.

        Args:
            pool: valid for `pools.check_pool_name`.
            key: the harness's.
            labels: that the executor must have; None: with any value.

        Raises:
            RegistryUnreachable, RegistryRefused, RegistryError: as `connect`.
        """
        body = await self._post(contract.pool_path(pool), PoolConnectRequest(key, labels).to_json())
        answer = self._parsed(ConnectAnswer.parse, body)
        self._check(member_id(pool, answer.executor_key.fingerprint), answer.environment_id, answer.url)
        return answer

    async def report(self, environment_id: str, status: StatusRequest) -> None:
        """Report the load of a registered executor. Raises as `register`."""
        await self._post(contract.path(environment_id, "status"), status.to_json())

    async def validate(self, environment_id: str, request: ValidateRequest, stream_id: str) -> bool:
        """Ask whether the registry sent a harness.

        Args:
            environment_id: the executor's.
            request: the harness's key and authorization.
            stream_id: of the handshake; sent to the registry if it is a UUID.

        Returns:
            The registry's answer. A refusal with 401 is a `RegistryRefused` like any other.
        """
        # A stream id may be any text, which a header must not be.
        headers = [(contract.STREAM_ID_HEADER, stream_id)] if _UUID.match(stream_id) else []
        body = await self._post(contract.path(environment_id, "validate"), request.to_json(), headers)
        return self._parsed(contract.parse_validity, body)

    async def aclose(self) -> None:
        """Close all connections. Requests under way end with an error."""
        for network in tuple(self._networks):
            await network.hang_up()

    async def _post(
        self,
        path: str,
        body: dict[str, object],
        further: Sequence[tuple[str, str]] = (),
    ) -> bytes:
        token = await self._token()
        if not token.isascii():
            raise RegistryError("the token has characters that no HTTP header may have")
        headers = [
            ("host", self._base.netloc),
            ("content-type", "application/json"),
            ("accept", "*/*"),
            ("authorization", f"Bearer {token}"),
            *active_headers().items(),
            *further,
        ]
        try:
            async with asyncio.timeout(self._seconds):
                status, answer = await self._exchanged(
                    self._base.path + path, headers, json.dumps(body).encode()
                )
        except TimeoutError:
            raise RegistryUnreachable(
                f"{self.shown} gave no answer to {path.rpartition('/')[2]} within {self._seconds:g} s"
            ) from None
        except (httpcore.LocalProtocolError, h11.LocalProtocolError):
            raise RegistryError("the token has characters that no HTTP header may have") from None
        except (
            httpcore.NetworkError,
            httpcore.TimeoutException,
            httpcore.ProtocolError,
            h11.RemoteProtocolError,
            OSError,
        ) as error:
            raise self._unreachable(error) from None
        if status != HTTP_OK:
            code, message = (
                printable(_without(token, text), MAX_TEXT).strip() for text in contract.error_of(answer)
            )
            raise RegistryRefused(self.shown, status, code, message)
        return answer

    async def _exchanged(
        self, path: str, headers: list[tuple[str, str]], content: bytes
    ) -> tuple[int, bytes]:
        if self._context is None and self._base.scheme == "https":
            # Reads the system's certificates, which takes about 20 ms.
            self._context = await run_in_daemon_thread(ssl.create_default_context)
        proxy = None if self._proxies is None else self._proxies.of(self._base)
        url = httpcore.URL(
            scheme=self._base.scheme, host=self._base.hostname or "", port=self._base.port, target=path
        )
        headers = [*headers, ("content-length", str(len(content)))]
        network = _Network(proxy)
        # One connection per request: an idle one may be closed just as a request is sent on it, and then it
        # is unknown whether the request was carried out.
        pool = httpcore.AsyncConnectionPool(
            ssl_context=self._context,
            proxy=None if proxy is None else _httpcore_proxy(proxy),
            max_keepalive_connections=0,
            network_backend=network,
        )
        self._networks.add(network)
        try:
            async with pool.stream("POST", url, headers=headers, content=content) as response:
                if proxy is not None and response.status == CREDENTIALS_REQUIRED:
                    raise proxy.refusal(str(response.status))
                return await self._answer(response)
        except httpcore.ProxyError as error:
            assert proxy is not None
            raise proxy.refusal(printable(str(error), MAX_TEXT).strip()) from None
        finally:
            self._networks.discard(network)
            await network.hang_up()

    async def _answer(self, response: httpcore.Response) -> tuple[int, bytes]:
        answer = bytearray()
        async for piece in response.aiter_stream():
            answer += piece
            if len(answer) > MAX_ANSWER_BYTES:
                raise RegistryError(f"{self.shown} answered with more than {MAX_ANSWER_BYTES} bytes")
        return response.status, bytes(answer)

    def _parsed(self, parse: Callable[[bytes], Answer], body: bytes) -> Answer:
        try:
            return parse(body)
        except ContractError as error:
            raise RegistryError(f"{self.shown} gave an answer that cannot be used: {error}") from None

    def _check(self, asked: str, environment_id: str, url: str) -> None:
        if environment_id != asked:
            raise RegistryError(f"{self.shown} answered for another environment than {asked}")
        if self._base.scheme == "https" and urlsplit(url).scheme != "wss":
            raise RegistryError(
                f"{self.shown} gave out a URL that is not encrypted (ws:), and itself is https"
            )

    def _unreachable(self, error: Exception) -> RegistryUnreachable:
        """An error with the system's reason, which httpcore and anyio keep inside their own errors."""
        for inner in causes_of(error):
            if isinstance(inner, ProxyFailed):
                break
            if isinstance(inner, ssl.SSLCertVerificationError):
                return RegistryUnreachable(
                    f"the certificate of {self.shown} does not hold: {inner.verify_message}", untrusted=True
                )
            if isinstance(inner, ConnectionRefusedError):
                return self._no_connection(_reason(error), refused=True)
        return self._no_connection(_reason(error))

    def _no_connection(self, why: str, *, refused: bool = False) -> RegistryUnreachable:
        return RegistryUnreachable(f"cannot reach {self.shown}: {why}", refused=refused)


class _Network(httpcore.AnyIOBackend):
    """The connections of one request. httpcore loses a connection whose request is cancelled at certain
    moments, such as during the TLS handshake: each silent server would leak a descriptor.

    Args:
        proxy: the host that httpcore connects to; None: it is the registry.
    """

    def __init__(self, proxy: Proxy | None = None) -> None:
        super().__init__()
        self._proxy = proxy
        self._opened: list[httpcore.AsyncNetworkStream] = []

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,  # noqa: ASYNC109 - httpcore's
        local_address: str | None = None,
        socket_options: Iterable[httpcore.SOCKET_OPTION] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        """Connect to the first address that answers, in the resolver's order, and record the connection.

        Raises:
            ProxyFailed: the proxy cannot be reached, or its certificate is not trusted.
        """
        if self._proxy is None:
            return await self._connected(host, port, timeout, local_address, socket_options)
        try:
            stream = await self._connected(host, port, timeout, local_address, socket_options)
            if self._proxy.scheme != "https":
                return stream
            # Here, and not by httpcore, whose errors do not tell the proxy's certificate from the target's.
            context = await run_in_daemon_thread(ssl.create_default_context)
            return await stream.start_tls(context, self._proxy.host)
        except (httpcore.NetworkError, OSError) as error:
            raise self._proxy.unreachable(_reason(error)) from None

    async def _connected(
        self,
        host: str,
        port: int,
        timeout: float | None,  # noqa: ASYNC109 - httpcore's
        local_address: str | None,
        socket_options: Iterable[httpcore.SOCKET_OPTION] | None,
    ) -> httpcore.AsyncNetworkStream:
        found = await addresses(host, port)
        for number, (*_, address) in enumerate(found, 1):
            try:
                async with asyncio.timeout(ADDRESS_SECONDS if number < len(found) else None):
                    stream = await super().connect_tcp(
                        str(address[0]), port, timeout, local_address, socket_options
                    )
            except (TimeoutError, httpcore.ConnectError, httpcore.ConnectTimeout):
                if number == len(found):
                    raise
            else:
                break
        self._opened.append(stream)
        return stream

    async def hang_up(self) -> None:
        """Close all connections (idempotent)."""
        for stream in self._opened:
            await stream.aclose()


def _reason(error: BaseException) -> str:
    """The system's reason, which httpcore and anyio keep inside their own errors."""
    for inner in causes_of(error):
        if isinstance(inner, ProxyFailed):
            return str(inner)
        if isinstance(inner, ssl.SSLCertVerificationError):
            return f"its certificate does not hold: {inner.verify_message}"
        if isinstance(inner, ssl.SSLError):
            return f"TLS failed: {inner.reason or type(inner).__name__}"
        if isinstance(inner, socket.gaierror):
            return f"its name cannot be resolved: {inner.strerror}"
        if isinstance(inner, OSError) and inner.errno:
            return os.strerror(inner.errno)
    return printable(str(error), MAX_TEXT).strip() or "the connection was lost"


def _httpcore_proxy(proxy: Proxy) -> httpcore.Proxy:
    # `_Network` does the TLS of an https proxy, so httpcore writes to an open connection as to an http proxy.
    scheme = "socks5" if proxy.is_socks else "http"
    url = httpcore.URL(scheme=scheme, host=proxy.host, port=proxy.port, target="/")
    if proxy.credentials is None:
        return httpcore.Proxy(url)
    user, password = proxy.credentials
    return httpcore.Proxy(url, auth=(user.encode(), password.encode()))


def _base(url: str) -> SplitResult:
    parts = contract.split_url(url, "http", "https")
    if parts is None:
        raise ValueError("a registry's URL is http://HOST[:PORT][/PATH] or https://HOST[:PORT][/PATH]")
    if parts.username is not None or parts.query or parts.fragment:
        # Not shown, because it may contain a secret.
        raise ValueError("a registry's URL has no user, no query and no fragment")
    return parts._replace(path=parts.path.rstrip("/"))


def _without(token: str, text: str) -> str:
    """Remove the token from a text: some servers repeat refused credentials."""
    return text.replace(token, "…") if len(token) >= SECRET_CHARACTERS else text
