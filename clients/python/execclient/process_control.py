"""Signals to a process, and waiting for its end."""

from __future__ import annotations

import asyncio
import signal as signals
import warnings
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Literal, Protocol, get_args

from execclient import arguments
from execclient.errors import ExecServerError, NoSuchProcess, Unsupported, WaitTimeout
from execclient.session.inbox import Inbox
from execclient.session.replay import reference
from execclient.session.session import KILL_SECONDS, Session

LINGER_SECONDS = 0.5
"""How long to wait for the end of the output after the exit of the process. A background child may keep the
output open for hours."""

_LINGER_ROUNDS = 4
"""How often that is done, if the connection is lost each time. Without a limit, connections that do not last
would keep a caller for as long as a background child runs."""

Scope = Literal["group", "leader", "tree"]


class Named(Protocol):
    """A process, as errors and logs name it."""

    id: str
    pid: int | None
    program: str | None
    cwd: str | None

    @property
    def exit_code(self) -> int | None:
        """None while it runs."""

    @property
    def cause(self) -> str | None:
        """Why it ended."""


def described(process: Named) -> str:
    """The `repr` of a process: no arguments and no output, which may be secret."""
    program = "" if process.program is None else f" {process.program!r}"
    pid = "" if process.pid is None else f" pid={process.pid}"
    state = "running" if process.exit_code is None else f"exit_code={process.exit_code}"
    if process.cause not in (None, "normal"):
        state += f" cause={process.cause}"
    return f"<{type(process).__name__} {process.id}{program}{pid} {state}>"


@asynccontextmanager
async def within(process: Named, timeout: float | None, event: str) -> AsyncIterator[None]:  # noqa: ASYNC109
    """Limit a wait for an event of a process, and complete its errors.

    Raises:
        WaitTimeout: the event did not happen in time.
    """
    try:
        async with asyncio.timeout(arguments.waiting(timeout)):
            yield
    except ExecServerError as error:
        error.about(program=process.program, cwd=process.cwd)
        raise
    except TimeoutError:
        assert timeout is not None
        raise late(process, timeout, event) from None


def late(process: Named, timeout: float, event: str) -> WaitTimeout:
    """The error of a process whose event did not happen in time."""
    error = WaitTimeout(f"process {process.id} did not {event} within {timeout:g} s")
    return error.about(program=process.program, cwd=process.cwd)


async def linger(session: Session, inbox: Inbox) -> None:
    """Wait for the rest of the output of an exited process, `LINGER_SECONDS` at most on one connection.

    Raises:
        SessionLost, ExecutorClosed: the session has ended.
    """
    for _ in range(_LINGER_ROUNDS):
        if inbox.closed:
            return
        connection = await session.connected()
        try:
            async with asyncio.timeout(LINGER_SECONDS):
                await inbox.until_closed()
        except ExecServerError:
            raise
        except TimeoutError:
            pass
        else:
            return
        # If the connection was lost meanwhile, the rest may have been under way.
        if await session.connected() is connection:
            return


async def send_signal(session: Session, inbox: Inbox, name: str, scope: Scope) -> bool:
    """Send a signal of the wire. Raises and returns as `Process.signal`."""
    if "process/signal.scope" in session.capabilities:
        params = {**reference(inbox.key), "signal": name, "scope": scope}
    elif (name, scope) == ("SIGINT", "group"):
        params = {**reference(inbox.key), "signal": "interrupt"}
    else:
        raise Unsupported("process/signal.scope")
    default = "delivered" if inbox.exit_code is None else "alreadyExited"
    status = (await session.call("process/signal", params)).get("status", default)
    if status == "unknownProcess" and inbox.exit_code is None:
        raise NoSuchProcess(f"unknown process id {inbox.id}")
    return bool(status == "delivered")


async def end_group(session: Session, inbox: Inbox) -> None:
    """Kill the group of a process, and wait for its exit, for some seconds at most.

    If cancelled, the kill continues in the background.
    """
    try:
        await session.call("process/terminate", {**reference(inbox.key), "scope": "group"})
        with suppress(TimeoutError, NoSuchProcess):
            async with asyncio.timeout(KILL_SECONDS):
                await inbox.until_exited()
    except ExecServerError:
        raise
    except BaseException:
        session.terminate_soon(inbox.id, "group")
        raise


def check_scope(session: Session, scope: str) -> None:
    """Check the scope of a kill, whose failure in the background would not be noticed.

    Raises:
        ValueError: there is no such scope.
        Unsupported: the server does not serve it.
    """
    if scope not in get_args(Scope):
        raise ValueError(f"scope is 'tree', 'group' or 'leader', not {scope!r}")
    if scope == "leader":
        session.require("process/signal.scope")


def deprecated_scope(scope: str) -> None:
    """Warn the caller of a method that calls this of `terminate(scope=…)`."""
    text = f"terminate(scope={scope!r}) is deprecated: kill(scope={scope!r}) sends SIGKILL"
    warnings.warn(text, DeprecationWarning, stacklevel=3)


def signal_name(sig: str | int | signals.Signals) -> str:
    """The POSIX name of a signal, for the wire.

    Raises:
        TypeError: it is neither a name nor a number.
        ValueError: this machine has no such signal.
    """
    if isinstance(sig, str):
        name = sig.upper()
        return name if name.startswith("SIG") else f"SIG{name}"
    if not isinstance(sig, int) or isinstance(sig, bool):
        raise TypeError(f"sig is a name as 'TERM' or a number, not {type(sig).__name__}")
    if signals.SIGRTMIN < sig < signals.SIGRTMAX:
        return f"SIGRTMIN+{sig - signals.SIGRTMIN}"
    try:
        return signals.Signals(sig).name
    except ValueError:
        raise ValueError(
            f"there is no signal {sig} on this machine: give a name as 'TERM', or its number"
        ) from None
