"""Patterns: which paths they match, and what is found of them on a disk that somebody else can change."""

from __future__ import annotations

import errno
import os
import re
import resource
import shutil
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest
from hypothesis import example, given, reject, settings
from hypothesis import strategies as st

from execprotocol.errors import InvalidRequest, RpcError
from execserver.sandbox import glob_patterns, glob_search
from execserver.sandbox.glob_patterns import folder_of, matcher, matches, refuse_denied, require_few
from execserver.sandbox.glob_search import Budget, expand


def found(pattern: str, *folders: str, depth: int | None = None, denies: bool = False) -> list[str]:
    return sorted(expand(pattern, folders, depth, Budget(), denies=denies))


def make(base: Path, *names: str) -> list[str]:
    for name in names:
        (base / name).parent.mkdir(parents=True, exist_ok=True)
        (base / name).write_text("")
    return [str(base / name) for name in names]


# -- matching


@pytest.mark.parametrize(
    ("pattern", "path", "answer"),
    [
        ("/w/*.key", "/w/a.key", True),
        ("/w/*.key", "/w/.key", True),
        ("/w/*.key", "/w/s/a.key", False),
        ("/w/*.key", "/w/a.KEY", False),
        ("/w/?", "/w/a", True),
        ("/w/?", "/w/", False),
        ("/w?a", "/w/a", False),
        ("/w/**/.env", "/w/.env", True),
        ("/w/**/.env", "/w/a/b/.env", True),
        ("/w/**/.env", "/w/a.env", False),
        ("/w/**/**/.env", "/w/a/.env", True),
        ("/w/**", "/w/a/b", True),
        ("/w/**", "/w", False),
        ("/w/a**", "/w/ab", True),
        ("/w/a**", "/w/a/b", False),
        ("/w/**a/b", "/w/x/a/b", False),
        ("/w/***", "/w/a/b", False),
        ("/w/{a,b}.key", "/w/b.key", True),
        ("/w/{a,b}.key", "/w/c.key", False),
        ("/w/{a,{b,c}d}", "/w/cd", True),
        ("/w/{a/b,c}/d", "/w/a/b/d", True),
        ("/w/a,b}", "/w/a,b}", True),
        ("/w/[ab]", "/w/b", True),
        ("/w/[!ab]", "/w/b", False),
        ("/w/[^ab]", "/w/c", True),
        ("/w[!a]x", "/w/x", False),
        ("/w/[a-c]", "/w/b", True),
        ("/w/[a-]", "/w/-", True),
        ("/w/[-a]", "/w/-", True),
        ("/w/[+--]", "/w/,", True),
        ("/w/[]a]", "/w/]", True),
        ("/w/[[]", "/w/[", True),
        ("/w/[&&~~||^]", "/w/~", True),
        ("/w/[\\]", "/w/\\", True),
        ("/w/\\*", "/w/*", True),
        ("/w/\\*", "/w/a", False),
        ("/w/a.b+c$", "/w/a.b+c$", True),
        ("/w/a.b", "/w/axb", False),
        ("/w/*", "/w/two\nlines", True),
        ("/w/a", "/w/a\n", False),
        ("/w/*", "/w/\udcff\udcfe", True),
    ],
)
def test_a_path_matches_or_not(pattern: str, path: str, answer: bool) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        matcher.cache_clear()
        assert (matcher(pattern).fullmatch(path) is not None) is answer


