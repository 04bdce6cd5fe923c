"""The type of the client's commands, and the options that several of them have.

Only argparse is imported here and in the modules with the commands; what a command needs is imported when it
is run. So `--help` and the message about a misspelled option take hardly longer than the start of Python.
"""

from __future__ import annotations

from argparse import REMAINDER, Namespace
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from execclient.commands import completion
from execprotocol.command_line import Parser

if TYPE_CHECKING:
    from argparse import _MutuallyExclusiveGroup

    from execclient.commands.daemon import DaemonOptions
    from execclient.govern.network import NetworkAccess
    from execclient.govern.sandbox import SandboxPolicy

SANDBOXES = READ_ONLY, WORKSPACE_WRITE, DANGER_FULL_ACCESS = (
    "read-only",
    "workspace-write",
    "danger-full-access",
)


class Command(NamedTuple):
    """A command of the client."""

    summary: str
    """Its line in the list of commands."""
    description: str
    """The text of its own help."""
    usage: str
    """The usage in its help, without its name."""
    add_options: Callable[[Parser], None]
    perform: Callable[[Namespace], int]
    """Runs the command; returns the exit status. `Namespace.parser` is the parser, for errors."""
    rewrite: Callable[[Sequence[str]], Sequence[str]] = list
    """Rewrites the arguments before they are parsed."""
    options_anywhere: bool = True
    """Whether options may follow arguments."""

    @property
    def full_usage(self) -> str:
        """The usage for its parser."""
        return f"%(prog)s {self.usage}"


def add_policy(parser: Parser) -> None:
    """Add the options that choose the rules for commands, and when the user is asked."""
    parser.add_argument(
        "--rules",
        action="append",
        type=Path,
        metavar="FILE",
        help="use this rule file instead of those of a home; may be repeated",
    )
    parser.add_argument(
        "--home",
        type=Path,
        metavar="D",
        help="use D/rules/*.rules (default: EXECSERVER_POLICY_HOME, else ~/.config/execserver)",
    )
    parser.add_argument(
        "--approval",
        default="on-request",
        metavar="POLICY",
        help="when to ask: a name, or a granular policy as JSON (default: on-request)",
    )


def add_daemon(parser: Parser) -> None:
    """Add the options that name a daemon."""
    url = parser.add_argument(
        "--url",
        metavar="URL",
        help="the daemon: unix:///PATH, ws://HOST:PORT, wss://HOST, "
        "relay+https://HOST?environment=ID or ?pool=NAME, or stdio: (default: EXECSERVER_URL, else the "
        "default socket of a daemon)",
    )
    completion.complete_with(url, completion.nothing)
    parser.add_argument(
        "--token-file",
        type=Path,
        metavar="FILE",
        help="file with the bearer token for a WebSocket or a relay (default: EXECSERVER_TOKEN or "
        "EXECSERVER_TOKEN_FILE)",
    )


def daemon_of(options: Namespace) -> DaemonOptions:
    """The daemon that the options name."""
    from execclient.commands.daemon import DaemonOptions

    return DaemonOptions(options.url, options.token_file)


def add_sandbox(parser: Parser, effect: str) -> None:
    """Add `--sandbox` and `--writable`. `effect` is the help for the first."""
    parser.add_argument("--sandbox", choices=SANDBOXES, help=effect)
    parser.add_argument(
        "--writable",
        action="append",
        default=[],
        metavar="P",
        help="with workspace-write: another directory that may be written; may be repeated",
    )


