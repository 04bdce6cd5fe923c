from __future__ import annotations

import os
import time

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from execprotocol.path_text import printable_path
from execprotocol.path_uri import MAX_URI, ForeignPath, PathUriError, parse_path_uri, path_to_uri

_NAMES = st.binary(min_size=1, max_size=12).filter(
    lambda name: b"/" not in name and b"\0" not in name and name not in (b".", b"..")
)


def _native(names: list[bytes]) -> str:
    return os.fsdecode(b"/" + b"/".join(names))


@given(st.lists(_NAMES, max_size=5))
@example([b"sp ace \xc3\xa9#?%"])
@example([b"bad\xff", b"\x01\n"])
@example([b"a%2e%2e", b"...", b"%2F"])
@example([b"\\", b"~", b"|"])
def test_a_path_is_the_same_after_a_round_trip(names: list[bytes]) -> None:
    path = _native(names)
    uri = path_to_uri(path)

    assert uri.isascii()
    parsed = parse_path_uri(uri)
    if names and len(names[0]) == 2 and names[0][1:] in (b":", b"|") and names[0][:1].isalpha():
        assert isinstance(parsed, ForeignPath)
    else:
        assert parsed == path
        assert not isinstance(parsed, ForeignPath)


@given(st.text(max_size=30))
@example("file:")
@example("file://")
@example("file:///..%2f")
def test_any_text_is_a_path_or_refused(text: str) -> None:
    for uri in (text, "file:" + text, "file:///" + text):
        try:
            path = parse_path_uri(uri)
        except PathUriError:
            continue
        assert isinstance(path, ForeignPath) or path.startswith("/")
        assert "\0" not in path


@given(st.lists(st.sampled_from(["a", "b", ".", "..", "%2e", ".%2E"]), max_size=8))
def test_dots_never_lead_above_the_root(segments: list[str]) -> None:
    path = parse_path_uri("file:///" + "/".join(segments))

    assert path.startswith("/")
    assert not {".", ".."} & set(path.split("/"))


@pytest.mark.parametrize(
    ("spelling", "path"),
    [
        ("file:///a/b", "/a/b"),
        ("FILE:///a/b", "/a/b"),
        ("file://localhost/a/b", "/a/b"),
        ("file:/a/b", "/a/b"),
        ("file:a/b", "/a/b"),
        ("file:///a b/c", "/a b/c"),
        ("file:///a/../c", "/c"),
        ("file:///a/b/", "/a/b"),
        ("file:///", "/"),
    ],
)
def test_spellings_of_a_path(spelling: str, path: str) -> None:
    assert parse_path_uri(spelling) == path


@pytest.mark.parametrize(
    ("escaped", "path"),
    [
        ("%%41", b"/%A"), ("%4%31", b"/%41"), ("%2541", b"/%41"), ("%5cx41", b"/\\x41"),
        ("a\\x41", b"/a/x41"), ("%u0041\\u0041", b"/%u0041/u0041"),
        ("%E9\u00e9%c3%A9", b"/\xe9\xc3\xa9\xc3\xa9"), ("%0a%", b"/\n%"),
    ],
)  # fmt: skip
def test_every_escape_is_decoded_once_and_nothing_else(escaped: str, path: bytes) -> None:
    assert os.fsencode(parse_path_uri(f"file:///{escaped}")) == path


def test_what_cannot_be_shown_is_shown_as_a_question_mark() -> None:
    assert printable_path(os.fsdecode(b"/bad\xff")) == "/bad\ufffd"


@pytest.mark.parametrize("part", ["/a", "/../a", "/%61", "%25%32", "//"])
def test_a_uri_longer_than_any_path_is_a_path_that_is_too_long_at_once(part: str) -> None:
    uri = "file://" + part * (2 << 20)
    begin = time.thread_time()
    path = parse_path_uri(uri)
    assert time.thread_time() - begin < 0.05
    with pytest.raises(OSError, match="File name too long"):
        os.stat(path)
    begin = time.thread_time()
    for _ in range(1000):  # as many as a request has
        parse_path_uri("file://" + part * (65_000 // len(part)))
    assert time.thread_time() - begin < 0.5
    longest = "file://" + "/a" * ((MAX_URI - 7) // 2)
    assert parse_path_uri(longest) == longest.removeprefix("file://")
