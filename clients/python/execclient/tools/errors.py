"""Errors of tool calls: a branch of the tree in `execclient.errors`.

    ExecServerError
    └── ToolError                  tool_error
        ├── RespondToModel         respond_to_model     the model reads the text and may try again
        │   ├── ArgumentError      argument_error       its arguments cannot be read
        │   └── UnsupportedCall    unsupported_call     there is no tool of that name for such a call
        ├── Rejected               tool_rejected        a policy or a person refused the call
        ├── TurnAborted            turn_aborted         a person ended the whole turn
        ├── TimedOut               tool_timed_out       the command reached its time limit
        ├── SandboxDenied          sandbox_denied       the sandbox denied something to the command
        ├── KilledBySignal         killed_by_signal     a signal ended the command
        ├── IoFailure              io_failure           the command did not start, or was lost
        └── PolicyChanged          policy_changed       the rules are no longer those that were approved

They are not in `execclient.errors`, since only users of `execclient.tools` meet them.
"""

from __future__ import annotations

from execclient.errors import ExecServerError

ARGUMENTS_REFUSED = "failed to parse function arguments: "
"""The beginning of the text for the model. A contract: models were trained on it."""


class ToolError(ExecServerError):
    """A tool call failed.

    Attributes:
        message: the reason; also the text of the error.
    """

    code = "tool_error"

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


class RespondToModel(ToolError):
    """The call cannot be carried out; the message goes to the model, which may try another call."""

    code = "respond_to_model"


class ArgumentError(RespondToModel):
    """The arguments of a call cannot be read.

    Attributes:
        reason: the message without its fixed beginning: the error, and its place in the text.
    """

    code = "argument_error"

    def __init__(self, reason: str) -> None:
        super().__init__(ARGUMENTS_REFUSED + reason)
        self.reason = reason


class UnsupportedCall(RespondToModel):
    """There is no tool of that name, or it does not take such a call."""

    code = "unsupported_call"


class Rejected(ToolError):
    """The call was refused and nothing was started. A refused second attempt was not started.

    Attributes:
        before: whether it was refused for the permissions that it asks for, before the command was judged.
    """

    code = "tool_rejected"

    def __init__(self, reason: str, *, before: bool = False) -> None:
        super().__init__(reason)
        self.before = before


class TurnAborted(ToolError):
    """A person ended the whole turn, not only this call. The request was not started."""

    code = "turn_aborted"


class TimedOut(ToolError, TimeoutError):
    """The command reached its time limit and was killed with all its descendants.

    Attributes:
        output: its output until then.
    """

    code = "tool_timed_out"

    def __init__(self, message: str, output: str = "") -> None:
        super().__init__(message)
        self.output = output


class SandboxDenied(ToolError):
    """The sandbox denied something to the command.

    Attributes:
        output: the output of the command.
    """

    code = "sandbox_denied"

    def __init__(self, message: str, output: str = "") -> None:
        super().__init__(message)
        self.output = output


class KilledBySignal(ToolError):
    """A signal ended the command.

    Attributes:
        signal: the number of the signal.
    """

    code = "killed_by_signal"

    def __init__(self, message: str, signal: int) -> None:
        super().__init__(message)
        self.signal = signal


class IoFailure(ToolError):
    """The command did not start, or was lost."""

    code = "io_failure"


class PolicyChanged(ToolError):
    """The rules changed after the call was judged: judge it again.

    Attributes:
        expected: the revision under which it was judged.
        actual: the current revision.
    """

    code = "policy_changed"

    def __init__(self, expected: str, actual: str) -> None:
        super().__init__(
            f"the rules changed after this was judged (revision {expected}, now {actual}): judge it again"
        )
        self.expected = expected
        self.actual = actual
