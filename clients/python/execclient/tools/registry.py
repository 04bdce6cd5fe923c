"""The registry of tools: handlers by name, and the specs that a model is shown.

Rules kept here:

1. One handler may have several names (`shell`, `container.exec`, `local_shell`).
2. A tool that a model is not shown still works when it is called, so that old prompts work. Only if the host
   disables the shell tools, they cannot be called.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Generic, Literal, Protocol, TypeVar

from execclient.tools.errors import UnsupportedCall
from execclient.tools.exec_text import unsupported_call
from execclient.tools.payloads import (
    CustomPayload,
    FunctionOutput,
    FunctionPayload,
    LocalShellPayload,
    McpOutput,
    McpPayload,
    ToolOutput,
    ToolPayload,
    function_call_output,
    output_from_json,
    payload_from_json,
)
from execclient.tools.specs import SHOWN, ShellToolKind, ToolSpec

OutputT = TypeVar("OutputT")
OutputT_co = TypeVar("OutputT_co", covariant=True)

ToolKind = Literal["function", "custom", "mcp"]
"""The kind of payload that a tool takes."""

SHELL_TOOLS = frozenset(
    {
        *("shell", "container.exec", "local_shell", "shell_command"),
        *("exec_command", "write_stdin", "run_shell_command"),
    }
)
"""The tools that a host disables together."""

__all__ = [
    "SHELL_TOOLS",
    "CustomPayload",
    "FunctionOutput",
    "FunctionPayload",
    "LocalShellPayload",
    "McpOutput",
    "McpPayload",
    "Registry",
    "ToolHandler",
    "ToolInvocation",
    "ToolKind",
    "ToolOutput",
    "ToolPayload",
    "function_call_output",
    "output_from_json",
    "payload_from_json",
]


@dataclass(frozen=True, slots=True)
class ToolInvocation:
    """One call, with objects for its handler, of the types that the handler expects."""

    call_id: str
    tool_name: str
    """The name by which it was called: one of the handler's names."""
    payload: ToolPayload
    toolset: object = None
    """The session: its executor, policies and processes."""
    turn: object = None
    """The settings of this turn."""
    tracker: object = None
    """Collects the changes to files of the turn."""


class ToolHandler(Protocol[OutputT_co]):
    """Carries out the calls of a tool."""

    @property
    def kind(self) -> ToolKind:
        """The kind of the tool."""
        ...

    def matches_kind(self, payload: ToolPayload) -> bool:
        """Whether the tool takes such a payload."""
        ...

    async def is_mutating(self, invocation: ToolInvocation) -> bool:
        """Whether the call may change something; True if that is unknown.

        Calls that change nothing may run at the same time.
        """
        ...

    async def handle(self, invocation: ToolInvocation) -> OutputT_co:
        """Carry out the call.

        Raises:
            ToolError: there is no result.
        """
        ...


@dataclass(frozen=True, slots=True)
class _Entry(Generic[OutputT]):
    handler: ToolHandler[OutputT]
    spec: ToolSpec | None
    exposed: bool


class Registry(Generic[OutputT]):
    """Handlers by name.

    Args:
        shell_type: the shell tools that a model is shown; with `disabled`, none can be called.
    """

    def __init__(self, shell_type: ShellToolKind = "unified_exec") -> None:
        self.shell_type = shell_type
        self._entries: dict[str, _Entry[OutputT]] = {}

    def register(
        self,
        handler: ToolHandler[OutputT],
        names: Collection[str],
        spec: ToolSpec | None = None,
        exposed: bool | None = None,
    ) -> None:
        """Add a tool.

        Args:
            handler: carries out its calls.
            names: all names of the tool; the name of the spec is one of them.
            spec: the spec for a model; None for a tool that no model is shown.
            exposed: whether a model is shown the tool; by default as `shell_type` says.

        Raises:
            ValueError: a name is taken, there is no name, or the spec has another name.
        """
        if isinstance(names, str) or not names:
            raise ValueError("names: a list with at least one name is needed")
        taken = [name for name in names if name in self._entries]
        if taken:
            raise ValueError(f"names: {', '.join(taken)}: already registered")
        if spec is not None and spec.name not in names:
            raise ValueError(f"spec: it is for {spec.name}, which is none of the names")
        for name in names:
            own = spec if spec is not None and spec.name == name else None
            shown = name in SHOWN[self.shell_type] if exposed is None else exposed
            self._entries[name] = _Entry(handler, own, shown)

    @property
    def names(self) -> tuple[str, ...]:
        """All names that can be called, sorted."""
        return tuple(sorted(name for name in self._entries if self._enabled(name)))

    @property
    def specs(self) -> tuple[ToolSpec, ...]:
        """The specs that a model is shown, in the order of registration."""
        return tuple(
            entry.spec
            for name, entry in self._entries.items()
            if entry.spec is not None and entry.exposed and self._enabled(name)
        )

    def lookup(self, name: str, payload: ToolPayload) -> ToolHandler[OutputT]:
        """The handler of a call.

        Raises:
            UnsupportedCall: there is none; the message is for the model.
        """
        entry = self._entries.get(name) if self._enabled(name) else None
        if entry is None:
            raise UnsupportedCall(unsupported_call(name, custom=isinstance(payload, CustomPayload)))
        if not entry.handler.matches_kind(payload):
            raise UnsupportedCall(
                f"cannot handle payload: {name} is a {entry.handler.kind} tool, and this is a"
                f" {payload.type} call"
            )
        return entry.handler

    def _enabled(self, name: str) -> bool:
        return self.shell_type != "disabled" or name not in SHELL_TOOLS
