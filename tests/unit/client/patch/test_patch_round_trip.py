"""Any edit of any tree, written down as a patch, gives the edited tree."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from execclient.patch.parse import parse_patch
from execclient.patch.plan import Entry, plan

ENDINGS = ["\n", "\r\n", "\r"]
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

    @property
    def after(self) -> bytes:
        ends = [end for mark, _, end in self.steps if mark != "+"]
        first = (ends[0] if ends else "") or "\n"
        return "".join(
            text + (first if mark == "+" else end or first) for mark, text, end in self.steps if mark != "-"
        ).encode()

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
    # Two empty lines between a CR and an LF would be one line end.
    steps = [(mark, text, end) for mark, text, end in marked]
    kept = [at for at, (mark, _, _) in enumerate(steps) if mark != "+"]
    for earlier, later in itertools.pairwise(kept):
        if steps[earlier][2] == "\r" and not steps[later][1] and steps[later][2] == "\n":
            mark, text, _ = steps[earlier]
            steps[earlier] = (mark, text, "\r\n")
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


def as_tree(files: dict[str, tuple[str, Edited]]) -> tuple[dict[str, bytes], dict[str, bytes], list[str]]:
    """The tree before, the tree afterwards, and the patch between them."""
    before: dict[str, bytes] = {}
    after: dict[str, bytes] = {}
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
            after[target] = edited.after
            lines += chunks
    return before, after, lines


@settings(max_examples=250, deadline=None)
@given(trees(), st.sampled_from(["tool", "applet"]), st.sampled_from(["\n", "\r\n"]))
def test_the_patch_of_an_edit_gives_the_edited_tree(
    files: dict[str, tuple[str, Edited]], entry: Entry, ending: str
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
    assert tree == after


@settings(max_examples=250, deadline=None)
@given(edited_files(), st.integers(0, 3))
def test_any_amount_of_context_gives_the_edited_file(edited: Edited, context: int) -> None:
    chunks = edited.chunks(context)
    if not chunks:
        return
    text = "\n".join(["*** Begin Patch", "*** Update File: f", *chunks, "*** End Patch"])

    result = plan(parse_patch(text), lambda _: edited.before, cwd="/w")

    assert result.edits[0].after == edited.after
