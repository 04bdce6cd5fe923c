"""Checks of the mechanisms that confinement needs, each with cause and fix if the machine or user lacks it.

Each function checks one mechanism and returns a `Check`. Nothing is changed, except that a missing state
folder is created. `doctor.py` runs all of them.
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
    """The state of one mechanism. `missing`: requests that need it are refused."""

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
    _Trial("mount", "mount namespaces", "can be made and used, without propagation to the host"),
    _Trial("pid", "process namespaces", "can be made"),
    _Trial("network", "network namespaces", "can be made, with a loopback device"),
)


def kernel(bubblewrap_works: bool, bubblewrap: str, proc: str = "/proc") -> Iterator[Check]:
    """Check namespaces and seccomp by trying each.

    Args:
        bubblewrap_works: if true, a mechanism that only bubblewrap may use is `ok`.
        bubblewrap: the path of bubblewrap.
        proc: the path of procfs.
    """
    tried = _tried()
    for trial in _NAMESPACES:
        error = tried.get(trial.name, "was not tried")
        if not error:
            yield Check(trial.title, "ok", trial.works)
        elif bubblewrap_works:
            detail = f"not for all programs ({error}), but for bubblewrap"
            yield Check(trial.title, "ok", detail)
        else:
            failure = restricted(error, bubblewrap, proc)
            yield Check(trial.title, "missing", error, failure.cause, failure.fix)
    yield _managed_network(tried, bubblewrap_works)
    error = tried.get("seccomp", "was not tried")
    if not error:
        yield Check("seccomp", "ok", "filters can be loaded")
    else:
        cause = f"no filter can be loaded ({error})"
        fix = "use a kernel with CONFIG_SECCOMP_FILTER, and a container that allows prctl"
        yield Check("seccomp", "missing", error, cause, fix)


def _managed_network(tried: Mapping[str, str], bubblewrap_works: bool) -> Check:
    """Whether a network proxy can enter a sandbox."""
    name, refused = "managed network", "requests for one are refused"
    tags = tag_check()
    error = tried.get("joined", "was not tried")
    if not bubblewrap_works:
        cause, fix = "only sandboxes of bubblewrap have one, and it does not work", "see sandbox"
        return Check(name, "warning", refused, cause, fix)
    if tags.status != "ok":
        return Check(name, "warning", refused, tags.cause, tags.fix)
    if not error:
        return Check(name, "ok", "a network proxy can listen inside a sandbox")
    if tried.get("network"):
        cause = "it needs a network namespace, and bubblewrap alone may make one"
        return Check(name, "warning", "was not tried", cause, "start a command with one to find out")
    cause = f"a process outside cannot join the network namespace of one inside ({error})"
    fix = "let the daemon use setns(2) and /proc/PID/ns: a container's seccomp profile may forbid it"
    return Check(name, "warning", "no command with one begins", cause, fix)


def _tried() -> dict[str, str]:
    """The results of `trials.py`; if it fails, its error for each trial."""
    command = [sys.executable, "-I", "-S", trials.__file__]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_TRIAL_SECONDS, check=True, env={"LC_ALL": "C"}
        )
        found: dict[str, str] = json.loads(done.stdout)
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        return dict.fromkeys(
            ("user", "mount", "pid", "network", "joined", "seccomp"), f"could not be tried: {error}"
        )
    return found


def landlock_check(allowed: bool) -> Check:
    """Check Landlock, which is not needed where bubblewrap works."""
    version = landlock.abi()
    detail = f"ABI {version}" if version else "the kernel has none, or it is disabled"
    if not allowed:
        return Check("Landlock", "ok", f"{detail}; not used (--allow-landlock)")
    reason = landlock.unavailable()
    if reason is None:
        return Check("Landlock", "ok", f"{detail}; used where bubblewrap does not work")
    cause, _, fix = reason.partition("; ")
    return Check("Landlock", "warning", detail, cause, fix)


def bubblewrap_check(result: ProbeResult) -> Check:
    """Check that the program exists and is new enough."""
    if result.path is None or not result.version:
        return Check("bubblewrap", "missing", result.path or "not found", result.reason, result.fix)
    optional = [f"--{name}" for name in ("argv0", "bind-fd", "ro-bind-fd") if name in result.features]
    more = f", with {', '.join(optional)}" if optional else ""
    if result.works and result.sealed is None:
        more += "; no sealed copy can be executed, so commands may not trace processes"
    return Check("bubblewrap", "ok", f"{result.path} {result.version}{more}")


def sandbox_check(result: ProbeResult | None, landlock_allowed: bool) -> Check:
    """Check that a sandbox made just now confines.

    Args:
        result: None if there is no state folder to try it in.
        landlock_allowed: whether Landlock may be used instead of bubblewrap.
    """
    if result is None:
        return Check("sandbox", "missing", "was not tried", "there is no state folder", "see state folder")
    if result.works:
        detail = "runs and confines: forbidden operations failed inside, allowed ones worked"
        return Check("sandbox", "ok", detail)
    detail = "does not work: requests that ask for a sandbox are refused"
    if landlock_allowed and landlock.unavailable() is None:
        detail = "does not work: Landlock enforces the policies that it can, other requests are refused"
    return Check("sandbox", "missing", detail, result.reason, result.fix)


def backend_check(name: str, result: ProbeResult) -> Check:
    """Check the backend that the setting `sandbox_backend` names."""
    title = "sandbox backend"
    if not result.works:
        return Check(title, "missing", f"{name} cannot be used", result.reason, result.fix)
    files = ", ".join(result.inspection.files)
    return Check(title, "ok", f"{name}, by {files}" if files else name)


def tool_checks() -> Iterator[Check]:
    """Check the programs that start commands inside a sandbox."""
    for name, package, use in (
        ("setsid", "util-linux", "sandboxed terminals (`tty: true`)"),
        ("bash", "bash", "sandboxed commands with `arg0`"),
    ):
        path = shutil.which(name, path=TOOL_PATH)
        if path is not None:
            yield Check(name, "ok", path)
        else:
            status: Status = "missing" if name == "setsid" else "warning"
            cause = f"{use} need {name}, and are refused without it"
            yield Check(name, status, "not found", cause, f"install {package}")


def apparmor_check(bubblewrap: str, bubblewrap_works: bool, proc: str = "/proc") -> Check:
    """Check whether AppArmor restricts user namespaces, as in Ubuntu 23.10 and later."""
    value = setting(proc, "kernel/apparmor_restrict_unprivileged_userns")
    if value != "1":
        detail = "does not restrict user namespaces" if value is not None else "the kernel has no restriction"
        return Check("AppArmor", "ok", detail)
    if bubblewrap_works:
        return Check("AppArmor", "ok", "restricts user namespaces, and lets bubblewrap use them")
    cause = "kernel.apparmor_restrict_unprivileged_userns is 1, and no profile lets bubblewrap use them"
    return Check("AppArmor", "warning", "restricts user namespaces", cause, apparmor_fix(bubblewrap))


def tag_check() -> Check:
    """Check whether ownership tags fit below this process's hard limit."""
    hard = resource.getrlimit(resource.RLIMIT_RTTIME)[1]
    highest = descendants.tag_value((1 << descendants.INSTANCE_BITS) - 1, (1 << descendants.NUMBER_BITS) - 1)
    name = "ownership tags"
    if hard == resource.RLIM_INFINITY or hard >= highest:
        return Check(name, "ok", "descendants are found by their tag in RLIMIT_RTTIME")
    cause = f"the hard limit RLIMIT_RTTIME is {hard} µs, and a tag needs {highest}"
    fix = "`ulimit -H -R unlimited` before the start, systemd: LimitRTTIME=infinity"
    return Check(name, "warning", "descendants are found only by their parents", cause, fix)


