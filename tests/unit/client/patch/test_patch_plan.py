"""What a patch does to a tree of files, and what is said when it cannot."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

import pytest

from execclient.patch.errors import CannotRead, EmptyPatch, PatchError, PatchFileError, PatchMismatch
from execclient.patch.model import Edit
from execclient.patch.parse import parse_patch
from execclient.patch.plan import EntryPoint, Plan, plan, touched_paths


def wrapped(*lines: str) -> str:
    return "\n".join(["*** Begin Patch", *lines, "*** End Patch"])


def planned(files: Mapping[str, bytes | CannotRead], *lines: str, entry: EntryPoint = "tool") -> Plan:
    def read(path: str) -> bytes | None:
        content = files.get(path)
        if isinstance(content, CannotRead):
            raise content
        return content

    return plan(parse_patch(wrapped(*lines)), read, cwd="/w", entry=entry)


def refused(files: Mapping[str, bytes | CannotRead], *lines: str, entry: EntryPoint = "tool") -> PatchError:
    with pytest.raises(PatchError) as caught:
        planned(files, *lines, entry=entry)
    return caught.value


CHANGE = ("*** Update File: f", "-a", "+b")


def test_every_edit_has_both_contents_and_their_digests() -> None:
    files = {"/w/f": b"a\n", "/w/gone": b"x\n", "/w/old": b"a\n", "/w/there": b"y\n"}

    result = planned(
        files,
        *CHANGE,
        "*** Delete File: gone",
        "*** Add File: new/file",
        "+n",
        "*** Update File: old",
        "*** Move to: there",
        "-a",
        "+b",
    )

    assert result.edits == (
        Edit("update", "/w/f", "f", b"a\n", b"b\n"),
        Edit("delete", "/w/gone", "gone", b"x\n", None),
        Edit("add", "/w/new/file", "new/file", None, b"n\n"),
        Edit("move", "/w/old", "there", b"a\n", b"b\n", "/w/there", b"y\n"),
    )
    assert result.edits[0].before_digest == hashlib.sha256(b"a\n").hexdigest()
    assert (result.edits[1].after_digest, result.edits[2].before_digest) == (None, None)
    assert result.paths == ("/w/f", "/w/gone", "/w/new/file", "/w/old", "/w/there")


def test_the_success_text_groups_the_files() -> None:
    files = {"/w/f": b"a\n", "/w/gone": b"x\n", "/w/old": b"a\n"}

    result = planned(
        files,
        "*** Delete File: gone",
        *CHANGE,
        "*** Add File: ./new",
        "*** Update File: old",
        "*** Move to: /w/there",
        " a",
    )

    expected = "Success. Updated the following files:\nA ./new\nM f\nM /w/there\nD gone\n"
    assert result.text == expected


@pytest.mark.parametrize(
    ("path", "absolute"),
    [("f", "/w/f"), ("./a/../f", "/w/f"), ("../f", "/f"), ("../../f", "/f"), ("/x/f", "/x/f"), ("//x", "/x")],
)
def test_paths_begin_in_the_directory_of_the_call(path: str, absolute: str) -> None:
    assert touched_paths(parse_patch(wrapped(f"*** Add File: {path}")), "/w") == (absolute,)


def test_a_relative_directory_is_a_mistake_of_the_caller() -> None:
    with pytest.raises(ValueError, match="cwd"):
        plan(parse_patch(wrapped(*CHANGE)), lambda _: None, cwd="w")


def test_a_patch_without_files_is_none() -> None:
    with pytest.raises(EmptyPatch) as caught:
        planned({})
    assert caught.value.applet_text == "No files were modified."
    assert caught.value.tool_text == "patch rejected: empty patch"


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (None, "No such file or directory (os error 2)"),
        (CannotRead("path `/w/f` is not a file"), "path `/w/f` is not a file"),
        (b"ab\xff", "invalid utf-8 sequence of 1 bytes from index 2"),
        (b"a\xe2\x82x", "invalid utf-8 sequence of 2 bytes from index 1"),
        (b"a\xe2\x82", "incomplete utf-8 byte sequence from index 1"),
    ],
)
def test_a_file_that_cannot_be_read_is_told(content: bytes | CannotRead | None, reason: str) -> None:
    files = {} if content is None else {"/w/f": content}

    update = refused(files, *CHANGE)
    deletion = refused(files, "*** Delete File: f")

    assert str(update) == f"Failed to read file to update /w/f: {reason}"
    assert deletion.tool_text == f"apply_patch verification failed: Failed to read /w/f: {reason}"


def test_the_applet_deletes_what_is_no_text() -> None:
    assert planned({"/w/f": b"\xff"}, "*** Delete File: f", entry="applet").edits[0].before == b"\xff"
    assert str(refused({}, "*** Delete File: f", entry="applet")) == "Failed to delete file /w/f"


def test_what_cannot_be_read_may_still_be_replaced() -> None:
    edit = planned({"/w/f": CannotRead("permission denied")}, "*** Add File: f").edits[0]

    assert (edit.before, edit.is_known) == (None, False)


def test_the_tool_refuses_two_operations_on_one_path() -> None:
    found = refused({"/w/f": b"a\n"}, *CHANGE, "*** Delete File: ./f")

    assert found.tool_text == (
        "apply_patch verification failed: invalid patch: multiple operations target /w/f"
    )


def test_the_applet_takes_them_one_after_the_other() -> None:
    result = planned(
        {"/w/f": b"a\n"}, *CHANGE, "*** Update File: f", "-b", "+c", "*** Delete File: f", entry="applet"
    )

    assert [(edit.before, edit.after) for edit in result.edits] == [
        (b"a\n", b"b\n"),
        (b"b\n", b"c\n"),
        (b"c\n", None),
    ]


def test_a_file_that_was_moved_away_is_gone_for_what_follows() -> None:
    found = refused(
        {"/w/f": b"a\n"}, "*** Update File: f", "*** Move to: g", " a", "*** Delete File: f", entry="applet"
    )

    assert str(found) == "Failed to delete file /w/f"
    assert [edit.kind for edit in found.edits] == ["move"], "what was planned before it"


@pytest.mark.parametrize("name", ["f", "./f", "/w/d/../f"])
def test_a_file_moved_to_itself_is_changed_and_stays(name: str) -> None:
    result = planned({"/w/f": b"a\n"}, "*** Update File: f", f"*** Move to: {name}", "-a", "+b")

    assert result.edits == (Edit("update", "/w/f", name, b"a\n", b"b\n"),)


def test_a_file_moved_onto_a_link_to_itself_is_changed_and_stays() -> None:
    patch = parse_patch(wrapped("*** Update File: f", "*** Move to: link", "-a", "+b"))
    files = {"/w/f": b"a\n", "/w/link": b"a\n"}

    result = plan(patch, files.get, cwd="/w", resolve={"/w/f": "/w/f", "/w/link": "/w/f"}.__getitem__)

    assert [(edit.kind, edit.path) for edit in result.edits] == [("update", "/w/f")]


def test_nothing_is_read_after_the_first_failure_and_the_error_has_what_came_before() -> None:
    found = refused({"/w/f": b"a\n"}, *CHANGE, "*** Update File: g", "-x")

    assert isinstance(found, PatchFileError)
    assert (found.path, [edit.path for edit in found.edits]) == ("/w/g", ["/w/f"])


def test_a_mismatch_names_its_file_in_the_patch() -> None:
    found = refused({"/w/f": b"a\n", "/w/g": b"a\n"}, *CHANGE, "*** Update File: g", "-x")

    assert isinstance(found, PatchMismatch)
    assert (found.repair.hunk, found.repair.path) == (2, "/w/g")


WHOLE = (
    "*** Add File: new",
    "+n",
    "*** Delete File: gone",
    "*** Update File: f",
    " top",
    "-old text",
    "+new text",
    "*** Update File: from",
    "*** Move to: to",
    "-old name",
    "+new name",
)
BEFORE = {"/w/gone": b"g\n", "/w/f": b"top\nold text\n", "/w/from": b"old name\n"}
AFTER = {"/w/new": b"n\n", "/w/f": b"top\nnew text\n", "/w/to": b"new name\n"}


def test_a_patch_that_was_applied_is_recognized() -> None:
    assert not planned(BEFORE, *WHOLE).already_applied

    again = planned(AFTER, *WHOLE)

    assert again.already_applied
    assert again.edits == ()
    assert again.text == "No files were modified: the patch has been applied already.\n"


@pytest.mark.parametrize(
    "change",
    [
        {"/w/new": b"other\n"},
        {"/w/gone": b"back\n"},
        {"/w/f": b"top\nthird text\n"},
        {"/w/from": b"old name\n"},
        {"/w/to": b"\xff"},
        {"/w/to": CannotRead("denied")},
    ],
)
def test_a_patch_is_not_applied_if_one_file_differs(change: dict[str, bytes | CannotRead]) -> None:
    refused({**AFTER, **change}, *WHOLE)


def test_a_file_that_is_gone_does_not_show_that_it_was_deleted() -> None:
    refused({}, "*** Delete File: gone")


def test_a_dry_run_gives_a_diff() -> None:
    assert planned({"/w/f": b"a\n"}, *CHANGE).diff() == (
        "diff --git a/f b/f\n"
        "index 78981922613b2afb6025042ff6bd878ac1994e85..61780798228d17af2d34fce4cfbdf35556832472 100644\n"
        "--- a/f\n+++ b/f\n@@ -1 +1 @@\n-a\n+b\n"
    )
