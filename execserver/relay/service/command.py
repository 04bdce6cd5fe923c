"""`execserver relay …`: run a relay, manage its tokens, list connected executors, make keys.

Exit codes: 2 for an invalid command line, 1 for a failure, with the reason on stderr. Results for scripts (a
token, an id, a fingerprint) are the only text on stdout.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from execprotocol.command_line import Parser

if TYPE_CHECKING:
    from execserver.relay.service.tokens import TokenRecord, TokenStore

_DESCRIPTION = "Connect clients to executors behind firewalls, and forward what they encrypt for each other."
_STATE_HELP = "the relay's folder of tokens and control socket, of mode 0700"

Columns = Sequence[tuple[str, ...]]


def main(argv: list[str]) -> int:
    """Run a command; returns its exit code.

    Args:
        argv: the arguments after `execserver relay`.
    """
    parser = relay_parser()
    options = parser.parse(argv)
    run: Callable[[argparse.Namespace], int] = options.run
    try:
        return run(options)
    except ModuleNotFoundError as error:
        # Only for packages of the extra: a missing module of the project is a bug.
        if error.name is None or error.name.partition(".")[0] not in ("aiohttp", "cryptography"):
            raise
        return _print_error(
            f"the package {error.name} is missing: `pip install execserver[relay]` installs it"
        )


def _serve(options: argparse.Namespace) -> int:
    from execserver.relay.service.settings import RelaySettings, RelaySettingsError

    values = {
        name: value for name, value in vars(options).items() if name not in ("run", "command", "parser")
    }
    try:
        settings = RelaySettings.parse(**values)
    except RelaySettingsError as error:
        return _print_error(str(error))
    from execserver.relay.service.server import run

    return run(settings)


def _token_create(options: argparse.Namespace) -> int:
    from execserver.relay.service.tokens import TokenError

    if not options.environment and not options.pool:
        parser: Parser = options.parser
        parser.error("a token is for an environment or a pool: give --environment ID or --pool NAME")
    try:
        _, secret = _store(options, create=True).create(
            options.role,
            options.environment,
            pools=options.pool,
            expires_in=options.expires_in,
            note=options.note,
        )
    except TokenError as error:
        return _print_error(str(error))
    return _print(secret)


def _token_list(options: argparse.Namespace) -> int:
    from execserver.relay.service.tokens import TokenError

    try:
        tokens = _store(options).tokens
    except TokenError as error:
        return _print_error(str(error))
    if options.json:
        return _print(json.dumps([_token_row(each) for each in tokens]))
    rows = [
        (
            each.id,
            each.role,
            ",".join(each.environments) or "-",
            ",".join(each.pools) or "-",
            _date(each.created),
            "never" if each.expires is None else _date(each.expires),
            each.note,
        )
        for each in tokens
    ]
    return _table(("ID", "ROLE", "ENVIRONMENTS", "POOLS", "CREATED", "EXPIRES", "NOTE"), rows)


def _token_revoke(options: argparse.Namespace) -> int:
    from execserver.relay.service.tokens import TokenError

    try:
        _store(options).revoke(options.id)
    except TokenError as error:
        return _print_error(str(error))
    return 0


def _environments(options: argparse.Namespace) -> int:
    from execserver.relay.service.control_socket import NoRelayError, ask_relay

    try:
        answer = ask_relay(Path(options.state_dir).absolute(), "/environments")
    except NoRelayError as error:
        return _print_error(str(error))
    found = json.loads(answer)
    if options.json:
        return _print(json.dumps(found))
    rows = [
        (
            each["environment"],
            _duration(each["seconds"]),
            "-" if each["streams"] is None else str(each["streams"]),
            "-" if each["clients"] is None else str(each["clients"]),
            each["pool"] or "-",
            _load(each),
            "draining" if each["draining"] else "online",
            each["version"] or "-",
            each["node"],
            each["key"],
        )
        for each in found
    ]
    heads = ("ENVIRONMENT", "ONLINE", "STREAMS", "CLIENTS", "POOL", "LOAD", "STATE", "VERSION", "NODE", "KEY")
    return _table(heads, rows)


def _key(options: argparse.Namespace) -> int:
    from execprotocol.relay.key_files import KeyFileError, load_key_pair

    try:
        return _print(load_key_pair(Path(options.file), create=True).public.fingerprint)
    except KeyFileError as error:
        return _print_error(str(error))


def _store(options: argparse.Namespace, *, create: bool = False) -> TokenStore:
    from execserver.relay.service.tokens import TokenStore

    return TokenStore(Path(options.state_dir).absolute(), create=create)


def _token_row(token: TokenRecord) -> dict[str, object]:
    return {
        "id": token.id,
        "role": token.role,
        "environments": list(token.environments),
        "pools": list(token.pools),
        "created": token.created,
        "expires": token.expires,
        "note": token.note,
    }


# -- output


def _print(line: str) -> int:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()
    return 0


def _print_error(text: str) -> int:
    sys.stderr.write(f"execserver: {text}\n")
    return 1


def _table(heads: tuple[str, ...], rows: Columns) -> int:
    widths = [max(map(len, column)) for column in zip(heads, *rows, strict=True)]
    lines = [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in (heads, *rows)
    ]
    return _print("\n".join(lines))


def _load(row: Mapping[str, object]) -> str:
    """Sessions and capacity, as `3/8`; the sessions alone without a capacity."""
    sessions, capacity = row["sessions"], row["capacity"]
    if sessions is None:
        return "-"
    return str(sessions) if capacity is None else f"{sessions}/{capacity}"


def _date(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%SZ", time.gmtime(seconds))


def _duration(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}"


# -- the parser


def relay_parser() -> Parser:
    """The parser of the relay's commands."""
    parser = Parser(prog="execserver relay", description=_DESCRIPTION)
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    _add_serve(commands.add_parser("serve", help="run a relay"))
    token = commands.add_parser("token", help="create, list and revoke tokens")
    _add_token(token.add_subparsers(dest="action", metavar="ACTION", required=True))
    environments = commands.add_parser("environments", help="list connected executors")
    _add_state_dir(environments)
    environments.add_argument("--json", action="store_true", help="print JSON")
    environments.set_defaults(run=_environments)
    key = commands.add_parser("key", help="create a key file if it is missing, and print its fingerprint")
    key.add_argument("file", metavar="FILE", help="the key file, of mode 0600")
    key.set_defaults(run=_key)
    return parser


