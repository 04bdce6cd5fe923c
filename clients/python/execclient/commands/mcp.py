"""`execserver mcp`: serve the tools of agents to a host of the Model Context Protocol."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path

from execclient.commands import values
from execclient.commands.options import (
    WORKSPACE_WRITE,
    Command,
    add_daemon,
    add_network,
    add_policy,
    add_sandbox,
    network_of,
    sandbox_of,
)
from execprotocol.command_line import Parser

INSTALL = 'pip install "execclient[mcp]"'

_EXTRA = ("mcp", "mcp_types", "pydantic", "anyio")
"""The packages of the extra that the integration imports."""


def _add_mcp(parser: Parser) -> None:
    add_daemon(parser)
    parser.add_argument(
        "-w",
        "--cwd",
        "--workdir",
        metavar="D",
        help="the workspace (default: the current directory, or at a daemon on another machine that of the "
        "daemon)",
    )
    add_sandbox(parser, f"limits of commands and file tools (default: {WORKSPACE_WRITE})")
    parser.set_defaults(sandbox=WORKSPACE_WRITE)
    add_network(parser, "with a sandbox")
    add_policy(parser)
    parser.add_argument(
        "--max-wait",
        type=values.duration,
        default=45.0,
        metavar="T",
        help="how long a call waits for output before it returns and the command runs on (default: 45)",
    )
    parser.add_argument(
        "--ttl",
        type=values.duration,
        metavar="T",
        help="how long commands run on when the server was killed, until the host starts it again: 90 "
        "(seconds), 15m, 8h, 2d (default: 15m, or the daemon's --session-ttl where it permits less)",
    )
    parser.add_argument(
        "--keep", action="store_true", help="commands run on for that time also when the host has ended"
    )
    parser.add_argument(
        "--name",
        metavar="N",
        help="tells servers in one workspace apart when they are started again (default: the host's name)",
    )
    _add_http(parser)


def _add_http(parser: Parser) -> None:
    """Add the options of the HTTP listener, those of `execserver serve` under the same names."""
    parser.add_argument(
        "--listen",
        metavar="URL",
        help="serve streamable HTTP at http://ADDRESS:PORT instead of stdin and stdout; port 0 is any",
    )
    parser.add_argument(
        "--ws-auth",
        choices=("capability-token", "signed-bearer-token"),
        help="with --listen: the credentials that a client must present (default: none, on loopback only)",
    )
    for name, metavar, text in (
        ("token-file", "FILE", "the file with the capability token"),
        ("token-sha256", "HEX", "its SHA-256 digest in hexadecimal, instead of the token"),
        ("shared-secret-file", "FILE", "the file with the key of signed bearer tokens (HS256)"),
        ("issuer", "TEXT", "the `iss` that signed tokens must have"),
        ("audience", "TEXT", "the `aud` that signed tokens must have"),
    ):
        parser.add_argument(f"--ws-{name}", metavar=metavar, help=text)
    parser.add_argument(
        "--ws-max-clock-skew-seconds",
        type=values.count,
        metavar="N",
        help="tolerance for `exp` and `nbf` of signed tokens (default: 30)",
    )
    parser.add_argument(
        "--ws-host",
        action="append",
        default=[],
        metavar="NAME",
        help="a name that the Host header may have, besides literal addresses and localhost; may be repeated",
    )


def _mcp(options: Namespace) -> int:
    from execclient.commands import policy as checking
    from execclient.commands.failures import FAILED, CommandExit, perform, print_message

    sandbox = sandbox_of(options)
    assert sandbox is not None  # the option has a default
    network = network_of(options)
    try:
        rules = checking.rule_files(options.rules, options.home)
        approval = checking.approval_named(options.approval)
    except ValueError as error:
        options.parser.error(str(error))
    guard = _guard(options)
    try:
        from execclient.integrations.mcp.server import serve_stdio
        from execclient.integrations.mcp.workspace import CannotServe, Options
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in _EXTRA:
            raise
        print_message(f"execserver mcp needs {package.replace('_', '-')}: {INSTALL}")
        return FAILED

    async def serve() -> int:
        policy, files = checking.load_policy(rules)
        served = Options(
            url=options.url,
            token_file=options.token_file,
            cwd=options.cwd,
            sandbox=sandbox,
            network=network,
            approval=approval,
            policy=policy,
            rules=str(rules / "rules") if isinstance(rules, Path) else ", ".join(map(str, files)),
            max_wait=options.max_wait,
            ttl=options.ttl,
            keep=options.keep,
            name=options.name,
        )
        try:
            status: int
            if guard is None:
                status = await serve_stdio(served)
            else:
                from execclient.integrations.mcp.http import serve_http

                status = await serve_http(served, options.listen, guard)
        except CannotServe as error:
            raise CommandExit(str(error)) from error
        return status

    return perform(serve)


def _guard(options: Namespace) -> object | None:
    """The rules for HTTP clients; None for stdin and stdout."""
    if options.listen is None:
        for name, value in vars(options).items():
            if name.startswith("ws_") and value:
                option = name.replace("_", "-")
                options.parser.error(f"--{option} needs --listen: over stdin and stdout nothing is checked")
        return None
    if options.http_guard is None:
        options.parser.error("--listen needs the server: pip install execserver")
    try:
        guard: object = options.http_guard(options)
    except ValueError as error:
        options.parser.error(str(error))
    return guard


MCP = Command(
    "serve commands and files to a host of the Model Context Protocol",
    "Serve tools that run commands and read and edit files to a host of the Model Context Protocol, such as "
    "Claude Code, Codex, VS Code or Zed, over stdin and stdout or HTTP. A sandbox limits the commands and "
    "the file tools.",
    "[OPTIONS]",
    _add_mcp,
    _mcp,
)
