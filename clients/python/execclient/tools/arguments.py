"""The arguments of the tools, each as a pydantic model.

Rules kept here:

1. The fields define the arguments: the schemas (`specs.py`), the reader and its messages are made from them.
2. An unknown member is refused by name. A misspelt one, even `sandbox_permissions`, would otherwise be
   ignored.
3. Values are kept unchanged: nothing is split, quoted or joined. Null means absent where it is allowed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from types import NoneType, UnionType
from typing import Annotated, Any, ClassVar, Literal, Self, TypeVar, Union, get_args, get_origin

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from execclient.tools.errors import ArgumentError
from execclient.tools.json_shapes import (
    BOOLEAN,
    I32,
    TEXT,
    U64,
    USIZE,
    Anything,
    Enumeration,
    Integer,
    ListOf,
    Member,
    Nullable,
    Object,
    Shape,
    ShapeError,
    read_text,
)
from execclient.tools.json_text import JsonTextError
from execprotocol.limits import MAX_CONTEXT_LINES


class Arguments(BaseModel):
    """The base of the arguments of all tools. Immutable."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    reference_struct: ClassVar[tuple[str, int]]
    """The name of the reference's struct in messages, and the number of its members."""
    read_first: ClassVar[tuple[str, ...]] = ()
    """The members that the reference reads separately, before all members: errors in them, or in the text as
    such, are reported before errors in the others."""


@dataclass(frozen=True, slots=True)
class UnlessGiven:
    """Marks a field that is required unless another field is given."""

    other: str


@dataclass(frozen=True, slots=True)
class AlsoNamed:
    """Adds another name that models use for a field."""

    name: str


class NullIsAbsent:
    """Marks a field for which null means the same as absence, though its type has no null."""


class Unadvertised:
    """Marks a field that is accepted but not shown to models: a second form of another field."""


RequestedPermissions = Literal["use_default", "require_escalated", "with_additional_permissions"]

EXEC_YIELD_MS = 10_000
"""How long `exec_command` waits: most commands of a model end within that time."""
WRITE_YIELD_MS = 250
"""How long `write_stdin` waits: a program at a prompt answers within that time."""
RUN_TIMEOUT_SECONDS = 120
"""The time limit of `run_shell_command`: for a build or a test run of moderate size."""

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

Argv = tuple[str, ...]
_Workdir = Annotated[str | None, Field(description=_WORKDIR)]
_TimeoutMs = Annotated[int | None, U64, AlsoNamed("timeout"), Field(ge=0, description=_TIMEOUT_MS)]
_Permissions = Annotated[RequestedPermissions, Field(description=_PERMISSIONS)]
_Justification = Annotated[str | None, Field(description=_JUSTIFICATION)]
_PrefixRule = Annotated[Argv | None, Field(description=_PREFIX_RULE)]


class _CommandArguments(Arguments):
    """The base of the arguments of tools that start a command."""

    @field_validator("workdir", check_fields=False)
    @classmethod
    def _no_empty_workdir(cls, workdir: str | None) -> str | None:
        return workdir or None


