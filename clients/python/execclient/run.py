"""What came of a command that ran to its end."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from execclient.errors import OutputGap
from execclient.inbox import Chunk

TIMED_OUT = 124
"""The exit code of a command that ran into its time limit, as `timeout(1)` has it."""

LINGER_SECONDS = 0.5
"""How long `run` waits for the end of the output once the command has exited. A child that it
left in the background may hold the output for hours."""


@dataclass(frozen=True, slots=True)
class RunResult:
    """The end of a command, and its output."""

    exit_code: int
    """128 + N for death by signal N; 124 when it ran into its time limit."""
    stdout: bytes
    """With a terminal: everything."""
    stderr: bytes
    duration: float
    """Seconds from the call to its end, as the client saw it."""
    timed_out: bool

    @property
    def text(self) -> str:
        """The standard output as text: UTF-8, with U+FFFD for bytes that are none."""
        return self.stdout.decode("utf-8", "replace")

    @property
    def stderr_text(self) -> str:
        """The standard error, likewise."""
        return self.stderr.decode("utf-8", "replace")


def collect(
    pieces: Iterable[Chunk | OutputGap], exit_code: int, duration: float, *, timed_out: bool
) -> RunResult:
    """The result of a command from all that arrived for it.

    Raises:
        OutputGap: some output was lost; `result` has the rest.
    """
    streams: dict[str, list[bytes]] = {}
    gaps: list[OutputGap] = []
    for piece in pieces:
        if isinstance(piece, OutputGap):
            gaps.append(piece)
        else:
            streams.setdefault(piece.stream, []).append(piece.data)
    result = RunResult(
        exit_code=exit_code,
        stdout=b"".join(streams.get("stdout", []) + streams.get("pty", [])),
        stderr=b"".join(streams.get("stderr", [])),
        duration=duration,
        timed_out=timed_out,
    )
    if gaps:
        known = [gap.lost_bytes for gap in gaps if gap.lost_bytes is not None]
        raise OutputGap(sum(known) if len(known) == len(gaps) else None, result)
    return result
