"""The commands of the client: `execserver run`, `ps` and so on."""

from __future__ import annotations

import gc
import os
import sys
from argparse import Namespace
from collections.abc import Callable, Mapping, Sequence
from typing import NoReturn

from execclient.commands import completion, console, file_commands, mcp, process_commands
from execclient.commands.options import Command
from execprotocol import __version__
from execprotocol.command_line import BEFORE_COMMAND, Parser, complete, did_you_mean, is_completion

_DESCRIPTION = (
    "Run commands and copy files on the machine of a daemon, for AI agents and people. "
    "`execserver COMMAND --help` explains a command."
)


def _add_completion(parser: Parser) -> None:
    parser.add_argument("shell", choices=completion.SHELLS, help="the shell")


def _completion(options: Namespace) -> int:
    try:
        print(completion.script(options.shell), flush=True)
    except ModuleNotFoundError as error:
        print(f'completion needs a package ({error}): pip install "execclient[cli]"', file=sys.stderr)
        return 1
    return 0


COMPLETION = Command(
    "print the script that completes commands in a shell",
    "Print the script that completes execserver's commands in a shell. "
    "bash: source <(execserver completion bash); zsh: the same, after compinit; "
    "fish: execserver completion fish | source",
    "bash|zsh|fish",
    _add_completion,
    _completion,
)

COMMANDS = {
    "run": process_commands.RUN,
    "attach": process_commands.ATTACH,
    "ps": process_commands.PS,
    "ports": process_commands.PORTS,
    "forward": process_commands.FORWARD,
    "logs": process_commands.LOGS,
    "kill": process_commands.KILL,
    "cp": file_commands.CP,
    "search": file_commands.SEARCH,
    "glob": file_commands.GLOB,
    "patch": file_commands.PATCH,
    "watch": file_commands.WATCH,
    "policy": file_commands.POLICY,
    "console": console.CONSOLE,
    "mcp": mcp.MCP,
    "completion": COMPLETION,
}
"""The commands by name, in the order of the help."""

_HABITS = {
    "exec": "run",
    "list": "ps",
    "ls": "ps",
    "grep": "search",
    "find": "glob",
    "stop": "kill",
    "rm": "kill",
}
"""Commands of docker and others that have another name here."""


def main(
    argv: Sequence[str],
    others: Mapping[str, str] | None = None,
    http_guard: Callable[[Namespace], object] | None = None,
) -> NoReturn:
    """Run `execserver ARGUMENTS` and exit.

    Args:
        argv: the arguments, as `expanded` returns them.
        others: further commands of the program, which the caller runs: name and summary.
        http_guard: makes the rules for HTTP clients from the options of `mcp`. Raises ValueError for
            options that cannot be used.
    """
    if is_completion(argv):
        complete(_parser(others or {}, with_options=True))
    if argv and argv[0] in COMMANDS:
        sys.exit(_run(argv[0], argv[1:], http_guard))
    parser = _parser(others or {})
    if argv and not argv[0].startswith("-"):
        known = [*(others or {}), *COMMANDS, "help", "version"]
        hint = did_you_mean(_HABITS.get(argv[0], argv[0]), known)
        parser.error(f"no such command: {argv[0]}{hint}")
    if argv and argv[0].partition("=")[0] in BEFORE_COMMAND:
        parser.error("no command is given")
    parser.parse(argv)
    parser.print_help()
    sys.exit(2)


def _run(name: str, argv: Sequence[str], http_guard: Callable[[Namespace], object] | None) -> int:
    gc.disable()  # while modules load: it would take a twentieth of the time; `perform` enables it
    command = COMMANDS[name]
    parser = Parser(prog=f"execserver {name}", usage=command.full_usage, description=command.description)
    command.add_options(parser)
    parser.set_defaults(http_guard=http_guard)
    options = parser.parse(command.rewrite(argv), intermixed=command.options_anywhere)
    open_missing()
    return command.perform(options)


def _parser(others: Mapping[str, str], *, with_options: bool = False) -> Parser:
    """The parser of the program. Its commands need their options for completion only."""
    parser = Parser(prog="execserver", description=_DESCRIPTION)
    parser.add_argument("-V", "--version", action="version", version=f"execserver {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND")
    for name, summary in others.items():
        commands.add_parser(name, help=summary)
    for name, command in COMMANDS.items():
        added = commands.add_parser(
            name, help=command.summary, usage=command.full_usage, description=command.description
        )
        if with_options:
            command.add_options(added)
    helped = commands.add_parser("help", help="show the help of a command")
    helped.add_argument("name", nargs="?", choices=[*others, *COMMANDS])
    commands.add_parser("version", help="print the version")
    return parser


def open_missing() -> None:
    """Open /dev/null as each standard stream that is closed.

    Otherwise the next descriptor that is opened would become a standard stream.
    """
    for descriptor in (0, 1, 2):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest free number
