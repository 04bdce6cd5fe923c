"""The text of a patch: what is read from it, and what is said when it is none."""

from __future__ import annotations

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from execclient.patch.errors import PatchSyntaxError
from execclient.patch.parse import AddFile, DeleteFile, Patch, UpdateFile, parse_patch

FIVE_MEGABYTES = 5_000_000

NO_HEADER = (
    " is not a valid hunk header. Valid hunk headers: '*** Add File: {path}', "
    "'*** Delete File: {path}', '*** Update File: {path}'"
)
NO_CONTENT = (
    "Unexpected line found in update hunk: {}. Every line should start with ' ' (context line), "
    "'+' (added line), or '-' (removed line)"
)


def wrapped(*lines: str) -> str:
    return "\n".join(["*** Begin Patch", *lines, "*** End Patch"])


def update(*lines: str) -> UpdateFile:
    hunk = parse_patch(wrapped("*** Update File: f", *lines)).hunks[0]
    assert isinstance(hunk, UpdateFile)
    return hunk


def error(text: str) -> PatchSyntaxError:
    with pytest.raises(PatchSyntaxError) as caught:
        parse_patch(text)
    return caught.value


def test_files_are_added_deleted_changed_and_moved() -> None:
    patch = parse_patch(
        wrapped(
            "*** Add File: new",
            "+one",
            "+",
            "*** Delete File: old",
            "*** Update File: a",
            "*** Move to: b",
            "@@ def f():",
            " keep",
            "-out",
            "+in",
        )
    )

    add, delete, change = patch.hunks
    assert add == AddFile("new", "one\n\n", 2)
    assert delete == DeleteFile("old", 5)
    assert isinstance(change, UpdateFile)
    assert (change.path, change.move_to, change.line) == ("a", "b", 6)
    chunk = change.chunks[0]
    assert (chunk.context, chunk.marks, chunk.at_end, chunk.line) == ("def f():", " -+", False, 8)
    assert (chunk.old_lines, chunk.new_lines) == (("keep", "out"), ("keep", "in"))


def test_a_file_may_be_added_without_content() -> None:
    assert parse_patch(wrapped("*** Add File: f", "*** Add File: g")).hunks == (
        AddFile("f", "", 2),
        AddFile("g", "", 3),
    )


def test_an_indented_marker_in_an_update_is_content() -> None:
    chunk = update("@@", "-a", " *** Delete File: g", "+*** End Patch", " @@", " *** End of File").chunks[0]

    assert chunk.new_lines == ("*** Delete File: g", "*** End Patch", "@@", "*** End of File")


def test_a_marker_with_blanks_behind_it_is_a_marker() -> None:
    chunks = update("@@ \t", "-a", "*** End of File  ", "@@ x  ", "+b").chunks

    assert [(chunk.context, chunk.at_end) for chunk in chunks] == [(None, True), ("x", False)]


def test_an_empty_line_is_an_empty_line_that_stays() -> None:
    chunk = update(" a", "", "-b").chunks[0]

    assert (chunk.marks, chunk.old_lines) == ("  -", ("a", "", "b"))


def test_empty_lines_after_the_end_of_the_file_are_nothing() -> None:
    assert update("@@", "+a", "*** End of File", "", " \t", "\t").chunks[0].new_lines == ("a",)


def test_only_one_carriage_return_belongs_to_a_line_end() -> None:
    patch = parse_patch("*** Begin Patch\r\n*** Add File: f\r\n+a\r\r\n*** End Patch\r\n")

    assert patch.hunks == (AddFile("f", "a\r\n", 2),)


def test_separators_that_are_no_white_space_are_kept() -> None:
    assert parse_patch(wrapped("*** Add File: f\x1c")).hunks == (AddFile("f\x1c", "", 2),)


def test_a_separator_is_no_blank_around_the_patch() -> None:
    assert error(wrapped("*** Delete File: f") + "\x1c").reason.startswith("The last line")


