"""The values that calls return: results of commands, output, processes, files and transfers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Self

from pybase64 import b64decode

if TYPE_CHECKING:
    from execprotocol.network import NetworkProtocol

TIMED_OUT = 124
"""The exit code of a process that a time limit has ended, as in `timeout(1)`."""

TIME_LIMITS = frozenset({"timeout", "idleTimeout"})
"""The causes of such an end (`docs/protocol.md`, X8)."""


def is_timed_out(cause: str | None, limit: Mapping[str, Any] | None = None) -> bool:
    """Whether a time limit ended a process: `timeout`, `idle_timeout`, or `wall` of its `limits`."""
    return cause in TIME_LIMITS or (limit is not None and limit["which"] == "wall")


def exit_code_of(wire_code: int, cause: str | None, limit: Mapping[str, Any] | None = None) -> int:
    """The exit code that the library reports: that of the wire, but 124 after a time limit."""
    return TIMED_OUT if is_timed_out(cause, limit) else wire_code


@dataclass(frozen=True, slots=True)
class RunResult:
    """The end of a command, and its output."""

    exit_code: int
    """128 + N for death by signal N; 124 after a time limit."""
    stdout: bytes
    """With a terminal: all output."""
    stderr: bytes
    aggregated: bytes
    """Both streams, in the order of arrival."""
    duration: float
    """Seconds from the call to its end, measured by the client."""
    timed_out: bool
    """Whether a time limit ended the command: `cause` says which."""
    cause: str | None = None
    """Why the command ended: `normal`, `signal`, `timeout`, `idleTimeout`, … (`docs/protocol.md`, X8). None
    if the server does not report causes."""
    stdout_truncated: int = 0
    """Bytes left out of the middle of `stdout`, because of `max_output_bytes`."""
    stderr_truncated: int = 0
    """The same for `stderr`."""
    aggregated_truncated: int = 0
    """The same for `aggregated`."""
    denial: Mapping[str, Any] | None = None
    """Whether the sandbox denied the command something, with evidence (`docs/protocol.md`, X7): `likely`, and
    in `evidence` the `kind` of each sign, its `text`, `path`, `reason` and `protectedPath`."""
    ended_with_sandbox: Mapping[str, Any] | None = None
    """The processes that the command left running and its sandbox ended (X18): `count` and `names`."""
    limit: Mapping[str, Any] | None = None
    """The one of its `limits` that ended the command (X20): `which` (`memory`, `wall`) and its `value`."""
    usage: Mapping[str, Any] | None = None
    """What a command with `limits` used (X21): `memoryPeakBytes`, `pidsPeak`, `cpuMs`, and `limitsHit`."""

    @property
    def returncode(self) -> int:
        """`exit_code`, under the name that `subprocess` has, where a death by signal N is -N."""
        return self.exit_code

    @property
    def text(self) -> str:
        """The standard output as UTF-8 text, with U+FFFD for invalid bytes."""
        return self.stdout.decode("utf-8", "replace")

    @property
    def stderr_text(self) -> str:
        """The standard error, likewise."""
        return self.stderr.decode("utf-8", "replace")

    def __repr__(self) -> str:
        # Sizes: the output may be long or secret.
        cause = "" if self.cause in (None, "normal") else f" cause={self.cause}"
        return (
            f"<RunResult exit_code={self.exit_code}{cause} stdout={len(self.stdout)} bytes"
            f" stderr={len(self.stderr)} bytes duration={self.duration:.3f} s>"
        )


class _StreamData(NamedTuple):
    stream: str
    """`stdout`, `stderr`, or `pty`."""
    data: bytes


class Chunk(_StreamData):
    """A piece of output: its stream and its bytes, whose ends may lie within a character.

    It can be unpacked into these two; its time is an attribute beside them.
    """

    at: float | None = None
    """When the server took it from the process, in seconds since 1970 by the clock of the server, which may
    be set back (`docs/protocol.md`, X22). None if the server does not report times."""

    def __new__(cls, stream: str, data: bytes, at: float | None = None) -> Self:
        """`at` is as above."""
        chunk = super().__new__(cls, stream, data)
        chunk.at = at
        return chunk

    @classmethod
    def decode(cls, params: Mapping[str, Any]) -> Self:
        """The chunk of an event, or one of a page."""
        at_ms = params.get("at")
        data = b64decode(params["chunk"], validate=True)
        return cls(params["stream"], data, None if at_ms is None else at_ms / 1000)


class TextChunk(NamedTuple):
    """A piece of decoded output; characters are whole."""

    stream: str
    text: str


class Line(str):
    """A line of output as a `str`, without its end."""

    __slots__ = ("ended", "stream")

    stream: str
    """`stdout`, `stderr`, or `pty`."""
    ended: bool
    """Whether a line end followed. False for a last line without one, for pieces of a line above the limit
    but the last, and for the part of a line before a gap."""

    def __new__(cls, text: str, stream: str = "stdout", *, ended: bool = True) -> Self:
        """A default stream, as a copy or a pickle is made from the text, and gets its attributes then."""
        line = super().__new__(cls, text)
        line.stream = stream
        line.ended = ended
        return line


@dataclass(frozen=True, slots=True)
class Page:
    """The result of a long poll: the output after a sequence number, and the state of the process."""

    chunks: list[Chunk]
    next_seq: int
    """Continue with `after_seq=next_seq - 1`."""
    exited: bool
    exit_code: int | None
    closed: bool
    """Whether both the process and its output have ended."""
    lost_bytes: int
    """Output after `after_seq` that was discarded; it came before `chunks`."""
    cause: str | None = None
    """Why the process ended (`docs/protocol.md`, X8); None while it runs, or if that is not reported."""
    failure: str | None = None
    """Why the sandbox failed before the command began (`docs/protocol.md`, C35)."""
    denial: Mapping[str, Any] | None = None
    """Whether the sandbox denied something, with evidence (`docs/protocol.md`, X7)."""
    ended_with_sandbox: Mapping[str, Any] | None = None
    """The processes that the command left running and its sandbox ended (X18)."""

    @property
    def data(self) -> bytes:
        """The data of all chunks, whatever their stream."""
        return b"".join(chunk.data for chunk in self.chunks)

    @classmethod
    def decode(cls, result: Mapping[str, Any]) -> Self:
        """The result of `process/read`. Empty chunks are left out: they stand for lost numbers."""
        chunks = map(Chunk.decode, result["chunks"])
        return cls(
            chunks=[chunk for chunk in chunks if chunk.data],
            next_seq=result["nextSeq"],
            exited=result["exited"],
            exit_code=_exit_code(result),
            closed=result["closed"],
            lost_bytes=result.get("lostBytes", 0),
            cause=result.get("cause"),
            failure=result.get("failure"),
            denial=result.get("denial"),
            ended_with_sandbox=result.get("endedWithSandbox"),
        )


@dataclass(frozen=True, slots=True)
class NetworkRequest:
    """A host that a command wants to reach, and that its settings neither allow nor deny."""

    process_id: str
    """The process of the command."""
    protocol: NetworkProtocol
    """How the command asked: `http` is a plain request, `https_connect` is CONNECT."""
    host: str
    """Its name in lower case, or its IP address."""
    port: int

    @classmethod
    def decode(cls, params: Mapping[str, Any]) -> Self:
        """The parameters of `network/policyRequest`."""
        request = params["request"]
        return cls(params["processId"], request["protocol"], request["host"], request["port"])


@dataclass(frozen=True, slots=True)
class DrainNotice:
    """The executor drains: it opens no new sessions, and this one goes on until it ends."""

    ends_in: float | None
    """Seconds until the service ends at the latest, with all its processes; None: it is not known that it
    ends."""

    @classmethod
    def decode(cls, params: Mapping[str, Any]) -> Self:
        """The parameters of `executor/draining`."""
        left = params["endsInMs"]
        return cls(None if left is None else left / 1000)


@dataclass(frozen=True, slots=True)
class NetworkDecision:
    """A decision of the network proxy of a command."""

    process_id: str
    """The process of the command."""
    timestamp: str
    """When, in UTC, as RFC 3339."""
    decision: Literal["allow", "deny", "ask"]
    """Everything but `allow` denies."""
    source: str
    """What decided: `decider`, which is the client; `baseline_policy`, the settings; or another part."""
    reason: str
    """Why, such as `not_allowed`; the client's own words if it decided."""
    protocol: NetworkProtocol
    host: str
    port: int
    method: str | None
    """The HTTP method; None with SOCKS5."""
    policy_override: bool
    """Whether the client decided otherwise than the settings."""

    @classmethod
    def decode(cls, params: Mapping[str, Any]) -> Self:
        """The parameters of `network/policyDecision`."""
        return cls(
            process_id=params["processId"],
            timestamp=params["timestamp"],
            decision=params["decision"],
            source=params["source"],
            reason=params["reason"],
            protocol=params["protocol"],
            host=params["host"],
            port=params["port"],
            method=params.get("method"),
            policy_override=params["policyOverride"],
        )


