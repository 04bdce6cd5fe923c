"""Finds every command in an argv and in its scripts, at any depth.

The search finds too much rather than too little, and reports if it cannot find everything. It is bounded:
each script is read once, in two readings, and at most `MAX_DEPTH` scripts inside each other.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from execclient.govern.policy.git import Words
from execclient.govern.policy.shell_differences import unmarked
from execclient.govern.policy.shell_syntax import decode_ansi_c, is_operand, literal, text_of, tree
from execclient.govern.policy.unwrapping import (
    APPENDS,
    SHELL_VARIABLES,
    SUBSTITUTION,
    Inner,
    inner,
    is_run_from_environment,
    program,
    steers,
)

if TYPE_CHECKING:
    from tree_sitter import Node

MAX_DEPTH = 8
"""Scripts inside of scripts, as in `sh -c "sh -c 'ls'"`. Deeper nesting only serves to hide something."""

MAX_WORDS = 100_000
"""In all commands of a search. A few bytes can have very many readings: `sudo -a b -a b …`."""

MAX_INNER_BYTES = 256 << 10
"""The size of all scripts in the first one, which may itself be as long as `shell_syntax` allows."""

_SETTINGS_OF_GIT = frozenset({"HOME", "XDG_CONFIG_HOME"})
_PASSING_ON = frozenset({"cat", "tee", ":", "true"})
"""Programs that write their input, or nothing."""

_JOINING = frozenset({"pipeline", "redirected_statement", "herestring_redirect", "process_substitution"})
_INPUTS = frozenset({"heredoc_body", "herestring_redirect"})
_KEYWORD_COMMANDS = frozenset({"declaration_command", "unset_command", "test_command"})
_ARGUMENTS = frozenset({"word", "string", "raw_string", "ansi_c_string", "concatenation", "variable_name"})
_OPAQUE = frozenset({"word", "regex", "extglob_pattern"})
_SUBSCRIPT = re.compile(r"\w\[[^\]]*(\$\(|`)")
"""In quotes. Commands with variable names or arithmetic (`test -v`, `let`, `[[ -eq ]]`) run the substitution
between the brackets."""
_QUOTED = frozenset({"raw_string", "ansi_c_string", "string"})
_CONTINUED_LINE = re.compile(r"(?<!\\)((?:\\\\)*)\\\n")
"""The parser treats a continued line inside a word as a blank."""

_ESCAPED_NAME = re.compile(r"(\n[ \t]*)\\(?=[\w./-])")
"""At the beginning of a line. The parser appends such a line to the one before."""


class Found(NamedTuple):
    """The result of a search."""

    commands: tuple[tuple[str, ...], ...]
    partial: tuple[Words, ...]
    """The commands with words that are not literal, which are None."""
    unreadable: bool
    """Whether there may be more: a name is not literal, a script has errors, or a limit was reached."""
    loose: tuple[Words, ...] = ()
    """The commands of `partial` in which a word that is not literal may be an option."""
    unknown: tuple[Words, ...] = ()
    """The commands whose programs may run their operands."""


def search(argv: Sequence[str]) -> Found:
    """All commands of an argv; the argv itself comes first."""
    searching = _Search()
    searching.command(tuple(argv), 0, has_options=False)
    if searching.moves_settings and any(program(command[0]) == "git" for command in searching.found):
        searching.partial.setdefault(("git", None))
    return Found(
        tuple(searching.found),
        tuple(searching.partial),
        searching.unreadable,
        tuple(searching.loose),
        tuple(searching.unknown),
    )


@dataclass(slots=True)
class _Search:
    found: dict[tuple[str, ...], None] = field(default_factory=dict)
    partial: dict[Words, None] = field(default_factory=dict)
    unreadable: bool = False
    loose: dict[Words, None] = field(default_factory=dict)
    unknown: dict[Words, None] = field(default_factory=dict)
    moves_settings: bool = False
    """Whether git would read its settings from another place."""
    _commands: dict[tuple[Words, bool], bool] = field(default_factory=dict)
    """The commands that were searched, with whether they read a script from stdin."""
    _scripts: dict[str, bool] = field(default_factory=dict)
    """The scripts that were searched, with whether a command in them reads a script from stdin."""
    _words_left: int = MAX_WORDS
    _bytes_left: int = MAX_INNER_BYTES

    def command(self, words: Words, depth: int, *, has_options: bool) -> bool:
        """Search a command and all commands that it runs.

        Args:
            words: the words of the command.
            depth: the depth of its script.
            has_options: whether a word that is not literal may be an option.

        Returns:
            Whether one of the commands reads a script from stdin.
        """
        pending = [(words, has_options)]
        reads_script = False
        while pending:
            each, has_options = pending.pop()
            if (each, has_options) in self._commands:
                reads_script = reads_script or self._commands[each, has_options]
                continue
            self._words_left -= len(each)
            if self._words_left < 0:
                self.unreadable = True
                return True
            ran = inner(each)
            self._commands[each, has_options] = ran.reads_script
            reads_script = reads_script or ran.reads_script
            self.unreadable = self.unreadable or ran.unreadable
            if each and each[0] is not None:
                self._note(each, ran, has_options=has_options)
                has_options = has_options or program(each[0]) in APPENDS
            for script in ran.scripts:
                reads_script = self.script(script, depth + 1) or reads_script
            pending.extend((command, has_options) for command in reversed(ran.commands))
        self._commands[words, has_options] = reads_script
        return reads_script

    def _note(self, words: Words, ran: Inner, *, has_options: bool) -> None:
        self.found.setdefault(tuple(word for word in words if word is not None))
        if None in words:
            self.partial.setdefault(words)
            if has_options:
                self.loose.setdefault(words)
        if ran.unknown:
            self.unknown.setdefault(words)

    def script(self, script: str, depth: int) -> bool:
        """Search a script, as the parser reads it and, if that differs, as bash reads it."""
        if depth > MAX_DEPTH:
            self.unreadable = True
            return False
        reads_script = False
        as_in_bash = _ESCAPED_NAME.sub(r"\1", _CONTINUED_LINE.sub(r"\1", script))
        for reading in dict.fromkeys((script, as_in_bash)):
            if reading not in self._scripts:
                self._scripts[reading] = False
                if depth > 1:
                    self._bytes_left -= len(reading)
                self._scripts[reading] = self._read(reading, depth, is_last=reading == as_in_bash)
            reads_script = reads_script or self._scripts[reading]
        return reads_script

    def _read(self, script: str, depth: int, *, is_last: bool) -> bool:
        root = tree(script) if self._bytes_left >= 0 else None
        if root is None:
            self.unreadable = True
            return False
        self.unreadable = self.unreadable or root.has_error
        if is_last:
            missed = unmarked(root, script)
            self.unreadable = self.unreadable or missed.misread
            for text in missed.scripts:
                self.script(text, depth + 1)
        fed: dict[Node, None] = {}
        reads_script = False
        for node, statement in _nodes(root):
            if node.type == "variable_assignment":
                self._assignment(node, depth)
            elif (is_last and _hides_commands(node)) or _sets_steering(node):
                self.unreadable = True
            elif node.type in _QUOTED:
                self._quoted(node, depth)
            words = _words(node)
            if not words:
                continue
            if words[0] is None or _takes_over_input(node, words):
                self.unreadable = True
            if words[0] is None:
                continue
            has_options = None in words and _has_unknown_option(node)
            if self.command(words, depth, has_options=has_options):
                if statement is None:
                    reads_script = True
                else:
                    fed.setdefault(statement)
            if words[0].startswith("="):  # in zsh: the path of the program
                self.command((words[0][1:], *words[1:]), depth, has_options=has_options)
        for each in fed:
            self._fed(each, depth)
        return reads_script

    def _assignment(self, node: Node, depth: int) -> None:
        value = node.child_by_field_name("value")
        name = text_of(node).partition("=")[0]
        text = literal(value) if value is not None else ""
        is_name = bool(text) and text in SHELL_VARIABLES - {"ENV"}  # of another variable, for `declare -n`
        self.unreadable = self.unreadable or is_name or steers(f"{name}={'$' if text is None else text}")
        self.moves_settings = self.moves_settings or name in _SETTINGS_OF_GIT
        if text and is_run_from_environment(name):
            self.script(text, depth + 1)
        # Arithmetic and `${NAME@P}` run substitutions in a quoted value.
        parts = [text] if text or value is None else map(literal, value.children)
        for part in parts:
            if part and SUBSTITUTION.search(part):
                self.script(part, depth + 1)

    def _quoted(self, node: Node, depth: int) -> None:
        text = literal(node)
        if text and _SUBSCRIPT.search(text):
            self.script(text, depth + 1)
        around = (
            node.parent if node.parent is None or node.parent.type != "concatenation" else node.parent.parent
        )
        if around is not None and around.type == "declaration_command" and text is None:
            self.unreadable = True

    def _fed(self, statement: Node, depth: int) -> None:
        """Search the literal text that the other commands of a statement write to a shell."""
        written: list[str | None] = []
        for node, _ in _nodes(statement):
            if node.type in _INPUTS:
                written.append(text_of(node) if node.type == "heredoc_body" else literal(node.children[-1]))
            for words in _innermost(_words(node) or ()):
                written.extend(_written(words))
        self.unreadable = self.unreadable or not written or None in written
        for text in written:
            if text is not None:
                self.script(text, depth + 1)


def _nodes(root: Node) -> Iterator[tuple[Node, Node | None]]:
    """All nodes of a tree, in the order of the source.

    Each comes with the outermost statement around it that joins commands by pipes, redirections or process
    substitutions, or None.
    """
    pending: list[tuple[Node, Node | None]] = [(root, None)]
    while pending:
        node, statement = pending.pop()
        children = node.children
        if statement is None and (
            node.type in _JOINING
            or (node.type == "command" and any(child.type in _JOINING for child in children))
        ):
            statement = node
        yield node, statement
        pending.extend((child, statement) for child in reversed(children))


def _sets_steering(node: Node) -> bool:
    """Whether a loop or `${NAME:=…}` sets a variable that makes a shell run something."""
    around = node.parent if node.type == "variable_name" else None
    if around is None or not steers(text_of(node)):
        return False
    return around.type == "for_statement" or any(child.type in ("=", ":=") for child in around.children)


def _hides_commands(node: Node) -> bool:
    """Whether a word of the parser has a newline or backquotes for bash."""
    if node.type not in _OPAQUE or node.child_count:
        return False
    text = text_of(node)
    return text.startswith("\n") or "`" in re.sub(r"\\.", "", text)


def _words(node: Node) -> Words | None:
    """The words of a command without assignments and redirections.

    None for any other node; () for a statement whose redirections have no words behind them.
    """
    if node.type == "redirected_statement":
        body = node.child_by_field_name("body")
        command = _last_command(body) if body is not None else None
        behind = tuple(_behind_redirections(node))
        if not behind:
            return ()
        return (*((_words(command) if command is not None else None) or ()), *behind)
    if node.type in _KEYWORD_COMMANDS:
        first, *others = node.children
        return (text_of(first), *(literal(child) for child in others if child.type in _ARGUMENTS))
    if node.type != "command":
        return None
    words: list[str | None] = []
    end = -1
    for child in node.children:
        if child.type == "variable_assignment" or child.type.endswith("_redirect"):
            continue
        is_name = child.type == "command_name"
        value = literal(child.children[0] if is_name and child.child_count == 1 else child)
        if child.start_byte == end:  # `"r"\m` is one word, but two for the parser
            before = words.pop()
            value = None if value is None or before is None else before + value
        words.append(value)
        end = child.end_byte
    return tuple(words)


def _has_unknown_option(node: Node) -> bool:
    """Whether a word that is not literal may be an option, or become several words."""
    words = [
        child
        for child in node.children
        if child.type != "variable_assignment" and not child.type.endswith("_redirect")
    ]
    return node.type != "command" or any(literal(word) is None and not is_operand(word) for word in words[1:])


def _takes_over_input(node: Node, words: Words) -> bool:
    """Whether it is `exec` with redirections only, which change the input of the shell's commands."""
    if "exec" not in words or any(
        word is None or not word.startswith(("-", "0")) for word in words[words.index("exec") + 1 :]
    ):
        return False
    around = node.parent if node.type == "command" and node.parent is not None else node
    return any(
        each.type in ("herestring_redirect", "heredoc_redirect")
        or re.match(r"0?<(?![&(]-?\d)", text_of(each))
        for each in (*node.children, *around.children)
    )