def test_the_last_line_ends_an_update_also_when_it_is_indented() -> None:
    patch = parse_patch("*** Begin Patch\n*** Update File: f\n-a\n+b\n  *** End Patch ")

    assert isinstance(patch.hunks[0], UpdateFile)
    assert patch.hunks[0].chunks[0].body == "-a\n+b"


def test_unicode_white_space_around_a_path_is_not_part_of_it() -> None:
    assert parse_patch(wrapped("\u3000*** Delete File: f\xa0")).hunks == (DeleteFile("f", 2),)


@pytest.mark.parametrize("first", ["<<EOF", "<<'EOF'", '<<"EOF"'])
def test_a_here_document_around_the_patch_is_taken_off(first: str) -> None:
    text = f"{first}\n{wrapped('*** Delete File: f', 'nonsense')}\nEOF\n"

    assert error(text).line == 3, "lines are counted within the patch"


def test_an_environment_is_named_once_before_the_files() -> None:
    assert parse_patch(wrapped("*** Environment ID:  east ")) == Patch((), "east")
    twice = error(wrapped("*** Environment ID: a", "*** Environment ID: a"))
    late = error(wrapped("*** Delete File: f", "*** Environment ID: a"))

    assert str(twice) == "invalid patch: apply_patch environment_id cannot be specified more than once"
    assert late.line == 3


@pytest.mark.parametrize(
    ("lines", "line", "reason"),
    [
        (("nonsense",), 2, f"'nonsense'{NO_HEADER}"),
        (("*** add file: f",), 2, f"'*** add file: f'{NO_HEADER}"),
        (("*** Add File: ",), 2, f"'*** Add File:'{NO_HEADER}"),
        (("*** Add File: f", " +a"), 3, f"'+a'{NO_HEADER}"),
        (("*** Delete File: f", ""), 3, f"''{NO_HEADER}"),
        (("*** Update File: f",), 2, "Update file hunk for path 'f' is empty"),
        (("*** Update File: f", "*** Move to: g"), 2, "Update file hunk for path 'f' is empty"),
        (("*** Update File: f", "*** Delete File: g"), 2, "Update file hunk for path 'f' is empty"),
        (("*** Update File: f", "@@"), 4, "Update hunk does not contain any lines"),
        (("*** Update File: f", "@@", "*** End of File"), 4, "Update hunk does not contain any lines"),
        (("*** Update File: f", "@@", "@@ x"), 4, NO_CONTENT.format("'@@ x'")),
        (("*** Update File: f", "@@", "*** Delete File: g "), 4, NO_CONTENT.format("'*** Delete File: g'")),
        (("*** Update File: f", "*** Move to: "), 3, NO_CONTENT.format("'*** Move to: '")),
        (
            ("*** Update File: f", "*** Move to: g", "*** Move to: h"),
            4,
            NO_CONTENT.format("'*** Move to: h'"),
        ),
        (("*** Update File: f", "@@", "\ta"), 4, NO_CONTENT.format("'\ta'")),
        (
            ("*** Update File: f", "-a", "b"),
            4,
            "Expected update hunk to start with a @@ context marker, got: 'b'",
        ),
        (
            ("*** Update File: f", "-a", "*** End of File", "", " b"),
            6,
            "Expected update hunk to start with a @@ context marker, got: ' b'",
        ),
    ],
)
def test_an_error_names_its_line_in_the_words_of_both_entry_points(
    lines: tuple[str, ...], line: int, reason: str
) -> None:
    found = error(wrapped(*lines))

    assert (found.line, found.reason) == (line, reason)
    assert found.applet_text == f"Invalid patch hunk on line {line}: {reason}"
    assert found.tool_text == f"apply_patch verification failed: invalid hunk at line {line}, {reason}"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "The last line of the patch must be '*** End Patch'"),
        ("*** Begin Patch", "The last line of the patch must be '*** End Patch'"),
        ("hello", "The first line of the patch must be '*** Begin Patch'"),
        ("*** Begin Patch\nnonsense", "The last line of the patch must be '*** End Patch'"),
        (wrapped("*** End Patch", "x"), "The last line of the patch must be '*** End Patch'"),
        (
            "<<'END'\n*** Begin Patch\n*** End Patch\nEND",
            "The first line of the patch must be '*** Begin Patch'",
        ),
        ("<<EOF\n*** Begin Patch\nEOF", "The first line of the patch must be '*** Begin Patch'"),
    ],
)
def test_an_incomplete_patch_is_told_as_a_whole(text: str, reason: str) -> None:
    found = error(text)

    assert found.line is None
    assert found.applet_text == f"Invalid patch: {reason}"
    assert found.tool_text == f"apply_patch verification failed: invalid patch: {reason}"


