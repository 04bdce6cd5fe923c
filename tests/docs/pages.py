"""The pages of the manual, as blocks.

A block is a fence with a language. What its language alone cannot say stands in a comment on the line
above it, which no reader sees:

    <!-- output -->                       what the command or program before it prints
    <!-- exit: 1 -->                      the last command of the block ends with that status
    <!-- elsewhere: PLACE: REASON -->     cannot run here; PLACE is what runs it, `make TARGET`, or a
                                          test as FILE or FILE::NAME

A block with a title is a file that the reader saves under that name. One that consists of a snippet
(`--8<-- "FILE"`) has the content of that file.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from markdown_it import MarkdownIt

ROOT = Path(__file__).resolve().parents[2]

TUTORIAL = ROOT / "docs" / "tutorial" / "first-session.md"
"""Begins with a clone, so `test_stranger.py` follows it."""

RUN = frozenset({"console", "sh", "python", "json", "toml"})
"""Languages that the runner carries out, or at least reads."""

SHOWN = frozenset({"ts", "dockerfile", "ini", "http", "css", "yaml"})
"""Languages that the runner does not carry out: each block says what checks it."""

PICTURES = frozenset({"", "text"})
"""Drawings and lists: a reader types none of it."""

_COMMENT = re.compile(r"\s*<!--\s*(output|exit|elsewhere)(?::\s*(.*?))?\s*-->\s*", re.DOTALL)
_TITLE = re.compile(r'title="([^"]+)"')
_SNIPPET = re.compile(r'\A--8<-- "([^"]+)"\n?\Z')


class PageError(Exception):
    """A page that does not keep the rules; the message begins with the place."""


@dataclass(frozen=True, slots=True)
class Block:
    """One fence of a page."""

    page: Path
    line: int
    language: str
    text: str
    title: str | None = None
    output: bool = False
    status: int = 0
    place: str | None = None
    """What runs it, when it cannot run here."""
    reason: str = ""

    @property
    def where(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"


def pages() -> list[Path]:
    """Every page of the manual, and what stands around it."""
    return [
        ROOT / "README.md",
        ROOT / "CONTRIBUTING.md",
        ROOT / "SECURITY.md",
        ROOT / "clients" / "python" / "README.md",
        *sorted((ROOT / "docs").rglob("*.md")),
    ]


def blocks_of(page: Path, text: str | None = None) -> list[Block]:
    """The blocks of a page in order; raises `PageError` for what is neither picture nor known."""
    tokens = MarkdownIt().parse(page.read_text() if text is None else text)
    blocks = []
    for index, token in enumerate(tokens):
        line = token.map[0] + 1 if token.map else 0
        place = f"{page.relative_to(ROOT)}:{line}"
        if token.type == "code_block":
            raise PageError(f"{place}: code without a fence is not run; put it into a fence")
        if token.type == "fence":
            comment = tokens[index - 1].content if index and tokens[index - 1].type == "html_block" else ""
            blocks.append(_block(page, line, place, token.info.strip(), token.content, comment))
    return blocks


def _block(page: Path, line: int, place: str, info: str, text: str, comment: str) -> Block:
    language, _, options = info.partition(" ")
    title = _TITLE.search(options)
    if language not in RUN | SHOWN | PICTURES:
        raise PageError(f"{place}: nothing runs a block of the language {language!r}")
    if options and not title:
        raise PageError(f'{place}: {options!r} is not understood; only title="…" is')
    snippet = _SNIPPET.match(text)
    if snippet:
        text = (ROOT / snippet[1]).read_text()
    marks: dict[str, str] = {}
    if comment:
        found = _COMMENT.fullmatch(comment)
        if found is None:
            raise PageError(f"{place}: the comment above the block is none of output, exit, elsewhere")
        marks[found[1]] = found[2] or ""
    elsewhere, _, reason = _place_and_reason(marks.get("elsewhere", ""))
    block = Block(
        page,
        line,
        language,
        text,
        title=title and title[1],
        output="output" in marks,
        status=int(marks.get("exit", 0)),
        place=elsewhere or None,
        reason=reason.strip(),
    )
    _check(block, place)
    return block


def _place_and_reason(mark: str) -> tuple[str, str, str]:
    # A test's name has colons of its own, but never one with a space behind it.
    return mark.partition(": ")


def _check(block: Block, place: str) -> None:
    if block.place is not None and not block.reason:
        raise PageError(f"{place}: say why it cannot run here: <!-- elsewhere: PLACE: REASON -->")
    if block.language in SHOWN and block.place is None and not block.output:
        raise PageError(f"{place}: nothing runs {block.language}; say what checks it: <!-- elsewhere: … -->")
    if (
        block.language in PICTURES
        and not block.output
        and re.search(r"^(\$ |make )", block.text, re.MULTILINE)
    ):
        raise PageError(f"{place}: commands in a picture are not run; make it a console block")
