"""The commands for processes: `run`, `attach`, `ps`, `ports`, `forward`, `logs` and `kill`."""

from __future__ import annotations

import os
from argparse import Namespace
from typing import TYPE_CHECKING

from execclient.commands import completion, values
from execclient.commands.options import (
    Command,
    add_command,
    add_daemon,
    add_json,
    add_network,
    add_process_id,
    add_sandbox,
    add_session,
    command_of,
    daemon_of,
    network_of,
    sandbox_of,
)
from execprotocol.command_line import Parser

if TYPE_CHECKING:
    from execclient.resource_limits import ResourceLimits

# -- run


def _add_run(parser: Parser) -> None:
    add_command(parser)
    add_daemon(parser)
    parser.add_argument(
        "-w", "--cwd", "--workdir", metavar="D", help="working directory (default: the daemon's)"
    )
    parser.add_argument(
        "-e",
        "--env",
        action="append",
        default=[],
        metavar="K=V",
        help="set a variable; K alone forwards yours; may be repeated",
    )
    parser.add_argument("-t", "--tty", action="store_true", help="allocate a terminal of the size of yours")
    parser.add_argument(
        "-i", "--interactive", action="store_true", help="forward stdin, which is done anyway; as in docker"
    )
    parser.add_argument(
        "-n", "--no-stdin", action="store_true", help="do not forward stdin; the command's stdin is empty"
    )
    parser.add_argument(
        "--timeout",
        type=values.duration,
        metavar="S",
        help="kill the command after this time: 90 (seconds), 15m, 8h; exit status 124",
    )
    parser.add_argument(
        "--grace",
        type=values.duration,
        metavar="S",
        help="with --timeout or --wall: send SIGTERM first, and kill what is left after this time",
    )
    _add_limits(parser)
    add_sandbox(parser, "limit the command, or do not run it; the working directory is the workspace")
    add_network(parser, "with --sandbox")
    parser.add_argument("-d", "--detach", action="store_true", help="print the ID and leave it running")
    parser.add_argument(
        "--ttl",
        type=values.duration,
        metavar="T",
        help="how long it may run without a client, with --detach or while the connection is lost: 90 "
        "(seconds), 15m, 8h, 2d (default: the daemon's --session-ttl, 80 s)",
    )
    add_json(parser)


_LIMIT_OPTIONS = ("--memory", "--pids", "--cpu", "--io-weight", "--wall")


def _add_limits(parser: Parser) -> None:
    parser.add_argument(
        "--memory",
        type=values.size,
        metavar="SIZE",
        help="kill the command with all its descendants when they use more memory: 512M, 2G, or bytes",
    )
    parser.add_argument(
        "--pids", type=values.count, metavar="N", help="let them be at most so many processes and threads"
    )
    parser.add_argument(
        "--cpu",
        type=values.percent,
        metavar="PERCENT",
        help="let them use at most so much processor time; 100 is one processor",
    )
    parser.add_argument(
        "--io-weight",
        type=values.count,
        metavar="N",
        help="their share of busy block devices, 1 to 10000 (default: 100)",
    )
    parser.add_argument(
        "--wall",
        type=values.duration,
        metavar="S",
        help="as --timeout, but enforced and reported as a limit (cause limit)",
    )


def _limits(options: Namespace) -> ResourceLimits | None:
    given = {
        "memory_bytes": options.memory,
        "pids": options.pids,
        "cpu_percent": options.cpu,
        "io_weight": options.io_weight,
        "wall": options.wall,
    }
    if all(value is None for value in given.values()):
        return None
    from execclient.resource_limits import ResourceLimits

    parser: Parser = options.parser
    for (name, value), option in zip(given.items(), _LIMIT_OPTIONS, strict=True):
        try:
            ResourceLimits(**{name: value})
        except ValueError as error:
            parser.error(f"argument {option}: {error}")
    return ResourceLimits(**given)


