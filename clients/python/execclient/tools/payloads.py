"""Payloads of tool calls and outputs of tools. Both convert to JSON and back without loss."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from execclient.connection.connection import Json
from execclient.tools.arguments import ShellArguments, parse

# -- payloads


@dataclass(frozen=True, slots=True)
class FunctionPayload:
    """A function call: its arguments as the model wrote them."""

    type: ClassVar[str] = "Function"
    arguments: str

    def to_json(self) -> dict[str, Json]:
        """As JSON."""
        return {"type": self.type, "arguments": self.arguments}


@dataclass(frozen=True, slots=True)
class CustomPayload:
    """A call of a tool that takes plain text."""

    type: ClassVar[str] = "Custom"
    input: str

    def to_json(self) -> dict[str, Json]:
        """As JSON."""
        return {"type": self.type, "input": self.input}


@dataclass(frozen=True, slots=True)
class LocalShellPayload:
    """A call of the shell that a model family has built in, with parsed arguments."""

    type: ClassVar[str] = "LocalShell"
    params: ShellArguments

    def to_json(self) -> dict[str, Json]:
        """As JSON, without fields that were not given."""
        return {"type": self.type, "params": self.params.model_dump(mode="json", exclude_unset=True)}


@dataclass(frozen=True, slots=True)
class McpPayload:
    """A call of another program's tool, by the Model Context Protocol."""

    type: ClassVar[str] = "Mcp"
    server: str
    tool: str
    raw_arguments: str

    def to_json(self) -> dict[str, Json]:
        """As JSON."""
        return {
            "type": self.type,
            "server": self.server,
            "tool": self.tool,
            "raw_arguments": self.raw_arguments,
        }


ToolPayload = FunctionPayload | CustomPayload | LocalShellPayload | McpPayload
"""The payload of a call, by the kind of tool."""


def payload_from_json(value: Mapping[str, Json]) -> ToolPayload:
    """A payload from the result of its `to_json`.

    Raises:
        ValueError: a member is missing or has a wrong type; the message names it.
        ArgumentError: the arguments of a local shell are not valid.
    """
    match value.get("type"):
        case "Function":
            return FunctionPayload(_text(value, "arguments"))
        case "Custom":
            return CustomPayload(_text(value, "input"))
        case "LocalShell":
            params = value.get("params")
            if not isinstance(params, Mapping):
                raise ValueError("params: an object is needed, with the arguments of shell")
            return LocalShellPayload(parse(ShellArguments, params))
        case "Mcp":
            return McpPayload(_text(value, "server"), _text(value, "tool"), _text(value, "raw_arguments"))
        case other:
            raise ValueError(f"type: {other!r} is unknown; it can be Function, Custom, LocalShell or Mcp")


# -- outputs


@dataclass(frozen=True, slots=True)
class FunctionOutput:
    """The output of a function or custom tool."""

    type: ClassVar[str] = "Function"
    content: str
    """The text for the model."""
    items: tuple[Mapping[str, Json], ...] | None = None
    """Content that is not only text, in place of the text."""
    success: bool | None = None
    """None if the tool does not tell."""

    def to_json(self) -> dict[str, Json]:
        """As JSON, without unknown members."""
        made: dict[str, Json] = {"type": self.type, "content": self.content}
        if self.items is not None:
            made["content_items"] = [dict(item) for item in self.items]
        if self.success is not None:
            made["success"] = self.success
        return made


@dataclass(frozen=True, slots=True)
class McpOutput:
    """The output of another program's tool: a result or an error."""

    type: ClassVar[str] = "Mcp"
    result: Mapping[str, Json] | None = None
    error: str | None = None

    def __post_init__(self) -> None:
        if (self.result is None) == (self.error is None):
            raise ValueError("result, error: exactly one of them is needed")

    def to_json(self) -> dict[str, Json]:
        """As JSON."""
        made: Json = {"Err": self.error} if self.result is None else {"Ok": dict(self.result)}
        return {"type": self.type, "result": made}


ToolOutput = FunctionOutput | McpOutput
"""The output of a tool, by the kind of tool."""


def output_from_json(value: Mapping[str, Json]) -> ToolOutput:
    """An output from the result of its `to_json`.

    Raises:
        ValueError: a member is missing or has a wrong type; the message names it.
    """
    match value:
        case {"type": "Function"}:
            items, success = value.get("content_items"), value.get("success")
            if not isinstance(success, bool | None):
                raise ValueError(f"success: {success!r} is neither true nor false")
            if items is not None and not (
                isinstance(items, list) and all(isinstance(item, Mapping) for item in items)
            ):
                raise ValueError("content_items: a list of objects is needed")
            return FunctionOutput(_text(value, "content"), None if items is None else tuple(items), success)
        case {"type": "Mcp", "result": {"Ok": Mapping() as result}}:
            return McpOutput(result=result)
        case {"type": "Mcp", "result": {"Err": str(error)}}:
            return McpOutput(error=error)
        case {"type": "Mcp"}:
            raise ValueError("result: an object with Ok (an object) or Err (a string) is needed")
        case _:
            raise ValueError(f"type: {value.get('type')!r} is unknown; it can be Function or Mcp")


def function_call_output(call_id: str, output: str | FunctionOutput) -> dict[str, Json]:
    """The item that answers a function call in a conversation with OpenAI's models."""
    if isinstance(output, str):
        output = FunctionOutput(output)
    content: Json = output.content if output.items is None else [dict(item) for item in output.items]
    return {"type": "function_call_output", "call_id": call_id, "output": content}


def _text(value: Mapping[str, Json], name: str) -> str:
    found = value.get(name)
    if not isinstance(found, str):
        raise ValueError(f"{name}: a string is needed")
    return found
