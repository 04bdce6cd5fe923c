"""What confinement stands on, piece by piece: does this machine, this user have it, and if not, what to do.

Each function looks at one mechanism and gives a `Check`. Nothing is changed, but for the state folder,
which is made when missing. `doctor.py` puts them together.
"""

from __future__ import annotations

import json
import os
import resource
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from execserver import descendants
from execserver.sandbox import landlock, state_folder
from execserver.sandbox.devices import Devices
from execserver.sandbox.diagnostics import trials
from execserver.sandbox.diagnostics.launch_failures import apparmor_fix, restricted, setting
from execserver.sandbox.diagnostics.probe import ProbeResult
from execserver.sandbox.options import TOOL_PATH

Status = Literal["ok", "warning", "missing"]

_TRIAL_SECONDS = 20.0


@dataclass(frozen=True, slots=True)
class Check:
    """What was found about one mechanism. `missing`: requests will be refused for it."""

    name: str
    status: Status
    detail: str
    cause: str = ""
    fix: str = ""


@dataclass(frozen=True, slots=True)
class _Trial:
    name: str
    title: str
    works: str


_NAMESPACES = (
    _Trial("user", "user namespaces", "can be made by this user"),
    _Trial("mount", "mount namespaces", "can be made, cut off from the host's propagation, and mounted in"),
    _Trial("pid", "process namespaces", "can be made"),
    _Trial("network", "network namespaces", "can be made, and their loopback switched on"),
)


def kernel(bubblewrap_works: bool, bubblewrap: str, proc: str = "/proc") -> Iterator[Check]:
    """Namespaces and seccomp, each tried.

    Args:
        bubblewrap_works: then what a program without bubblewrap's permissions may not do is no fault.
        bubblewrap: the program that is to be allowed it.
        proc: where procfs is.
    """
    tried = _tried()
    for trial in _NAMESPACES:
        error = tried.get(trial.name, "was not tried")
        if not error:
            yield Check(trial.title, "ok", trial.works)
        elif bubblewrap_works:
            detail = f"not for every program ({error}), but for bubblewrap"
            yield Check(trial.title, "ok", detail)
        else:
            failure = restricted(error, bubblewrap, proc)
            yield Check(trial.title, "missing", error, failure.cause, failure.fix)
    error = tried.get("seccomp", "was not tried")
    if not error:
        yield Check("seccomp", "ok", "filters can be loaded")
    else:
        cause = f"no filter can be loaded ({error})"
        fix = "use a kernel with CONFIG_SECCOMP_FILTER, and a container that leaves prctl alone"
        yield Check("seccomp", "missing", error, cause, fix)


def _tried() -> dict[str, str]:
    """What `trials.py` says; for each trial an error when it says nothing."""
    command = [sys.executable, "-I", "-S", trials.__file__]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_TRIAL_SECONDS, check=True, env={"LC_ALL": "C"}
        )
        found: dict[str, str] = json.loads(done.stdout)
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        return dict.fromkeys(("user", "mount", "pid", "network", "seccomp"), f"could not be tried: {error}")
    return found


def landlock_check(allowed: bool) -> Check:
    """Landlock, which is needed by nobody who has bubblewrap."""
    version = landlock.abi()
    detail = f"ABI {version}" if version else "the kernel has none, or it is off"
    if not allowed:
        return Check("Landlock", "ok", f"{detail}; not used (--allow-landlock)")
    reason = landlock.unavailable()
    if reason is None:
        return Check("Landlock", "ok", f"{detail}; used where bubblewrap does not work")
    cause, _, fix = reason.partition("; ")
    return Check("Landlock", "warning", detail, cause, fix)


def bubblewrap_check(result: ProbeResult) -> Check:
    """The program itself: is it there, and new enough?"""
    if result.path is None or not result.version:
        return Check("bubblewrap", "missing", result.path or "not found", result.reason, result.fix)
    optional = [f"--{name}" for name in ("argv0", "bind-fd", "ro-bind-fd") if name in result.features]
    more = f", with {', '.join(optional)}" if optional else ""
    if result.works and result.sealed is None:
        more += "; run itself and from no sealed copy, so that commands may trace nothing"
    return Check("bubblewrap", "ok", f"{result.path} {result.version}{more}")


def sandbox_check(result: ProbeResult | None, landlock_allowed: bool) -> Check:
    """Whether a sandbox that was made just now confines.

    Args:
        result: None when there was no state folder to try it in.
        landlock_allowed: whether Landlock may take bubblewrap's place.
    """
    if result is None:
        return Check("sandbox", "missing", "was not tried", "there is no state folder", "see state folder")
    if result.works:
        detail = "runs and confines: what is forbidden failed inside, and what is allowed worked"
        return Check("sandbox", "ok", detail)
    detail = "does not work: requests that are to be confined are refused"
    if landlock_allowed and landlock.unavailable() is None:
        detail = "does not work: Landlock enforces what it can, other requests are refused"
    return Check("sandbox", "missing", detail, result.reason, result.fix)


