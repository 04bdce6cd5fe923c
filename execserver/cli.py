"""The command line of the daemon: `serve`, `config`, `doctor`, `uninstall`, `drain` and `audit`.

`serve` gets here for `--help`, without a supervisor, and as the server that the supervisor has started with
the same arguments. Exit codes: 2 for an invalid command line, 1 for values that cannot be used, alone or
together.
"""

from __future__ import annotations

import gc
import math
import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from execserver import __version__

if TYPE_CHECKING:
    import argparse

    from execprotocol.command_line import Parser
    from execserver.configuration.effective import Effective
    from execserver.sandbox.diagnostics.mechanisms import Check
    from execserver.sandbox.sandboxes import Sandboxes

_DESCRIPTION = "Runs commands and edits files on behalf of AI agents, over JSON-RPC."
_SHOW_DESCRIPTION = """\
Print the settings that `execserver serve` would use with the same flags in the same environment, each
with the flag, variable or line of the file that it comes from. Secrets are not printed."""

_CHECK_DESCRIPTION = """\
Check whether `execserver serve` would start with the same flags in the same environment. Loads everything
that the daemon would load and reads the files that the settings name, but binds nothing. Exit status 0 if
it would start, 1 with the reasons if not. Before an upgrade, a daemon runs this check with the newly
installed code."""

_DOCTOR_DESCRIPTION = """\
Try the mechanisms of sandboxes and of output on disk as `execserver serve` would use them with the same
flags in the same environment. Prints a line for each, with cause and fix of a fault. Exit status 0 if
requests that ask for a sandbox will be confined, 1 if they will be refused."""


_UNINSTALL_DESCRIPTION = """\
Remove what daemons and commands of this user left on this machine: state and output, sockets, units of the
user, mount points in workspaces. Run it with the flags and variables that the daemons had. Refuses while a
daemon runs. Settings and rules stay unless --settings is given; the last line names the command that removes
the program itself. Exit status 0 if all of it is gone, 1 with the reasons if not."""


_DRAIN_DESCRIPTION = """\
Let the daemon of this user open no new sessions. Existing ones go on, and may be resumed; the relay of a pool
sends the daemon no new clients. The daemon does not end: stop it afterwards, or cancel the drain. Run it with
the variables that the daemon had. Exit status 0 if it drains, 1 if sessions are left after --wait, 69 if no
daemon runs."""


_AUDIT_DESCRIPTION = """\
Check the audit folder of a daemon (setting audit_dir), or one file of it: each line must be as it was
written, and follow the one before. Prints the numbers of the acts and the hash of the last one. Exit status 0
if all is well, 1 with the first line at fault if not."""


def main(argv: list[str]) -> int:
    """Run a command; return its exit code.

    Args:
        argv: the command and its arguments.
    """
    if argv[:1] == ["serve"]:
        return serve(argv[1:])
    parser = parser_of(argv[:1])
    options = parser.parse(argv)
    if options.command == "config":
        return _config_check(options) if options.action == "check" else _config_show(options)
    if options.command == "doctor":
        return _doctor(options)
    if options.command == "uninstall":
        return _uninstall(options)
    if options.command == "drain":
        from execserver.drain_command import run

        return run(options.url, os.environ, wait=options.wait, cancel=options.cancel)
    if options.command == "audit":
        return _audit_verify(options.path)
    parser.print_help()
    return 2


def serve(argv: Sequence[str]) -> int:
    """Run the server; return its exit code.

    Args:
        argv: the arguments after `serve`.
    """
    from execserver import server  # while the supervisor prepares its hello
    from execserver.supervisor.packets import wait_for_hello

    serves = wait_for_hello(os.environ)
    effective = _effective(parser_of(["serve"]).parse(["serve", *argv]))
    if effective is None:
        return 1
    if serves:
        return server.run(effective.settings, effective.file)
    code = _read_credentials(effective)
    server.kill_what_is_left()
    return code


def _audit_verify(path: str) -> int:
    from execserver.audit.chain import AuditFault, verify

    try:
        verified = verify(path)
    except AuditFault as fault:
        _complain(str(fault))
        return 1
    except OSError as error:
        _complain(f"{path}: {error.strerror}")
        return 1
    last = verified.last
    print(f"acts {verified.first} to {last.n}, hash {last.hash}" if verified.first else "no acts")  # noqa: T201
    return 0


def _config_show(options: argparse.Namespace) -> int:
    from execserver.supervisor.launch import enter_launch_folder

    enter_launch_folder()  # as the supervisor does
    effective = _effective(options)
    if effective is None:
        return 1
    from execserver.configuration.effective import as_json, as_toml

    text = (as_json if options.json else as_toml)(effective, os.environ)
    # File names may hold bytes that are not UTF-8.
    sys.stdout.write(text.encode(errors="backslashreplace").decode())
    return _read_credentials(effective)


