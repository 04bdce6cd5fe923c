"""Invalid arguments: each error names the argument, and what to pass instead."""

from __future__ import annotations

import array
import math
import re
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from execclient import arguments
from execclient.client import connect


def limit(value: Any) -> Any:
    return arguments.limit(value, "timeout")


def size(value: Any) -> Any:
    return arguments.terminal_size(value)


def count(value: Any) -> Any:
    return arguments.count(value, "max_bytes", none="keeps everything")


def content(value: Any) -> Any:
    return arguments.data(value, "input")


def opened(**given: Any) -> Any:
    return connect("stdio:", **given)


@pytest.mark.parametrize(
    ("check", "given", "error", "text"),
    [
        (limit, "5", TypeError, "timeout is a number of seconds, not str; None sets no limit"),
        (limit, True, TypeError, "timeout is a number of seconds, not bool; None sets no limit"),
        (limit, timedelta(1), TypeError, "a number of seconds, not timedelta; pass its total_seconds()"),
        (limit, 0, ValueError, "timeout is above 0 seconds, not 0; None sets no limit"),
        (limit, -1.5, ValueError, "timeout is above 0 seconds, not -1.5; None sets no limit"),
        (limit, math.nan, ValueError, "timeout is a number of seconds, not NaN"),
        (limit, 1e13, ValueError, "timeout is at most 9000000000000 seconds"),
        (arguments.waiting, "1", TypeError, "timeout is a number of seconds, not str; None waits for ever"),
        (size, "80x24", TypeError, "size is a pair of rows and columns, as (24, 80), not '80x24'"),
        (size, (24,), TypeError, "size is a pair of rows and columns"),
        (size, (24, 80, 1), TypeError, "size is a pair of rows and columns"),
        (size, (24.0, 80), TypeError, "the rows of a terminal are a whole number, not float"),
        (size, (24, 0), ValueError, "the columns of a terminal are 1 to 65535, not 0"),
        (size, (65536, 80), ValueError, "the rows of a terminal are 1 to 65535, not 65536"),
        (count, "5", TypeError, "max_bytes is a whole number, not str; None keeps everything"),
        (count, 1e6, TypeError, "max_bytes is a whole number, not float"),
        (count, -1, ValueError, "max_bytes is 0 or more, not -1"),
        (content, 5, TypeError, "input is bytes or text, not int"),
        (content, ["a"], TypeError, "input is bytes or text, not list"),
        (content, "\udcff", ValueError, "input holds characters that UTF-8 does not have"),
        (arguments.path, "", ValueError, "path is empty; the executor's working directory is '.'"),
        (arguments.path, b"/tmp", TypeError, "path is text or a path, not bytes: use os.fsdecode"),
        (arguments.path, None, TypeError, "path is text or a path, not None"),
        (arguments.command_line, "ls -l", TypeError, "argv is a list of strings; for a shell command"),
        (arguments.command_line, b"ls", TypeError, "argv is a list of strings, not bytes"),
        (arguments.command_line, None, TypeError, "argv is a list of strings, not None"),
        (arguments.command_line, ["ls", 5], TypeError, "argv[1] is text or a path, not int"),
        (arguments.command_line, ["a\0b"], ValueError, "argv[0] holds a NUL character"),
        (arguments.command_line, ["\udcff"], ValueError, "argv[0] holds bytes that are not UTF-8"),
        (arguments.variables, ["A=b"], TypeError, "env is a mapping of names to values, as a dict, not list"),
        (arguments.variables, {"A": 5}, TypeError, "env['A'] is text or a path, not int"),
        (arguments.variables, {"A=B": "c"}, ValueError, "a name in env is not empty and has no '=' in it"),
        (arguments.variables, {"": "c"}, ValueError, "a name in env is not empty"),
    ],
)
def test_an_argument_that_cannot_be_is_named(
    check: Callable[[Any], Any], given: Any, error: type[Exception], text: str
) -> None:
    with pytest.raises(error, match=re.escape(text)):
        check(given)


@pytest.mark.parametrize(
    ("given", "error", "text"),
    [
        ({"call_timeout": "5"}, TypeError, "call_timeout is a number of seconds, not str"),
        ({"call_timeout": None}, TypeError, "not None; math.inf sets no limit"),
        ({"call_timeout": 0}, ValueError, "call_timeout is above 0 seconds, not 0"),
        # Otherwise the call would fail at the first lost connection, in a background task.
        ({"recovery_timeout": "45"}, TypeError, "recovery_timeout is a number of seconds, not str"),
        ({"recovery_timeout": -1}, ValueError, "recovery_timeout is above 0 seconds, not -1"),
    ],
)
def test_a_connection_is_not_begun_with_limits_that_cannot_be(
    given: dict[str, Any], error: type[Exception], text: str
) -> None:
    with pytest.raises(error, match=re.escape(text)):
        opened(**given)


async def test_a_command_in_one_string_is_not_taken_apart() -> None:
    with pytest.raises(TypeError, match="command is a list of strings"):
        await opened(command="execserver serve --listen stdio")


def test_what_can_be_is_what_is_sent() -> None:
    assert (limit(None), limit(2), limit(0.5), limit(math.inf)) == (None, 2, 0.5, None)
    assert (arguments.waiting(None), arguments.waiting(-1), arguments.waiting(0)) == (None, -1, 0)
    assert size((24, 80)) == size([24, 80]) == {"rows": 24, "cols": 80}
    assert (count(None), count(0), count(7)) == (None, 0, 7)
    assert arguments.path(Path()) == "."
    assert arguments.command_line(("ls", Path("/tmp"))) == ["ls", "/tmp"]
    assert arguments.variables({"A": "b=c", "PLACE": Path("/tmp")}) == {"A": "b=c", "PLACE": "/tmp"}
    assert content("é") == "é".encode()


def test_bytes_are_not_copied_and_everything_that_may_change_is() -> None:
    kept, changing = b"abc", bytearray(b"abc")
    assert content(kept) is kept
    taken = content(changing)
    changing[0] = 0
    assert taken == b"abc"
    assert content(memoryview(array.array("H", [1, 2]))) == array.array("H", [1, 2]).tobytes()
    assert content(memoryview(b"abcdef")[::2]) == b"ace"
