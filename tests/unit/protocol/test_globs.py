"""Globs of searches: what they match, and in which time."""

from __future__ import annotations

import random
import time
from fnmatch import fnmatchcase

import pytest

from execprotocol.globs import GlobError, compile_globs, rough_names


def matches(glob: str, path: str) -> bool:
    return compile_globs([glob]).fullmatch(path) is not None


@pytest.mark.parametrize(
    ("glob", "paths"),
    [
        ("*.py", ["a.py", "x/a.py", ".x/a.py"]),
        ("/*.py", ["a.py"]),
        ("x/*.py", ["x/a.py"]),
        ("**/*.py", ["a.py", "x/a.py"]),
        ("x/**", ["x/a.py", "x/y/b.PY"]),
        ("**", ["a.py", "x/a.py", ".x/a.py", "x/y/b.PY", "\udc80/[é]\n"]),
        ("**/y/**", ["x/y/b.PY"]),
        (".*", [".x/.a.py"]),
        (".x/*", [".x/a.py"]),
        ("*.{py,PY}", ["a.py", "x/a.py", ".x/a.py", "x/y/b.PY"]),
        ("[[:alpha:]].py", ["a.py", "x/a.py", ".x/a.py"]),
        ("\\[?\\]*", ["\udc80/[é]\n"]),
        ("\udc80/*", ["\udc80/[é]\n"]),
        ("x", []),
        ("x/", []),
        ("", []),
    ],
)
def test_a_glob_matches_these_paths(glob: str, paths: list[str]) -> None:
    every = ["a.py", "x/a.py", ".x/a.py", "x/y/b.PY", ".x/.a.py", "\udc80/[é]\n"]
    assert [path for path in every if matches(glob, path)] == paths


def test_folders_are_matched_as_by_trying_every_split() -> None:
    chance = random.Random(1)
    matched = 0
    for _ in range(3000):
        glob = [chance.choice(["**", "a", ".a", "a*", "*", "*b"]) for _ in range(chance.randint(2, 7))]
        expression = compile_globs(["/" + "/".join(glob)])
        for _ in range(20):
            path = [chance.choice(["a", ".a", "b", "ab"]) for _ in range(chance.randint(1, 8))]
            wanted = _every_split(glob, path)
            matched += wanted
            assert bool(expression.fullmatch("/".join(path))) == wanted, (glob, path)
    assert matched > 1000


def _every_split(glob: list[str], path: list[str]) -> bool:
    if not glob:
        return not path
    if glob[0] != "**":
        shown = bool(path) and (glob[0][0] == "." or path[0][0] != ".")
        return shown and fnmatchcase(path[0], glob[0]) and _every_split(glob[1:], path[1:])
    entered = bool(path) and path[0][0] != "."
    last = len(glob) == 1 and len(path) == 1 and entered
    return (
        last or (len(glob) > 1 and _every_split(glob[1:], path)) or (entered and _every_split(glob, path[1:]))
    )


@pytest.mark.parametrize(
    ("glob", "path"),
    [
        ("**/a/**/a/**/a/**/a/**/a/**/b", "a/" * 1000 + "c"),
        ("**/*a*/**/*a*/**/*a*/**/*a*/**/b", "aaaa/" * 800 + "c"),
        ("*a*a*a*a*a*a*a*a*b", "a" * 255),
        ("*a*/*a*/*a*/*a*/*a*/*b", "/".join(["a" * 255] * 6)),
    ],
)
def test_no_glob_takes_long(glob: str, path: str) -> None:
    began = time.thread_time()
    assert not matches(glob, path)
    assert time.thread_time() - began < 0.1


@pytest.mark.parametrize("glob", ["../*", "a/../b", "{a,b}" * 10, "{1..100000000}", "{a,{b,{c}}}" * 9])
def test_a_glob_is_refused(glob: str) -> None:
    with pytest.raises(GlobError):
        compile_globs([glob])


def test_the_alternatives_of_all_globs_are_limited_together() -> None:
    compile_globs(["{1..500}", "{1..500}"])
    with pytest.raises(GlobError, match="1000 alternatives"):
        compile_globs(["{1..500}", "{1..500}", "a"])


@pytest.mark.parametrize(
    ("globs", "names"),
    [
        (["**/*.py", "src/*.{js,ts}"], ["*.js", "*.py", "*.ts"]),
        (["a?b**c"], ["a*b*c"]),
        (["*.py", "**"], []),
        (["*.py", "[ab].c"], []),
        ([".env"], []),
        (["a:b"], []),
    ],
)
def test_other_programs_get_globs_that_match_more(globs: list[str], names: list[str]) -> None:
    assert rough_names(globs, hidden=False) == names


def test_names_with_a_dot_are_looked_for_on_request() -> None:
    assert rough_names([".env"], hidden=True) == [".env"]
