"""The arguments of the tools, each tool's as a model.

Rules kept here:

1. What a model may send stands in the fields and nowhere else: the schemas (`specs.py`), the reader and its
   messages are made from them.
2. A member that is not known is refused by name. One that was misspelt would otherwise do nothing, and be it
   `sandbox_permissions`, unseen.
3. What is read is kept as it is: nothing is split, quoted or joined. Null means absent where it is allowed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self, TypeVar

from pydantic import Field, ValidationError, field_validator, model_validator

from execclient.tools.argument_shapes import (
    AlsoNamed,
    Arguments,
    NullIsAbsent,
    Unadvertised,
    UnlessGiven,
    first_shape_of,
    shape_of,
)
from execclient.tools.errors import ArgumentError
from execclient.tools.json_shapes import I32, U64, USIZE, Integer, ShapeError, read_text
from execclient.tools.json_text import JsonTextError

Argv = tuple[str, ...]
SandboxPermissions = Literal["use_default", "require_escalated", "with_additional_permissions"]

EXEC_YIELD_MS = 10_000
"""How long `exec_command` waits for the end of a command: most of a model's commands are over by then."""
WRITE_YIELD_MS = 250
"""How long `write_stdin` waits: a program at a prompt answers within that."""
RUN_TIMEOUT_SECONDS = 120
"""Of `run_shell_command`: a build or a test run of moderate size."""

SECONDS = Integer("a whole number of seconds, 1 or more", 1, 2**32 - 1)


_TIMEOUT_MS = "Milliseconds the command may take; 10000 if absent. It is killed then, with all it started."
_WORKDIR = "Working directory, relative to the session's; that one if absent."
_JUSTIFICATION = (
    'With sandbox_permissions "require_escalated" only: one question to the user, saying what the command is'
    " for and why the sandbox is in its way."
)
_PREFIX_RULE = (
    'With sandbox_permissions "require_escalated" only: the first words of the command, as a rule that lets'
    ' commands like it run without asking from now on, such as ["git", "pull"].'
)
_PERMISSIONS = (
    'Leave it out to run in the sandbox. "require_escalated" asks the user to let the command run without it.'
)
_OUTPUT = "Tokens of output to return at most; the middle of longer output is left out."

_Words = tuple[str, ...]
_Workdir = Annotated[str | None, Field(description=_WORKDIR)]
_TimeoutMs = Annotated[int | None, U64, AlsoNamed("timeout"), Field(ge=0, description=_TIMEOUT_MS)]
_Permissions = Annotated[SandboxPermissions, Field(description=_PERMISSIONS)]
_Justification = Annotated[str | None, Field(description=_JUSTIFICATION)]
_PrefixRule = Annotated[_Words | None, Field(description=_PREFIX_RULE)]


class _CommandArguments(Arguments):
    """What the tools have in common that start a command under a policy."""

    @field_validator("workdir", check_fields=False)
    @classmethod
    def _no_empty_workdir(cls, workdir: str | None) -> str | None:
        return workdir or None


class ShellArguments(_CommandArguments):
    """Of `shell`, also as `container.exec` and `local_shell`: a program and its arguments."""

    reference_struct = ("ShellToolCallParams", 7)

    command: Annotated[
        _Words,
        Field(
            description="The program and its arguments, run as they are.", json_schema_extra={"minItems": 1}
        ),
    ]
    workdir: _Workdir = None
    timeout_ms: _TimeoutMs = None
    sandbox_permissions: Annotated[_Permissions, NullIsAbsent()] = "use_default"
    justification: _Justification = None
    prefix_rule: _PrefixRule = None
    additional_permissions: Annotated[Any, Unadvertised()] = None

    @field_validator("command")
    @classmethod
    def _a_program(cls, command: Argv) -> Argv:
        return _command(command)


class ShellCommandArguments(_CommandArguments):
    """Of `shell_command`: a script for the user's shell."""

    reference_struct = ("ShellCommandToolCallParams", 8)

    command: Annotated[str, Field(description="The script to run in the user's shell.")]
    workdir: _Workdir = None
    login: Annotated[
        bool,
        NullIsAbsent(),
        Field(description="Whether the shell is a login shell, which reads the profile."),
    ] = True
    timeout_ms: _TimeoutMs = None
    sandbox_permissions: Annotated[_Permissions, NullIsAbsent()] = "use_default"
    justification: _Justification = None
    prefix_rule: _PrefixRule = None
    additional_permissions: Annotated[Any, Unadvertised()] = None


