"""From an argv to the commands it is judged by.

Two ways of reading a script are kept apart:

- strict, for permissions (`plain_commands`, `lower`): a script is a list of commands of literal words, or
  it is refused as a whole and counts as one command that nothing is known of;
- searching, for prohibitions (`literal_commands`): every command that can be read anywhere, in loops,
  substitutions, nested shells, behind `sudo` and its like. It lists too much rather than too little.

What was not understood is never safe: `unreadable` says where the search cannot have found everything, and
`read` also gives the commands some of whose words only a running shell knows. What other interpreters than
shells run (Python, AWK, makefiles), and what files run that a command only names, no script tells.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Sequence
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, NamedTuple

from execclient.govern.policy.script_search import Found, search
from execclient.govern.policy.shell_syntax import text_of, tree

if TYPE_CHECKING:
    from tree_sitter import Node

Argv = tuple[str, ...]
"""A program, and its arguments."""

SHELLS = frozenset({"bash", "zsh", "sh"})
"""Whose scripts are lowered."""

SCRIPT_OPTIONS = frozenset({"-c", "-lc"})
"""Before a script, with a login shell or without."""

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
"""In a bare word: characters that bash or zsh may replace with something else."""

_INSIDE = re.compile(r"(?:[ \t]|(?<=[ \t])\\\n|\\\n(?=[ \t]))+")
"""Between two words of a command, as bash sees them. The parser also takes carriage returns, form feeds,
escaped blanks, newlines before a continued line, and continued lines inside a word."""

_BETWEEN = re.compile(r"(?:[ \t\n]|(?<=[ \t\n])\\\n|\\\n(?=[ \t\n]))*")
"""Between a command and an operator, or another command."""


class Lowered(NamedTuple):
    """The commands of an argv."""

    commands: tuple[Argv, ...]
    """At least one, unless the argv is empty."""
    plain: bool
    """False: the script, if there is one, was refused, and `commands` is the whole argv."""


def script_of(argv: Sequence[str]) -> str | None:
    """The script of `[SHELL, -c | -lc, SCRIPT]`, where the file stem of SHELL is bash, zsh or sh."""
    if len(argv) != 3 or argv[1] not in SCRIPT_OPTIONS or PurePosixPath(argv[0]).stem not in SHELLS:
        return None
    return argv[2]


def plain_commands(script: str, *, exact: bool = False) -> list[Argv] | None:
    """The commands of a script that consists of nothing but commands.

    They may be joined by `&&`, `||`, `;`, `|` and newlines. Their names are bare words, their arguments bare
    words, numbers, quoted strings without escapes, and these side by side.

    Args:
        script: for bash, zsh or sh.
        exact: refuse also where the parser sees other words than bash would: a line continuation inside a
            word, carriage returns, form feeds. The reference takes them as the parser does.

    Returns:
        An argv for each of them, [] if there is none, None if the script holds anything else.
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
    """The commands of an argv: those of its script, else itself.

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
    """Every command that can be read in an argv, for rules that prohibit or ask.

    First come the commands it is lowered to. Then those found anywhere in its scripts, with assignments,
    redirections and quotes taken away, arguments left out that are not literal, and once more without each
    program that runs another: `sudo`, `env`, `timeout`, `xargs`, `find -exec`, nested shells, `eval`, …
    Some are no commands: where an option may or may not take a value, both readings are listed.
    """
    return list(dict.fromkeys([*lower(argv).commands, *read(argv).commands]))


def unreadable(argv: Sequence[str]) -> bool:
    """Whether an argv may run commands that `literal_commands` cannot list.

    That is so if the name of a command, or a script for a nested shell, is known to the running shell only,
    if a script has syntax errors, or if it is too long, too deeply nested or not text.
    """
    return read(argv).unreadable


def read(argv: Sequence[str]) -> Found:
    """`literal_commands` without the lowering, commands with unknown words, and `unreadable`, at one go."""
    return search(argv)


def _nodes(root: Node) -> Iterator[Node]:
    """All of a tree, in the order of the source."""
    pending = [root]
    while pending:
        node = pending.pop()
        yield node
        pending.extend(reversed(node.children))


def _is_exact(source: bytes, nodes: Sequence[Node]) -> bool:
    """Whether commands and words are parted where bash parts them."""
    end = 0
    is_ended = True
    """Whether an operator stands between the last command and here."""
    for node in nodes:
        if node.type == "command":
            gap = source[end : node.start_byte].decode()
            # Without an operator, it takes a newline, and not a continued line, to begin another command.
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
            # Any other part of a string, as a lone `$`, has been refused by its kind.
            return None if "\\" in text and re.search(r'\\[$`"\\\n]', text) else text[1:-1]
        case "concatenation":
            parts = [_plain_word(part) for part in node.children]
            known = [part for part in parts if part is not None]
            # Joined to nothing, as `""''`, it is refused too; the reference does the same.
            return "".join(known) or None if len(known) == len(parts) else None
        case _:
            return None
