from __future__ import annotations

import json
from collections.abc import Mapping

import pytest

from execclient.connection.connection import Json
from execclient.errors import ExecServerError
from execclient.tools import errors
from execclient.tools.arguments import ShellArguments
from execclient.tools.errors import ArgumentError, UnsupportedCall
from execclient.tools.registry import (
    CustomPayload,
    FunctionOutput,
    FunctionPayload,
    LocalShellPayload,
    McpOutput,
    McpPayload,
    Registry,
    ToolHandler,
    ToolInvocation,
    ToolKind,
    ToolOutput,
    ToolPayload,
    function_call_output,
    output_from_json,
    payload_from_json,
)
from execclient.tools.specs import ShellToolKind, all_specs

CALL = FunctionPayload("{}")
SPECS = all_specs()


class EchoHandler:
    """Takes function calls, and answers with their name."""

    kind: ToolKind = "function"

    def matches_kind(self, payload: ToolPayload) -> bool:
        return isinstance(payload, FunctionPayload | LocalShellPayload)

    async def is_mutating(self, invocation: ToolInvocation) -> bool:
        return False

    async def handle(self, invocation: ToolInvocation) -> FunctionOutput:
        return FunctionOutput(f"{invocation.call_id} {invocation.tool_name}", success=True)


def shell_registry(shell_type: ShellToolKind) -> Registry[FunctionOutput]:
    registry = Registry[FunctionOutput](shell_type)
    registry.register(EchoHandler(), ("shell", "container.exec", "local_shell"), SPECS["shell"])
    registry.register(EchoHandler(), ("shell_command",), SPECS["shell_command"])
    registry.register(EchoHandler(), ("exec_command",), SPECS["exec_command"])
    registry.register(EchoHandler(), ("write_stdin",), SPECS["write_stdin"])
    return registry


# -- names


async def test_a_handler_of_ones_own_is_found_by_name_and_carries_out_the_call() -> None:
    registry = Registry[FunctionOutput]()
    handler: ToolHandler[FunctionOutput] = EchoHandler()
    registry.register(handler, ["echo"])
    invocation = ToolInvocation("call_1", "echo", CALL, toolset="session", turn="turn", tracker="diff")

    found = registry.lookup("echo", invocation.payload)

    assert found is handler
    assert not await found.is_mutating(invocation)
    assert await found.handle(invocation) == FunctionOutput("call_1 echo", success=True)


def test_the_names_of_one_tool_have_the_same_handler() -> None:
    registry = shell_registry("default")

    shell = registry.lookup("shell", CALL)
    assert registry.lookup("container.exec", CALL) is shell
    assert registry.lookup("local_shell", LocalShellPayload(ShellArguments(command=("ls",)))) is shell
    assert registry.lookup("exec_command", CALL) is not shell


@pytest.mark.parametrize(
    ("shell_type", "shown"),
    [
        ("default", ["shell"]),
        ("shell_command", ["shell_command"]),
        ("unified_exec", ["exec_command", "write_stdin"]),
    ],
)
def test_a_tool_that_is_not_shown_works_all_the_same(shell_type: ShellToolKind, shown: list[str]) -> None:
    registry = shell_registry(shell_type)

    assert [spec.name for spec in registry.specs] == shown
    for name in ("shell", "container.exec", "local_shell", "shell_command", "exec_command", "write_stdin"):
        assert registry.lookup(name, CALL)


def test_disabled_tools_are_neither_shown_nor_known() -> None:
    registry = shell_registry("disabled")
    registry.register(EchoHandler(), ("echo",))

    assert registry.specs == ()
    assert registry.names == ("echo",)
    assert registry.lookup("echo", CALL)
    for name in ("shell", "container.exec", "exec_command"):
        with pytest.raises(UnsupportedCall, match=f"^unsupported call: {name}$"):
            registry.lookup(name, CALL)


def test_an_unknown_name_is_answered_as_the_reference_does() -> None:
    registry = Registry[FunctionOutput]()

    with pytest.raises(UnsupportedCall) as function:
        registry.lookup("apply_patch", CALL)
    with pytest.raises(UnsupportedCall) as custom:
        registry.lookup("apply_patch", CustomPayload("*** Begin Patch"))
    assert str(function.value) == "unsupported call: apply_patch"
    assert str(custom.value) == "unsupported custom tool call: apply_patch"


@pytest.mark.parametrize("payload", [CustomPayload("ls"), McpPayload("server", "tool", "{}")])
def test_a_call_of_the_wrong_kind_is_not_handled(payload: ToolPayload) -> None:
    with pytest.raises(UnsupportedCall) as caught:
        shell_registry("default").lookup("shell", payload)

    assert str(caught.value) == (
        f"cannot handle payload: shell is a function tool, and this is a {payload.type} call"
    )


def test_a_host_may_show_or_hide_a_tool_by_itself() -> None:
    registry = Registry[FunctionOutput]("unified_exec")
    registry.register(EchoHandler(), ("exec_command",), SPECS["exec_command"], exposed=False)
    registry.register(EchoHandler(), ("run_shell_command",), SPECS["run_shell_command"], exposed=True)

    assert [spec.name for spec in registry.specs] == ["run_shell_command"]
    assert registry.names == ("exec_command", "run_shell_command")


def test_a_registration_that_cannot_be_meant_is_refused() -> None:
    registry = shell_registry("default")

    with pytest.raises(ValueError, match=r"names: container\.exec: already registered"):
        registry.register(EchoHandler(), ("mine", "container.exec"))
    with pytest.raises(ValueError, match="names: a list with at least one name is needed"):
        registry.register(EchoHandler(), "mine")
    with pytest.raises(ValueError, match="names: a list with at least one name is needed"):
        registry.register(EchoHandler(), ())
    with pytest.raises(ValueError, match="spec: it is for shell, which is none of the names"):
        registry.register(EchoHandler(), ("mine",), SPECS["shell"])
    assert "mine" not in registry.names


