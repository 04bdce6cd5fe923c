from __future__ import annotations

import re
import signal
import time
from collections.abc import Iterator

import pexpect
import pytest

from execclient.tools.terminal_text import TerminalLines, TerminalText


def lines_of(*pieces: bytes, columns: int = 80) -> tuple[list[str], str]:
    terminal = TerminalLines(columns)
    return [line for piece in pieces for line in terminal.feed(piece)], terminal.partial


def talk(*exchange: tuple[str, bytes]) -> list[str]:
    """What a model reads; each of the exchange is what it types, and what comes then."""
    terminal = TerminalText()
    shown = []
    for typed, output in exchange:
        terminal.typed(typed)
        shown.append(terminal.clean(output))
    return shown


# -- the lines of a terminal


@pytest.mark.parametrize(
    ("output", "line"),
    [
        (b"\x1b[31mred\x1b[0m", "red"),
        (b"\x1b]0;title\x07text", "text"),
        (b"\x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\", "link"),
        (b"\x1bPq#0\x1b\\after", "after"),
        (b"\x1b(B\x1b=\x1b>\x1b7\x1b8plain", "plain"),
        (b"\x1b[?2004h$ ", "$ "),
        (b"a\x07b\x00c", "abc"),
        (b"ten\rT", "Ten"),
        (b"10%\r20%", "20%"),
        (b"long\rab\x1b[K", "ab"),
        (b"ab\x08\x08X", "Xb"),
        (b"abc\x1b[2DX", "aXc"),
        (b"abcdef\r\x1b[2P", "cdef"),
        (b"abc\r\x1b[2@", "  abc"),
        (b"abc\x1b[1GX\x1b[5GY", "Xbc Y"),
        (b"abc\x1b[2KX", "   X"),
        (b"abc\x1b[1K", "   "),
        (b"abc\x1b[5D\x1b[1@X", "Xabc"),
        (b"abc\x1b[5D\x1b[J", ""),
        (b"abc\x1b[2JX", "   X"),
        (b"a\tb", "a\tb"),
        (b"a\tb\rX", "X\tb"),
        ("e\u0301\rX".encode(), "X"),
        ("語a\x08X".encode(), "語X"),
        (b"ok\xff", "ok\ufffd"),
        (b"\x1b[99999999999999C\x1b[>cx", " " * 79 + "x"),
    ],
)
def test_a_line_is_what_one_would_see(output: bytes, line: str) -> None:
    assert lines_of(output) == ([], line)


def test_lines_end_at_newlines_with_or_without_a_carriage_return() -> None:
    assert lines_of(b"a\r\nb\n\r\r\nc") == (["a", "b", ""], "c")


def test_a_line_longer_than_a_row_stays_one_line() -> None:
    assert lines_of(b"abcdefg\r\n", columns=4) == (["abcdefg"], "")


def test_a_carriage_return_goes_back_to_the_beginning_of_its_row() -> None:
    assert lines_of(b"abcd \rXY", columns=4) == ([], "abcdXY")
    assert lines_of(b"abcd\rXY", columns=4) == ([], "XYcd")


def test_a_wide_character_that_does_not_fit_begins_the_next_row() -> None:
    assert lines_of("abc語\rX".encode(), columns=4) == ([], "abc X")


def test_a_row_above_can_be_written_over() -> None:
    assert lines_of(b"abcdef\x1b[A\rX\x1b[B\rY", columns=4) == ([], "XbcdYf")


def test_erasing_in_a_row_leaves_the_others_where_they_are() -> None:
    assert lines_of(b"abcdef\x1b[A\r\x1b[KX", columns=4) == ([], "X   ef")
    assert lines_of(b"abcdef\x1b[A\r\x1b[PX", columns=4) == ([], "Xcd ef")
    assert lines_of(b"abcdef\x1b[A\r\x1b[2@X", columns=4) == ([], "X abef")
    assert lines_of(b"abcdef\x1b[A\x1b[1KX", columns=4) == ([], "  Xdef")


@pytest.mark.parametrize(
    "output",
    [
        b"x" * 100_000 + b"\x1b[1J" * 25_000,
        b"x\r" + b"\x1b[@" * 50_000,
        b"x" * 100_000 + b"\x1b[A\x1b[K" * 15_000,
        b"\x1b]" * 100_000,
        b"\x1bP" * 100_000,
        "e\u0301".encode() + "\u0301".encode() * 100_000,
        b"\r10%" * 50_000,
        bytes(range(256)) * 800,
    ],
    ids=["erase", "insert", "up", "titles", "strings", "marks", "progress", "binary"],
)
def test_a_flood_of_anything_takes_time_in_proportion_to_its_length(output: bytes) -> None:
    began = time.process_time()

    lines_of(output)

    assert time.process_time() - began < 2


def test_text_elsewhere_on_the_screen_is_a_line_of_its_own() -> None:
    assert lines_of(b"\x1b[H\x1b[2Jab\x1b[5;1Hcd\r\n") == (["ab", "cd"], "")


@pytest.mark.parametrize("output", [b"a\x1b[31mb\x1b]0;t\x1b\\c\r\n", "é語\r\nx\x1b[2D😀".encode()])
def test_output_may_be_cut_anywhere(output: bytes) -> None:
    whole = lines_of(output)

    assert lines_of(*(output[n : n + 1] for n in range(len(output)))) == whole
    assert all(lines_of(output[:n], output[n:]) == whole for n in range(len(output)))


def test_an_escape_sequence_without_end_holds_back_nothing_for_ever() -> None:
    lines, partial = lines_of(b"\x1b]" + b"x" * 10_000, b"\r\nnext")

    assert lines[0].endswith("x")
    assert partial == "next"


# -- what a model reads


def test_the_echo_and_the_standing_prompt_are_left_out() -> None:
    assert talk(
        ("", b"$ "), ("export FOO=bar\n", b"export FOO=bar\r\n$ "), ("echo $FOO\n", b"echo $FOO\r\nbar\r\n$ ")
    ) == ["$ ", "", "bar\n"]


def test_output_behind_the_prompt_without_a_newline_is_shown_without_the_prompt() -> None:
    assert talk(("", b"$ "), ("printf abc\n", b"printf abc\r\nabc$ "), ("id\n", b"id\r\nme\r\n$ ")) == [
        "$ ",
        "abc",
        "me\n",
    ]


def test_another_prompt_is_shown_because_it_asks_something() -> None:
    assert talk(
        ("", b"$ "),
        ("read -p 'Name? ' n\n", b"read -p 'Name? ' n\r\nName? "),
        ("bob\n", b"bob\r\n$ "),
        ("sudo -s\n", b"sudo -s\r\n# "),
    ) == ["$ ", "Name? ", "$ ", "# "]


def test_a_program_that_repeats_its_input_is_shown_once() -> None:
    assert talk(("cat\n", b"cat\r\n"), ("hello\n", b"hello\r\nhello\r\n")) == ["", "hello\n"]


def test_lines_of_one_input_are_left_out_behind_every_prompt() -> None:
    assert talk(
        ("", b"$ "),
        ("for i in 1 2\ndo echo $i\ndone\n", b"for i in 1 2\r\n> do echo $i\r\n> done\r\n1\r\n2\r\n$ "),
        ("a=1\necho $a\n", b"a=1\r\n$ echo $a\r\n1\r\n$ "),
    ) == ["$ ", "1\n2\n", "1\n"]


def test_an_empty_line_that_ends_a_block_is_left_out_with_its_prompt() -> None:
    assert talk(
        ("", b">>> "),
        ("for i in 1,:\n  print(i)\n\n", b"for i in 1,:\r\n...   print(i)\r\n... \r\n1\r\n>>> "),
    ) == [">>> ", "1\n"]


def test_what_was_typed_ahead_is_echoed_twice_and_left_out_twice() -> None:
    assert talk(
        ("", b"$ "),
        ("sleep 1\n", b"sleep 1\r\n"),
        ("echo next\n", b"echo next\r\n$ echo next\r\nnext\r\n$ "),
    ) == ["$ ", "", "next\n"]


def test_a_line_may_be_typed_in_parts_and_echoed_in_others() -> None:
    assert talk(
        ("", b"$ "), ("echo ", b"ech"), ("hel", b"o hel"), ("lo\n", b"lo\r\nhello\r\n$ "), ("", b"")
    ) == ["$ ", "", "", "hello\n", ""]


def test_what_completion_added_is_shown() -> None:
    assert talk(("", b"$ "), ("ech\t", b"echo "), ("hi\n", b"hi\r\nhi\r\n$ ")) == ["$ ", "echo ", "hi\n"]


def test_corrections_are_followed() -> None:
    assert talk(
        ("", b"$ "),
        ("echo foo\x7f\x7fxx\n", b"echo foo\x08\x1b[K\x08\x1b[Kxx\r\nfxx\r\n$ "),
        ("echo q\x15echo r\n", b"echo q\r\x1b[C\x1b[C\x1b[Kecho r\r\nr\r\n$ "),
    ) == ["$ ", "fxx\n", "r\n"]


def test_a_line_from_the_history_is_shown_because_it_was_not_typed() -> None:
    assert talk(("", b"$ "), ("\x1b[A\n", b"echo hi\r\nhi\r\n$ ")) == ["$ ", "echo hi\nhi\n"]


def test_marks_around_pasted_text_are_no_text() -> None:
    assert talk(("", b"$ "), ("\x1b[200~id\x1b[201~\n", b"\x1b[7mid\x1b[27m\r\nme\r\n$ ")) == ["$ ", "me\n"]


@pytest.mark.parametrize("typed", ["\x03", "echo a\x03"])
def test_an_interrupt_is_left_out(typed: str) -> None:
    assert talk(("", b"$ "), (typed, b"^C\r\n$ ")) == ["$ ", ""]


def test_what_was_never_echoed_is_not_waited_for_once_a_prompt_is_back() -> None:
    assert talk(
        ("", b"$ "),
        ("read -s p\n", b"read -s p\r\n"),
        ("secret\n", b"$ "),
        ("echo $p\n", b"echo $p\r\nsecret\r\n$ "),
    ) == ["$ ", "", "", "secret\n"]


def test_long_input_and_long_output_are_not_compared_line_by_line_for_ever() -> None:
    script = "".join(f"read a{number}\n" for number in range(2000))
    output = "".join(f"line {number}\r\n" for number in range(20_000)).encode()
    terminal = TerminalText()
    terminal.typed(script)

    began = time.process_time()
    shown = terminal.clean(output)

    assert shown == output.decode().replace("\r\n", "\n")
    assert time.process_time() - began < 5


def test_output_that_was_not_typed_is_always_shown() -> None:
    assert talk(("", b"$ "), ("", b"[1]+  Done  sleep 1\r\n$ "), ("id\n", b"id\r\nid: id\r\nme\r\n$ ")) == [
        "$ ",
        "[1]+  Done  sleep 1\n",
        "id: id\nme\n",
    ]


def test_of_a_line_that_grows_only_the_new_part_is_shown() -> None:
    assert talk(("", b"."), ("", b"."), ("", b".."), ("", b" done\r\n")) == [".", ".", "..", " done\n"]


def test_a_line_that_is_written_over_is_shown_again() -> None:
    assert talk(("", b"10%"), ("", b"\r20%"), ("", b"\r30%\r40%\r\n")) == ["10%", "20%", "40%\n"]


def test_a_last_line_without_newline_is_shown_at_the_end_even_if_it_looks_like_the_prompt() -> None:
    terminal = TerminalText()
    terminal.clean(b"$ ")
    terminal.typed("cat f\n")

    assert terminal.clean(b"cat f\r\n$ ", ended=True) == "$ "


def test_a_line_that_never_ends_is_shown_once_and_not_kept() -> None:
    terminal = TerminalText()

    shown = [terminal.clean(b"x" * 20_000) for _ in range(3)]

    assert shown == ["x" * 20_000] * 3


# -- a real shell


PROMPT = "user@host:/work# "


@pytest.fixture(params=["dumb", "xterm"])
def shell(request: pytest.FixtureRequest) -> Iterator[pexpect.spawn[bytes]]:
    """Bash on a terminal of 24 × 80: without capabilities, and with a colored prompt and bracketed paste."""
    colored = rf"\[\e[32m\]user@host\[\e[0m\]{PROMPT.removeprefix('user@host')}"
    child: pexpect.spawn[bytes] = pexpect.spawn(
        "bash",
        ["--norc", "--noprofile", "-i"],
        env={
            "PATH": "/usr/bin:/bin",
            "HOME": "/nonexistent",
            "LANG": "C.UTF-8",
            "TERM": request.param,
            "PS1": PROMPT if request.param == "dumb" else colored,
        },
        dimensions=(24, 80),
        timeout=30,
    )
    child.delaybeforesend = None
    yield child
    child.kill(signal.SIGKILL)
    child.wait()
    child.ptyproc.fileobj.close()  # type: ignore[attr-defined]  # `close` sleeps before it looks for the child


def until_prompt(shell: pexpect.spawn[bytes], prompt: bytes = rb":/work# ") -> bytes:
    shell.expect(prompt)
    assert isinstance(shell.before, bytes)
    assert isinstance(shell.after, bytes)
    return shell.before + shell.after


EXCHANGES = [
    ("FOO=bar; echo $FOO\n", "bar\n"),
    ("true\n", ""),
    ("printf 'a\\rb\\n\\033[31mred\\033[0m\\n'\n", "b\nred\n"),
    ("echo " + "word " * 60 + "\n", "word " * 59 + "word\n"),
    ("echo " + "語" * 60 + "\n", "語" * 60 + "\n"),
    ("printf 'no newline'\n", "no newline"),
    ("true\n", ""),
]


def test_of_a_real_shell_the_output_alone_is_left(shell: pexpect.spawn[bytes]) -> None:
    terminal = TerminalText()
    assert terminal.clean(until_prompt(shell)) == PROMPT
    for typed, shown in EXCHANGES * 2:
        shell.send(typed)
        terminal.typed(typed)
        assert terminal.clean(until_prompt(shell)) == shown, typed


def test_of_a_real_shell_the_raw_output_has_echo_and_prompt(shell: pexpect.spawn[bytes]) -> None:
    until_prompt(shell)

    shell.send("echo $((6 * 7))\n")

    raw = until_prompt(shell).decode()
    assert re.match(r"echo \$\(\(6 \* 7\)\)\r\n(\x1b\[\?2004l\r)?42\r\n", raw)
    assert raw.endswith(":/work# ")