def oracle(pattern: str, path: str) -> bool:
    """By trying everything: `**` between slashes is any number of names."""

    @cache
    def names(left: tuple[str, ...], right: tuple[str, ...]) -> bool:
        if not left:
            return not right
        if left[0] == "**":
            if len(left) == 1:
                return len(right) >= 1
            return names(left[1:], right) or (bool(right) and names(left, right[1:]))
        return bool(right) and name(left[0], right[0]) and names(left[1:], right[1:])

    @cache
    def name(left: str, right: str) -> bool:
        if not left:
            return not right
        if left[0] == "*":
            return name(left[1:], right) or (bool(right) and name(left, right[1:]))
        if left[0] == "?":
            return bool(right) and name(left[1:], right[1:])
        if left.startswith("[ab]"):
            return right[:1] in ("a", "b") and name(left[4:], right[1:])
        if left.startswith("[!a]"):
            return bool(right) and right[0] != "a" and name(left[4:], right[1:])
        if left.startswith("{a,bb}"):
            rest = left[6:]
            return any(right.startswith(text) and name(rest, right[len(text) :]) for text in ("a", "bb"))
        return right[:1] == left[0] and name(left[1:], right[1:])

    return names(tuple(pattern.split("/")[1:]), tuple(path.split("/")[1:]))


_pieces = st.lists(st.sampled_from(["a", "b", "*", "?", "[ab]", "[!a]", "{a,bb}"]), min_size=1, max_size=4)
_names = st.one_of(_pieces.map("".join), st.just("**"))
_patterns = st.lists(_names, min_size=1, max_size=4).map(lambda names: "/" + "/".join(names))
_some_paths = st.lists(st.text("ab", min_size=1, max_size=3), min_size=1, max_size=4).map(
    lambda names: "/" + "/".join(names)
)


@settings(max_examples=200)
@given(pattern=_patterns, path=_some_paths)
@example("/**/**", "/a")
@example("/a/**/**/b", "/a/b")
@example("/**", "/a/b/c")
def test_matching_agrees_with_trying_everything(pattern: str, path: str) -> None:
    assert (matcher(pattern).fullmatch(path) is not None) is oracle(pattern, path)


def backtracking(pattern: str) -> str:
    """A plain translation, which tries every way and so may take any time: for the answers only."""
    result = ""
    position = depth = 0
    while position < len(pattern):
        rest, begins = pattern[position:], position == 0 or pattern[position - 1] == "/"
        text = next(text for text in (*_WHOLE_TOKENS, rest[0]) if rest.startswith(text))
        if text == "**/" and not begins:
            text = "**"
        if text == "**/":
            result += "(?:.*/)?"
        elif text == "**":
            result += ".*" if begins and rest == "**" else "[^/]*"
        elif text in "{,}" and (depth or text == "{"):
            depth += {"{": 1, ",": 0, "}": -1}[text]
            result += {"{": "(?:", ",": "|", "}": ")"}[text]
        else:
            result += _PLAIN_TOKENS.get(text) or re.escape(text[-1])
        position += len(text)
    return result


_PLAIN_TOKENS = {"*": "[^/]*", "?": "[^/]", "[ab]": "[ab]", "[!a]": "(?!/)[^a]"}
_WHOLE_TOKENS = ("**/", "**", "[ab]", "[!a]", "\\a", "\\*", "\\{", "\\,")
_tokens = st.sampled_from(
    ["a", "b", "*", "?", "/", ".", "/**/", "**", "[ab]", "[!a]", "\\a", "\\*", "\\{", "\\,", ",", "}"]
)
_any_patterns = st.recursive(
    st.lists(_tokens, max_size=6).map("".join),
    lambda inner: st.lists(
        st.one_of(
            inner, st.lists(inner, min_size=1, max_size=3).map(lambda each: "{" + ",".join(each) + "}")
        ),
        max_size=4,
    ).map("".join),
    max_leaves=8,
).map(lambda text: "/" + text)
_any_paths = st.text("aab//.*,{\n", max_size=12).map(lambda text: "/" + text)


