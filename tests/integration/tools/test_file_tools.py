"""`read_file`, `list_dir`, `grep` and `glob` of a toolset: answers, budgets, and the sandbox."""

from __future__ import annotations

import asyncio
import os
import re
from pathlib import Path

import pytest

from execclient import Executor
from execclient.govern.approval_policy import UNTRUSTED
from execclient.govern.approvals import Review
from execclient.govern.sandbox import DangerFullAccess, ReadOnly, WorkspaceWrite
from execclient.tools import CallBegin, CallEnd, ToolEvent, ToolResult, ToolsConfig, Turn
from execclient.tools.toolset import Toolset
from execclient.tools.truncation import Budget
from tests.support.toolsets import ONE_TRANSPORT, Make, User

pytestmark = ONE_TRANSPORT

FILE_TOOLS = ["read_file", "list_dir", "grep", "glob"]
SHOWN = ToolsConfig(file_tools=True)


@pytest.fixture
def tools(make: Make) -> Toolset:
    """A toolset with the file tools."""
    return make(config=SHOWN)


@pytest.fixture
def project(workspace: Path) -> Path:
    """Some files in the workspace, besides `a.txt`."""
    (workspace / "src/deep").mkdir(parents=True)
    (workspace / "src/main.py").write_text("import sys\n\nprint('hello', sys.argv)\n")
    (workspace / "src/deep/other.py").write_text("print('Hello again')\n")
    (workspace / ".git").mkdir()
    (workspace / ".git/config").write_text("hello\n")
    return workspace


async def answer(tools: Toolset, name: str, **arguments: object) -> str:
    """The text of a call that succeeds."""
    result = await tools.call(name, arguments)
    assert result.success, result.content
    return result.content


async def failure(tools: Toolset, name: str, **arguments: object) -> ToolResult:
    """The result of a call that fails."""
    result = await tools.call(name, arguments)
    assert result.failure is not None, result.content
    return result


# -- which tools there are


async def test_a_model_is_shown_the_file_tools_only_if_the_host_asks_for_them(make: Make) -> None:
    without, with_them = make(), make(config=SHOWN)

    assert [spec["name"] for spec in without.specs()] == ["exec_command", "write_stdin"]
    assert [spec["name"] for spec in with_them.specs()] == ["exec_command", "write_stdin", *FILE_TOOLS]


@pytest.mark.parametrize("name", FILE_TOOLS)
async def test_a_file_tool_that_was_not_asked_for_cannot_be_called(make: Make, name: str) -> None:
    result = await failure(make(), name, path="a.txt", pattern="hello")

    assert result.content == f"unsupported call: {name}"


async def test_file_tools_work_without_shell_tools(make: Make) -> None:
    tools = make(config=ToolsConfig(shell_type="disabled", file_tools=True))

    assert [spec["name"] for spec in tools.specs()] == FILE_TOOLS
    assert await answer(tools, "read_file", path="a.txt") == "hello\n"


# -- answers


async def test_files_are_listed_found_searched_and_read(tools: Toolset, project: Path) -> None:
    assert await answer(tools, "list_dir") == ".git/\na.txt\nsrc/\n"
    assert await answer(tools, "list_dir", path=str(project / "src")) == "deep/\nmain.py\n"
    assert await answer(tools, "glob", glob="*.py") == "src/deep/other.py\nsrc/main.py\n"
    assert await answer(tools, "glob", glob="src/*.py") == "src/main.py\n"
    assert await answer(tools, "glob", glob="*.py", path="src/deep") == "src/deep/other.py\n"
    assert await answer(tools, "glob", glob="config") == "[no file matches]"
    assert await answer(tools, "glob", glob="*.rs") == "[no file matches]"
    hello = "src/main.py:3:print('hello', sys.argv)\n"
    assert await answer(tools, "grep", pattern="hello") == f"a.txt:1:hello\n{hello}"
    assert await answer(tools, "grep", pattern="hello", glob="*.py") == hello
    both = await answer(tools, "grep", pattern="^print.*H?ello", ignore_case=True)
    assert both == f"src/deep/other.py:1:print('Hello again')\n{hello}"
    assert await answer(tools, "grep", pattern="hello", output="files") == "a.txt\nsrc/main.py\n"
    assert await answer(tools, "grep", pattern="no such text") == "[no line matches]"
    assert await answer(tools, "grep", pattern="('hello", regex=False) == hello
    assert await answer(tools, "read_file", path="a.txt") == "hello\n"


