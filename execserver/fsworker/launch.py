"""Starts the workers of `fs/*` in their sandboxes, and the programs of watches, with the service's tag."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable

from msgspec.structs import replace

from execserver.filesystem.blocking import run_in_background
from execserver.fsworker import interpreter
from execserver.fsworker.process import WorkerProcess, spawn
from execserver.launch_spec import LaunchSpec
from execserver.sandbox.confinement import Confinement
from execserver.sandbox.policy import Policy
from execserver.sandbox.sandboxes import Sandboxes


class WorkerLauncher:
    """The `Launch` of the pool.

    Args:
        sandboxes: confine the workers.
        tag: the ownership tag of the service.
    """

    def __init__(self, sandboxes: Sandboxes, tag: int | None) -> None:
        self._sandboxes = sandboxes
        self._tag = tag

    async def __call__(self, policy: Policy) -> WorkerProcess:
        """Start a worker under a policy. It has no network, even if the policy allows it.

        Raises:
            InvalidRequest: the policy cannot be enforced here.
            OSError: the system is out of resources.
        """
        return await self.launch(policy, None)

    async def launch(self, policy: Policy, code: bytes | None) -> WorkerProcess:
        """Start a worker or another program under a policy.

        Args:
            policy: limits its files; it has no network, even if that allows it.
            code: the code of the program (`bundle.pack`); None for an fs worker.

        Raises:
            InvalidRequest: the policy cannot be enforced here.
            OSError: the system is out of resources.
        """
        confinement = await asyncio.to_thread(self._confine, replace(policy, network=False))
        try:
            worker = self._spawn(confinement, code)
        except BaseException:
            run_in_background(lambda: self._sandboxes.release(confinement))
            raise
        worker.short_lived = confinement.shows
        return worker

    def unconfined(self, code: bytes) -> WorkerProcess:
        """Start another program (`bundle.pack`) without a sandbox.

        Raises:
            OSError: the system is out of resources.
        """
        return spawn(interpreter.command(), tag=self._tag, code=code)

    def start_failed(self, reason: str) -> None:
        """A worker ended before it was ready: the sandbox may no longer work."""
        run_in_background(self._sandboxes.launch_failed)

    def _confine(self, policy: Policy) -> Confinement:
        return self._sandboxes.prepare(policy, _command(), interpreter.interpreter_paths())

    def _spawn(self, confinement: Confinement, code: bytes | None) -> WorkerProcess:
        wrapped = confinement.wrap(_command(), dies_with_parent=True)
        try:
            return spawn(
                wrapped.arguments,
                program=wrapped.program,
                inherit=wrapped.passed,
                tag=self._tag,
                limit=None if wrapped.limit is None else _without_terminal(wrapped.limit),
                on_release=lambda: self._released(confinement, wrapped.status),
                code=code,
            )
        except BaseException:
            _close(wrapped.status)
            raise
        finally:
            for fd in wrapped.passed:
                os.close(fd)

    def _released(self, confinement: Confinement, status: int | None) -> None:
        # Kept open until now: writing to a pipe without a reader would kill the launcher.
        _close(status)
        run_in_background(lambda: self._sandboxes.release(confinement))


def _command() -> LaunchSpec:
    command = interpreter.command()
    return LaunchSpec(command[0], command, "/", {}, tty=False)


def _without_terminal(limit: Callable[[str | None], None]) -> Callable[[], None]:
    return lambda: limit(None)


def _close(fd: int | None) -> None:
    if fd is not None:
        os.close(fd)
