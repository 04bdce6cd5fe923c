"""`fs/search`, `fs/glob` and `fs/endSearch`: what they find."""

from __future__ import annotations

import os
import shutil
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from urllib.parse import unquote_to_bytes

import pytest

from execprotocol.globs import compile_globs
from tests.sandbox.profiles import READ_ROOT, WRITE_WORKSPACE, at, context, glob, restricted
from tests.support.wire import Client, Json, ReplyError, at_most, decode, path_uri, spawn_stdio


def name_of(uri: str, base: Path) -> str:
    """A path below `base`."""
    return os.path.relpath(os.fsdecode(unquote_to_bytes(uri.removeprefix("file://"))), base)


def search(client: Client, path: Path, pattern: str, **params: Json) -> Json:
    return client.call("fs/search", {"path": path_uri(path), "pattern": pattern, **params})


def refused(client: Client, path: Path, pattern: str, **params: Json) -> ReplyError:
    return client.refused("fs/search", {"path": path_uri(path), "pattern": pattern, **params})


def found(client: Client, path: Path, pattern: str, **params: Json) -> list[str]:
    """The files with a match, sorted."""
    page = search(client, path, pattern, **params)
    assert (page["truncated"], page["cursor"]) == (None, None)
    return sorted(name_of(file["path"], path) for file in page["files"])


def lines(client: Client, path: Path, pattern: str, **params: Json) -> list[Json]:
    """All matches, of all files."""
    return [match for file in search(client, path, pattern, **params)["files"] for match in file["matches"]]


def globbed(client: Client, path: Path, *globs: str, **params: Json) -> list[str]:
    """The files that globs match, sorted."""
    page = client.call("fs/glob", {"path": path_uri(path), "globs": globs, **params})
    assert (page["truncated"], page["cursor"]) == (None, None)
    return sorted(name_of(uri, path) for uri in page["paths"])


def write(base: Path, **files: str | bytes) -> None:
    """Files by their paths, with `__` for slashes."""
    for name, content in files.items():
        path = base / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())


def tree(base: Path, *paths: str) -> Path:
    """Files that each have the line `word`."""
    for path in paths:
        (base / path).parent.mkdir(parents=True, exist_ok=True)
        (base / path).write_text("word\n")
    return base


@pytest.mark.everywhere
@pytest.mark.statement("Z1")
def test_lines_with_a_text_come_with_their_number_and_ranges(client: Client, here: Path) -> None:
    write(here, a="one\ntwo two\r\nTwo\n", b__c="no\n", b__d="é two")
    page = search(client, here, "two")
    assert (page["unread"], page["searchedFiles"], page["truncated"]) == ([], 3, None)
    by_name = {name_of(file["path"], here): file["matches"] for file in page["files"]}
    assert by_name == {
        "a": [{"line": 2, "text": "two two", "ranges": [[0, 3], [4, 7]]}],
        "b/d": [{"line": 1, "text": "é two", "ranges": [[3, 6]]}],
    }
    assert lines(client, here / "a", "TWO", ignoreCase=True)[1] == {
        "line": 3,
        "text": "Two",
        "ranges": [[0, 3]],
    }
    assert search(client, here / "b" / "d", "two")["files"][0]["path"] == path_uri(here / "b" / "d")


@pytest.mark.statement("Z1")
@pytest.mark.parametrize("pattern", ["-e", "--", "--pre=x", "a.c", "(", "\\", "$HOME", "'", "@x"])
def test_a_text_is_nothing_but_a_text(client: Client, here: Path, pattern: str) -> None:
    write(here, a=f"before\nx{pattern}y\nabc\n")
    assert [match["line"] for match in lines(client, here, pattern)] == [2]


