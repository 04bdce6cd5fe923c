"""The probe of bubblewrap: whether it runs on this machine, and whether it *confines*.

A sandbox like those of requests (`bubblewrap.py`) is made in a private folder, and a program inside tries
allowed and forbidden operations. Its report alone is not trusted: the probe checks on the host that the
forbidden file does not exist. Blocking, for a thread; Linux only.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from execserver import descendants
from execserver.sandbox import bubblewrap as builder
from execserver.sandbox import seccomp
from execserver.sandbox.bubblewrap import SealedProgram, memory_file
from execserver.sandbox.diagnostics import inside_probe
from execserver.sandbox.diagnostics.launch_failures import INSTALL, MINIMUM_VERSION, explain
from execserver.sandbox.policy import is_below
from execserver.sandbox.state_folder import remove_old_folders
from execserver.sandbox.thread_limits import TAGGED_SPAWN
from execserver.sandbox.view import Bind, Mask, View

TIMEOUT = 10.0
"""Seconds for one run of bubblewrap. A run takes some 50 ms; a loaded machine may be slow."""

SYSTEM_PATH = "/usr/local/bin:/usr/bin:/bin:/run/current-system/sw/bin"
"""Folders to search for bubblewrap after the daemon's `PATH`, which a service manager may shorten."""

NEEDED = frozenset(
    {
        "args",
        "bind",
        "cap-add",
        "cap-drop",
        "chdir",
        "dev",
        "dev-bind",
        "die-with-parent",
        "disable-userns",
        "json-status-fd",
        "new-session",
        "perms",
        "proc",
        "remount-ro",
        "ro-bind",
        "seccomp",
        "setenv",
        "symlink",
        "tmpfs",
        "unshare-ipc",
        "unshare-net",
        "unshare-pid",
        "unshare-user",
    }
)
"""Options that enforcing a policy needs. Version 0.8.0 has all of them."""

_REPLACE = (
    "install the real bubblewrap instead; where the kernel itself (gVisor, some containers) ignores its "
    'requests, rely on the container alone: clients then send the profile `{"type": "external", …}`'
)
_OPTION = re.compile(r"^\s+--([a-z0-9-]+)", re.MULTILINE)
_VERSION = re.compile(r"bubblewrap (\d+)\.(\d+)(?:\.(\d+))?")
_PREFIX, _CLOSED = "probe-", "empty-folder"
"""The prefix of a probe's folder, and the name of the empty folder of mode 000 in it."""
_ABANDONED = 60.0
"""Seconds after which a probe's folder was left by a killed daemon: a probe takes less than a second."""
_AFTER_KILL = 2.0
"""Seconds to wait for killed processes; those that hang in the kernel are left alone."""


class ProbeResult(msgspec.Struct, frozen=True):
    """The result of a probe."""

    works: bool
    reason: str = ""
    """Why bubblewrap does not work, for an error message; empty if it works."""

    fix: str = ""
    version: str = ""
    """From `bwrap --version`, like "0.8.0"; empty if unknown."""

    features: frozenset[str] = frozenset()
    """The names of its options, without dashes."""

    path: str | None = None
    """The program; None if it was not found."""

    sealed: SealedProgram | None = None
    """The sealed copy to run; None if only the program itself works."""

    identity: tuple[int, ...] = ()
    """Identifies the program file, to notice when it is replaced."""

    @property
    def is_current(self) -> bool:
        """Whether the program at the path is still the one that was probed."""
        return self.path is not None and _identity(self.path) == self.identity


def probe(
    bubblewrap: str | None, state_folder: str, search_path: str | None = None, *, timeout: float = TIMEOUT
) -> ProbeResult:
    """Find bubblewrap and run a sandbox.

    Args:
        bubblewrap: the program; None for the first `bwrap` in `search_path` and the system's folders.
        state_folder: a private folder for the probe's files, which are removed; files that a killed daemon
            left more than a minute ago are removed too.
        search_path: the daemon's `PATH`; None for that of this process. Folders in which a command could
            plant a program are skipped.
        timeout: seconds for each run, after which it is killed.
    """
    path = os.environ.get("PATH", "") if search_path is None else search_path
    found = find(bubblewrap, path)
    if isinstance(found, ProbeResult):
        return found
    known = _ask(found, timeout)
    if known.reason:
        return known
    identity = _identity(found)  # before it is read, so that a replacement meanwhile is noticed
    sealed = _sealed(found)
    try:
        reason, fix = _try(found, sealed, state_folder, timeout)
        if reason and sealed is not None:
            # AppArmor grants namespaces by the program's path, which the copy does not have.
            sealed = None
            reason, fix = _try(found, None, state_folder, timeout)
    except OSError as error:
        reason = f"the sandbox could not be tried: {error}"
        fix = f"free disk space and descriptors, and check that {state_folder} can be written"
    return ProbeResult(
        not reason, reason, fix, known.version, known.features, found, None if reason else sealed, identity
    )