@dataclass(frozen=True, slots=True)
class ProcessInfo:
    """One process in the daemon's list. `docs/protocol.md`, "Processes of other sessions"."""

    process_id: str
    session_id: str
    pid: int
    state: str
    """`running`, `exited` (its output is still open), or `closed`."""
    tty: bool
    size: tuple[int, int] | None
    """Rows and columns of its terminal."""
    started_at_ms: int
    """Milliseconds since 1970."""
    age_ms: int
    """Milliseconds since the start, by a monotonic clock."""
    exit_code: int | None
    cause: str | None
    last_seq: int
    """The number of its last event."""
    retained_bytes: int
    """Output that can still be read."""
    cpu_seconds: float | None
    """Processor time of the process and its living descendants, like the next two."""
    rss_bytes: int | None
    process_count: int | None
    argv: tuple[str, ...] | None
    """None unless requested, like `cwd`."""
    cwd: str | None

    @classmethod
    def decode(cls, item: Mapping[str, Any]) -> Self:
        """One item of the result of `process/list`."""
        size = item.get("size")
        argv = item.get("argv")
        return cls(
            process_id=item["processId"],
            session_id=item["sessionId"],
            pid=item["pid"],
            state=item["state"],
            tty=item["tty"],
            size=(size["rows"], size["cols"]) if size else None,
            started_at_ms=item["startedAtMs"],
            age_ms=item["ageMs"],
            exit_code=_exit_code(item),
            cause=item.get("cause"),
            last_seq=item["lastSeq"],
            retained_bytes=item["retainedBytes"],
            cpu_seconds=item.get("cpuSeconds"),
            rss_bytes=item.get("rssBytes"),
            process_count=item.get("processCount"),
            argv=None if argv is None else tuple(argv),
            cwd=item.get("cwd"),
        )


