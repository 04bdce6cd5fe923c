"""`execserver doctor`: checks whether requests would be confined here, and where output is kept.

It checks the machine as a daemon with the same settings, user and environment would. Takes well under a
second; a mechanism that hangs times out after some seconds.
"""

from __future__ import annotations

import json
import os
import platform
import shutil
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass

from execserver.sandbox.diagnostics import mechanisms
from execserver.sandbox.diagnostics.mechanisms import Check
from execserver.sandbox.diagnostics.probe import find, probe
from execserver.sandbox.options import SandboxOptions

_SANDBOX_EXEC = "/usr/bin/sandbox-exec"


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


def examine(
    options: SandboxOptions, environment: Mapping[str, str], spool_check: Callable[[str | None], Check]
) -> Report:
    """Run all checks. Blocking.

    Args:
        options: the settings of the daemon.
        environment: the environment of the daemon.
        spool_check: checks the spool below a state folder, if there is one.
    """
    system = platform.system()
    if system == "Linux":
        return Report(_linux(options, environment, spool_check))
    if system == "Darwin":
        return Report((_darwin(), mechanisms.user_check(os.geteuid())))
    cause = f"{system or 'this platform'} has no sandbox backend"
    return Report((Check("sandbox", "missing", "requests are refused", cause, "run the daemon on Linux"),))


def _linux(
    options: SandboxOptions, environment: Mapping[str, str], spool_check: Callable[[str | None], Check]
) -> tuple[Check, ...]:
    uid = os.geteuid()
    search_path = environment.get("PATH", "")
    folder_check, folder = mechanisms.state_folder_check(options.spool_dir, environment, uid)
    result = probe(options.bubblewrap, folder, search_path) if folder is not None else None
    works = result is not None and result.works
    found = find(options.bubblewrap, search_path)
    program = found if isinstance(found, str) else "/usr/bin/bwrap"
    return (
        mechanisms.sandbox_check(result, options.allow_landlock),
        *([mechanisms.bubblewrap_check(result)] if result is not None else []),
        *mechanisms.kernel(works, program),
        mechanisms.apparmor_check(program, works),
        mechanisms.landlock_check(options.allow_landlock),
        *mechanisms.tool_checks(),
        folder_check,
        *filter(None, [mechanisms.devices_check(folder) if works and folder is not None else None]),
        spool_check(folder),
        mechanisms.tag_check(),
        mechanisms.cgroup_check(),
        mechanisms.user_check(uid),
    )


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