def _add_serve(parser: Parser) -> None:
    parser.add_argument(
        "--listen",
        required=True,
        metavar="URL",
        help="http://IP:PORT[/PREFIX] on loopback, or https://IP:PORT[/PREFIX]; port 0 picks a free one",
    )
    _add_state_dir(parser)
    parser.add_argument("--tls-cert", metavar="FILE", help="the certificate chain, in PEM, for https")
    parser.add_argument("--tls-key", metavar="FILE", help="its private key, in PEM, without a password")
    parser.add_argument(
        "--public-url",
        default="",
        metavar="URL",
        help="the URL by which peers reach the relay, if it is behind a proxy "
        "(default: from the Host header of each request)",
    )
    parser.add_argument(
        "--plain-door",
        action="append",
        metavar="ENVIRONMENT",
        help="serve JSON-RPC over a plain WebSocket for this environment, at URL/exec/ENVIRONMENT, to "
        "clients without the relay's encryption; the relay can read their messages; may be repeated",
    )
    parser.add_argument(
        "--metrics-listen",
        metavar="URL",
        help="also serve the metrics at http://IP:PORT/metrics, without credentials",
    )
    parser.add_argument(
        "--log-level", default="info", choices=("debug", "info", "warning", "error"), help="(default: info)"
    )
    parser.add_argument(
        "--log-format",
        default="auto",
        choices=("auto", "json", "text", "console"),
        help="text if stderr is a terminal, else json; console is an earlier name of text (default: auto)",
    )
    parser.set_defaults(run=_serve)


def _add_token(actions: argparse._SubParsersAction[Parser]) -> None:
    create = actions.add_parser("create", help="create a token and print it")
    _add_state_dir(create)
    create.add_argument("--role", required=True, choices=("executor", "client"))
    create.add_argument(
        "--environment",
        action="append",
        default=[],
        metavar="ID",
        help="an environment that the token is for: letters, digits, - and _; may be repeated",
    )
    create.add_argument(
        "--pool",
        action="append",
        default=[],
        metavar="NAME",
        help="a pool that the token is for, with all of its executors; may be repeated",
    )
    create.add_argument(
        "--expires-in", type=_seconds, metavar="SECONDS", help="when the token expires (default: never)"
    )
    create.add_argument("--note", default="", metavar="TEXT", help="shown by `token list`")
    create.set_defaults(run=_token_create)
    listing = actions.add_parser("list", help="list tokens; the tokens themselves are not stored")
    _add_state_dir(listing)
    listing.add_argument("--json", action="store_true", help="print JSON")
    listing.set_defaults(run=_token_list)
    revoke = actions.add_parser("revoke", help="revoke a token, and end the sockets that depend on it")
    revoke.add_argument("id", metavar="ID", help="the id that `token list` shows")
    _add_state_dir(revoke)
    revoke.set_defaults(run=_token_revoke)


def _add_state_dir(parser: Parser) -> None:
    parser.add_argument("--state-dir", required=True, metavar="DIR", help=_STATE_HELP)


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < 1e10:
        raise argparse.ArgumentTypeError("must be a number of seconds above 0")
    return seconds