def _config_check(options: argparse.Namespace) -> int:
    from execserver.supervisor.launch import enter_launch_folder
    from execserver.upgrade import HANDOVER, TAKEN_OVER

    if options.handover not in (None, *TAKEN_OVER):
        # The running supervisor would start this code, with the state of the running server.
        _complain(
            f"the running service hands over as version {options.handover}, this code takes {HANDOVER}: "
            "an upgrade is not possible, stop the service and start it again"
        )
        return 1
    enter_launch_folder()
    effective = _effective(options)
    if effective is None:
        return 1
    # Finds modules that cannot be loaded.
    from execserver import server  # noqa: F401
    from execserver.late_modules import load_everything

    load_everything()
    return (
        _read_credentials(effective)
        or _check_remote(effective, options)
        or _check_confinement(effective)
        or _check_audit(effective)
    )


def _read_credentials(effective: Effective) -> int:
    """Check the credential files that the settings name; return an exit code after printing the reason."""
    from execserver.transports.authentication import ConfigurationError, authenticator_from

    try:
        authenticator_from(effective.settings.authentication, base=os.getcwd())
    except ConfigurationError as error:
        _complain(str(error))
        return 1
    return 0


def _check_remote(effective: Effective, command: argparse.Namespace) -> int:
    """Check the files that `--remote` and its options name."""
    from pathlib import Path

    from execserver.relay.executor.options import missing_packages, options_of_service
    from execserver.supervisor.remote import place_in
    from execserver.transports.authentication import ConfigurationError

    options = effective.settings.remote_options
    served = place_in(command.handed_remote) if command.handed_remote else None
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


def _uninstall(options: argparse.Namespace) -> int:
    effective = _effective(options)
    if effective is None:
        return 1
    from execserver import uninstall

    return uninstall.run(
        effective.settings, os.environ, dry_run=options.dry_run, with_settings=options.settings
    )


def _check_confinement(effective: Effective) -> int:
    """Check that there are sandboxes, if the settings require them."""
    from execserver.preflight import check_confinement
    from execserver.transports.authentication import ConfigurationError

    try:
        check_confinement(effective.settings, _sandboxes(effective))
    except ConfigurationError as error:
        _complain(str(error))
        return 1
    return 0


def _check_audit(effective: Effective) -> int:
    """Check the audit folder, if it is there. Whether there is space is no question of the settings."""
    from execserver.audit.trail import check_folder
    from execserver.preflight import audit_folder

    path = audit_folder(effective.settings, os.getcwd())
    if path is None or (problem := check_folder(path)) is None:
        return 0
    _complain(f"audit_dir: acts cannot be written down in {path}: {problem}")
    return 1


def _sandboxes(effective: Effective) -> Sandboxes:
    from execserver.sandbox.options import DaemonPaths
    from execserver.sandbox.sandboxes import Sandboxes

    return Sandboxes(effective.settings.sandboxes, DaemonPaths(), os.environ)


def _doctor(options: argparse.Namespace) -> int:
    from execserver.supervisor.launch import enter_launch_folder

    enter_launch_folder()
    effective = _effective(options)
    if effective is None:
        return 1
    from execserver.sandbox.diagnostics.doctor import Report, examine

    settings = effective.settings
    report = examine(settings.sandboxes, os.environ, settings.spool_max_bytes)
    further = (_limits(effective), _requirement(effective), *_audit(effective), *_paths(effective))
    report = Report((*report.checks, *further))
    text = report.as_json() if options.json else report.as_text()
    sys.stdout.write(text.encode(errors="backslashreplace").decode())
    return 0 if report.ok else 1


def _limits(effective: Effective) -> Check:
    """Which limits of commands a daemon could enforce that is started here."""
    from execserver.limits.hierarchies import find_hierarchies, obstacle
    from execserver.limits.leaf import CONTROLLERS, GROUPS_HELP, weights_count
    from execserver.sandbox.diagnostics.mechanisms import Check

    found = {each: obstacle(each) for each in find_hierarchies()}
    usable = {name: each.version for each, reason in found.items() if not reason for name in each.controllers}
    served = {
        member: next((usable[name] for name in names if name in usable), None)
        for member, names in CONTROLLERS.items()
    }
    if not weights_count():
        served["ioWeight"] = None
    detail = ", ".join(f"{member} (v{version})" for member, version in served.items() if version)
    detail = f"can be limited: {detail or 'nothing but wallMs'}"
    wanted = effective.settings.command_limits
    unserved = [member for member in served if served[member] is None]
    needed = {} if wanted is None else {**wanted.default, **wanted.most}
    cause = (
        "; ".join(reason for reason in found.values() if reason) or f"no controller for {', '.join(unserved)}"
    )
    if any(member in needed for member in unserved):
        return Check("control groups", "warning", f"all commands are refused; {detail}", cause, GROUPS_HELP)
    if any(member != "ioWeight" for member in unserved):
        return Check("control groups", "warning", detail, cause, GROUPS_HELP)
    return Check("control groups", "ok", detail)


def _requirement(effective: Effective) -> Check:
    """Whether sandboxes are required, and then whether a daemon would start."""
    from execserver.sandbox.diagnostics.mechanisms import Check

    name = "require_sandbox"
    if not effective.settings.require_sandbox:
        return Check(name, "ok", "off: requests that ask for no sandbox are served without one")
    reason = _sandboxes(effective).obstacle()
    if reason is None:
        return Check(name, "ok", "on: commands and changes of files without a sandbox are refused")
    return Check(name, "missing", "on: a daemon would not start", reason, "see sandbox")


