"""`execserver search` and `execserver glob`."""

from __future__ import annotations

import json
import os
import pty
import subprocess
from pathlib import Path

import pytest

from tests.conftest import StartServer
from tests.integration.commands.conftest import EXECSERVER, CommandLine
from tests.support.fs_workers import bubblewrap_works


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """Files below the daemon's working directory, one of them ignored and one hidden."""
    for name in ("src/app.py", "src/deep/lib.js", "build/out.py", ".hidden/file.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(f"first\nthe word of {name}\nlast\n")
    (tmp_path / ".gitignore").write_text("build/\n")
    return tmp_path


def lines(execserver: CommandLine, *arguments: str, status: int = 0) -> list[str]:
    """The lines of stdout, sorted."""
    done = execserver(*arguments)
    assert (done.returncode, done.stderr) == (status, b"")
    return sorted(done.stdout.decode().splitlines())


def test_a_search_prints_paths_numbers_and_lines(execserver: CommandLine, tree: Path) -> None:
    found = ["src/app.py:2:the word of src/app.py", "src/deep/lib.js:2:the word of src/deep/lib.js"]
    assert lines(execserver, "search", r"w\wrd") == found
    assert lines(execserver, "search", "-F", r"w\wrd", status=1) == []
    assert lines(execserver, "search", "-i", "WORD", "src/app.py") == found[:1]
    assert lines(execserver, "search", "word", f"{tree}/src/deep") == [f"{tree}/{found[1]}"]
    assert lines(execserver, "search", "word", "-g", "*.py", "-g", "*.c") == found[:1]
    assert lines(execserver, "search", "-l", "word") == ["src/app.py", "src/deep/lib.js"]
    assert lines(execserver, "search", "-U", r"word.*\nlast", "src", "--exclude-dir=deep") == [
        found[0],
        "src/app.py:3:last",
    ]
    everything = lines(execserver, "search", "-l", "--hidden", "--no-ignore", "word")
    assert everything == [".hidden/file.py", "build/out.py", "src/app.py", "src/deep/lib.js"]


def test_a_search_prints_the_lines_around_a_match(execserver: CommandLine, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("1\nword\n3\n4\n5\nword\n7\n")
    done = execserver("search", "-C1", "word", "file")
    assert done.stdout.decode() == ("file-1-1\nfile:2:word\nfile-3-3\n--\nfile-5-5\nfile:6:word\nfile-7-7\n")


def test_a_glob_prints_names_of_files(execserver: CommandLine, tree: Path) -> None:
    assert lines(execserver, "glob", "*.py", "/src/**/*.js") == ["src/app.py", "src/deep/lib.js"]
    assert lines(execserver, "glob", "*.js", "--path", "src/deep") == ["src/deep/lib.js"]
    assert lines(execserver, "glob", "*.rs", status=1) == []
    (tree / "src/new\nline").touch()
    done = execserver("glob", "-0", "new*")
    assert (done.returncode, done.stdout) == (0, b"src/new\nline\0")


def test_json_has_a_line_for_each_match_and_each_file(execserver: CommandLine, tree: Path) -> None:
    (found,) = map(
        json.loads, execserver("search", "--json", "-C1", "word", "src/app.py").stdout.splitlines()
    )
    assert found.pop("path") == f"{tree}/src/app.py"
    assert (found["line"], found["text"], found["ranges"]) == (2, "the word of src/app.py", [[4, 8]])
    assert [each["text"] for each in (*found["before"], *found["after"])] == ["first", "last"]
    (named,) = map(json.loads, execserver("glob", "--json", "*.js").stdout.splitlines())
    assert named == {"path": f"{tree}/src/deep/lib.js"}


def test_limits_end_a_search_with_a_message(execserver: CommandLine, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("word\n" * 1000)
    done = execserver("search", "-m", "3", "word", "file")
    assert (done.returncode, done.stdout) == (0, b"file:1:word\nfile:2:word\nfile:3:word\n")
    assert b"ended by --max-count: there may be more" in done.stderr
    all_lines = execserver("search", "word", "file")
    assert (all_lines.stdout.count(b"\n"), all_lines.stderr) == (1000, b"")


def test_bytes_that_are_no_text_are_printed_as_they_are(execserver: CommandLine, tmp_path: Path) -> None:
    (tmp_path / os.fsdecode(b"caf\xe9")).write_bytes(b"\xff word\x1b[31m\n")
    done = execserver("search", "word")
    assert done.stdout == b"caf\xe9:1:\xff word\x1b[31m\n"


def test_on_a_terminal_there_are_colors_and_no_control_characters(
    execserver: CommandLine, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("a word\x1b[31m\n")
    leader, follower = pty.openpty()
    with subprocess.Popen(
        [*EXECSERVER, "search", "word"], stdout=follower, env=execserver.environment, cwd=execserver.folder
    ) as process:
        os.close(follower)
        shown = b""
        while not shown.endswith(b"\n"):
            shown += os.read(leader, 4096)
        assert process.wait(20) == 0
    os.close(leader)
    assert shown == b"\x1b[35mfile\x1b[0m:\x1b[32m1\x1b[0m:a \x1b[1;31mword\x1b[0m\\x1b[31m\r\n"


def test_a_name_with_a_line_end_looks_like_no_other_match(execserver: CommandLine, tmp_path: Path) -> None:
    (tmp_path / "file\nother:1:").write_text("a word\n")
    shown = execserver("search", "word", "--color=always").stdout
    assert shown == b"\x1b[35mfile\\nother:1:\x1b[0m:\x1b[32m1\x1b[0m:a \x1b[1;31mword\x1b[0m\n"
    shown = execserver("glob", "*", "--color=always").stdout
    assert shown == b"\x1b[35mfile\\nother:1:\x1b[0m\n"


def test_a_reader_that_is_gone_ends_a_search(execserver: CommandLine, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("word\n" * 200_000)
    with execserver.start("search", "word") as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.stdout.close()
        assert process.wait(20) == 141


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (("search", "(a"), 2, "pattern"),
        (("search", "x", "missing"), 125, "missing: No such file or directory"),
        (("glob", "../*"), 2, ".."),
        (("glob", "*", "--path", "/etc/passwd"), 125, "/etc/passwd: "),
        (("search", "-C", "21", "x"), 2, "contextLines"),
        (("search", "--sandbox", "workspace-write", "--writable", "/no/such", "x"), 125, "/no/such"),
    ],
)
def test_a_wrong_request_is_an_error(
    execserver: CommandLine, arguments: tuple[str, ...], status: int, message: str
) -> None:
    done = execserver(*arguments)
    assert (done.returncode, done.stdout) == (status, b"")
    assert message in done.stderr.decode()


@pytest.mark.skipif(not bubblewrap_works(), reason="needs bubblewrap and user namespaces")
def test_a_search_is_confined(execserver: CommandLine, start_server: StartServer, tree: Path) -> None:
    server = start_server(f"unix://{execserver.folder}/strict", "--require-sandbox")
    strict = CommandLine(server.url, execserver.folder)
    for command, *sandbox in (
        (execserver, "--sandbox", "read-only"),
        (execserver, "--sandbox", "workspace-write"),
        (strict,),
        (strict, "--sandbox", "workspace-write"),
    ):
        assert lines(command, "search", *sandbox, "-l", "word", "src/deep") == ["src/deep/lib.js"]
        assert lines(command, "glob", *sandbox, "*.js") == ["src/deep/lib.js"]
