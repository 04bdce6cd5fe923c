from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from execclient.tools.arguments import parse, shape_of
from execclient.tools.errors import ArgumentError
from execclient.tools.specs import FORMS, SHOWN, ShellToolKind, all_specs, specs
from tools.tool_schemas import files, main

FOLDER = Path(__file__).parents[4] / "schemas" / "tools"
NAMES = (
    *("shell", "shell_command", "exec_command", "write_stdin", "apply_patch", "run_shell_command"),
    *("read_file", "list_dir", "grep", "glob"),
)
EVERY = all_specs(request_rule=True)


def walk(value: object) -> list[dict[str, Any]]:
    if isinstance(value, list):
        return [found for each in value for found in walk(each)]
    if not isinstance(value, dict):
        return []
    return [value, *(found for each in value.values() for found in walk(each))]


# -- which tools


@pytest.mark.parametrize(
    ("shell_type", "names"),
    [
        ("default", ["shell"]),
        ("shell_command", ["shell_command"]),
        ("unified_exec", ["exec_command", "write_stdin"]),
        ("disabled", []),
    ],
)
def test_a_model_is_shown_the_tools_of_the_chosen_kind(shell_type: ShellToolKind, names: list[str]) -> None:
    assert [spec.name for spec in specs(shell_type)] == names


def test_every_tool_that_is_shown_has_a_spec() -> None:
    assert set(EVERY) == set(NAMES)
    assert {name for names in SHOWN.values() for name in names} <= EVERY.keys()


# -- schemas


@pytest.mark.parametrize("name", NAMES)
def test_a_schema_is_one_of_2020_12_without_noise(name: str) -> None:
    schema = EVERY[name].parameters()

    Draft202012Validator.check_schema(schema)
    assert schema["additionalProperties"] is False
    assert not [found for found in walk(schema) if "title" in found or "anyOf" in found]
    assert all(entry["description"] for entry in schema["properties"].values())


@pytest.mark.parametrize("name", NAMES)
def test_defaults_in_a_schema_are_those_of_the_model(name: str) -> None:
    spec = EVERY[name]
    samples: dict[str, object] = {
        "cmd": "ls",
        "session_id": 1000,
        "command": "ls",
        "input": "",
        "path": "a",
        "pattern": "a",
        "glob": "*",
    }
    given = {each: samples[each] for each in spec.parameters()["required"]}
    if name == "shell":
        given = {"command": ["ls"]}
    made = parse(spec.model, given)

    for member, entry in spec.parameters()["properties"].items():
        if "default" in entry:
            assert getattr(made, member) == entry["default"]
    Draft202012Validator(spec.parameters()).validate(given)


@pytest.mark.parametrize(
    ("name", "arguments", "sound"),
    [
        ("shell", {"command": ["ls"]}, True),
        ("shell", {"command": []}, False),
        ("shell", {"command": "ls"}, False),
        ("shell", {}, False),
        ("shell", {"command": ["ls"], "nope": 1}, False),
        ("shell_command", {"command": "ls", "login": False, "timeout_ms": 1}, True),
        ("shell_command", {"command": "ls", "timeout_ms": -1}, False),
        ("exec_command", {"cmd": "ls", "tty": True, "sandbox_permissions": "require_escalated"}, True),
        ("exec_command", {"cmd": "ls", "sandbox_permissions": "bogus"}, False),
        ("exec_command", {"cmd": "ls", "prefix_rule": ["git"]}, True),
        ("exec_command", {"tty": True}, False),
        ("write_stdin", {"session_id": 1, "chars": ""}, True),
        ("write_stdin", {"session_id": "1"}, False),
        ("write_stdin", {"chars": ""}, False),
        ("run_shell_command", {"cmd": "ls", "timeout": 1}, True),
        ("run_shell_command", {"cmd": "ls", "timeout": 0}, False),
        ("read_file", {"path": "a", "offset": 1, "limit": 1, "max_output_tokens": 1}, True),
        ("read_file", {"path": "a", "offset": 0}, False),
        ("read_file", {"path": "a", "max_output_tokens": 0}, False),
        ("read_file", {}, False),
        ("list_dir", {}, True),
        ("list_dir", {"depth": 16}, True),
        ("list_dir", {"depth": 17}, False),
        ("grep", {"pattern": "a", "output": "files"}, True),
        ("grep", {"pattern": "a", "output": "count"}, False),
        ("glob", {"glob": "*.py", "path": "src"}, True),
        ("glob", {"path": "src"}, False),
    ],
)
def test_schema_and_reader_agree(name: str, arguments: dict[str, object], sound: bool) -> None:
    spec = EVERY[name]
    try:
        parse(spec.model, json.dumps(arguments))
    except ArgumentError:
        read = False
    else:
        read = True

    assert Draft202012Validator(spec.parameters()).is_valid(arguments) == sound
    assert read == sound


