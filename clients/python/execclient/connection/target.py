"""The interface of a target, with which a session connects to a daemon, and its token."""

from __future__ import annotations

import asyncio
import ipaddress
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from execclient.connection.channel import CONNECT_SECONDS
from execclient.connection.connection import Connection, Json
from execclient.errors import ConnectionFailed, ExecServerError
from execprotocol.daemon_thread import run_in_daemon_thread

MAX_TOKEN_BYTES = 8 << 10
"""A server's whole HTTP head may have 16 KiB."""

OnEvent = Callable[[str, Json], None]
OnLost = Callable[[Connection, ExecServerError], None]


class Target(Protocol):
    """A daemon that can be connected to any number of times."""

    @property
    def url(self) -> str:
        """The daemon's URL."""

    @property
    def recoverable(self) -> bool:
        """Whether a session outlives its connection."""

    @property
    def renewable(self) -> bool:
        """Whether denied access may be temporary: the token is read anew for each connection."""

    @property
    def chooses(self) -> bool:
        """Whether each new session may get another executor: it is a pool."""

    @property
    def longest_pause(self) -> float:
        """The longest pause between two attempts to replace a lost connection, in seconds."""

    async def open(self, on_event: OnEvent, on_lost: OnLost, *, resuming: bool) -> Connection:
        """Connect.

        Args:
            on_event: called with each event.
            on_lost: called when the connection has ended.
            resuming: whether a session is resumed. For a new one, the daemon may be another one than before,
                if the URL names several.

        Raises:
            ConnectionFailed: the connection failed.
        """


@dataclass(frozen=True, slots=True)
class Token:
    """A bearer token, or the file that contains it."""

    value: str | None = field(repr=False)
    file: Path | None

    async def read(self) -> str:
        """The token.

        Raises:
            ConnectionFailed: the file cannot be read, or does not contain a token.
        """
        if self.file is None:
            return _checked(self.value or "", "the token")
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                content = await run_in_daemon_thread(_beginning, self.file)
        except TimeoutError:
            raise ConnectionFailed(
                f"cannot read the token file {self.file}: it did not come within {CONNECT_SECONDS:g} s"
            ).about(path=str(self.file)) from None
        except (OSError, ValueError) as error:
            failure = ConnectionFailed(f"cannot read the token file {self.file}: {error}")
            raise failure.about(path=str(self.file), errno=getattr(error, "errno", None)) from error
        return _checked(content.strip(), f"the token file {self.file}")


def is_loopback(host: str) -> bool:
    """Whether a host is certainly this machine: a literal loopback address, or the name reserved for it."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _beginning(file: Path) -> str:
    with file.open("rb") as opened:
        return opened.read(MAX_TOKEN_BYTES + 1).decode()


def _checked(token: str, whose: str) -> str:
    if not token:
        raise ConnectionFailed(f"{whose} is empty")
    if len(token) > MAX_TOKEN_BYTES or not all("!" <= character <= "~" for character in token):
        raise ConnectionFailed(f"{whose} has characters that no token has, or too many")
    return token
