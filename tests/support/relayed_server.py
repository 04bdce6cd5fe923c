"""A server that dials out to a relay of its own, reached through the relay's plain door.

So the wire-level client is the same as everywhere, and the way on from the door is the real one: registry,
rendezvous, and a stream of sealed records to the daemon.

    with RelayedServer(tmp_path / "relay", "--session-ttl", "1", env=environment) as server:
        client = server.connect()

Starting takes about a second: share one.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from execserver.relay.executor.options import TOKEN_VARIABLE
from execserver.relay.service.token_file import TokenStore
from tests.support.relay_service import RelayService
from tests.support.wire import Client, Server, connect_ws

ENVIRONMENT = "box"


class RelayedServer(Server):
    """A server process that serves a relay's environment, and nothing else.

    Args:
        state: the relay's state folder; made when missing.
        flags: more flags of `serve`.
        env: the server's environment; its token is added.
        cwd: where it is started.
    """

    def __init__(
        self,
        state: Path,
        *flags: str,
        env: Mapping[str, str] | None = None,
        cwd: str | os.PathLike[str] | None = None,
    ) -> None:
        # Not by commands, which would take a quarter of a second: other tests have those.
        tokens = TokenStore(state, create=True)
        _, token = tokens.create("executor", [ENVIRONMENT])
        _, self.client_token = tokens.create("client", [ENVIRONMENT])
        self.relay = RelayService(state, "--plain-door", ENVIRONMENT)
        try:
            super().__init__(
                None,
                *("--remote", self.relay.url, "--environment-id", ENVIRONMENT, *flags),
                env={**(os.environ if env is None else env), TOKEN_VARIABLE: token},
                cwd=cwd,
            )
        except BaseException:
            self.relay.close()
            raise
        try:
            self.relay.wait_online(ENVIRONMENT)
        except BaseException:
            self.stop()
            raise

    @property
    def client_url(self) -> str:
        """What `execclient.connect` takes, with the `client_token`."""
        return self.relay.client_url(ENVIRONMENT)

    @property
    def door(self) -> str:
        """Where plain WebSockets connect, with the `client_token`."""
        return f"{self.relay.url.replace('http', 'ws', 1)}/exec/{ENVIRONMENT}"

    def connect(
        self,
        headers: Mapping[str, str] | None = None,
        *,
        handshake: bool = True,
        resume: str | None = None,
        extensions: bool = False,
        standard: bool = False,
        sized: bool = False,
        upgrade: bool = False,
    ) -> Client:
        """A connection by the door, as `Server.connect`."""
        assert not sized, "there is one framing"
        assert not upgrade, "it is a WebSocket anyway"
        authorization = {"Authorization": f"Bearer {self.client_token}"}
        client = connect_ws(self.door, {**authorization, **(headers or {})}, standard=standard)
        try:
            return client.handshake(resume, extensions=extensions) if handshake else client
        except BaseException:
            client.close()
            raise

    def stop(self) -> int:
        """End the server, then the relay; the first status that is not 0."""
        try:
            status = super().stop()
            return status or self.relay.stop()
        finally:
            self.relay.close()