def test_half_a_surrogate_pair_is_refused_before_it_meets_a_file() -> None:
    assert "U+D800" in str(error(wrapped("*** Add File: f", "+\ud800")))


MARKERS = [
    "*** Begin Patch",
    "*** End Patch",
    "*** Add File: f",
    "*** Update File: f",
    "*** Delete File: f",
    "*** Move to: g",
    "*** End of File",
    "*** Environment ID: e",
    "@@",
    "@@ x",
    "<<EOF",
    "EOF",
    "",
    " ",
    "+a",
    "-a",
    " a",
    "\t",
]


@settings(max_examples=300, deadline=None)
@given(
    st.lists(st.sampled_from(MARKERS) | st.text(max_size=5), max_size=12),
    st.sampled_from(["\n", "\r\n", "\r"]),
)
def test_any_text_is_a_patch_or_a_syntax_error(lines: list[str], ending: str) -> None:
    text = ending.join(["*** Begin Patch", *lines, "*** End Patch"])
    try:
        patch = parse_patch(text)
    except PatchSyntaxError as found:
        line = found.line or 1
    else:
        line = 1
        for hunk in patch.hunks:
            assert hunk.path
            assert not isinstance(hunk, UpdateFile) or all(chunk.body or chunk.marks for chunk in hunk.chunks)
    assert 1 <= line <= text.count("\n") + 1


@pytest.mark.parametrize(
    ("head", "repeated"),
    [
        ("*** Add File: f\n", "+\n"),
        ("*** Update File: f\n", "@@ def f():\n-    return 1\n+    return 2\n"),
        ("*** Update File: f\n@@\n+a\n*** End of File\n", " \t\n"),
        ("", "\t\t\t\t\t\t\t\t"),
    ],
)
def test_a_patch_of_five_megabytes_is_read_in_two_seconds(head: str, repeated: str) -> None:
    text = f"*** Begin Patch\n{head}{repeated * (FIVE_MEGABYTES // len(repeated))}\n*** End Patch"
    begin = time.process_time()
    try:
        parse_patch(text)
    except PatchSyntaxError as found:
        assert found.line is not None  # noqa: PT017 - also an error must come soon
    assert time.process_time() - begin < 2


@pytest.mark.parametrize(
    "text",
    [
        "\ufeff*** Begin Patch\n*** Delete File: f\n*** End Patch",
        "\ufeff*** Begin Patch\r\n*** Delete File: f\r\n*** End Patch\r\n",
        "\n\ufeff \n*** Begin Patch\n*** Delete File: f\n*** End Patch",
        "\ufeff<<EOF\n*** Begin Patch\n*** Delete File: f\n*** End Patch\nEOF",
        "<<EOF\n\ufeff*** Begin Patch\n*** Delete File: f\n*** End Patch\nEOF",
    ],
)
def test_a_byte_order_mark_in_front_of_a_patch_is_ignored(text: str) -> None:
    assert [hunk.path for hunk in parse_patch(text).hunks] == ["f"]


def test_a_byte_order_mark_in_a_line_of_a_patch_is_text() -> None:
    hunk = parse_patch(wrapped("*** Add File: f", "+\ufeffa")).hunks[0]

    assert isinstance(hunk, AddFile)
    assert hunk.content == "\ufeffa\n"