class ShellArguments(_CommandArguments):
    """The arguments of `shell`, `container.exec` and `local_shell`: a program with its arguments."""

    reference_struct = ("ShellToolCallParams", 7)

    command: Annotated[
        Argv,
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
    """The arguments of `shell_command`: a script for the user's shell."""

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
    """The arguments of `exec_command`: a script (`cmd`), or a program with its arguments (`command`)."""

    reference_struct = ("ToolEnvironmentArgs", 1)
    read_first = ("environment_id",)

    cmd: Annotated[str | None, UnlessGiven("command"), Field(description="The shell command to run.")] = None
    command: Annotated[Argv | None, Unadvertised()] = None
    process_id: Annotated[str | None, Unadvertised()] = None
    """The caller's id for a process that outlives the call."""
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
        """The script for a shell; None in the other form."""
        return self.cmd

    @property
    def argv(self) -> Argv | None:
        """The command to run without a shell; None in the other form."""
        return self.command


class WriteStdinArguments(Arguments):
    """The arguments of `write_stdin`: input for a process of `exec_command`, or none to read its output."""

    reference_struct = ("TerminalSessionArgs", 1)
    read_first = ("session_id", "process_id")

    session_id: Annotated[
        int | None,
        I32,
        UnlessGiven("process_id"),
        Field(description="The session, by the number that exec_command gave."),
    ] = None
    process_id: Annotated[str | None, Unadvertised()] = None
    """The session by the id that the caller chose."""
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
        """The name of the session, from either field."""
        return self.process_id if self.process_id is not None else str(self.session_id)

    @property
    def data(self) -> str:
        """The input; empty for none."""
        return self.chars


class RunShellCommandArguments(Arguments):
    """The arguments of `run_shell_command`: a script for `sh`, and a time limit."""

    reference_struct = ("RunShellCommandArguments", 2)

    cmd: Annotated[str, Field(description="The script, run by sh -c in the workspace.")]
    timeout: Annotated[
        int,
        SECONDS,
        NullIsAbsent(),
        Field(ge=1, description="Seconds the command may take before it is killed; the host may allow less."),
    ] = RUN_TIMEOUT_SECONDS


class ApplyPatchArguments(Arguments):
    """The arguments of `apply_patch` as a function. Other models send the plain patch."""

    reference_struct = ("ApplyPatchToolArgs", 1)

    input: Annotated[str, Field(description="The whole patch, from *** Begin Patch to *** End Patch.")]


MAX_DEPTH = 16
"""Of `list_dir`: deeper folders are listed by a call of their own."""

IGNORED = "Whether to include files that .gitignore and the like exclude."

_FILE_PATH = "relative to the working directory, or absolute"
_GLOB = (
    "A glob without / applies to names at any depth, one with / to paths below the folder: *.py, or"
    " src/**/*.{ts,tsx}. Names that begin with a dot need a glob with the dot."
)
_FILE_OUTPUT = "Tokens to return at most; the host may allow less."
_TopFolder = Annotated[
    str,
    NullIsAbsent(),
    Field(description=f"The folder, {_FILE_PATH}; the working directory if absent."),
]
_FromOne = Integer("a whole number, 1 or more", 1, 2**31 - 1)
_FileTokens = Annotated[int | None, _FromOne, Field(ge=1, description=_FILE_OUTPUT)]
_EnvironmentId = Annotated[str | None, Unadvertised()]


class ReadFileArguments(Arguments):
    """The arguments of `read_file`: a file, and a range of its lines."""

    reference_struct = ("ReadFileArguments", 5)

    path: Annotated[str, Field(description=f"The file, {_FILE_PATH}.")]
    offset: Annotated[
        int, _FromOne, NullIsAbsent(), Field(ge=1, description="The first line to read, counted from 1.")
    ] = 1
    limit: Annotated[
        int | None, _FromOne, Field(ge=1, description="The number of lines; as many as fit if absent.")
    ] = None
    max_output_tokens: _FileTokens = None
    environment_id: _EnvironmentId = None


class ListDirArguments(Arguments):
    """The arguments of `list_dir`: a folder, and how much of it."""

    reference_struct = ("ListDirArguments", 5)

    path: _TopFolder = "."
    depth: Annotated[
        int,
        Integer(f"a whole number from 1 to {MAX_DEPTH}", 1, MAX_DEPTH),
        NullIsAbsent(),
        Field(ge=1, le=MAX_DEPTH, description="Levels to list; 1 for the names in the folder only."),
    ] = 1
    offset: Annotated[
        int, _FromOne, NullIsAbsent(), Field(ge=1, description="The first entry to return, counted from 1.")
    ] = 1
    max_output_tokens: _FileTokens = None
    environment_id: _EnvironmentId = None


class GrepArguments(Arguments):
    """The arguments of `grep`: a pattern, the files to search, and the form of the result."""

    reference_struct = ("GrepArguments", 11)

    pattern: Annotated[str, Field(description="What to find in a line.")]
    path: Annotated[
        str,
        NullIsAbsent(),
        Field(description=f"The folder or file, {_FILE_PATH}; the working directory if absent."),
    ] = "."
    glob: Annotated[str | None, Field(description=f"The files to search. {_GLOB}")] = None
    regex: Annotated[
        bool,
        NullIsAbsent(),
        Field(description="Whether the pattern is a regular expression of Rust, or plain text."),
    ] = True
    ignore_case: Annotated[bool, NullIsAbsent(), Field(description="Whether case does not matter.")] = False
    multiline: Annotated[
        bool, NullIsAbsent(), Field(description="Whether a match of the regular expression may span lines.")
    ] = False
    context_lines: Annotated[
        int,
        Integer(f"a whole number from 0 to {MAX_CONTEXT_LINES}", 0, MAX_CONTEXT_LINES),
        NullIsAbsent(),
        Field(ge=0, le=MAX_CONTEXT_LINES, description="Lines to show before and after each match."),
    ] = 0
    output: Annotated[
        Literal["lines", "files"],
        NullIsAbsent(),
        Field(description='"lines" for the matching lines, "files" for the paths of their files only.'),
    ] = "lines"
    ignored: Annotated[bool, NullIsAbsent(), Field(description=IGNORED)] = False
    max_output_tokens: _FileTokens = None
    environment_id: _EnvironmentId = None


class GlobArguments(Arguments):
    """The arguments of `glob`: names of files, and where."""

    reference_struct = ("GlobArguments", 5)

    glob: Annotated[str, Field(description=f"The names of the files. {_GLOB}")]
    path: _TopFolder = "."
    ignored: Annotated[bool, NullIsAbsent(), Field(description=IGNORED)] = False
    max_output_tokens: _FileTokens = None
    environment_id: _EnvironmentId = None


Parsed = TypeVar("Parsed", bound=Arguments)


def parse(model: type[Parsed], arguments: str | bytes | Mapping[str, object]) -> Parsed:
    """Parse the arguments of a call.

    Args:
        model: the class of the tool's arguments.
        arguments: the text from the model; or parsed JSON, for which errors have no line and column.

    Raises:
        ArgumentError: the arguments are not valid; the message is for the model.
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


# -- from fields to shapes

_SHAPES: dict[object, Shape[object]] = {str: TEXT, bool: BOOLEAN, Any: Anything()}


@cache
def first_shape_of(model: type[Arguments]) -> Object | None:
    """The shape of the members that are read first; None if there are none."""
    if not model.read_first:
        return None
    first = tuple(member for member in shape_of(model).members if member.name in model.read_first)
    return Object(*model.reference_struct, first, ignores_others=True)


@cache
def shape_of(model: type[Arguments]) -> Object:
    """The shape by which a tool's arguments are read."""
    members = []
    for name, field in model.model_fields.items():
        marks = field.metadata
        shape = _shape(field.annotation, marks)
        instead = next((each.other for each in marks if isinstance(each, UnlessGiven)), None)
        if instead is not None and isinstance(shape, Nullable):
            shape = shape.shape  # null is no value here: leave the field out to give the other one
        members.append(
            Member(
                name,
                shape,
                required=field.is_required() or instead is not None,
                aliases=tuple(each.name for each in marks if isinstance(each, AlsoNamed)),
                instead=instead,
                advertised=not any(isinstance(each, Unadvertised) for each in marks),
            )
        )
    return Object(*model.reference_struct, tuple(members))


def _shape(annotation: Any, marks: Sequence[object]) -> Shape[object]:
    if get_origin(annotation) in (UnionType, Union):
        (inner,) = (each for each in get_args(annotation) if each is not NoneType)
        return Nullable(_shape(inner, marks))
    if any(isinstance(each, NullIsAbsent) for each in marks):
        return Nullable(_shape(annotation, [each for each in marks if not isinstance(each, NullIsAbsent)]))
    integer = next((each for each in marks if isinstance(each, Integer)), None)
    if integer is not None:
        return integer
    if get_origin(annotation) is Literal:
        return Enumeration(get_args(annotation))
    if get_origin(annotation) is tuple:
        return ListOf(TEXT)
    return _SHAPES[annotation]