async def test_lines_around_matches_are_shown_in_groups(tools: Toolset, workspace: Path) -> None:
    (workspace / "b.txt").write_text("".join(f"line {number}\n" for number in range(1, 21)))

    found = await answer(tools, "grep", pattern="^line (3|5|11|hello)$|^hello", context_lines=1)

    assert found.splitlines() == [
        *("a.txt:1:hello", "--"),
        *("b.txt-2-line 2", "b.txt:3:line 3", "b.txt-4-line 4", "b.txt:5:line 5", "b.txt-6-line 6", "--"),
        *("b.txt-10-line 10", "b.txt:11:line 11", "b.txt-12-line 12"),
    ]


async def test_a_match_may_span_lines(tools: Toolset, project: Path) -> None:
    arguments = {"pattern": r"sys\n\nprint", "path": "src/main.py"}

    assert "pattern" in (await failure(tools, "grep", **arguments)).content
    found = await answer(tools, "grep", **arguments, multiline=True)
    assert found == "src/main.py:1:import sys\nsrc/main.py:2:\nsrc/main.py:3:print('hello', sys.argv)\n"
    plain = await failure(tools, "grep", **arguments, multiline=True, regex=False)
    assert "multiline needs a regular expression" in plain.content


async def test_ignored_files_are_searched_only_if_the_call_says_so(tools: Toolset, workspace: Path) -> None:
    (workspace / ".gitignore").write_text("build/\n")
    (workspace / "build").mkdir()
    (workspace / "build/out.txt").write_text("hello\n")
    (workspace / ".env").write_text("hello\n")

    for found, ignored in ((["a.txt"], False), (["a.txt", "build/out.txt"], True)):
        assert (await answer(tools, "glob", glob="*.txt", ignored=ignored)).splitlines() == found
        hidden = [".env", *found]
        lines = (await answer(tools, "grep", pattern="hello", ignored=ignored)).splitlines()
        assert lines == [f"{name}:1:hello" for name in hidden]
        files = await answer(tools, "grep", pattern="hello", ignored=ignored, output="files")
        assert files.splitlines() == hidden


async def test_a_file_with_many_matches_does_not_hide_the_files_after_it(
    tools: Toolset, workspace: Path
) -> None:
    (workspace / "a.txt").write_text("hello\n" * 5000)
    (workspace / "b.txt").write_text("hello\n")

    assert await answer(tools, "grep", pattern="hello", output="files") == "a.txt\nb.txt\n"


async def test_levels_of_folders_are_listed_and_hidden_folders_are_not_entered(
    tools: Toolset, project: Path
) -> None:
    (project / "src-old").touch()

    two = await answer(tools, "list_dir", depth=2)
    assert two == ".git/\na.txt\nsrc/\nsrc/deep/\nsrc/main.py\nsrc-old\n"
    assert "src/deep/other.py\n" in await answer(tools, "list_dir", depth=3)


async def test_a_range_of_lines_is_read(tools: Toolset, workspace: Path) -> None:
    (workspace / "b.txt").write_text("one\ntwo\r\nthree\x0cfour\nfive")

    assert await answer(tools, "read_file", path="b.txt", offset=2, limit=1) == (
        "two\r\n\n[lines 2 to 2 of 4; go on with offset 3]"
    )
    assert await answer(tools, "read_file", path="b.txt", offset=3) == "three\x0cfour\nfive"
    assert await answer(tools, "grep", pattern="five") == "b.txt:4:five\n"
    assert await answer(tools, "read_file", path="b.txt", offset=4, limit=9) == "five"


async def test_a_file_without_a_size_is_read(make: Make) -> None:
    tools = make(config=SHOWN, sandbox=DangerFullAccess())

    assert "Linux" in await answer(tools, "read_file", path="/proc/version")


