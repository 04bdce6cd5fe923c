"""The console script. It runs `serve` in the supervisor, `relay` in the relay's program, `config`,
`doctor` and `uninstall` in `execserver.cli`, and the commands of the client in `execclient.commands`.

Only the standard library is imported until then, so that the supervisor starts in milliseconds.
"""

from __future__ import annotations

import sys

DAEMON_COMMANDS = {
    "serve": "run the daemon",
    "config": "show and check the configuration",
    "doctor": "check whether commands can be sandboxed here",
    "uninstall": "remove what execserver left on this machine",
    "relay": "connect executors and clients that are behind firewalls",
}
"""The commands that are not the client's, with their lines in `execserver --help`."""


def main() -> None:
    """Run `execserver ARGUMENTS` and exit."""
    argv = sys.argv[1:]
    if argv[:1] == ["serve"] and not _asks_for_help(argv):
        from execserver.supervisor.start import run

        sys.exit(run(argv[1:]))

    from execprotocol.command_line import expanded

    argv = expanded(argv)
    if argv[:1] == ["relay"]:
        from execserver.relay.service.command import main as relay_main

        sys.exit(relay_main(argv[1:]))

    if argv and argv[0] in DAEMON_COMMANDS:
        from execserver.cli import main as cli_main

        sys.exit(cli_main(argv))

    from execclient.commands.app import main as client_main

    client_main(argv, DAEMON_COMMANDS)


def _asks_for_help(argv: list[str]) -> bool:
    options = argv[: argv.index("--")] if "--" in argv else argv
    return "--help" in options or "-h" in options


if __name__ == "__main__":
    main()
