"""execclient: run commands and access files at an execserver daemon.

    async with connect() as executor:
        result = await executor.run(["make", "test"], timeout=600)
        print(result.exit_code, result.text)

`execclient.sync` is the same without an event loop, `execclient.expect` is pexpect on top of it.
`python -m execclient.quickstart` is a tour.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from execclient.client import Executor, connect
from execclient.errors import (
    AccessDenied,
    CallFailed,
    CallTimeout,
    CommandFailed,
    CommandNotRun,
    ConnectionFailed,
    ConnectionLost,
    DaemonNotRunning,
    EnvironmentOffline,
    ExecServerError,
    ExecutorClosed,
    InsecureToken,
    InvalidParams,
    NoSuchProcess,
    NotFound,
    OutcomeUnknown,
    OutputGap,
    PolicyError,
    ProtocolFault,
    Refused,
    RequestTooLarge,
    SessionAttached,
    SessionLost,
    StdinUnavailable,
    SystemFailure,
    TransferFailed,
    UnknownMethod,
    Unsupported,
    UnsupportedUrl,
    UntrustedServer,
    WaitTimeout,
    WalkIncomplete,
    WrongExecutor,
)
from execclient.filesystem import FileSystem
from execclient.process import Process, TextStream
from execclient.results import (
    Chunk,
    Copied,
    Entry,
    Page,
    ProcessInfo,
    Progress,
    RunResult,
    Stat,
    TextChunk,
    WalkEntry,
)

if TYPE_CHECKING:
    from execclient.govern.sandbox import DangerFullAccess, ReadOnly, WorkspaceWrite

__all__ = [
    "AccessDenied",
    "CallFailed",
    "CallTimeout",
    "Chunk",
    "CommandFailed",
    "CommandNotRun",
    "ConnectionFailed",
    "ConnectionLost",
    "Copied",
    "DaemonNotRunning",
    "DangerFullAccess",
    "Entry",
    "EnvironmentOffline",
    "ExecServerError",
    "Executor",
    "ExecutorClosed",
    "FileSystem",
    "InsecureToken",
    "InvalidParams",
    "NoSuchProcess",
    "NotFound",
    "OutcomeUnknown",
    "OutputGap",
    "Page",
    "PolicyError",
    "Process",
    "ProcessInfo",
    "Progress",
    "ProtocolFault",
    "ReadOnly",
    "Refused",
    "RequestTooLarge",
    "RunResult",
    "SessionAttached",
    "SessionLost",
    "Stat",
    "StdinUnavailable",
    "SystemFailure",
    "TextChunk",
    "TextStream",
    "TransferFailed",
    "UnknownMethod",
    "Unsupported",
    "UnsupportedUrl",
    "UntrustedServer",
    "WaitTimeout",
    "WalkEntry",
    "WalkIncomplete",
    "WorkspaceWrite",
    "WrongExecutor",
    "connect",
]

_POLICIES = frozenset({"DangerFullAccess", "ReadOnly", "WorkspaceWrite"})


def __getattr__(name: str) -> object:
    # Late: most programs need no sandbox policy.
    if name not in _POLICIES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from execclient.govern import sandbox

    return getattr(sandbox, name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
