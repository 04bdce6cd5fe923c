"""The shell snapshots of the server's sessions: made at the first use, kept while they are true.

A snapshot belongs to a session, the scope that the client names, the shell, the working directory, the
environment, the sandbox, and the kind of standard input. It is used only if a shell with it was seen to have
the same state as a login shell. In all other cases the command runs in a login shell, as without a snapshot.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

import msgspec
from msgspec.structs import replace

from execprotocol.errors import RpcError
from execserver.processes.child_environment import is_dropped
from execserver.processes.login_state import UnfitError, bash, zsh
from execserver.processes.login_state.dump import TYPED, Dump, ShellKind, require_equal
from execserver.processes.login_state.quiet_run import QuietRuns
from execserver.processes.login_state.startup_files import StartupFiles
from execserver.processes.start_options import start_digests
from execserver.telemetry.logs import Logger

if TYPE_CHECKING:
    from execprotocol.process import StartParams
    from execserver.launch_spec import LaunchSpec
    from execserver.processes.executor import Executor
    from execserver.sandbox.policy import Policy
    from execserver.sandbox.sandboxes import Sandboxes

CAPTURE_SECONDS = 10.0
"""How long the shells of a snapshot may take together; no longer than the command may run."""

MAX_SNAPSHOTS = 32
"""A session; the least recently used one goes first."""

MAX_ATTEMPTS, PAUSE_SECONDS = 8, 60.0
"""Snapshots for the same starts, each within this time after the one before. Then login shells are cheaper,
for as long: something changes the files of the profile all the time."""

_OF_THE_CALL = "CODEX_TOOL_CALL_ID"
"""A variable with another value for each command, which makes no other snapshot."""

_COMPARED = (
    "shellSnapshot", "argv", "cwd", "env", "envPolicy", "sandbox", "enforceManagedNetwork", "managedNetwork",
    "pipeStdin",
)  # fmt: skip
"""What another snapshot is made for: parameters of the start, but for its script."""

_LOGIN = "-lc"

_KINDS: Mapping[str, ShellKind] = {"bash": bash, "zsh": zsh}
"""The kinds of shells that can list all of their state. A POSIX `sh` cannot list its functions."""

log = Logger()


class Snapshot(msgspec.Struct, frozen=True):
    """What is known of a login shell's state: a script that restores it, or why there is none."""

    script: bytes | None
    obstacle: str | None
    files: StartupFiles | None = None
    attempts: int = 1
    """How many snapshots were made for the same starts, one soon after the other."""
    kind: ShellKind = bash
    made_at: float = msgspec.field(default_factory=time.monotonic)

    @contextmanager
    def opened(self) -> Iterator[Callable[[LaunchSpec], LaunchSpec]]:
        """The descriptor of the script, for the time of a spawn. The function that is returned makes of the
        launch of a login shell that of a shell with this snapshot, and changes nothing if there is none.
        """
        fd = None if self.script is None else _memory_file(self.script)
        if fd is None:
            yield lambda spec: spec
            return
        try:
            yield partial(self.kind.launch, fd)
        finally:
            os.close(fd)


def _memory_file(script: bytes) -> int | None:
    """A file with the script; None if no descriptor or no memory is left."""
    try:
        fd = os.memfd_create("shell-snapshot", os.MFD_CLOEXEC)
    except OSError:
        return None
    try:
        with open(fd, "wb", closefd=False) as file:
            file.write(script)
    except OSError:
        os.close(fd)
        return None
    return fd


class _Start(msgspec.Struct, frozen=True):
    """A start that may use a snapshot, with what it launches without one, and the limits of its sandbox."""

    params: StartParams
    spec: LaunchSpec
    policy: Policy | None
    kind: ShellKind


