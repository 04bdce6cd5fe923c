"""Decide on a client's handshake: its keys, the list of allowed clients, and the registry's validation.

    message 1 ──▶ opens? ──▶ on the list? ──▶ sent by the registry? ──▶ message 2

A client that is not on the list, or that the registry answers with 401, gets a rejection as message 2, so
that it does not retry; any other failure is a reset. After `FAILURES` refusals in a row on a socket, every
handshake fails at once for `PAUSE_SECONDS`: a stranger must not keep the registry or the processor busy.
`docs/protocol.md`, "Relay".
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Protocol

from execprotocol.relay.contract import ValidateRequest
from execprotocol.relay.noise import (
    MAX_AUTHORIZATION_BYTES,
    REJECTION,
    Binding,
    NoiseError,
    NoiseTransport,
    Responder,
)
from execprotocol.relay.registry_client import RegistryError, RegistryRefused
from execserver.relay.executor.allowed_clients import AllowedClientsError
from execserver.relay.executor.identity import Identity, read_in_thread
from execserver.telemetry import tracing
from execserver.telemetry.logs import Logger
from execserver.transports.authentication import ConfigurationError

FAILURES, PAUSE_SECONDS = 8, 10.0
"""As the stock executor."""

UNAUTHORIZED = 401

log = Logger()


class Validator(Protocol):
    """The registry, as far as handshakes need it (`registry_client.py`)."""

    async def validate(self, environment_id: str, request: ValidateRequest, stream_id: str) -> bool:
        """Whether the registry sent this client."""


class NotAdmitted(Exception):
    """The handshake is refused. `answer` is message 2 with a rejection; without it the stream is reset."""

    def __init__(self, reason: str, answer: bytes | None = None) -> None:
        super().__init__(reason)
        self.answer = answer


@dataclass(frozen=True, slots=True)
class Admitted:
    """The handshake is accepted. `answer` is message 2."""

    answer: bytes
    transport: NoiseTransport
    fingerprint: str


class ClientAdmission:
    """The handshakes of one socket.

    Args:
        identity: this executor's keys and list of allowed clients.
        registration_id: of the socket.
        registry: validates clients.
    """

    def __init__(self, identity: Identity, registration_id: str, registry: Validator) -> None:
        self._identity = identity
        self._registration_id = registration_id
        self._registry = registry
        self._loop = asyncio.get_running_loop()
        self._failures = 0
        self._pause_ends = 0.0

    @property
    def is_paused(self) -> bool:
        """Whether every handshake fails at once."""
        return self._loop.time() < self._pause_ends

    async def admit(self, stream_id: str, message: bytes | memoryview) -> Admitted:
        """Decide on a handshake.

        Args:
            stream_id: of the client's stream.
            message: message 1.

        Raises:
            NotAdmitted: the text is for the executor's log.
        """
        try:
            admitted = await self._decide(stream_id, message)
        except NotAdmitted:
            self._failures += 1
            if self._failures >= FAILURES:
                self._failures = 0
                self._pause_ends = self._loop.time() + PAUSE_SECONDS
                log.warning("too many handshakes were refused: none is looked at", seconds=PAUSE_SECONDS)
            raise
        self._failures = 0
        return admitted

    async def _decide(self, stream_id: str, message: bytes | memoryview) -> Admitted:
        identity = self._identity
        responder = Responder(
            identity.key, Binding(identity.environment_id, self._registration_id, stream_id)
        )
        try:
            harness, authorization = responder.read_first(message)
            fingerprint = harness.fingerprint
            if not await self._is_listed(fingerprint):
                raise NotAdmitted(
                    f"client {fingerprint} is not in --remote-allowed-clients", _rejection(responder)
                )
            await self._ask(
                ValidateRequest(self._registration_id, harness, _text(authorization)), stream_id, responder
            )
            answer, transport = responder.write_second()
        except NoiseError as error:
            raise NotAdmitted(str(error)) from None
        return Admitted(answer, transport, fingerprint)

    async def _is_listed(self, fingerprint: str) -> bool:
        clients = self._identity.clients
        try:
            return clients is None or await read_in_thread(clients.admits, fingerprint)
        except TimeoutError:
            raise NotAdmitted("--remote-allowed-clients cannot be read: the disk does not answer") from None
        except AllowedClientsError as error:
            raise NotAdmitted(str(error)) from None

    async def _ask(self, request: ValidateRequest, stream_id: str, responder: Responder) -> None:
        try:
            with tracing.outgoing("relay/validate"):
                valid = await self._registry.validate(self._identity.environment_id, request, stream_id)
        except RegistryRefused as error:
            answer = _rejection(responder) if error.status == UNAUTHORIZED else None
            raise NotAdmitted(str(error), answer) from None
        except (RegistryError, ConfigurationError) as error:
            raise NotAdmitted(str(error)) from None
        if not valid:
            raise NotAdmitted("the registry did not send this client")


def _rejection(responder: Responder) -> bytes:
    return responder.write_second(REJECTION)[0]


def _text(authorization: bytes) -> str:
    if not authorization or len(authorization) > MAX_AUTHORIZATION_BYTES:
        raise NotAdmitted(f"an authorization has 1 to {MAX_AUTHORIZATION_BYTES} bytes")
    try:
        return authorization.decode()
    except UnicodeDecodeError:
        raise NotAdmitted("an authorization that is no UTF-8") from None
