"""Syntax trees of shell scripts, and the values of their words.

`tree` returns None for a script that it does not parse; callers treat that as unknown and never as safe. A
tree with syntax errors is returned; the caller decides on it.

The library is loaded with the first script, so that importing `execclient.govern.policy` stays cheap.
"""

from __future__ import annotations

import functools
import re
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tree_sitter import Language, Node, Parser

MAX_SCRIPT_BYTES = 1 << 20
"""The size of a script. Scripts of agents have a few hundred bytes."""

MAX_NODES = 50_000
"""The size of a tree. Walking it takes about a microsecond for each node."""

MAX_PARSE_SECONDS = 0.5
"""An ordinary script takes 15 µs; input made to be slow takes about 5 µs for each byte."""

SHORT_SCRIPT_BYTES = 16 << 10
"""A shorter script cannot take long, and is parsed without a time limit."""

_PIECE_BYTES = 4 << 10
"""The parser reads a long script in such pieces, and reads one again for the text of each node."""


def tree(script: str) -> Node | None:
    """The root of a script's syntax tree, which may have errors; None if the script is not parsed.

    Args:
        script: at most 1 MiB of UTF-8 without NUL.

    Raises:
        ImportError: tree-sitter is not installed; the message says how to get it.
    """
    try:
        text = script.encode()
    except UnicodeEncodeError:  # bytes that are not UTF-8: a shell accepts them, the parser does not
        return None
    if len(text) > MAX_SCRIPT_BYTES or b"\0" in text:
        return None
    root = _short_parser().parse(text).root_node if len(text) <= SHORT_SCRIPT_BYTES else _parse_watched(text)
    return root if root is not None and root.descendant_count <= MAX_NODES else None


def text_of(node: Node) -> str:
    """The source of a node."""
    return (node.text or b"").decode()


def _parse_watched(text: bytes) -> Node | None:
    deadline = time.monotonic() + MAX_PARSE_SECONDS
    # A parser of its own: callbacks into Python let other threads run, which may parse, too.
    parser = _new_parser()
    try:
        return parser.parse(
            lambda offset, _: text[offset : offset + _PIECE_BYTES],
            progress_callback=lambda *_: time.monotonic() > deadline,
        ).root_node
    except ValueError:  # the time limit was reached
        return None


@functools.cache
def _short_parser() -> Parser:
    return _new_parser()


def _new_parser() -> Parser:
    language = _language()  # first: it says what to install
    from tree_sitter import Parser

    return Parser(language)


@functools.cache
def _language() -> Language:
    try:
        import tree_sitter_bash
        from tree_sitter import Language
    except ImportError as error:
        raise ImportError(
            f"reading shell commands needs tree-sitter and tree-sitter-bash ({error}): "
            'pip install "execclient[tools]"'
        ) from error
    return Language(tree_sitter_bash.language())


_ESCAPED = re.compile(r"\\(\n|.)", re.DOTALL)
_ESCAPED_IN_DOUBLE_QUOTES = re.compile(r'\\(\n|[$`"\\])')
_GLOB = re.compile(r"[*?\[]")
_BRACES = re.compile(r"\{[^{}]*(?:,|\.\.)[^{}]*\}")
_ANSI_C = re.compile(
    r"\\(?:x([0-9A-Fa-f]{1,2})|u([0-9A-Fa-f]{1,4})|U([0-9A-Fa-f]{1,8})|([0-7]{1,3})|c(.)|(.))", re.DOTALL
)
_ANSI_C_LETTERS = {
    "a": "\a",
    "b": "\b",
    "e": "\033",
    "E": "\033",
    "f": "\f",
    "n": "\n",
    "r": "\r",
    "t": "\t",
    "v": "\v",
}
_DOUBLE_QUOTED = frozenset({"string", "translated_string"})
_STRING_PARTS = frozenset({"string_content", '"', "$"})


def literal(node: Node) -> str | None:
    """The value of a word without its quotes; None if only a running shell knows it.

    Words with variables, substitutions, globs, braces or tildes are not literal.
    """
    parts = node.children if node.type == "concatenation" else [node]
    values: list[str] = []
    bare: list[str] = []
    """The text with a letter for each quoted part: globs and braces work outside of quotes only."""
    for part in parts:
        if part.type in ("word", "number"):
            text = text_of(part)
            if part.type == "number" and part.child_count:
                return None
            values.append(_ESCAPED.sub(lambda match: match[1].strip("\n"), text))
            bare.append(_ESCAPED.sub("q", text))
        else:
            value = _quoted(part)
            if value is None:
                return None
            values.append(value)
            bare.append("q")
    outside = "".join(bare)
    if outside.startswith("~") or "$" in outside or "`" in outside:
        return None
    if _GLOB.search(outside) or _BRACES.search(outside):
        return None
    return "".join(values)


def is_operand(node: Node) -> bool:
    """Whether a word that is not literal stays one word and is no option: a path such as `"$x"/y`."""
    text = text_of(node)
    outside = re.sub(r'"[^"]*"', "", text)
    known = re.sub(r"\$\{[^}]*\}|\$\w+|\$.|`[^`]*`", "", text)
    return "$(" not in text and not set("$`{~").intersection(outside) and not set("/.").isdisjoint(known)


def decode_ansi_c(text: str) -> str:
    r"""Text with backslash escapes resolved as in `$'…'`: `\n`, `\x41`, `\101`, `\u0041`, `\cA`."""

    def value(match: re.Match[str]) -> str:
        x, u, long_u, octal, control, other = match.groups()
        if control is not None:
            return chr(ord(control) & 0x1F)
        if other is not None:
            return _ANSI_C_LETTERS.get(other, other if other in "\\'\"?" else match[0])
        code = int(octal, 8) & 0xFF if octal is not None else int(x or u or long_u, 16)
        return chr(code) if code <= 0x10FFFF else match[0]

    return _ANSI_C.sub(value, text)


def _quoted(node: Node) -> str | None:
    if node.type == "raw_string":
        return text_of(node)[1:-1]
    if node.type == "ansi_c_string":
        # A shell ends such a text at a NUL.
        return decode_ansi_c(text_of(node)[2:-1]).partition("\0")[0]
    if node.type in _DOUBLE_QUOTED:
        string = node if node.type == "string" else node.children[-1]
        if all(child.type in _STRING_PARTS for child in string.children):
            inside = text_of(string)[1:-1]
            return _ESCAPED_IN_DOUBLE_QUOTES.sub(lambda match: match[1].strip("\n"), inside)
    return None
