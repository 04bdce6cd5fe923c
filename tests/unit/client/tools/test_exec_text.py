from __future__ import annotations

import pytest

from execclient.tools import exec_text
from execclient.tools.exec_text import (
    command_envelope,
    not_started,
    patch_envelope,
    quoted,
    rejected,
    session_envelope,
    session_warning,
    show,
    show_text,
    unknown_session,
    unsupported_call,
)
from execclient.tools.truncation import Budget, HeadTailBuffer, Snapshot

BYTES = Budget(10_000, "bytes")


def output(data: bytes, limit: int = 1 << 20) -> Snapshot:
    buffer = HeadTailBuffer(limit)
    buffer.push(data)
    return buffer.snapshot()


def numbers(count: int) -> bytes:
    return "".join(f"{number}\n" for number in range(1, count + 1)).encode()


# -- what is shown of output


def test_output_within_its_budget_is_shown_as_it_is() -> None:
    data = b"\x1b[31mred\x1b[0m\r\nno newline"

    assert show(output(data), BYTES) == (data.decode(), False)


def test_bytes_that_are_no_text_become_replacements() -> None:
    assert show(output(b"\xff\xfe ok\n"), BYTES).text == "\ufffd\ufffd ok\n"


def test_under_a_budget_of_bytes_characters_are_counted() -> None:
    shown = show(output(numbers(100_000)), BYTES)

    prefix = "Warning: truncated output (original token count: 147224)\nTotal output lines: 100000\n\n"
    head, marker, tail = shown.text.removeprefix(prefix).partition("…578895 chars truncated…")
    assert shown.truncated
    assert shown.text.startswith(prefix)
    assert marker
    assert (len(head), len(tail)) == (5000, 5000)
    assert numbers(100_000).startswith(head.encode())
    assert numbers(100_000).endswith(tail.encode())


@pytest.mark.parametrize(
    ("tokens", "ends"),
    [
        (0, "…147224 tokens truncated…"),
        (1, "1\n…147223 tokens truncated…0\n"),
        (3, "1\n2\n3\n…147221 tokens truncated…00000\n"),
    ],
)
def test_under_a_budget_of_tokens_tokens_are_counted(tokens: int, ends: str) -> None:
    shown = show(output(numbers(100_000)), BYTES.at_most(tokens))

    assert shown.text == (
        f"Warning: truncated output (original token count: 147224)\nTotal output lines: 100000\n\n{ends}"
    )


def test_one_line_without_a_newline_is_one_line() -> None:
    shown = show(output(b"x" * 50_000), BYTES)

    assert shown.text.startswith(
        "Warning: truncated output (original token count: 12500)\nTotal output lines: 1\n\nx"
    )
    assert "x…40000 chars truncated…x" in shown.text


def test_characters_of_two_bytes_are_not_cut() -> None:
    shown = show(output("é\n".encode() * 60_000), BYTES.at_most(50))

    assert shown.text == (
        "Warning: truncated output (original token count: 45000)\nTotal output lines: 60000\n\n"
        + "é\n" * 33
        + "…44950 tokens truncated…"
        + "\n"
        + "é\n" * 33
    )


def test_of_a_buffer_that_overflowed_the_lost_bytes_are_told_instead_of_lines() -> None:
    shown = show(output(numbers(1_000_000)), BYTES.at_most(100_000))

    prefix = "Warning: truncated output (original token count: 1722224)\n... 5840320 bytes omitted ...\n\n"
    head, marker, tail = shown.text.removeprefix(prefix).partition("…1038607 chars truncated…")
    assert shown.text.startswith(prefix)
    assert marker
    assert (len(head), len(tail)) == (5000, 5000)


def test_the_note_of_lost_bytes_counts_as_text_of_the_buffer() -> None:
    shown = show(output(b"x" * 3_000_000), BYTES.at_most(200))

    assert shown.text == (
        "Warning: truncated output (original token count: 750000)\n... 1951424 bytes omitted ...\n\n"
        + "x" * 400
        + "…261952 tokens truncated…"
        + "x" * 400
    )


def test_an_overflow_within_the_budget_is_told_at_its_place_alone() -> None:
    shown = show(output(b"aaaabbbbcccc", limit=8), BYTES)

    assert shown == ("aaaa\n... 4 bytes omitted ...\ncccc", False)


def test_an_overflow_that_the_cut_leaves_in_sight_is_told_once() -> None:
    snapshot = Snapshot(b"a" * 10, b"b" * 1000, 7)

    shown = show(snapshot, Budget(200, "bytes"))

    assert shown.text.count("... 7 bytes omitted ...") == 1
    assert shown.text.startswith(
        "Warning: truncated output (original token count: 255)\n\n" + "a" * 10 + "\n... 7 bytes omitted ..."
    )


def test_the_warning_of_undamaged_output_counts_the_text_with_its_replacements() -> None:
    shown = show(output(b"\xff" * 20), Budget(8, "bytes"))

    assert shown.text == (
        "Warning: truncated output (original token count: 15)\nTotal output lines: 1\n\n"
        "\ufffd…18 chars truncated…\ufffd"
    )


def test_a_text_is_shown_like_output() -> None:
    shown = show_text("a" * 9, Budget(2, "tokens"))

    assert shown.truncated
    assert shown.text == (
        "Warning: truncated output (original token count: 3)\nTotal output lines: 1\n\n"
        "aaaa…1 tokens truncated…aaaa"
    )


