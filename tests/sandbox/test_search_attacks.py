"""Searches of a hostile tree: links, races, options in patterns, odd names and special files."""

from __future__ import annotations

import contextlib
import os
import socket
import stat
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.sandbox.file_views import View, path_of
from tests.sandbox.host import Host, Tree
from tests.sandbox.profiles import READ_ROOT, WRITE_WORKSPACE, at, glob, restricted
from tests.support.wire import Json, ReplyError, at_most

SECRET = "word that must not be seen"


def permissions(tree: Tree) -> Json:
    """A policy that denies `out` and each `.env`."""
    return restricted(READ_ROOT, WRITE_WORKSPACE, at(tree.out, "deny"), glob("**/.env"))


@pytest.fixture
def tree(host: Host) -> Tree:
    tree = host.tree()
    tree.add({"ws/.env": SECRET, "out/secret.txt": SECRET, "ws/plain.txt": "a plain word\n"})
    return tree


@pytest.fixture
def view(host: Host, tree: Tree) -> View:
    """A view that must not show the secret."""
    return View(host, tree.context(permissions(tree)))


@pytest.fixture
def plain(host: Host) -> View:
    return View(host, None)


# ------------------------------------------------------------------ ways to a denied file


LINKS = {
    "to a file": {"ws/link": "{out}/secret.txt"},
    "to a folder": {"ws/link": "{out}"},
    "by two dots": {"ws/sub/link": "../../out"},
    "in a chain": {"ws/link": "two", "ws/two": "../three", "three": "{out}"},
    "through /proc": {"ws/link": "/proc/self/root{out}"},
    "in a circle": {"ws/sub/round": "..", "ws/self": "."},
}


@pytest.mark.parametrize("name", LINKS)
def test_link_leads_no_search_to_a_denied_file(view: View, plain: View, tree: Tree, name: str) -> None:
    links = {path: text.format(out=tree.out) for path, text in LINKS[name].items()}
    tree.add({}, links)
    assert view.searched(tree.ws, pattern="must not be seen") == set()
    below = {path for path in view.globbed(tree.ws) if path.is_symlink() or path.is_relative_to(tree.out)}
    assert below == set()
    # As the path of the request itself, a link is followed: in the sandbox.
    roots = [tree.base / path for path in links]
    assert view.searched(*roots, pattern="must not be seen") == set()
    assert plain.searched(*roots, pattern="must not be seen") != set()


def test_paths_and_globs_with_two_dots_do_not_leave_the_folder(view: View, plain: View, tree: Tree) -> None:
    assert view.searched(tree.ws / ".." / "out", pattern="must") == set()
    assert plain.searched(tree.ws / ".." / "out", pattern="must") != set()
    for pattern in ("../out/*", "../out/**", "sub/../../out/*", "/../out/*", "{..,.}/out/*", f"{tree.out}/*"):
        for reader in (view, plain):
            with contextlib.suppress(ReplyError):  # a glob that is refused shows nothing either
                found = reader.call("glob", tree.ws, globs=[pattern], hidden=True)["paths"]
                assert found == [], pattern
            with contextlib.suppress(ReplyError):
                page = reader.call("search", tree.ws, pattern="must", globs=[pattern], hidden=True)
                assert page["files"] == [], pattern


@pytest.mark.parametrize("kind", ["folder", "file"])
def test_renames_while_a_search_runs_show_no_denied_file(view: View, tree: Tree, kind: str) -> None:
    """A folder (or a file) and a link to a denied one take turns under one name."""
    tree.add({f"ws/many/{number}/x.txt": "a plain word\n" for number in range(300)})
    target = tree.out if kind == "folder" else tree.out / "secret.txt"
    (tree.ws / "swap").mkdir() if kind == "folder" else (tree.ws / "swap").write_text("a plain word\n")
    (tree.ws / "link").symlink_to(target)

    with _in_turn(tree.ws / "swap", tree.ws / "link"):
        for _ in range(10):
            for root in (tree.ws, tree.ws / "swap"):
                assert view.searched(root, pattern="must not be seen") == set()
                assert not any(path.is_relative_to(tree.out) for path in view.globbed(root))


@contextlib.contextmanager
def _in_turn(one: Path, other: Path) -> Iterator[None]:
    """Exchange two names, again and again."""
    ended = threading.Event()

    def exchange() -> None:
        while not ended.is_set():
            spare = one.with_name("spare")
            one.rename(spare)
            other.rename(one)
            spare.rename(other)

    thread = threading.Thread(target=exchange)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def test_search_reads_no_files_of_proc_that_a_read_does_not(view: View, plain: View, host: Host) -> None:
    environment = Path(f"/proc/{host.victim.pid}/environ")
    assert plain.searched(environment, pattern=host.victim.SECRET) == {environment} or not plain.reads(
        environment
    )
    assert view.searched(environment, pattern=host.victim.SECRET) == set()
    own = Path("/proc/self/environ")
    assert view.searched(own, pattern="EXECSERVER_|TOKEN|SECRET") == set()


# ------------------------------------------------------------------ options where text belongs


PATTERNS = (
    "--pre=/ws/run",
    "--pre",
    "-f/etc/passwd",
    "--file=/etc/passwd",
    "--hostname-bin=/ws/run",
    "-e",
    "--",
    "-",
    "--search-zip",
    "@/etc/passwd",
)


@pytest.mark.parametrize("pattern", PATTERNS)
def test_pattern_that_looks_like_an_option_is_a_pattern(view: View, tree: Tree, pattern: str) -> None:
    mark, run = tree.ws / "mark", tree.ws / "run"
    tree.add({"ws/text.txt": f"a line with {pattern} in it\n", "ws/run": f": > {mark}\n"})
    run.chmod(0o755)
    text = pattern.replace("/ws", str(tree.ws))
    (tree.ws / "text.txt").write_text(f"a line with {text} in it\n")
    page = view.call("search", tree.ws, pattern=text)
    assert tree.ws / "text.txt" in [path_of(found["path"]) for found in page["files"]]
    assert not mark.exists()


