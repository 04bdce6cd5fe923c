"""`execserver console`: a page in the browser that shows the processes of a daemon."""

from __future__ import annotations

from argparse import Namespace

from execclient.commands.options import Command, add_daemon, daemon_of
from execprotocol.command_line import Parser


def _add_console(parser: Parser) -> None:
    add_daemon(parser)
    parser.add_argument(
        "--write",
        action="store_true",
        help="let the page type into processes, signal and kill them (default: it only shows them)",
    )
    parser.add_argument(
        "--port",
        type=int,
        default=0,
        metavar="N",
        help="the port of this machine, on loopback (default: a free one)",
    )


def _console(options: Namespace) -> int:
    from execclient.commands.failures import FAILED, CommandExit, perform, print_message

    if not 0 <= options.port <= 65535:
        options.parser.error(f"--port: {options.port} is not between 0 and 65535")
    if options.url is not None and options.url.startswith("stdio:"):
        options.parser.error("--url stdio: starts a daemon for one command, which has no other processes")
    try:
        from execclient.console import Console, ConsoleNotBuilt
    except ImportError as error:
        print_message(str(error))
        return FAILED

    async def serve() -> int:
        from execclient.commands.signals import Signalled, Signals

        daemon = daemon_of(options)
        try:
            console = Console(
                daemon.url, token_file=daemon.token_file, write=options.write, port=options.port
            )
        except ConsoleNotBuilt as error:
            raise CommandExit(str(error)) from error
        with Signals() as signals:
            try:
                await signals.unless_signalled(_print_links(console))
            except Signalled:
                return 0
        raise AssertionError("it serves without end")

    async def _print_links(console: Console) -> None:
        async with console:
            link = console.url
            print(link, flush=True)
            while True:
                link = await console.next_url(link)
                print_message("the link was opened; for another tab or browser:")
                print(link, flush=True)

    return perform(serve)


CONSOLE = Command(
    "show processes in the browser",
    "Serve a page on this machine that shows the processes of a daemon in the browser: their output as it "
    "comes or replayed, and the files of their folders. Prints the link to it, which opens one tab; then a "
    "fresh one.",
    "[OPTIONS]",
    _add_console,
    _console,
)
