"""What file operations need of a session, and the same within a sandbox.

A `FileSystem`, a transfer and a patch send every request through one of these objects; `ConfinedCalls` is the
only place that adds a sandbox to them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Protocol, TypeVar

from execclient.connection.connection import Json
from execclient.errors import ExecServerError, OutcomeUnknown

ATTEMPTS = 20
REPEAT_SECONDS = 60.0
"""A call that may be made twice is made again, if connections are lost, until it has had so many attempts and
so much time: a large request takes longer than some connections last."""

T = TypeVar("T")

_WITHOUT_SANDBOX = frozenset({"fs/close"})
"""Methods that have no parameter `sandbox`."""


async def repeated(
    attempt: Callable[[], Awaitable[T]], *, after: tuple[type[ExecServerError], ...] = (OutcomeUnknown,)
) -> T:
    """Make a call that may be made twice, again if the connection is lost, for a minute at least.

    Args:
        attempt: makes the call.
        after: the errors after which the call is made again. The last one is raised.
    """
    clock = asyncio.get_running_loop().time
    attempts, end = 0, clock() + REPEAT_SECONDS
    while True:
        attempts += 1
        try:
            return await attempt()
        except after:
            if attempts >= ATTEMPTS and clock() >= end:
                raise


class Calls(Protocol):
    """The calls of a session or an executor."""

    @property
    def capabilities(self) -> frozenset[str]:
        """The extensions that the daemon serves."""

    async def call(self, method: str, params: Mapping[str, Json], *, limit: float | None = None) -> Json:
        """Send a request of the wire."""


class FileSession(Calls, Protocol):
    """The part of a `Session` that files use."""

    @property
    def call_timeout(self) -> float:
        """Seconds for the response to a call, recovery included."""

    @property
    def recoveries(self) -> int:
        """How often a lost connection was replaced."""

    @property
    def temporary_folder(self) -> str:
        """The daemon's folder for temporary files; empty if the daemon does not report it."""

    def require(self, *extensions: str) -> None:
        """Check that the daemon serves these extensions; raises `Unsupported`."""


class ConfinedCalls:
    """The calls of another object, for files within a sandbox.

    A handle keeps the sandbox of its `fs/open`; the daemon refuses a block method that sends another one
    (`docs/protocol.md`, G14).

    Args:
        calls: sends the requests.
        sandbox: the member `sandbox` of each request; None for none.
    """

    def __init__(self, calls: Calls, sandbox: Mapping[str, Json] | None) -> None:
        self._calls = calls
        self._sandbox: Mapping[str, Json] = {} if sandbox is None else {"sandbox": sandbox}

    @property
    def capabilities(self) -> frozenset[str]:
        """The extensions that the daemon serves."""
        return self._calls.capabilities

    async def call(self, method: str, params: Mapping[str, Json], *, limit: float | None = None) -> Json:
        """Send a request of `fs/*` within the sandbox."""
        if method not in _WITHOUT_SANDBOX:
            params = {**params, **self._sandbox}
        return await self._calls.call(method, params, limit=limit)


class ConfinedSession(ConfinedCalls):
    """A session whose file requests have a sandbox."""

    def __init__(self, session: FileSession, sandbox: Mapping[str, Json]) -> None:
        super().__init__(session, sandbox)
        self._session = session
        self.require = session.require

    @property
    def call_timeout(self) -> float:
        """As `FileSession.call_timeout`."""
        return self._session.call_timeout

    @property
    def recoveries(self) -> int:
        """As `FileSession.recoveries`."""
        return self._session.recoveries

    @property
    def temporary_folder(self) -> str:
        """As `FileSession.temporary_folder`."""
        return self._session.temporary_folder