class Snapshots:
    """Makes and keeps snapshots.

    Args:
        executor: runs the shells.
        sandboxes: confine them, like the commands.
    """

    def __init__(self, executor: Executor, sandboxes: Sandboxes) -> None:
        self._runs = QuietRuns(executor, sandboxes)
        self._sandboxes = sandboxes
        self._kept: WeakKeyDictionary[object, OrderedDict[tuple[object, ...], asyncio.Task[Snapshot]]] = (
            WeakKeyDictionary()
        )

    async def get(
        self,
        session: object,
        params: StartParams,
        make_spec: Callable[[], LaunchSpec],
        policy: Policy | None,
    ) -> Snapshot:
        """The snapshot for a start; takes as long as a login shell the first time. Never raises.

        Args:
            session: the session of the start; its snapshots are kept as long as it is.
            params: the start, which has a `shell_snapshot`.
            make_spec: what it launches without a snapshot; may raise OSError or ValueError.
            policy: the limits of its sandbox, or None.
        """
        unusable = _unusable(params)
        if unusable is not None:
            return Snapshot(None, unusable)
        assert params.shell_snapshot is not None
        try:
            start = _Start(params, make_spec(), policy, _KINDS[params.shell_snapshot.shell.name])
        except (OSError, ValueError) as error:
            return Snapshot(None, f"the shell cannot be started: {error}")
        kept = self._kept.setdefault(session, OrderedDict())
        key = _key(start)
        task = kept.get(key)
        if task is None:
            task = self._begin(start, 1)
        elif task.done() and not await _is_true(task.result()):
            newer = kept.get(key, task)  # another start may have begun one meanwhile
            old = task.result()
            attempt = 1 if _age(old) > PAUSE_SECONDS else old.attempts + 1
            task = newer if newer is not task else self._begin(start, attempt)
        kept[key] = task
        kept.move_to_end(key)
        while len(kept) > MAX_SNAPSHOTS:
            kept.popitem(last=False)
        # Another start may wait for the same one.
        return await asyncio.shield(task)

    def _begin(self, start: _Start, attempt: int) -> asyncio.Task[Snapshot]:
        return asyncio.get_running_loop().create_task(self._make(start, attempt))

    async def _make(self, start: _Start, attempt: int) -> Snapshot:
        if attempt > MAX_ATTEMPTS:
            return Snapshot(None, "the files of the profile change all the time", None, attempt)
        began = time.time_ns()
        limit = start.params.timeout_ms
        seconds = CAPTURE_SECONDS if limit is None else min(CAPTURE_SECONDS, limit / 1000)
        variables: Mapping[str, str] = start.spec.environment
        script: bytes | None = None
        obstacle: str | None = None
        try:
            async with asyncio.timeout(seconds):
                login = await self._dump(start, None)
                variables = {**variables, **start.kind.strings(login)}
                # A value that is made anew each time (a key, a time, a process) cannot be kept.
                require_equal(await self._dump(start, None), login, "is another one each time")
                script = await self._restoring(start, login)
        except UnfitError as error:
            obstacle = f"the profile cannot be kept: {error}"
        except TimeoutError:
            obstacle = f"the profile takes longer than {seconds:g} s"
            if seconds < CAPTURE_SECONDS:
                return Snapshot(None, obstacle, None, attempt)
        except (OSError, ValueError, RpcError) as error:
            return Snapshot(None, f"the shell cannot be started: {error}", None, attempt)
        except Exception as error:
            # The command has no need of a snapshot.
            log.error("a shell snapshot cannot be made", exc_info=error)
            return Snapshot(None, "a fault of the daemon, which has it in its log", None, attempt)
        files = None
        try:
            first = start.kind.startup_files(variables)
            async with asyncio.timeout(CAPTURE_SECONDS):
                files = await asyncio.to_thread(StartupFiles, first, variables, start.spec.cwd)
            if files.changed_since(began):
                script, files, obstacle = None, None, "the files of the profile have just changed"
        except UnfitError as error:
            script, obstacle = None, f"the profile cannot be kept: {error}"
        except TimeoutError:
            script, obstacle = None, f"to look at its files takes longer than {CAPTURE_SECONDS:g} s"
        if obstacle is not None:
            log.info("a command runs in a login shell, without a snapshot", reason=obstacle)
        return Snapshot(script, obstacle, files, attempt, start.kind)

    async def _restoring(self, start: _Start, login: Dump) -> bytes:
        """The script that restores a state. Raises UnfitError if there is none."""
        policy = start.params.env_policy
        plain = await self._dump(start, start.kind.FIRST_LINES.encode())
        script = start.kind.difference(plain, login, lambda name: is_dropped(name, policy))
        of_the_call = start.spec.environment.get(_OF_THE_CALL)
        if of_the_call and os.fsencode(of_the_call) in script:
            raise UnfitError(f"it uses {_OF_THE_CALL}")
        require_equal(await self._dump(start, script), login, "cannot be restored exactly")
        return script

    async def _dump(self, start: _Start, script: bytes | None) -> Dump:
        """The state of a login shell, or of a shell with a script in the place of the profile."""
        spec, policy, kind = start.spec, start.policy, start.kind
        name, login, _, *arguments = spec.arguments
        dump = kind.dump_script(count_processes=policy is not None and policy.limits_files)
        spec = replace(spec, arguments=(name, login, dump, *arguments))
        with Snapshot(script, None, kind=kind).opened() as launch:
            spec = launch(spec)
            return kind.parsed(*await self._runs.run(spec, TYPED, policy))


async def _is_true(snapshot: Snapshot) -> bool:
    """Whether a snapshot says what a new one would say."""
    if snapshot.attempts > MAX_ATTEMPTS:
        return _age(snapshot) < PAUSE_SECONDS
    return snapshot.files is not None and await asyncio.to_thread(snapshot.files.unchanged)


def _age(snapshot: Snapshot) -> float:
    return time.monotonic() - snapshot.made_at


def _unusable(params: StartParams) -> str | None:
    """Why a start cannot use a snapshot, whatever the profile."""
    asked = params.shell_snapshot
    assert asked is not None
    kind = _KINDS.get(asked.shell.name)
    if kind is None:
        return f"there are snapshots for {' and '.join(_KINDS)}, and not for {asked.shell.name}"
    if params.argv[:2] != [asked.shell.path, _LOGIN] or len(params.argv) < 3 or params.arg0 is not None:
        return f"the command is not `{asked.shell.path} {_LOGIN} SCRIPT`"
    if params.limits is not None and params.limits.need_group:
        return "its limits hold for the profile, too"
    if params.network_proxy is not None:
        return "the network proxy of each start is another one"
    if not kind.usable(params.argv[2]):
        return "the script would mean something else behind a semicolon"
    if params.tty:
        return "profiles do other things in a terminal"
    return None


def _key(start: _Start) -> tuple[object, ...]:
    params = start.params
    assert params.shell_snapshot is not None
    environment = {name: value for name, value in start.spec.environment.items() if name != _OF_THE_CALL}
    digests = start_digests(replace(params, env=environment, argv=params.argv[3:] or [""]))
    return tuple(digests.get(name) for name in _COMPARED)
