"""The specs of the tools for a model: names, descriptions and schemas, in the forms of three model families.

The schemas are JSON Schema 2020-12, generated from the models in `arguments.py`. They show only the primary
form of each tool. `make schemas` writes them to `schemas/tools` in the repository.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from execclient.connection.connection import Json
from execclient.tools.arguments import (
    ApplyPatchArguments,
    Arguments,
    ExecCommandArguments,
    GlobArguments,
    GrepArguments,
    ListDirArguments,
    ReadFileArguments,
    RunShellCommandArguments,
    ShellArguments,
    ShellCommandArguments,
    WriteStdinArguments,
    shape_of,
)

Form = Literal["openai", "anthropic", "mcp"]
FORMS: tuple[Form, ...] = ("openai", "anthropic", "mcp")

ShellToolKind = Literal["default", "shell_command", "unified_exec", "disabled"]

SHOWN: Mapping[ShellToolKind, tuple[str, ...]] = {
    "default": ("shell",),
    "shell_command": ("shell_command",),
    "unified_exec": ("exec_command", "write_stdin"),
    "disabled": (),
}
"""The tools that a model is shown, by the kind of shell tool."""
_NOT_ADVERTISED = "with_additional_permissions"
"""A value of `sandbox_permissions` that is not supported; a call with it gets an answer of its own."""

_TIMEOUTS = (
    "Choose the time limit to fit the command: a few seconds to look at something, minutes for a build, an"
    " installation or a test suite. What runs into it is killed, and its work may be lost."
)
_SHELL_UNIX = (
    "Runs a program and returns its output. The program is started directly; to use a shell's syntax run one:"
    ' ["bash", "-lc", "<script>"]. Set `workdir` rather than using `cd`.'
)
_SHELL_WINDOWS = (
    "Runs a program and returns its output. The program is started directly; to use a shell's syntax run one:"
    ' ["powershell.exe", "-Command", "<script>"]. Set `workdir` rather than using `Set-Location`.'
)
_SHELL_COMMAND_UNIX = (
    'Runs a script in the user\'s shell, as bash -lc "<script>" would, and returns its output. Set `workdir`'
    " rather than using `cd`."
)
_SHELL_COMMAND_WINDOWS = (
    'Runs a script in the user\'s shell, as powershell.exe -Command "<script>" would, and returns its output.'
    " Set `workdir` rather than using `Set-Location`."
)
_EXEC_COMMAND = (
    "Runs a command in a shell and returns its output, or, if it still runs after `yield_time_ms`, what there"
    " is of it and a session ID to go on with by write_stdin. Set `tty` for programs that ask questions."
)
_WRITE_STDIN = (
    "Writes to a session of exec_command and returns what it has printed since the last look. Without `chars`"
    " it only waits for output."
)
_RUN_SHELL_COMMAND = "Runs a script with sh -c in the workspace and returns its output, errors included."


_APPLY_PATCH = (
    "Edits files. The patch begins with the line *** Begin Patch and ends with *** End Patch. Between them"
    " are *** Add File: PATH with lines that begin with +, *** Delete File: PATH, and *** Update File: PATH,"
    " perhaps followed by *** Move to: PATH, with chunks: a line @@, or @@ and a line of the file that"
    " stands above, then lines of the file that begin with a blank, lines to be removed with -, and lines to"
    " be added with +."
)
_READ_FILE = "Reads a text file, or a range of its lines. The answer says where to go on if there is more."
_LIST_DIR = "Lists the names in a folder, those of folders with a slash at the end."
_GREP = "Finds lines in files, as PATH:LINE:TEXT. Hidden files are searched, too, but not .git."
_GLOB = "Finds files by their names, in all folders below one, but not in .git."


@dataclass(frozen=True, slots=True)
class ToolSpec:
    """The spec of a tool for a model."""

    name: str
    description: str
    model: type[Arguments]
    left_out: frozenset[str] = frozenset()
    """Fields of the arguments that are not shown."""

    def parameters(self) -> dict[str, Json]:
        """The schema of the arguments."""
        made = self.model.model_json_schema()
        shown = [each for each in shape_of(self.model).members if each.advertised]
        shown = [each for each in shown if each.name not in self.left_out]
        return {
            "type": "object",
            "properties": {each.name: _property(made["properties"][each.name]) for each in shown},
            "required": [each.name for each in shown if each.required],
            "additionalProperties": False,
        }

    def openai(self) -> dict[str, Json]:
        """The spec for OpenAI's models and compatible ones."""
        return {
            "type": "function",
            "name": self.name,
            "description": self.description,
            "strict": False,
            "parameters": self.parameters(),
        }

    def anthropic(self) -> dict[str, Json]:
        """The spec for Anthropic's models."""
        return {"name": self.name, "description": self.description, "input_schema": self.parameters()}

    def mcp(self) -> dict[str, Json]:
        """The spec for clients of the Model Context Protocol."""
        return {"name": self.name, "description": self.description, "inputSchema": self.parameters()}

    def form(self, form: Form) -> dict[str, Json]:
        """The spec in a form that is given by its name."""
        match form:
            case "openai":
                return self.openai()
            case "anthropic":
                return self.anthropic()
            case "mcp":
                return self.mcp()