async def test_names_and_texts_that_are_not_utf8_are_text_for_the_model(
    tools: Toolset, workspace: Path
) -> None:
    Path(os.fsdecode(os.fsencode(workspace) + b"/\xff\n")).write_bytes(b"found \xfe\n")

    assert await answer(tools, "list_dir") == "a.txt\n\ufffd\\n\n"
    assert await answer(tools, "glob", glob="?*") == "a.txt\n\\udcff\\n\n"
    assert await answer(tools, "grep", pattern="found") == "\\udcff\\n:1:found \ufffd\n"


async def test_what_cannot_be_read_is_explained(tools: Toolset, workspace: Path) -> None:
    (workspace / "binary").write_bytes(b"\x7fELF\0\0")
    (workspace / "empty").touch()
    (workspace / "nothing").mkdir()

    for name, arguments, message in (
        ("read_file", {"path": "binary"}, "is no text: it has 6 bytes, with NUL among them"),
        ("read_file", {"path": "a.txt", "offset": 2}, "has 1 lines"),
        ("read_file", {"path": "empty", "offset": 2}, "has 0 lines"),
        ("list_dir", {"path": ".", "offset": 9}, "has 4 entries"),
        ("list_dir", {"depth": 99}, "a whole number from 1 to 16"),
        ("grep", {"pattern": "("}, "pattern is not valid"),
        ("glob", {"glob": "../*"}, "'..', which leads out of the searched folder"),
        ("glob", {"glob": "*", "path": "a.txt"}, "Not a directory"),
        ("read_file", {"path": "a.txt", "offset": 0}, "1 or more"),
        ("read_file", {"path": "a.txt", "line": 1}, "unknown field `line`"),
    ):
        result = await failure(tools, name, **arguments)
        assert message in result.content
        assert result.failure is not None
        assert result.failure.kind == "arguments"

    for name in ("read_file", "list_dir", "grep", "glob"):
        missing = await failure(tools, name, path="missing", **_required(name))
        assert "no such file" in missing.content.lower()
        assert missing.failure is not None
        assert missing.failure.kind == "io"
    assert "is not a file" in (await failure(tools, "read_file", path="nothing")).content
    assert await answer(tools, "read_file", path="empty") == "[the file is empty]"
    assert await answer(tools, "list_dir", path="nothing") == "[the folder is empty]"
    assert await answer(tools, "list_dir", path="nothing", depth=2) == "[the folder is empty]"


def _required(name: str) -> dict[str, str]:
    return {"grep": {"pattern": "x"}, "glob": {"glob": "*"}}.get(name, {})


# -- budgets


