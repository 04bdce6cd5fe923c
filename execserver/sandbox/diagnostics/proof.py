"""The proof that a backend *confines*: trials in sandboxes made by it, which the daemon judges.

The backend wraps a program of the daemon like any command (`backend.py`), in a private folder. The program
tries allowed and forbidden operations. Its report alone is not trusted: the forbidden file is looked for on
the host. Blocking, for a thread; Linux only.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import shutil
import signal
import socket
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from execserver import descendants
from execserver.launch_spec import LaunchSpec
from execserver.sandbox.backend import Sandbox, SandboxBackend, Sources
from execserver.sandbox.diagnostics import inside_probe
from execserver.sandbox.diagnostics.launch_failures import LaunchFailure
from execserver.sandbox.state_folder import remove_old_folders
from execserver.sandbox.thread_limits import spawn_limited, tagged_spawn
from execserver.sandbox.view import Bind, Mask, View

TIMEOUT = 10.0
"""Seconds for one run of a launcher. A run takes some 50 ms; a loaded machine may be slow."""

_PREFIX, _CLOSED = "probe-", "empty-folder"
"""The prefix of a proof's folder, and the name of the empty folder of mode 000 in it."""
_ABANDONED = 60.0
"""Seconds after which a proof's folder was left by a killed daemon: a proof takes less than a second."""
_AFTER_KILL = 2.0
"""Seconds to wait for killed processes; those that hang in the kernel are left alone."""
_MOST_OUTPUT = 1 << 20

_ENVIRONMENT = {"LC_ALL": "C"}
_SHELLS_OWN = {"HOME", "LC_CTYPE", "OLDPWD", "PATH", "PWD", "SHLVL", "TERM", "_"}
"""Variables that launchers set by themselves, so that their values say nothing about their source."""


class Done(msgspec.Struct, frozen=True):
    """A launch that has ended."""

    returncode: int
    """The exit code, or the negative number of the signal that killed it."""

    stdout: str
    stderr: str


class TimedOut(Exception):
    """A launch did not end in time, and was killed with its descendants."""


class _Trial(msgspec.Struct, frozen=True):
    """One sandbox to try."""

    view: View
    namespaces: bool
    """Whether it has its own."""

    masks: bool
    """Whether a folder is hidden in it."""


def prove(
    name: str,
    backend: SandboxBackend,
    state_folder: str,
    *,
    explain: Callable[[str], LaunchFailure],
    fix: str,
    timeout: float = TIMEOUT,
) -> LaunchFailure | None:
    """Try sandboxes without and with the network.

    Args:
        name: the backend, in error messages.
        backend: makes the sandboxes.
        state_folder: a private folder for files, which are removed; files that a killed daemon left more than
            a minute ago are removed too.
        explain: the failure for the error text of a launcher.
        fix: what to do about a backend that does not confine.
        timeout: seconds for each run, after which it is killed.

    Returns:
        None if all forbidden operations failed, and the allowed ones worked.
    """
    try:
        remove_old_folders(state_folder, _PREFIX, _ABANDONED, [_CLOSED])
        folder = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=state_folder))
    except OSError as error:
        return _not_tried(error, state_folder)
    try:
        for part in ("open", "closed", "masked", _CLOSED):
            (folder / part).mkdir()
        (folder / "masked" / "secret").touch()
        (folder / _CLOSED).chmod(0)
        (folder / "empty-file").touch(0)
        judge = _Judge(name, folder, explain, fix)
        trials = _trials(backend, folder)
        if not trials:
            return LaunchFailure(f"{name} cannot make any sandbox that could be tried", fix)
        for trial in trials:
            failure = judge.failure(backend, trial, timeout)
            if failure is not None:
                return failure
        return None
    except TimedOut:
        return LaunchFailure(
            f"a sandbox made by {name} did not end within {timeout:g} s; it was killed",
            "check whether a file system of this machine hangs, and try again",
        )
    except OSError as error:
        return _not_tried(error, state_folder)
    finally:
        with contextlib.suppress(OSError):
            (folder / _CLOSED).rmdir()  # rmtree would list it, which an ordinary user may not
        shutil.rmtree(folder, ignore_errors=True)


def _not_tried(error: OSError, state_folder: str) -> LaunchFailure:
    return LaunchFailure(
        f"the sandbox could not be tried: {error}",
        f"free disk space and descriptors, and check that {state_folder} can be written",
    )


