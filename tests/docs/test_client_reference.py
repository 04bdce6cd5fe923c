"""The pages of the client library are made from its code, and have all that is public."""

from __future__ import annotations

import functools
import inspect
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

import execclient
import execclient.patch
import execclient.tools
from execclient import errors, expect, search, sync
from execclient.govern import approval_policy, approvals, policy, queue_approver, sandbox, terminal_approver
from execclient.patch import errors as patch_errors
from execclient.tools import errors as tools_errors
from execclient.tools import registry
from tests.conftest import StartServer
from tests.docs.pages import ROOT, Block, blocks_of
from tools.client_reference import ClientPage, main
from tools.reference_page import DriftError, Sources, load, slug
from tools.tools_reference import SECTIONS, ToolsPage

SOURCES = ROOT / "clients" / "python"
PAGE = ROOT / "docs" / "reference" / "client.md"
TOOLS_PAGE = ROOT / "docs" / "reference" / "tools.md"
EXAMPLE_TEST = "tests/docs/test_client_reference.py::test_an_example_in_a_docstring_runs"

RUNNER = """
import ast, asyncio, sys
from execclient import connect
code = compile(sys.stdin.read(), "example", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
result = eval(code, {"connect": connect})
if result is not None:
    asyncio.run(result)
"""


TOOLS_MODULES = (
    execclient.tools,
    registry,
    approvals,
    approval_policy,
    terminal_approver,
    queue_approver,
    sandbox,
    policy,
    execclient.patch,
)


@functools.cache
def code() -> Sources:
    return load(SOURCES)


@functools.cache
def client_page() -> str:
    return ClientPage(code()).text()


@functools.cache
def tools_page() -> str:
    return ToolsPage(code()).text()


def headings(text: str) -> list[str]:
    return re.findall(r"^#+ `(.+)`$", text, re.MULTILINE)


def test_the_pages_are_what_the_code_says() -> None:
    assert main(["--check", str(SOURCES), str(PAGE), str(TOOLS_PAGE)]) == 0


def test_every_public_name_has_a_heading_of_its_own() -> None:
    found = headings(client_page())
    assert len(found) == len(set(found))
    assert {*execclient.__all__, *expect.__all__, *search.__all__} <= {*found, "Truncated"}


@pytest.mark.parametrize(
    "owner", [execclient.Executor, execclient.Process, execclient.FileSystem, expect.RemoteSpawn]
)
def test_every_method_has_its_arguments(owner: type) -> None:
    text = client_page()
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


@pytest.mark.parametrize(
    ("module", "is_tool", "heading"),
    [
        (errors, False, "## Errors"),
        (tools_errors, True, "## `execclient.tools.errors`"),
        (patch_errors, True, "### Errors of `execclient.patch`"),
    ],
)
def test_every_error_has_its_code_and_its_place_in_the_tree(
    module: ModuleType, is_tool: bool, heading: str
) -> None:
    text = tools_page() if is_tool else client_page()
    tree = text.partition(f"\n{heading}\n")[2].partition("```text\n")[2].partition("\n```")[0]
    kinds = [
        kind
        for kind in vars(module).values()
        if inspect.isclass(kind) and hasattr(kind, "code") and kind.__module__ == module.__name__
    ]
    assert kinds
    for kind in kinds:
        if "code" not in vars(kind) and len(kind.__bases__) == 2:
            continue  # joins a class of Python, for one `errno`, with another error
        assert re.search(rf"\b{kind.__name__} +{kind.code}\b", tree), kind
        assert f"\n### `{kind.__name__}`\n\n`{kind.code}`; a kind of " in text


def test_the_table_of_sync_has_all_its_names() -> None:
    section = client_page().partition("\n## `execclient.sync`\n")[2].partition("\n## ")[0]
    for owner in (sync.Executor, sync.Process, sync.FileSystem):
        row = re.search(rf"^\| `{owner.__name__}` \| (.+) \|$", section, re.MULTILINE)
        assert row
        public = {name for name in vars(owner) if not name.startswith("_")}
        assert public <= set(re.findall(r"\[`(\w+)`\]", row[1]))


def test_the_page_of_the_tools_has_all_names_of_its_modules() -> None:
    assert [module.__name__ for module in TOOLS_MODULES] == [
        f"execclient.{section.module}" for section in SECTIONS if not section.module.endswith("errors")
    ]
    places = [heading.rpartition(".")[2] for heading in headings(tools_page())]
    rows = re.findall(r"^\| `(\w+)` \|", tools_page(), re.MULTILINE)
    for module in TOOLS_MODULES:
        for name in module.__all__:
            assert name in (rows if name.isupper() else [*places, *rows]), f"{module.__name__}.{name}"


@pytest.mark.parametrize("owner", [execclient.tools.Toolset, approvals.Approvals, policy.Policy])
def test_every_public_member_of_a_tools_class_is_on_the_page(owner: type) -> None:
    section = tools_page().partition(f"\n### `{owner.__name__}`\n")[2].partition("\n### ")[0]
    for name, member in vars(owner).items():
        if name.startswith("_"):
            continue
        if isinstance(member, property):
            assert f"\n| `{name}` | " in section, name
        elif inspect.isroutine(member) or isinstance(member, classmethod):
            assert f"\n#### `{owner.__name__}.{name}`\n" in section, name