@pytest.mark.statement("Z1")
def test_a_regular_expression_is_one_of_rust(client: Client, here: Path) -> None:
    write(here, a="abc\nabbc\na1c\n")
    assert [match["text"] for match in lines(client, here, r"^a\wc$", regex=True)] == ["abc", "a1c"]
    assert [match["text"] for match in lines(client, here, r"(?i)A(b{2}|\d)C", regex=True)] == ["abbc", "a1c"]


@pytest.mark.statement("Z2")
def test_a_line_that_is_not_utf8_has_its_bytes(client: Client, here: Path) -> None:
    write(here, a=b"\xff two\n")
    (line,) = lines(client, here, "two")
    assert decode(line.pop("textBase64")) == b"\xff two"
    assert line == {"line": 1, "ranges": [[2, 5]]}


@pytest.mark.statement("Z3")
@pytest.mark.parametrize("letter", ["x", "é", "\x01", '"', "\\"])
@pytest.mark.parametrize("size", [70_000, 3_000_000])
def test_a_long_line_is_cut(client: Client, here: Path, letter: str, size: int) -> None:
    write(here, a=f"a\nneedle{letter * size}needle\nneedle\n")
    cut, whole = lines(client, here, "needle")
    assert cut["text"] == ("needle" + letter * 65536).encode()[:65536].decode("utf-8", "ignore")
    assert (cut["cut"], cut["line"], cut["ranges"][0]) == (True, 2, [0, 6])
    assert whole == {"line": 3, "text": "needle", "ranges": [[0, 6]]}


