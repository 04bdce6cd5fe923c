"""Runs a shell for the server's own purposes: no client sees the process, and no record names it.

A new server kills what a dead one left of it: its number is above all that a ledger has
(`Takeover.kill_unfinished_starts`).
"""

from __future__ import annotations

import asyncio
import os
from contextlib import suppress
from functools import partial
from itertools import count
from typing import TYPE_CHECKING

from execserver.descendants import NUMBER_BITS
from execserver.processes.login_state import UnfitError

if TYPE_CHECKING:
    from execserver.launch_spec import LaunchSpec
    from execserver.processes.executor import Executor
    from execserver.processes.spawn import Spawned
    from execserver.sandbox.policy import Policy
    from execserver.sandbox.sandboxes import Sandboxes

MAX_OUTPUT_BYTES = 4 << 20
"""Of one shell, over both streams."""

_NUMBERS = 1 << 12
"""How many runs have a number of their own. A run takes seconds at most."""

_next_number = count().__next__


class QuietRuns:
    """Runs shells.

    Args:
        executor: spawns and kills them.
        sandboxes: confine them.
    """

    def __init__(self, executor: Executor, sandboxes: Sandboxes) -> None:
        self._executor = executor
        self._sandboxes = sandboxes

    async def run(self, spec: LaunchSpec, typed: bytes, policy: Policy | None) -> tuple[bytes, bytes]:
        """Run a shell to its end, and kill what it leaves.

        Args:
            spec: the shell, on pipes.
            typed: its standard input, if `spec` has a pipe for it.
            policy: of its sandbox; None for no sandbox.

        Returns:
            Its standard output and its standard error.

        Raises:
            UnfitError: it writes too much, or leaves a process behind.
            OSError, ValueError, RpcError: it cannot be started.
        """
        loop = asyncio.get_running_loop()
        confinement = None if policy is None else await self._sandboxes.prepare_in_thread(policy, spec)
        try:
            await self._executor.wait_for_turn()
            number = (1 << NUMBER_BITS) - 1 - _next_number() % _NUMBERS
            wrapped = spec if confinement is None else confinement.wrap(spec, dies_with_parent=True)
            spawned = self._spawn(wrapped, number)
            clean = False
            try:
                if spawned.stdin is not None:
                    with suppress(BrokenPipeError):
                        os.write(spawned.stdin, typed)  # less than a pipe holds
                    os.close(spawned.stdin)
                    spawned.stdin = None
                said = await _output(spawned)
                # With a namespace of its own, all of it has ended.
                if not (
                    confinement is not None and confinement.namespaces
                ) and await self._executor.tree_killer.has_descendants(number):
                    raise UnfitError("it starts something in the background")
                clean = True
                return said
            finally:
                if clean:
                    _reap(spawned)
                else:
                    await asyncio.shield(self._kill(spawned, number))
        finally:
            if confinement is not None:
                loop.run_in_executor(None, self._sandboxes.release, confinement)

    async def _kill(self, spawned: Spawned, number: int) -> None:
        await self._executor.tree_killer.kill_uncounted([number], [])
        _reap(spawned)

    def _spawn(self, spec: LaunchSpec, number: int) -> Spawned:
        killer = self._executor.tree_killer
        tag = killer.tag(number)
        if tag is None:
            raise UnfitError("what it leaves in the background cannot be found without ownership tags")
        return self._executor.spawner.spawn(spec, tag, partial(killer.end_failed_start, number))


def _reap(spawned: Spawned) -> None:
    with suppress(ChildProcessError):
        os.waitid(os.P_PIDFD, spawned.pidfd, os.WEXITED | os.WNOHANG)
    spawned.close()


async def _output(spawned: Spawned) -> tuple[bytes, bytes]:
    """The output until the end of the process. A descendant that keeps a stream open does not count."""
    loop = asyncio.get_running_loop()
    over: asyncio.Future[None] = loop.create_future()
    outputs = [bytearray(), bytearray()]
    watched = [*spawned.outputs, spawned.pidfd]

    def readable(which: int) -> None:
        try:
            data = os.read(spawned.outputs[which], 1 << 16)
        except BlockingIOError:
            return
        outputs[which] += data
        if not data:
            loop.remove_reader(spawned.outputs[which])
        elif sum(map(len, outputs)) > MAX_OUTPUT_BYTES and not over.done():
            over.set_exception(UnfitError(f"it has more than {MAX_OUTPUT_BYTES >> 20} MiB of state"))

    def ended() -> None:
        if not over.done():
            over.set_result(None)

    for which, fd in enumerate(spawned.outputs):
        loop.add_reader(fd, partial(readable, which))
    loop.add_reader(spawned.pidfd, ended)
    try:
        await over
    finally:
        for fd in watched:
            loop.remove_reader(fd)
    for fd, output in zip(spawned.outputs, outputs, strict=True):
        with suppress(BlockingIOError):
            while (data := os.read(fd, 1 << 16)) and len(output) <= MAX_OUTPUT_BYTES:
                output += data
    return bytes(outputs[0]), bytes(outputs[1])
