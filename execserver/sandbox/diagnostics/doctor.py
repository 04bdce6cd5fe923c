"""`execserver doctor`: checks whether requests would be confined here, and where output is kept.

It checks the machine as a daemon with the same settings, user and environment would. Takes well under a
second; a mechanism that hangs times out after some seconds.
"""

from __future__ import annotations

import json
import os
import platform
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass

from execserver.sandbox.diagnostics import mechanisms
from execserver.sandbox.diagnostics.mechanisms import Check
from execserver.sandbox.diagnostics.probe import ProbeResult, find
from execserver.sandbox.options import DaemonPaths, SandboxOptions
from execserver.sandbox.selection import BUBBLEWRAP_FIRST, Selection
from execserver.spool.spool import Spool, SpoolLimits

_SANDBOX_EXEC = "/usr/bin/sandbox-exec"
_SPOOL_FOLDER = "spool folder"
_IN_MEMORY = "cannot be used: output is kept in memory, 1 MiB a process"
_ELSEWHERE = "name a folder on another file system with --spool-dir"


@dataclass(frozen=True, slots=True)
class Report:
    """All checks, the most important first."""

    checks: tuple[Check, ...]

    @property
    def ok(self) -> bool:
        """Whether all requests that ask for a sandbox can be confined."""
        return all(check.status != "missing" for check in self.checks)

    def as_json(self) -> str:
        """`{"ok": …, "checks": [{"name", "status", "detail", "cause", "fix"}]}`; a text may be empty."""
        return (
            json.dumps({"ok": self.ok, "checks": [asdict(check) for check in self.checks]}, indent=2) + "\n"
        )

    def as_text(self) -> str:
        """A line for each check, with its cause and fix below, and a summary."""
        lines = []
        width = max(len(check.name) for check in self.checks)
        for check in self.checks:
            lines.append(f"{check.status:7}  {check.name:{width}}  {check.detail}")
            lines += _indented("cause", check.cause) + _indented("fix", check.fix)
        summary = "Requests that ask for a sandbox are confined."
        if not self.ok:
            summary = "Requests that ask for a sandbox are refused, all or some: see the missing parts."
        return "\n".join([*lines, "", summary]) + "\n"


def examine(options: SandboxOptions, environment: Mapping[str, str], spool_max_bytes: int) -> Report:
    """Run all checks. Blocking.

    Args:
        options: the settings that a daemon would have.
        environment: the variables that it would have.
        spool_max_bytes: the setting of that name.
    """
    system = platform.system()
    if system == "Linux":
        return Report(_linux(options, environment, spool_max_bytes))
    if system == "Darwin":
        return Report((_darwin(), mechanisms.user_check(os.geteuid())))
    cause = f"{system or 'this platform'} has no sandbox backend"
    return Report((Check("sandbox", "missing", "requests are refused", cause, "run the daemon on Linux"),))


def _linux(
    options: SandboxOptions, environment: Mapping[str, str], spool_max_bytes: int
) -> tuple[Check, ...]:
    uid = os.geteuid()
    folder_check, folder = mechanisms.state_folder_check(options.spool_dir, environment, uid)
    result = None
    if folder is not None:
        selection = Selection(options, environment, folder, DaemonPaths(folders=(folder,)))
        result = selection.candidates(files_limited=True)[0].result()
    works = result is not None and result.works
    if options.backend in BUBBLEWRAP_FIRST:
        backend = _bubblewrap(options, environment, result)
    else:
        backend = [
            mechanisms.sandbox_check(result, False),
            *([mechanisms.backend_check(options.backend, result)] if result is not None else []),
        ]
    return (
        *backend,
        *mechanisms.tool_checks(),
        folder_check,
        *filter(None, [mechanisms.devices_check(folder) if works and folder is not None else None]),
        spool_folder_check(folder, spool_max_bytes),
        mechanisms.tag_check(),
        mechanisms.user_check(uid),
    )


