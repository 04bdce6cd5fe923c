"""What came of a command that ran to its end."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass

from execclient.connection.connection import Json
from execclient.errors import OutputGap
from execclient.session.inbox import Piece

TIMED_OUT = 124
"""The exit code of a command that ran into a time limit, as `timeout(1)` has it."""

TIME_LIMITS = frozenset({"timeout", "idleTimeout"})
"""The causes of such an end (`docs/protocol.md`, X8)."""

LINGER_SECONDS = 0.5
"""How long `run` waits for the end of the output once the command has exited. A child that it
left in the background may hold the output for hours."""


@dataclass(frozen=True, slots=True)
class RunResult:
    """The end of a command, and its output."""

    exit_code: int
    """128 + N for death by signal N; 124 when it ran into a time limit."""
    stdout: bytes
    """With a terminal: everything."""
    stderr: bytes
    aggregated: bytes
    """Both, in the order in which they arrived."""
    duration: float
    """Seconds from the call to its end, as the client saw it."""
    timed_out: bool
    """Whether a time limit ended it: `cause` says which."""
    cause: str | None = None
    """Why it ended: `normal`, `signal`, `timeout`, `idleTimeout`, … (`docs/protocol.md`, X8). None from
    a server that does not tell."""
    stdout_truncated: int = 0
    """Bytes left out of the middle of `stdout`, because of `max_output_bytes`."""
    stderr_truncated: int = 0
    """The same of `stderr`."""
    aggregated_truncated: int = 0
    """The same of `aggregated`."""
    denial: Mapping[str, Json] | None = None
    """Of a command in a sandbox: whether that was in its way, with evidence (`docs/protocol.md`, X7)."""

    @property
    def text(self) -> str:
        """The standard output as text: UTF-8, with U+FFFD for bytes that are none."""
        return self.stdout.decode("utf-8", "replace")

    @property
    def stderr_text(self) -> str:
        """The standard error, likewise."""
        return self.stderr.decode("utf-8", "replace")


class KeptEnds:
    """The first and the last bytes of a stream: half a limit of each, or all without one."""

    def __init__(self, limit: int | None) -> None:
        self._limit = limit
        self._room = 0 if limit is None else limit - limit // 2
        self._head: list[bytes] = []
        self._tail: deque[bytes] = deque()
        self._tail_size = 0
        self._size = 0

    def add(self, data: bytes) -> None:
        """More of the stream."""
        self._size += len(data)
        if self._limit is None:
            self._head.append(data)
            return
        if self._room:
            self._head.append(data[: self._room])
            data, taken = data[self._room :], min(self._room, len(data))
            self._room -= taken
        tail = self._tail
        tail.append(data)
        self._tail_size += len(data)
        # Whole pieces only: cutting the first one at every turn would copy it again and again.
        while self._tail_size - len(tail[0]) >= self._limit // 2:
            self._tail_size -= len(tail.popleft())
            if not tail:
                break

    def copy(self) -> KeptEnds:
        """Another one, as far as this one is."""
        twin = KeptEnds(self._limit)
        twin._room, twin._tail_size, twin._size = self._room, self._tail_size, self._size
        twin._head, twin._tail = self._head.copy(), self._tail.copy()
        return twin

    def ends(self) -> tuple[bytes, int]:
        """What is kept, and how many bytes were left out of its middle."""
        head = b"".join(self._head)
        if self._limit is None:
            return head, 0
        tail = b"".join(self._tail)
        tail = tail[max(0, len(tail) - self._limit // 2) :]
        return head + tail, self._size - len(head) - len(tail)


class RunOutput:
    """All output of a command, as it comes; an inbox's sink.

    Args:
        limit: bytes that are kept of each stream, and of both together; None for all.
    """

    def __init__(self, limit: int | None) -> None:
        self._limit = limit
        self._streams: dict[str, KeptEnds] = {}
        self._both: KeptEnds | None = None
        """None while there is one stream at most, which is then all."""
        self._gaps: list[OutputGap] = []

    def add(self, piece: Piece) -> None:
        """The next of it."""
        if isinstance(piece, OutputGap):
            self._gaps.append(piece)
            return
        stream, data = piece
        kept = self._streams.get(stream)
        if kept is None:
            if len(self._streams) == 1:
                (first,) = self._streams.values()
                self._both = first.copy()
            kept = self._streams[stream] = KeptEnds(self._limit)
        kept.add(data)
        if self._both is not None:
            self._both.add(data)

    def result(
        self,
        exit_code: int,
        duration: float,
        *,
        cause: str | None = None,
        timed_out: bool = False,
        denial: Mapping[str, Json] | None = None,
    ) -> RunResult:
        """The result of the command.

        Raises:
            OutputGap: some output was lost; its `result` has the rest.
        """
        ends = {stream: kept.ends() for stream, kept in self._streams.items()}
        stdout, stdout_truncated = ends.get("stdout") or ends.get("pty") or (b"", 0)
        stderr, stderr_truncated = ends.get("stderr") or (b"", 0)
        if self._both is not None:
            aggregated, aggregated_truncated = self._both.ends()
        else:
            aggregated, aggregated_truncated = stdout or stderr, stdout_truncated or stderr_truncated
        result = RunResult(
            exit_code=exit_code,
            stdout=stdout,
            stderr=stderr,
            aggregated=aggregated,
            duration=duration,
            timed_out=timed_out,
            cause=cause,
            stdout_truncated=stdout_truncated,
            stderr_truncated=stderr_truncated,
            aggregated_truncated=aggregated_truncated,
            denial=denial,
        )
        if self._gaps:
            known = [gap.lost_bytes for gap in self._gaps if gap.lost_bytes is not None]
            raise OutputGap(sum(known) if len(known) == len(self._gaps) else None, result)
        return result
