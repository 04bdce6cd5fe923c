"""Starts a process with limits in a leaf of its own, from its first instruction on."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from msgspec.structs import replace

from execserver.fault_points import reach
from execserver.processes.gated_spawn import GatedSpawn

if TYPE_CHECKING:
    from execserver.launch_spec import LaunchSpec
    from execserver.limits.leaf import Leaf
    from execserver.processes.executor import Executor
    from execserver.processes.process import ManagedProcess
    from execserver.processes.spawn import Spawned
    from execserver.processes.start_options import StartOptions

T = TypeVar("T")


class LimitedStart:
    """One start. What may block for some milliseconds runs in a thread.

    Args:
        executor: does what all starts have in common.
        spec: the program.
        options: of the start, with limits.
        may_start: whether the start is still wanted.
    """

    def __init__(
        self,
        executor: Executor,
        spec: LaunchSpec,
        options: StartOptions,
        may_start: Callable[[], bool],
    ) -> None:
        self._executor = executor
        self._spec = spec
        self._options = options
        self._may_start = may_start
        self._number = executor.take_number()
        self._leaves = executor.tree_killer.open_leaves()

    async def run(
        self, session_id: str, process_id: str, on_closed: Callable[[ManagedProcess], None]
    ) -> ManagedProcess | None:
        """Start the process; once, and the caller must not be cancelled meanwhile.

        Args:
            session_id: as for `Executor.start`.
            process_id: likewise.
            on_closed: likewise.

        Returns:
            None, and nothing was started, if the start was not wanted any more.

        Raises:
            LimitRefused: a limit cannot be enforced.
            OSError: as `Executor.start`.
            ValueError: likewise.
        """
        executor, number = self._executor, self._number
        executor.recovery.launching(number)
        reach("limits-launching")
        process: ManagedProcess | None = None
        try:
            leaf = await self._make_leaf()
            await executor.wait_for_turn()
            spawned = await self._spawn(leaf) if self._may_start() else None
            if spawned is not None:
                spec, options = self._spec, self._options
                process = executor.started(
                    number, session_id, process_id, spec, options, on_closed, spawned, leaf
                )
            return process
        finally:
            if process is None:
                executor.recovery.forgotten(number)
                self._leaves.leave(number)

    async def _make_leaf(self) -> Leaf:
        limits, confinement = self._options.limits, self._options.confinement
        assert limits is not None
        extra_pids = 0 if confinement is None else confinement.own_processes
        leaf = await _in_thread(self._leaves.make, self._number, limits, extra_pids)
        if descriptors := self._leaves.unkept_descriptors():
            self._executor.recovery.keep_groups(descriptors)
        reach("limits-leaf-made")
        return leaf

    async def _spawn(self, leaf: Leaf) -> Spawned | None:
        gated = GatedSpawn()
        spec = replace(self._spec, spawn=gated.start, read_only=self._leaves.mount_points)
        spawned = self._executor.spawn(self._number, spec, self._options)
        began = False
        reach("limits-gated")
        try:
            await _in_thread(gated.finish, leaf.enter)
            reach("limits-entered")
            began = self._may_start()
            return spawned if began else None
        finally:
            if not began:
                if not gated.reaped:
                    self._executor.tree_killer.end_failed_start(self._number, spawned.pid)
                spawned.close()


async def _in_thread(work: Callable[..., T], *arguments: Any) -> T:
    return await asyncio.get_running_loop().run_in_executor(None, partial(work, *arguments))
