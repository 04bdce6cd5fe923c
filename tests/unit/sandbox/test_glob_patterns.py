"""Glob patterns: their syntax, and the paths that they match."""

from __future__ import annotations

import os
import re
import time
import warnings
from collections.abc import Callable
from functools import cache

import pytest
from hypothesis import example, given, reject, settings
from hypothesis import strategies as st

from execprotocol.errors import InvalidRequest, RpcError
from execserver.sandbox import glob_patterns
from execserver.sandbox.glob_patterns import folder_of, matcher, matches, refuse_denied, require_few

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
    """A matcher that tries everything: `**` between slashes is any number of names."""

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
    """A plain translation with backtracking, correct but slow."""
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


def test_paths_below_a_matching_folder_match_too() -> None:
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

# A tenth of that on a quick machine; a pattern that is tried in all ways takes minutes and more.
A_MOMENT_S = 0.25


def seconds(act: Callable[[], object]) -> float:
    """The processor time of a call, the best of three."""
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
    assert seconds(lambda: matches((pattern,), "/")) < A_MOMENT_S
    for path in EVIL_PATHS:
        assert not matcher(pattern).fullmatch(path)
        before = time.thread_time()
        matcher(pattern).fullmatch(path)
        matches((pattern,), path)
        assert time.thread_time() - before < A_MOMENT_S, len(path)


@pytest.mark.parametrize("pattern", TOO_LARGE_PATTERNS.values(), ids=TOO_LARGE_PATTERNS)
def test_patterns_that_would_take_long_are_refused_at_once(pattern: str) -> None:
    def refused() -> None:
        with pytest.raises(InvalidRequest, match=r"use a shorter one|use fewer braces") as caught:
            require_few((pattern,))
        assert len(str(caught.value)) < 400
        assert str(caught.value).startswith(f"glob pattern {pattern[:20]!r}"[:-1])

    assert seconds(refused) < A_MOMENT_S


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


def test_compiled_patterns_are_whole_expressions() -> None:
    assert isinstance(matcher("/a|/b"), re.Pattern)
    assert not matcher("/a|/b").fullmatch("/a")
