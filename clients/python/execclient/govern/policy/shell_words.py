"""What a word of a script says once the shell has taken its quotes away.

A word is literal if that can be told from the script alone. Variables, substitutions, globs, braces and
tildes are not: for them the answer is None, and what they stand for is anybody's guess.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from execclient.govern.policy.shell_syntax import text_of

if TYPE_CHECKING:
    from tree_sitter import Node

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
    """What a word stands for, or None if only a running shell could tell."""
    parts = node.children if node.type == "concatenation" else [node]
    values: list[str] = []
    bare: list[str] = []
    """The text with a harmless letter for each quoted part: globs and braces work outside of quotes only."""
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
    """Whether a word that is not literal stays one word, and no option of letters: a path, as `"$x"/y`."""
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
        # The shell ends such a text at a NUL.
        return decode_ansi_c(text_of(node)[2:-1]).partition("\0")[0]
    if node.type in _DOUBLE_QUOTED:
        string = node if node.type == "string" else node.children[-1]
        if all(child.type in _STRING_PARTS for child in string.children):
            inside = text_of(string)[1:-1]
            return _ESCAPED_IN_DOUBLE_QUOTES.sub(lambda match: match[1].strip("\n"), inside)
    return None