@settings(max_examples=1200, deadline=None)
@given(pattern=_any_patterns, paths=st.lists(_any_paths, min_size=4, max_size=4))
@example("/a/{**/b,/**/b}**/{a,**}", ["/a/b", "/a//b", "/a//a/b", "/a//"])
@example("/a*a*aa", ["/aaa", "/aaaa", "/aaa/a", "/aa"])
@example("/**/*/a/**/*a*/b", ["/a/a/aa/b", "/b/a/b/a/b", "/a/b", "/a/a/a/b"])
def test_matching_without_trying_again_gives_the_same_answers(pattern: str, paths: list[str]) -> None:
    try:
        compiled = matcher(pattern)
    except InvalidRequest:
        reject()  # too many braces
    plain = re.compile(backtracking(pattern), re.DOTALL)
    for path in paths:
        expected = plain.fullmatch(path) is not None
        assert (compiled.fullmatch(path) is not None) is expected, path
        above = [path]
        while above[-1].strip("/"):
            above.append(os.path.dirname(above[-1]))
        if not path.startswith("//"):
            assert matches((pattern,), path) is any(map(plain.fullmatch, above)), path


def test_what_lies_in_a_folder_that_matches_matches_too() -> None:
    assert matches(("/w/*.d",), "/w/a.d/b/c")
    assert matches(("/w/*.d",), "/w/a.d")
    assert not matches(("/w/*.d",), "/w/a/b.d")
    assert not matches(("/w/*.d",), "/")
    assert not matches(("/w/*.d",), "")


