"""Finds differences between the parser and bash, where bash may expand something that the tree does not show.

The text of a script is compared with its tree. At each place where bash may begin an expansion, the tree must
have one, or bash must expand nothing there; each word must end where bash ends it. Any other difference makes
a script misread.
"""

from __future__ import annotations

import bisect
import itertools
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from execclient.govern.policy.shell_syntax import text_of

if TYPE_CHECKING:
    from tree_sitter import Node


class Unmarked(NamedTuple):
    """The parts of a script that its tree does not show."""

    scripts: tuple[str, ...]
    """Substitutions in here-documents, which the parser skips behind a blank."""
    misread: bool
    """Whether there are more parts, which cannot be read here."""


_EXPANSION = re.compile(rb"\$[({\[]|`|[<>]\(")
_MARKS = frozenset({"command_substitution", "process_substitution", "expansion", "arithmetic_expansion"})
_VERBATIM = frozenset({"raw_string", "ansi_c_string", "comment"})
_ADJACENT = frozenset({"concatenation", "simple_expansion", "translated_string", "variable_assignment"})
_ESCAPED_TWICE = re.compile(rb"\\[\\$`]")
"""Between backquotes, a shell removes such an escape before it parses the command."""
_TAG = re.compile(r"\w+|'\w+'|\"\w+\"|\\\w+")
_ENDS_WORD = re.compile(r"[ \t\n;&|<>()]")
_PLAIN_SUBSTITUTION = re.compile(rb"\$\(([^()`'\"\\$#<]*)\)|\$\{\w+(?::?[-+=?][^{}()$`'\"\\]*)?\}")


def unmarked(root: Node, script: str) -> Unmarked:
    """Compare the text of a script with its tree."""
    source = script.encode()
    nodes = list(_nodes(root))
    marks: set[int] = set()
    verbatim: list[tuple[int, int]] = []
    backquoted: list[tuple[int, int]] = []
    quoted: list[tuple[int, int]] = []
    scripts: list[str] = []
    is_doubtful = False
    for node in nodes:
        span = (node.start_byte, node.end_byte)
        if node.type in _MARKS:
            marks.add(span[0])
            # Bash tries arithmetic first, which has no here-documents and no quotes.
            is_doubtful |= node.type == "command_substitution" and source.startswith(b"$((", span[0])
            # The value of the variable is expanded like a prompt.
            is_doubtful |= node.type == "expansion" and source.endswith(b"@P}", *span)
            if source[span[0] : span[0] + 1] == b"`":
                marks.add(span[1] - 1)
                backquoted.append(span)
        elif node.type in _VERBATIM or (node.type == "heredoc_body" and _has_quoted_tag(node)):
            if not _is_expanded(node):  # as in `"${x:-'$(y)'}"`
                verbatim.append(span)
        elif node.type == "string":
            quoted.append(span)
        elif node.type == "heredoc_body":
            for found in _PLAIN_SUBSTITUTION.finditer(source, *span):
                marks.add(found.start())
                scripts += [found[1].decode()] if found[1] else []
    if any(_ESCAPED_TWICE.search(source, *span) for span in backquoted) or is_doubtful:
        return Unmarked(tuple(scripts), misread=True)
    verbatim_within, quoted_within, backquoted_within = map(_Spans, (verbatim, quoted, backquoted))
    for found in _EXPANSION.finditer(source):
        place = found.start()
        if place in marks:
            continue
        # Between two backquotes, this one is the second of the pair, whatever is around it.
        if place in verbatim_within and not (found[0] == b"`" and place in backquoted_within):
            continue
        if _is_escaped(source, place):
            continue
        if found[0] in (b"<(", b">(") and place in quoted_within:
            continue
        return Unmarked(tuple(scripts), misread=True)
    return Unmarked(tuple(scripts), any(map(_ends_elsewhere, nodes)))


class _Spans:
    """A set of ranges of a text."""

    def __init__(self, spans: list[tuple[int, int]]) -> None:
        ordered = sorted(spans)
        self._starts = [start for start, _ in ordered]
        self._ends = list(itertools.accumulate((end for _, end in ordered), max))

    def __contains__(self, place: object) -> bool:
        assert isinstance(place, int)
        before = bisect.bisect_right(self._starts, place)
        return before > 0 and place < self._ends[before - 1]


def _is_escaped(source: bytes, place: int) -> bool:
    escapes = itertools.takewhile(lambda at: source[at : at + 1] == b"\\", range(place - 1, -1, -1))
    return sum(1 for _ in escapes) % 2 == 1


def _has_quoted_tag(body: Node) -> bool:
    """Whether bash expands nothing in a here-document, since its tag is quoted."""
    redirect = body.parent
    return redirect is not None and any(
        child.type == "heredoc_start" and not set("'\"\\").isdisjoint(text_of(child))
        for child in redirect.children
    )


def _ends_elsewhere(node: Node) -> bool:
    """Whether a word or a here-document may end in another place for bash."""
    if node.type in _ADJACENT:
        pairs = itertools.pairwise(node.children)
        return any(left.end_byte != right.start_byte for left, right in pairs) and not _is_expanded(node)
    if node.type == "word" and not node.child_count:
        text = re.sub(r"\\(.|\n)", "", text_of(node))
        return _ENDS_WORD.search(text) is not None and not _is_expanded(node)
    return node.type == "heredoc_start" and not _TAG.fullmatch(text_of(node))


def _is_expanded(node: Node) -> bool:
    """Whether it is within `${…}` or `[[…]]`, where blanks do not split words."""
    parent = node.parent
    while parent is not None and parent.type in ("concatenation", "binary_expression", "unary_expression"):
        parent = parent.parent
    return parent is not None and parent.type in ("expansion", "test_command", "parenthesized_expression")


def _nodes(root: Node) -> Iterator[Node]:
    pending = [root]
    while pending:
        node = pending.pop()
        yield node
        pending.extend(node.children)
