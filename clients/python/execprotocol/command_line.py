"""The argument parser of all commands: the daemon's, the relay's and the client's; and text that is safe to
print.

Exit status 2 for a command line that is not valid.
"""

from __future__ import annotations

import argparse
import errno
import os
import re
import signal
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NoReturn

_LONG_OPTION = re.compile(r"(?<![\w-])--\w[\w-]*")

BEFORE_COMMAND = ("--url", "--token-file")
"""Options of commands that may stand before the command, as docker and kubectl have them."""

OUTPUT_CLOSED = 128 + signal.SIGPIPE
"""As in a shell, for a program that wrote into a pipe without a reader."""


class Parser(argparse.ArgumentParser):
    """An `ArgumentParser` that names the nearest option for a misspelled one, and where the help is.

    Options cannot be abbreviated: an abbreviation would change its meaning with the next option.
    """

    def __init__(self, **arguments: Any) -> None:
        super().__init__(**{"allow_abbrev": False, **arguments})
        self.set_defaults(parser=self)  # of a command's own parser, if the command line names one

    def parse(self, argv: Sequence[str], *, intermixed: bool = False) -> argparse.Namespace:
        """Parse a command line; an invalid one ends the program with status 2.

        Args:
            argv: the arguments.
            intermixed: whether options may stand between arguments, as in `cp a b -r :c`; not with commands
                or a rest of the line. With `--` in the line, options stand before all arguments.
        """
        # `parse_known_intermixed_args` loses the `--`, and takes what follows it for options.
        intermixed = intermixed and "--" not in argv
        parse = self.parse_known_intermixed_args if intermixed else self.parse_known_args
        options, unknown = parse(argv)
        if unknown:
            parser: Parser = options.parser
            parser.refuse(unknown[0])
        return options

    def refuse(self, argument: str) -> NoReturn:
        """End the program because of an option that does not exist, or an argument too many."""
        if argument == "--":
            self.error("in a line with `--`, options stand before all arguments")
        if not argument.startswith("-") or argument == "-":
            self.error(f"unexpected argument: {argument}")
        name = argument.partition("=")[0]
        # One letter is as far from each other one.
        hint = did_you_mean(name, _LONG_OPTION.findall(self.format_help())) if len(name) > 2 else ""
        self.error(f"no such option: {name}{hint}")

    def error(self, message: str) -> NoReturn:
        """End the program with status 2: the message, and where to look."""
        # An argument may be the name of a file that another user chose.
        shown = printable(message, keep="\n")
        self.exit(2, f"{self.prog}: error: {shown}\nSee: {self.prog} --help\n")


def is_completion(argv: Sequence[str]) -> bool:
    """Whether a shell asks for completions, which are printed instead of running a command."""
    return not argv and "_ARGCOMPLETE" in os.environ


def command_to_complete() -> str:
    """The first word of the line that a shell completes; empty if that is the word to complete."""
    line = os.environ.get("COMP_LINE", "")
    words = f"{line}.".split()
    return words[1] if len(words) > 2 else ""


def complete(parser: Parser, *, of_words: int = 1) -> NoReturn:
    """Print the completions that a shell asks for, and exit.

    Args:
        parser: of the program.
        of_words: how many words of the line name the program.
    """
    from argcomplete import autocomplete

    os.environ["_ARGCOMPLETE"] = str(of_words)  # from where argcomplete counts
    autocomplete(parser, always_complete_options=False)
    raise AssertionError("argcomplete exits")


def until_unread(command: Callable[[], int]) -> int:
    """Run a command; returns its exit status, or `OUTPUT_CLOSED` if the reader of its stdout is gone; 1 if
    its disk is full.
    """
    try:
        try:
            return command()
        finally:
            if sys.stdout is not None:
                sys.stdout.flush()
    except OSError as error:
        if error.errno not in (errno.EPIPE, errno.ENOSPC) or error.filename is not None:
            raise
        # The interpreter flushes it at exit, which must not fail again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        if error.errno == errno.EPIPE:
            return OUTPUT_CLOSED
        sys.stderr.write(f"execserver: output cannot be written: {error.strerror}\n")
        return 1


def did_you_mean(given: str, known: Iterable[str]) -> str:
    """The end of a message about an unknown name: the nearest known one; empty if none is near."""
    import difflib  # for errors only

    near = difflib.get_close_matches(given, known, n=1, cutoff=0.5)  # as far apart as `sp` and `ps`
    return f"; did you mean {near[0]}?" if near else ""


def expanded(argv: Sequence[str]) -> list[str]:
    """The command line with `help [COMMAND]` and `version` as the options that they stand for, and with
    `BEFORE_COMMAND` behind the command.
    """
    first = 0
    while first < len(argv) and argv[first].partition("=")[0] in BEFORE_COMMAND:
        first += 1 if "=" in argv[first] else 2
    argv = [*argv[first : first + 1], *argv[:first], *argv[first + 1 :]]
    match argv:
        case ["help", "help" | "version", *_]:
            return ["--help"]
        case ["help", *command]:
            return [*command, "--help"]
        case ["version", *_]:
            return ["--version"]
    return argv


def printable(text: str, keep: str = "") -> str:
    """The text with every invisible character escaped, such as `\\x1b`.

    Invisible are control characters, marks for the direction of writing, separators other than the blank, and
    lone surrogates. All text that commands of the client print passes through this function, except for the
    output of a process in `run`, `attach` and `logs`.

    Args:
        text: any text of another program, such as a path.
        keep: characters that are not escaped, such as line ends.
    """
    return "".join(each if each.isprintable() or each in keep else repr(each)[1:-1] for each in text)
