"""execclient: run commands and access files at an execserver daemon.

    async with connect() as executor:
        result = await executor.run(["make", "test"], timeout=600)
        print(result.exit_code, result.text)

`execclient.sync` is the same without an event loop, `execclient.expect` is pexpect on top of it.
`python -m execclient.quickstart` is a tour.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
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
        ExecutorDraining,
        InsecureToken,
        InvalidParams,
        LineTooLong,
        NoSuchProcess,
        NotFound,
        OutcomeUnknown,
        OutputGap,
        PolicyError,
        PoolFull,
        ProtocolFault,
        Refused,
        RequestTooLarge,
        SandboxRequired,
        SessionAttached,
        SessionLost,
        StdinUnavailable,
        StreamFailed,
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
    from execclient.govern.network import NetworkAccess
    from execclient.govern.sandbox import DangerFullAccess, ReadOnly, WorkspaceWrite
    from execclient.output_text import LineStream, TextStream
    from execclient.ports import Forward, PortEvents
    from execclient.process import Process
    from execclient.resource_limits import ResourceLimits
    from execclient.results import (
        Change,
        Chunk,
        Copied,
        DrainNotice,
        Entry,
        LeftOut,
        Line,
        ListeningPort,
        NetworkDecision,
        NetworkRequest,
        Page,
        PortEvent,
        ProcessInfo,
        Progress,
        RunResult,
        Stat,
        TextChunk,
        TreeCopied,
        TreeProgress,
        WalkEntry,
    )
    from execclient.watch import Watch

__all__ = [
    "AccessDenied",
    "CallFailed",
    "CallTimeout",
    "Change",
    "Chunk",
    "CommandFailed",
    "CommandNotRun",
    "ConnectionFailed",
    "ConnectionLost",
    "Copied",
    "DaemonNotRunning",
    "DangerFullAccess",
    "DrainNotice",
    "Entry",
    "EnvironmentOffline",
    "ExecServerError",
    "Executor",
    "ExecutorClosed",
    "ExecutorDraining",
    "FileSystem",
    "Forward",
    "InsecureToken",
    "InvalidParams",
    "LeftOut",
    "Line",
    "LineStream",
    "LineTooLong",
    "ListeningPort",
    "NetworkAccess",
    "NetworkDecision",
    "NetworkRequest",
    "NoSuchProcess",
    "NotFound",
    "OutcomeUnknown",
    "OutputGap",
    "Page",
    "PolicyError",
    "PoolFull",
    "PortEvent",
    "PortEvents",
    "Process",
    "ProcessInfo",
    "Progress",
    "ProtocolFault",
    "ReadOnly",
    "Refused",
    "RequestTooLarge",
    "ResourceLimits",
    "RunResult",
    "SandboxRequired",
    "SessionAttached",
    "SessionLost",
    "Stat",
    "StdinUnavailable",
    "StreamFailed",
    "SystemFailure",
    "TextChunk",
    "TextStream",
    "TransferFailed",
    "TreeCopied",
    "TreeProgress",
    "UnknownMethod",
    "Unsupported",
    "UnsupportedUrl",
    "UntrustedServer",
    "WaitTimeout",
    "WalkEntry",
    "WalkIncomplete",
    "Watch",
    "WorkspaceWrite",
    "WrongExecutor",
    "connect",
]

_MODULES = (
    "errors",
    "results",
    "client",
    "govern.sandbox",
    "govern.network",
    "process",
    "filesystem",
    "ports",
    "watch",
)
"""The modules of these names. The first two are small."""


def __getattr__(name: str) -> object:
    # Late: a program that needs only an error or a policy loads neither asyncio nor msgspec: 50 ms.
    if name in __all__:
        for module in _MODULES:
            found = vars(import_module(f"{__name__}.{module}")).get(name)
            if found is not None:
                globals()[name] = found
                return found
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
