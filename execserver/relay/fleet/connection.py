"""The connection of a relay, or of a command, to a NATS cluster.

The first connection is made by `open`, which tells a cluster that cannot be reached, which may be there in a
minute, from one that refuses this relay. After that the client reconnects by itself, without an end.

`docs/how-to/fleet.md`.
"""

from __future__ import annotations

import asyncio
import base64
import os
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Any

import nats.errors
import nkeys
from nats.aio.client import Client

from execprotocol.relay.frames import MAX_FRAME_BYTES
from execprotocol.trust import UntrustedError, open_trusted, read_trusted
from execserver.relay.service.settings import NatsSettings, RelaySettingsError
from execserver.telemetry.logs import Logger

MIN_PAYLOAD_BYTES = MAX_FRAME_BYTES + (16 << 10)
"""The least `max_payload` of a server: one frame with its addresses. NATS has 1 MiB unless it is set."""

PENDING_BYTES = 8 << 20
"""How much the client keeps for the socket before a publisher waits."""

CONNECT_SECONDS, RECONNECT_SECONDS = 2, 0.25
"""How long a server may take to answer a connection, and the pause before it is tried again."""

PING_SECONDS, PINGS = 1, 2
"""A server that leaves so many pings unanswered, one each so many seconds, is given up."""

log = Logger()


class FleetError(RelaySettingsError):
    """The cluster cannot be used. The text names the reason and the remedy."""


class FleetUnreachable(FleetError):
    """No server of the cluster answered in time. Another attempt may succeed."""


async def end_task(task: asyncio.Task[None] | None) -> None:
    """Cancel a task that uses the client, and wait for its end (idempotent).

    The client swallows a cancellation that meets it while it writes, so one may not be enough.
    """
    while task is not None and not task.done():
        task.cancel()
        await asyncio.wait((task,), timeout=0.2)


