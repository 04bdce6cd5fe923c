"""execclient: run commands and touch files at an execserver daemon.

    async with connect() as executor:
        result = await executor.run(["make", "test"], timeout=600)
        print(result.exit_code, result.text)

This version connects to Unix sockets, from asyncio. `python -m execclient.quickstart` shows what
there is.
"""

from execclient.client import Executor, connect
from execclient.errors import (
    CallFailed,
    CallTimeout,
    ConnectionFailed,
    ConnectionLost,
    DaemonNotRunning,
    ExecServerError,
    ExecutorClosed,
    InvalidParams,
    NoSuchProcess,
    NotFound,
    OutcomeUnknown,
    OutputGap,
    ProtocolFault,
    Refused,
    RequestTooLarge,
    SessionAttached,
    SessionLost,
    StdinUnavailable,
    SystemFailure,
    UnknownMethod,
    UnsupportedUrl,
    UntrustedServer,
)
from execclient.filesystem import Entry, FileSystem, Stat
from execclient.inbox import Chunk, Page
from execclient.process import Process, TextChunk, TextStream
from execclient.run import RunResult

__all__ = [
    "CallFailed",
    "CallTimeout",
    "Chunk",
    "ConnectionFailed",
    "ConnectionLost",
    "DaemonNotRunning",
    "Entry",
    "ExecServerError",
    "Executor",
    "ExecutorClosed",
    "FileSystem",
    "InvalidParams",
    "NoSuchProcess",
    "NotFound",
    "OutcomeUnknown",
    "OutputGap",
    "Page",
    "Process",
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
    "UnknownMethod",
    "UnsupportedUrl",
    "UntrustedServer",
    "connect",
]
