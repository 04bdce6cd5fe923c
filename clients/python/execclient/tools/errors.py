"""Why a tool call did not give what it should: the branch that tools add to the tree in `execclient.errors`.

    ExecServerError
    └── ToolError                  tool_error
        ├── RespondToModel         respond_to_model     the model reads the text and may try again
        │   ├── ArgumentError      argument_error       its arguments cannot be read
        │   └── UnsupportedCall    unsupported_call     there is no tool of that name, or not for such a call
        ├── Rejected               tool_rejected        a policy or a person said no
        ├── TurnAborted            turn_aborted         a person ended the whole turn
        ├── TimedOut               tool_timed_out       the command ran into its time limit
        ├── SandboxDenied          sandbox_denied       the sandbox was in the command's way
        ├── KilledBySignal         killed_by_signal     a signal ended the command
        ├── IoFailure              io_failure           the command did not start, or was lost
        └── PolicyChanged          policy_changed       the rules are no longer those that were approved

They are not in `execclient.errors`, since only those meet them who import `execclient.tools`.
"""

from __future__ import annotations

from execclient.errors import ExecServerError

ARGUMENTS_REFUSED = "failed to parse function arguments: "
"""What the text for the model begins with. A contract: models were trained on it."""


class ToolError(ExecServerError):
    """A tool call failed.

    Attributes:
        message: the reason, for whoever is to read it; also the error's text.
    """

    code = "tool_error"

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


class RespondToModel(ToolError):
    """The call cannot be carried out as it is; the message goes to the model, which may try another one."""

    code = "respond_to_model"


class ArgumentError(RespondToModel):
    """The arguments of a call cannot be read.

    Attributes:
        reason: the message without its fixed beginning: what is wrong, and where in the text.
    """

    code = "argument_error"

    def __init__(self, reason: str) -> None:
        super().__init__(ARGUMENTS_REFUSED + reason)
        self.reason = reason


class UnsupportedCall(RespondToModel):
    """There is no tool of that name, or the one that there is does not take such a call."""

    code = "unsupported_call"


class Rejected(ToolError):
    """The call was refused, and nothing was started for it; of a second attempt only that one.

    Attributes:
        before: whether it was refused for what it asks for, before anybody looked at the command.
    """

    code = "tool_rejected"

    def __init__(self, reason: str, *, before: bool = False) -> None:
        super().__init__(reason)
        self.before = before


class TurnAborted(ToolError):
    """A person wants the whole turn to end, and not only this call. What was asked about was not started."""

    code = "turn_aborted"


class TimedOut(ToolError, TimeoutError):
    """The command ran into its time limit and was killed with all that it had started.

    Attributes:
        output: what it had printed by then.
    """

    code = "tool_timed_out"

    def __init__(self, message: str, output: str = "") -> None:
        super().__init__(message)
        self.output = output


class SandboxDenied(ToolError):
    """The sandbox was in the command's way.

    Attributes:
        output: what the command printed.
    """

    code = "sandbox_denied"

    def __init__(self, message: str, output: str = "") -> None:
        super().__init__(message)
        self.output = output


class KilledBySignal(ToolError):
    """A signal ended the command.

    Attributes:
        signal: its number.
    """

    code = "killed_by_signal"

    def __init__(self, message: str, signal: int) -> None:
        super().__init__(message)
        self.signal = signal


class IoFailure(ToolError):
    """The command did not start, or was lost on its way."""

    code = "io_failure"


class PolicyChanged(ToolError):
    """The rules are no longer those under which the call was judged: judge it anew.

    Attributes:
        expected: the revision that it was judged under.
        actual: the revision that holds now.
    """

    code = "policy_changed"

    def __init__(self, expected: str, actual: str) -> None:
        super().__init__(
            f"the rules changed after this was judged (revision {expected}, now {actual}): judge it again"
        )
        self.expected = expected
        self.actual = actual
