"""Recognizes patches in shell calls, so that no shell is started for them.

A script counts only if it is nothing but the call: `apply_patch` with a here-document, perhaps after
`cd DIRECTORY &&`. Any other script is left to the shell. The body of the here-document is never expanded,
even where a shell would expand it.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from execclient.govern.policy.shell_syntax import text_of, tree
from execclient.patch.errors import VERIFICATION_FAILED, PatchSyntaxError
from execclient.patch.parse import BEGIN, MARK, WHITESPACE, Patch, parse_patch

if TYPE_CHECKING:
    from tree_sitter import Node

COMMANDS = ("apply_patch", "applypatch")
SHELLS = ("bash", "zsh", "sh")
_SCRIPT_FLAGS = ("-c", "-lc")

_SEARCH_PATH_OF_CD = "CDPATH"
"""If it is set, `cd` may change to another directory than its argument names."""

_HERE_DOCUMENT = re.compile(
    r"""
    (?P<head> (?: [^<'"\\] | \\. | '[^']*' | "(?:[^"\\]|\\.)*" )*+ )
    << (?P<dash>-?) [ \t]*
    (?P<tag> \\?\w[\w.+-]* | '[^'\n]+' | "[^"\n]+" )
    (?P<tail> [^\n]* ) \n
    """,
    re.VERBOSE | re.DOTALL,
)

_TAG = "_"
"""The delimiter of the here-document in the script that is parsed."""

_ESCAPED = re.compile(r"\\(.)", re.DOTALL)
_ESCAPED_IN_QUOTES = re.compile(r'\\([\\"$`])')
_UNSAFE_IN_WORD = re.compile(r"(?<!\\)[*?\[\]{}]")
"""Characters that a shell would expand to file names."""


@dataclass(frozen=True, slots=True)
class Intercepted:
    """A call of `apply_patch`."""

    text: str
    """The text of the patch, not parsed yet."""
    cwd: str
    """The base of its relative paths, absolute."""

    def parse(self) -> Patch:
        """Parse the patch.

        Raises:
            PatchSyntaxError: the text is no patch. Report it to the model; never run the text in a shell.
        """
        return parse_patch(self.text)


@dataclass(frozen=True, slots=True)
class PatchWithoutCall:
    """A patch in the place of a command. A shell would run its first words."""

    @property
    def tool_text(self) -> str:
        """The answer to a tool call."""
        return (
            f"{VERIFICATION_FAILED}patch detected without explicit call to apply_patch. "
            'Rerun as ["apply_patch", "<patch>"]'
        )


@dataclass(frozen=True, slots=True)
class UnknownDirectory:
    """A call of `apply_patch` after `cd ~`, whose directory only the shell knows."""

    directory: str

    @property
    def tool_text(self) -> str:
        """The answer to a tool call."""
        return (
            f"{VERIFICATION_FAILED}the directory {self.directory} of cd is not expanded. "
            "Rerun with its absolute path"
        )


def intercept(argv: Sequence[str], cwd: str) -> Intercepted | PatchWithoutCall | UnknownDirectory | None:
    """Look for a patch in a command.

    Args:
        argv: the program and its arguments.
        cwd: the working directory of the command, absolute.

    Returns:
        None for a command that is to be run.
    """
    if len(argv) == 2 and argv[0] in COMMANDS:
        return Intercepted(argv[1], cwd)
    if len(argv) == 1:
        return PatchWithoutCall() if _is_patch(argv[0]) else None
    script = _script(argv)
    if script is None:
        return None
    if _is_patch(script):
        return PatchWithoutCall()
    if not any(command in script for command in COMMANDS):
        return None
    return _from_script(script, cwd)


def _script(argv: Sequence[str]) -> str | None:
    if len(argv) != 3 or argv[1] not in _SCRIPT_FLAGS:
        return None
    stem = posixpath.splitext(posixpath.basename(argv[0]))[0]
    return argv[2] if stem.lower() in SHELLS else None


def _is_patch(text: str) -> bool:
    # Even a malformed one: no script begins like this, and a shell would expand the asterisks.
    text = text.lstrip(WHITESPACE + MARK)
    if text.partition("\n")[0].rstrip(WHITESPACE) == BEGIN:
        return True
    if not text.startswith("<<"):
        return False
    try:
        parse_patch(text)
    except PatchSyntaxError:
        return False
    return True


class _HereDocument(NamedTuple):
    """A script in two parts: the text of its first here-document, and the rest."""

    text: str
    script: str
    """With a placeholder for the text: the content of a patch is not shell syntax."""


def _without_here_document(script: str) -> _HereDocument | None:
    begin = _HERE_DOCUMENT.match(script)
    if begin is None:
        return None
    tag = begin["tag"]
    tag = tag[1:-1] if tag[0] in "'\"" else tag.removeprefix("\\")
    carriage_return = "\r?" if begin["tail"].endswith("\r") else ""
    tabs = "\t*" if begin["dash"] else ""
    end = re.compile(f"^{tabs}{re.escape(tag)}{carriage_return}$", re.MULTILINE).search(script, begin.end())
    if end is None:
        return None
    text = script[begin.end() : end.start()]
    if begin["dash"]:
        text = re.sub(r"^\t+", "", text, flags=re.MULTILINE)
    rest = f"{begin['head']}<<'{_TAG}'{begin['tail']}\n-\n{_TAG}{script[end.end() :]}"
    return _HereDocument(text.rstrip("\n"), rest)


def _from_script(script: str, cwd: str) -> Intercepted | UnknownDirectory | None:
    document = _without_here_document(script)
    root = tree(document.script) if document is not None else None
    if document is None or root is None or root.has_error or root.named_child_count != 1:
        return None
    statement = root.named_children[0]
    if statement.type != "redirected_statement":
        return None
    body, *redirects = statement.named_children
    if [redirect.type for redirect in redirects] != ["heredoc_redirect"]:
        return None
    parts = [part.type for part in redirects[0].named_children]
    if parts != ["heredoc_start", "heredoc_body", "heredoc_end"]:
        return None
    if body.type == "command":
        return Intercepted(document.text, cwd) if _calls_apply_patch(body) else None
    if body.type != "list" or [child.type for child in body.children] != ["command", "&&", "command"]:
        return None
    change, command = body.named_children
    if not _calls_apply_patch(command):
        return None
    return _in_directory(change, document.text, cwd)


def _in_directory(change: Node, text: str, cwd: str) -> Intercepted | UnknownDirectory | None:
    assignments, rest = _parts(change)
    if any(text_of(each).startswith(_SEARCH_PATH_OF_CD) for each in assignments):
        return None
    if len(rest) != 2 or not _is_named(rest[0], ("cd",)):
        return None
    argument = rest[1]
    directory = _literal(argument)
    if directory is None or directory.startswith("-"):
        return None
    if argument.type == "word" and text_of(argument).startswith("~"):
        return UnknownDirectory(directory)
    return Intercepted(text, "/" + posixpath.normpath(posixpath.join(cwd, directory)).lstrip("/"))


def _calls_apply_patch(command: Node) -> bool:
    _, rest = _parts(command)
    return len(rest) == 1 and _is_named(rest[0], COMMANDS)


def _parts(command: Node) -> tuple[list[Node], list[Node]]:
    """The assignments before the name, and the rest from the name on."""
    parts = command.named_children
    count = 0
    while count < len(parts) and parts[count].type == "variable_assignment":
        count += 1
    return parts[:count], parts[count:]


def _is_named(node: Node, names: Sequence[str]) -> bool:
    return (
        node.type == "command_name"
        and [child.type for child in node.children] == ["word"]
        and text_of(node) in names
    )


def _literal(argument: Node) -> str | None:
    """The value of an argument; None if a shell would expand it."""
    text = text_of(argument)
    if argument.type in ("word", "number"):
        return None if _UNSAFE_IN_WORD.search(text) else _ESCAPED.sub(r"\1", text)
    if argument.type == "raw_string":
        return text[1:-1]
    if argument.type == "string" and [child.type for child in argument.named_children] == ["string_content"]:
        return _ESCAPED_IN_QUOTES.sub(r"\1", text[1:-1])
    return None
