"""`execserver relay …`: run a relay, manage its tokens, list connected executors, make keys.

Exit codes: 2 for an invalid command line, 1 for a failure, with the reason on stderr. Results for scripts (a
token, an id, a fingerprint) are the only text on stdout.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import sys
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from execprotocol.command_line import Parser

if TYPE_CHECKING:
    from execserver.relay.fleet.tokens import FleetTokens
    from execserver.relay.service.settings import NatsSettings
    from execserver.relay.service.token_file import TokenStore
    from execserver.relay.service.tokens import TokenRecord

_DESCRIPTION = "Connect clients to executors behind firewalls, and forward what they encrypt for each other."
_STATE_HELP = "the relay's folder of tokens and control socket, of mode 0700"

_EXTRAS = {"aiohttp": "relay", "cryptography": "relay", "nats": "fleet", "nkeys": "fleet"}
"""Packages that may be missing, and the extra that has them."""

_NATS_FLAGS = ("nats", "nats_creds", "nats_ca", "nats_cert", "nats_key", "nats_prefix", "nats_replicas")

Columns = Sequence[tuple[str, ...]]

_Result = TypeVar("_Result")


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
        package = (error.name or "").partition(".")[0]
        extra = _EXTRAS.get(package)
        if extra is None:
            raise
        return _print_error(
            f"the package {package} is missing: `pip install execserver[{extra}]` installs it"
        )


def _serve(options: argparse.Namespace) -> int:
    from execserver.relay.service.settings import RelaySettings, RelaySettingsError

    values = {
        name: value
        for name, value in vars(options).items()
        if name not in ("run", "command", "parser", *_NATS_FLAGS)
    }
    try:
        settings = RelaySettings.parse(**values, nats=_nats(options))
    except RelaySettingsError as error:
        return _print_error(str(error))
    from execserver.relay.service.server import run

    return run(settings)


def _token_create(options: argparse.Namespace) -> int:
    if not options.environment and not options.pool:
        parser: Parser = options.parser
        parser.error("a token is for an environment or a pool: give --environment ID or --pool NAME")
    values = {"pools": options.pool, "expires_in": options.expires_in, "note": options.note}

    async def create(tokens: FleetTokens) -> str:
        return (await tokens.create(options.role, options.environment, **values))[1]

    def create_in_file(tokens: TokenStore) -> str:
        return tokens.create(options.role, options.environment, **values)[1]

    return _with_tokens(options, create, create_in_file, _print)


def _token_list(options: argparse.Namespace) -> int:
    async def read(tokens: FleetTokens) -> Sequence[TokenRecord]:
        return tokens.tokens

    def show(tokens: Sequence[TokenRecord]) -> int:
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

    return _with_tokens(options, read, lambda tokens: tokens.tokens, show)


def _token_revoke(options: argparse.Namespace) -> int:
    async def revoke(tokens: FleetTokens) -> None:
        await tokens.revoke(options.id)

    def revoke_in_file(tokens: TokenStore) -> None:
        tokens.revoke(options.id)

    return _with_tokens(options, revoke, revoke_in_file, lambda _: 0)


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


def _with_tokens(
    options: argparse.Namespace,
    in_fleet: Callable[[FleetTokens], Awaitable[_Result]],
    in_file: Callable[[TokenStore], _Result],
    show: Callable[[_Result], int],
) -> int:
    """Do something with the tokens that the flags name, and show the result."""
    from execserver.relay.service.settings import RelaySettingsError
    from execserver.relay.service.store import StoreUnavailable
    from execserver.relay.service.token_file import TokenStore
    from execserver.relay.service.tokens import TokenError

    try:
        settings = _nats(options)
        if settings is None:
            folder = Path(options.state_dir).absolute()
            if servers := _nats_of_relay(folder):
                return _print_error(
                    f"the relay with --state-dir {folder} has its tokens in NATS: give --nats {servers} "
                    "instead, and the relay's other flags --nats-…"
                )
            result = in_file(TokenStore(folder, create=options.run is _token_create))
        else:
            result = _in_fleet(settings, in_fleet)
    except (RelaySettingsError, StoreUnavailable, TokenError) as error:
        return _print_error(str(error))
    return show(result)


def _nats_of_relay(folder: Path) -> str:
    """The `--nats` of the relay that runs with a state folder; empty: none runs, or it has no NATS."""
    from execserver.relay.service.control_socket import NoRelayError, ask_relay

    with contextlib.suppress(NoRelayError):
        return ",".join(json.loads(ask_relay(folder, "/nats")))
    return ""


def _in_fleet(settings: NatsSettings, do: Callable[[FleetTokens], Awaitable[_Result]]) -> _Result:
    from execserver.relay.fleet.fleet import open_tokens
    from execserver.telemetry import logs

    logs.configure("error", "auto")

    async def run() -> _Result:
        async with open_tokens(settings) as tokens:
            return await do(tokens)

    return asyncio.run(run())


def _nats(options: argparse.Namespace) -> NatsSettings | None:
    """The cluster that the flags name; None: they name none. Raises RelaySettingsError."""
    from execserver.relay.service.settings import NatsSettings

    given = {
        name.removeprefix("nats_"): value
        for name in _NATS_FLAGS[1:]
        if (value := getattr(options, name)) is not None
    }
    return NatsSettings.parse(options.nats, **given) if options.nats is not None or given else None


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
    _add_nats(parser, parser, "share executors, clients and tokens with all relays at this NATS cluster")
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
    _add_tokens_of(create)
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
    _add_tokens_of(listing)
    listing.add_argument("--json", action="store_true", help="print JSON")
    listing.set_defaults(run=_token_list)
    revoke = actions.add_parser("revoke", help="revoke a token, and end the sockets that depend on it")
    revoke.add_argument("id", metavar="ID", help="the id that `token list` shows")
    _add_tokens_of(revoke)
    revoke.set_defaults(run=_token_revoke)


def _add_tokens_of(parser: Parser) -> None:
    either = parser.add_mutually_exclusive_group(required=True)
    either.add_argument("--state-dir", metavar="DIR", help=_STATE_HELP)
    _add_nats(parser, either, "the NATS cluster of a fleet, instead of the folder of one relay")


def _add_nats(parser: Parser, group: argparse._ActionsContainer, purpose: str) -> None:
    group.add_argument(
        "--nats",
        metavar="URL[,URL…]",
        help=f"{purpose}; nats://HOST:PORT or tls://HOST:PORT",
    )
    parser.add_argument(
        "--nats-creds",
        metavar="FILE",
        help="a credentials file of NATS (.creds), or a line with an nkey seed, USER:PASSWORD or a token",
    )
    parser.add_argument(
        "--nats-ca",
        metavar="FILE",
        help="the authorities of the servers' certificates (default: the system's)",
    )
    parser.add_argument("--nats-cert", metavar="FILE", help="a certificate, if the servers ask for one")
    parser.add_argument("--nats-key", metavar="FILE", help="its private key")
    parser.add_argument(
        "--nats-prefix",
        metavar="NAME",
        help="of subjects and buckets; fleets with different ones may share a cluster (default: execserver)",
    )
    parser.add_argument(
        "--nats-replicas",
        type=int,
        metavar="N",
        help="how many servers keep each record (default: 3 in a cluster, 1 at a single server)",
    )


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
