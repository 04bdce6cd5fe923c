"""The commands with their options and `--help` texts."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Literal, NoReturn

import typer

from execclient.commands import completion
from execclient.commands.daemon import DaemonOptions
from execclient.commands.failures import perform
from execclient.commands.foreground import DEFAULT_DETACH_KEYS, parse_detach_keys
from execclient.commands.streams import open_missing

app = typer.Typer(
    name="execserver",
    add_completion=False,  # `completion` prints the scripts; no shell start files are edited
    pretty_exceptions_enable=False,
    no_args_is_help=True,
    help="Run commands and copy files on the machine of an execserver daemon.",
)

UrlOption = Annotated[
    str | None,
    typer.Option(
        "--url",
        metavar="URL",
        help="The daemon: unix:///PATH, ws://HOST:PORT, wss://HOST, relay+https://HOST?environment=ID "
        "or stdio:. Default: EXECSERVER_URL, else the default socket of a daemon.",
    ),
]
TokenFileOption = Annotated[
    Path | None,
    typer.Option(
        "--token-file",
        metavar="FILE",
        help="File with the bearer token for a WebSocket or a relay. Default: EXECSERVER_TOKEN or "
        "EXECSERVER_TOKEN_FILE.",
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON, for scripts.")]
ProcessIdArgument = Annotated[
    str, typer.Argument(metavar="ID", help="Process ID, from ps.", autocompletion=completion.process_ids)
]
SessionOption = Annotated[
    str | None,
    typer.Option("--session", metavar="S", help="Session of the process, if ID is in several sessions."),
]


def main(argv: list[str]) -> NoReturn:
    """Run `execserver ARGUMENTS` and exit."""
    open_missing()
    if completion.VARIABLE in os.environ:
        completion.prepare()
        _name_daemon_commands()
    app(args=argv, prog_name="execserver", complete_var=completion.VARIABLE)
    raise AssertionError("typer exits")


@app.command(context_settings={"allow_interspersed_args": False})
def run(
    command: Annotated[list[str], typer.Argument(metavar="[--] COMMAND...", help="Program and arguments.")],
    url: UrlOption = None,
    token_file: TokenFileOption = None,
    cwd: Annotated[
        str | None, typer.Option(metavar="D", help="Working directory. Default: the daemon's.")
    ] = None,
    env: Annotated[
        list[str] | None,
        typer.Option(metavar="K=V", help="Set a variable; K alone forwards yours. Repeatable."),
    ] = None,
    tty: Annotated[
        bool, typer.Option("--tty", "-t", help="Allocate a terminal of the size of yours.")
    ] = False,
    no_stdin: Annotated[
        bool, typer.Option("--no-stdin", "-n", help="Do not forward stdin; the command's stdin is empty.")
    ] = False,
    timeout: Annotated[
        float | None,
        typer.Option(metavar="S", min=0.001, help="Kill the command after S seconds; exit status 124."),
    ] = None,
    detach: Annotated[bool, typer.Option("--detach", help="Print the ID and leave it running.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Run a command as if it were a local one.

    Output is printed as it arrives. Stdin and signals are forwarded. The exit status is the command's.
    """
    from execclient.commands import run as running

    options = running.RunOptions(
        argv=command,
        cwd=cwd,
        env=_variables(env or [], tty=tty),
        tty=tty,
        stdin=not no_stdin and not detach,
        timeout=timeout,
        as_json=as_json,
    )
    start = running.detach if detach else running.run
    raise typer.Exit(perform(lambda: start(DaemonOptions(url, token_file), options)))