def _bubblewrap(
    options: SandboxOptions, environment: Mapping[str, str], result: ProbeResult | None
) -> list[Check]:
    """The checks of what bubblewrap needs, and of Landlock, which may take its place."""
    found = find(options.bubblewrap, environment.get("PATH", ""))
    program = found if isinstance(found, str) else "/usr/bin/bwrap"
    works = result is not None and result.works
    allowed = options.allow_landlock and options.backend == "auto"
    return [
        mechanisms.sandbox_check(result, allowed),
        *([mechanisms.bubblewrap_check(result)] if result is not None else []),
        *mechanisms.kernel(works, program),
        mechanisms.apparmor_check(program, works),
        mechanisms.landlock_check(allowed),
    ]


def _darwin() -> Check:
    if shutil.which(_SANDBOX_EXEC):
        cause = "the Seatbelt backend has never been tested on macOS"
        fix = "check that it confines before you rely on it, or run the daemon on Linux"
        return Check("Seatbelt", "warning", f"{_SANDBOX_EXEC} is there", cause, fix)
    cause = f"{_SANDBOX_EXEC}, a part of macOS, is missing"
    return Check("Seatbelt", "missing", "requests are refused", cause, "run the daemon on Linux")


def _indented(title: str, text: str) -> list[str]:
    # Not wrapped, so that commands in the text can be copied.
    return [f"{'':9}{title}: {text}"] if text else []


# -- where output is kept


def spool_folder_check(state_folder: str | None, max_bytes: int) -> Check:
    """Check that the spool below a state folder is private, takes bytes, has room for all output and gets it
    from pipes without a copy. Blocking; leaves nothing behind.

    Every fault is a warning: without a disk, output is kept in memory and commands still run. A missing spool
    folder is not created, because its parent shows the same file system.

    Args:
        state_folder: from `open_state_folder`; None if there is none.
        max_bytes: the setting `spool_max_bytes`.
    """
    if state_folder is None:
        return Check(_SPOOL_FOLDER, "warning", _IN_MEMORY, "there is no state folder", "see state folder")
    path = f"{state_folder}/spool"
    exists = os.path.lexists(path)
    reasons: list[str] = []
    spool = Spool(
        path if exists else state_folder,
        SpoolLimits(disk=max_bytes),
        lambda failing, reason: reasons.append(reason) if failing else None,
    )
    try:
        if spool.folder_problem is not None:
            cause, _, fix = spool.folder_problem.partition("; ")
            fix = fix or "remove it, so that it is made anew, or name another place with --spool-dir"
            return Check(_SPOOL_FOLDER, "warning", _IN_MEMORY, cause, fix)
        problem = _storing_problem(spool, reasons)
        if problem:
            cause = f"nothing can be written in {path}: {problem}"
            return Check(_SPOOL_FOLDER, "warning", _IN_MEMORY, cause, f"make room there, or {_ELSEWHERE}")
        found = list(_weaknesses(spool, path if exists else state_folder, max_bytes))
    finally:
        spool.close()
    detail = path if exists else f"{path}, made at the start"
    if not found:
        return Check(_SPOOL_FOLDER, "ok", detail)
    causes, fixes = zip(*found, strict=True)
    return Check(_SPOOL_FOLDER, "warning", detail, "; ".join(causes), "; ".join(dict.fromkeys(fixes)))


def _storing_problem(spool: Spool, reasons: list[str]) -> str:
    """Why a byte cannot be stored; empty if it can.

    Args:
        spool: one with a folder.
        reasons: the reasons for disk failures that the spool has reported.
    """
    try:
        file = spool.new_disk_file(0)
        if file is None:
            return reasons[-1]
        try:
            file.store(b"x")
        finally:
            file.close()
    except OSError as error:
        return error.strerror or str(error)
    return ""


def _weaknesses(spool: Spool, path: str, max_bytes: int) -> Iterator[tuple[str, str]]:
    """Causes and fixes of what works, but not well."""
    status = os.statvfs(path)
    free = status.f_bavail * status.f_frsize
    if free < max_bytes:
        cause = f"{_mib(free)} are free there, and all output may take {_mib(max_bytes)} (--spool-max-bytes)"
        yield cause, f"make room there, lower --spool-max-bytes, or {_ELSEWHERE}"
    if not spool.disk_splices():
        cause = "its file system does not splice: a server that is killed can lose 64 KiB a process"
        yield cause, f"{_ELSEWHERE}: ext4, XFS, Btrfs and tmpfs do"


def _mib(size: int) -> str:
    return f"{size / (1 << 20):,.0f} MiB"
