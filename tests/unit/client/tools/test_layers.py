"""Which modules the modules of the tools import, and which they must not."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import execclient

PACKAGE = Path(execclient.__file__).parent

TRANSPORTS = {"connect", "connection"}
DECIDERS = {"govern"}
RUNNING = {"client", "process", "run", "session", "tools", "govern.orchestrator", *TRANSPORTS}

JSON = "connection.connection.Json"
"""The type of a value on the wire is no transport."""


def imported(module: Path) -> set[str]:
    """The names below `execclient` that a module imports, wherever in the module the import stands."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(module.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "execclient":
            found.update(f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names if alias.name.startswith("execclient."))
    return {name.removeprefix("execclient.") for name in found} - {JSON}


def uses(module: Path, rooms: set[str]) -> set[str]:
    """The names that a module imports from some rooms."""
    return {name for name in imported(module) if any(f"{name}.".startswith(f"{room}.") for room in rooms)}


def modules_of_tools() -> list[Path]:
    return [*sorted((PACKAGE / "tools").glob("*.py")), PACKAGE / "govern" / "orchestrator.py"]


@pytest.mark.parametrize("module", modules_of_tools(), ids=lambda module: module.stem)
def test_a_tool_does_not_know_how_its_executor_is_reached(module: Path) -> None:
    assert not uses(module, TRANSPORTS)


@pytest.mark.parametrize("name", ["tools/exec_session.py", "run.py", "process.py", "client.py"])
def test_modules_that_run_commands_do_not_import_govern(name: str) -> None:
    assert not uses(PACKAGE / name, DECIDERS)


def test_the_rules_know_nothing_of_processes_and_connections() -> None:
    modules = list((PACKAGE / "govern" / "policy").glob("*.py"))

    assert modules
    for module in modules:
        assert not uses(module, RUNNING), module.name


def test_an_import_is_seen_in_every_form(tmp_path: Path) -> None:
    (tmp_path / "m.py").write_text(
        "import execclient.connection.stdio\n"
        "from execclient import connect\n"
        "def late():\n"
        "    from execclient.connection.target import Token\n"
        "from execclient.connection.connection import Json\n"
    )

    assert imported(tmp_path / "m.py") == {"connection.stdio", "connect", "connection.target.Token"}