@pytest.mark.parametrize(
    ("pattern", "why"),
    [
        ("/w/{a,b", "a brace is not closed"),
        ("/w/[ab", "a bracket is not closed"),
        ("/w/[]", "a bracket is not closed"),
        ("/w/[!]", "a bracket is not closed"),
        ("/w/[b-a]", "a set of characters is none: bad character range"),
    ],
)
def test_a_pattern_that_is_none_is_an_error_that_says_why(pattern: str, why: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        matcher(pattern)
    assert str(caught.value).startswith(f"glob pattern {pattern!r}: {why}")


EVIL_PATHS = ["/w/" + "a" * 200, "/w/" + "a" * 4000, "/a" * 120, "/w" + "/a" * 2000, "/w" + "/aaab" * 800]
EVIL_PATTERNS = {
    "stars in a name": "/w/*a*a*a*a*c",
    "very many stars": "/w/" + "*a" * 2000 + "c",
    "stars and sets": "/w/" + "*[ab]" * 100 + "c",
    "stars and question marks": "/w/" + "?*" * 100 + "c",
    "a long end": "/w/*" + "?" * 2000 + "c",
    "a long middle": "/w/*" + "a" * 2000 + "c*b",
    "folders over and over": "/" + "**/" * 40 + "x",
    "folders and names": "/" + "**/*/" * 40 + "x",
    "folders and stars": "/" + "**/*a*/" * 40 + "x",
    "very many names": "/**/" + "*/" * 1000 + "b/**/c",
    "stars in braces": "/w/" + "{*a,*aa}" * 8 + "c",
    "braces in braces": "/w/" + "{c,*" * 60 + "c" + "}" * 60,
    "very deep braces": "/w/" + "{" * 2000 + "{a,*a}" * 8 + "c" + "}" * 2000,
    "braces that say nothing": "/w/" + "{a,*a}" * 8 + "{}" * 2000 + "c",
    "braces and folders": "/**/" + "{*a*,*aa*}" * 7 + "/c",
    "very many characters in a row": "/w/" + "".join(f"[{chr(999 + n)}-{chr(3000 + n)}]" for n in range(400)),
}
TOO_LARGE_PATTERNS = {
    "braces times braces": "/w/" + "{a,aa}" * 20 + "b",
    "braces that are empty": "/w/" + "{,}" * 2000,
    "long braces": "/w/" + "{a,b}" * 8 + "x" * 1000,
    "long sets in braces": "/w/" + "{a,b}" * 8 + "[" + "x" * 1000 + "]",
    "64 KiB of stars": "/w/" + "*a" * 32768,
    "64 KiB of braces": "/w/" + "{a" * 32768,
    "64 KiB of text": "/" + "a" * 65536,
}


def seconds(act: Callable[[], object]) -> float:
    """The processor time that it takes, the best of three: other programs do not count."""
    taken = []
    for _ in range(3):
        for function in (
            glob_patterns.matcher,
            glob_patterns._covering,
            glob_patterns._parsed,
            glob_patterns.require_few,
        ):
            function.cache_clear()
        re.purge()
        before = time.thread_time()
        act()
        taken.append(time.thread_time() - before)
    return min(taken)


@pytest.mark.parametrize("pattern", EVIL_PATTERNS.values(), ids=EVIL_PATTERNS)
def test_no_pattern_and_path_take_long_together(pattern: str) -> None:
    require_few((pattern,))
    assert seconds(lambda: matches((pattern,), "/")) < 0.05
    for path in EVIL_PATHS:
        assert not matcher(pattern).fullmatch(path)
        before = time.thread_time()
        matcher(pattern).fullmatch(path)
        matches((pattern,), path)
        assert time.thread_time() - before < 0.05, len(path)


@pytest.mark.parametrize("pattern", TOO_LARGE_PATTERNS.values(), ids=TOO_LARGE_PATTERNS)
def test_what_would_take_long_is_refused_at_once(pattern: str) -> None:
    def refused() -> None:
        with pytest.raises(InvalidRequest, match=r"use a shorter one|use fewer braces") as caught:
            require_few((pattern,))
        assert len(str(caught.value)) < 400
        assert str(caught.value).startswith(f"glob pattern {pattern[:20]!r}"[:-1])

    assert seconds(refused) < 0.05


@pytest.mark.parametrize(
    ("patterns", "why"),
    [
        ([f"/{n}/*" for n in range(257)], "are more than 256 with their braces written out; use fewer"),
        (["/{a,b,c}*"] * 86, "are more than 256 with their braces written out; use fewer"),
        (["/" + "a" * 200 + "*"] * 41, "have more than 8192 characters .* use fewer or shorter ones"),
    ],
)
def test_patterns_that_are_too_many_are_refused_and_one_less_is_not(patterns: list[str], why: str) -> None:
    require_few(tuple(patterns[1:]))
    with pytest.raises(InvalidRequest, match=why):
        require_few(tuple(patterns))


def test_a_path_that_is_too_long_for_the_kernel_is_refused_before_it_is_matched() -> None:
    refuse_denied(("/w/*.key",), "/w/" + "a" * 4092)
    refuse_denied((), "/w/" + "a" * 4093)
    with pytest.raises(RpcError, match="too long"):
        refuse_denied(("/w/*.key",), "/w/" + "a" * 4093)
    with pytest.raises(RpcError, match="denied"):
        refuse_denied(("/w/*.key",), "/w/a.key/b")


@pytest.mark.parametrize("path", ["//", "//x", "///x/y", "/w//a.key"])
def test_a_path_with_more_slashes_than_it_needs_is_matched_too(path: str) -> None:
    assert matches(("/w/b", "/**"), path)
    assert not matches(("/w/b",), path)


# -- the folder of a pattern


@pytest.mark.parametrize(
    ("pattern", "folder"),
    [
        ("/w/x/*.key", "/w/x"),
        ("/w/x/a.key", "/w/x"),
        ("/w/**/a", "/w"),
        ("/w*/a", "/"),
        ("/**/a", "/"),
        ("/a[*]b[[]c/*", "/a*b[c"),
        ("/a[\\]b/*", "/a\\b"),
        ("/w/a\\*/b/*", "/w"),
        ("/w/a[!b]/c/*", "/w"),
        ("/w/a[bc]/c/*", "/w"),
        ("/w/{a}/c/*", "/w"),
        ("/w/[{]a,b}/*", "/w/{a,b}"),
    ],
)
def test_a_pattern_is_searched_below_what_stands_before_its_first_special_character(
    pattern: str, folder: str
) -> None:
    assert folder_of(pattern) == folder


@settings(max_examples=100, deadline=None)
@given(pattern=_patterns, path=_some_paths)
def test_all_matches_lie_in_the_folder_of_the_pattern(pattern: str, path: str) -> None:
    try:
        compiled = matcher(pattern)
    except InvalidRequest:
        reject()  # too many braces
    if compiled.fullmatch(path):
        assert path.startswith(folder_of(pattern).rstrip("/") + "/")


# -- on the disk


def test_what_matches_is_found_hidden_or_not(base: Path) -> None:
    expected = make(base, ".env", ".hidden/.env", "a/b/c/.env")
    make(base, "a/env", ".envrc")
    assert found(f"{base}/**/.env") == sorted(expected)


def test_names_of_any_bytes_are_found(base: Path) -> None:
    for name in (b"two\nlines.key", b"\xff\xfe.key", b"[a]*?.key"):
        with open(os.path.join(os.fsencode(base), name), "w"):
            pass
    assert len(found(f"{base}/*.key")) == 3


def test_a_folder_that_matches_is_not_searched_any_further(base: Path) -> None:
    make(base, "x.d/y.d/z")
    assert found(f"{base}/**/*.d") == [f"{base}/x.d"]


def test_links_are_found_and_for_grants_not_followed(base: Path) -> None:
    make(base, "real/a.key")
    (base / "link").symlink_to("real")
    (base / "b.key").symlink_to("/nowhere")
    assert found(f"{base}/**/*.key") == [f"{base}/b.key", f"{base}/real/a.key"]


def denied(pattern: str, *folders: str, depth: int | None = None) -> list[str]:
    """Where the matches of a denying pattern lie."""
    return sorted({os.path.realpath(path) for path in found(pattern, *folders, depth=depth, denies=True)})


def test_denials_follow_links_to_folders_by_chains_and_two_dots(base: Path) -> None:
    expected = make(base, "out/deep/.env", "far/.env")
    (base / "w/sub").mkdir(parents=True)
    (base / "hop").symlink_to("out")
    (base / "w/chain").symlink_to(base / "hop")
    (base / "w/sub/up").symlink_to("../../far")
    assert denied(f"{base}/w/**/.env") == sorted(expected)
    assert found(f"{base}/w/**/.env") == []


@pytest.mark.parametrize("text", ["{out}/.env", "../out/.env", "hop", "{out}/dotted/../.env"])
def test_a_link_is_denied_by_the_names_that_it_leads_to(base: Path, text: str) -> None:
    secret, _ = make(base, "out/.env", "out/dotted/x")
    (base / "w").mkdir()
    (base / "w/hop").symlink_to("../out/.env")
    (base / "w/notes").symlink_to(text.format(out=base / "out"))
    assert denied(f"{base}/w/note{{s,}}/**") == []
    assert denied(f"{base}/w/*.env") == [secret]
    assert denied(f"{base}/w/**/.env") == [secret]


def test_a_folder_is_denied_by_the_name_that_a_link_leads_to(base: Path) -> None:
    key, other = make(base, "out/.ssh/id", "out/open/id")
    (base / "w").mkdir()
    (base / "w/keys").symlink_to(base / "out/.ssh")
    (base / "w/open").symlink_to(base / "out/open")
    assert denied(f"{base}/w/**/.ssh/**") == [key]
    assert denied(f"{base}/w/.ss?/*") == [key]
    assert denied(f"{base}/w/keys/*") == [key]
    assert denied(f"{base}/w/*/id") == sorted([key, other])


def test_links_in_circles_end_and_hide_nothing(base: Path) -> None:
    expected = make(base, "w/a/.env", "out/b/.env")
    for name, text in {"w/self": ".", "w/a/up": "..", "w/out": "../out", "out/back": "../w"}.items():
        (base / name).symlink_to(text)
    assert denied(f"{base}/w/**/.env") == sorted(expected)
    assert denied(f"{base}/w/*/*/*/.env") == sorted(expected)


def test_a_folder_is_searched_again_for_what_may_match_by_another_path(base: Path) -> None:
    (secret,) = make(base, "w/a/secret/x.key")
    (base / "w/link").symlink_to("a")
    (base / "w/b").mkdir()
    (base / "w/b/inner").symlink_to("../a/secret")
    assert denied(f"{base}/w/link/secret/*.key") == [secret]
    assert denied(f"{base}/w/b/**/*.key") == [secret]
    assert denied(f"{base}/w/{{a/none,b/inner}}/*.key") == [secret]


def test_links_that_lead_nowhere_or_into_proc_are_passed_over(base: Path) -> None:
    (secret,) = make(base, "w/.env")
    for name, text in {
        "gone": "/none",
        "loop": "loop",
        "cwd": "/proc/self/cwd",
        "fd": "/dev/fd",
        "other": "/proc/1/cwd",
    }.items():
        (base / "w" / name).symlink_to(text)
    assert denied(f"{base}/w/**/.env") == [secret]


def long_chain(base: Path, links: int) -> str:
    """A chain of links, each through two thousand names."""
    (base / "a").mkdir()
    (base / "end").mkdir()
    target = "end"
    for number in range(links):
        (base / f"hop{number}").symlink_to("a/../" * ((4000 - len(target)) // 5) + target)
        target = f"hop{number}"
    return f"{base}/{target}"


@pytest.mark.parametrize("links", [20, 60])
def test_links_that_take_long_to_follow_are_an_error_that_names_one(base: Path, links: int) -> None:
    chain = long_chain(base, links)
    (base / "w").mkdir()
    for number in range(200):
        (base / "w" / f"link{number}").symlink_to(chain)
    began = time.perf_counter()
    with pytest.raises(InvalidRequest, match=f"remove the symbolic link {base}/w/link"):
        denied(f"{base}/w/**/.env")
    assert time.perf_counter() - began < 5, "200 links take 10 s and more"


@pytest.mark.parametrize("target", ["/sys", "/sys/class", "/proc", "/proc/self/root/sys"])
def test_links_into_folders_of_the_kernel_are_not_searched(
    base: Path, target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(glob_search, "MAX_SCANNED", 2)
    (base / "link").symlink_to(target)
    assert denied(f"{base}/**/.env") == []


def test_many_ordinary_links_cost_no_more_than_other_names(
    base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(glob_search, "MAX_SCANNED", 102)
    make(base, "store/package/file")
    (base / "w").mkdir()
    for number in range(100):
        (base / "w" / f"link{number}").symlink_to("../w/.././store/package")
    assert denied(f"{base}/w/**/.env") == []


def test_the_depth_counts_folders_behind_links_too(base: Path) -> None:
    one, two = make(base, "out/k", "out/a/k")
    (base / "w/x/y").mkdir(parents=True)
    (base / "w/x/y/deep").symlink_to(base / "out")
    assert denied(f"{base}/w/**/k", depth=3) == []
    assert denied(f"{base}/w/**/k", depth=4) == [one]
    assert denied(f"{base}/w/**/k", depth=5) == sorted([one, two])
    (base / "w/near").symlink_to(base / "out")  # The shorter way counts.
    assert denied(f"{base}/w/**/k", depth=2) == [one]


def test_a_link_to_too_much_is_an_error_that_names_it_and_the_pattern(
    base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make(base, *(f"out/{number}" for number in range(20)), "w/x")
    (base / "w/link").symlink_to("../out")
    monkeypatch.setattr(glob_search, "MAX_SCANNED", 19)
    pattern = f"{base}/w/**/none"
    with pytest.raises(InvalidRequest) as refusal:
        denied(pattern)
    assert f"or remove the symbolic link {base}/w/link (the pattern is {pattern!r})" in str(refusal.value)
    (base / "w/link").unlink()
    assert denied(pattern) == []


@settings(deadline=None, max_examples=600)
@given(pattern=st.one_of(_patterns, _any_patterns), path=_some_paths)
@example("/a{/**/,}b", "/a/b")
@example("/a/{**,b}/b", "/a/b/b")
@example("/{a/,}**/b", "/a/a/b")
def test_names_one_by_one_match_as_the_whole_path_does(pattern: str, path: str) -> None:
    try:
        expected = matcher(pattern).fullmatch(path) is not None
    except InvalidRequest:
        reject()
    names = glob_patterns.PatternNames(pattern)
    matches = names.matching(names.of_folder(os.path.dirname(path)))
    assert (matches(os.path.basename(path)) is not None) is expected


def test_the_depth_is_counted_from_the_patterns_own_folder(base: Path) -> None:
    one, two, three = make(base, "w/k", "w/a/k", "w/a/b/k")
    assert found(f"{base}/w/**/k", depth=1) == [one]
    assert found(f"{base}/w/**/k", depth=2) == sorted([one, two])
    assert found(f"{base}/w/**/k") == sorted([one, two, three])


def test_a_pattern_without_a_folder_is_looked_for_where_it_is_told(base: Path) -> None:
    expected = make(base, "w/k", "v/k")
    make(base, "u/k")
    assert found("/**/k", f"{base}/w", f"{base}/v", f"{base}/w") == sorted(expected)
    assert found("/**/k") == []


def test_a_folder_that_is_missing_or_none_has_no_matches(base: Path) -> None:
    make(base, "file")
    (base / "loop").symlink_to("loop")
    for name in ("missing", "file", "loop"):
        assert found(f"{base}/{name}/*", denies=True) == []


def test_no_more_is_looked_at_than_can_match(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make(base, "a.key", *(f"big/{number}" for number in range(50)))
    monkeypatch.setattr(glob_search, "MAX_SCANNED", 10)
    assert found(f"{base}/*.key") == [f"{base}/a.key"]


def test_too_many_names_are_an_error_that_says_what_to_do(
    base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make(base, *(str(number) for number in range(20)))
    monkeypatch.setattr(glob_search, "MAX_SCANNED", 19)
    with pytest.raises(InvalidRequest, match="look at more than 19 names; set glob_scan_max_depth"):
        found(f"{base}/**/none")


def test_too_many_matches_are_an_error_that_says_what_to_do(
    base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make(base, *(f"{number}.key" for number in range(4)))
    monkeypatch.setattr(glob_search, "MAX_MATCHES", 4)
    assert len(found(f"{base}/*.key")) == 4
    monkeypatch.setattr(glob_search, "MAX_MATCHES", 3)
    with pytest.raises(InvalidRequest, match="match more than 3 paths; name their folder instead"):
        found(f"{base}/*.key")


def test_many_links_to_one_denied_file_are_one_match(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(glob_search, "MAX_MATCHES", 3)
    targets = make(base, "out/a.key", "out/b.key")
    (base / "w").mkdir()
    links = [base / "w" / f"link{number}" for number in range(20)]
    for number, link in enumerate(links):
        link.symlink_to(f"../out/{'ab'[number % 2]}.key")
    assert denied(f"{base}/w/**/*.key") == targets
    make(base, "out/c.key", "out/d.key")
    (base / "w" / "c").symlink_to("../out/c.key")
    (base / "w" / "d").symlink_to("../out/d.key")
    with pytest.raises(InvalidRequest, match="match more than 3 paths"):
        denied(f"{base}/w/**/*.key")


def test_all_patterns_of_a_policy_share_one_budget(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make(base, "a.key", "b.key")
    monkeypatch.setattr(glob_search, "MAX_MATCHES", 3)
    budget = Budget()
    assert len(list(expand(f"{base}/*.key", (), None, budget))) == 2
    with pytest.raises(InvalidRequest):
        list(expand(f"{base}/*.key", (), None, budget))


# -- folders that somebody wants to hide something in


@pytest.fixture
def too_deep(base: Path) -> Iterator[Path]:
    """Folders in each other, deeper than any path can say."""
    home = os.open(".", os.O_PATH)
    levels = 30
    os.chdir(base)
    try:
        for _ in range(levels):
            os.mkdir("n" * 200)
            os.chdir("n" * 200)
        with open(".env", "w"):
            pass
        yield base
    finally:
        os.chdir(base)
        for _ in range(levels):
            os.chdir("n" * 200)
        os.unlink(".env")
        for _ in range(levels):
            os.chdir("..")
            os.rmdir("n" * 200)
        os.fchdir(home)
        os.close(home)


def test_what_is_too_deep_for_a_path_is_an_error_and_not_passed_over(too_deep: Path) -> None:
    with pytest.raises(InvalidRequest, match="paths are too long; remove these folders"):
        found(f"{too_deep}/**/.env", denies=True)


def test_too_many_folders_in_each_other_are_an_error_that_says_what_to_do(base: Path) -> None:
    (base / "/".join("n" * (glob_search.MAX_LEVELS - 1))).mkdir(parents=True)
    assert found(f"{base}/**/.env") == []
    (base / "/".join("n" * glob_search.MAX_LEVELS)).mkdir()
    with pytest.raises(InvalidRequest, match="128 folders in each other; set glob_scan_max_depth"):
        found(f"{base}/**/.env")
    assert found(f"{base}/**/.env", depth=5) == []


def test_an_error_with_a_folder_that_is_there_is_not_passed_over(base: Path) -> None:
    make(base, "a/.env")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    # No descriptor is to be had for the listing.
    taken = [os.open("/", os.O_PATH)]
    resource.setrlimit(resource.RLIMIT_NOFILE, (taken[0] + 1, hard))
    try:
        while True:
            try:
                taken.append(os.open("/", os.O_PATH))
            except OSError:
                break
        with pytest.raises(OSError, match=os.strerror(errno.EMFILE)):
            found(f"{base}/**/.env")
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for fd in taken:
            os.close(fd)
    assert found(f"{base}/**/.env") == [f"{base}/a/.env"]


@pytest.fixture
def ordinary() -> Iterator[Path]:
    """A folder of a user to whom modes apply, and we are that user."""
    folder = Path(tempfile.mkdtemp(dir="/var/tmp"))
    as_root = os.geteuid() == 0
    if as_root:
        os.chown(folder, 65534, 65534)
        os.seteuid(65534)
    try:
        yield folder
    finally:
        if as_root:
            os.seteuid(0)
        else:
            for path in folder.iterdir():
                path.chmod(0o700)
        shutil.rmtree(folder)


def test_a_folder_that_its_owner_has_closed_counts_as_a_match_for_a_denial(ordinary: Path) -> None:
    make(ordinary, "hidden/.env")
    (ordinary / "hidden").chmod(0)
    assert found(f"{ordinary}/**/.env", denies=True) == [f"{ordinary}/hidden"]
    assert found(f"{ordinary}/**/.env") == []


def test_a_folder_that_another_user_has_closed_does_not(ordinary: Path) -> None:
    if os.getuid() != 0:
        pytest.skip("only root can make a folder of another user")
    os.seteuid(0)
    make(ordinary, "hidden/.env")
    (ordinary / "hidden").chmod(0)
    os.seteuid(65534)
    assert found(f"{ordinary}/**/.env", denies=True) == []


def test_compiled_patterns_are_whole_expressions() -> None:
    assert isinstance(matcher("/a|/b"), re.Pattern)
    assert not matcher("/a|/b").fullmatch("/a")
