"""Tools by name: who takes a call, and what a model is shown. What a call carries is in `payloads.py`.

Rules kept here:

1. One handler may have several names; they are the same object (`shell`, `container.exec`, `local_shell`).
2. A tool that a model is not shown still works when it is called, so that old prompts do. Only a host that
   has disabled the shell tools has none.
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

Output = TypeVar("Output")
Output_co = TypeVar("Output_co", covariant=True)

ToolKind = Literal["function", "custom", "mcp"]
"""Which payloads a tool takes."""

SHELL_TOOLS = frozenset(
    {
        *("shell", "container.exec", "local_shell", "shell_command"),
        *("exec_command", "write_stdin", "run_shell_command"),
    }
)
"""What a host disables together."""

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
    """One call, and what its handler may need, of whatever types the handler expects."""

    call_id: str
    tool_name: str
    """As it was called: one of the handler's names."""
    payload: ToolPayload
    toolset: object = None
    """The session: its executor, policies and processes."""
    turn: object = None
    """What is set otherwise for this turn."""
    tracker: object = None
    """What keeps account of the files that the turn changes."""


class ToolHandler(Protocol[Output_co]):
    """What carries out the calls of a tool."""

    @property
    def kind(self) -> ToolKind:
        """What kind of tool it is."""
        ...

    def matches_kind(self, payload: ToolPayload) -> bool:
        """Whether it takes such a payload."""
        ...

    async def is_mutating(self, invocation: ToolInvocation) -> bool:
        """Whether the call may change something; true when that cannot be told. Others may run beside those
        that do not.
        """
        ...

    async def handle(self, invocation: ToolInvocation) -> Output_co:
        """Carry it out.

        Raises:
            ToolError: there is no result.
        """
        ...


@dataclass(frozen=True, slots=True)
class _Entry(Generic[Output]):
    handler: ToolHandler[Output]
    spec: ToolSpec | None
    exposed: bool


class Registry(Generic[Output]):
    """Handlers by name.

    Args:
        shell_type: which of the shell tools a model is shown; `disabled` for none, and then none can be
            called either.
    """

    def __init__(self, shell_type: ShellToolKind = "unified_exec") -> None:
        self.shell_type = shell_type
        self._entries: dict[str, _Entry[Output]] = {}

    def register(
        self,
        handler: ToolHandler[Output],
        names: Collection[str],
        spec: ToolSpec | None = None,
        exposed: bool | None = None,
    ) -> None:
        """Add a tool.

        Args:
            handler: takes its calls.
            names: all that it can be called; the spec has the first of those that it is shown by.
            spec: what a model is told of it; None for a tool that no model is shown.
            exposed: whether a model is shown it; by default what the kind of shell tool says.

        Raises:
            ValueError: a name is taken, or there is none, or the spec has another.
        """
        if isinstance(names, str) or not names:
            raise ValueError("names: a list of names is needed, one at least")
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
        """All that can be called, sorted."""
        return tuple(sorted(name for name in self._entries if self._enabled(name)))

    @property
    def specs(self) -> tuple[ToolSpec, ...]:
        """What a model is shown, in the order of registration."""
        return tuple(
            entry.spec
            for name, entry in self._entries.items()
            if entry.spec is not None and entry.exposed and self._enabled(name)
        )

    def lookup(self, name: str, payload: ToolPayload) -> ToolHandler[Output]:
        """Who takes a call.

        Raises:
            UnsupportedCall: nobody; the message is for the model.
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
