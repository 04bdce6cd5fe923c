"""Syntax trees of shell scripts.

A script is read, or it is not: `tree` gives None for whatever it will not vouch for, which callers take as
"unknown" and never as safe. A tree that has errors is still given; whoever asks decides what it is worth.

The library is loaded with the first script, so that importing `execclient.govern.policy` stays cheap.
"""

from __future__ import annotations

import functools
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tree_sitter import Language, Node, Parser

MAX_SCRIPT_BYTES = 1 << 20
"""Of a script that is read at all. What agents write has a few hundred bytes."""

MAX_NODES = 50_000
"""Of a tree. Walking one takes about a microsecond for each of its nodes."""

MAX_PARSE_SECONDS = 0.5
"""An ordinary script takes 15 µs; input made to be slow takes about 5 µs a byte."""

SHORT_SCRIPT_BYTES = 16 << 10
"""Up to here a script cannot take long, and is not watched while it is parsed."""

_PIECE_BYTES = 4 << 10
"""The parser takes a long script in such pieces, and one of them again for the text of each node."""


def tree(script: str) -> Node | None:
    """The root of a script's syntax tree, which may hold errors.

    Args:
        script: at most 1 MiB as UTF-8; a shell cannot be given a NUL, so neither can this.

    Raises:
        ImportError: tree-sitter is not installed; the message says how to get it.
    """
    try:
        text = script.encode()
    except UnicodeEncodeError:  # bytes that are no UTF-8: a shell takes them, the parser does not
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
    # A parser of its own: calls back into Python let other threads run, which may parse as well.
    parser = _new_parser()
    try:
        return parser.parse(
            lambda offset, _: text[offset : offset + _PIECE_BYTES],
            progress_callback=lambda *_: time.monotonic() > deadline,
        ).root_node
    except ValueError:  # given up
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
