"""The commands, their options and their help."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Literal, NoReturn

import typer

from execclient.commands import completion
from execclient.commands.daemon import Daemon
from execclient.commands.failures import perform
from execclient.commands.foreground import DEFAULT_DETACH_KEYS, parse_detach_keys
from execclient.commands.streams import open_missing

app = typer.Typer(
    name="execserver",
    add_completion=False,  # `completion` prints the scripts; nobody's start files are edited
    pretty_exceptions_enable=False,
    no_args_is_help=True,
    help="Run commands and copy files at an execserver daemon.",
)

Url = Annotated[
    str | None,
    typer.Option(
        "--url",
        metavar="URL",
        help="The daemon: unix:///PATH, ws://HOST:PORT, wss://HOST, relay+https://HOST?environment=ID "
        "or stdio:. Default: EXECSERVER_URL, else the socket on which a daemon listens when it is told "
        "nothing.",
    ),
]
TokenFile = Annotated[
    Path | None,
    typer.Option(
        "--token-file",
        metavar="FILE",
        help="Bearer token for a WebSocket or a relay. Default: EXECSERVER_TOKEN or EXECSERVER_TOKEN_FILE.",
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="For scripts: JSON on stdout.")]
ProcessId = Annotated[
    str, typer.Argument(metavar="ID", help="As ps shows it.", autocompletion=completion.process_ids)
]
Session = Annotated[
    str | None,
    typer.Option("--session", metavar="S", help="The session of the process, if ID is in several."),
]


def main(argv: list[str]) -> NoReturn:
    """Run `execserver ARGUMENTS`, and exit."""
    open_missing()
    if completion.VARIABLE in os.environ:
        completion.prepare()
        _name_daemon_commands()
    app(args=argv, prog_name="execserver", complete_var=completion.VARIABLE)
    raise AssertionError("typer exits")


@app.command(context_settings={"allow_interspersed_args": False})
def run(
    command: Annotated[list[str], typer.Argument(metavar="[--] COMMAND...", help="Program and arguments.")],
    url: Url = None,
    token_file: TokenFile = None,
    cwd: Annotated[str | None, typer.Option(metavar="D", help="Where. Default: the daemon's folder.")] = None,
    env: Annotated[
        list[str] | None,
        typer.Option(metavar="K=V", help="Set a variable; K alone hands on ours. May be repeated."),
    ] = None,
    tty: Annotated[bool, typer.Option("--tty", "-t", help="Give it a terminal of the size of ours.")] = False,
    no_stdin: Annotated[
        bool, typer.Option("--no-stdin", "-n", help="Leave our standard input alone; its own is empty.")
    ] = False,
    timeout: Annotated[
        float | None, typer.Option(metavar="S", min=0.001, help="Kill it after S seconds; exit status 124.")
    ] = None,
    detach: Annotated[bool, typer.Option("--detach", help="Print its ID, and leave it running.")] = False,
    as_json: AsJson = False,
) -> None:
    """Run a command, as if it were a local one.

    Output is ours as it comes, standard input and signals are handed on, the exit status is the command's.
    """
    from execclient.commands import run as running

    what = running.Command(
        argv=command,
        cwd=cwd,
        env=_variables(env or [], tty=tty),
        tty=tty,
        stdin=not no_stdin and not detach,
        timeout=timeout,
        as_json=as_json,
    )
    start = running.detach if detach else running.run
    raise typer.Exit(perform(lambda: start(Daemon(url, token_file), what)))


@app.command()
def attach(
    process_id: ProcessId,
    url: Url = None,
    token_file: TokenFile = None,
    session: Session = None,
    keys: Annotated[
        str, typer.Option("--detach-keys", metavar="KEYS", help="Leave without ending it; empty for none.")
    ] = DEFAULT_DETACH_KEYS,
    read_only: Annotated[bool, typer.Option("--read-only", help="Watch, and type nothing.")] = False,
    since_seq: Annotated[
        int | None, typer.Option(metavar="N", min=0, help="Begin with the output after N; 0 for all.")
    ] = None,
) -> None:
    """Sit down at a process that runs, at its terminal if it has one.

    The exit status is the process's, or 0 when the detach keys were typed.
    """
    from execclient.commands.attach import attach as attaching

    try:
        parsed = parse_detach_keys(keys)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--detach-keys") from error
    raise typer.Exit(
        perform(
            lambda: attaching(
                Daemon(url, token_file),
                process_id,
                session,
                keys=parsed,
                read_only=read_only,
                since_seq=since_seq,
            )
        )
    )


@app.command()
def ps(
    url: Url = None,
    token_file: TokenFile = None,
    ended: Annotated[bool, typer.Option("--all", "-a", help="Also those that have ended.")] = False,
    argv: Annotated[bool, typer.Option("--argv", help="Show the command lines.")] = False,
    as_json: AsJson = False,
) -> None:
    """List the processes that run, of all sessions."""
    from execclient.commands.ps import ps as listing

    raise typer.Exit(
        perform(lambda: listing(Daemon(url, token_file), ended=ended, argv=argv, as_json=as_json))
    )


@app.command()
def logs(
    process_id: ProcessId,
    url: Url = None,
    token_file: TokenFile = None,
    session: Session = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on until it ends.")] = False,
    since_seq: Annotated[int, typer.Option(metavar="N", min=0, help="Only the output after N.")] = 0,
    as_json: AsJson = False,
) -> None:
    """Print the output that is kept of a process."""
    from execclient.commands.logs import logs as printing

    raise typer.Exit(
        perform(
            lambda: printing(
                Daemon(url, token_file),
                process_id,
                session,
                follow=follow,
                since_seq=since_seq,
                as_json=as_json,
            )
        )
    )


@app.command()
def kill(
    process_ids: Annotated[
        list[str],
        typer.Argument(metavar="ID...", help="As ps shows them.", autocompletion=completion.process_ids),
    ],
    url: Url = None,
    token_file: TokenFile = None,
    session: Session = None,
    number: Annotated[
        str,
        typer.Option(
            "--signal",
            "-s",
            metavar="SIG",
            help="Its name or number: TERM, SIGKILL, 9.",
            autocompletion=completion.signals,
        ),
    ] = "TERM",
    scope: Annotated[
        Literal["leader", "group", "tree"],
        typer.Option(help="The process alone, its process group, or all that came of it."),
    ] = "group",
    as_json: AsJson = False,
) -> None:
    """Send a signal to processes of any session."""
    from execclient.commands.kill import kill as signalling
    from execclient.commands.kill import signal_name

    try:
        name = signal_name(number)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--signal") from error
    raise typer.Exit(
        perform(
            lambda: signalling(
                Daemon(url, token_file), process_ids, session, name=name, scope=scope, as_json=as_json
            )
        )
    )


@app.command()
def cp(
    source: Annotated[str, typer.Argument(metavar="SRC")],
    destination: Annotated[str, typer.Argument(metavar="DST")],
    url: Url = None,
    token_file: TokenFile = None,
    recursive: Annotated[bool, typer.Option("--recursive", "-r", help="Directories too.")] = False,
    preserve: Annotated[
        bool, typer.Option("--preserve", "-p", help="Keep times, and modes also of files that are there.")
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress bar.")] = False,
    as_json: AsJson = False,
) -> None:
    """Copy a file or a directory to the daemon's machine, or back.

    Paths at the daemon begin with ':'. '-' is standard input or output. New files have the modes of their
    sources.
    """
    from execclient.commands import cp as copying

    wish = copying.Wish(recursive=recursive, preserve=preserve, quiet=quiet or as_json)
    raise typer.Exit(
        perform(lambda: copying.cp(Daemon(url, token_file), source, destination, wish, as_json=as_json))
    )


@app.command()
def patch(
    file: Annotated[
        Path | None, typer.Argument(metavar="FILE", help="The patch. Default: '-', standard input.")
    ] = None,
    url: Url = None,
    token_file: TokenFile = None,
    cwd: Annotated[
        str | None,
        typer.Option(metavar="D", help="Where its relative paths begin. Default: the daemon's folder."),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the diff, and change nothing.")] = False,
    diff: Annotated[bool, typer.Option("--diff", help="Print the diff, and apply the patch.")] = False,
    color: Annotated[
        Literal["auto", "always", "never"],
        typer.Option(help="Color the diff. By default on a terminal, unless NO_COLOR is set."),
    ] = "auto",
    as_json: AsJson = False,
) -> None:
    """Apply a patch, as models write it, to files of the daemon's machine.

    The exit status is 0 if it was, now or before, 1 if it does not fit, 2 if it is no patch.
    """
    from execclient.commands import patch as patching

    wish = patching.Wish(cwd=cwd, dry_run=dry_run, diff=diff, color=color, as_json=as_json)
    raise typer.Exit(perform(lambda: patching.patch(Daemon(url, token_file), file, wish)))


policy = typer.Typer(no_args_is_help=True, help="See what the rules say of a command.")
app.add_typer(policy, name="policy")


@policy.command(context_settings={"allow_interspersed_args": False})
def check(
    command: Annotated[list[str], typer.Argument(metavar="[--] COMMAND...", help="Program and arguments.")],
    rules: Annotated[
        list[Path] | None,
        typer.Option(metavar="FILE", help="Go by this rule file, not by those of a home. May be repeated."),
    ] = None,
    home: Annotated[
        Path | None,
        typer.Option(
            metavar="D",
            help="Go by D/rules/*.rules. Default: EXECSERVER_POLICY_HOME, else ~/.config/execserver.",
        ),
    ] = None,
    cwd: Annotated[
        Path | None, typer.Option(metavar="D", help="Where it would run. Default: the folder that we are in.")
    ] = None,
    resolve: Annotated[
        bool,
        typer.Option(
            "--resolve-host-executables/--no-resolve-host-executables",
            help="Whether matchedRules has rules on the name of a program that is named by its path.",
        ),
    ] = True,
    approval: Annotated[
        str, typer.Option(metavar="POLICY", help="When to ask: a name, or a granular policy as JSON.")
    ] = "on-request",
    parity: Annotated[
        bool, typer.Option("--parity", help="See no more of a script than codex does.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Say whether a command may run, and why. It is not run.

    The exit status is 0 if it may, 10 if somebody would be asked, 20 if it is forbidden.
    """
    from execclient.commands import policy as checking

    try:
        asked = checking.Question(
            argv=command,
            files=checking.rule_files(rules, home),
            cwd=cwd or Path(),
            approval=checking.approval_named(approval),
            resolve=resolve,
            parity=parity,
        )
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error
    raise typer.Exit(perform(lambda: checking.check(asked, as_json=as_json)))


@app.command(name="completion")
def print_completion(
    shell: Annotated[Literal["bash", "zsh", "fish"], typer.Argument(metavar="bash|zsh|fish")],
) -> None:
    """Print the script that completes our commands in a shell.

    bash: source <(execserver completion bash)
    zsh: the same, after compinit
    fish: execserver completion fish | source
    """
    completion.prepare()
    os.environ[completion.VARIABLE] = f"source_{shell}"
    app(args=[], prog_name="execserver", complete_var=completion.VARIABLE)


def _name_daemon_commands() -> None:
    """So that they are completed like ours; nothing is run then."""
    for name, text in completion.DAEMON_COMMANDS.items():
        app.command(name, help=text)(lambda: None)


def _variables(given: list[str], *, tty: bool) -> dict[str, str]:
    variables = {"TERM": os.environ["TERM"]} if tty and "TERM" in os.environ else {}
    for each in given:
        name, equals, value = each.partition("=")
        if not name:
            raise typer.BadParameter(f"no name in {each!r}", param_hint="--env")
        if equals:
            variables[name] = value
        elif name in os.environ:
            variables[name] = os.environ[name]
        else:
            raise typer.BadParameter(f"we have no variable {name}", param_hint="--env")
    return variables