def find(bubblewrap: str | None, search_path: str) -> str | ProbeResult:
    """The program's path, or the failed result."""
    if bubblewrap is None:
        folders = [*filter(_is_out_of_reach, search_path.split(":")), SYSTEM_PATH]
        found = shutil.which("bwrap", path=":".join(folders))
        return found or ProbeResult(False, "the program bwrap (bubblewrap) is missing", INSTALL)
    if not os.path.isfile(bubblewrap):
        what = "is a folder" if os.path.isdir(bubblewrap) else "does not exist"
        return ProbeResult(False, f"the setting bubblewrap names {bubblewrap}, which {what}", INSTALL)
    if not os.access(bubblewrap, os.X_OK):
        return ProbeResult(
            False,
            f"the setting bubblewrap names {bubblewrap}, which may not be executed",
            f"`chmod +x {bubblewrap}`, or remove the setting",
        )
    return os.path.abspath(bubblewrap)


def _is_out_of_reach(folder: str) -> bool:
    """Whether no command can plant a program in a folder, which would then confine the next command.

    Such a folder belongs to root, only root can write to it, and it is not in the home folder, which a policy
    may make writable. A relative one depends on where the daemon was started.
    """
    if not os.path.isabs(folder) or is_below(os.path.realpath(folder), os.path.expanduser("~")):
        return False
    try:
        status = os.stat(folder)
    except OSError:
        return False
    return status.st_uid == 0 and not status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)


def _ask(path: str, timeout: float) -> ProbeResult:
    """Ask for version and options; the result has a reason if these are not enough."""
    answers = []
    for option in ("--version", "--help"):
        try:
            done = _run([path, option], timeout)
        except subprocess.TimeoutExpired:
            return ProbeResult(False, f"{path} did not answer within {timeout:g} s", INSTALL, path=path)
        except OSError as error:
            return ProbeResult(False, f"{path} cannot be run: {error.strerror}", INSTALL, path=path)
        if done.returncode:  # out of memory, say: then what is missing in the answer proves nothing
            words = done.stderr.strip() or "without a message"
            reason = f"`{path} {option}` failed with status {done.returncode}: {words}"
            return ProbeResult(False, reason, f"run `{path} {option}` by hand", path=path)
        answers.append(done.stdout)
    version_text, features = answers[0], frozenset(_OPTION.findall(answers[1]))
    match = _VERSION.search(version_text)
    if match is None:
        reason = f"{path} is not bubblewrap: `{path} --version` does not say so"
        return ProbeResult(False, reason, INSTALL, "", features, path)
    version = match[0].removeprefix("bubblewrap ")
    missing = sorted(NEEDED - features)
    needed = ".".join(map(str, MINIMUM_VERSION))
    reason = ""
    if tuple(int(part or 0) for part in match.groups()) < MINIMUM_VERSION:
        reason = f"bubblewrap {version} ({path}) is too old: {needed} is needed"
    elif missing:
        options = ", ".join(f"--{name}" for name in missing)
        reason = f"bubblewrap {version} ({path}) lacks {options}, which {needed} has"
    return ProbeResult(False, reason, INSTALL if reason else "", version, features, path)


def _identity(path: str) -> tuple[int, ...]:
    try:
        status = os.stat(path)
    except OSError:
        return ()
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


def _sealed(path: str) -> SealedProgram | None:
    try:
        return SealedProgram(path)
    except OSError:
        return None


def _try(path: str, sealed: SealedProgram | None, state_folder: str, timeout: float) -> tuple[str, str]:
    """Run sandboxes without and with the network; returns reason and fix if they do not run or confine."""
    try:
        programs = {
            network: seccomp.program(network=network, files_limited=True, tracing=sealed is not None)
            for network in (False, True)
        }
    except seccomp.UnknownArchitectureError as error:
        return str(error), "run the daemon on another architecture"
    remove_old_folders(state_folder, _PREFIX, _ABANDONED, [_CLOSED])
    folder = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=state_folder))
    try:
        for name in ("open", "closed", "masked", _CLOSED):
            (folder / name).mkdir()
        (folder / "masked" / "secret").touch()
        (folder / _CLOSED).chmod(0)
        (folder / "empty-file").touch(0)
        for network, program in programs.items():
            done = _confined(path, sealed, folder, program, network, timeout)
            reason, fix = _judged(done, folder, path, network)
            if reason:
                return reason, fix
        return "", ""
    except subprocess.TimeoutExpired:
        return (
            f"a sandbox made by {path} did not end within {timeout:g} s; it was killed",
            "check whether a file system of this machine hangs, and try again",
        )
    finally:
        with contextlib.suppress(OSError):
            (folder / _CLOSED).rmdir()  # rmtree would list it, which an ordinary user may not
        shutil.rmtree(folder, ignore_errors=True)