def all_specs(*, platform: str = "linux", request_rule: bool = False) -> dict[str, ToolSpec]:
    """Every tool, by name.

    Args:
        platform: the platform of the executor, as `sys.platform` names it.
        request_rule: whether a model may propose rules; if not, `prefix_rule` is not shown.
    """
    windows = platform == "win32"
    left_out = frozenset[str]() if request_rule else frozenset({"prefix_rule"})
    shell = _SHELL_WINDOWS if windows else _SHELL_UNIX
    shell_command = _SHELL_COMMAND_WINDOWS if windows else _SHELL_COMMAND_UNIX
    made = (
        ToolSpec("shell", f"{shell} {_TIMEOUTS}", ShellArguments, left_out),
        ToolSpec("shell_command", f"{shell_command} {_TIMEOUTS}", ShellCommandArguments, left_out),
        ToolSpec("exec_command", _EXEC_COMMAND, ExecCommandArguments, left_out),
        ToolSpec("write_stdin", _WRITE_STDIN, WriteStdinArguments),
        ToolSpec("apply_patch", _APPLY_PATCH, ApplyPatchArguments),
        ToolSpec("run_shell_command", f"{_RUN_SHELL_COMMAND} {_TIMEOUTS}", RunShellCommandArguments),
        ToolSpec("read_file", _READ_FILE, ReadFileArguments),
        ToolSpec("list_dir", _LIST_DIR, ListDirArguments),
        ToolSpec("grep", _GREP, GrepArguments),
        ToolSpec("glob", _GLOB, GlobArguments),
    )
    return {spec.name: spec for spec in made}


def specs(
    shell_type: ShellToolKind = "unified_exec", *, platform: str = "linux", request_rule: bool = False
) -> tuple[ToolSpec, ...]:
    """The tools that a model is shown; for the arguments, see `all_specs`."""
    every = all_specs(platform=platform, request_rule=request_rule)
    return tuple(every[name] for name in SHOWN[shell_type])


def _property(made: Mapping[str, Json]) -> dict[str, Json]:
    """A member's schema without pydantic's titles, and without null if null means absence."""
    entry = {name: value for name, value in made.items() if name not in ("title", "anyOf")}
    for choice in made.get("anyOf", ()):
        if choice != {"type": "null"}:
            entry = {**choice, **entry}
    if entry.get("default", ...) is None:
        del entry["default"]
    if "enum" in entry:
        entry["enum"] = [each for each in entry["enum"] if each != _NOT_ADVERTISED]
    return {name: entry[name] for name in sorted(entry, key=_order)}


_KEYS = ("type", "description", "enum", "items", "minItems", "minimum", "maximum", "default")


def _order(key: str) -> int:
    return _KEYS.index(key)
