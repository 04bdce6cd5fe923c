"""`execclient.search`: lines by their text, files by their name, with ripgrep, with GNU grep, and without."""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest

from execclient import (
    CommandNotRun,
    Executor,
    NotFound,
    ReadOnly,
    Refused,
    WalkIncomplete,
    WorkspaceWrite,
    connect,
)
from execclient.arguments import Sandbox
from execclient.search import Found, Matches, find, search
from tests.support.wire import Server

RG = shutil.which("rg", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")

PROGRAMS = [
    pytest.param("rg", marks=pytest.mark.skipif(RG is None, reason="there is no ripgrep on this machine")),
    "grep",
]

Daemon = Callable[[str], str]
"""Starts a daemon on whose PATH is the given program for searches; its URL."""

DENIES = (ReadOnly(deny_read=("**/secret*",)), WorkspaceWrite(deny_read=("**/secret*",)))


@pytest.fixture(scope="module")
def daemon(environment: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    servers: dict[str, Server] = {}

    def start(name: str) -> str:
        if name not in servers:
            folder = tmp_path_factory.mktemp("s")
            (folder / "bin").mkdir()
            for program in {"sh", "sleep"} | ({"grep"} & {name}):
                if found := shutil.which(program):
                    (folder / "bin" / program).symlink_to(found)
            if name == "rg":
                assert RG is not None
                (folder / "bin/rg").symlink_to(RG)
            if name == "hanging":
                # As on a network mount that does not answer.
                (folder / "bin/grep").write_text("#!/bin/sh\necho x >>asked; exec sleep 60\n")
                (folder / "bin/grep").chmod(0o755)
            env = {**environment, "PATH": str(folder / "bin")}
            servers[name] = Server(f"unix://{folder}/s", env=env, cwd=folder)
        return servers[name].url

    yield start
    for server in servers.values():
        assert server.stop() == 0


@pytest.fixture(params=PROGRAMS)
def program(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
async def executor(program: str, daemon: Daemon) -> AsyncIterator[Executor]:
    async with connect(daemon(program)) as connected:
        yield connected


@pytest.fixture
async def any_executor(daemon: Daemon) -> AsyncIterator[Executor]:
    async with connect(daemon("grep")) as connected:
        yield connected


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """Files with one line each that has the word."""
    for name in (
        "top.py",
        "notes.txt",
        ".hidden.py",
        "src/app.py",
        "src/deep/er/lib.py",
        "src/deep/lib.js",
        ".github/workflows/ci.yml",
        ".git/config",
        "build/out.py",
    ):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(f"first\nthe word of {name}\nlast\n")
    (tmp_path / ".gitignore").write_text("build/\n")
    (tmp_path / "src/link").symlink_to("../build")
    return tmp_path


def names(found: Matches | Found, folder: Path) -> set[str]:
    """The files of a result that is complete."""
    assert found.truncated is None
    paths = found.paths if isinstance(found, Found) else [match.path for match in found.matches]
    assert len(set(paths)) == len(paths)
    return {os.path.relpath(path, folder) for path in paths}


async def test_a_search_finds_lines_with_their_path_and_number(
    executor: Executor, program: str, tree: Path
) -> None:
    found = await search(executor, "the word", tree / "src")
    assert found.program == program
    assert found.matches == [
        (f"{tree}/src/app.py", 2, "the word of src/app.py"),
        (f"{tree}/src/deep/er/lib.py", 2, "the word of src/deep/er/lib.py"),
        (f"{tree}/src/deep/lib.js", 2, "the word of src/deep/lib.js"),
    ]
    assert found.truncated is None
    assert found.unread == []


async def test_a_search_for_what_is_nowhere_finds_nothing(executor: Executor, tree: Path) -> None:
    assert (await search(executor, "no such text", tree)).matches == []


async def test_hidden_and_ignored_files_are_searched_but_no_excluded_folder(
    executor: Executor, tree: Path
) -> None:
    everything = names(await search(executor, "word", tree, exclude_dirs=()), tree)
    assert {".git/config", "build/out.py", ".hidden.py", ".github/workflows/ci.yml"} < everything
    assert names(await search(executor, "word", tree), tree) == everything - {".git/config"}
    less = names(await search(executor, "word", tree, exclude_dirs=["build", "de*"]), tree)
    assert less == {path for path in everything if not path.startswith(("build/", "src/deep/"))}
    assert names(await search(executor, "word", tree / ".git"), tree) == {".git/config"}


async def test_a_file_is_searched_alone(executor: Executor, tree: Path) -> None:
    assert names(await search(executor, "word", tree / "src/app.py"), tree) == {"src/app.py"}
    assert names(await search(executor, "word", tree / "src/app.py", glob="*.js"), tree) == set()
    (tree / "-n").write_text("word\n")
    assert names(await search(executor, "word", tree / "-n"), tree) == {"-n"}


GLOBS = [
    ("*.py", {"top.py", "src/app.py", "src/deep/er/lib.py", "build/out.py"}),
    ("**/*.py", {"top.py", "src/app.py", "src/deep/er/lib.py", "build/out.py"}),
    ("/*.py", {"top.py"}),
    ("src/**/*.py", {"src/app.py", "src/deep/er/lib.py"}),
    ("src/*", {"src/app.py"}),
    ("src/deep/**", {"src/deep/er/lib.py", "src/deep/lib.js"}),
    ("top.py/**", set()),
    ("{src/**,build}/*.py", {"src/app.py", "src/deep/er/lib.py", "build/out.py"}),
    ("src/**/er/**/l*b.py", {"src/deep/er/lib.py"}),
    ("lib.{js,py}", {"src/deep/er/lib.py", "src/deep/lib.js"}),
    ("l?b.[jp]s", {"src/deep/lib.js"}),
    ("*.yml", {".github/workflows/ci.yml"}),
    ("**/*.yml", set()),
    (".*.py", {".hidden.py"}),
    (".hidden*", {".hidden.py"}),
    ("[!a-z]*", set()),
    ("*.rb", set()),
]


@pytest.mark.parametrize(("glob", "files"), GLOBS, ids=[glob for glob, _ in GLOBS])
async def test_a_glob_means_the_same_to_both_searches_and_to_both_programs(
    glob: str, files: set[str], executor: Executor, tree: Path
) -> None:
    assert names(await search(executor, "word", tree, glob=glob), tree) == files
    assert names(await find(executor, glob, tree), tree) == files


@pytest.mark.parametrize("glob", ["**/a/" * 6 + "b", "**/a*/" * 6 + "*b"])
async def test_no_glob_keeps_the_client_busy(glob: str, any_executor: Executor, tmp_path: Path) -> None:
    folder = tmp_path.joinpath(*"a" * 60)
    folder.mkdir(parents=True)
    (folder / "b").touch()
    (folder / "c").touch()
    begin = time.monotonic()
    assert (await find(any_executor, glob, tmp_path)).paths == [str(folder / "b")]
    assert time.monotonic() - begin < 5


async def test_a_text_is_searched_as_it_is(executor: Executor, tmp_path: Path) -> None:
    (tmp_path / "code").write_text("a (b)\nstr | int\nx = '$HOME' \\d [a-z]*\n-e\n\n")
    for text, line in (("(b", 1), ("str | int", 2), ("'$HOME' \\d [a-z]*", 3), ("-e", 4)):
        assert [match.line for match in (await search(executor, text, tmp_path)).matches] == [line]
    assert len((await search(executor, "", tmp_path)).matches) == 5


@pytest.mark.parametrize(
    ("pattern", "lines"),
    [
        ("^a", [1]),
        ("c$", [1, 2]),
        ("a.c|x", [1, 4]),
        ("b{2,3}c", [2]),
        ("(ab)+c", [1]),
        ("[[:digit:]]+", [3]),
        (r"\bw\w+\b", [4]),
        (r"1\s2", [3]),
        (r"\(", [5]),
        (r"^r..s", [6]),
    ],
)
async def test_what_both_programs_have_means_the_same(
    pattern: str, lines: list[int], executor: Executor, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("abc\nbbc\n1 2\nxword\nf(\nrés\n wo\n")
    if "w" in pattern:
        (tmp_path / "file").write_text("a\nb\nc\na word\n")
    found = await search(executor, pattern, tmp_path, regex=True)
    assert [match.line for match in found.matches] == lines


async def test_a_case_is_ignored_on_request_for_ascii_letters(executor: Executor, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("Word\nÄrger\n")
    assert (await search(executor, "wORD", tmp_path)).matches == []
    assert len((await search(executor, "wORD", tmp_path, ignore_case=True)).matches) == 1
    assert len((await search(executor, "ÄRGER", tmp_path, ignore_case=True)).matches) == 1
    assert (await search(executor, "ärger", tmp_path, ignore_case=True)).matches == []


async def test_binary_files_are_skipped(executor: Executor, tmp_path: Path) -> None:
    (tmp_path / "binary").write_bytes(b"word\n\0\nword\n")
    (tmp_path / "utf-16").write_bytes("word\n".encode("utf-16"))
    (tmp_path / "text").write_bytes(b"word\n")
    assert names(await search(executor, "word", tmp_path), tmp_path) == {"text"}
    assert (await search(executor, "word", tmp_path / "binary")).matches == []


async def test_lines_in_any_encoding_are_found(executor: Executor, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"caf\xe9 word\r\n\xff\xfe word\nlast word without an end")
    found = await search(executor, "word", tmp_path)
    assert [match.text for match in found.matches] == [
        "caf\ufffd word",
        "\ufffd\ufffd word",
        "last word without an end",
    ]


async def test_a_file_of_any_name_is_found_and_can_be_read(executor: Executor, tmp_path: Path) -> None:
    hard = [b"new\nline", b"col:12:on", b"caf\xe9", b"\xffdir/in\xfe", b" blank ", b'q"uote', b"\\back"]
    for name in hard:
        file = tmp_path / os.fsdecode(name)
        file.parent.mkdir(exist_ok=True)
        file.write_bytes(b"word\n")
    found, files = await search(executor, "word", tmp_path), await find(executor, "*", tmp_path)
    assert {os.fsencode(match.path.removeprefix(f"{tmp_path}/")) for match in found.matches} == set(hard)
    assert {os.fsencode(path.removeprefix(f"{tmp_path}/")) for path in files.paths} == set(hard)
    for path in files.paths:
        assert await executor.fs.read_bytes(path) == b"word\n"
    assert len((await search(executor, "word", os.fsdecode(b"%b/\xffdir" % bytes(tmp_path)))).matches) == 1


async def test_a_relative_path_begins_at_the_working_directory(executor: Executor) -> None:
    folder = Path(executor.cwd) / "relative"
    folder.mkdir(exist_ok=True)
    (folder / "file").write_text("word\n")
    for path in ("relative", "./other/../relative", f"{folder}/"):
        assert names(await search(executor, "word", path), folder) == {"file"}
        assert names(await find(executor, "*", path), folder) == {"file"}


async def test_a_search_stops_at_its_budget_of_matches(executor: Executor, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("word\n" * 100_000)
    found = await search(executor, "word", tmp_path, max_matches=10)
    assert [match.line for match in found.matches] == list(range(1, 11))
    assert found.truncated == "matches"
    assert all(process.state != "running" for process in await executor.processes())
    whole = await search(executor, "word", tmp_path, max_matches=100_000, max_bytes=10 << 20)
    assert (len(whole.matches), whole.truncated) == (100_000, None)


@pytest.mark.parametrize("end", ["\n", ""])
async def test_a_search_stops_at_its_budget_of_bytes(end: str, executor: Executor, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("word 1\nword 2\n" + "word" * (4 << 20) + end)
    found = await search(executor, "word", tmp_path, max_bytes=1000)
    assert [match.text for match in found.matches] == ["word 1", "word 2"]
    assert found.truncated == "bytes"
    assert all(process.state != "running" for process in await executor.processes())


async def test_a_search_stops_at_its_budget_of_time(daemon: Daemon, tmp_path: Path) -> None:
    async with connect(daemon("hanging")) as executor:
        found = await search(executor, "word", tmp_path, timeout=0.5)
        assert (found.matches, found.truncated) == ([], "time")
        assert all(process.state != "running" for process in await executor.processes())


async def test_a_search_goes_on_over_lost_connections(executor: Executor, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("word\n" * 200_000)
    searching = asyncio.create_task(
        search(executor, "word", tmp_path, max_matches=1_000_000, max_bytes=100 << 20, timeout=60)
    )
    while not searching.done():
        await asyncio.sleep(0.02)
        executor.drop_connection()
    found = await searching
    assert executor.recoveries
    assert [match.line for match in found.matches] == list(range(1, 200_001))
    assert found.truncated is None


async def test_a_cancelled_search_leaves_no_process(daemon: Daemon, tmp_path: Path) -> None:
    async with connect(daemon("hanging")) as executor:
        searching = asyncio.create_task(search(executor, "word", tmp_path))
        async with asyncio.timeout(20):
            while not (tmp_path / "asked").exists():
                await asyncio.sleep(0.01)
        searching.cancel()
        with pytest.raises(asyncio.CancelledError):
            await searching
        assert all(process.state != "running" for process in await executor.processes())


async def test_a_find_stops_at_its_budgets(any_executor: Executor, tmp_path: Path) -> None:
    for number in range(10):
        (tmp_path / f"file{number}").touch()
    few = await find(any_executor, "*", tmp_path, max_files=3)
    assert (len(few.paths), few.truncated) == (3, "matches")
    few = await find(any_executor, "*", tmp_path, max_bytes=2 * len(f"{tmp_path}/file0"))
    assert (len(few.paths), few.truncated) == (2, "bytes")
    few = await find(any_executor, "*", tmp_path, timeout=1e-6)
    assert (few.paths, few.truncated) == ([], "time")


@pytest.fixture
def short_walks(monkeypatch: pytest.MonkeyPatch) -> None:
    """One walk returns 10 names in place of 50,000, which take a minute to create."""
    monkeypatch.setattr("execclient.filesystem.MAX_WALK_ENTRIES", 10)


@pytest.mark.usefixtures("short_walks")
async def test_a_find_goes_on_where_one_walk_ends(any_executor: Executor, tmp_path: Path) -> None:
    files = {f"{folder}/{file}.x" for folder in "abcd" for file in range(9)} | {"d/e/f/last.y", "top.y"}
    for file in files:
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).touch()
    (tmp_path / "link").symlink_to("a")
    with pytest.raises(WalkIncomplete):
        await any_executor.fs.walk(tmp_path)
    assert names(await find(any_executor, "*", tmp_path), tmp_path) == files
    assert names(await find(any_executor, "*.y", tmp_path), tmp_path) == {"d/e/f/last.y", "top.y"}


@pytest.mark.usefixtures("short_walks")
async def test_a_find_says_that_a_folder_has_too_many_names(any_executor: Executor, tmp_path: Path) -> None:
    for number in range(11):
        (tmp_path / f"{number}").touch()
    found = await find(any_executor, "*", tmp_path)
    assert (len(found.paths), found.truncated) == (10, "names")


# -- sandboxes


@pytest.mark.parametrize("policy", DENIES, ids=["read-only", "workspace-write"])
async def test_neither_search_sees_more_than_a_read(policy: Sandbox, executor: Executor, tree: Path) -> None:
    (tree / "secret").write_text("the word\n")
    (tree / "secrets").mkdir()
    (tree / "secrets/inner").write_text("the word\n")
    open_files = names(await search(executor, "word", tree), tree)
    assert {"secret", "secrets/inner"} < open_files
    files = executor.fs.confined(policy, workspace=tree)
    readable = set()
    for name in open_files:
        try:
            await files.read_text(tree / name)
        except PermissionError:
            continue
        readable.add(name)
    assert readable == open_files - {"secret", "secrets/inner"}
    found = await search(executor, "word", tree, sandbox=policy, workspace=tree)
    assert {os.path.relpath(match.path, tree) for match in found.matches} == readable
    walked = {entry.path for entry in await files.walk(tree) if not entry.is_dir}
    assert set((await find(executor, "*", tree, sandbox=policy, workspace=tree)).paths) <= walked
    assert f"{tree}/secrets/inner" not in walked
    for act in (search, find):
        with pytest.raises(Refused):
            await act(executor, "inner", tree / "secrets", sandbox=policy, workspace=tree)


async def test_a_search_writes_nothing_where_its_sandbox_forbids_it(daemon: Daemon, tmp_path: Path) -> None:
    """The program of a search is a command in the sandbox as any other."""
    async with connect(daemon("hanging")) as executor:
        await search(executor, "word", tmp_path, sandbox=ReadOnly(), timeout=0.5)
        assert not (tmp_path / "asked").exists()
        await search(executor, "word", tmp_path, timeout=0.5)
        assert (tmp_path / "asked").exists()


# -- errors


async def test_bad_arguments_are_errors_with_their_name(any_executor: Executor, tree: Path) -> None:
    with pytest.raises(ValueError, match="pattern has a newline"):
        await search(any_executor, "a\nb", tree)
    with pytest.raises(ValueError, match=r"glob has '\.\.'"):
        await find(any_executor, "../*.py", tree)
    with pytest.raises(ValueError, match=r"glob .* is not valid"):
        await search(any_executor, "word", tree, glob="{a,b}" * 20)
    with pytest.raises(ValueError, match="exclude_dirs"):
        await search(any_executor, "word", tree, exclude_dirs=["a/b"])
    with pytest.raises(ValueError, match="timeout"):
        await find(any_executor, "*", tree, timeout=0)
    with pytest.raises(ValueError, match="max_bytes"):
        await search(any_executor, "word", tree, max_bytes=-1)
    with pytest.raises(ValueError, match="neither a folder nor a regular file"):
        await search(any_executor, "word", "/dev/zero")
    with pytest.raises(NotADirectoryError):
        await find(any_executor, "*", tree / "top.py")
    for act in (search, find):
        with pytest.raises(NotFound):
            await act(any_executor, "word", tree / "missing")


async def test_a_wrong_regular_expression_is_an_error_of_the_pattern(
    executor: Executor, program: str, tree: Path
) -> None:
    with pytest.raises(ValueError, match=f"pattern is not valid for {program}: .*"):
        await search(executor, "(a", tree, regex=True)


async def test_an_executor_without_either_program_is_an_error_that_says_what_to_install(
    daemon: Daemon, tree: Path
) -> None:
    async with connect(daemon("none")) as executor:
        with pytest.raises(CommandNotRun, match="neither rg nor grep on its PATH: install ripgrep"):
            await search(executor, "word", tree)
        assert "top.py" in names(await find(executor, "*", tree), tree)
