"""The tools for files. They see what commands see."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from mcp import Client

from tests.third_party.mcp.conftest import Hosts, text

pytestmark = pytest.mark.parametrize("mode", ["auto"], indirect=True)


async def call(client: Client, tool: str, **arguments: object) -> str:
    result = await client.call_tool(tool, arguments)
    assert not result.is_error, text(result)
    return text(result)


async def failure(client: Client, tool: str, **arguments: object) -> str:
    result = await client.call_tool(tool, arguments)
    assert result.is_error
    return text(result)


@pytest.fixture
def project(hosts: Hosts) -> Path:
    """Some files in the workspace."""
    (hosts.workspace / "src/deep").mkdir(parents=True)
    (hosts.workspace / "src/main.py").write_text("import sys\n\nprint('hello', sys.argv)\n")
    (hosts.workspace / "src/deep/other.py").write_text("print('Hello again')\n")
    (hosts.workspace / "README.md").write_text("Says hello.\n")
    (hosts.workspace / "build").mkdir()
    (hosts.workspace / "build/out.txt").write_text("hello\n")
    (hosts.workspace / ".gitignore").write_text("build/\n")
    return hosts.workspace


@pytest.mark.without_chaos
async def test_files_are_listed_found_searched_and_read(hosts: Hosts, project: Path) -> None:
    async with hosts.start() as client:
        assert await call(client, "list_directory") == ".gitignore\nREADME.md\nbuild/\nsrc/\n"
        assert await call(client, "list_directory", path=str(project / "src")) == "deep/\nmain.py\n"
        assert await call(client, "find_files", glob="*.py") == "src/deep/other.py\nsrc/main.py\n"
        assert await call(client, "find_files", glob="src/*.py") == "src/main.py\n"
        assert await call(client, "find_files", glob="*.rs") == "[no file matches]"
        hello = "src/main.py:3:print('hello', sys.argv)\n"
        known = f"README.md:1:Says hello.\n{hello}"
        found = f"README.md:1:Says hello.\nbuild/out.txt:1:hello\n{hello}"
        assert await call(client, "search_files", pattern="hello") == found
        assert await call(client, "search_files", pattern="hello", ignored=False) == known
        assert await call(client, "find_files", glob="*.txt") == "build/out.txt\n"
        assert await call(client, "find_files", glob="*.txt", ignored=False) == "[no file matches]"
        assert await call(client, "search_files", pattern="hello", glob="*.py") == hello
        both = await call(client, "search_files", pattern="^print.*H?ello", regex=True, ignore_case=True)
        assert both == f"src/deep/other.py:1:print('Hello again')\n{hello}"
        assert await call(client, "read_file", path="README.md") == "Says hello.\n"


async def test_long_files_are_read_in_parts(hosts: Hosts) -> None:
    lines = [f"line {number}\n" for number in range(1, 20_001)]
    (hosts.workspace / "long").write_text("".join(lines))
    async with hosts.start() as client:
        read, offset, more = "", 1, True
        while more:
            answer = await call(client, "read_file", path="long", offset=offset)
            part = re.fullmatch(r"(.*\n)(?:\n\[.* go on with offset (\d+)\])?", answer, re.DOTALL)
            assert part, answer
            read, more = read + part[1], part[2] is not None
            offset = int(part[2] or 0)
        some = await call(client, "read_file", path="long", offset=3, limit=2)

    assert read == "".join(lines)
    assert some == "line 3\nline 4\n\n[lines 3 to 4 of 20000; go on with offset 5]"


async def test_answers_are_as_long_as_a_call_asks_for_and_10000_tokens_at_most(hosts: Hosts) -> None:
    (hosts.workspace / "wide").write_text("x" * 50_000)
    async with hosts.start() as client:
        for asked, size in (
            ({}, 40_000),
            ({"max_output_tokens": 20_000}, 40_000),
            ({"max_output_tokens": 5}, 20),
        ):
            answer = await call(client, "read_file", path="wide", **asked)
            assert answer.startswith("x" * size + f"\n[line 1 has more than these {size} bytes: ")


@pytest.mark.without_chaos
async def test_what_cannot_be_read_is_explained(hosts: Hosts) -> None:
    (hosts.workspace / "binary").write_bytes(b"\x7fELF\0\0")
    (hosts.workspace / "empty").touch()
    async with hosts.start() as client:
        assert "is no text: it has 6 bytes" in await failure(client, "read_file", path="binary")
        assert "no such file" in (await failure(client, "read_file", path="missing")).lower()
        assert "has 0 lines" in await failure(client, "read_file", path="empty", offset=2)
        assert "invalid type: string" in await failure(client, "read_file", path="empty", offset="two")
        assert "no such file" in (await failure(client, "list_directory", path="missing")).lower()
        assert await call(client, "read_file", path="empty") == "[the file is empty]"


async def test_a_patch_changes_files_in_the_workspace_only(hosts: Hosts, project: Path) -> None:
    patch = "*** Begin Patch\n*** Update File: README.md\n@@\n-Says hello.\n+Says more.\n*** End Patch"
    outside = f"*** Begin Patch\n*** Add File: {Path(__file__).parent}/x\n+x\n*** End Patch"
    async with hosts.start() as client:
        assert "README.md" in await call(client, "apply_patch", input=patch)
        await failure(client, "apply_patch", input=outside)

    assert (project / "README.md").read_text() == "Says more.\n"
    assert not (Path(__file__).parent / "x").exists()
