"""The lines of the README that install, and the types that programs get, from the built wheels alone."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.docs.installing import INSTALL_SECONDS, environment, run
from tests.docs.pages import ROOT, blocks_of

pytestmark = [pytest.mark.manual, pytest.mark.timeout(3 * INSTALL_SECONDS)]

TOOLS = ROOT / ".release" / "bin"
"""From `make release-tools`."""

README = (ROOT / "README.md").read_text()
HELLO = ("execserver", "run", "--url", "stdio:", "--", "echo", "hello")


@pytest.fixture
def offline(wheelhouse: Path) -> Iterator[dict[str, str]]:
    """Variables of a user with an empty home folder, whose installers know the wheels and no index."""
    with tempfile.TemporaryDirectory(prefix="home-") as home:  # short: the default socket lies in it
        path = (TOOLS, f"{sys.base_prefix}/bin", f"{home}/.local/bin", "/usr/local/bin", "/usr/bin", "/bin")
        yield {
            "HOME": home,
            "PATH": os.pathsep.join(map(str, path)),
            "PIP_NO_INDEX": "1",
            "PIP_FIND_LINKS": str(wheelhouse),
            "UV_OFFLINE": "1",
            "UV_NO_INDEX": "1",
            "UV_FIND_LINKS": str(wheelhouse),
            "UV_PYTHON": sys.executable,
            "PIPX_DEFAULT_PYTHON": sys.executable,
        }


def test_uvx_runs_a_command_without_a_daemon(offline: dict[str, str], tmp_path: Path) -> None:
    (block,) = (each for each in blocks_of(ROOT / "README.md") if "uvx execserver" in each.text)
    command = block.text.splitlines()[0].removeprefix("$ ")
    assert command == "uvx execserver run --url stdio: -- uname -a"

    assert run("bash", "-c", command, folder=tmp_path, variables=offline).startswith("Linux ")
    assert run("uvx", *HELLO, folder=tmp_path, variables=offline) == "hello\n"


def test_uvx_without_a_daemon_says_how_to_go_on(offline: dict[str, str], tmp_path: Path) -> None:
    error = run("uvx", "execserver", "run", "--", "true", folder=tmp_path, status=69, variables=offline)

    assert "execserver serve" in error
    assert "--url stdio:" in error


def test_pipx_installs_the_command(offline: dict[str, str], tmp_path: Path) -> None:
    assert "`pipx install execserver`" in README
    run("pipx", "install", "execserver", folder=tmp_path, variables=offline)

    assert run(*HELLO, folder=tmp_path, variables=offline) == "hello\n"


def test_uv_installs_the_command(offline: dict[str, str], tmp_path: Path) -> None:
    run("uv", "tool", "install", "execserver", folder=tmp_path, variables=offline)

    assert run(*HELLO, folder=tmp_path, variables=offline) == "hello\n"


PROGRAM = """\
from execclient import ReadOnly, connect as connect_async
from execclient.sync import connect

with connect() as executor:
    result = executor.run(["true"], sandbox=ReadOnly(), timeout=60)
    reveal_type(result.exit_code)
    reveal_type(result.text)
reveal_type(connect_async)
"""


def test_programs_get_the_types_of_the_client(wheelhouse: Path, tmp_path: Path) -> None:
    client = environment(tmp_path, next(wheelhouse.glob("execclient-*.whl")))
    (tmp_path / "program.py").write_text(PROGRAM)
    mypy = (sys.executable, "-m", "mypy", "--strict", "--config-file", os.devnull, "--python-executable")

    printed = run(*mypy, client / "python", "program.py", folder=tmp_path)

    assert 'Revealed type is "int"' in printed
    assert 'Revealed type is "str"' in printed
    assert '"Any"' not in printed
    assert "Success: no issues found" in printed
