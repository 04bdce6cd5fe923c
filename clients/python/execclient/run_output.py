"""The collected output of a command: all of it, or both ends."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping

from execclient.connection.connection import Json
from execclient.errors import OutputGap
from execclient.results import RunResult
from execclient.session.inbox import Piece


class KeptEnds:
    """The first and the last bytes of a stream: half of a limit each, or all bytes without a limit."""

    def __init__(self, limit: int | None) -> None:
        self._limit = limit
        self._head_left = 0 if limit is None else limit - limit // 2
        self._head: list[bytes] = []
        self._tail: deque[bytes] = deque()
        self._tail_size = 0
        self._size = 0

    def add(self, data: bytes) -> None:
        """Append data."""
        self._size += len(data)
        if self._limit is None:
            self._head.append(data)
            return
        if self._head_left:
            self._head.append(data[: self._head_left])
            data, taken = data[self._head_left :], min(self._head_left, len(data))
            self._head_left -= taken
        tail = self._tail
        tail.append(data)
        self._tail_size += len(data)
        # Whole pieces only: cutting the first one each time would copy it again and again.
        while self._tail_size - len(tail[0]) >= self._limit // 2:
            self._tail_size -= len(tail.popleft())
            if not tail:
                break

    def copy(self) -> KeptEnds:
        """A copy that continues on its own."""
        twin = KeptEnds(self._limit)
        twin._head_left, twin._tail_size, twin._size = self._head_left, self._tail_size, self._size
        twin._head, twin._tail = self._head.copy(), self._tail.copy()
        return twin

    def ends(self) -> tuple[bytes, int]:
        """The kept bytes, and the number of bytes left out of the middle."""
        head = b"".join(self._head)
        if self._limit is None:
            return head, 0
        tail = b"".join(self._tail)
        tail = tail[max(0, len(tail) - self._limit // 2) :]
        return head + tail, self._size - len(head) - len(tail)


class RunOutput:
    """All output of a command, as it arrives; the sink of an inbox.

    Args:
        limit: bytes kept of each stream, and of both together; None keeps everything.
    """

    def __init__(self, limit: int | None) -> None:
        self._limit = limit
        self._streams: dict[str, KeptEnds] = {}
        self._both: KeptEnds | None = None
        """None while there is at most one stream."""
        self._gaps: list[OutputGap] = []

    def add(self, piece: Piece) -> None:
        """Append a piece."""
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
        ended_with_sandbox: Mapping[str, Json] | None = None,
        limit: Mapping[str, Json] | None = None,
        usage: Mapping[str, Json] | None = None,
    ) -> RunResult:
        """The result of the command.

        Raises:
            OutputGap: some output was lost; `result` has the rest.
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
            ended_with_sandbox=ended_with_sandbox,
            limit=limit,
            usage=usage,
        )
        if self._gaps:
            known = [gap.lost_bytes for gap in self._gaps if gap.lost_bytes is not None]
            raise OutputGap(sum(known) if len(known) == len(self._gaps) else None, result)
        return result