async def test_a_long_file_is_read_in_parts_that_fit_into_the_budget(tools: Toolset, workspace: Path) -> None:
    text = "".join(f"line {number} äöü\n" for number in range(1, 3001))
    (workspace / "long").write_text(text)

    read, offset, parts = "", 1, 0
    while offset:
        result = await tools.call("read_file", {"path": "long", "offset": offset, "max_output_tokens": 2000})
        part = re.fullmatch(
            r"(.*\n)(?:\n\[lines (\d+) to \d+ of 3000; go on with offset (\d+)\])?", result.content, re.DOTALL
        )
        assert part, result.content
        assert len(part[1].encode()) <= 8000
        assert result.truncated == (part[3] is not None)
        read, offset, parts = read + part[1], int(part[3] or 0), parts + 1

    assert read == text
    assert parts == -(-len(text.encode()) // 8000)


async def test_the_limit_of_the_model_holds_whatever_a_call_asks_for(make: Make, workspace: Path) -> None:
    (workspace / "long").write_text("0123456789abcde\n" * 1000)
    tools = make(config=ToolsConfig(file_tools=True, model_budget=Budget(100, "tokens")))

    wanted: list[dict[str, object]] = [{}, {"max_output_tokens": 5000}]
    for asked in wanted:
        result = await answer(tools, "read_file", path="long", **asked)
        assert result.endswith("\n\n[lines 1 to 25 of 1000; go on with offset 26]")
    smaller = await answer(tools, "read_file", path="long", max_output_tokens=10)
    assert smaller.endswith("\n\n[lines 1 to 2 of 1000; go on with offset 3]")


async def test_a_line_that_exceeds_the_budget_is_cut_at_a_character(tools: Toolset, workspace: Path) -> None:
    (workspace / "wide").write_text(f"{'ä' * 1000}\nnext\n")

    result = await tools.call("read_file", {"path": "wide", "max_output_tokens": 2})
    line, cut, more = result.content.rsplit("\n", 2)
    assert line == "ä" * 4
    assert re.fullmatch(r"\[line 1 has more than these 8 bytes: use exec_command: (.*)\]", cut)
    assert more == "[lines 1 to 1 of 2; go on with offset 2]"
    assert result.truncated
    command = cut.partition("exec_command: ")[2].removesuffix("]")
    rest = await tools.call("exec_command", {"cmd": command, "login": False})
    assert rest.aggregated_output == "ä" * 4 + "\n"


async def test_a_large_file_is_read_as_far_as_needed(
    tools: Toolset, executor: Executor, workspace: Path
) -> None:
    with (workspace / "large").open("w") as file:
        for number in range(1, 300_001):
            file.write(f"{number:>9} {'x' * 89}\n")
    with (workspace / "large").open("ab") as file:
        file.truncate(200 << 20)

    first = await answer(tools, "read_file", path="large", limit=1)
    assert first == f"        1 {'x' * 89}\n\n[lines 1 to 1; go on with offset 2]"
    later = await answer(tools, "read_file", path="large", offset=150_000, limit=2)
    assert [line.split()[0] for line in later.splitlines()[:2]] == ["150000", "150001"]
    far = (await failure(tools, "read_file", path="large", offset=299_000)).content
    assert "the lines are not in the first 16777216 bytes" in far
    command = far.partition("exec_command: ")[2]
    read = await tools.call("exec_command", {"cmd": command, "login": False})
    assert read.aggregated_output.startswith("   299000 x")


async def test_a_large_file_of_one_line_is_read_no_further_than_the_budget(
    tools: Toolset, workspace: Path
) -> None:
    (workspace / "minified.js").write_text("x" * (40 << 20))

    result = await answer(tools, "read_file", path="minified.js", max_output_tokens=5)

    assert result.startswith("x" * 20 + "\n[line 1 has more than these 20 bytes")


async def test_a_long_listing_goes_on_with_its_offset(tools: Toolset, workspace: Path) -> None:
    for number in range(500):
        (workspace / f"{number:03}").touch()

    listed, offset = "", 1
    while offset:
        text = await answer(tools, "list_dir", offset=offset, max_output_tokens=200)
        names, _, note = text.partition("\n\n[entries ")
        assert len(names) <= 800
        listed += names.removesuffix("\n") + "\n"
        offset = int(note.rpartition(" ")[2].removesuffix("]") or 0)

    assert listed.split() == [*(f"{number:03}" for number in range(500)), "a.txt"]


async def test_results_that_do_not_fit_are_stated(tools: Toolset, workspace: Path) -> None:
    (workspace / "many").write_text("word\n" * 3000)
    for number in range(100):
        (workspace / f"word{number}").touch()

    for name, arguments in (("grep", {"pattern": "word"}), ("glob", {"glob": "word*"})):
        result = await tools.call(name, {**arguments, "max_output_tokens": 50})
        assert len(result.content) <= 200 + len("\n[there are more: narrow the call down]")
        assert result.content.endswith("\n\n[there are more: narrow the call down]")
        assert result.truncated


async def test_a_long_line_that_is_found_does_not_hide_the_others(tools: Toolset, workspace: Path) -> None:
    (workspace / "b.js").write_text(f"{'x' * 900}äöü hello {'y' * 100_000}\nhello\n")

    first, second, third = (await answer(tools, "grep", pattern="hello")).splitlines()

    assert first == "a.txt:1:hello"
    assert re.fullmatch(r"b.js:1:\[…\]x+äöü hello y+\[…\]", second), second
    assert len(second) < 600
    assert third == "b.js:2:hello"


# -- what a call may read


async def test_a_model_reads_what_its_sandbox_permits(make: Make, project: Path) -> None:
    (project / "secret.txt").write_text("hello\n")
    (project / "hidden").mkdir()
    (project / "hidden/x.txt").write_text("hello\n")
    denied = ("**/secret*", "hidden")

    for sandbox in (ReadOnly(deny_read=denied), WorkspaceWrite(deny_read=denied)):
        tools = make(config=SHOWN, sandbox=sandbox)
        assert (await failure(tools, "read_file", path="secret.txt")).failure is not None
        assert (await failure(tools, "read_file", path="hidden/x.txt")).failure is not None
        assert (await failure(tools, "list_dir", path="hidden")).failure is not None
        assert "x.txt" not in await answer(tools, "list_dir", depth=3)
        found = await answer(tools, "grep", pattern="hello", output="files")
        assert [line for line in found.splitlines() if "not read" not in line] == ["a.txt", "src/main.py"]
        assert "x.txt" not in await answer(tools, "glob", glob="**/*.txt")
        free = Turn(sandbox=DangerFullAccess())
        assert (await tools.call("read_file", {"path": "secret.txt"}, turn=free)).content == "hello\n"


async def test_reading_needs_no_approval(make: Make, workspace: Path) -> None:
    user = User(Review("denied", "no"))
    tools = make(config=SHOWN, user=user, approval=UNTRUSTED)

    assert await answer(tools, "read_file", path="a.txt") == "hello\n"
    assert user.asked == []
    assert not await tools.is_mutating("read_file", {"path": "a.txt"})


async def test_a_turn_may_have_another_folder(tools: Toolset, project: Path) -> None:
    result = await tools.call("glob", {"glob": "*.py"}, turn=Turn(cwd=str(project / "src")))

    assert result.content == "deep/other.py\nmain.py\n"


async def test_another_executor_reads_its_own_files(executor: Executor, workspace: Path) -> None:
    toolset = Toolset({"one": executor, "two": executor}, cwd=str(workspace), config=SHOWN)

    async with toolset:
        assert await answer(toolset, "read_file", path="a.txt", environment_id="two") == "hello\n"
        unknown = await failure(toolset, "read_file", path="a.txt", environment_id="three")

    assert "unknown environment_id 'three'; there is one, two" in unknown.content


# -- beside other calls


async def test_a_call_begins_with_the_file_that_it_reads(make: Make, workspace: Path) -> None:
    events: list[ToolEvent] = []
    tools = make(config=SHOWN, events=events.append)

    await answer(tools, "read_file", path="a.txt")

    begin, end = events
    assert isinstance(begin, CallBegin)
    assert (begin.command, begin.cwd) == (("read_file", f"{workspace}/a.txt"), str(workspace))
    assert isinstance(end, CallEnd)
    assert (end.success, end.exit_code, end.preview) == (True, None, "hello\n")


async def test_a_call_that_cannot_be_recorded_reads_nothing(make: Make, workspace: Path) -> None:
    def full(event: ToolEvent) -> None:
        raise OSError("the disk is full")

    result = await make(config=SHOWN, events=full).call("read_file", {"path": "a.txt"})

    assert not result.success
    assert "hello" not in result.content


async def test_more_searches_than_a_session_has_may_run_at_the_same_time(
    tools: Toolset, workspace: Path
) -> None:
    for number in range(3000):
        (workspace / f"{number}.txt").write_text("word\n" * 20)

    calls: list[tuple[str, dict[str, object]]] = [
        ("grep", {"pattern": "word"}),
        ("grep", {"pattern": "word", "output": "files"}),
        ("glob", {"glob": "*.txt"}),
    ]
    results = await asyncio.gather(*(tools.call(*call) for call in calls * 4))

    for result in results:
        assert result.success, result.content
        assert result.content.endswith("\n\n[there are more: narrow the call down]")


async def test_a_read_sees_the_patch_that_was_called_before(tools: Toolset, workspace: Path) -> None:
    patch = "*** Begin Patch\n*** Update File: a.txt\n@@\n-hello\n+bye\n*** End Patch"

    patched, read = await asyncio.gather(
        tools.call("apply_patch", {"input": patch}), tools.call("read_file", {"path": "a.txt"})
    )

    assert patched.success, patched.content
    assert read.content == "bye\n"