def test_second_forms_are_not_shown() -> None:
    assert "command" not in EVERY["exec_command"].parameters()["properties"]
    assert "process_id" not in EVERY["write_stdin"].parameters()["properties"]
    assert "input" not in EVERY["write_stdin"].parameters()["properties"]
    hidden = {
        member.name for member in shape_of(EVERY["exec_command"].model).members if not member.advertised
    }
    assert hidden == {"command", "process_id", "additional_permissions", "environment_id"}


@pytest.mark.parametrize("name", ["shell", "shell_command", "exec_command"])
def test_rules_are_shown_only_where_a_host_takes_them(name: str) -> None:
    assert "prefix_rule" in EVERY[name].parameters()["properties"]
    assert "prefix_rule" not in all_specs()[name].parameters()["properties"]


@pytest.mark.parametrize("name", ["read_file", "list_dir", "grep", "glob"])
def test_a_file_tool_shows_its_budget_last_and_no_environment(name: str) -> None:
    assert list(EVERY[name].parameters()["properties"])[-1] == "max_output_tokens"
    assert "environment_id" not in EVERY[name].parameters()["properties"]


def test_the_time_limit_of_run_shell_command_is_visible() -> None:
    timeout = EVERY["run_shell_command"].parameters()["properties"]["timeout"]

    assert (timeout["type"], timeout["default"], timeout["minimum"]) == ("integer", 120, 1)


# -- descriptions


@pytest.mark.parametrize(
    ("platform", "form", "other"),
    [
        ("linux", '["bash", "-lc", "<script>"]', "powershell"),
        ("darwin", '["bash", "-lc", "<script>"]', "powershell"),
        ("win32", '["powershell.exe", "-Command", "<script>"]', "bash"),
    ],
)
def test_the_description_of_shell_has_the_form_of_the_platform(platform: str, form: str, other: str) -> None:
    description = all_specs(platform=platform)["shell"].description

    assert form in description
    assert other not in description


def test_the_description_of_shell_command_names_the_shell_of_the_platform() -> None:
    assert "bash -lc" in all_specs()["shell_command"].description
    assert "powershell.exe -Command" in all_specs(platform="win32")["shell_command"].description


@pytest.mark.parametrize("name", ["shell", "shell_command", "run_shell_command"])
def test_models_are_told_to_choose_time_limits(name: str) -> None:
    assert "Choose the time limit to fit the command" in EVERY[name].description


# -- forms and files


def test_each_family_gets_its_form() -> None:
    spec = EVERY["exec_command"]
    schema = spec.parameters()

    assert spec.form("openai") == {
        "type": "function",
        "name": "exec_command",
        "description": spec.description,
        "strict": False,
        "parameters": schema,
    }
    assert spec.form("anthropic") == {
        "name": "exec_command",
        "description": spec.description,
        "input_schema": schema,
    }
    assert spec.form("mcp") == {
        "name": "exec_command",
        "description": spec.description,
        "inputSchema": schema,
    }


def test_the_files_are_what_the_models_say() -> None:
    assert main(["--check", str(FOLDER)]) == 0
    assert {path.name for path in FOLDER.iterdir()} == {
        f"{name}.{form}.json" for name in NAMES for form in FORMS
    }
    assert files(FOLDER).keys() == set(FOLDER.iterdir())


@pytest.mark.parametrize(
    "spoil",
    [
        lambda folder: (folder / "shell.mcp.json").unlink(),
        lambda folder: (folder / "shell.mcp.json").write_text("{}"),
        lambda folder: (folder / "container.mcp.json").write_text("{}"),
    ],
    ids=["missing", "changed", "stale"],
)
def test_any_drift_is_found_and_mended(
    spoil: Callable[[Path], object], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "tools"
    shutil.copytree(FOLDER, folder)
    spoil(folder)

    assert main(["--check", str(folder)]) == 1
    assert "run `make schemas`" in capsys.readouterr().err
    assert main([str(folder)]) == 0
    assert main(["--check", str(folder)]) == 0


def test_a_wrong_command_line_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--check"]) == 2
    assert "usage" in capsys.readouterr().err
