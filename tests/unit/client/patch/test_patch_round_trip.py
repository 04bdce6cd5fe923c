"""Any edit of any tree, written down as a patch, gives the edited tree."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from execclient.patch.errors import PatchFileError
from execclient.patch.parse import parse_patch
from execclient.patch.plan import EntryPoint, plan

ENDINGS = ["\n", "\r\n"]
LINE = re.compile(r"([^\r\n]*)(\r\n|\r|\n|\Z)")
WORDS = st.sampled_from(
    [
        "a",
        "b",
        "  a",
        "a ",
        "",
        " ",
        "\u2013",
        "-",
        "+",
        "@@",
        "*** End Patch",
        "*** Add File: x",
        "“q”",
        "\t",
    ]
)


@dataclass
class Edited:
    """A file, line by line: what stays, what goes and what comes."""

    steps: list[tuple[str, str, str]] = field(default_factory=list)
    """Mark, text, line end."""

    @property
    def old_lines(self) -> list[str]:
        return [text for mark, text, _ in self.steps if mark != "+"]

    @property
    def before(self) -> bytes:
        return "".join(text + end for mark, text, end in self.steps if mark != "+").encode()

    def require(self, after: bytes) -> None:
        """That the lines are as they should be: those that stay with their own ends, the last as it was."""
        lines = [(text, end) for text, end in LINE.findall(after.decode()) if text or end]
        wanted = [step for step in self.steps if step[0] != "-"]
        assert [text for text, _ in lines] == [text for _, text, _ in wanted]
        for (mark, _, own_end), (_, end) in zip(wanted[:-1], lines[:-1], strict=True):
            assert end == own_end if mark == " " and own_end else end in self.ends
        if not wanted:
            return
        (mark, text, own_end), (_, end) = wanted[-1], lines[-1]
        if mark == " ":
            assert end == own_end
        elif ("-", text) not in [step[:2] for step in self.steps]:
            assert end in self.ends if self.is_ended or not text else not end

    @property
    def is_ended(self) -> bool:
        """Whether the old text ends with a line end, or is empty."""
        return all(end for mark, _, end in self.steps if mark != "+")

    @property
    def ends(self) -> set[str]:
        """Those that a line may get."""
        return {end for mark, _, end in self.steps if mark != "+" and end} or {"\n"}

    def chunks(self, context: int) -> list[str]:
        """The lines of a patch: as little context as `context` says, as much as is needed to be clear."""
        lines: list[str] = []
        done = 0
        while (
            first := next((at for at in range(done, len(self.steps)) if self._changes(at)), None)
        ) is not None:
            last = first
            while last + 1 < len(self.steps) and self._changes(last + 1):
                last += 1
            begin = max(first - context, done)
            end = last + 1
            while end < len(self.steps) and end <= last + context and not self._changes(end):
                end += 1
            while not self._is_clear(begin, end, done):
                if begin > done:
                    begin -= 1
                else:
                    end += 1
            lines += ["@@", *(mark + text for mark, text, _ in self.steps[begin:end])]
            done = end
        return lines

    def _changes(self, at: int) -> bool:
        return self.steps[at][0] != " "

    def _old(self, begin: int, end: int) -> list[str]:
        return [text for mark, text, _ in self.steps[begin:end] if mark != "+"]

    def _is_clear(self, begin: int, end: int, done: int) -> bool:
        pattern, start = self._old(begin, end), len(self._old(0, done))
        lines = self.old_lines
        place = len(self._old(0, begin))
        if not pattern:
            return place == len(lines)
        return (
            next(at for at in range(start, len(lines)) if lines[at : at + len(pattern)] == pattern) == place
        )


@st.composite
def edited_files(draw: st.DrawFn) -> Edited:
    marked = draw(st.lists(st.tuples(st.sampled_from(" -+"), WORDS, st.sampled_from(ENDINGS)), max_size=12))
    if draw(st.booleans()):
        marked = [(mark, text, draw(st.just("\r"))) for mark, text, _ in marked]
    steps = marked
    kept = [at for at, (mark, _, _) in enumerate(steps) if mark != "+"]
    is_unended = draw(st.booleans())
    if kept and is_unended and steps[kept[-1]][1]:
        mark, text, _ = steps[kept[-1]]
        steps[kept[-1]] = (mark, text, "")
    return Edited(steps)


FILE_NAMES = st.sampled_from(["f", "g", "d/f", "d/e/g", "ü x", "h"])


@st.composite
def trees(draw: st.DrawFn) -> dict[str, tuple[str, Edited]]:
    names = draw(st.lists(FILE_NAMES, unique=True, max_size=4))
    acts = st.sampled_from(["add", "delete", "update", "move", "stay"])
    return {name: (draw(acts), draw(edited_files())) for name in names}


Tree = dict[str, bytes]


def as_tree(files: dict[str, tuple[str, Edited]]) -> tuple[Tree, dict[str, bytes | Edited], list[str]]:
    """The tree before, the tree afterwards, and the patch between them."""
    before: dict[str, bytes] = {}
    after: dict[str, bytes | Edited] = {}
    lines: list[str] = []
    for name, (act, edited) in files.items():
        path = f"/w/{name}"
        if act == "add":
            added = [text for mark, text, _ in edited.steps if mark == "+"]
            after[path] = "".join(f"{text}\n" for text in added).encode()
            lines += [f"*** Add File: {name}", *(f"+{text}" for text in added)]
            continue
        before[path] = edited.before
        chunks = edited.chunks(1)
        if act == "delete":
            lines.append(f"*** Delete File: {name}")
        elif act == "stay" or not chunks:
            after[path] = edited.before
        else:
            lines += [f"*** Update File: {name}"]
            target = path
            if act == "move":
                target += ".moved"
                lines += [f"*** Move to: {name}.moved"]
            after[target] = edited
            lines += chunks
    return before, after, lines


@settings(max_examples=250, deadline=None)
@given(trees(), st.sampled_from(["tool", "command"]), st.sampled_from(["\n", "\r\n"]))
def test_the_patch_of_an_edit_gives_the_edited_tree(
    files: dict[str, tuple[str, Edited]], entry: EntryPoint, ending: str
) -> None:
    before, after, lines = as_tree(files)
    if not lines:
        return
    text = ending.join(["*** Begin Patch", *lines, "*** End Patch", ""])

    result = plan(parse_patch(text), before.get, cwd="/w", entry=entry)

    tree = dict(before)
    for edit in result.edits:
        assert edit.before == tree.pop(edit.path, None)
        if edit.after is not None:
            tree[edit.target] = edit.after
    assert tree.keys() == after.keys()
    for path, wanted in after.items():
        if isinstance(wanted, Edited):
            wanted.require(tree[path])
        else:
            assert tree[path] == wanted


@settings(max_examples=250, deadline=None)
@given(edited_files(), st.integers(0, 3))
def test_any_amount_of_context_gives_the_edited_file(edited: Edited, context: int) -> None:
    chunks = edited.chunks(context)
    if not chunks:
        return
    text = "\n".join(["*** Begin Patch", "*** Update File: f", *chunks, "*** End Patch"])

    result = plan(parse_patch(text), lambda _: edited.before, cwd="/w")

    assert result.edits[0].after is not None
    edited.require(result.edits[0].after)


# -- any bytes

PIECES = st.sampled_from(
    [b"a", b"b", b" ", b"\t", b"-", b"+", b"\n", b"\n", b"\r\n", b"\r", b"\0", b"\x0b", b"\x0c", b"\x1c"]
    + [each.encode() for each in ("\x85", "\u2028", "\u2029", "\ufeff", "\u2013", "ü", "\U0001f600")]
)
TEXTS = st.lists(PIECES, max_size=14).map(b"".join)
"""Text with all that some program or other takes for the end of a line."""

BYTES = st.lists(PIECES | st.binary(max_size=3), max_size=14).map(b"".join)
MARKS = st.sampled_from([b"", "\ufeff".encode()])
SPLITS = st.sampled_from([rb"\n", rb"\r?\n", rb"\r\n|\r|\n"])


def patched(content: bytes, *lines: str) -> bytes:
    """The content after an update of these lines."""
    text = "\n".join(["*** Begin Patch", "*** Update File: f", *lines, "*** End Patch"])
    after = plan(parse_patch(text), lambda _: content, cwd="/w").edits[0].after
    assert after is not None
    return after


@settings(max_examples=1500, deadline=None)
@given(MARKS, BYTES, SPLITS, st.data())
def test_a_line_that_is_replaced_by_itself_changes_no_byte(
    mark: bytes, rest: bytes, split: bytes, data: st.DataObject
) -> None:
    content = mark + rest
    try:
        lines = re.split(split, content.decode().encode())
    except UnicodeDecodeError:
        with pytest.raises(PatchFileError, match="utf-8"):
            patched(content, "-a", "+a")
        return
    line = data.draw(st.sampled_from(lines)).decode()

    assert patched(content, f"-{line}", f"+{line}") == content


FOLLOWING = TEXTS.flatmap(lambda rest: st.sampled_from([b"", b"\n" + rest, b"\r\n" + rest]))
"""What stands behind a line: nothing, or its end and others."""


@st.composite
def preceding(draw: st.DrawFn) -> bytes:
    """What stands in front of a line."""
    before: bytes = draw(MARKS) + draw(TEXTS)
    return before if before in (b"", "\ufeff".encode()) else before + draw(st.sampled_from([b"\n", b"\r\n"]))


@settings(max_examples=1000, deadline=None)
@given(preceding(), FOLLOWING)
def test_a_line_that_is_replaced_leaves_all_other_bytes(before: bytes, behind: bytes) -> None:
    after = patched(before + b"target" + behind, "-target", "+other")

    assert after == before + b"other" + behind


@settings(max_examples=1000, deadline=None)
@given(preceding(), FOLLOWING)
def test_a_line_that_is_removed_leaves_all_other_bytes(before: bytes, behind: bytes) -> None:
    after = patched(before + b"target" + behind, "-target")

    assert after == before + re.sub(rb"^\r?\n", b"", behind)


@settings(max_examples=1000, deadline=None)
@given(preceding(), FOLLOWING)
def test_a_line_that_is_added_leaves_all_other_bytes(before: bytes, behind: bytes) -> None:
    after = patched(before + b"target" + behind, " target", "+other")

    matched = re.fullmatch(re.escape(before + b"target") + rb"(\r?\n)other(.*)", after, re.DOTALL)
    assert matched is not None
    assert behind in (b"", matched[1] + re.sub(rb"^\r?\n", b"", behind))
    assert matched[2] == behind
