"""`connect`: a session with a daemon, as a context or for as long as one likes."""

from __future__ import annotations

import ssl as tls
from collections.abc import Generator, Sequence
from types import TracebackType

from execclient import arguments
from execclient.arguments import AnyPath
from execclient.client import Executor
from execclient.connection.address import Target, target
from execclient.session.recovery import RECOVERY_SECONDS
from execclient.session.session import Session

CALL_SECONDS = 60.0
"""Longer than a recovery may take, so that a call can outlast one."""

_NO_LIMIT = "math.inf sets no limit"

CLIENT_NAME = "execclient"


class connect:  # noqa: N801 - it is called like a function, as `open` is
    """Open a session with a daemon; leaving the block ends it, with all that was started in it.

        async with connect() as executor:
            print((await executor.run(["uname", "-a"])).text)

        remote = ["ssh", "host", "execserver", "serve", "--listen", "stdio"]
        executor = await connect("stdio:", command=remote)
        ...
        await executor.close()

    Args:
        url: `unix:///PATH`, `ws://HOST:PORT`, `wss://HOST[:PORT][/PATH]`, or `stdio:`, which spawns a daemon
            for this session alone, or `relay+https://HOST[:PORT][/BASE]?environment=ID`, which finds the
            executor at a relay; by default `EXECSERVER_URL`, else the daemon's own default.
        token: for a WebSocket server that wants one (`docs/protocol.md`, "WebSocket authentication"), and
            for a relay; by default what `token_file` has, `EXECSERVER_TOKEN`, or what the file
            `EXECSERVER_TOKEN_FILE` has.
        token_file: is read at each connect and reconnect, so that a token may be renewed.
        command: what to spawn for `stdio:` instead of the daemon of this installation.
        ssl: for `wss:` and `relay+https:`, which certificates to believe; by default those of the system.
        executor_key_sha256: for a relay, the fingerprint that the executor's key must have: then the relay
            cannot put another one in its place. By default `EXECSERVER_EXECUTOR_KEY_SHA256`, else whichever
            key it has at the first connection.
        key_file: for a relay, our own key pair (`execserver relay key FILE`), for an executor that has a
            list of its clients. By default that of `EXECSERVER_CLIENT_KEY_FILE`, else a new one for each
            session.
        session_id: resume the session of a client that is gone. It is ours then: leaving the block ends it,
            also with what the other client started, unless `keep` is given.
        keep: leave the session and its processes to the daemon at the end, which ends them `--session-ttl`
            seconds later. Not over `stdio:`, where the daemon ends with the connection.
        call_timeout: seconds for the answer to a call, recovery included.
        recovery_timeout: seconds in which a lost connection must be back.
        client_name: how the daemon's log is to call us.
        allow_insecure_token: send the token unencrypted to another machine, too.

    Raises:
        UnsupportedUrl: another kind of URL, or one that does not go with the other arguments.
        ConnectionFailed: no connection came about; `DaemonNotRunning`, `EnvironmentOffline`,
            `UntrustedServer`, `WrongExecutor`, `AccessDenied` and `InsecureToken` say more of why.
        SessionLost: there is no session `session_id`.
        SessionAttached: another client has it.
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        token: str | None = None,
        token_file: AnyPath | None = None,
        command: Sequence[str] | None = None,
        ssl: tls.SSLContext | None = None,
        session_id: str | None = None,
        keep: bool = False,
        call_timeout: float = CALL_SECONDS,
        recovery_timeout: float = RECOVERY_SECONDS,
        client_name: str = CLIENT_NAME,
        executor_key_sha256: str | None = None,
        key_file: AnyPath | None = None,
        allow_insecure_token: bool = False,
    ) -> None:
        self._url = url
        self._token = token
        self._token_file = token_file
        self._command = command
        self._ssl = ssl
        self._session_id = session_id
        self._keep = keep
        self._call_timeout = arguments.seconds(call_timeout, "call_timeout", instead=_NO_LIMIT)
        self._recovery_timeout = arguments.seconds(recovery_timeout, "recovery_timeout", instead=_NO_LIMIT)
        self._client_name = client_name
        self._executor_key_sha256 = executor_key_sha256
        self._key_file = key_file
        self._allow_insecure_token = allow_insecure_token
        self._executor: Executor | None = None

    def __await__(self) -> Generator[object, None, Executor]:
        return self._open().__await__()

    async def __aenter__(self) -> Executor:
        self._executor = await self._open()
        return self._executor

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._executor is not None
        await self._executor.close()

    async def _open(self) -> Executor:
        found = self._target()
        session = Session(
            found,
            self._call_timeout,
            self._recovery_timeout,
            client_name=self._client_name,
            session_id=self._session_id,
            keep=self._keep,
        )
        initialized = await session.open()
        return Executor(session, found.url, initialized.get("environmentInfo") or {})

    def _target(self) -> Target:
        return target(
            self._url,
            token=self._token,
            token_file=self._token_file,
            command=self._command,
            ssl=self._ssl,
            executor_key_sha256=self._executor_key_sha256,
            key_file=self._key_file,
            allow_insecure_token=self._allow_insecure_token,
        )
