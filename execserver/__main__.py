"""The console script: `serve` is the supervisor's, everything else is the command-line module's.

Standard library only, until the command-line module is needed: a supervisor starts in milliseconds.
"""

from __future__ import annotations

import sys


def main() -> None:
    """Run `execserver ARGUMENTS` and exit."""
    argv = sys.argv[1:]
    if argv[:1] == ["serve"] and not _asks_for_help(argv):
        from execserver.supervisor.program import run

        sys.exit(run(argv[1:]))

    from execserver.cli import main as cli_main

    sys.exit(cli_main(argv))


def _asks_for_help(argv: list[str]) -> bool:
    options = argv[: argv.index("--")] if "--" in argv else argv
    return "--help" in options or "-h" in options


if __name__ == "__main__":
    main()
