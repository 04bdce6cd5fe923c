"""Digests of starts, the first parameter in which two differ, and the bounds of a shown command line."""

from __future__ import annotations

import json
import os
import re
from hashlib import blake2b
from typing import Any

import pytest

from execprotocol.model import decode
from execprotocol.process import StartParams
from execserver.processes.start_options import (
    MAX_KEPT_ARGV,
    bounded_argv,
    bounded_path,
    first_difference,
    start_digests,
)
from tests.sandbox.profiles import READ_ONLY, WORKSPACE, context

BASE: dict[str, Any] = {
    "processId": "p",
    "argv": ["/bin/sh", "-c", "true"],
    "cwd": "file:///tmp",
    "env": {"A": "1", "B": "2"},
    "tty": False,
}

INHERIT = {"inherit": "core", "ignoreDefaultExcludes": True, "exclude": [], "set": {}, "includeOnly": []}


def digest(**changes: Any) -> dict[str, str]:
    return start_digests(decode(StartParams, {**BASE, **changes}))


def test_the_same_parameters_have_the_same_digests() -> None:
    assert digest() == digest()
    assert first_difference(digest(), digest()) is None


def test_what_is_not_said_is_the_default() -> None:
    spelled_out = digest(
        pipeStdin=False,
        arg0=None,
        envPolicy=None,
        sandbox=None,
        enforceManagedNetwork=False,
        managedNetwork=None,
        metadata=None,
        timeoutMs=None,
        idleTimeoutMs=None,
        graceMs=None,
    )
    assert spelled_out == digest()
    assert set(digest()) == {"argv", "cwd", "env", "tty"}


def test_the_order_of_names_and_the_spelling_of_a_path_make_no_difference() -> None:
    assert digest(env={"B": "2", "A": "1"}) == digest()
    assert digest(cwd="file://localhost/x/../tmp/") == digest()


def test_neither_the_id_nor_what_to_do_with_it_is_compared() -> None:
    assert digest(processId="q", ifExists="attach") == digest()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("argv", ["/bin/sh", "-c true"]),
        ("argv", ["/bin/sh", "true", "-c"]),
        ("cwd", "file:///"),
        ("cwd", "file:///tmp%FF"),
        ("env", {"A": "1"}),
        ("env", {"A": "1", "B": "3"}),
        ("env", {"A": "1", "B": "\ud800"}),
        ("tty", True),
        ("pipeStdin", True),
        ("arg0", "sh"),
        ("envPolicy", INHERIT),
        ("sandbox", context(READ_ONLY)),
        ("enforceManagedNetwork", True),
        ("managedNetwork", {"loopbackPorts": [80]}),
        ("shellSnapshot", {"scopeId": "s", "shell": {"name": "sh", "path": "/bin/sh"}}),
        ("metadata", {"toolCallId": "t"}),
        ("timeoutMs", 1000),
        ("idleTimeoutMs", 1000),
        ("graceMs", 1000),
    ],
)  # fmt: skip
def test_each_parameter_makes_a_difference_and_is_named(name: str, value: Any) -> None:
    changed = digest(**{name: value})
    assert first_difference(digest(), changed) == name
    assert first_difference(changed, digest()) == name
    assert first_difference(changed, changed) is None


def test_what_is_inside_a_sandbox_makes_a_difference() -> None:
    assert (
        first_difference(digest(sandbox=context(READ_ONLY)), digest(sandbox=context(WORKSPACE))) == "sandbox"
    )


def test_the_first_of_several_is_named() -> None:
    assert first_difference(digest(), digest(timeoutMs=5, env={}, tty=True)) == "env"


def test_a_digest_says_nothing_and_outlives_the_process_that_made_it() -> None:
    digests = digest(env={"TOKEN": "very secret"})
    assert all(re.fullmatch("[0-9a-f]{16}", value) for value in digests.values())
    assert json.loads(json.dumps(digests)) == digests
    # Another version of the server compares with these: they are for ever.
    texts = {
        "argv": b'["/bin/sh","-c","true"]',
        "cwd": b'"/tmp"',
        "env": b'{"A":"1","B":"2"}',
        "tty": b"false",
    }
    assert digest() == {name: blake2b(text, digest_size=8).hexdigest() for name, text in texts.items()}


def test_a_parameter_of_another_version_is_a_difference_only_when_it_was_used() -> None:
    assert (
        first_difference({**digest(), "someFutureThing": "0123456789abcdef"}, digest()) == "someFutureThing"
    )
    assert first_difference(digest(), digest()) is None


@pytest.mark.parametrize("argv", [["a"], [""] * 100, ["x" * (MAX_KEPT_ARGV - 1)]])
def test_a_short_command_line_is_kept_whole(argv: list[str]) -> None:
    assert bounded_argv(argv) == argv


@pytest.mark.parametrize("argv", [["x" * MAX_KEPT_ARGV], ["y"] * 100_000, [""] * 100_000, ["a", "z" * 10**6]])
def test_a_long_command_line_is_cut(argv: list[str]) -> None:
    kept = bounded_argv(argv)
    assert kept[-1].endswith("…")
    assert kept[:-1] == argv[: len(kept) - 1]
    assert sum(map(len, kept)) + len(kept) <= MAX_KEPT_ARGV + 2


def test_a_folder_is_kept_as_text() -> None:
    assert bounded_path("/tmp/ü") == "/tmp/ü"
    assert bounded_path(os.fsdecode(b"/\xff")) == "/\ufffd"
    assert len(bounded_path("/" + "x" * 10_000)) == MAX_KEPT_ARGV
