"""The console script. It runs `serve` in the supervisor, `relay` in the relay's program, `config`,
`doctor`, `uninstall`, `drain` and `audit` in `execserver.cli`, and the client's commands in
`execclient.commands`.

Only the standard library is imported until then, so that the supervisor starts in milliseconds.
"""

from __future__ import annotations

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse

DAEMON_COMMANDS = {
    "serve": "run the daemon",
    "config": "show and check the configuration",
    "doctor": "check whether commands can be sandboxed here",
    "uninstall": "remove what execserver left on this machine",
    "drain": "let a daemon open no new sessions",
    "audit": "check what a daemon has written down",
    "relay": "connect executors and clients that are behind firewalls",
}
"""The commands that are not the client's, with their lines in `execserver --help`."""


def main() -> None:
    """Run `execserver ARGUMENTS` and exit."""
    argv = sys.argv[1:]
    if argv[:1] == ["serve"] and not _asks_for_help(argv):
        from execserver.supervisor.start import run

        sys.exit(run(argv[1:]))

    from execprotocol.command_line import expanded, is_completion, until_unread

    if is_completion(argv):
        _complete()
    sys.exit(until_unread(lambda: _run(expanded(argv))))


def _run(argv: list[str]) -> int:
    if argv[:1] == ["relay"]:
        from execserver.relay.service.command import main as relay_main

        return relay_main(argv[1:])

    if argv and argv[0] in DAEMON_COMMANDS:
        from execserver.cli import main as cli_main

        return cli_main(argv)

    from execclient.commands.app import main as client_main

    return client_main(argv, DAEMON_COMMANDS, _http_guard)


def _http_guard(options: argparse.Namespace) -> object:
    """The rules for the HTTP clients of `execserver mcp`. Raises ValueError for unusable options."""
    import os

    from execserver.transports.authentication import AuthenticationOptions
    from execserver.transports.http_guard import HttpGuard

    given = {name: getattr(options, name) for name in AuthenticationOptions.__struct_fields__}
    return HttpGuard(AuthenticationOptions(**given), os.getcwd(), options.ws_host)


def _complete() -> None:
    """Print the completions of a line with a command that is not the client's, and exit."""
    from execprotocol.command_line import command_to_complete, complete

    command = command_to_complete()
    if command == "relay":
        from execserver.relay.service.command import relay_parser

        complete(relay_parser(), of_words=2)
    if command in DAEMON_COMMANDS:
        from execserver.cli import parser_of

        complete(parser_of([command]))


def _asks_for_help(argv: list[str]) -> bool:
    options = argv[: argv.index("--")] if "--" in argv else argv
    return "--help" in options or "-h" in options


if __name__ == "__main__":
    main()
