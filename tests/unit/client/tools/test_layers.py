"""Who knows whom among the modules of the tools."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import execclient

PACKAGE = Path(execclient.__file__).parent

TRANSPORTS = {"address", "channel", "connection", "sockets", "stdio", "target", "websocket"}
DECIDERS = {"approval_policy", "approvals", "orchestrator", "policy"}


def imported(module: Path) -> set[str]:
    """What a module imports below `execclient`: names of packages and modules, and those from the root."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(module.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("execclient"):
            path = (node.module or "").split(".")[1:]
            names = {alias.name for alias in node.names}
            # The name of a value on the wire is no transport.
            if path == ["connection", "connection"] and names == {"Json"}:
                continue
            found.update(path or names)
        elif isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.startswith("execclient."):
                    found.update(alias.name.split(".")[1:])
    return found


def modules_of_tools() -> list[Path]:
    return [*sorted((PACKAGE / "tools").glob("*.py")), PACKAGE / "govern" / "orchestrator.py"]


@pytest.mark.parametrize("module", modules_of_tools(), ids=lambda module: module.stem)
def test_a_tool_does_not_know_how_its_executor_is_reached(module: Path) -> None:
    assert not imported(module) & TRANSPORTS


@pytest.mark.parametrize("name", ["tools/exec_session.py", "run.py", "process.py", "client.py"])
def test_what_runs_commands_does_not_know_who_permits_them(name: str) -> None:
    assert not imported(PACKAGE / name) & DECIDERS


def test_the_rules_know_nothing_of_processes_and_connections() -> None:
    running = {"client", "process", "run", "session", "tools", "orchestrator", *TRANSPORTS}

    for module in (PACKAGE / "govern" / "policy").glob("*.py"):
        assert not imported(module) & running, module.name


def test_an_import_is_seen_in_every_form(tmp_path: Path) -> None:
    (tmp_path / "m.py").write_text(
        "import execclient.connection.stdio\n"
        "from execclient import websocket\n"
        "def late():\n"
        "    from execclient.connection.target import Token\n"
        "from execclient.connection.connection import Json\n"
    )

    assert imported(tmp_path / "m.py") == {"connection", "stdio", "target", "websocket"}