class ListeningPort(NamedTuple):
    """A TCP port that a process at the executor listens on."""

    port: int
    address: str
    """That the socket is bound to: `127.0.0.1`, `0.0.0.0`, `::`, …"""
    process_id: str | None
    """The process, as `start` names it, that the listening process descends from; None if it is no longer
    kept."""
    session_id: str
    """The session of that process."""
    pid: int
    """Of the listening process, at the executor."""
    name: str
    """Of the listening process, as the kernel has it: 15 bytes at most."""
    sandboxed: bool
    """Whether the socket is in a sandbox with a network of its own, where only `forward` reaches it."""

    @property
    def key(self) -> tuple[str, str | None, str, int]:
        """The session, the process, the address and the port: no two listeners have the same."""
        return self.session_id, self.process_id, self.address, self.port

    @classmethod
    def decode(cls, item: Mapping[str, Any]) -> Self:
        """One item of the result of `port/list`, or a `port/listening`."""
        return cls(
            item["port"],
            item["address"],
            item["processId"],
            item["sessionId"],
            item["pid"],
            item["name"],
            item["sandboxed"],
        )


class PortEvent(NamedTuple):
    """A process begins to listen on a port, or no process does any more."""

    port: ListeningPort
    listening: bool


@dataclass(frozen=True, slots=True)
class Stat:
    """The status of a path. Links are followed, except for `is_symlink`. Times are seconds since 1970."""

    is_dir: bool
    is_file: bool
    is_symlink: bool
    size: int
    modified: float
    created: float | None
    """None if the file system does not record it."""
    mode: int | None = None
    """The permission bits; None from an older executor, like the times below."""
    modified_ns: int | None = None
    """`modified` in nanoseconds, exact."""
    accessed_ns: int | None = None


class Entry(NamedTuple):
    """One name in a directory. Both flags are False for a device or a socket."""

    name: str
    is_dir: bool
    is_file: bool


class Change(NamedTuple):
    """A change below a watched path. It says what is true afterwards; several may be reported as one."""

    kind: Literal["created", "modified", "removed", "renamed", "gap"]
    """`modified`: the content or the metadata. `renamed`: from `previous`, with everything below a directory.
    `gap`: changes were lost; look again at everything at and below `path`."""
    path: str
    """Absolute, at the executor."""
    previous: str | None = None
    """The earlier path, if it was renamed."""
    is_dir: bool = False
    """Whether it is or was a directory itself, not a link to one."""

    @property
    def gap(self) -> bool:
        """Whether changes were lost here."""
        return self.kind == "gap"


class WalkEntry(NamedTuple):
    """One file or directory of a tree."""

    path: str
    """Absolute, at the executor."""
    is_dir: bool
    error: str | None = None
    """Why this directory could not be read."""


class Progress(NamedTuple):
    """The progress of a transfer, in bytes."""

    done: int
    total: int | None
    """None if the size is not known in advance."""


class TreeProgress(NamedTuple):
    """The progress of a tree's transfer."""

    files: int
    """Files that are at their destination."""
    done: int
    """Bytes that were transferred."""
    total_files: int | None
    """None until the whole tree has been listed, like the next one."""
    total: int | None
    """The size of all files in bytes."""


class LeftOut(NamedTuple):
    """A part of a tree that was not copied, or not with all of its attributes."""

    path: str
    reason: str
    """A text for people, such as `Permission denied (os error 13)`."""
    remote: bool
    """Whether the path is at the executor."""


@dataclass(slots=True)
class TreeCopied:
    """The result of a tree's transfer."""

    files: int = 0
    """Files that were copied."""
    directories: int = 0
    """Directories of the copy, including its top."""
    size: int = 0
    """Bytes that were copied."""
    left_out: list[LeftOut] = field(default_factory=list)
    """What was not copied, besides what `ignore` names."""
    in_place: list[str] = field(default_factory=list)
    """Files of the copy that could not be replaced, such as mount points, and were written in place."""
    modes_kept: bool = True
    """False if an older executor does not report or set permission bits."""


class Copied(NamedTuple):
    """The result of a copy."""

    size: int | None
    """Bytes that were copied; None if they were not counted."""
    in_place: bool = False
    """Whether the target could not be replaced, such as a mount point, and was written in place."""
    mode_kept: bool = True
    """False if an older executor does not report or set permission bits."""


def _exit_code(state: Mapping[str, Any]) -> int | None:
    code = state.get("exitCode")
    return None if code is None else exit_code_of(code, state.get("cause"), state.get("limit"))