@pytest.mark.statement("Z3")
def test_a_long_line_is_cut_between_characters(client: Client, here: Path) -> None:
    text = "needle" + "😀" * 300_000
    write(here, a=text, aa=text, aaa=text, aaaa=text)  # the length of a path moves the cut
    cut = [line["text"] for line in lines(client, here, "needle")]
    assert cut == ["needle" + "😀" * (65530 // 4)] * 4


@pytest.mark.statement("Z3", "Z2")
def test_a_long_line_that_is_not_utf8_is_cut(client: Client, here: Path) -> None:
    write(here, a=b"needle" + b"\xff" * 3_000_000 + b"\nneedle\n")
    cut, whole = lines(client, here, "needle")
    assert decode(cut["textBase64"]) == (b"needle" + b"\xff" * 65536)[:65536]
    assert (cut["cut"], cut["line"], cut["ranges"], whole["line"]) == (True, 1, [[0, 6]], 2)


@pytest.mark.statement("Z3")
def test_a_line_with_a_million_matches_has_the_first(client: Client, here: Path) -> None:
    write(here, a="ab" * 1_000_000 + "\nab\n", b="ab" * 2000)
    for line in lines(client, here / "a", "ab")[:1] + lines(client, here / "b", "ab"):
        assert line["cut"] is True
        assert line["ranges"][:2] == [[0, 2], [2, 4]]
        assert len(line["ranges"]) <= 1000


@pytest.mark.statement("Z3")
def test_a_match_of_megabytes_has_its_range(client: Client, here: Path) -> None:
    write(here, a="x" * 3_000_000)
    (line,) = lines(client, here, "x+", regex=True)
    assert (line["ranges"], line["cut"]) == ([[0, 3_000_000]], True)


@pytest.mark.statement("Z4")
def test_context_is_each_line_once(client: Client, here: Path) -> None:
    write(here, a="1\n2\n3\nword 4\n5\n6\n7\nword 8\nword 9\n10\n11\n12\n")

    def texts(match: Json, member: str) -> list[str]:
        return [line["text"] for line in match.get(member, [])]

    found = lines(client, here, "word", contextLines=2)
    assert [(texts(each, "before"), each["line"], texts(each, "after")) for each in found] == [
        (["2", "3"], 4, ["5", "6"]),
        (["7"], 8, []),
        ([], 9, ["10", "11"]),
    ]


@pytest.mark.statement("Z5")
def test_a_match_may_span_lines(client: Client, here: Path) -> None:
    write(here, a="x\nfirst\nsecond\n", b="first\nthird\n")
    (match,) = lines(client, here, r"first\nsec", regex=True, multiline=True)
    assert match == {"line": 2, "text": "first\nsecond", "ranges": [[0, 9]]}


@pytest.mark.statement("Z6")
def test_files_are_found_once_without_lines(client: Client, here: Path) -> None:
    write(here, a="word\nword\n", b="word\n", c="no\n")
    page = search(client, here, "word", output="files")
    assert sorted(name_of(file["path"], here) for file in page["files"]) == ["a", "b"]
    assert all(file["matches"] == [] for file in page["files"])


@pytest.mark.statement("Z7")
def test_a_file_is_searched_up_to_its_first_nul(client: Client, here: Path) -> None:
    write(here, a=b"word\n" * 50_000 + b"\0word\n", b=b"\0word\n", c="word\n".encode("utf-16"))
    page = search(client, here, "word", maxMatches=100_000, maxBytes=16 << 20)
    by_name = {name_of(file["path"], here): file for file in page["files"]}
    assert sorted(by_name) == ["a", "c"]
    assert by_name["a"]["binary"] is True
    assert by_name["c"]["matches"] == [{"line": 1, "text": "word", "ranges": [[0, 4]]}]


@pytest.mark.statement("Z8", "Z11")
def test_links_are_not_followed_and_special_files_not_opened(client: Client, here: Path) -> None:
    base = tree(here / "tree", "file", "sub/file")
    tree(here, "out/file")
    (base / "link").symlink_to(here / "out")
    (base / "sub/link").symlink_to(here / "out/file")
    os.mkfifo(base / "fifo")
    with socket.socket(socket.AF_UNIX) as listener, at_most(10):
        listener.bind(os.path.relpath(base / "socket"))
        assert found(client, base, "word") == ["file", "sub/file"]
        assert globbed(client, base, "**") == ["file", "sub/file"]
    assert found(client, base / "link", "word") == ["file"]
    assert found(client, base / "sub/link", "word") == ["."]
    assert globbed(client, base / "link", "*") == ["file"]


@pytest.mark.statement("Z8")
def test_a_path_that_is_no_tree_is_refused(client: Client, here: Path) -> None:
    write(here, file="word\n")
    os.mkfifo(here / "fifo")
    assert refused(client, here / "none", "word").code == -32004
    assert refused(client, here / "fifo", "word").code == -32600
    params = {"path": path_uri(here / "file"), "globs": ["*"]}
    assert client.refused("fs/glob", params).message == "Not a directory (os error 20)"
    assert client.refused("fs/glob", {"path": path_uri(here / "none"), "globs": ["*"]}).code == -32004


@pytest.mark.statement("Z9")
def test_hidden_and_ignored_files_are_left_out(client: Client, here: Path) -> None:
    base = tree(here, "a", ".b", ".c/d", "e", "f/g", "h/i", "j/k", "l", "sub/m", "n/o")
    write(base, **{".gitignore": "e\nf/\n", ".ignore": "h\n", ".rgignore": "l\n", "sub/.gitignore": "m\n"})
    (base / ".git/info").mkdir(parents=True)
    (base / ".git/info/exclude").write_text("j\n")
    shown = ["a", "n/o"]
    assert found(client, base, "word") == globbed(client, base, "**") == shown
    every = sorted(["a", "e", "f/g", "h/i", "j/k", "l", "sub/m", "n/o"])
    assert found(client, base, "word", ignoreRules=False) == every
    assert globbed(client, base, "**", ignoreRules=False) == every
    hidden = found(client, base, "word", hidden=True, excludeDirs=[".git"])
    assert hidden == sorted([".b", ".c/d", *shown])
    assert found(client, base, "word", excludeDirs=["n"]) == ["a"]
    (base / "sub/p").write_text("word\n")
    shutil.rmtree(base / ".git")  # the rules apply without a repository
    write(base, **{".gitignore": "p\n"})
    assert found(client, base / "sub", "word") == []


@pytest.mark.statement("Z9")
@pytest.mark.parametrize(
    "name", ["a*b", "[x]", "{c,d}", "!e", "#f", " g ", "h\\i", "j\nk", "é", "?", "-l", "^m"]
)
def test_a_name_of_an_excluded_folder_is_no_glob(client: Client, here: Path, name: str) -> None:
    tree(here, f"{name}/file", f"sub/{name}/file", "axb/file", "x/file", "n/file", f"keep/{name}")
    kept = sorted(["axb/file", "x/file", "n/file", f"keep/{name}"])
    assert found(client, here, "word", excludeDirs=[name]) == kept


@pytest.mark.statement("Z10", "Z11")
@pytest.mark.parametrize("hidden", [False, True])
@pytest.mark.parametrize(
    "globs",
    [
        ["*.py"], ["/*.py"], ["sub/*.py"], ["**/*.py"], ["sub/**"], ["*.{py,c}"], ["?.py"], ["[ab].py"],
        [".*"], [".h/*"], ["**/.h/**"], ["*.py", "*.c"], ["*"], ["**"], ["s*/**/*.c"], ["*é*"], ["*.PY"],
    ],
)  # fmt: skip
def test_globs_choose_the_files(client: Client, here: Path, globs: list[str], hidden: bool) -> None:
    names = [
        "a.py",
        "b.c",
        "sub/c.py",
        "sub/x/d.c",
        ".h/e.py",
        ".f.py",
        "sub/.h/g.py",
        "x é.py",
        "sub/é/h.py",
    ]
    tree(here, *names)
    matched = compile_globs(globs).fullmatch
    shown = [name for name in names if hidden or not ("/." in name or name[0] == ".")]
    wanted = sorted(name for name in shown if matched(name))
    assert globbed(client, here, *globs, hidden=hidden) == wanted
    assert found(client, here, "word", globs=globs, hidden=hidden) == wanted


@pytest.mark.statement("Z10")
def test_globs_do_not_show_what_is_ignored(client: Client, here: Path) -> None:
    tree(here, "a.py", "b.py")
    (here / ".gitignore").write_text("b.py\n")
    for globs in (["*.py"], ["b.py"], ["**/b.*"]):
        assert "b.py" not in globbed(client, here, *globs) + found(client, here, "word", globs=globs)


@pytest.mark.statement("Z10")
@pytest.mark.parametrize("glob", ["../*", "a/../b", "{a,b}" * 10, "{1..5000}"])
def test_a_glob_is_refused(client: Client, here: Path, glob: str) -> None:
    assert client.refused("fs/glob", {"path": path_uri(here), "globs": [glob]}).code == -32600
    assert refused(client, here, "x", globs=[glob]).code == -32600


@pytest.mark.statement("Z20")
@pytest.mark.parametrize("pattern", ["(", "[", "a{99999999}", r"\1", "a\nb", "a\0b"])
def test_a_pattern_that_is_not_valid_is_refused_with_the_reason(
    client: Client, here: Path, pattern: str
) -> None:
    write(here, a="word\n")
    for output in ("lines", "files"):
        error = refused(client, here, pattern, regex=True, output=output)
        assert error.code == -32600
        assert "pattern" in error.message
    assert "multiline" in refused(client, here, "a\nb").message
    assert "regex" in refused(client, here, "a", multiline=True).message


@pytest.fixture
def bare_server(
    here: Path, environment: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> Callable[[str], AbstractContextManager[Client]]:
    """Connects to a server with a PATH, whose interpreter has no ripgrep beside it."""
    (here / "venv/bin").mkdir(parents=True)
    packages = here / f"venv/lib/python{sys.version_info[0]}.{sys.version_info[1]}/site-packages"
    packages.mkdir(parents=True)
    (packages / "ours.pth").write_text("\n".join(filter(None, sys.path)))
    (here / "venv/pyvenv.cfg").write_text(f"home = {Path(sys.executable).resolve().parent}\n")
    (here / "venv/bin/python").symlink_to(Path(sys.executable).resolve())

    @contextmanager
    def connect(path: str) -> Iterator[Client]:
        monkeypatch.setenv("EXECSERVER_TEST_COMMAND", f"{here}/venv/bin/python -m execserver serve")
        with spawn_stdio(env={**environment, "PATH": path}, cwd=here) as client:
            yield client.handshake()

    return connect


@pytest.mark.statement("Z20")
def test_without_ripgrep_the_error_says_what_to_install(
    bare_server: Callable[[str], AbstractContextManager[Client]], here: Path
) -> None:
    base = tree(here / "tree", "a")
    program = base / "rg"  # in the searched folder, and found by a relative entry of PATH only
    program.write_text("#!/bin/sh\ntouch ran\n")
    program.chmod(0o755)
    with bare_server("tree:") as client:
        error = refused(client, base, "word")
        assert error.code == -32603
        assert 'pip install "execserver[search]"' in error.message
        assert "apt install ripgrep" in error.message
    assert not list(here.rglob("ran"))


@pytest.mark.statement("Z20")
def test_a_ripgrep_that_is_too_old_is_named(
    bare_server: Callable[[str], AbstractContextManager[Client]], here: Path
) -> None:
    base = tree(here / "tree", "a")
    (here / "old").mkdir()
    (here / "old/rg").write_text("#!/bin/sh\necho 'ripgrep 12.1.1 (rev 1)'\n")
    (here / "old/rg").chmod(0o755)
    with bare_server(f"{here}/old") as client:
        assert (
            f"{here}/old/rg is ripgrep 12, and version 13 or later" in refused(client, base, "word").message
        )


@pytest.mark.statement("Z20", "Z19")
def test_the_ripgrep_of_the_path_is_used(
    bare_server: Callable[[str], AbstractContextManager[Client]], here: Path
) -> None:
    base = tree(here / "tree", "a", "closed/b")
    (here / "host").mkdir()
    (here / "host/rg").symlink_to(Path(sys.executable).with_name("rg"))
    permissions = restricted(READ_ROOT, at(base / "closed", "deny"))
    with bare_server(f"relative::{here}/host") as client:
        assert found(client, base, "word") == ["a", "closed/b"]
        assert found(client, base, "word", sandbox=context(permissions, cwd=base)) == ["a"]


@pytest.mark.statement("Z18")
def test_what_cannot_be_read_is_told(client: Client) -> None:
    path = Path(f"/proc/{os.getpid()}/mem")
    page = search(client, path, "word")
    assert (page["files"], page["truncated"]) == ([], None)
    (message,) = page["unread"]
    assert message.startswith(f"{path}: ")
    assert message.endswith(" (os error 5)")


@pytest.mark.statement("Z19")
def test_a_search_in_a_sandbox_finds_what_a_read_reads(client: Client, here: Path) -> None:
    base = tree(here / "ws", "a", "closed/b", "sub/.env", "sub/c")
    tree(here, "out/d")
    permissions = restricted(
        READ_ROOT, WRITE_WORKSPACE, at(base / "closed", "deny"), at(here / "out", "deny"), glob("**/.env")
    )
    sandbox = context(permissions, cwd=base, roots=[base])
    assert found(client, here, "word", sandbox=sandbox, hidden=True) == ["ws/a", "ws/sub/c"]
    assert found(client, base, "word", sandbox=sandbox, hidden=True, output="files") == ["a", "sub/c"]
    assert refused(client, base / "closed/b", "word", sandbox=sandbox).code in (-32600, -32004)
    assert globbed(client, base / "sub", "c", sandbox=sandbox) == ["c"]
    assert len(found(client, here, "word", hidden=True)) == 5
