"""The probe of a backend: whether it runs on this machine, and whether it *confines* (`proof.py`).

Blocking, for a thread; Linux only.
"""

from __future__ import annotations

import os
import re
import shutil
import stat
from functools import partial

import msgspec

from execserver.launch_spec import LaunchSpec
from execserver.sandbox import seccomp
from execserver.sandbox.backend import Inspection, SandboxBackend
from execserver.sandbox.backends import Bubblewrap
from execserver.sandbox.bubblewrap import SealedProgram
from execserver.sandbox.diagnostics import proof
from execserver.sandbox.diagnostics.launch_failures import (
    INSTALL,
    MINIMUM_VERSION,
    LaunchFailure,
    explain,
    last_line,
)
from execserver.sandbox.diagnostics.proof import TIMEOUT
from execserver.sandbox.policy import is_below

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


class ProbeResult(msgspec.Struct, frozen=True):
    """The result of a probe."""

    works: bool
    reason: str = ""
    """Why the backend does not work, for an error message; empty if it works."""

    fix: str = ""
    version: str = ""
    """From `bwrap --version`, like "0.8.0"; empty if unknown."""

    features: frozenset[str] = frozenset()
    """The names of its options, without dashes."""

    path: str | None = None
    """The path of bubblewrap; None if it was not found."""

    sealed: SealedProgram | None = None
    """The sealed copy to run; None if only the program itself works."""

    backend: SandboxBackend | None = None
    """The backend, if it works."""

    inspection: Inspection = Inspection()
    """What the backend has found."""

    identity: tuple[tuple[int, ...], ...] = ()
    """Identifies its files, to notice when one is replaced."""

    @property
    def is_current(self) -> bool:
        """Whether the files of the backend are still those that were probed."""
        return _identities(self.inspection.files) == self.identity


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
    inspection = Inspection(files=(found,))
    identity = _identities(inspection.files)  # before it is read, so that a replacement meanwhile is noticed
    backend = Bubblewrap(found, _sealed(found))
    failure = _bubblewrap_failure(backend, found, state_folder, timeout)
    if failure is not None and backend.sealed is not None:
        # AppArmor grants namespaces by the program's path, which the copy does not have.
        backend = Bubblewrap(found)
        failure = _bubblewrap_failure(backend, found, state_folder, timeout)
    return ProbeResult(
        failure is None,
        "" if failure is None else failure.cause,
        "" if failure is None else failure.fix,
        known.version,
        known.features,
        found,
        None if failure is not None else backend.sealed,
        None if failure is not None else backend,
        inspection,
        identity,
    )


def _bubblewrap_failure(
    backend: Bubblewrap, path: str, state_folder: str, timeout: float
) -> LaunchFailure | None:
    try:
        return proof.prove(
            f"bubblewrap ({path})",
            backend,
            state_folder,
            explain=partial(explain, bubblewrap=path),
            fix=_REPLACE,
            timeout=timeout,
        )
    except seccomp.UnknownArchitectureError as error:
        return LaunchFailure(str(error), "run the daemon on another architecture")


def probe_backend(
    name: str, backend: SandboxBackend, state_folder: str, *, timeout: float = TIMEOUT
) -> ProbeResult:
    """Inspect a backend and run sandboxes.

    Args:
        name: its name, for error messages.
        backend: the backend.
        state_folder: as for `probe`.
        timeout: seconds for each run, after which it is killed.
    """
    inspection = backend.inspect()
    identity = _identities(inspection.files)
    if inspection.reason:
        return ProbeResult(False, inspection.reason, inspection.fix, inspection=inspection, identity=identity)
    failure = proof.prove(
        name,
        backend,
        state_folder,
        explain=lambda text: LaunchFailure(f"{name} failed: {last_line(text)}", f"see how {name} is set up"),
        fix="use another backend",
        timeout=timeout,
    )
    if failure is not None:
        return ProbeResult(False, failure.cause, failure.fix, inspection=inspection, identity=identity)
    return ProbeResult(True, backend=backend, inspection=inspection, identity=identity)


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
            done = proof.run(LaunchSpec(path, (path, option), "/", {"LC_ALL": "C"}), timeout)
        except proof.TimedOut:
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


def _identities(files: tuple[str, ...]) -> tuple[tuple[int, ...], ...]:
    return tuple(map(_identity, files))


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