class NatsConnection:
    """One connection to a cluster.

    Args:
        settings: where, and with which credentials.
        name: shown by the monitoring of NATS.

    Raises:
        FleetError: a file of the settings is unusable.
    """

    def __init__(self, settings: NatsSettings, name: str) -> None:
        self._settings = settings
        self._name = name
        self._last_error = ""
        self._reported: set[str] = set()  # errors of the current outage
        self._refused: asyncio.Future[None] | None = None  # while the first connection is made
        self._closing = False  # from `close` to the next `open`
        self._closer: asyncio.Task[None] | None = None
        self._tls = _tls_context(settings)
        self._handshakes = 0  # of the time before this connection
        self._on_reconnect: list[Callable[[], None]] = []
        self._credentials = _credentials(settings.credentials, self._check_tls)
        self.client = Client()
        self.reconnects = 0
        self.closed = asyncio.Event()
        """Set when the servers ended the connection for good, for example because credentials expired."""

    @property
    def is_connected(self) -> bool:
        """Whether a server can be reached now."""
        return bool(self.client.is_connected)

    @property
    def fault(self) -> str:
        """Why there is no connection now; empty if there is one."""
        if self.is_connected:
            return ""
        servers = ", ".join(self._settings.servers)
        return f"no connection to NATS at {servers}" + (f": {self._last_error}" if self._last_error else "")

    def on_reconnect(self, reconnected: Callable[[], None]) -> None:
        """Call `reconnected` each time a lost connection is there again."""
        self._on_reconnect.append(reconnected)

    async def open(self, seconds: float) -> None:
        """Connect to one of the servers.

        Args:
            seconds: how long the servers may take.

        Raises:
            FleetUnreachable: none answered.
            FleetError: a server refuses this relay, or has a `max_payload` that is too small.
        """
        self._closing = False
        self._refused = asyncio.get_running_loop().create_future()
        self.client = Client()
        connecting = asyncio.get_running_loop().create_task(self._connect(self.client))
        try:
            await asyncio.wait(
                {connecting, self._refused}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED
            )
            if self._refused.done():
                self._refused.result()
            if not connecting.done():
                raise FleetUnreachable(self.fault)
            await connecting
            self._check_server()
        except (OSError, nats.errors.Error, FleetError) as error:
            await end_task(connecting)
            await self.close()
            if isinstance(error, FleetError):
                raise
            raise FleetUnreachable(f"{self.fault or error}") from None
        finally:
            self._refused = None

    async def close(self) -> None:
        """End the connection (idempotent)."""
        self._closing = True
        self._closer = asyncio.current_task()
        await self.client.close()

    async def _connect(self, client: Client) -> None:
        await client.connect(
            list(self._settings.servers),
            name=self._name,
            error_cb=self._failed,
            disconnected_cb=self._lost,
            reconnected_cb=self._restored,
            closed_cb=self._ended,
            connect_timeout=CONNECT_SECONDS,
            reconnect_time_wait=RECONNECT_SECONDS,  # type: ignore[arg-type]  # used as a number of seconds
            max_reconnect_attempts=-1,
            ping_interval=PING_SECONDS,
            max_outstanding_pings=PINGS,
            pending_size=PENDING_BYTES,
            tls=self._tls,
            **self._credentials,
        )

    def _check_server(self) -> None:
        self._check_tls()
        self._note_handshakes()
        if self.client.max_payload < MIN_PAYLOAD_BYTES:
            raise FleetError(
                f"the NATS servers take messages of {self.client.max_payload} bytes, and a frame needs "
                f"{MIN_PAYLOAD_BYTES}: raise `max_payload` in their configuration"
            )

    def _check_tls(self) -> None:
        """Refuse a server that speaks no TLS although the settings ask for it.

        The client leaves this to what the server says, and a stranger on the way could say anything.
        """
        if self._tls is not None and self._tls.handshakes == self._handshakes:
            raise FleetError("the NATS server does not speak TLS, and --nats asks for it by tls://")

    def _note_handshakes(self) -> None:
        if self._tls is not None:
            self._handshakes = self._tls.handshakes

    # -- callbacks of the client

    async def _failed(self, error: Exception) -> None:
        if self._closing and asyncio.current_task() is not self._closer:
            # An attempt to reconnect that fails while it is cancelled loses the cancellation (`wait_for` of
            # Python 3.11), and the client would reconnect after its end.
            raise asyncio.CancelledError
        if isinstance(error, nats.errors.SlowConsumerError):
            log.error(
                "messages from NATS were dropped, because this relay was too slow to read them",
                subject=error.subject,
            )
            return
        text = _text(error)
        fatal = _refusal(error, self._settings)
        if fatal is not None and self._refused is not None and not self._refused.done():
            self._refused.set_exception(fatal)
        self._last_error = text
        if text not in self._reported:
            self._reported.add(text)
            log.warning("error of the connection to NATS", error=text)

    async def _lost(self) -> None:
        if not self._closing:
            log.warning("connection to NATS lost", servers=self._settings.servers)

    async def _restored(self) -> None:
        if self._closing:  # the same as in `_failed`, with an attempt that succeeds
            await self.client.close()
            return
        self._last_error = ""
        self._reported.clear()
        self.reconnects += 1
        try:
            self._check_tls()
        except FleetError as error:
            log.error("connection to NATS refused by this relay", error=str(error))
            await self.client.close()
            return
        self._note_handshakes()
        url = self.client.connected_url
        log.info("connection to NATS is there again", server=url.netloc if url is not None else "")
        for reconnected in self._on_reconnect:
            reconnected()

    async def _ended(self) -> None:
        if not self._closing and self._refused is None:
            error = self.client.last_error
            self._last_error = _text(error) if error is not None else self._last_error
            log.error("the NATS servers ended the connection for good", error=self._last_error)
            self.closed.set()


class _TlsContext(ssl.SSLContext):
    """Counts its handshakes."""

    handshakes = 0

    def wrap_bio(self, *values: Any, **named: Any) -> ssl.SSLObject:
        """Begin one handshake."""
        self.handshakes += 1
        return super().wrap_bio(*values, **named)


