"""Detects commands that destroy data: `rm` with force, in plain sight or hidden.

With `strict=False`, the answers are those of the reference, which looks behind `sudo`, `env`, `trap` and
shells only. A command that is not dangerous by this module is not therefore safe.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Literal

from execclient.govern.policy.git import Words
from execclient.govern.policy.scripts import lower, read, script_of
from execclient.govern.policy.shell_syntax import text_of, tree

if TYPE_CHECKING:
    from tree_sitter import Node

Danger = Literal["forced_rm", "other"]
"""`rm` with force, or a command with too many layers to look behind."""

MAX_DEPTH = 8
"""Layers of `sudo`, `env`, `trap` and shells. More layers count as dangerous."""

_FORCE = frozenset("--force"[:length] for length in range(3, 8))
"""The option and its abbreviations."""

_IGNORED_ENVIRONMENT = frozenset({"-i", "--ignore-environment"})


def dangerous(argv: Sequence[str], *, strict: bool = True) -> Danger | None:
    """The danger of an argv; None if none is found.

    Args:
        argv: a program and its arguments.
        strict: whether to check every command that can be found in it, such as behind `nice`, `xargs` and
            quotes.

    Returns:
        `forced_rm` for `rm -f` in any form, `other` for more than `MAX_DEPTH` layers, else None.
    """
    danger = _dangerous(argv, 0)
    if danger is not None or not strict:
        return danger
    found = read(argv)
    dangers = (_dangerous(command, 0) for command in dict.fromkeys((*lower(argv).commands, *found.commands)))
    danger = next((each for each in dangers if each is not None), None)
    suffixes = (words[start:] for words in found.unknown for start in range(1, len(words)))
    if danger is None and any(map(_may_force, itertools.chain(found.commands, found.loose, suffixes))):
        return "forced_rm"
    return danger


def _may_force(words: Words) -> bool:
    """Whether it is `rm` with a word that may mean force: an abbreviated or unknown option."""
    if not words or words[0] is None or PurePosixPath(words[0]).name != "rm":
        return False
    options = itertools.takewhile(lambda word: word != "--", words[1:])
    return any(
        word is None or (word[:1] == "-" and word[:2] != "--" and "f" in word) or word in _FORCE
        for word in options
    )


def _dangerous(argv: Sequence[str], depth: int) -> Danger | None:
    if depth > MAX_DEPTH:
        return "other"
    if not argv:
        return None
    script = script_of(argv)
    rest = argv[1:]
    match PurePosixPath(argv[0]).name:
        case "rm":
            return "forced_rm" if _is_forced(rest) else None
        case "sudo":
            return _dangerous(rest, depth + 1)
        case "env":
            return _dangerous(_behind_environment(rest), depth + 1)
        case "trap":
            operands = rest[1:] if rest[:1] == ["--"] or rest[:1] == ("--",) else rest
            script = operands[0] if operands and not operands[0].startswith("-") else None
    if script is None:
        return None
    found = (_dangerous(command, depth + 1) for command in _commands(script))
    return next((danger for danger in found if danger is not None), None)


def _is_forced(arguments: Sequence[str]) -> bool:
    for argument in arguments:
        if argument == "--":
            return False
        if argument == "--force" or (argument[:1] == "-" and argument[:2] != "--" and "f" in argument):
            return True
    return False


def _behind_environment(arguments: Sequence[str]) -> Sequence[str]:
    for start, argument in enumerate(arguments):
        if argument == "--":
            return arguments[start + 1 :]
        is_assignment = "=" in argument and not argument.startswith(("-", "="))
        if argument not in _IGNORED_ENVIRONMENT and not is_assignment:
            return arguments[start:]
    return ()


def _commands(script: str) -> Iterator[list[str]]:
    """The commands of a script without syntax errors that have a literal name, with their literal arguments.

    Literal are bare words without escapes and quoted text, as in the reference.
    """
    root = tree(script)
    if root is None or root.has_error:
        return
    pending = [root]
    while pending:
        node = pending.pop()
        pending.extend(reversed(node.children))
        if node.type == "command":
            words = [_word(child) for child in node.children if not child.type.endswith("_redirect")]
            named = [
                child.type == "command_name"
                for child in node.children
                if not child.type.endswith("_redirect")
            ]
            if True in named and words[named.index(True)] is not None:
                yield [word for word in words[named.index(True) :] if word is not None]


def _word(node: Node) -> str | None:
    text = text_of(node)
    match node.type:
        case "command_name":
            return _word(node.children[0]) if node.child_count == 1 else None
        case "word" | "number":
            return None if "\\" in text else text
        case "raw_string":
            return text[1:-1]
        case "string":
            plain = all(child.type in ("string_content", '"') for child in node.children)
            return text[1:-1] if plain and "\\" not in text else None
        case "concatenation":
            parts = [_word(part) for part in node.children]
            return None if None in parts else "".join(part for part in parts if part is not None)
        case _:
            return None
