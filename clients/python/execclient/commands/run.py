"""`execserver run`: run a remote command that behaves like a local one in a pipeline."""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from execclient import Executor, NotFound, Process, Refused, ResourceLimits, SystemFailure
from execclient.arguments import Network
from execclient.commands.daemon import DaemonOptions
from execclient.commands.detached import DetachedSession
from execclient.commands.failures import CommandExit, print_message, start_failure
from execclient.commands.foreground import Background, Foreground
from execclient.commands.sandboxes import report_denial, require_writable
from execclient.commands.signals import Signals
from execclient.commands.streams import is_empty_input
from execclient.commands.terminal import RawTerminal, screen_size
from execclient.commands.values import chosen_duration, clock_time
from execprotocol.trust import UntrustedError

if TYPE_CHECKING:
    from execclient.commands.network import RunNetwork
    from execclient.govern.network import NetworkAccess
    from execclient.govern.sandbox import SandboxPolicy

_LIMIT = re.compile(r"at most ([0-9.e+]+) s ")
"""The limit in the daemon's error about a time to live."""


@dataclass(frozen=True, slots=True)
class RunOptions:
    """The options of the command."""

    argv: Sequence[str]
    cwd: str | None = None
    env: dict[str, str] = field(default_factory=dict)
    tty: bool = False
    stdin: bool = True
    """Whether stdin is forwarded."""
    timeout: float | None = None
    grace: float = 0.0
    """Seconds between SIGTERM and the kill at the time limit; 0 for no SIGTERM."""
    sandbox: SandboxPolicy | None = None
    """What the command may access; the working directory is the workspace."""
    network: NetworkAccess | None = None
    """The hosts that it may reach; None leaves the network to the sandbox."""
    limits: ResourceLimits | None = None
    """What it may use."""
    ttl: float | None = None
    """Seconds for which the command may run without this client, which reconnects for as long."""
    as_json: bool = False


async def run(daemon: DaemonOptions, command: RunOptions) -> int:
    """Run the command; returns the exit status."""
    async with AsyncExitStack() as stack:
        # Until the session is closed: a terminal that closes may send more than one signal.
        signals = stack.enter_context(Signals())
        executor = await signals.unless_signalled(_connect(stack, daemon, command.ttl))
        forwards = command.stdin and not is_empty_input()
        begin = time.monotonic()
        network = _network(stack, command)
        process = await signals.unless_signalled(_start(executor, command, network, stdin=forwards))
        foreground = Foreground(executor, process, owned=True, as_json=command.as_json)
        if command.as_json:
            await foreground.print_json(processId=process.id, sessionId=executor.session_id, pid=process.pid)
        background: list[Background] = []
        if forwards:
            at_end = foreground.type_end_of_file if command.tty else foreground.close_input
            background.append(foreground.forward_input(at_end))
            if command.tty and os.isatty(0):
                terminal = stack.enter_context(RawTerminal())
                background.append(terminal.follow_size(foreground.resize))
        status = await foreground.run_until_exit(signals, *background)
        if process.exit_code and command.sandbox is not None:
            report_denial(process.denial, command.sandbox.kind)
        if process.exit_code and "pids" in (process.output.usage or {}).get("limitsHit", ()):
            print_message("the command reached its limit of processes, where fork fails; --pids sets it")
        if network is not None:
            network.print_denied()
        if command.as_json:
            seconds = round(time.monotonic() - begin, 3)
            more: dict[str, Any] = {} if command.sandbox is None else {"denial": process.denial}
            more |= {} if network is None else {"networkDenied": network.denied}
            if command.limits is not None or process.output.usage is not None:  # the daemon sets some, too
                more |= {"limit": process.limit, "usage": process.output.usage}
            await foreground.print_json(
                exitCode=process.exit_code, cause=process.cause, durationSeconds=seconds, **more
            )
        return status