def _tls_context(settings: NatsSettings) -> _TlsContext | None:
    if not settings.tls:
        return None
    context = _TlsContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    files = {"--nats-ca": settings.ca, "--nats-key": settings.key, "--nats-cert": settings.certificate}
    flag, path = "", None
    try:
        for flag, path in files.items():
            # The context opens the files again by name; other users cannot replace them meanwhile.
            if path is not None:
                os.close(open_trusted(str(path), secret=flag == "--nats-key"))
        if settings.certificate is not None:
            # Without a password callback, OpenSSL would prompt on the terminal.
            context.load_cert_chain(settings.certificate, settings.key, password=_no_password)
        flag, path = "--nats-ca", settings.ca
        if settings.ca is None:
            context.load_default_certs()
        else:
            context.load_verify_locations(settings.ca)
    except (OSError, UntrustedError, ValueError) as error:
        raise FleetError(f"{flag} {path}: {getattr(error, 'strerror', None) or error}") from None
    return context


def _no_password() -> str:
    raise ValueError("the key has a password; give one without, in a file that only the relay can read")


def _credentials(path: Path | None, check: Callable[[], None]) -> dict[str, Any]:
    """The options of the client for a file of `--nats-creds`.

    Args:
        path: of the file; None: no credentials.
        check: called before a secret is sent.
    """
    if path is None:
        return {}
    text = _read(path)
    if "BEGIN NATS USER JWT" in text:
        _section(path, "NATS USER JWT")
        _sign(path, "")
        # The file is read at each connection: it may have been renewed.
        return {
            "user_jwt_cb": lambda: bytearray(_section(path, "NATS USER JWT").encode()),
            "signature_cb": lambda nonce: _sign(path, nonce),
        }
    line = text.strip()
    if not line or len(line.split()) > 1:
        raise FleetError(
            f"--nats-creds {path}: this is no credentials file of NATS (.creds), and not one line with "
            "an nkey seed, USER:PASSWORD or a token"
        )
    if line.startswith("SU"):
        try:
            nkeys.from_seed(bytearray(line.encode()))
        except Exception as error:
            raise FleetError(f"--nats-creds {path}: invalid nkey seed ({type(error).__name__})") from None
        return {"nkeys_seed_str": line}

    def checked(secret: str) -> Callable[[], str]:
        def value() -> str:
            check()
            return secret

        return value

    user, colon, password = line.partition(":")
    if colon:
        return {"user": user, "password": checked(password)}
    return {"token": checked(line)}


def _read(path: Path) -> str:
    try:
        return read_trusted(str(path), secret=True).decode()
    except (OSError, UntrustedError, UnicodeDecodeError) as error:
        raise FleetError(f"--nats-creds {path}: {getattr(error, 'strerror', None) or error}") from None


def _section(path: Path, title: str) -> str:
    lines = iter(_read(path).splitlines())
    for line in lines:
        if f"BEGIN {title}" in line:
            return next(lines, "").strip()
    raise FleetError(f"--nats-creds {path}: there is no section {title!r}")


def _sign(path: Path, nonce: str) -> bytes:
    try:
        pair = nkeys.from_seed(bytearray(_section(path, "USER NKEY SEED").encode()))
        return base64.b64encode(pair.sign(nonce.encode()))
    except FleetError:
        raise
    except Exception as error:
        raise FleetError(f"--nats-creds {path}: invalid nkey seed ({type(error).__name__})") from None


def _text(error: Exception) -> str:
    return str(error).removeprefix("nats: ").strip("'") or type(error).__name__


def _refusal(error: Exception, settings: NatsSettings) -> FleetError | None:
    """The error that ends the start; None if another attempt may succeed."""
    if isinstance(error, FleetError):
        return error
    if isinstance(error, ssl.SSLCertVerificationError):
        return FleetError(
            f"the certificate of the NATS server is not accepted: {error.verify_message}; "
            "--nats-ca FILE names the authority that signed it, and --nats a host that it is for"
        )
    if isinstance(error, ssl.SSLError):
        return FleetError(
            f"TLS with the NATS server failed: {error.reason or error}; if it asks for a certificate, "
            "--nats-cert and --nats-key name one that it accepts"
        )
    text = _text(error).lower()
    if "authorization" in text or "authentication" in text:
        way = (
            f"the server does not accept {settings.credentials}"
            if settings.credentials
            else ("it asks for credentials: give --nats-creds FILE")
        )
        return FleetError(f"the NATS server refuses this relay ({_text(error)}): {way}")
    return None
