"""`execserver mcp`: serve the tools of agents to a host of the Model Context Protocol."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path

from execclient.commands import values
from execclient.commands.options import (
    WORKSPACE_WRITE,
    Command,
    add_daemon,
    add_sandbox,
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
    parser.add_argument("--network", action="store_true", help="with a sandbox: allow the network")
    parser.add_argument(
        "--approval",
        default="on-request",
        metavar="POLICY",
        help="when to ask: a name, or a granular policy as JSON (default: on-request)",
    )
    parser.add_argument(
        "--rules",
        action="append",
        type=Path,
        metavar="FILE",
        help="use this rule file instead of those of a home; may be repeated",
    )
    parser.add_argument(
        "--home",
        type=Path,
        metavar="D",
        help="use D/rules/*.rules (default: EXECSERVER_POLICY_HOME, else ~/.config/execserver)",
    )
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


def _mcp(options: Namespace) -> int:
    from execclient.commands import policy as checking
    from execclient.commands.failures import FAILED, CommandExit, perform, print_message

    sandbox = sandbox_of(options)
    assert sandbox is not None  # the option has a default
    try:
        rules = checking.rule_files(options.rules, options.home)
        approval = checking.approval_named(options.approval)
    except ValueError as error:
        options.parser.error(str(error))
    try:
        from execclient.integrations.mcp.stdio import serve_stdio
        from execclient.integrations.mcp.workspace import Options, WorkspaceMissing
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in _EXTRA:
            raise
        print_message(f"execserver mcp needs {error.name}: {INSTALL}")
        return FAILED

    async def serve() -> int:
        policy, files = checking.load_policy(rules)
        served = Options(
            url=options.url,
            token_file=options.token_file,
            cwd=options.cwd,
            sandbox=sandbox,
            approval=approval,
            policy=policy,
            rules=str(rules / "rules") if isinstance(rules, Path) else ", ".join(map(str, files)),
            max_wait=options.max_wait,
            ttl=options.ttl,
            keep=options.keep,
            name=options.name,
        )
        try:
            status: int = await serve_stdio(served)
        except WorkspaceMissing as error:
            raise CommandExit(str(error)) from error
        return status

    return perform(serve)


MCP = Command(
    "serve commands and files to a host of the Model Context Protocol",
    "Serve tools that run commands and read and edit files to a host of the Model Context Protocol, such as "
    "Claude Code, Codex, VS Code or Zed, over stdin and stdout. A sandbox limits the commands and the file "
    "tools.",
    "[OPTIONS]",
    _add_mcp,
    _mcp,
)
