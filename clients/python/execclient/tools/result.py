"""What came of a call: the facts, and what is made of them for a model and for a program.

A `CallRecord` has the facts and nothing that follows from them; it goes to JSON and back without loss.
`ToolResult` follows from it, and from nothing else: a record that is read again gives the same result.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Literal, Self

from execclient.connection.connection import Json
from execclient.tools.errors import (
    IoFailure,
    KilledBySignal,
    Rejected,
    RespondToModel,
    SandboxDenied,
    TimedOut,
    ToolError,
)

FailureKind = Literal[
    "arguments", "unsupported", "rejected", "timeout", "denied", "signal", "io", "cancelled", "exit", "patch"
]
"""Of `exit` the command ended by itself with another exit code than 0; of `io` it did not start, or was lost;
of `cancelled` the host ended it."""

SIGNAL_BASE = 128
"""Exit codes above it are deaths by a signal."""


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a call is not a success."""

    kind: FailureKind
    message: str
    terminal: bool = False
    """Whether the same call would fail again: the model should try something else."""


@dataclass(frozen=True, slots=True)
class Decided:
    """How it came to be run, or not."""

    requirement: Literal["skip", "ask", "forbidden"]
    source: str
    """One of the five of `policy.decision.Source`."""
    decided_by: str | None
    """`cache`, `hook`, `guardian`, `user` or `nobody`, if somebody was asked."""
    sandbox_policy: Mapping[str, Json]
    """What the last attempt ran under, or would have."""
    sandbox_type: str
    bypassed: bool
    attempts: int
    revision: str
    """Of the policy."""
    rules: tuple[str, ...] = ()
    """The rules that matched, as `FILE:LINE: prefix decision`."""


@dataclass(frozen=True, slots=True)
class CallRecord:
    """The facts of one call."""

    call_id: str
    tool: str
    command: tuple[str, ...] = ()
    cwd: str = ""
    phases: tuple[str, ...] = ()
    """What it went through: `approval`, `sandbox`, `run`, `retry`."""
    decided: Decided | None = None
    process_id: str | None = None
    """The daemon's name for it."""
    session: str | None = None
    """The tool's name for a process that still runs."""
    exit_code: int | None = None
    cause: str | None = None
    """Why it ended (`docs/protocol.md`, X8)."""
    duration: float = 0.0
    """Seconds, by a clock that nobody sets."""
    timed_out: bool = False
    text: str = ""
    """What the model gets."""
    stdout: str = ""
    stderr: str = ""
    aggregated: str = ""
    """Of both, in the order in which they came: what is kept, without shaping."""
    total_bytes: int = 0
    omitted_bytes: int = 0
    """Left out of the middle of what is kept."""
    lost_bytes: int = 0
    """Dropped before it came to the client."""
    truncated: bool = False
    """Whether the text is less than what is kept."""
    warnings: tuple[str, ...] = ()
    failure: Failure | None = None

    def with_text(self, text: str) -> Self:
        """The same facts, and another text for the model."""
        return replace(self, text=text)

    def to_json(self) -> dict[str, Json]:
        """As JSON."""
        return asdict(self)

    @classmethod
    def from_json(cls, value: Mapping[str, Json]) -> Self:
        """What `to_json` gave."""
        members = dict(value)
        failure, decided = members.get("failure"), members.get("decided")
        members["failure"] = None if failure is None else Failure(**failure)
        if decided is not None:
            members["decided"] = Decided(**{**decided, "rules": tuple(decided["rules"])})
        for name in ("command", "phases", "warnings"):
            members[name] = tuple(members[name])
        return cls(**members)