def _run(options: Namespace) -> int:
    argv, env = command_of(options), _variables(options)
    if options.interactive and options.no_stdin:
        options.parser.error("-i does not go with -n")
    if options.interactive and options.detach and not options.tty:
        options.parser.error(
            "-i does not go with --detach: stdin is empty; with -dt, attach can type into it"
        )
    if options.grace is not None and options.timeout is options.wall is None:
        options.parser.error("--grace needs --timeout or --wall")
    sandbox, network, limits = sandbox_of(options), network_of(options), _limits(options)
    if options.network_ask and (options.tty or options.detach):
        other = "--tty: the keyboard is" if options.tty else "--detach: no program is left to ask"
        reason = f"{other} the command's" if options.tty else other
        options.parser.error(f"--network-ask does not go with {reason}")
    # A typed line is the answer to a question then, and no input.
    answers = options.network_ask and os.isatty(0)
    from execclient.commands import run as running
    from execclient.commands.failures import perform

    daemon = daemon_of(options)
    command = running.RunOptions(
        argv=argv,
        cwd=options.cwd,
        env=env,
        tty=options.tty,
        stdin=not (options.no_stdin or options.detach or answers),
        timeout=options.timeout,
        grace=options.grace or 0.0,
        sandbox=sandbox,
        network=network,
        limits=limits,
        ttl=options.ttl,
        as_json=options.as_json,
    )
    start = running.detach if options.detach else running.run
    return perform(lambda: start(daemon, command))


RUN = Command(
    "run a command on the daemon's machine as if it were a local one",
    "Run a command as if it were a local one. Output is printed as it arrives. Stdin and signals are "
    "forwarded. The exit status is the command's. Options end where the command begins.",
    "[OPTIONS] [--] COMMAND...",
    _add_run,
    _run,
    options_anywhere=False,
)


def _variables(options: Namespace) -> dict[str, str]:
    variables = {"TERM": os.environ["TERM"]} if options.tty and "TERM" in os.environ else {}
    for each in options.env:
        name, equals, value = each.partition("=")
        if not name:
            options.parser.error(f"--env: no name in {each!r}")
        if equals:
            variables[name] = value
        elif name in os.environ:
            variables[name] = os.environ[name]
        else:
            options.parser.error(f"--env: {name} is not set here")
    return variables


# -- attach, ps


def _add_attach(parser: Parser) -> None:
    add_process_id(parser)
    add_daemon(parser)
    add_session(parser)
    keys = parser.add_argument(
        "--detach-keys",
        dest="keys",
        type=values.detach_keys,
        default=values.DEFAULT_DETACH_KEYS,
        metavar="KEYS",
        help=f"keys that detach; empty for none (default: {values.DEFAULT_DETACH_KEYS})",
    )
    completion.complete_with(keys, completion.nothing)
    parser.add_argument("--read-only", action="store_true", help="show output, forward no input")
    parser.add_argument(
        "--since-seq", type=values.count, metavar="N", help="begin with the output after N; 0 for all"
    )


def _attach(options: Namespace) -> int:
    from execclient.commands.attach import attach
    from execclient.commands.failures import perform

    return perform(
        lambda: attach(
            daemon_of(options),
            options.process_id,
            options.session,
            keys=options.keys,
            read_only=options.read_only,
            since_seq=options.since_seq,
        )
    )


ATTACH = Command(
    "connect your terminal to a running process",
    "Connect your terminal to a running process. The exit status is the process's, or 0 after the "
    "detach keys.",
    "[OPTIONS] ID",
    _add_attach,
    _attach,
)


def _add_ps(parser: Parser) -> None:
    add_daemon(parser)
    parser.add_argument("-a", "--all", action="store_true", help="include processes that ended")
    parser.add_argument("--argv", action="store_true", help="show the command lines")
    parser.add_argument(
        "--format",
        choices=("table", "wide", "json"),
        default="table",
        help="table: the columns that fit the terminal, all of them in a pipe (the default); wide: all "
        "columns; json: JSON, for scripts",
    )
    parser.add_argument(
        "--json", dest="format", action="store_const", const="json", help="short for --format json"
    )
    parser.add_argument("-q", "--quiet", action="store_true", help="print the IDs only")


def _ps(options: Namespace) -> int:
    from execclient.commands.failures import perform
    from execclient.commands.ps import PsOptions, ps

    shown = PsOptions(options.all, options.argv, options.format, options.quiet)
    return perform(lambda: ps(daemon_of(options), shown))


PS = Command(
    "list the running processes",
    "List the running processes of all sessions.",
    "[OPTIONS]",
    _add_ps,
    _ps,
)


# -- ports, forward


def _add_ports(parser: Parser) -> None:
    add_daemon(parser)
    add_json(parser)


def _ports(options: Namespace) -> int:
    from execclient.commands.failures import perform
    from execclient.commands.forward import ports

    return perform(lambda: ports(daemon_of(options), as_json=options.as_json))