@app.command()
def attach(
    process_id: ProcessIdArgument,
    url: UrlOption = None,
    token_file: TokenFileOption = None,
    session: SessionOption = None,
    keys: Annotated[
        str, typer.Option("--detach-keys", metavar="KEYS", help="Keys that detach; empty for none.")
    ] = DEFAULT_DETACH_KEYS,
    read_only: Annotated[bool, typer.Option("--read-only", help="Show output, forward no input.")] = False,
    since_seq: Annotated[
        int | None, typer.Option(metavar="N", min=0, help="Begin with the output after N; 0 for all.")
    ] = None,
) -> None:
    """Connect your terminal to a running process.

    The exit status is the process's, or 0 after the detach keys.
    """
    from execclient.commands.attach import attach as attaching

    try:
        parsed = parse_detach_keys(keys)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--detach-keys") from error
    raise typer.Exit(
        perform(
            lambda: attaching(
                DaemonOptions(url, token_file),
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
    url: UrlOption = None,
    token_file: TokenFileOption = None,
    ended: Annotated[bool, typer.Option("--all", "-a", help="Include processes that ended.")] = False,
    argv: Annotated[bool, typer.Option("--argv", help="Show the command lines.")] = False,
    as_json: JsonOption = False,
) -> None:
    """List the running processes of all sessions."""
    from execclient.commands.ps import ps as listing

    raise typer.Exit(
        perform(lambda: listing(DaemonOptions(url, token_file), ended=ended, argv=argv, as_json=as_json))
    )


@app.command()
def logs(
    process_id: ProcessIdArgument,
    url: UrlOption = None,
    token_file: TokenFileOption = None,
    session: SessionOption = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Follow until the process ends.")] = False,
    since_seq: Annotated[int, typer.Option(metavar="N", min=0, help="Only the output after N.")] = 0,
    as_json: JsonOption = False,
) -> None:
    """Print the retained output of a process."""
    from execclient.commands.logs import logs as printing

    raise typer.Exit(
        perform(
            lambda: printing(
                DaemonOptions(url, token_file),
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
        typer.Argument(metavar="ID...", help="Process IDs, from ps.", autocompletion=completion.process_ids),
    ],
    url: UrlOption = None,
    token_file: TokenFileOption = None,
    session: SessionOption = None,
    number: Annotated[
        str,
        typer.Option(
            "--signal",
            "-s",
            metavar="SIG",
            help="Name or number of the signal: TERM, SIGKILL, 9.",
            autocompletion=completion.signals,
        ),
    ] = "TERM",
    scope: Annotated[
        Literal["leader", "group", "tree"],
        typer.Option(help="The process alone, its process group, or all its descendants."),
    ] = "group",
    as_json: JsonOption = False,
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
                DaemonOptions(url, token_file), process_ids, session, name=name, scope=scope, as_json=as_json
            )
        )
    )


@app.command()
def cp(
    sources: Annotated[list[str], typer.Argument(metavar="SRC...")],
    destination: Annotated[str, typer.Argument(metavar="DST")],
    url: UrlOption = None,
    token_file: TokenFileOption = None,
    recursive: Annotated[bool, typer.Option("--recursive", "-r", help="Copy directories.")] = False,
    preserve: Annotated[
        bool, typer.Option("--preserve", "-p", help="Keep times; set modes of existing files, too.")
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Show no progress.")] = False,
    exclude: Annotated[
        list[str] | None,
        typer.Option(metavar="P", help="With -r: leave out what P matches, as in .gitignore. Repeatable."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Copy files and directories to the daemon's machine, or back.

    Paths on the daemon's machine begin with ':'. '-' is stdin or stdout. Several sources are copied into a
    directory. New files get the modes of their sources.
    """
    from execclient.commands import cp as copying

    options = copying.CopyOptions(
        recursive=recursive, preserve=preserve, quiet=quiet or as_json, exclude=tuple(exclude or ())
    )
    raise typer.Exit(
        perform(
            lambda: copying.cp(DaemonOptions(url, token_file), sources, destination, options, as_json=as_json)
        )
    )


@app.command()
def patch(
    file: Annotated[
        Path | None, typer.Argument(metavar="FILE", help="The patch. Default: '-', stdin.")
    ] = None,
    url: UrlOption = None,
    token_file: TokenFileOption = None,
    cwd: Annotated[
        str | None,
        typer.Option(metavar="D", help="Base of relative paths. Default: the daemon's working directory."),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the diff; change nothing.")] = False,
    diff: Annotated[bool, typer.Option("--diff", help="Print the diff and apply the patch.")] = False,
    color: Annotated[
        Literal["auto", "always", "never"],
        typer.Option(help="Color the diff. auto: on a terminal, unless NO_COLOR is set."),
    ] = "auto",
    as_json: JsonOption = False,
) -> None:
    """Apply a patch, as models write it, to files on the daemon's machine.

    The exit status is 0 if the patch is applied, now or before, 1 if it does not fit, 2 if it is no patch.
    """
    from execclient.commands import patch as patching

    options = patching.PatchOptions(cwd=cwd, dry_run=dry_run, diff=diff, color=color, as_json=as_json)
    raise typer.Exit(perform(lambda: patching.patch(DaemonOptions(url, token_file), file, options)))


policy = typer.Typer(no_args_is_help=True, help="Check a command against the policy rules.")
app.add_typer(policy, name="policy")


@policy.command(context_settings={"allow_interspersed_args": False})
def check(
    command: Annotated[list[str], typer.Argument(metavar="[--] COMMAND...", help="Program and arguments.")],
    rules: Annotated[
        list[Path] | None,
        typer.Option(metavar="FILE", help="Use this rule file instead of those of a home. Repeatable."),
    ] = None,
    home: Annotated[
        Path | None,
        typer.Option(
            metavar="D",
            help="Use D/rules/*.rules. Default: EXECSERVER_POLICY_HOME, else ~/.config/execserver.",
        ),
    ] = None,
    cwd: Annotated[
        Path | None,
        typer.Option(metavar="D", help="Working directory of the command. Default: the current one."),
    ] = None,
    resolve: Annotated[
        bool,
        typer.Option(
            "--resolve-host-executables/--no-resolve-host-executables",
            help="Whether matchedRules includes rules on the name of a program that is given by its path.",
        ),
    ] = True,
    approval: Annotated[
        str, typer.Option(metavar="POLICY", help="When to ask: a name, or a granular policy as JSON.")
    ] = "on-request",
    parity: Annotated[bool, typer.Option("--parity", help="Read scripts exactly as codex does.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Tell whether a command may run, and why. The command is not run.

    The exit status is 0 if it may run, 10 if it needs an approval, 20 if it is forbidden.
    """
    from execclient.commands import policy as checking

    try:
        options = checking.CheckOptions(
            argv=command,
            files=checking.rule_files(rules, home),
            cwd=cwd or Path(),
            approval=checking.approval_named(approval),
            resolve=resolve,
            parity=parity,
        )
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error
    raise typer.Exit(perform(lambda: checking.check(options, as_json=as_json)))


@app.command(name="completion")
def print_completion(
    shell: Annotated[Literal["bash", "zsh", "fish"], typer.Argument(metavar="bash|zsh|fish")],
) -> None:
    """Print the script that completes execserver's commands in a shell.

    bash: source <(execserver completion bash)
    zsh: the same, after compinit
    fish: execserver completion fish | source
    """
    completion.prepare()
    os.environ[completion.VARIABLE] = f"source_{shell}"
    app(args=[], prog_name="execserver", complete_var=completion.VARIABLE)


def _name_daemon_commands() -> None:
    """Add the daemon's commands, so that they are completed, too. They are not run."""
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
            raise typer.BadParameter(f"{name} is not set here", param_hint="--env")
    return variables
