"""The console script. It runs `serve` in the supervisor, `relay` in the relay's program, the commands of the
client in `execclient.commands`, and the rest in `execserver.cli`.

`serve` runs the supervisor, `relay` is a program of its own, some commands are the client's, and `cli.py` has
the rest. Only the standard library is imported until then, so that the supervisor starts in milliseconds.
"""

from __future__ import annotations

import os
import sys

CLIENT_COMMANDS = {
    "run": "run a command on the daemon's machine as if it were a local one",
    "attach": "connect your terminal to a running process",
    "ps": "list the running processes",
    "logs": "print the retained output of a process",
    "kill": "send a signal to processes",
    "cp": "copy files to the daemon's machine, or back",
    "patch": "apply a patch to files on the daemon's machine",
    "policy": "check a command against the policy rules",
    "completion": "print the script that completes commands in a shell",
}
"""The commands of `execclient.commands`, with their descriptions in `execserver --help`."""

RELAY_COMMAND = {"relay": "connect executors and clients that are behind firewalls"}
"""The command of `execserver.relay.service.command`, which reads none of the daemon's settings."""

COMPLETION_VARIABLE = "_EXECSERVER_COMPLETE"
"""Set by a shell that asks for completions."""


def main() -> None:
    """Run `execserver ARGUMENTS` and exit."""
    argv = sys.argv[1:]
    if argv[:1] == ["serve"] and not _asks_for_help(argv):
        from execserver.supervisor.start import run

        sys.exit(run(argv[1:]))

    if argv[:1] == ["relay"]:
        from execserver.relay.service.command import main as relay_main

        sys.exit(relay_main(argv[1:]))

    if (argv and argv[0] in CLIENT_COMMANDS) or (not argv and COMPLETION_VARIABLE in os.environ):
        from execclient.commands import main as client_main

        client_main(argv)

    from execserver.cli import main as cli_main

    sys.exit(cli_main(argv, RELAY_COMMAND | CLIENT_COMMANDS))


def _asks_for_help(argv: list[str]) -> bool:
    options = argv[: argv.index("--")] if "--" in argv else argv
    return "--help" in options or "-h" in options


if __name__ == "__main__":
    main()