class ExecCommandArguments(_CommandArguments):
    """Of `exec_command`, in either form: a script (`cmd`), or a program and its arguments (`command`)."""

    reference_struct = ("ToolEnvironmentArgs", 1)
    read_first = ("environment_id",)

    cmd: Annotated[str | None, UnlessGiven("command"), Field(description="The shell command to run.")] = None
    command: Annotated[_Words | None, Unadvertised()] = None
    process_id: Annotated[str | None, Unadvertised()] = None
    """What the caller wants the process to be called, if it is to outlive the call."""
    workdir: _Workdir = None
    shell: Annotated[
        str | None, Field(description="The shell to run it in, by path; the user's if absent.")
    ] = None
    login: Annotated[
        bool,
        NullIsAbsent(),
        Field(description="Whether the shell is a login shell, which reads the profile."),
    ] = True
    tty: Annotated[
        bool,
        Field(
            description="Whether the command gets a terminal: needed for what asks questions or takes input."
        ),
    ] = False
    yield_time_ms: Annotated[
        int,
        U64,
        Field(ge=0, description="Milliseconds to wait for output before returning, from 250 to 30000."),
    ] = EXEC_YIELD_MS
    max_output_tokens: Annotated[int | None, USIZE, Field(ge=0, description=_OUTPUT)] = None
    sandbox_permissions: Annotated[_Permissions, NullIsAbsent()] = "use_default"
    justification: _Justification = None
    prefix_rule: _PrefixRule = None
    additional_permissions: Annotated[Any, Unadvertised()] = None
    environment_id: Annotated[str | None, Unadvertised()] = None

    @model_validator(mode="after")
    def _one_form(self) -> Self:
        if self.cmd is None and self.command is None:
            raise ValueError("missing field `cmd`")
        if self.command is None:
            return self
        if self.cmd is not None:
            raise ValueError("`cmd` and `command` are two forms of the same: give one of them")
        _command(self.command)
        for name in ("shell", "login"):
            if name in self.model_fields_set:
                raise ValueError(f"`{name}` belongs to `cmd`: `command` is run as it is, without a shell")
        return self

    @property
    def script(self) -> str | None:
        """What a shell is to run; None in the other form."""
        return self.cmd

    @property
    def argv(self) -> Argv | None:
        """What is to be run without a shell; None in the other form."""
        return self.command


class WriteStdinArguments(Arguments):
    """Of `write_stdin`: input for a process of `exec_command`, or a look at its output."""

    reference_struct = ("TerminalSessionArgs", 1)
    read_first = ("session_id", "process_id")

    session_id: Annotated[
        int | None,
        I32,
        UnlessGiven("process_id"),
        Field(description="The session, by the number that exec_command gave."),
    ] = None
    process_id: Annotated[str | None, Unadvertised()] = None
    """The same, by the name that the caller chose."""
    chars: Annotated[
        str,
        AlsoNamed("input"),
        Field(description="What to write to its standard input; empty to wait for output only."),
    ] = ""
    yield_time_ms: Annotated[
        int,
        U64,
        Field(
            ge=0, description="Milliseconds to wait for output, from 250 to 30000; without chars from 5000."
        ),
    ] = WRITE_YIELD_MS
    max_output_tokens: Annotated[int | None, USIZE, Field(ge=0, description=_OUTPUT)] = None

    @model_validator(mode="after")
    def _one_session(self) -> Self:
        if self.session_id is None and self.process_id is None:
            raise ValueError("missing field `session_id`")
        if self.session_id is not None and self.process_id is not None:
            raise ValueError("`session_id` and `process_id` both name the session: give one of them")
        return self

    @property
    def session(self) -> str:
        """The session's name, of either form."""
        return self.process_id if self.process_id is not None else str(self.session_id)

    @property
    def data(self) -> str:
        """What to write; empty for nothing."""
        return self.chars


class RunShellCommandArguments(Arguments):
    """Of `run_shell_command`: a script for `sh`, and how long it may take."""

    reference_struct = ("RunShellCommandArguments", 2)

    cmd: Annotated[str, Field(description="The script, run by sh -c in the workspace.")]
    timeout: Annotated[
        int,
        SECONDS,
        NullIsAbsent(),
        Field(ge=1, description="Seconds the command may take before it is killed; the host may allow less."),
    ] = RUN_TIMEOUT_SECONDS


class ApplyPatchArguments(Arguments):
    """Of `apply_patch`, for models that call it as a function; others send the patch as it is."""

    reference_struct = ("ApplyPatchToolArgs", 1)

    input: Annotated[str, Field(description="The whole patch, from *** Begin Patch to *** End Patch.")]


Parsed = TypeVar("Parsed", bound=Arguments)


def parse(model: type[Parsed], arguments: str | bytes | Mapping[str, object]) -> Parsed:
    """The arguments of a call.

    Args:
        model: the tool's.
        arguments: as the model sent them; or read before, and then errors name no line and column.

    Raises:
        ArgumentError: they are not what the tool takes; the message is for the model.
    """
    shape = shape_of(model)
    try:
        if isinstance(arguments, Mapping):
            values = shape.accept(arguments)
        else:
            first = first_shape_of(model)
            if first is not None:
                read_text(first, arguments)
            values = read_text(shape, arguments)
    except (JsonTextError, ShapeError) as error:
        raise ArgumentError(str(error)) from None
    given = {name: value for name, value in values.items() if value is not None}
    try:
        return model.model_validate(given)
    except ValidationError as error:
        raise ArgumentError(_reason(error)) from None


def _command(command: Argv) -> Argv:
    if not command or not command[0]:
        raise ValueError("`command` is empty: its first word must be the program to run")
    return command


def _reason(error: ValidationError) -> str:
    first = error.errors()[0]
    cause = first.get("ctx", {}).get("error")
    return str(cause) if cause is not None else f"`{'.'.join(map(str, first['loc']))}`: {first['msg']}"
