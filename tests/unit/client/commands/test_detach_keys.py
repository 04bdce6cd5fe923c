from __future__ import annotations

from argparse import ArgumentTypeError

import pytest
from hypothesis import given
from hypothesis import strategies as st

from execclient.commands.foreground import DetachKeys
from execclient.commands.values import DEFAULT_DETACH_KEYS, detach_keys


@pytest.mark.parametrize(
    ("text", "keys"),
    [
        (DEFAULT_DETACH_KEYS, b"\x10\x11"),
        ("ctrl-]", b"\x1d"),
        ("ctrl-@,x", b"\0x"),
        ("ctrl-A", b"\x01"),
        ("", b""),
    ],
)
def test_keys_have_names(text: str, keys: bytes) -> None:
    assert detach_keys(text) == keys


@pytest.mark.parametrize("text", ["ctrl-1", "ctrl-", "alt-x", "xy", ",", "ü", "ctrl-p,"])
def test_what_is_no_key_is_refused(text: str) -> None:
    with pytest.raises(ArgumentTypeError, match="no key"):
        detach_keys(text)


@given(st.lists(st.sampled_from([b"a", b"p", b"pa", b"app", b"q", b"\xff"]), max_size=12))
def test_all_that_is_typed_before_the_keys_is_passed_on_and_no_more(pieces: list[bytes]) -> None:
    keys = DetachKeys(b"paq")
    passed, is_detached = b"", False
    for piece in pieces:
        if not is_detached:
            rest, is_detached = keys.feed(piece)
            passed += rest

    typed = b"".join(pieces)
    before, found, _ = typed.partition(b"paq")
    assert is_detached == bool(found)
    held = typed[len(passed) :] if not found else b""
    assert passed + held == (before if found else typed)
    assert held in (b"", b"p", b"pa")


def test_without_keys_all_is_passed_on() -> None:
    assert DetachKeys(b"").feed(b"\x10\x11") == (b"\x10\x11", False)
