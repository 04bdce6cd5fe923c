"""Whether the code that is installed now would start, before a server makes room for it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence

from execserver.host import Host
from execserver.spool.arena import LAYOUT_VERSION
from execserver.supervisor.packets import VERSION

HANDOVER = f"{VERSION}.{LAYOUT_VERSION}"
"""What the server before and the one after an upgrade have to agree on: how the supervisor talks, and how the
index of output is laid out. The ledger is not in it: what one version does not know of another's, it skips.
"""

TRIAL_SECONDS = 30.0
"""How long the trial may take; usually it takes less than half a second."""

_MOST_CHARACTERS = 1000


class Trial:
    """`execserver config check` of the installed code, begun.

    Args:
        flags: those of `execserver serve`.
        host: what the service was launched with.
        remote_url: of the registry that it serves, for as long as it lives; None without one.

    Raises:
        OSError: it cannot be begun.
    """

    def __init__(self, flags: Sequence[str], host: Host, remote_url: str | None = None) -> None:
        command = [sys.executable, "-I", "-X", "utf8", "-m", "execserver.cli", "config", "check"]
        handed = ["--handover", HANDOVER, *(["--handed-remote", remote_url] if remote_url else [])]
        self._process = subprocess.Popen(
            [*command, *handed, *flags],
            cwd=host.cwd,
            env=dict(host.environment),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )

    def refusal(self) -> str | None:
        """Why a new server would not start; None when it would. Blocks."""
        with self._process as process:
            try:
                _, errors = process.communicate(timeout=TRIAL_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                return f"the new code was not there after {TRIAL_SECONDS:.0f} s"
        if process.returncode == 0:
            return None
        said = errors.decode("utf-8", "replace").strip()[-_MOST_CHARACTERS:]
        return f"the new code does not start: {said or f'exit code {process.returncode}'}"
