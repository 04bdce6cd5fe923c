"""execclient: run commands and touch files at an execserver daemon.

    async with connect() as executor:
        result = await executor.run(["make", "test"], timeout=600)
        print(result.exit_code, result.text)

`execclient.sync` has the same without an event loop, `execclient.expect` pexpect over it.
`python -m execclient.quickstart` shows what there is.
"""

from execclient import os_errors as os_errors  # so that error replies become these
from execclient.client import Executor
from execclient.connect import connect
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
from execclient.filesystem import Entry, FileSystem, Stat, WalkEntry
from execclient.process import Process, ProcessInfo, TextChunk, TextStream
from execclient.run import RunResult
from execclient.session.inbox import Chunk, Page
from execclient.transfer import Copied, Progress

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
    "WrongExecutor",
    "connect",
]