@dataclass(frozen=True, slots=True)
class ToolResult:
    """What a call of a tool gives. Get one from `Toolset.call`, or `from_record`."""

    call_id: str
    tool: str
    content: str
    """For the model."""
    success: bool
    exit_code: int | None
    """None while the command runs, and where there is none."""
    process_id: str | None
    """Of a process that still runs: what `write_stdin` calls it. None when it has ended."""
    stdout: str
    stderr: str
    aggregated_output: str
    """Of both, in the order in which they came: what is kept, without shaping."""
    duration: float
    """Seconds."""
    timed_out: bool
    truncated: bool
    """Whether the content is less than what was printed."""
    omitted_bytes: int
    """Of the output: left out of `aggregated_output`, or lost before it came to the client."""
    failure: Failure | None
    """None of a success."""
    record: CallRecord = field(repr=False, compare=False)

    @classmethod
    def from_record(cls, record: CallRecord) -> Self:
        """The result that follows from the facts."""
        return cls(
            call_id=record.call_id,
            tool=record.tool,
            content=record.text,
            success=record.failure is None,
            exit_code=record.exit_code,
            process_id=record.session,
            stdout=record.stdout,
            stderr=record.stderr,
            aggregated_output=record.aggregated,
            duration=record.duration,
            timed_out=record.timed_out,
            truncated=record.truncated or record.omitted_bytes > 0 or record.lost_bytes > 0,
            omitted_bytes=record.omitted_bytes + record.lost_bytes,
            failure=record.failure,
            record=record,
        )

    def check(self) -> Self:
        """Itself, if it is a success.

        Raises:
            ToolError: of the kind of its failure; those of time limits and sandboxes have the output.
        """
        failure = self.failure
        if failure is None:
            return self
        raise _error(failure, self)

    def to_openai(self) -> dict[str, Json]:
        """The item that answers a function call."""
        return {"type": "function_call_output", "call_id": self.call_id, "output": self.content}

    def to_anthropic(self) -> dict[str, Json]:
        """The block that answers a tool use."""
        block: dict[str, Json] = {
            "type": "tool_result",
            "tool_use_id": self.call_id,
            "content": self.content,
        }
        return block if self.success else {**block, "is_error": True}

    def to_mcp(self) -> dict[str, Json]:
        """The result of `tools/call`."""
        return {
            "content": [{"type": "text", "text": self.content}],
            "structuredContent": {
                "exitCode": self.exit_code,
                "processId": self.process_id,
                "timedOut": self.timed_out,
                "truncated": self.truncated,
                "omittedBytes": self.omitted_bytes,
                "durationSeconds": self.duration,
                "failure": None if self.failure is None else asdict(self.failure),
            },
            "isError": not self.success,
        }

    def to_process_json(self) -> dict[str, Json]:
        """Output, process and exit code alone, for hosts that show sessions themselves."""
        return {
            "output": self.aggregated_output,
            "process_id": self.process_id,
            "exit_code": self.exit_code,
        }


def failed(record: CallRecord, kind: FailureKind, message: str, *, terminal: bool = False) -> CallRecord:
    """The record of a call that failed; its text, if it has none yet, is the message."""
    return replace(record, failure=Failure(kind, message, terminal), text=record.text or message)


def _error(failure: Failure, result: ToolResult) -> ToolError:
    match failure.kind:
        case "timeout":
            return TimedOut(failure.message, result.aggregated_output)
        case "denied":
            return SandboxDenied(failure.message, result.aggregated_output)
        case "signal":
            return KilledBySignal(failure.message, (result.exit_code or SIGNAL_BASE) - SIGNAL_BASE)
        case "rejected":
            return Rejected(failure.message)
        case "io" | "cancelled":
            return IoFailure(failure.message)
        case _:
            return RespondToModel(failure.message)


PREVIEW_BYTES = 2048
"""Collectors cut or drop attributes that are much longer; the notice is in it."""

PREVIEW_LINES = 50
"""As many as somebody who looks at a log wants to pass; the notice is in it."""

TRUNCATION_NOTICE = "[... telemetry preview truncated ...]"
"""The last line of a preview that is not all; searched for by dashboards, so it stays as it is."""


def preview(text: str) -> str:
    """The text itself, or as much of its beginning as fits together with a notice on a line of its own.

    At most 2048 bytes of UTF-8 and 50 lines; no character is cut.
    """
    data = text.encode("utf-8", "replace")
    lines = text.split("\n")
    if len(data) <= PREVIEW_BYTES and len(lines) - (lines[-1] == "") <= PREVIEW_LINES:
        return text
    room = PREVIEW_BYTES - len(TRUNCATION_NOTICE) - 1
    start = data[:room].decode("utf-8", "ignore")
    # Joined with "\n", a text of n lines has n - 1 of them; the notice needs a line as well.
    kept = "\n".join(start.split("\n")[: PREVIEW_LINES - 1]).removesuffix("\n")
    return f"{kept}\n{TRUNCATION_NOTICE}" if kept else TRUNCATION_NOTICE