def user_check(uid: int) -> Check:
    """Check that the daemon's user is not root."""
    if uid != 0:
        return Check("user", "ok", f"uid {uid}")
    cause = "a command that escaped from its sandbox would be root"
    return Check("user", "warning", "uid 0", cause, "run the daemon as an ordinary user")


def devices_check(state_folder: str, host: str = os.devnull) -> Check | None:
    """Check that root's sandboxes have device nodes of another owner; None for other users."""
    devices = Devices(state_folder, host)
    folder = devices.folder()
    if folder is not None:
        return Check("device nodes", "ok", f"{folder}, owned by a user that runs no commands")
    if not devices.reason:
        return None
    cause = f"{devices.reason}; so root's commands use the host's nodes, which root owns"
    fix = "name a folder with --spool-dir that is not mounted nodev, or run the daemon as an ordinary user"
    return Check("device nodes", "warning", "a command could change the mode of /dev/null", cause, fix)


def state_folder_check(
    configured: str | None, environment: Mapping[str, str], uid: int
) -> tuple[Check, str | None]:
    """Check the state folder, which is created if missing; also returns its path, or None."""
    try:
        path = state_folder.open_state_folder(configured, environment, uid)
    except state_folder.StateFolderError as error:
        cause, _, fix = str(error).partition("; ")
        return Check("state folder", "missing", "cannot be used", cause, fix.removeprefix("or ")), None
    return Check("state folder", "ok", f"{path}, {state_folder.reason_for(configured, environment)}"), path