def test_globs_and_folder_names_that_look_like_options_are_names(view: View, tree: Tree) -> None:
    mark = tree.ws / "mark"
    tree.add({"ws/run": f"#!/bin/sh\n: > {mark}\n", "ws/--pre=run/--hidden": "a plain word\n"})
    (tree.ws / "run").chmod(0o755)
    odd = tree.ws / "--pre=run"
    for globs in (["--hidden"], ["--pre=*", "--*"]):
        page = view.call("search", tree.ws, pattern="plain word", globs=globs, excludeDirs=["--version"])
        assert [path_of(found["path"]) for found in page["files"]] == [odd / "--hidden"]
        assert [path_of(uri) for uri in view.call("glob", odd, globs=globs)["paths"]] == [odd / "--hidden"]
    assert view.searched(odd, pattern="plain word") == {odd / "--hidden"}
    assert not mark.exists()


def test_configuration_and_programs_of_the_tree_are_not_used(view: View, tree: Tree) -> None:
    mark = tree.ws / "mark"
    program = f"#!/bin/sh\n: > {mark}\n"
    tree.add({f"ws/{name}": program for name in ("rg", "python3", "sh", "sitecustomize.py", "wcmatch.py")})
    tree.add({"ws/.ripgreprc": "--pre=./rg\n", "ws/ripgreprc": "--pre=./rg\n", "ws/.rgrc": "--pre=./rg\n"})
    for name in ("rg", "python3", "sh"):
        (tree.ws / name).chmod(0o755)
    assert tree.ws / "plain.txt" in view.searched(tree.ws, pattern="plain word")
    assert tree.ws / "plain.txt" in view.globbed(tree.ws)
    assert not mark.exists()


def test_ignore_files_hide_and_never_show(view: View, tree: Tree) -> None:
    """`!` in an ignore file shows again what is ignored; not what is hidden or denied."""
    shows = f"!.env\n!{tree.out}/secret.txt\n!../out/secret.txt\n!secret.txt\n"
    rules = ("ws/.gitignore", "ws/.ignore", "ws/.rgignore", "ws/.git/info/exclude")
    tree.add(dict.fromkeys(rules, shows))
    for ignore in (True, False):
        assert view.searched(tree.ws, pattern="must not be seen", ignoreRules=ignore) == set()
        assert view.searched(tree.ws, pattern="must not be seen", ignoreRules=ignore, hidden=False) == set()
    tree.add({"ws/.ignore": "plain.txt\n"})
    assert tree.ws / "plain.txt" not in view.searched(tree.ws, pattern="plain word", ignoreRules=True)
    assert tree.ws / "plain.txt" in view.searched(tree.ws, pattern="plain word")


def test_ignore_file_that_is_a_link_does_not_quote_a_denied_file(view: View, tree: Tree) -> None:
    tree.add({"out/rules": f"[{SECRET}\n{{{SECRET}\n"}, {"ws/.ignore": str(tree.out / "rules")})
    page = view.call("search", tree.ws, pattern="plain word")
    assert SECRET not in str(page["unread"])


# ------------------------------------------------------------------ odd names


ODD_NAMES = (
    b"new\nline.txt",
    b"carriage\rreturn.txt",
    b"not utf8 \xff\xfe.txt",
    b"quote'\".txt",
    b"star*[x]{y}?.txt",
    b"%41 percent.txt",
    b" spaces .txt",
    b"\x1b[31mcolour.txt",
    b"back\\slash.txt",
)


def test_odd_names_come_back_as_they_are(view: View, plain: View, tree: Tree) -> None:
    folder = os.fsencode(tree.ws / "odd")
    os.mkdir(folder)
    for name in ODD_NAMES:
        with open(os.path.join(folder, name), "wb") as file:
            file.write(b"odd word\n")
    tree.user.give(tree.base)
    wanted = {Path(os.fsdecode(os.path.join(folder, name))) for name in ODD_NAMES}
    for reader in (view, plain):
        assert reader.searched(tree.ws, pattern="odd word") == wanted
        assert reader.globbed(tree.ws / "odd") == wanted
        for path in wanted:
            assert reader.searched(path, pattern="odd word") == {path}


# ------------------------------------------------------------------ files that are none


@pytest.fixture
def special_files(tree: Tree) -> Iterator[list[Path]]:
    """A FIFO, a socket and, if we may make one, a device that never ends."""
    places = [tree.ws / "fifo", tree.ws / "socket", tree.ws / "device"]
    os.mkfifo(places[0])
    with socket.socket(socket.AF_UNIX) as listener:
        with contextlib.chdir(tree.ws):  # a path of a socket has at most 107 bytes
            listener.bind("socket")
        try:
            os.mknod(places[2], stat.S_IFCHR | 0o666, os.makedev(1, 5))
        except PermissionError:
            places.pop()
        tree.user.give(tree.base)
        yield places


def test_fifos_sockets_and_devices_are_neither_opened_nor_waited_for(
    view: View, plain: View, tree: Tree, special_files: list[Path]
) -> None:
    for reader in (view, plain):
        with at_most(10):
            assert reader.searched(tree.ws, pattern="word") == {tree.ws / "plain.txt"} | (
                {tree.ws / ".env"} if reader is plain else set()
            )
            assert not reader.globbed(tree.ws) & set(special_files)
            for path in special_files:
                assert reader.searched(path, pattern="word") == set()