def _trials(backend: SandboxBackend, folder: Path) -> list[_Trial]:
    """The sandboxes to try: with as many limits as the backend can state."""
    bind = Bind(f"{folder}/open", f"{folder}/open", writable=True)
    mask = Mask(f"{folder}/masked", directory=True)
    for mounts in ((bind, mask), (bind,)):
        views = [View("read", mounts, network=network) for network in (False, True)]
        if not any(map(backend.unstatable, views)):
            return [_Trial(view, backend.namespaces, mask in mounts) for view in views]
    view = View("host", (), namespaces=False)
    return [] if backend.unstatable(view) else [_Trial(view, False, False)]


class _Judge:
    """Runs trials and judges what was done in them."""

    def __init__(self, name: str, folder: Path, explain: Callable[[str], LaunchFailure], fix: str) -> None:
        self._name = name
        self._folder = folder
        self._explain = explain
        self._fix = fix

    def failure(self, backend: SandboxBackend, trial: _Trial, timeout: float) -> LaunchFailure | None:
        """What is wrong with one sandbox."""
        folder = self._folder
        files = [f"{folder}/{part}" for part in ("open/file", "closed/file", "masked")]
        with _listener() as address:
            command = LaunchSpec(
                sys.executable,
                (sys.executable, "-I", "-S", inside_probe.__file__, *files, address, str(os.getpid())),
                "/",
                _ENVIRONMENT,
            )
            sources = Sources(f"{folder}/empty-file", f"{folder}/{_CLOSED}")
            launch_folder = folder / "launch"
            launch_folder.mkdir(mode=0o700, exist_ok=True)
            sandbox = Sandbox(
                view=trial.view, sources=sources, folder=str(launch_folder), dies_with_parent=True
            )
            before = _inheritable()
            done = run(backend.wrap(command, sandbox), timeout, without=before)
        shutil.rmtree(launch_folder, ignore_errors=True)
        # First the check that does not depend on the program's report.
        closed, opened = folder / "closed" / "file", folder / "open" / "file"
        if trial.view.base != "host" and closed.exists():
            return self._not_confining("a file could be written where only reading was allowed")
        if done.returncode != 0:
            return self._explain(
                done.stderr if done.stderr.strip() else f"no message, status {done.returncode}"
            )
        try:
            seen: dict[str, Any] = json.loads(done.stdout)
            if seen["open"] or not opened.exists():
                return self._cannot_write(seen["open"] or "the file is not there")
            wrong = next((what for is_wrong, what in _faults(seen, trial) if is_wrong), None)
            return None if wrong is None else self._not_confining(wrong)
        except (ValueError, KeyError, TypeError, AttributeError):
            return self._not_confining("the program in it did not report its results")

    def _cannot_write(self, why: str) -> LaunchFailure:
        return LaunchFailure(
            f"in a sandbox made by {self._name} a file cannot be written where that is allowed ({why})",
            f"check that the file system of {self._folder.parent} can be written, or name another with "
            "--spool-dir",
        )

    def _not_confining(self, what: str) -> LaunchFailure:
        return LaunchFailure(f"{self._name} runs but does not confine: {what}", self._fix)


def _faults(seen: Mapping[str, Any], trial: _Trial) -> Iterator[tuple[bool, str]]:
    """The faults that a report may show, each with whether it does."""
    limited = trial.view.base != "host"
    network = trial.view.network
    if trial.namespaces:
        yield from _shared(seen, network)
    yield seen["seccomp"] != "2", "no seccomp filter is on"
    yield not network and not seen["socket"], "a network socket could be made"
    yield not network and not seen["abstract"], "an abstract socket of the host could be reached"
    yield seen["no_new_privs"] != "1", "set-user-id programs gain privileges"
    if limited:
        yield int(seen["capabilities"], 16) != 0, "it has capabilities"
        yield not trial.namespaces and not seen["signal"], "processes of the host can be signalled"
        yield not seen["nested"], "namespaces can be made in it"
    yield trial.masks and not seen["masked"], "a folder that is hidden could be listed"
    if trial.namespaces:
        yield not seen["launcher"], "its first program can be reached, past every read-only mount"
        yield (
            not seen["traced"] or not seen["held"],
            "the first process inside, which has no filter, can be traced",
        )
    yield bool(seen["descriptors"]), f"it passes descriptors on: {', '.join(seen['descriptors'])}"
    environment = seen["environment"]
    yield not _ENVIRONMENT.items() <= environment.items(), "it drops variables of the command"
    passed = {name for name, value in os.environ.items() if environment.get(name) == value}
    passed -= _SHELLS_OWN | _ENVIRONMENT.keys()
    yield bool(passed), f"it passes variables of the daemon on: {', '.join(sorted(passed))}"