def _audit(effective: Effective) -> tuple[Check, ...]:
    """Whether acts can be written down, if they are."""
    from execserver.preflight import audit_folder
    from execserver.sandbox.diagnostics.mechanisms import Check

    path = audit_folder(effective.settings, os.getcwd())
    if path is None:
        return ()
    from execserver.audit.trail import check_folder, check_space

    problem = check_folder(path) or check_space(path)
    if problem is None:
        return (Check("audit folder", "ok", path),)
    effect = "refused" if effective.settings.audit_failure == "stop" else "done all the same"
    detail, cause = f"acts cannot be written down, and are {effect}", f"{path}: {problem}"
    return (Check("audit folder", "warning", detail, cause, "mend that, or name another with --audit-dir"),)


def _paths(effective: Effective) -> tuple[Check, Check]:
    """The paths of the settings file and the sockets, and the reasons for them."""
    from execserver.sandbox.diagnostics.mechanisms import Check
    from execserver.supervisor.config_file import usual_places
    from execserver.supervisor.listener import ListenError
    from execserver.supervisor.listeners import default_listener

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
    """The settings; None if they cannot be used, after printing the reasons."""
    from execserver.configuration.effective import load
    from execserver.configuration.model import SettingsError
    from execserver.configuration.options import given_settings

    try:
        effective = load(given_settings(options), os.environ, options.config)
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


def parser_of(command: list[str]) -> Parser:
    """The parser, with the flags of this command only: they need the settings, which take time to import."""
    import argparse

    from execprotocol.command_line import Parser

    parser = Parser(prog="execserver", description=_DESCRIPTION)
    parser.add_argument("-V", "--version", action="version", version=f"execserver {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")
    serve = commands.add_parser(
        "serve",
        help="run the daemon",
        description="Run the daemon until SIGTERM, or, with stdio, until the end of its input.",
    )
    config = commands.add_parser("config", help="show and check the configuration")
    actions = config.add_subparsers(dest="action", metavar="ACTION", required=True)
    show = actions.add_parser(
        "show", help="print the settings and their origins", description=_SHOW_DESCRIPTION
    )
    show.add_argument("--json", action="store_true", help="as JSON")
    check = actions.add_parser(
        "check", help="check whether the daemon would start", description=_CHECK_DESCRIPTION
    )
    check.add_argument("--handover", help=argparse.SUPPRESS)
    check.add_argument("--handed-remote", help=argparse.SUPPRESS)
    doctor = commands.add_parser(
        "doctor", help="check whether commands can be sandboxed here", description=_DOCTOR_DESCRIPTION
    )
    doctor.add_argument("--json", action="store_true", help="as JSON")
    uninstall = commands.add_parser(
        "uninstall",
        help="remove what execserver left on this machine",
        description=_UNINSTALL_DESCRIPTION,
    )
    either = uninstall.add_mutually_exclusive_group(required=True)
    either.add_argument("--dry-run", action="store_true", help="list it, and remove nothing")
    either.add_argument("--yes", action="store_true", help="remove it")
    uninstall.add_argument("--settings", action="store_true", help="settings, rules and drop-ins, too")
    _add_drain(
        commands.add_parser("drain", help="let a daemon open no new sessions", description=_DRAIN_DESCRIPTION)
    )
    audit = commands.add_parser("audit", help="check what a daemon has written down")
    verify = audit.add_subparsers(dest="action", metavar="ACTION", required=True).add_parser(
        "verify", help="check that no line was changed or removed", description=_AUDIT_DESCRIPTION
    )
    verify.add_argument("path", metavar="PATH", help="the folder, or one file of it")
    if command == ["serve"]:
        _add_flags(serve)
    elif command == ["config"]:
        _add_flags(show)
        _add_flags(check)
    elif command == ["doctor"]:
        _add_flags(doctor)
    elif command == ["uninstall"]:
        _add_flags(uninstall)
    return parser


def _add_drain(drain: argparse.ArgumentParser) -> None:
    either = drain.add_mutually_exclusive_group()
    either.add_argument(
        "--wait",
        nargs="?",
        type=_wait_seconds,
        const=math.inf,
        metavar="SECONDS",
        help="return when no session is left; after SECONDS with exit status 1",
    )
    either.add_argument("--cancel", action="store_true", help="let it open new sessions again")
    drain.add_argument("--url", help="of the daemon, as it printed it; needed if several run")


def _wait_seconds(text: str) -> float:
    import argparse

    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0 <= seconds < math.inf:
        raise argparse.ArgumentTypeError(f"must be a number of seconds, at least 0, not {text!r}")
    return seconds


def _add_flags(parser: argparse.ArgumentParser) -> None:
    from execserver.configuration.options import EPILOG, add_flags

    parser.epilog = EPILOG
    add_flags(parser)


if __name__ == "__main__":
    gc.disable()  # as `supervisor/start.py`; its older versions start the server through this line
    sys.exit(main(sys.argv[1:]))
