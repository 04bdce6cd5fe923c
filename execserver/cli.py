"""The command line.

`serve` comes here twice: without a supervisor for `--help`, and as the server that the
supervisor started, with the same arguments. Exit codes: 2 for what is no valid command line,
1 for values that cannot work together or cannot be used.
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from execserver import __version__

if TYPE_CHECKING:
    import argparse

    from execserver.configuration.loading import Effective
    from execserver.sandbox.diagnostics.mechanisms import Check

_DESCRIPTION = "Runs commands and touches files on behalf of AI agents, over JSON-RPC."
_SHOW_DESCRIPTION = """\
Print what `execserver serve` with the same flags, here and now, would go by: each setting with the
flag, variable or line of the file that it comes from. Secrets are not printed."""

_CHECK_DESCRIPTION = """\
Would `execserver serve` with the same flags, here and now, start? Loads everything that the daemon would
load, and reads what the settings name, but binds nothing. Exit status 0 if so, 1 with the reasons if not. A
daemon that is told to upgrade asks the newly installed code this before it makes room for it."""

_DOCTOR_DESCRIPTION = """\
Try what sandboxes are made of and where output is kept, as `execserver serve` with the same flags, here and
now, would use it: a line for each mechanism, with cause and fix of what is wrong. Exit status 0 if requests
that ask for a sandbox will be confined, 1 if they will be refused."""


def main(argv: list[str], elsewhere: Mapping[str, str] | None = None) -> int:
    """Run a command; returns its exit code.

    Args:
        argv: the command and its arguments.
        elsewhere: commands of the same program that do not come here, for `--help`: name and description.
    """
    if argv[:1] == ["serve"]:
        return serve(argv[1:])
    parser = _parser(argv[:1], elsewhere or {})
    options = parser.parse_args(argv)
    if options.command == "config":
        return _config_check(options) if options.action == "check" else _config_show(options)
    if options.command == "doctor":
        return _doctor(options)
    parser.print_help()
    return 2


def serve(argv: Sequence[str]) -> int:
    """Be the server; returns its exit code.

    Args:
        argv: the arguments that follow `serve`.
    """
    from execserver import server  # while the supervisor still works at its hello
    from execserver.supervisor.packets import wait_for_hello

    wait_for_hello(os.environ)
    effective = _effective(_parser(["serve"], {}).parse_args(["serve", *argv]))
    return 1 if effective is None else server.run(effective.settings, effective.file)


def _config_show(options: argparse.Namespace) -> int:
    from execserver.supervisor.launch import enter_launch_folder

    enter_launch_folder()  # as the supervisor does, whose settings these would be
    effective = _effective(options)
    if effective is None:
        return 1
    from execserver.configuration import show

    text = (show.as_json if options.json else show.as_toml)(effective, os.environ)
    # File names may hold bytes that are no UTF-8.
    sys.stdout.write(text.encode(errors="backslashreplace").decode())
    return _read_credentials(effective)


def _config_check(options: argparse.Namespace) -> int:
    from execserver.supervisor.launch import enter_launch_folder
    from execserver.upgrade import HANDOVER

    if options.handover not in (None, HANDOVER):
        # It would be the running supervisor that starts this code, on what the running server leaves.
        _complain(
            f"what runs hands over as version {options.handover}, this code takes {HANDOVER}: "
            "an upgrade is not possible, stop the service and start it again"
        )
        return 1
    enter_launch_folder()
    effective = _effective(options)
    if effective is None:
        return 1
    # What cannot be loaded is to be found out here.
    from execserver import server

    server.load_everything()
    return _read_credentials(effective) or _check_remote(effective, options)


def _read_credentials(effective: Effective) -> int:
    """Whether what the settings name can be used; an exit code, and it was said why not."""
    from execserver.transports.authentication import ConfigurationError, authenticator_from

    try:
        authenticator_from(effective.settings.authentication, base=os.getcwd())
    except ConfigurationError as error:
        _complain(str(error))
        return 1
    return 0


def _check_remote(effective: Effective, command: argparse.Namespace) -> int:
    """The same for what `--remote` and its options name."""
    from pathlib import Path

    from execserver.relay.executor.options import missing_packages, options_of_service
    from execserver.supervisor.remote import base_and_environment
    from execserver.transports.authentication import ConfigurationError

    options = effective.settings.remote_options
    served = base_and_environment(command.handed_remote) if command.handed_remote else None
    try:
        if served is not None or options.remote is None or command.handover is not None:
            of_service = options_of_service(options, served)
            if of_service is None:
                return 0
            options = of_service
        from execserver.relay.executor import executor  # noqa: F401  as above
        from execserver.relay.executor.identity import check_identity

        check_identity(options, Path.cwd(), os.environ)
    except ImportError as error:
        _complain(missing_packages(error))
        return 1
    except ConfigurationError as error:
        _complain(str(error))
        return 1
    return 0


def _doctor(options: argparse.Namespace) -> int:
    from execserver.supervisor.launch import enter_launch_folder

    enter_launch_folder()
    effective = _effective(options)
    if effective is None:
        return 1
    from execserver.sandbox.diagnostics.doctor import Report, examine
    from execserver.spool_check import spool_folder_check

    settings = effective.settings
    report = examine(
        settings.sandboxes, os.environ, lambda folder: spool_folder_check(folder, settings.spool_max_bytes)
    )
    report = Report((*report.checks, *_places(effective)))
    text = report.as_json() if options.json else report.as_text()
    sys.stdout.write(text.encode(errors="backslashreplace").decode())
    return 0 if report.ok else 1


def _places(effective: Effective) -> tuple[Check, Check]:
    """Where the settings and the sockets are, and why there."""
    from execserver.sandbox.diagnostics.mechanisms import Check
    from execserver.supervisor.config_file import usual_places
    from execserver.supervisor.listeners import ListenError, default_listener

    places = ", ".join(usual_places(os.environ))
    file = Check("settings file", "ok", effective.file or f"none; looked for, unless one is named: {places}")
    settings = effective.settings
    if settings.listen or settings.remote:
        urls = ", ".join(settings.listen) or "none"
        return file, Check("sockets", "ok", f"{urls}, from {effective.origin('listen')}")
    try:
        url = default_listener(os.environ).url
    except ListenError as error:
        cause, _, fix = str(error).partition("; ")
        return file, Check("sockets", "warning", "a daemon would not start without --listen", cause, fix)
    reason = (
        "from XDG_RUNTIME_DIR"
        if os.environ.get("XDG_RUNTIME_DIR", "").startswith("/")
        else ("in the default state folder: XDG_RUNTIME_DIR is no absolute path, or not set")
    )
    return file, Check("sockets", "ok", f"{url}, {reason}")


def _effective(options: argparse.Namespace) -> Effective | None:
    """The settings; None when they cannot be used, and it was said why."""
    from execserver.configuration.flags import given
    from execserver.configuration.loading import load
    from execserver.configuration.model import SettingsError

    try:
        effective = load(given(options), os.environ, options.config)
    except SettingsError as error:
        for problem in error.problems:
            _complain(problem)
        return None
    for warning in effective.warnings:
        _complain(f"warning: {warning}")
    return effective


def _complain(text: str) -> None:
    print(f"execserver: {text}", file=sys.stderr)  # noqa: T201


# -- the parser


def _parser(command: list[str], elsewhere: Mapping[str, str]) -> argparse.ArgumentParser:
    """The parser, with the flags of that command only: they come from the settings, whose import is felt."""
    import argparse

    parser = argparse.ArgumentParser(prog="execserver", description=_DESCRIPTION, allow_abbrev=False)
    parser.add_argument("--version", action="version", version=f"execserver {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")
    serve = commands.add_parser(
        "serve",
        help="run the daemon",
        allow_abbrev=False,
        description="Run the daemon until SIGTERM, or, with stdio, until the end of its input.",
    )
    config = commands.add_parser("config", help="show and check the configuration", allow_abbrev=False)
    actions = config.add_subparsers(dest="action", metavar="ACTION", required=True)
    show = actions.add_parser(
        "show", help="what holds, and where it comes from", allow_abbrev=False, description=_SHOW_DESCRIPTION
    )
    show.add_argument("--json", action="store_true", help="as JSON")
    check = actions.add_parser(
        "check", help="would the daemon start?", allow_abbrev=False, description=_CHECK_DESCRIPTION
    )
    check.add_argument("--handover", help=argparse.SUPPRESS)
    check.add_argument("--handed-remote", help=argparse.SUPPRESS)
    doctor = commands.add_parser(
        "doctor",
        help="check whether commands can be sandboxed here",
        allow_abbrev=False,
        description=_DOCTOR_DESCRIPTION,
    )
    doctor.add_argument("--json", action="store_true", help="as JSON")
    for name, text in elsewhere.items():
        commands.add_parser(name, help=text)
    if command == ["serve"]:
        _add_flags(serve)
    elif command == ["config"]:
        _add_flags(show)
        _add_flags(check)
    elif command == ["doctor"]:
        _add_flags(doctor)
    return parser


def _add_flags(parser: argparse.ArgumentParser) -> None:
    from execserver.configuration.flags import EPILOG, add_flags

    parser.epilog = EPILOG
    add_flags(parser)


if __name__ == "__main__":
    gc.disable()  # as `supervisor/start.py`, whose older versions start the server so
    sys.exit(main(sys.argv[1:]))
