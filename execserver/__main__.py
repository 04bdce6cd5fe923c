"""The console script: `serve` is the supervisor's, `relay` a program of its own, some commands are the
client's, the rest is the command-line module's.

Standard library only, until the command-line module is needed: a supervisor starts in milliseconds.
"""

from __future__ import annotations

import os
import sys

CLIENT_COMMANDS = {
    "run": "run a command at a daemon, as if it were a local one",
    "attach": "sit down at a process that runs",
    "ps": "list the processes that run",
    "logs": "print the output that is kept of a process",
    "kill": "send a signal to processes",
    "cp": "copy files to the daemon's machine, or back",
    "patch": "apply a patch to files of the daemon's machine",
    "policy": "see what the rules say of a command",
    "completion": "print the script that completes commands in a shell",
}
"""`execclient.commands` has them; this is what `execserver --help` says of them."""

RELAY_COMMAND = {"relay": "let executors and clients meet that are behind firewalls"}
"""`execserver.relay.service.command` has it; it reads none of the daemon's settings."""

COMPLETION_VARIABLE = "_EXECSERVER_COMPLETE"
"""Set by a shell that wants to know what could come next."""


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