def _last_command(body: Node) -> Node | None:
    """The command that the redirections behind a statement's body belong to."""
    while body.type in ("list", "pipeline", "negated_command"):
        body = body.children[-1]
    return body if body.type == "command" else None


def _behind_redirections(statement: Node) -> Iterator[str | None]:
    """Words that the parser counts as redirections: in `git > log push`, `push` belongs to git."""
    pending = [child for child in reversed(statement.children) if child.type.endswith("_redirect")]
    while pending:
        redirect = pending.pop()
        if redirect.type == "file_redirect":
            yield from (literal(word) for word in redirect.children_by_field_name("destination")[1:])
        elif redirect.type == "heredoc_redirect":
            yield from (literal(word) for word in redirect.children_by_field_name("argument"))
            pending.extend(child for child in reversed(redirect.children) if child.type == "file_redirect")


def _innermost(words: Words) -> Iterator[Words]:
    """A command without the programs in front of it that only run it."""
    for _ in range(MAX_DEPTH):
        behind = inner(words).commands
        if not behind:
            break
        words = behind[-1]
    if words:
        yield words


def _written(words: Words) -> Iterator[str | None]:
    """The text that a command writes for a shell: a guess for each way of reading escapes and formats.

    None stands for unknown text.
    """
    name = program(words[0] or "")
    if name in _PASSING_ON:
        if name == "cat" and any(word != "-" for word in words[1:]):
            yield None
        return
    if name not in ("echo", "printf"):
        if not inner(words).reads_script:
            yield None
        return
    texts = [word for word in words[1:] if word is not None]
    if len(texts) < len(words) - 1:
        yield None
    if name == "printf":
        yield _formatted(texts[0], texts[1:]) if texts else None
        return
    while texts and re.fullmatch(r"-[neE]+", texts[0]):
        del texts[0]
    yield " ".join(texts)
    yield decode_ansi_c(" ".join(texts))


def _formatted(template: str, values: list[str]) -> str | None:
    """The output of `printf`; None with numbers, widths and the like."""
    pieces = re.split(r"(%.?)", decode_ansi_c(template), flags=re.DOTALL)
    if any(piece[:1] == "%" and piece not in ("%s", "%b", "%%") for piece in pieces):
        return None
    places = sum(piece in ("%s", "%b") for piece in pieces)
    rest = iter(decode_ansi_c(value) for value in values)
    turns = max(1, -(-len(values) // places)) if places else 1
    return "".join(
        next(rest, "") if piece in ("%s", "%b") else "%" if piece == "%%" else piece
        for _ in range(turns)
        for piece in pieces
    )