# -- JSON


@pytest.mark.parametrize(
    ("payload", "value"),
    [
        (FunctionPayload('{"cmd": "ls"}'), {"type": "Function", "arguments": '{"cmd": "ls"}'}),
        (CustomPayload("*** Begin Patch\n"), {"type": "Custom", "input": "*** Begin Patch\n"}),
        (
            LocalShellPayload(ShellArguments(command=("ls", "a b"), workdir="src")),
            {"type": "LocalShell", "params": {"command": ["ls", "a b"], "workdir": "src"}},
        ),
        (
            McpPayload("files", "read", '{"path": "a"}'),
            {"type": "Mcp", "server": "files", "tool": "read", "raw_arguments": '{"path": "a"}'},
        ),
    ],
)
def test_a_payload_goes_to_json_and_back(payload: ToolPayload, value: Json) -> None:
    assert payload.to_json() == value
    assert payload_from_json(json.loads(json.dumps(value))) == payload


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({"type": "Function"}, "arguments: a string is needed"),
        ({"type": "Function", "arguments": {}}, "arguments: a string is needed"),
        ({"type": "Custom", "input": 1}, "input: a string is needed"),
        ({"type": "Mcp", "server": "a", "tool": "b"}, "raw_arguments: a string is needed"),
        ({"type": "LocalShell", "params": []}, "params: an object is needed"),
        ({"type": "function"}, "type: 'function' is unknown; it can be Function, Custom, LocalShell or Mcp"),
        ({}, "type: None is unknown"),
    ],
)
def test_a_payload_that_is_none_is_refused_by_member(value: Mapping[str, Json], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        payload_from_json(value)


def test_the_arguments_of_a_local_shell_are_held_to_the_rules_of_shell() -> None:
    with pytest.raises(ArgumentError, match="unknown field `nope`"):
        payload_from_json({"type": "LocalShell", "params": {"command": ["ls"], "nope": 1}})


@pytest.mark.parametrize(
    ("output", "value"),
    [
        (FunctionOutput("text"), {"type": "Function", "content": "text"}),
        (
            FunctionOutput("text", ({"type": "input_text", "text": "a"},), success=False),
            {
                "type": "Function",
                "content": "text",
                "content_items": [{"type": "input_text", "text": "a"}],
                "success": False,
            },
        ),
        (FunctionOutput("", ()), {"type": "Function", "content": "", "content_items": []}),
        (McpOutput({"content": []}), {"type": "Mcp", "result": {"Ok": {"content": []}}}),
        (McpOutput(error="no such tool"), {"type": "Mcp", "result": {"Err": "no such tool"}}),
    ],
)  # fmt: skip
def test_an_output_goes_to_json_and_back(output: ToolOutput, value: Json) -> None:
    assert output.to_json() == value
    assert output_from_json(json.loads(json.dumps(value))) == output


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({"type": "Function"}, "content: a string is needed"),
        ({"type": "Function", "content": "", "success": "yes"}, "success: 'yes' is neither true nor false"),
        ({"type": "Function", "content": "", "content_items": "a"}, "content_items: a list of objects"),
        ({"type": "Function", "content": "", "content_items": [1]}, "content_items: a list of objects"),
        ({"type": "Mcp", "result": {}}, "result: an object with Ok"),
        ({"type": "Mcp"}, "result: an object with Ok"),
        ({"type": "Custom"}, "type: 'Custom' is unknown; it can be Function or Mcp"),
    ],
)
def test_an_output_that_is_none_is_refused_by_member(value: Mapping[str, Json], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        output_from_json(value)


def test_an_mcp_output_is_a_result_or_an_error() -> None:
    with pytest.raises(ValueError, match="one of them is needed"):
        McpOutput()
    with pytest.raises(ValueError, match="one of them is needed"):
        McpOutput({}, "no such tool")


def test_a_function_call_is_answered_by_an_item_with_its_id() -> None:
    assert function_call_output("call_abc123", "src/main.rs:42:    // TODO: refactor this\n") == {
        "type": "function_call_output",
        "call_id": "call_abc123",
        "output": "src/main.rs:42:    // TODO: refactor this\n",
    }
    items = ({"type": "input_image", "image_url": "data:"},)
    assert function_call_output("c", FunctionOutput("text", items))["output"] == list(items)
    assert function_call_output("c", FunctionOutput("text"))["output"] == "text"


# -- errors


def tool_errors(error: type[errors.ToolError] = errors.ToolError) -> list[type[errors.ToolError]]:
    return [error, *(each for child in error.__subclasses__() for each in tool_errors(child))]


@pytest.mark.parametrize("error", tool_errors(), ids=lambda error: error.__name__)
def test_every_error_of_a_tool_is_drawn_with_a_code_of_its_own(error: type[errors.ToolError]) -> None:
    drawn = [line.split() for line in (errors.__doc__ or "").splitlines()]
    row = next(words for words in drawn if error.__name__ in words)

    assert issubclass(error, ExecServerError)
    assert row[row.index(error.__name__) + 1] == vars(error)["code"]
    assert [each.code for each in tool_errors()].count(error.code) == 1


def test_errors_carry_what_is_needed_to_go_on() -> None:
    assert errors.TimedOut("too long", "partial").output == "partial"
    assert errors.SandboxDenied("denied", "Read-only").output == "Read-only"
    assert errors.KilledBySignal("killed", 9).signal == 9
    assert errors.Rejected("no", before=True).before
    changed = errors.PolicyChanged("a1", "b2")
    assert (changed.expected, changed.actual) == ("a1", "b2")
    assert "revision a1, now b2" in changed.message