# -- envelopes


def test_the_answer_of_a_process_that_has_ended() -> None:
    assert session_envelope(
        "out\nerr\n", wall_seconds=0.25119, chunk_id="a1b2c3", exit_code=3, output_bytes=8
    ) == (
        "Chunk ID: a1b2c3\nWall time: 0.2512 seconds\nProcess exited with code 3\n"
        "Original token count: 2\nOutput:\nout\nerr\n"
    )


def test_the_answer_of_a_process_that_still_runs() -> None:
    assert session_envelope("", wall_seconds=10, chunk_id="000000", session_id=1234, output_bytes=0) == (
        "Chunk ID: 000000\nWall time: 10.0000 seconds\nProcess running with session ID 1234\n"
        "Original token count: 0\nOutput:\n"
    )


def test_a_patch_is_answered_in_two_envelopes() -> None:
    patch = patch_envelope("Success. Updated the following files:\nA f.txt\n", wall_seconds=0.012)

    assert session_envelope(patch, wall_seconds=0) == (
        "Wall time: 0.0000 seconds\nOutput:\nExit code: 0\nWall time: 0 seconds\nOutput:\n"
        "Success. Updated the following files:\nA f.txt\n"
    )


@pytest.mark.parametrize(("seconds", "shown"), [(0.04, "0"), (0.05, "0.1"), (1.26, "1.3"), (2.0, "2")])
def test_a_patchs_time_has_a_decimal_only_where_there_is_something_to_say(seconds: float, shown: str) -> None:
    assert f"Wall time: {shown} seconds" in patch_envelope("", wall_seconds=seconds)


def test_the_answer_of_a_command_that_was_run_to_its_end() -> None:
    assert command_envelope("hi\n", exit_code=0, wall_seconds=0.04, budget=BYTES) == (
        "Exit code: 0\nWall time: 0.0 seconds\nOutput:\nhi\n",
        False,
    )


def test_lines_are_counted_for_a_truncated_command_only() -> None:
    shown = command_envelope("a\n" * 10, exit_code=1, wall_seconds=1.26, budget=Budget(2, "tokens"))

    assert shown.truncated
    assert shown.text == (
        "Exit code: 1\nWall time: 1.3 seconds\nTotal output lines: 10\nOutput:\n"
        "a\na\n…3 tokens truncated…a\na\n"
    )


def test_a_command_that_ran_into_its_limit_says_so_before_what_it_printed() -> None:
    shown = command_envelope("partial\n", exit_code=124, wall_seconds=1.5, budget=BYTES, timed_out_after=1.5)

    assert shown.text == (
        "Exit code: 124\nWall time: 1.5 seconds\nOutput:\n"
        "command timed out after 1500 milliseconds\npartial\n"
    )


# -- calls that came to nothing


def test_a_rejection_is_quoted_once_for_each_level() -> None:
    assert rejected('`echo "a\\b"` rejected: no\necho') == (
        "exec_command failed: CreateProcess { message: "
        '"Rejected(\\"`echo \\\\\\"a\\\\\\\\b\\\\\\"` rejected: no\\\\necho\\")" }'
    )


def test_a_rejection_keeps_single_quotes_and_back_quotes() -> None:
    assert rejected("`/bin/bash -lc 'cat a.txt'` rejected: no cat") == (
        "exec_command failed: CreateProcess { message: "
        '"Rejected(\\"`/bin/bash -lc \'cat a.txt\'` rejected: no cat\\")" }'
    )


def test_a_failed_start_is_told_as_a_rejection() -> None:
    assert not_started("No such file or directory (os error 2)") == (
        'exec_command failed: CreateProcess { message: "Rejected(\\"Failed to create unified exec process: '
        'No such file or directory (os error 2)\\")" }'
    )


@pytest.mark.parametrize(
    ("text", "literal"),
    [
        ("", '""'),
        ("\t\r\n\0", '"\\t\\r\\n\\0"'),
        ("\x1b[0m\x7f", '"\\u{1b}[0m\\u{7f}"'),
        ("é語😀 '", '"é語😀 \'"'),
        ("e\u0301\u200b\u00a0", '"e\\u{301}\\u{200b}\\u{a0}"'),
    ],
)
def test_what_cannot_be_printed_is_quoted_as_its_code(text: str, literal: str) -> None:
    assert quoted(text) == literal


def test_the_short_answers() -> None:
    assert unknown_session(1001) == "write_stdin failed: Unknown process id 1001"
    assert unsupported_call("shell") == "unsupported call: shell"
    assert unsupported_call("apply_patch", custom=True) == "unsupported custom tool call: apply_patch"
    assert exec_text.ADDITIONAL_PERMISSIONS_REFUSED == (
        "additional permissions are disabled; enable `features.exec_permission_approvals` before using "
        "`with_additional_permissions`"
    )
    assert exec_text.STDIN_CLOSED == (
        "write_stdin failed: stdin is closed for this session; "
        "rerun exec_command with tty=true to keep stdin open"
    )


def test_the_warning_of_many_sessions_names_both_numbers() -> None:
    assert session_warning(61, 64).startswith("Warning: 61 command sessions are open, and at most 64 can be.")