def sandbox_of(options: Namespace) -> SandboxPolicy | None:
    """The policy that `--sandbox`, `--writable` and, if the command has it, `--network` describe."""
    parser: Parser = options.parser
    kind, network = options.sandbox, getattr(options, "network", False)
    if options.writable and kind != WORKSPACE_WRITE:
        parser.error(f"--writable needs --sandbox {WORKSPACE_WRITE}")
    if network and kind not in (READ_ONLY, WORKSPACE_WRITE):
        parser.error(f"--network needs --sandbox {READ_ONLY} or {WORKSPACE_WRITE}")
    for path in options.writable:
        if not path.startswith("/"):
            parser.error(f"--writable: {path!r} is relative; give its absolute path on the daemon's machine")
        if not path.strip("/"):
            parser.error(f"--writable: '/' is everything: use --sandbox {DANGER_FULL_ACCESS}")
    if kind is None:
        return None
    from execclient.govern.sandbox import DangerFullAccess, ReadOnly, WorkspaceWrite

    if kind == READ_ONLY:
        return ReadOnly(network=network)
    if kind == DANGER_FULL_ACCESS:
        return DangerFullAccess()
    try:
        return WorkspaceWrite(writable_roots=tuple(options.writable), network=network)
    except ValueError as error:
        parser.error(f"--writable: {error}")


def add_network(parser: Parser, effect: str) -> None:
    """Add `--network` and its kin. `effect` is the beginning of the help for each."""
    parser.add_argument("--network", action="store_true", help=f"{effect}: allow the whole network")
    for name, text in (("allow", "allow this host"), ("deny", "never allow this host")):
        hosts = parser.add_argument(
            f"--network-{name}",
            action="append",
            default=[],
            metavar="HOST",
            help=f"{effect}: {text}: a name, *.NAME, **.NAME or an IP address; may be repeated",
        )
        completion.complete_with(hosts, completion.nothing)
    parser.add_argument(
        "--network-ask", action="store_true", help=f"{effect}: ask you about each host that is not listed"
    )


def network_of(options: Namespace) -> NetworkAccess | None:
    """The hosts that `--network-allow`, `--network-deny` and `--network-ask` describe."""
    parser: Parser = options.parser
    allow, deny, ask = options.network_allow, options.network_deny, options.network_ask
    if not (allow or deny or ask):
        return None
    given = "--network-allow" if allow else "--network-ask" if ask else "--network-deny"
    if options.sandbox not in (READ_ONLY, WORKSPACE_WRITE):
        parser.error(f"{given} needs --sandbox {READ_ONLY} or {WORKSPACE_WRITE}: nothing else enforces it")
    if options.network:
        parser.error(f"{given} does not go with --network, which allows every host")
    if not (allow or ask):
        parser.error("--network-deny needs --network-allow or --network-ask: without them no host is allowed")
    from execclient.govern.network import NetworkAccess

    try:
        return NetworkAccess(tuple(allow), tuple(deny), ask=ask)
    except ValueError as error:
        parser.error(f"--network-{error}")


def add_json(parser: Parser | _MutuallyExclusiveGroup) -> None:
    """Add `--json`."""
    parser.add_argument("--json", dest="as_json", action="store_true", help="print JSON, for scripts")


def add_color(parser: Parser, effect: str) -> None:
    """Add `--color`. `effect` is the beginning of its help."""
    parser.add_argument(
        "--color",
        choices=("auto", "always", "never"),
        default="auto",
        help=f"{effect}; auto: on a terminal, unless NO_COLOR is set (the default)",
    )


def add_session(parser: Parser) -> None:
    """Add `--session`."""
    session = parser.add_argument(
        "--session", metavar="S", help="session of the process, if several sessions have the ID"
    )
    completion.complete_with(session, completion.nothing)


def add_process_id(parser: Parser) -> None:
    """Add the argument for one process."""
    process_id = parser.add_argument("process_id", metavar="ID", help="process ID, from ps")
    completion.complete_with(process_id, completion.process_ids)


def add_command(parser: Parser) -> None:
    """Add the argument for a command line; options after its first word belong to it."""
    command = parser.add_argument(
        "command", nargs=REMAINDER, metavar="COMMAND...", help="program and arguments"
    )
    completion.complete_with(command, completion.nothing)


def command_of(options: Namespace) -> list[str]:
    """The command line, without the `--` before it. None is an error."""
    argv: list[str] = options.command[1:] if options.command[:1] == ["--"] else options.command
    if not argv:
        options.parser.error("no command is given")
    return argv
