"""`execserver doctor`: would requests be confined here, and if not, why not, and what to do? And where is
output kept?

Looks at the machine as a daemon with the same settings, user and environment would. Takes well under a
second; a mechanism that hangs is given up after some seconds.
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
    """All checks, in the order in which one would read them."""

    checks: tuple[Check, ...]

    @property
    def ok(self) -> bool:
        """Whether requests that are to be confined are confined, and not refused."""
        return all(check.status != "missing" for check in self.checks)

    def as_json(self) -> str:
        """`{"ok": …, "checks": [{"name", "status", "detail", "cause", "fix"}]}`; a text may be empty."""
        return (
            json.dumps({"ok": self.ok, "checks": [asdict(check) for check in self.checks]}, indent=2) + "\n"
        )

    def as_text(self) -> str:
        """A line for each check, cause and fix below those that have them, and the sum of it."""
        lines = []
        width = max(len(check.name) for check in self.checks)
        for check in self.checks:
            lines.append(f"{check.status:7}  {check.name:{width}}  {check.detail}")
            lines += _indented("cause", check.cause) + _indented("fix", check.fix)
        said = "Requests that ask for a sandbox are confined."
        if not self.ok:
            said = "Requests that ask for a sandbox are refused, all or some: see what is missing."
        return "\n".join([*lines, "", said]) + "\n"


def examine(
    options: SandboxOptions, environment: Mapping[str, str], spool_check: Callable[[str | None], Check]
) -> Report:
    """Look at everything. Blocking.

    Args:
        options: the settings that a daemon would have.
        environment: the variables that it would have.
        spool_check: looks at the spool below a state folder, if there is one.
    """
    system = platform.system()
    if system == "Linux":
        return Report(_linux(options, environment, spool_check))
    if system == "Darwin":
        return Report((_darwin(), mechanisms.user_check(os.geteuid())))
    cause = f"there is no sandbox for {system or 'this platform'}"
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
        mechanisms.membership_check(),
        mechanisms.cgroup_check(),
        mechanisms.user_check(uid),
    )


def _darwin() -> Check:
    if shutil.which(_SANDBOX_EXEC):
        cause = "confinement by Seatbelt was never tried by those who wrote it"
        fix = "see that it confines before you rely on it, or run the daemon on Linux"
        return Check("Seatbelt", "warning", f"{_SANDBOX_EXEC} is there", cause, fix)
    cause = f"{_SANDBOX_EXEC} is missing, which is a part of macOS"
    return Check("Seatbelt", "missing", "requests are refused", cause, "run the daemon on Linux")


def _indented(title: str, text: str) -> list[str]:
    # Not wrapped: commands in it are to be copied.
    return [f"{'':9}{title}: {text}"] if text else []
