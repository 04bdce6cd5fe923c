"""Starts the workers of `fs/*` in their sandboxes, and the programs of watches, with the service's tag."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from functools import partial
from typing import TypeVar

from msgspec.structs import replace

from execserver.filesystem.blocking import run_in_background
from execserver.fsworker import interpreter
from execserver.fsworker.process import WorkerProcess, spawn
from execserver.launch_spec import LaunchSpec
from execserver.sandbox.confinement import Confinement
from execserver.sandbox.policy import Policy
from execserver.sandbox.sandboxes import Sandboxes

T = TypeVar("T")


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
        needs = await asyncio.to_thread(interpreter.interpreter_paths)
        command = interpreter.command()
        spec = LaunchSpec(command[0], command, "/", {}, tty=False)
        worker, confinement = await launch_confined(
            self._sandboxes, policy, spec, needs, partial(self._spawn, code)
        )
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

    def _spawn(
        self, code: bytes | None, wrapped: LaunchSpec, on_release: Callable[[], None]
    ) -> WorkerProcess:
        return spawn(
            wrapped.arguments,
            program=wrapped.program,
            inherit=wrapped.passed,
            tag=self._tag,
            limit=without_terminal(wrapped.limit),
            on_release=on_release,
            code=code,
        )


async def launch_confined(
    sandboxes: Sandboxes,
    policy: Policy,
    command: LaunchSpec,
    needs: tuple[str, ...],
    start: Callable[[LaunchSpec, Callable[[], None]], T],
) -> tuple[T, Confinement]:
    """Start a program of the daemon in a sandbox without a network, which ends with the daemon.

    Args:
        sandboxes: confine it.
        policy: limits its files; it has no network, even if that allows it.
        command: the program.
        needs: files and folders that it can read under every policy.
        start: starts the command as the sandbox has wrapped it. Its second argument is to be called when the
            process was reaped; not if it raises.

    Returns:
        What `start` returns; and the confinement, which that call releases.

    Raises:
        InvalidRequest: the policy cannot be enforced here.
        OSError: the system is out of resources.
    """
    confinement = await sandboxes.prepare_in_thread(replace(policy, network=False), command, needs)

    def release() -> None:
        run_in_background(lambda: sandboxes.release(confinement))

    try:
        wrapped = confinement.wrap(command, dies_with_parent=True)

        def released() -> None:
            # Kept open until now: writing to a pipe without a reader would kill the launcher.
            _close(wrapped.status)
            release()

        try:
            return start(wrapped, released), confinement
        except BaseException:
            _close(wrapped.status)
            raise
        finally:
            for fd in wrapped.passed:
                os.close(fd)
    except BaseException:
        release()
        raise


def without_terminal(limit: Callable[[str | None], None] | None) -> Callable[[], None] | None:
    """What sets the limits of a `LaunchSpec` for a process without a terminal."""
    return None if limit is None else lambda: limit(None)


def _close(fd: int | None) -> None:
    if fd is not None:
        os.close(fd)
