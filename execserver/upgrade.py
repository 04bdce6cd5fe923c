"""Upgrades: whether the installed code would start, checked before a running server ends for it."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Sequence

from execserver import descendants
from execserver.host import Host
from execserver.spool.arena import EARLIER_LAYOUTS, LAYOUT_VERSION
from execserver.supervisor.packets import VERSION

HANDOVER = f"{VERSION}.{LAYOUT_VERSION}"
"""What the old server hands over: the version of the supervisor's packets, and the layout of the output
index. The ledger is not in it, because each version skips the entries of another that it does not know."""

TAKEN_OVER = (HANDOVER, *(f"{VERSION}.{layout}" for layout in EARLIER_LAYOUTS))
"""What the new server can take over."""

TRIAL_SECONDS = 30.0
"""How long the trial may take; usually it takes less than half a second."""

_MAX_QUOTED_CHARACTERS = 1000


async def why_not(flags: Sequence[str], host: Host, remote_url: str | None, tag: int | None) -> str | None:
    """Why a server with the installed code would not start; None if it would.

    Args:
        flags: those of `execserver serve`.
        host: the launch of the service.
        remote_url: of the registry that the service uses for its whole life; None without one.
        tag: the ownership tag of the service, for the trial; None without one.
    """
    if tag is not None:
        descendants.set_own_tag(tag)
    try:
        trial = Trial(flags, host, remote_url)
    except OSError as failed:
        return f"the new code could not be tried: {failed}"
    return await asyncio.to_thread(trial.refusal)


class Trial:
    """A running `execserver config check` of the installed code.

    Args:
        flags: those of `execserver serve`.
        host: the launch of the service.
        remote_url: of the registry that the service uses; None without one.

    Raises:
        OSError: the check cannot be started.
    """

    def __init__(self, flags: Sequence[str], host: Host, remote_url: str | None = None) -> None:
        command = [sys.executable, "-I", "-X", "utf8", "-m", "execserver.cli", "config", "check"]
        extra = ["--handover", HANDOVER, *(["--handed-remote", remote_url] if remote_url else [])]
        self._process = subprocess.Popen(
            [*command, *extra, *flags],
            cwd=host.cwd,
            env=dict(host.environment),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )

    def refusal(self) -> str | None:
        """Why a new server would not start; None if it would. Blocks."""
        with self._process as process:
            try:
                _, errors = process.communicate(timeout=TRIAL_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                return f"the new code was not there after {TRIAL_SECONDS:.0f} s"
        if process.returncode == 0:
            return None
        reason = errors.decode("utf-8", "replace").strip()[-_MAX_QUOTED_CHARACTERS:]
        return f"the new code does not start: {reason or f'exit code {process.returncode}'}"
