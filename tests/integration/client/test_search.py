"""`execclient.search`: lines by their text, files by their name."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import psutil
import pytest

from execclient import Executor, NotFound, ReadOnly, Refused, Unsupported, WorkspaceWrite, connect, sync
from execclient.arguments import Sandbox
from execclient.search import Found, Matches, find, search
from tests.support.servers import searching
from tests.support.wire import Server

DENIES = (ReadOnly(deny_read=("**/secret*",)), WorkspaceWrite(deny_read=("**/secret*",)))

SLOW = "a[ab]{4000}[^ab]"
"""A regular expression that takes a minute for `SLOW_TEXT`: each character has many states of its own."""

SLOW_TEXT = "".join(random.Random(1).choices("ab", k=1_000_000))


@pytest.fixture(scope="module")
def server(environment: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("s")
    server = Server(f"unix://{folder}/s", env=environment, cwd=folder)
    yield server
    assert server.stop() == 0


@pytest.fixture
async def executor(server: Server) -> AsyncIterator[Executor]:
    async with connect(server.url) as connected:
        yield connected


async def until_none_searches(server: Server) -> None:
    async with asyncio.timeout(20):
        while searching(server.pid):
            await asyncio.sleep(0.02)


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


async def test_a_search_finds_lines_with_their_path_and_number(executor: Executor, tree: Path) -> None:
    found = await search(executor, "the word", tree / "src")
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
    less = names(await search(executor, "word", tree, exclude_dirs=["build", "deep"]), tree)
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
async def test_a_glob_means_the_same_to_both_searches(
    glob: str, files: set[str], executor: Executor, tree: Path
) -> None:
    assert names(await search(executor, "word", tree, glob=glob), tree) == files
    assert names(await find(executor, glob, tree), tree) == files


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
        (r"^r.s$", [6]),
        (r"\d \d", [3]),
        (r"(?i)ABC", [1]),
    ],
)
async def test_regular_expressions_are_those_of_rust(
    pattern: str, lines: list[int], executor: Executor, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("abc\nbbc\n1 2\nxword\nf(\nrés\n wo\n")
    if "w" in pattern:
        (tmp_path / "file").write_text("a\nb\nc\na word\n")
    found = await search(executor, pattern, tmp_path, regex=True)
    assert [match.line for match in found.matches] == lines


async def test_a_case_is_ignored_on_request(executor: Executor, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("Word\nÄrger\n")
    assert (await search(executor, "wORD", tmp_path)).matches == []
    assert len((await search(executor, "wORD", tmp_path, ignore_case=True)).matches) == 1
    assert len((await search(executor, "ÄRGER", tmp_path, ignore_case=True)).matches) == 1
    assert len((await search(executor, "ärger", tmp_path, ignore_case=True)).matches) == 1


async def test_binary_files_are_skipped(executor: Executor, tmp_path: Path) -> None:
    (tmp_path / "binary").write_bytes(b"word\n\0\nword\n")
    (tmp_path / "utf-16").write_bytes("word\n".encode("utf-16"))
    (tmp_path / "text").write_bytes(b"word\n")
    assert names(await search(executor, "word", tmp_path), tmp_path) == {"text", "utf-16"}
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


async def test_a_search_stops_at_its_budget_of_matches(
    executor: Executor, server: Server, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("word\n" * 40_000)
    found = await search(executor, "word", tmp_path, max_matches=10)
    assert [match.line for match in found.matches] == list(range(1, 11))
    assert found.truncated == "matches"
    await until_none_searches(server)
    exactly = await search(executor, "word", tmp_path, max_matches=40_000, max_bytes=10 << 20)
    assert (len(exactly.matches), exactly.truncated) == (40_000, None)
    none = await search(executor, "word", tmp_path, max_matches=0)
    assert (none.matches, none.truncated) == ([], "matches")


@pytest.mark.parametrize("end", ["\n", ""])
async def test_a_search_stops_at_its_budget_of_bytes(end: str, executor: Executor, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("word 1\nword 2\nword" + "x" * (16 << 20) + end)
    found = await search(executor, "word", tmp_path, max_bytes=1000)
    assert [match.text for match in found.matches] == ["word 1", "word 2"]
    assert found.truncated == "bytes"


async def test_a_line_of_megabytes_is_cut(executor: Executor, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("word" + "x" * (16 << 20) + "\nword\n")
    first, second = (await search(executor, "word", tmp_path)).matches
    assert first.cut
    assert first.text.strip("x") == "word"
    assert len(first.text) < 1 << 20
    assert (second.cut, second.text) == (False, "word")


async def test_a_search_stops_at_its_budget_of_time(
    executor: Executor, server: Server, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text(SLOW_TEXT)
    begin = time.monotonic()
    found = await search(executor, SLOW, tmp_path, regex=True, timeout=0.3)
    assert time.monotonic() - begin < 5
    assert (found.matches, found.truncated) == ([], "time")
    await until_none_searches(server)


async def test_a_search_goes_on_over_lost_connections(executor: Executor, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("word\n" * 80_000)
    task = asyncio.create_task(
        search(executor, "word", tmp_path, max_matches=1_000_000, max_bytes=100 << 20, timeout=60)
    )
    pause = 0.1
    while not task.done():
        await asyncio.sleep(pause)
        executor.drop_connection()
        pause *= 1.2  # on a slow machine, a page takes longer than the first ones
    found = await task
    assert executor.recoveries
    assert [match.line for match in found.matches] == list(range(1, 80_001))
    assert found.truncated is None


async def test_a_search_begins_anew_after_the_death_of_the_server(
    executor: Executor, server: Server, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("word\n" * 80_000)
    task = asyncio.create_task(
        search(executor, "word", tmp_path, max_matches=1_000_000, max_bytes=100 << 20, timeout=60)
    )
    async with asyncio.timeout(20):
        while not searching(server.pid):
            await asyncio.sleep(0.005)
    psutil.Process(server.pid).children()[0].send_signal(signal.SIGKILL)
    found = await task
    assert executor.recoveries
    assert [match.line for match in found.matches] == list(range(1, 80_001))
    assert found.truncated is None


async def test_a_cancelled_search_leaves_no_process(
    executor: Executor, server: Server, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text(SLOW_TEXT)
    task = asyncio.create_task(search(executor, SLOW, tmp_path, regex=True, timeout=600))
    async with asyncio.timeout(20):
        while not searching(server.pid):
            await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await until_none_searches(server)


async def test_more_searches_than_a_session_may_have_at_a_time_wait_for_each_other(
    executor: Executor, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("word\n" * 5_000)
    tasks = [search(executor, "word", tmp_path, max_matches=10_000) for _ in range(12)]
    for found in await asyncio.gather(*tasks):
        assert (len(found.matches), found.truncated) == (5_000, None)


async def test_a_long_search_is_not_ended_by_many_short_ones(
    executor: Executor, server: Server, tmp_path: Path
) -> None:
    (tmp_path / "long").write_text(SLOW_TEXT)
    (tmp_path / "short").write_text("word\n")
    long = asyncio.create_task(search(executor, SLOW, tmp_path, glob="long", regex=True, timeout=5))
    async with asyncio.timeout(20):
        while not searching(server.pid):
            await asyncio.sleep(0.01)
    for _ in range(6):
        assert len((await search(executor, "word", tmp_path, glob="short")).matches) == 1
    found = await long
    assert (found.matches, found.truncated) == ([], "time")


async def test_a_find_stops_at_its_budgets(executor: Executor, tmp_path: Path) -> None:
    for number in range(10):
        (tmp_path / f"file{number}").touch()
    few = await find(executor, "*", tmp_path, max_files=3)
    assert (len(few.paths), few.truncated) == (3, "matches")
    few = await find(executor, "*", tmp_path, max_bytes=2 * len(f"{tmp_path}/file0"))
    assert (len(few.paths), few.truncated) == (2, "bytes")
    few = await find(executor, "*", tmp_path, timeout=1e-6)
    assert (few.paths, few.truncated) == ([], "time")


# -- what is searched


async def test_ignore_rules_and_hidden_names_are_left_out_on_request(executor: Executor, tree: Path) -> None:
    everything = names(await find(executor, ["*", ".*"], tree), tree)
    assert {"build/out.py", ".hidden.py", ".github/workflows/ci.yml"} < everything
    kept = everything - {"build/out.py"}
    assert names(await find(executor, ["*", ".*"], tree, ignore_rules=True), tree) == kept
    shown = {path for path in everything if not any(part.startswith(".") for part in path.split("/"))}
    assert names(await find(executor, ["*", ".*"], tree, hidden=False), tree) == shown
    ordinary = names(await search(executor, "word", tree, hidden=False, ignore_rules=True), tree)
    assert ordinary == shown - {"build/out.py"}
    assert names(await find(executor, "*", tree, exclude_dirs=["src", "build"]), tree) == {
        path
        for path in names(await find(executor, "*", tree), tree)
        if not path.startswith(("src/", "build/"))
    }


async def test_several_globs_match_what_one_of_them_does(executor: Executor, tree: Path) -> None:
    wanted = {"top.py", "src/deep/lib.js"}
    assert names(await find(executor, ["/*.py", "*.js"], tree), tree) == wanted
    assert names(await search(executor, "word", tree, glob=["/*.py", "*.js"]), tree) == wanted


async def test_a_match_has_its_places_and_the_lines_around_it(executor: Executor, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("1\n2\nä word, a word\n4\nword\n6\n7\n")
    first, second = (await search(executor, "word", tmp_path, context_lines=1)).matches
    assert first == (f"{tmp_path}/file", 3, "ä word, a word")
    assert [first.text.encode()[begin:end] for begin, end in first.ranges] == [b"word", b"word"]
    assert [*first.before] == [(2, "2")]
    assert [*first.after, *second.before] == [(4, "4")]
    assert [*second.after] == [(6, "6")]


async def test_a_match_spans_lines_on_request(executor: Executor, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("0\nfirst\nsecond\n3\n")
    (match,) = (await search(executor, r"first\nsec", tmp_path, regex=True, multiline=True)).matches
    assert match == (f"{tmp_path}/file", 2, "first\nsecond")
    assert [match.text[begin:end] for begin, end in match.ranges] == ["first\nsec"]


def test_both_searches_are_there_without_an_event_loop(server: Server, tree: Path) -> None:
    with sync.connect(server.url) as executor:
        found = sync.search(executor, "the word", tree / "src", glob="*.js")
        assert found.matches == [(f"{tree}/src/deep/lib.js", 2, "the word of src/deep/lib.js")]
        assert sync.find(executor, "*.js", tree).paths == [f"{tree}/src/deep/lib.js"]


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
        denied = await act(executor, "*", tree / "secrets", sandbox=policy, workspace=tree)
        assert names(denied, tree) == set()
        assert denied.unread == [f"{tree}/secrets: Permission denied (os error 13)"]


# -- errors


async def test_bad_arguments_are_errors_with_their_name(executor: Executor, tree: Path) -> None:
    with pytest.raises(ValueError, match="pattern has a newline"):
        await search(executor, "a\nb", tree)
    with pytest.raises(ValueError, match=r"glob has '\.\.'"):
        await find(executor, "../*.py", tree)
    with pytest.raises(ValueError, match=r"glob .* is not valid"):
        await search(executor, "word", tree, glob="{a,b}" * 20)
    with pytest.raises(ValueError, match="exclude_dirs"):
        await search(executor, "word", tree, exclude_dirs=["a/b"])
    with pytest.raises(ValueError, match="timeout"):
        await find(executor, "*", tree, timeout=0)
    with pytest.raises(ValueError, match="max_bytes"):
        await search(executor, "word", tree, max_bytes=-1)
    with pytest.raises(ValueError, match="contextLines"):
        await search(executor, "word", tree, context_lines=21)
    with pytest.raises(Refused, match="neither a folder nor a regular file"):
        await search(executor, "word", "/dev/zero")
    with pytest.raises(NotADirectoryError):
        await find(executor, "*", tree / "top.py")
    for act in (search, find):
        with pytest.raises(NotFound):
            await act(executor, "word", tree / "missing")


async def test_a_wrong_regular_expression_is_an_error_of_the_pattern(executor: Executor, tree: Path) -> None:
    with pytest.raises(ValueError, match="pattern"):
        await search(executor, "(a", tree, regex=True)


async def test_an_earlier_server_is_an_error_that_names_what_it_lacks(executor: Executor, tree: Path) -> None:
    executor._session.capabilities -= {"fs/search", "fs/glob"}
    with pytest.raises(Unsupported, match="fs/search"):
        await search(executor, "word", tree)
    with pytest.raises(Unsupported, match="fs/glob"):
        await find(executor, "*", tree)
