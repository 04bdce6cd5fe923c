"""The values that calls return: results of commands, output, processes, files and transfers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Self

from pybase64 import b64decode


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
    """Whether the sandbox denied the command something, with evidence (`docs/protocol.md`, X7)."""

    @property
    def text(self) -> str:
        """The standard output as UTF-8 text, with U+FFFD for invalid bytes."""
        return self.stdout.decode("utf-8", "replace")

    @property
    def stderr_text(self) -> str:
        """The standard error, likewise."""
        return self.stderr.decode("utf-8", "replace")


class Chunk(NamedTuple):
    """A piece of output. Its ends may lie within a character."""

    stream: str
    """`stdout`, `stderr`, or `pty`."""
    data: bytes


class TextChunk(NamedTuple):
    """A piece of decoded output; characters are whole."""

    stream: str
    text: str


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

    @property
    def data(self) -> bytes:
        """The data of all chunks, whatever their stream."""
        return b"".join(chunk.data for chunk in self.chunks)

    @classmethod
    def decode(cls, result: Mapping[str, Any]) -> Self:
        """The result of `process/read`. Empty chunks are left out: they stand for lost numbers."""
        chunks = [
            Chunk(chunk["stream"], b64decode(chunk["chunk"], validate=True)) for chunk in result["chunks"]
        ]
        return cls(
            chunks=[chunk for chunk in chunks if chunk.data],
            next_seq=result["nextSeq"],
            exited=result["exited"],
            exit_code=result.get("exitCode"),
            closed=result["closed"],
            lost_bytes=result.get("lostBytes", 0),
            cause=result.get("cause"),
            failure=result.get("failure"),
            denial=result.get("denial"),
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
            exit_code=item.get("exitCode"),
            cause=item.get("cause"),
            last_seq=item["lastSeq"],
            retained_bytes=item["retainedBytes"],
            cpu_seconds=item.get("cpuSeconds"),
            rss_bytes=item.get("rssBytes"),
            process_count=item.get("processCount"),
            argv=None if argv is None else tuple(argv),
            cwd=item.get("cwd"),
        )


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