async def detach(daemon: DaemonOptions, command: RunOptions) -> int:
    """Start the command, print its id, and leave it running."""
    async with AsyncExitStack() as stack:
        executor = await _connect(stack, daemon, command.ttl, detach=True)
        signals = stack.enter_context(Signals())
        process = await signals.unless_signalled(_start(executor, command, command.network, stdin=False))
        _record(executor, process)
        if command.as_json:
            members = {"processId": process.id, "sessionId": executor.session_id}
            ttl = executor.session_ttl
            line = json.dumps({**members, "pid": process.pid, "url": executor.url, "sessionTtlSeconds": ttl})
        else:
            line = process.id
            print_message(_end_text(process.id, executor.session_ttl, command.timeout))
        print(line, flush=True)
    return 0


async def _connect(
    stack: AsyncExitStack, daemon: DaemonOptions, ttl: float | None, *, detach: bool = False
) -> Executor:
    """A session whose command may run for `ttl` seconds without this client.

    Raises:
        CommandExit: the daemon does not keep sessions without a client, or not for so long.
    """
    try:
        executor = await stack.enter_async_context(
            daemon.connect(keep=detach, ttl=ttl, patience=None if detach else ttl)
        )
    except Refused as error:
        limit = _LIMIT.search(error.message) if error.method == "session/setTtl" else None
        if limit is None:
            raise
        most = chosen_duration(float(limit[1]))
        raise CommandExit(
            f"--ttl: the daemon keeps a session for at most {most} (--max-session-ttl)"
        ) from error
    if executor.url.startswith("stdio:") and detach:
        raise CommandExit("--detach needs a daemon that listens: over stdio the command ends with its client")
    return executor


def _record(executor: Executor, process: Process) -> None:
    """Record the session for the commands that follow."""
    url, session_id = executor.url, executor.session_id
    try:
        DetachedSession(url, session_id, process.id, time.time(), executor.session_ttl).keep()
    except (OSError, UntrustedError) as error:
        print_message(
            f"the session of {process.id} cannot be recorded: {error}; where `ps` does not show it, name it "
            f"with --session {session_id}"
        )


def _end_text(process_id: str, ttl: float | None, timeout: float | None) -> str:
    if timeout is not None and (ttl is None or timeout < ttl):
        return (
            f"{process_id} keeps running for {chosen_duration(timeout)} (--timeout), until "
            f"{clock_time(time.time() + timeout)}, and is then killed"
        )
    if ttl is None:
        return f"{process_id} keeps running until the daemon ends its session; it does not report when"
    return (
        f"{process_id} keeps running for {chosen_duration(ttl)} without a client, until "
        f"{clock_time(time.time() + ttl)}, and is then killed; --ttl sets another time"
    )


def _network(stack: AsyncExitStack, command: RunOptions) -> RunNetwork | None:
    if command.network is None:
        return None
    from execclient.commands.network import RunNetwork

    network = RunNetwork(command.network, command.argv)
    stack.callback(network.close)
    return network


async def _start(executor: Executor, command: RunOptions, network: Network | None, *, stdin: bool) -> Process:
    """Start the command.

    Raises:
        CommandExit: it cannot be started; has the status that a shell would return.
    """
    await require_writable(executor, command.sandbox)
    try:
        return await executor.start(
            command.argv,
            cwd=command.cwd,
            env=command.env,
            tty=command.tty,
            size=screen_size() if command.tty else None,
            stdin=stdin and not command.tty,
            timeout=command.timeout,
            grace=command.grace,
            sandbox=command.sandbox,
            network=network,
            limits=command.limits,
            buffer_bytes=None,  # `OutputWriter` has its own limit
        )
    except ValueError as error:  # an argument that is not UTF-8, or a time limit out of range
        raise CommandExit(str(error)) from error
    except SystemFailure as error:
        if command.cwd is not None and not await _is_folder(executor, command.cwd):
            raise CommandExit(f"{command.cwd}: not a directory on the daemon's machine") from error
        path_of = "--env" if "PATH" in command.env else "the daemon"
        raise start_failure(command.argv[0], error, path_of=path_of) from error


async def _is_folder(executor: Executor, path: str) -> bool:
    try:
        return (await executor.fs.stat(path)).is_dir
    except (NotFound, SystemFailure):
        return False
