"""Whoever has nothing but the wheel follows the tutorial from where it is installed."""

from __future__ import annotations

import re
import subprocess
import sys
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from tests.docs.pages import ROOT, Block, blocks_of
from tests.docs.reader import reader
from tests.docs.test_blocks import TUTORIAL
from tests.docs.test_stranger import of_pip

INSTALL_SECONDS = 110.0
"""Building takes ten seconds and installing twenty, with a filled cache and a machine to itself."""

EXTRAS = "expect,policy,relay"
"""What the manual's pages need beside what is always installed."""

COMMANDS = (
    *("serve", "config", "doctor", "relay"),
    *("run", "attach", "ps", "logs", "kill", "cp", "patch", "policy", "completion"),
)


def run(*argv: str | Path, folder: Path) -> str:
    """What it prints. It sees nothing of this environment but how to reach the package index."""
    environment = {"HOME": str(folder), "PATH": "/usr/local/bin:/usr/bin:/bin", "LANG": "C.UTF-8", **of_pip()}
    done = subprocess.run(
        [*map(str, argv)],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=INSTALL_SECONDS,
        check=False,
    )
    assert done.returncode == 0, f"{argv}:\n{done.stdout}{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built from this work tree."""
    folder = tmp_path_factory.mktemp("wheel")
    run(
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "--quiet",
        "--no-deps",
        "--wheel-dir",
        folder,
        ROOT,
        folder=folder,
    )
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def programs(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The programs of an environment that has the wheel and what it asks for."""
    folder = tmp_path_factory.mktemp("empty")
    run(sys.executable, "-m", "venv", folder / "venv", folder=folder)
    found = folder / "venv" / "bin"
    pip = (found / "python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check")
    run(*pip, "--constraint", ROOT / "constraints.txt", f"{wheel}[{EXTRAS}]", folder=folder)
    return found


@pytest.mark.timeout(2 * INSTALL_SECONDS)
def test_the_tutorial_works_from_the_wheel_alone(programs: Path) -> None:
    blocks = blocks_of(TUTORIAL)
    clone, make_run, *rest = blocks
    assert clone.text.startswith("$ git clone")
    # Run by the interpreter of the tests, it would see the repository.
    assert not [block.where for block in rest if block.language == "python" and block.title is None]
    with reader(programs=programs) as one:
        one.follow([installed(make_run), *rest])


def installed(block: Block) -> Block:
    """`make run` as whoever has no Makefile says it."""
    command, line_end, output = block.text.partition("\n")
    assert command == "$ make run"
    return replace(block, text="$ .venv/bin/python -m execclient.quickstart" + line_end + output)


def test_nothing_of_the_repository_is_seen(programs: Path, tmp_path: Path) -> None:
    program = (
        "import execclient.expect, execclient.sync, execserver, sys\n"
        "for module in (execclient.expect, execclient.sync, execserver): print(module.__file__)\n"
        "print(*sys.path, sep='\\n')"
    )
    lines = run(programs / "python", "-c", program, folder=tmp_path).splitlines()
    modules, here, paths = lines[:3], lines[3], lines[4:]
    assert here == ""  # the folder that one is in
    assert all(Path(module).is_relative_to(programs.parent) for module in modules)
    assert paths
    assert not [path for path in paths if Path(path).resolve().is_relative_to(ROOT)]


def test_the_help_lists_all_commands(programs: Path, tmp_path: Path) -> None:
    text = run(programs / "execserver", "--help", folder=tmp_path)
    listed = re.findall(r"^ +([a-z]+)\b", text, re.MULTILINE)
    assert set(COMMANDS) <= set(listed)


def test_pexpect_comes_with_the_extra_only(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (each for each in archive.namelist() if each.endswith(".dist-info/METADATA"))
        metadata = archive.read(name).decode()
    assert "Requires-Dist: pexpect>=4.9; extra == 'expect'" in metadata


def test_what_a_relay_needs_comes_with_the_extra_only(wheel: Path, programs: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (each for each in archive.namelist() if each.endswith(".dist-info/METADATA"))
        needs = re.findall(
            r"^Requires-Dist: (aiohttp|cryptography)[^;\n]*(.*)$", archive.read(name).decode(), re.M
        )

    printed = run(programs / "execserver", "relay", "key", tmp_path / "a.key", folder=tmp_path)

    assert needs == [("aiohttp", "; extra == 'relay'"), ("cryptography", "; extra == 'relay'")]
    assert re.fullmatch(r"[0-9a-f]{64}\n", printed)


def test_the_wheel_has_both_packages_their_types_and_nothing_else(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    assert {name.split("/")[0] for name in names if ".dist-info/" not in name} == {"execserver", "execclient"}
    sources = {
        str(path.relative_to(base))
        for base, package in ((ROOT, "execserver"), (ROOT / "clients" / "python", "execclient"))
        for path in (base / package).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert {name for name in names if ".dist-info/" not in name} == sources
    assert "execclient/py.typed" in names
