"""Patches in shell calls: recognized, so that no shell is started for them.

Only a script that is nothing but the call is taken: `apply_patch` with a here-document, perhaps after
`cd DIRECTORY &&`. In whatever else the command is one of several things that a shell has to do, and is left
to it. The body of the here-document is never expanded, also where a shell would.
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
"""With it, the directory of `cd` is not the one that its argument names."""

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
"""Of the here-document as it is parsed."""

_ESCAPED = re.compile(r"\\(.)", re.DOTALL)
_ESCAPED_IN_QUOTES = re.compile(r'\\([\\"$`])')
_UNSAFE_IN_WORD = re.compile(r"(?<!\\)[*?\[\]{}]")
"""What a shell would expand to names of files."""


@dataclass(frozen=True, slots=True)
class Intercepted:
    """A call of `apply_patch`."""

    text: str
    """The patch, which may turn out to be none."""
    cwd: str
    """The absolute directory that its relative paths begin in."""

    def parse(self) -> Patch:
        """The patch.

        Raises:
            PatchSyntaxError: the text is none. It is to be told to the model, never run by a shell.
        """
        return parse_patch(self.text)


@dataclass(frozen=True, slots=True)
class PatchWithoutCall:
    """A patch where a command should be. A shell would run its first words."""

    @property
    def tool_text(self) -> str:
        """What a tool call answers."""
        return (
            f"{VERIFICATION_FAILED}patch detected without explicit call to apply_patch. "
            'Rerun as ["apply_patch", "<patch>"]'
        )


@dataclass(frozen=True, slots=True)
class UnknownDirectory:
    """A call of `apply_patch` in a home directory, which only the shell knows."""

    directory: str

    @property
    def tool_text(self) -> str:
        """What a tool call answers."""
        return (
            f"{VERIFICATION_FAILED}the directory {self.directory} of cd is not expanded. "
            "Rerun with its absolute path"
        )


def intercept(argv: Sequence[str], cwd: str) -> Intercepted | PatchWithoutCall | UnknownDirectory | None:
    """Look for a patch in a call.

    Args:
        argv: of the call.
        cwd: the absolute directory in which it would run.

    Returns:
        None when it is to be run as it is.
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
    # Also one that is broken: no script begins like this, and a shell would expand the asterisks.
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
    """A script in two parts: the text of its first here-document, and all else."""

    text: str
    script: str
    """With a word in place of the text: whatever a patch holds, it is no syntax of a shell."""


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
    """The assignments before the name, and all from it on."""
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
    """What an argument says, if a shell would not expand anything in it."""
    text = text_of(argument)
    if argument.type in ("word", "number"):
        return None if _UNSAFE_IN_WORD.search(text) else _ESCAPED.sub(r"\1", text)
    if argument.type == "raw_string":
        return text[1:-1]
    if argument.type == "string" and [child.type for child in argument.named_children] == ["string_content"]:
        return _ESCAPED_IN_QUOTES.sub(r"\1", text[1:-1])
    return None