def _confined(
    path: str, sealed: SealedProgram | None, folder: Path, program: bytes, network: bool, timeout: float
) -> subprocess.CompletedProcess[str]:
    mounts = (
        Bind(f"{folder}/open", f"{folder}/open", writable=True),
        Mask(f"{folder}/masked", directory=True),
    )
    view = View("read", mounts, network=network)
    sources = builder.Sources(f"{folder}/empty-file", f"{folder}/{_CLOSED}")
    targets = [f"{folder}/{name}" for name in ("open/file", "closed/file", "masked")]
    command = [sys.executable, "-I", "-S", inside_probe.__file__, *targets]
    inside = builder.SandboxedCommand(command, "/", {"LC_ALL": "C"}, dies_with_parent=True)
    descriptors: list[int] = []
    try:
        descriptors.append(memory_file(program))
        descriptors.append(os.open("/dev/null", os.O_WRONLY | os.O_CLOEXEC))  # the exit code is enough
        made = builder.options(view, sources, root_user=os.geteuid() == 0)
        descriptors.append(memory_file(builder.arguments(made, inside, descriptors[0], descriptors[1])))
        launch = [path if sealed is None else sealed.path, "--args", str(descriptors[2]), "--", *command]
        return _run(launch, timeout, descriptors if sealed is None else [*descriptors, sealed.fileno()])
    finally:
        for descriptor in descriptors:
            os.close(descriptor)


def _judged(
    done: subprocess.CompletedProcess[str], folder: Path, path: str, network: bool
) -> tuple[str, str]:
    # First the check that does not depend on the program's report.
    if (folder / "closed" / "file").exists():
        return _not_confining(path, "a file could be written where only reading was allowed")
    if done.returncode != 0:
        words = done.stderr if done.stderr.strip() else f"no message, status {done.returncode}"
        failure = explain(words, path)
        return failure.cause, failure.fix
    try:
        seen: dict[str, Any] = json.loads(done.stdout)
        return _judged_by(seen, folder, path, network)
    except (ValueError, KeyError, TypeError, AttributeError):
        return _not_confining(path, "the program in it did not report its results")


def _judged_by(seen: Mapping[str, Any], folder: Path, path: str, network: bool) -> tuple[str, str]:
    if seen["open"] or not (folder / "open" / "file").exists():
        why = seen["open"] or "the file is not there"
        return (
            f"in a sandbox made by {path} a file cannot be written where that is allowed ({why})",
            f"check that the file system of {folder.parent} can be written, or name another with --spool-dir",
        )
    own = {kind: os.readlink(f"/proc/self/ns/{kind}") for kind in seen["namespaces"]}
    expected = {"net"} if network else set()
    shared = sorted(kind for kind, name in seen["namespaces"].items() if name == own[kind])
    shared = [kind for kind in shared if kind not in expected]
    # All but bubblewrap's first process and ours.
    host_processes = len(seen["processes"]) - 2
    for wrong, what in (
        (shared, f"it shares the host's namespaces: {', '.join(shared)}"),
        (host_processes > 0, "processes of the host can be seen"),
        (seen["seccomp"] != "2", "no seccomp filter is on"),
        (not network and not seen["socket"], "a network socket could be made"),
        (seen["no_new_privs"] != "1", "set-user-id programs gain privileges"),
        (int(seen["capabilities"], 16), "it has capabilities"),
        (not seen["masked"], "a folder that is hidden could be listed"),
        (not seen["launcher"], "the file of bubblewrap itself can be reached, past every read-only mount"),
        (
            not seen["traced"] or not seen["held"],
            "the first process inside, which has no filter, can be traced",
        ),
    ):
        if wrong:
            return _not_confining(path, what)
    return "", ""


def _not_confining(path: str, what: str) -> tuple[str, str]:
    return f"bubblewrap ({path}) runs but does not confine: {what}", _REPLACE


def _run(
    command: Sequence[str], timeout: float, descriptors: Sequence[int] = ()
) -> subprocess.CompletedProcess[str]:
    """Run a command to its end; after the timeout it is killed with all its descendants.

    Raises:
        OSError: the command cannot be started.
        TimeoutExpired: it was killed.
    """
    with TAGGED_SPAWN:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={"LC_ALL": "C"},
            pass_fds=descriptors,
            start_new_session=True,
            text=True,
            errors="replace",
        )
    try:
        out, errors = process.communicate(timeout=timeout)
    except BaseException:
        # By parent pid, since a sandbox has its own session; no process has the tag of a new instance.
        descendants.kill_descendants(descendants.new_instance(), roots=(process.pid,), timeout=_AFTER_KILL)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.communicate(timeout=_AFTER_KILL)
        for stream in (process.stdout, process.stderr):
            if stream is not None:
                stream.close()
        raise
    return subprocess.CompletedProcess(command, process.returncode, out, errors)
