"""Splits an argv into the commands by which it is judged.

There are two separate ways of reading a script:

- strict, for permissions (`plain_commands`, `lower`): a script is a list of commands of literal words, or it
  is refused as a whole and counts as one unknown command;
- by search, for prohibitions (`literal_commands`): every command that can be found, in loops, substitutions,
  nested shells, behind `sudo` and the like. The list has too much rather than too little.

Unknown parts are never safe: `unreadable` tells whether the search may have missed commands, and `read` also
returns commands with words that only a running shell knows. The commands that other interpreters run (Python,
AWK, makefiles), and those in files that a command only names, cannot be found in a script.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Sequence
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, NamedTuple

from execclient.govern.policy.rules import Argv
from execclient.govern.policy.script_search import Found, search
from execclient.govern.policy.shell_syntax import text_of, tree

if TYPE_CHECKING:
    from tree_sitter import Node

SHELLS = frozenset({"bash", "zsh", "sh"})
"""The shells whose scripts are split."""

SCRIPT_OPTIONS = frozenset({"-c", "-lc"})
"""The options in front of a script, without or with a login shell."""

_PLAIN_NODES = frozenset(
    {
        "program",
        "list",
        "pipeline",
        "command",
        "command_name",
        "word",
        "string",
        "string_content",
        "raw_string",
        "number",
        "concatenation",
    }
)
_PLAIN_TOKENS = frozenset({"&&", "||", ";", "|", '"', "\n"})
_EXPANDED = frozenset("{}*?[]\\~^#$`")
"""In a bare word: characters that bash or zsh may expand."""

_INSIDE = re.compile(r"(?:[ \t]|(?<=[ \t])\\\n|\\\n(?=[ \t]))+")
"""Between two words of a command in bash. The parser also splits words at carriage returns, form feeds,
escaped blanks, newlines before a continued line, and continued lines inside a word."""

_BETWEEN = re.compile(r"(?:[ \t\n]|(?<=[ \t\n])\\\n|\\\n(?=[ \t\n]))*")
"""Between a command and an operator, or another command."""


class Lowered(NamedTuple):
    """The commands of an argv."""

    commands: tuple[Argv, ...]
    """At least one, unless the argv is empty."""
    plain: bool
    """Whether the script, if there is one, could be split. If not, `commands` is the whole argv."""


def script_of(argv: Sequence[str]) -> str | None:
    """The script of `[SHELL, -c | -lc, SCRIPT]` if the file stem of SHELL is bash, zsh or sh."""
    if len(argv) != 3 or argv[1] not in SCRIPT_OPTIONS or PurePosixPath(argv[0]).stem not in SHELLS:
        return None
    return argv[2]


def plain_commands(script: str, *, exact: bool = False) -> list[Argv] | None:
    """The commands of a script that consists of plain commands only.

    They may be joined by `&&`, `||`, `;`, `|` and newlines. Names must be bare words; arguments must be bare
    words, numbers, quoted strings without escapes, or concatenations of these.

    Args:
        script: a script for bash, zsh or sh.
        exact: whether to refuse scripts in which the parser sees other words than bash: with a line
            continuation inside a word, carriage returns, form feeds. The reference accepts them.

    Returns:
        An argv for each command, [] without commands, None if the script has anything else.
    """
    root = tree(script)
    if root is None or root.has_error:
        return None
    nodes = list(_nodes(root))
    if not all(
        node.type in (_PLAIN_NODES if node.is_named else _PLAIN_TOKENS) and not node.is_missing
        for node in nodes
    ):
        return None
    if exact and not _is_exact(script.encode(), nodes):
        return None
    commands: list[Argv] = []
    for node in nodes:
        if node.type == "command":
            argv = _plain_argv(node)
            if argv is None:
                return None
            commands.append(argv)
    return commands


def lower(argv: Sequence[str], *, exact: bool = False) -> Lowered:
    """The commands of an argv: those of its script, or the argv itself.

    Args:
        argv: a program and its arguments.
        exact: see `plain_commands`.
    """
    whole = tuple(argv)
    script = script_of(whole)
    if script is None:
        return Lowered((whole,) if whole else (), plain=True)
    commands = plain_commands(script, exact=exact)
    if not commands:
        return Lowered((whole,), plain=False)
    return Lowered(tuple(commands), plain=True)


def literal_commands(argv: Sequence[str]) -> list[Argv]:
    """Every command that can be found in an argv, for rules that forbid or ask.

    First come the commands of `lower`. Then come the commands anywhere in its scripts, without assignments,
    redirections, quotes and arguments that are not literal, and again without each program that runs another:
    `sudo`, `env`, `timeout`, `xargs`, `find -exec`, nested shells, `eval`, … Some are not commands: if an
    option may or may not have a value, both readings are listed.
    """
    return list(dict.fromkeys([*lower(argv).commands, *read(argv).commands]))


def unreadable(argv: Sequence[str]) -> bool:
    """Whether an argv may run commands that `literal_commands` cannot list.

    The reason may be that only the running shell knows the name of a command or a script for a nested shell,
    or that a script has syntax errors, is too long, too deeply nested or not text.
    """
    return read(argv).unreadable


def read(argv: Sequence[str]) -> Found:
    """The result of one search: the found commands, commands with unknown words, and `unreadable`."""
    return search(argv)


def _nodes(root: Node) -> Iterator[Node]:
    """All nodes of a tree, in the order of the source."""
    pending = [root]
    while pending:
        node = pending.pop()
        yield node
        pending.extend(reversed(node.children))


def _is_exact(source: bytes, nodes: Sequence[Node]) -> bool:
    """Whether bash splits the commands and words in the same places."""
    end = 0
    is_ended = True
    """Whether there is an operator between the last command and here."""
    for node in nodes:
        if node.type == "command":
            gap = source[end : node.start_byte].decode()
            # Without an operator, another command needs a newline, not a continued line.
            if not _BETWEEN.fullmatch(gap) or not (is_ended or "\n" in gap.replace("\\\n", "")):
                return False
            if not _has_exact_words(source, node):
                return False
            end, is_ended = node.end_byte, False
        elif not node.is_named and node.start_byte >= end:
            if not _BETWEEN.fullmatch(source[end : node.start_byte].decode()):
                return False
            end, is_ended = node.end_byte, True
    return _BETWEEN.fullmatch(source[end:].decode()) is not None


def _has_exact_words(source: bytes, command: Node) -> bool:
    gaps = (
        source[left.end_byte : right.start_byte].decode()
        for left, right in itertools.pairwise(command.children)
    )
    return all(_INSIDE.fullmatch(gap) for gap in gaps) and all(
        left.end_byte == right.start_byte
        for word in command.children
        if word.type == "concatenation"
        for left, right in itertools.pairwise(word.children)
    )


def _plain_argv(command: Node) -> Argv | None:
    words: list[str] = []
    for child in command.children:
        if child.type == "command_name":
            if [part.type for part in child.children] != ["word"]:
                return None
            child = child.children[0]
        word = _plain_word(child)
        if word is None:
            return None
        words.append(word)
    return tuple(words)


def _plain_word(node: Node) -> str | None:
    text = text_of(node)
    match node.type:
        case "word" | "number":
            return None if text.startswith("=") or not _EXPANDED.isdisjoint(text) else text
        case "raw_string":
            return text[1:-1]
        case "string":
            # Any other part of a string, such as a lone `$`, was refused by its node type.
            return None if "\\" in text and re.search(r'\\[$`"\\\n]', text) else text[1:-1]
        case "concatenation":
            parts = [_plain_word(part) for part in node.children]
            known = [part for part in parts if part is not None]
            # An empty result, as of `""''`, is refused, too, as in the reference.
            return "".join(known) or None if len(known) == len(parts) else None
        case _:
            return None
