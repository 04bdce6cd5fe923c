"""Tool calls of a model: their arguments, the decisions on them, and their results.

    async with connect() as executor, Toolset(executor, sandbox=WorkspaceWrite()) as toolset:
        tools = toolset.specs()
        result = await toolset.call("exec_command", '{"cmd": "make test"}', call_id)
        print(result.exit_code, result.content)

`Toolset` is the entry point for an agent host, `ToolsConfig` has its settings, and `Turn` those that may
change for each call. `ToolResult` is the answer to a call, `CallRecord` what happened. `CallBegin`,
`CallDecided`, `OutputDelta`, `CallEnd` and `SessionClosed` are the events of calls. A host adds tools of its
own as `ToolHandler`. How all of it is used: `docs/how-to/agent-tools.md`.

The names are loaded when they are used: they need pydantic (`pip install "execclient[tools]"`).
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from execclient.tools.config import HostSettings, ToolsConfig, Turn
    from execclient.tools.events import (
        CallBegin,
        CallDecided,
        CallEnd,
        OutputDelta,
        SessionClosed,
        ToolEvent,
    )
    from execclient.tools.payloads import CustomPayload, FunctionOutput, FunctionPayload
    from execclient.tools.registry import ToolHandler, ToolInvocation
    from execclient.tools.result import CallRecord, Decided, Failure, ToolResult
    from execclient.tools.saved_sessions import SavedSession
    from execclient.tools.toolset import Inspection, Toolset

_MODULES = {
    "config": ("HostSettings", "ToolsConfig", "Turn"),
    "events": ("CallBegin", "CallDecided", "CallEnd", "OutputDelta", "SessionClosed", "ToolEvent"),
    "payloads": ("CustomPayload", "FunctionOutput", "FunctionPayload"),
    "registry": ("ToolHandler", "ToolInvocation"),
    "result": ("CallRecord", "Decided", "Failure", "ToolResult"),
    "saved_sessions": ("SavedSession",),
    "toolset": ("Inspection", "Toolset"),
}
_HOMES = {name: module for module, names in _MODULES.items() for name in names}

__all__ = [
    "CallBegin",
    "CallDecided",
    "CallEnd",
    "CallRecord",
    "CustomPayload",
    "Decided",
    "Failure",
    "FunctionOutput",
    "FunctionPayload",
    "HostSettings",
    "Inspection",
    "OutputDelta",
    "SavedSession",
    "SessionClosed",
    "ToolEvent",
    "ToolHandler",
    "ToolInvocation",
    "ToolResult",
    "ToolsConfig",
    "Toolset",
    "Turn",
]


def __getattr__(name: str) -> object:
    # Late: the modules of the toolset import `execclient.tools.errors`, and with it this package.
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        module = importlib.import_module(f"{__name__}.{_HOMES[name]}")
    except ModuleNotFoundError as error:
        if error.name != "pydantic":
            raise
        raise ImportError(f'{__name__}.{name} needs pydantic: pip install "execclient[tools]"') from error
    return getattr(module, name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
