"""The commands of a console block, and the comparison of their output."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

PROMPTS = ("$ ", "# ")
"""Of a user and of root. Commands of root do not run here: their block names the test that checks it."""

ANYTHING = "…"

_HEREDOC = re.compile(r"<<-?\s*'?([A-Za-z_]+)'?")
_REMARK = re.compile(r"\s{2,}#\s.*$", re.MULTILINE)
_DAEMON = re.compile(r"^(?:[A-Z_]+=\S*\s+)*(?:\S*/)?execserver (?:relay )?serve\b(?!.*--help)")
_STDIO = re.compile(r"--listen stdio\b")
_REMOTE = re.compile(r"--remote\b(?!-)")


@dataclass(slots=True)
class Command:
    """One command of a console block, and what the page says that it prints."""

    text: str
    expected: list[str] = field(default_factory=list)

    @property
    def background(self) -> bool:
        """Whether it goes on while the next ones run."""
        return self.text.rstrip().endswith("&") or self.is_daemon

    @property
    def is_daemon(self) -> bool:
        """A daemon that listens, or a relay: the reader gives it a terminal of its own."""
        return bool(_DAEMON.match(self.text)) and not self.is_conversation and "|" not in self.text

    @property
    def is_remote(self) -> bool:
        """A daemon that dials out to a relay."""
        return self.is_daemon and bool(_REMOTE.search(self.text))

    @property
    def is_conversation(self) -> bool:
        """A daemon on stdio: the reader types messages into it."""
        return bool(_DAEMON.match(self.text) and _STDIO.search(self.text)) and "<" not in self.text


def commands_of(text: str) -> list[Command]:
    """The commands of a console block. Lines without a prompt are output, but for those behind a
    backslash and the bodies of here-documents.
    """
    commands: list[Command] = []
    prompt = text[:2]
    if prompt not in PROMPTS:
        raise ValueError(f"no command in the first line: {text.partition(chr(10))[0]!r}")
    until: str | None = None
    goes_on = False
    for line in text.splitlines():
        if until is not None or goes_on:
            commands[-1].text += "\n" + line
            if line == until:
                until = None
            goes_on = until is None and goes_on and line.endswith("\\")
        elif line.startswith(prompt):
            commands.append(Command(line.removeprefix(prompt)))
            heredoc = _HEREDOC.search(line)
            until = heredoc[1] if heredoc else None
            goes_on = line.endswith("\\")
        else:
            commands[-1].expected.append(line)
    for command in commands:
        if "<<" not in command.text:
            command.text = _REMARK.sub("", command.text)
    return commands


def matches(expected: str, actual: str) -> bool:
    """Whether the output is what the page shows: `…` in a line is any text, alone in a line any lines."""
    pattern = ""
    for line in expected.strip("\n").split("\n"):
        if line.strip() == ANYTHING:
            pattern += "(?:[^\n]*\n)*?"
        else:
            pattern += "[^\n]*".join(re.escape(part) for part in line.rstrip().split(ANYTHING)) + "[ \t]*\n"
    return re.fullmatch(pattern, actual.strip("\n") + "\n") is not None
