"""The result of a call: the facts, and their form for a model and for a program.

A `CallRecord` has only the facts, and converts to JSON and back without loss. A `ToolResult` is derived from
a record alone: a record that is read again gives the same result.
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
"""`exit`: the command ended by itself with another exit code than 0. `io`: it did not start, or was lost.
`cancelled`: the host ended it."""

SIGNAL_BASE = 128
"""Exit codes above it are deaths by a signal."""


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a call failed."""

    kind: FailureKind
    message: str
    terminal: bool = False
    """Whether the same call would fail again, so that the model should try something else."""


@dataclass(frozen=True, slots=True)
class Decided:
    """The decision on a call."""

    requirement: Literal["skip", "ask", "forbidden"]
    source: str
    """A `policy.decision.DecisionSource`."""
    decided_by: str | None
    """`cache`, `hook`, `guardian`, `user` or `nobody`, if an approval was needed."""
    sandbox_policy: Mapping[str, Json]
    """The sandbox policy of the last attempt, or of the one that was refused."""
    sandbox_type: str
    bypassed: bool
    attempts: int
    revision: str
    """The revision of the policy."""
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
    """The phases of the call: `approval`, `sandbox`, `run`, `retry`."""
    decided: Decided | None = None
    process_id: str | None = None
    """The daemon's id of the process."""
    audit: int | None = None
    """The number of the start of the process in the daemon's audit folder (X24); None without one."""
    session: str | None = None
    """The tool's id of a process that still runs."""
    exit_code: int | None = None
    cause: str | None = None
    """The cause of the exit (`docs/protocol.md`, X8)."""
    duration: float = 0.0
    """In seconds, by a monotonic clock."""
    timed_out: bool = False
    text: str = ""
    """The text for the model."""
    stdout: str = ""
    stderr: str = ""
    aggregated: str = ""
    """The kept output of both streams in order of arrival, not truncated."""
    total_bytes: int = 0
    omitted_bytes: int = 0
    """Dropped from the middle of the output."""
    lost_bytes: int = 0
    """Dropped before the output reached the client."""
    truncated: bool = False
    """Whether the text has less than the kept output."""
    warnings: tuple[str, ...] = ()
    failure: Failure | None = None

    def with_text(self, text: str) -> Self:
        """The record with another text for the model."""
        return replace(self, text=text)

    def to_json(self) -> dict[str, Json]:
        """As JSON."""
        return asdict(self)

    @classmethod
    def from_json(cls, value: Mapping[str, Json]) -> Self:
        """A record from the result of `to_json`."""
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
    """The result of a call, from `Toolset.call` or `from_record`."""

    call_id: str
    tool: str
    content: str
    """The text for the model."""
    success: bool
    exit_code: int | None
    """None while the command runs, and for a call without a command."""
    process_id: str | None
    """The id of a process that still runs, for `write_stdin`; None after its end."""
    stdout: str
    stderr: str
    aggregated_output: str
    """The kept output of both streams in order of arrival, not truncated."""
    duration: float
    """In seconds."""
    timed_out: bool
    truncated: bool
    """Whether the content has less than the whole output."""
    omitted_bytes: int
    """The size of output that is missing from `aggregated_output`."""
    failure: Failure | None
    """None after success."""
    record: CallRecord = field(repr=False, compare=False)

    @classmethod
    def from_record(cls, record: CallRecord) -> Self:
        """The result for a record."""
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
        """Return the result itself, if the call succeeded.

        Raises:
            ToolError: the error for the kind of failure; `TimedOut` and `SandboxDenied` have the output.
        """
        failure = self.failure
        if failure is None:
            return self
        raise _error(failure, self)

    def to_openai(self) -> dict[str, Json]:
        """The answer to a function call, for OpenAI's models."""
        return {"type": "function_call_output", "call_id": self.call_id, "output": self.content}

    def to_anthropic(self) -> dict[str, Json]:
        """The answer to a tool use, for Anthropic's models."""
        block: dict[str, Json] = {
            "type": "tool_result",
            "tool_use_id": self.call_id,
            "content": self.content,
        }
        return block if self.success else {**block, "is_error": True}

    def to_mcp(self) -> dict[str, Json]:
        """The result of `tools/call`, for the Model Context Protocol.

        Hosts show a model either `content` or `structuredContent`: both have the whole text.
        """
        return {
            "content": [{"type": "text", "text": self.content}],
            "structuredContent": {
                "output": self.content,
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
        """Output, process id and exit code only, for hosts that show sessions themselves."""
        return {
            "output": self.aggregated_output,
            "process_id": self.process_id,
            "exit_code": self.exit_code,
        }


def failed(record: CallRecord, kind: FailureKind, message: str, *, terminal: bool = False) -> CallRecord:
    """The record of a failed call; the message becomes its text if it has none."""
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
"""With the notice. Collectors cut or drop much longer attributes."""

PREVIEW_LINES = 50
"""With the notice. More would be too long for a log."""

TRUNCATION_NOTICE = "[... telemetry preview truncated ...]"
"""The last line of a truncated preview. Dashboards search for it, so it must not change."""


def preview(text: str) -> str:
    """The beginning of a text for logs and spans, with a notice on the last line if it is truncated.

    At most 2048 bytes of UTF-8 and 50 lines; no character is split.
    """
    data = text.encode("utf-8", "replace")
    lines = text.split("\n")
    if len(data) <= PREVIEW_BYTES and len(lines) - (lines[-1] == "") <= PREVIEW_LINES:
        return text
    room = PREVIEW_BYTES - len(TRUNCATION_NOTICE) - 1
    start = data[:room].decode("utf-8", "ignore")
    # One line is for the notice.
    kept = "\n".join(start.split("\n")[: PREVIEW_LINES - 1]).removesuffix("\n")
    return f"{kept}\n{TRUNCATION_NOTICE}" if kept else TRUNCATION_NOTICE
