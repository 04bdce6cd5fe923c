from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

import execserver
from execprotocol import trust
from execserver import __main__ as console
from execserver.supervisor import start


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        (["serve", "--listen", "stdio"], ("supervisor", ["--listen", "stdio"])),
        (["serve"], ("supervisor", [])),
        (["serve", "--", "--help"], ("supervisor", ["--", "--help"])),
        (["serve", "--listen", "stdio", "--help"], ("cli", ["serve", "--listen", "stdio", "--help"])),
        (["serve", "-h"], ("cli", ["serve", "-h"])),
        (["config", "show"], ("cli", ["config", "show"])),
        (["help", "serve"], ("cli", ["serve", "--help"])),
        (["help", "relay", "key"], ("relay", ["key", "--help"])),
        (["relay", "key", "x"], ("relay", ["key", "x"])),
        (["--version"], ("client", ["--version"])),
        (["version"], ("client", ["--version"])),
        (["run", "--", "serve"], ("client", ["run", "--", "serve"])),
        (["completion", "bash"], ("client", ["completion", "bash"])),
        (["unknown", "serve"], ("client", ["unknown", "serve"])),
        ([], ("client", [])),
    ],
)
def test_each_command_goes_to_its_own_program(
    argv: list[str], expected: tuple[str, list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    called: list[object] = []

    def record(name: str, code: int, arguments: list[str]) -> int:
        called.append((name, arguments))
        return code

    cli = ModuleType("execserver.cli")
    cli.main = lambda arguments: record("cli", 4, arguments)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "execserver.cli", cli)
    relay = ModuleType("execserver.relay.service.command")
    relay.main = lambda arguments: record("relay", 6, arguments)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "execserver.relay.service.command", relay)
    client = ModuleType("execclient.commands.app")
    client.main = lambda arguments, *_: sys.exit(record("client", 5, arguments))  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "execclient.commands.app", client)
    monkeypatch.setattr(start, "run", lambda arguments: record("supervisor", 3, arguments))
    monkeypatch.setattr(sys, "argv", ["execserver", *argv])
    with pytest.raises(SystemExit) as exit_:
        console.main()
    assert called == [expected]
    program_name, _ = expected
    assert exit_.value.code == {"supervisor": 3, "cli": 4, "client": 5, "relay": 6}[program_name]


def test_the_supervisor_imports_the_standard_library_only() -> None:
    package = Path(execserver.__file__).parent
    alone = [
        package / name for name in ("descendants.py", "local_peers.py", "private_folder.py", "__init__.py")
    ]
    alone.append(Path(trust.__file__))
    for path in [*alone, *(package / "supervisor").glob("*.py")]:
        for node in ast.walk(ast.parse(path.read_text())):
            imported = []
            if isinstance(node, ast.Import):
                imported = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                imported = [f"{node.module}.{alias.name}" for alias in node.names]
            for name in imported:
                top = name.partition(".")[0]
                own = name.startswith(
                    (
                        "execserver.supervisor.",
                        "execserver.descendants",
                        "execserver.local_peers",
                        "execserver.private_folder",
                        "execprotocol.relay.pools",
                        "execprotocol.trust",
                    )
                )
                assert top in sys.stdlib_module_names or own, f"{path.name} imports {name}"


def test_the_slow_modules_of_the_standard_library_stay_out() -> None:
    check = "import sys, execserver.supervisor.program; print(*sys.modules)"
    result = subprocess.run([sys.executable, "-I", "-c", check], capture_output=True, text=True, check=True)
    slow = {
        "asyncio",
        "dataclasses",
        "secrets",
        "subprocess",
        "argparse",
        "logging",
        "inspect",
        "tempfile",
        "pathlib",
    }
    assert not slow & set(result.stdout.split())


def test_until_the_first_server_is_spawned_almost_nothing_is_loaded() -> None:
    # Without `site`, whose .pth files load what they like.
    package = str(Path(execserver.__file__).parent.parent)
    check = (
        f"import sys; sys.path.append({package!r}); import execserver.supervisor.start; print(*sys.modules)"
    )
    result = subprocess.run(
        [sys.executable, "-I", "-S", "-c", check], capture_output=True, text=True, check=True
    )
    slow = {
        "collections",
        "enum",
        "json",
        "re",
        "signal",
        "socket",
        "typing",
        "execserver.supervisor.program",
    }
    assert not slow & set(result.stdout.split())
