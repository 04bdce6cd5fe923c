"""Clients of node: the example of the manual, compiled and run, and vscode-jsonrpc over a Unix socket.

Named by `make interop` only, which installs what they need before; without node they fail.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import StartServer

REPOSITORY = Path(__file__).parents[2]
EXAMPLE = REPOSITORY / "docs" / "how-to" / "editor-plugin"
INSTALLED = REPOSITORY / ".interop" / "editor-plugin" / "node_modules"
EXECSERVER = Path(sys.executable).parent / "execserver"


@pytest.fixture
def workshop(tmp_path: Path) -> Path:
    """A folder with the example, and what it depends on."""
    assert INSTALLED.is_dir(), "run make foreign-clients: it installs what is tested here"
    for file in EXAMPLE.iterdir():
        shutil.copy(file, tmp_path)
    (tmp_path / "node_modules").symlink_to(INSTALLED)
    return tmp_path


def run(folder: Path, *command: str, env: dict[str, str] | None = None) -> str:
    """What a command prints; it must succeed."""
    done = subprocess.run(
        command, cwd=folder, env=env, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return done.stdout


def test_the_example_of_the_manual_compiles_and_runs(workshop: Path, environment: dict[str, str]) -> None:
    run(workshop, "node_modules/.bin/tsc")

    printed = run(workshop, "node", "plugin.js", env={**environment, "EXECSERVER": str(EXECSERVER)})

    assert printed.splitlines() == [
        "stdout: hello from /tmp",
        "refused: -32004 not_found: No such file or directory (os error 2)",
        "exited: 137",
    ]


def test_the_example_is_short_and_pins_what_it_needs() -> None:
    assert len((EXAMPLE / "plugin.ts").read_text().splitlines()) <= 40
    assert sorted(path.name for path in EXAMPLE.iterdir()) == ["package.json", "plugin.ts", "tsconfig.json"]


def test_vscode_jsonrpc_drives_a_process_over_a_unix_socket(
    workshop: Path, start_server: StartServer, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("s") / "s"
    start_server(f"unix://{path}")
    shutil.copy(Path(__file__).parent / "socket_client.mjs", workshop)

    printed = run(workshop, "node", "socket_client.mjs", str(path))

    assert printed.splitlines() == [
        "started p",
        "written accepted",
        "still there ready",
        "read more",
        'output "grüße\\nmore\\n"',
        "refused -32004 not_found -",
        "refused -32602 invalid_params processId",
        "refused -32601 method_not_found -",
        "running true",
        "exited 137",
    ]
