"""The page of the client library is made from its code, and has all that is public."""

from __future__ import annotations

import inspect
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import execclient
from execclient import errors, expect, sync
from tests.conftest import StartServer
from tests.docs.pages import ROOT, Block, blocks_of
from tools.client_reference import DriftError, main, page

SOURCES = ROOT / "clients" / "python"
PAGE = ROOT / "docs" / "reference" / "client.md"
EXAMPLE_TEST = "tests/docs/test_client_reference.py::test_an_example_in_a_docstring_runs"

RUNNER = """
import ast, asyncio, sys
from execclient import connect
code = compile(sys.stdin.read(), "example", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
result = eval(code, {"connect": connect})
if result is not None:
    asyncio.run(result)
"""


def headings() -> list[str]:
    return re.findall(r"^#+ `(.+)`$", page(SOURCES), re.MULTILINE)


def test_the_page_is_what_the_code_says() -> None:
    assert main(["--check", str(SOURCES), str(PAGE)]) == 0


def test_every_public_name_has_a_heading_of_its_own() -> None:
    found = headings()
    assert len(found) == len(set(found))
    assert {*execclient.__all__, *expect.__all__} <= set(found)


@pytest.mark.parametrize(
    "owner", [execclient.Executor, execclient.Process, execclient.FileSystem, expect.RemoteSpawn]
)
def test_every_method_has_its_arguments(owner: type) -> None:
    text = page(SOURCES)
    methods = {
        name: method
        for name, method in vars(owner).items()
        if inspect.isfunction(method) and not name.startswith("_")
    }
    assert methods
    for name, method in methods.items():
        section = text.partition(f"\n#### `{owner.__name__}.{name}`\n")[2].partition("\n#")[0]
        signature = re.search(rf"^(async )?def {name}\((.*?)\) -> ", section, re.MULTILINE | re.DOTALL)
        assert signature, f"{owner.__name__}.{name}"
        assert bool(signature[1]) == inspect.iscoroutinefunction(method), name
        for parameter in inspect.signature(method).parameters:
            assert parameter == "self" or re.search(rf"\b{parameter}: ", signature[2]), f"{name}: {parameter}"


def test_every_error_has_its_code_and_its_place_in_the_tree() -> None:
    text = page(SOURCES)
    tree = text.partition("\n## Errors\n")[2].partition("```text\n")[2].partition("\n```")[0]
    kinds = [kind for kind in vars(errors).values() if inspect.isclass(kind) and hasattr(kind, "code")]
    for kind in kinds:
        assert re.search(rf"\b{kind.__name__} +{kind.code}\b", tree), kind
        assert f"\n### `{kind.__name__}`\n\n`{kind.code}`; a kind of " in text


def test_the_table_of_sync_has_all_its_names() -> None:
    section = page(SOURCES).partition("\n## `execclient.sync`\n")[2].partition("\n## ")[0]
    for owner in (sync.Executor, sync.Process, sync.FileSystem):
        row = re.search(rf"^\| `{owner.__name__}` \| (.+) \|$", section, re.MULTILINE)
        assert row
        public = {name for name in vars(owner) if not name.startswith("_")}
        assert public <= set(re.findall(r"\[`(\w+)`\]", row[1]))


def examples() -> list[Block]:
    return [block for block in blocks_of(PAGE) if block.place == EXAMPLE_TEST]


def test_there_are_examples() -> None:
    assert len(examples()) == 3


@pytest.mark.parametrize("block", examples(), ids=lambda block: f"line {block.line}")
def test_an_example_in_a_docstring_runs(block: Block, start_server: StartServer, tmp_path: Path) -> None:
    server = start_server("ws://127.0.0.1:0")
    programs = tmp_path / "programs"
    programs.mkdir()
    # What is asked of another machine is done here; tests/docs/test_ssh.py has a real one.
    (programs / "ssh").write_text('#!/bin/sh\nshift\nexec "$@"\n')
    (programs / "ssh").chmod(0o755)
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", RUNNER],
        input=re.sub(r"ws://build-host:\d+", server.url, block.text),
        env={
            "PATH": f"{programs}:{Path(sys.executable).parent}:/usr/bin:/bin",
            "HOME": str(tmp_path),
            "TERM": "dumb",
            "EXECSERVER_URL": server.url,
            "EXECSERVER_CONFIG": "",
        },
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=40,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.strip()


@pytest.fixture
def changed(tmp_path: Path) -> Path:
    """Sources that a test may change."""
    shutil.copytree(
        SOURCES / "execclient", tmp_path / "execclient", ignore=shutil.ignore_patterns("__pycache__")
    )
    return tmp_path


def replace_in(file: Path, old: str, new: str) -> None:
    text = file.read_text()
    assert text.count(old) == 1
    file.write_text(text.replace(old, new))


def test_a_changed_docstring_makes_the_page_stale(changed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    replace_in(changed / "execclient" / "client.py", "Start a process, and go on.", "Start a process.")
    assert main(["--check", str(changed), str(PAGE)]) == 1
    assert "make schemas" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("file", "old", "new", "message"),
    [
        (
            "client.py",
            '"""Start a process, and go on.\n',
            'r"""\n    Yields:\n        int: x\n\n',
            "no place",
        ),
        ("errors.py", "├── CallTimeout  ", "├── CallTooSlow  ", "lacks CallTimeout"),
        ("__init__.py", '    "CallTimeout",\n', "", "cannot be imported"),
        ("sync.py", "    call = _blocking(", "    ask = _blocking(", "has no ask"),
    ],
)
def test_what_has_no_place_is_an_error(
    file: str, old: str, new: str, message: str, changed: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    replace_in(changed / "execclient" / file, old, new)
    with pytest.raises(DriftError, match=message):
        page(changed)
    assert main([str(changed), str(changed / "page.md")]) == 1
    assert not (changed / "page.md").exists()
    assert capsys.readouterr().err