PORTS = Command(
    "list the TCP ports that processes listen on",
    "List the TCP ports that the processes of all sessions and their descendants listen on.",
    "[OPTIONS]",
    _add_ports,
    _ports,
)


def _add_forward(parser: Parser) -> None:
    ports = parser.add_argument(
        "ports",
        type=values.ports,
        metavar="PORT[:LOCAL]",
        help="the port at the executor, and that of this machine (default: the same number if it is free, "
        "else any; 0: any)",
    )
    completion.complete_with(ports, completion.ports)
    process = parser.add_argument(
        "--process", metavar="ID", help="process ID, from ps, if several processes listen on the port"
    )
    completion.complete_with(process, completion.process_ids)
    add_daemon(parser)
    add_session(parser)


def _forward(options: Namespace) -> int:
    from execclient.commands.failures import perform
    from execclient.commands.forward import ForwardOptions, forward

    port, local_port = options.ports
    wanted = ForwardOptions(port, local_port, options.process, options.session)
    return perform(lambda: forward(daemon_of(options), wanted))


FORWARD = Command(
    "forward a port of this machine to one that a process listens on",
    "Forward a port of this machine, on 127.0.0.1, to a TCP port that a process of any session listens on, "
    "until Ctrl-C. Prints the URL once a process listens.",
    "[OPTIONS] PORT[:LOCAL]",
    _add_forward,
    _forward,
)


# -- logs, kill


def _add_logs(parser: Parser) -> None:
    add_process_id(parser)
    add_daemon(parser)
    add_session(parser)
    parser.add_argument("-f", "--follow", action="store_true", help="follow until the process ends")
    parser.add_argument(
        "--since-seq", type=values.count, default=0, metavar="N", help="only the output after N"
    )
    parser.add_argument(
        "--since",
        type=values.moment,
        metavar="TIME",
        help="only the output since then: 5m or 2h ago, or 2026-11-27T14:03:00",
    )
    parser.add_argument(
        "-n", "--tail", type=values.count, metavar="N", help="begin with the last N lines that are retained"
    )
    form = parser.add_mutually_exclusive_group()
    form.add_argument("-t", "--timestamps", action="store_true", help="begin each line with its time")
    form.add_argument(
        "--cast", action="store_true", help="print an asciicast of a terminal, for asciinema play"
    )
    add_json(form)


def _logs(options: Namespace) -> int:
    from execclient.commands.failures import perform
    from execclient.commands.logs import Form, LogsOptions, logs

    if options.cast and options.tail is not None:
        options.parser.error("--tail counts lines, and a cast has none: choose its beginning with --since")
    forms = {Form.JSON: options.as_json, Form.TIMESTAMPS: options.timestamps, Form.CAST: options.cast}
    form = next((form for form, is_given in forms.items() if is_given), Form.PLAIN)
    printed = LogsOptions(options.follow, options.since_seq, options.since, options.tail, form)
    return perform(lambda: logs(daemon_of(options), options.process_id, options.session, printed))


LOGS = Command(
    "print the retained output of a process",
    "Print the retained output of a process.",
    "[OPTIONS] ID",
    _add_logs,
    _logs,
)


def _add_kill(parser: Parser) -> None:
    ids = parser.add_argument("process_ids", nargs="+", metavar="ID", help="process IDs, from ps")
    completion.complete_with(ids, completion.process_ids)
    add_daemon(parser)
    add_session(parser)
    signal = parser.add_argument(
        "-s",
        "--signal",
        type=values.signal_name,
        default="TERM",
        metavar="SIG",
        help="name or number of the signal: TERM (the default), SIGKILL, 9; also as -9 or -KILL",
    )
    completion.complete_with(signal, completion.signals)
    parser.add_argument(
        "--scope",
        choices=("leader", "group", "tree"),
        default="group",
        help="the process alone, its process group (the default), or all its descendants",
    )
    add_json(parser)


def _kill(options: Namespace) -> int:
    from execclient.commands.failures import perform
    from execclient.commands.kill import kill

    return perform(
        lambda: kill(
            daemon_of(options),
            options.process_ids,
            options.session,
            name=options.signal,
            scope=options.scope,
            as_json=options.as_json,
        )
    )


KILL = Command(
    "send a signal to processes",
    "Send a signal to processes of any session.",
    "[OPTIONS] ID...",
    _add_kill,
    _kill,
    rewrite=values.kill_arguments,
)