def test_what_all_sandboxes_have_is_said_once() -> None:
    assert tools_page().count("def context(") == 1
    assert "\n#### `SandboxPolicy.context`\n" in tools_page()
    assert '| `kind` | `str = "read-only"` |' in tools_page()


def test_attributes_have_the_values_that_they_are_made_with() -> None:
    assert "| `shell_max_timeout` | `float = 600.0` | The longest" in tools_page()
    assert "| `env` | `Mapping[str, str] = dict()` | " in tools_page()
    assert "| `retry` | `bool` | " in tools_page()  # none of a request: it has to be given


def test_links_within_the_pages_lead_to_headings() -> None:
    anchors = {}
    for name, text in zip(("client.md", "tools.md"), (client_page(), tools_page()), strict=True):
        found = [slug(heading) for heading in re.findall(r"^#+ (.+)$", text, re.MULTILINE)]
        assert len(found) == len(set(found)), "two headings with one anchor"
        anchors[name] = set(found)
    for name, text in zip(("client.md", "tools.md"), (client_page(), tools_page()), strict=True):
        links = re.findall(r"\]\(((?:client|tools)\.md)?#([^)]+)\)", text)
        assert links
        for target, anchor in links:
            assert anchor in anchors[target or name], f"{name}: {target}#{anchor}"


def examples() -> list[Block]:
    return [block for block in blocks_of(PAGE) if block.place == EXAMPLE_TEST]


def test_there_are_examples() -> None:
    assert len(examples()) == 4


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


def test_changed_docstrings_make_their_pages_stale(changed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    replace_in(
        changed / "execclient" / "client.py", "Start a process, and return while it runs.", "Start a process."
    )
    replace_in(changed / "execclient" / "tools" / "toolset.py", "Carry out a call of a model.", "Do it.")
    assert main(["--check", str(changed), str(PAGE), str(TOOLS_PAGE)]) == 1
    lines = capsys.readouterr().err.splitlines()
    assert [line.partition(" is not what")[0] for line in lines] == [str(PAGE), str(TOOLS_PAGE)]
    assert all("make schemas" in line for line in lines)


@pytest.mark.parametrize(
    ("file", "old", "new", "message"),
    [
        (
            "client.py",
            '"""Start a process, and return while it runs.\n',
            'r"""\n    Yields:\n        int: x\n\n',
            "no place",
        ),
        ("errors.py", "├── CallTimeout  ", "├── CallTooSlow  ", "lacks CallTimeout"),
        ("__init__.py", '    "CallTimeout",\n', "", "cannot be imported"),
        ("sync.py", "    call = _blocking(", "    ask = _blocking(", "has no ask"),
        ("tools/events.py", '"""All events."""\n', "", "ToolEvent has no docstring"),
    ],
)
def test_what_has_no_place_is_an_error(
    file: str, old: str, new: str, message: str, changed: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    replace_in(changed / "execclient" / file, old, new)
    targets = [changed / "client.md", changed / "tools.md"]
    assert main([str(changed), *map(str, targets)]) == 1
    assert message in capsys.readouterr().err
    assert not any(target.exists() for target in targets)


# The code is read once for the next ones, and what was read is changed: reading takes a second.


@pytest.mark.parametrize(
    "path", ["tools.toolset.Inspection", "tools.toolset.Toolset.call", "govern.approvals.ACCEPT"]
)
def test_a_public_name_of_the_tools_without_a_docstring_is_an_error(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(code().package[path], "docstring", None)
    with pytest.raises(DriftError, match=rf"{path} has no docstring"):
        ToolsPage(code()).text()


@pytest.mark.parametrize(
    ("path", "exports", "message"),
    [
        ("govern.sandbox", None, "sandbox has no __all__"),
        ("govern.policy", ["Policy", "Requirement"], "policy has no decide, which its section begins with"),
        (
            "patch",
            [name for name in execclient.patch.__all__ if name != "EmptyPatch"],
            r"EmptyPatch is raised, and cannot be imported from execclient\.patch",
        ),
    ],
)
def test_modules_and_their_sections_have_to_agree(
    path: str, exports: list[str] | None, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(code().package[path], "exports", exports)
    with pytest.raises(DriftError, match=message):
        ToolsPage(code()).text()


def test_an_error_of_the_tools_that_their_tree_lacks_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    docstring = code().package["tools.errors"].docstring
    monkeypatch.setattr(docstring, "value", docstring.value.replace("TimedOut", "TooSlow"))
    with pytest.raises(DriftError, match="lacks TimedOut"):
        ToolsPage(code()).text()


def test_two_types_of_one_name_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(code().package["govern.approvals.Argv"], "value", "list[str]")
    with pytest.raises(DriftError, match="different types of one name"):
        ToolsPage(code()).text()