def _shared(seen: Mapping[str, Any], network: bool) -> Iterator[tuple[bool, str]]:
    own = {kind: os.readlink(f"/proc/self/ns/{kind}") for kind in seen["namespaces"]}
    expected = {"net"} if network else set()
    shared = [kind for kind in sorted(own) if seen["namespaces"][kind] == own[kind]]
    shared = [kind for kind in shared if kind not in expected]
    yield bool(shared), f"it shares the host's namespaces: {', '.join(shared)}"
    # All but the first process inside and ours.
    yield len(seen["processes"]) - 2 > 0, "processes of the host can be seen"


@contextlib.contextmanager
def _listener() -> Iterator[str]:
    """An abstract Unix socket of the host; its address without the NUL."""
    address = f"execserver-{os.urandom(8).hex()}"
    with contextlib.ExitStack() as stack:
        # A daemon in a sandbox without Unix sockets makes none, and neither does any process below it.
        with contextlib.suppress(PermissionError):
            listener = stack.enter_context(socket.socket(socket.AF_UNIX))
            listener.bind(f"\0{address}")
            listener.listen()
        yield address


# -- running a launch


def _inheritable() -> list[int]:
    """Descriptors that a child of this process gets; the daemon has none, but `execserver doctor` may."""
    found = []
    for fd in map(int, os.listdir("/proc/self/fd")):
        with contextlib.suppress(OSError):  # closed since, like that of the listing
            if fd > 2 and os.get_inheritable(fd):
                found.append(fd)
    return found


def run(launch: LaunchSpec, timeout: float, *, without: Sequence[int] = ()) -> Done:
    """Run a launch to its end, with no input; after the timeout it is killed with all its descendants.

    Its descriptors are closed. The working directory is the daemon's own.

    Args:
        launch: the launch.
        timeout: in seconds.
        without: descriptors that it does not get.

    Raises:
        OSError: it cannot be started.
        TimedOut: it was killed.
    """
    outputs: list[int] = []
    try:
        outputs += [os.memfd_create(stream) for stream in ("out", "errors")]
        pid = _spawn(launch, outputs, without)
        status = _ended(pid, timeout)
        out, errors = (os.pread(output, _MOST_OUTPUT, 0).decode("utf-8", "replace") for output in outputs)
        return Done(status, out, errors)
    finally:
        for fd in (*outputs, *launch.passed, launch.status, launch.gate):
            if fd is not None:
                os.close(fd)


def _spawn(launch: LaunchSpec, outputs: Sequence[int], without: Sequence[int]) -> int:
    # As the daemon spawns commands: what a launch leaves inheritable is seen inside.
    def spawn() -> int:
        return os.posix_spawn(
            launch.program,
            launch.arguments,
            launch.environment,
            setsid=True,
            setsigmask=[],
            setsigdef=[signal.SIGPIPE, signal.SIGINT, signal.SIGTERM, signal.SIGCHLD],
            file_actions=[
                (os.POSIX_SPAWN_OPEN, 0, launch.null or os.devnull, os.O_RDONLY, 0),
                *((os.POSIX_SPAWN_DUP2, output, number) for number, output in enumerate(outputs, 1)),
                *((os.POSIX_SPAWN_CLOSE, fd) for fd in without),
                *((os.POSIX_SPAWN_DUP2, fd, fd) for fd in launch.passed),
            ],
        )

    with tagged_spawn(None):
        return spawn() if launch.limit is None else spawn_limited(partial(launch.limit, None), spawn)


def _ended(pid: int, timeout: float) -> int:
    """Wait for the end of a child."""
    ended = False
    try:
        pidfd = os.pidfd_open(pid)
        try:
            poller = select.poll()
            poller.register(pidfd, select.POLLIN)
            ended = bool(poller.poll(timeout * 1000))
        finally:
            os.close(pidfd)
    finally:
        if not ended:
            # By parent pid, since a sandbox has its own session; no process has the tag of a new instance.
            descendants.kill_descendants(descendants.new_instance(), roots=(pid,), timeout=_AFTER_KILL)
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)
    if not ended:
        raise TimedOut
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
