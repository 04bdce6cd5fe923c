"""Both kinds of peers of a relay by hand, for tests: requests, and WebSockets that send any bytes.

    executor = RawExecutor(relay, "box", token)          # registered and connected
    client = RawClient(relay, "box", client_token)       # introduced and connected
    client.send(frames.resume("stream"))
    assert executor.receive() == frames.resume("stream")

Nothing here seals or opens a record: a relay does not look into frames.
"""

from __future__ import annotations

import http.client
import json
import socket
import ssl
from collections.abc import Mapping
from contextlib import closing
from types import TracebackType
from typing import Any, NamedTuple, Self
from urllib.parse import urlsplit

from execprotocol.relay.contract import SECURITY_PROFILE
from execprotocol.relay.keys import KeyPair
from tests.support.relay_service import RelayService
from tests.support.wire import PATIENCE, UpgradeRefusedError, WebSocketTransport, _upgrade


class Answer(NamedTuple):
    """Of an HTTP request."""

    status: int
    headers: dict[str, str]
    content: bytes

    @property
    def json(self) -> Any:
        """The body."""
        return json.loads(self.content)

    @property
    def code(self) -> str:
        """Of an error body."""
        return str(self.json["error"]["code"])

    @property
    def message(self) -> str:
        """Of an error body."""
        return str(self.json["error"]["message"])


def ask(
    base: str,
    path: str,
    method: str = "GET",
    *,
    token: str | None = None,
    body: object = None,
    headers: Mapping[str, str] | None = None,
    tls: ssl.SSLContext | None = None,
) -> Answer:
    """One request; `body` is sent as JSON unless it is bytes."""
    parts = urlsplit(base)
    fields = {"content-type": "application/json", **(headers or {})}
    if token is not None:
        fields["authorization"] = f"Bearer {token}"
    content = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
    host, port = parts.hostname or "", parts.port or 0
    connection = (
        http.client.HTTPConnection(host, port, timeout=PATIENCE)
        if tls is None
        else http.client.HTTPSConnection(host, port, timeout=PATIENCE, context=tls)
    )
    with closing(connection):
        connection.request(method, parts.path + path, content, fields)
        answer = connection.getresponse()
        found = {name.lower(): value for name, value in answer.getheaders()}
        return Answer(answer.status, found, answer.read())


def registration(keys: KeyPair) -> dict[str, object]:
    """The body of a register."""
    return {"security_profile": SECURITY_PROFILE, "executor_public_key": keys.public.to_json()}


class RawSocket:
    """A WebSocket to a relay.

    Args:
        url: with its ticket.
        tls: for wss.
        receive_buffer: of the kernel, in bytes; small for a peer that is to look slow soon.

    Raises:
        UpgradeRefusedError: the relay answered something else than 101.
    """

    def __init__(
        self, url: str, tls: ssl.SSLContext | None = None, receive_buffer: int | None = None
    ) -> None:
        parts = urlsplit(url)
        connection = socket.socket(socket.AF_INET6 if ":" in (parts.hostname or "") else socket.AF_INET)
        try:
            if receive_buffer is not None:
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
            connection.settimeout(PATIENCE)
            connection.connect((parts.hostname or "", parts.port or 0))
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if tls is not None:
                connection = tls.wrap_socket(connection, server_hostname=parts.hostname)
            status, headers, rest = _upgrade(connection, parts.netloc, f"{parts.path}?{parts.query}", None)
            if status != 101:
                while len(rest) < int(headers.get("content-length", "0")) and (data := connection.recv(4096)):
                    rest += data
                raise UpgradeRefusedError(status, headers, rest)
        except BaseException:
            connection.close()
            raise
        self.websocket = WebSocketTransport(connection, rest)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.websocket.close()

    def send(self, frame: bytes) -> None:
        """One binary message."""
        self.websocket.send_frame(WebSocketTransport.BINARY, frame)

    def receive(self) -> bytes:
        """The next message."""
        message = self.websocket.receive()
        assert message is not None, f"closed with {self.websocket.close_code}"
        return message

    def closed_with(self) -> int | None:
        """Wait for the end, with nothing before it; the close code, None when there was none."""
        message = self.websocket.receive()
        assert message is None, message[:100]
        return self.websocket.close_code

    def close(self) -> None:
        """End it without a word."""
        self.websocket.close()


class RawExecutor(RawSocket):
    """A registered executor with an open socket."""

    def __init__(
        self,
        relay: RelayService,
        environment: str,
        token: str,
        keys: KeyPair | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self.keys = keys if keys is not None else KeyPair.generate()
        answer = ask(
            relay.url,
            f"/cloud/environment/{environment}/register",
            "POST",
            token=token,
            body=registration(self.keys),
            tls=tls,
        )
        assert answer.status == 200, answer
        self.url: str = answer.json["url"]
        self.registration_id: str = answer.json["executor_registration_id"]
        super().__init__(self.url, tls)


class RawClient(RawSocket):
    """An introduced client with an open socket."""

    def __init__(
        self,
        relay: RelayService,
        environment: str,
        token: str,
        keys: KeyPair | None = None,
        tls: ssl.SSLContext | None = None,
        receive_buffer: int | None = None,
    ) -> None:
        self.keys = keys if keys is not None else KeyPair.generate()
        answer = ask(
            relay.url,
            f"/cloud/environment/{environment}/connect",
            "POST",
            token=token,
            body={"harness_public_key": self.keys.public.to_json()},
            tls=tls,
        )
        assert answer.status == 200, answer
        self.answer: dict[str, Any] = answer.json
        self.url: str = answer.json["url"]
        super().__init__(self.url, tls, receive_buffer)