def tool_checks() -> Iterator[Check]:
    """Programs that set commands up inside a sandbox."""
    for name, package, use in (
        ("setsid", "util-linux", "sandboxed terminals (`tty: true`)"),
        ("bash", "bash", "sandboxed commands with `arg0`"),
    ):
        path = shutil.which(name, path=TOOL_PATH)
        if path is not None:
            yield Check(name, "ok", path)
        else:
            status: Status = "missing" if name == "setsid" else "warning"
            cause = f"{name} is needed for {use}, which are refused without it"
            yield Check(name, status, "not found", cause, f"install {package}")


def apparmor_check(bubblewrap: str, bubblewrap_works: bool, proc: str = "/proc") -> Check:
    """Whether AppArmor restricts user namespaces (Ubuntu 23.10 and later do)."""
    value = setting(proc, "kernel/apparmor_restrict_unprivileged_userns")
    if value != "1":
        detail = "does not restrict user namespaces" if value is not None else "the kernel has no restriction"
        return Check("AppArmor", "ok", detail)
    if bubblewrap_works:
        return Check("AppArmor", "ok", "restricts user namespaces, and lets bubblewrap have them")
    cause = "kernel.apparmor_restrict_unprivileged_userns is 1, and no profile lets bubblewrap have them"
    return Check("AppArmor", "warning", "restricts user namespaces", cause, apparmor_fix(bubblewrap))


def cgroup_check(proc: str = "/proc") -> Check:
    """Whether this process could make control groups below its own."""
    folder = _own_cgroup(proc)
    name = "control groups"
    fix = (
        "under systemd: Delegate=yes in the unit. Nothing depends on it in this version: the tag tells "
        "whose descendant a process is"
    )
    if folder is None:
        return Check(name, "warning", "no cgroup v2 is mounted", "the machine uses cgroup v1, or none", fix)
    if os.access(folder, os.W_OK) and os.access(f"{folder}/cgroup.procs", os.W_OK):
        return Check(name, "ok", f"{folder} can be written")
    cause = f"{folder} is not delegated to this user"
    return Check(name, "warning", "cgroup v2, not delegated", cause, fix)


def _own_cgroup(proc: str) -> str | None:
    """The folder of this process's cgroup v2, wherever that is mounted."""
    try:
        with open(f"{proc}/self/mountinfo", encoding="utf-8", errors="surrogateescape") as file:
            mounts = [line.split(" - ", 1) for line in file]
        with open(f"{proc}/self/cgroup", encoding="utf-8", errors="surrogateescape") as file:
            own = next((line[3:].rstrip("\n") for line in file if line.startswith("0::")), None)
    except OSError:
        return None
    at = next((left.split()[4] for left, right in mounts if right.startswith("cgroup2 ")), None)
    return None if at is None or own is None else f"{at}{own}".rstrip("/")


def membership_check() -> Check:
    """Whether the tag that marks descendants fits this process's hard limit."""
    hard = resource.getrlimit(resource.RLIMIT_RTTIME)[1]
    highest = descendants.tag_value((1 << descendants.INSTANCE_BITS) - 1, (1 << descendants.NUMBER_BITS) - 1)
    name = "membership tags"
    if hard == resource.RLIM_INFINITY or hard >= highest:
        return Check(name, "ok", "descendants are told by their tag in RLIMIT_RTTIME")
    cause = f"the hard limit RLIMIT_RTTIME is {hard} µs, and a tag needs {highest}"
    fix = "`ulimit -H -R unlimited` before the start, systemd: LimitRTTIME=infinity"
    return Check(name, "warning", "descendants are told by their parents only", cause, fix)


def user_check(uid: int) -> Check:
    """Root is a user like others for the kernel's settings, whatever capabilities it lost."""
    if uid != 0:
        return Check("user", "ok", f"uid {uid}")
    cause = "a command that got out of its sandbox would be root"
    return Check("user", "warning", "uid 0", cause, "run the daemon as an ordinary user")


def devices_check(state_folder: str, host: str = os.devnull) -> Check | None:
    """Whether root's sandboxes get device nodes that are not root's own; None for other users."""
    devices = Devices(state_folder, host)
    folder = devices.folder()
    if folder is not None:
        return Check("device nodes", "ok", f"{folder}: of a user that no command is")
    if not devices.reason:
        return None
    cause = f"{devices.reason}; so root's commands get the host's nodes, which are root's"
    fix = "name a folder with --spool-dir that is not mounted nodev, or run the daemon as an ordinary user"
    return Check("device nodes", "warning", "a command could change the mode of /dev/null", cause, fix)


def state_folder_check(
    configured: str | None, environment: Mapping[str, str], uid: int
) -> tuple[Check, str | None]:
    """The folder for state, made when missing; and its path, or None."""
    try:
        path = state_folder.open_state_folder(configured, environment, uid)
    except state_folder.StateFolderError as error:
        cause, _, fix = str(error).partition("; ")
        return Check("state folder", "missing", "cannot be used", cause, fix.removeprefix("or ")), None
    return Check("state folder", "ok", f"{path}, {state_folder.reason_for(configured, environment)}"), path
