"""The processes of one session, by the client's names for them."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Callable, Iterable, Iterator, Set
from contextlib import contextmanager

from execprotocol.errors import InvalidRequest, SpawnFailed, start_cancelled, unknown_process
from execserver.launch_spec import LaunchSpec
from execserver.processes.executor import Executor
from execserver.processes.process import ManagedProcess
from execserver.processes.start_options import StartOptions
from execserver.spool.forgotten import ForgettingReason, ForgottenProcess
from execserver.telemetry.logs import Logger
from execserver.telemetry.measures import measures

log = Logger()

_LAST_EVENTS_SECONDS = 1.0
"""How long the end of a killed process may take to become known. It takes a turn of the loop."""


class Reservation:
    """A start that waits for its turn."""

    def __init__(self, process_id: str) -> None:
        self.cancelled = False
        self.on_cancel: Callable[[], object] | None = None
        """Called when it is cancelled."""
        self.over = asyncio.Event()
        self._process_id = process_id

    def require_wanted(self) -> None:
        """Raise InvalidRequest if the start was cancelled."""
        if self.cancelled:
            raise start_cancelled(self._process_id)


class ProcessStore:
    """A session's processes, running and retained.

    A name is taken from the start until retention ends (`docs/protocol.md`, "Processes").
    """

    def __init__(self, executor: Executor, session_id: str) -> None:
        self.executor = executor
        self._session_id = session_id
        self._log = log.bind(session=session_id)
        self._processes: dict[str, ManagedProcess] = {}
        self.waiting_input = 0
        """Bytes of writes that wait for a child to read."""
        self._reserved: dict[str, Reservation] = {}
        self._numbers: set[int] = set()
        """Every number ever used here: a daemonised descendant may outlive the record."""
        self._ended = False

    def __iter__(self) -> Iterator[ManagedProcess]:
        return iter(list(self._processes.values()))

    def __len__(self) -> int:
        return len(self._processes)

    @property
    def numbers(self) -> Set[int]:
        """The numbers of all its processes, also of those that are no longer kept."""
        return self._numbers

    def find(self, process_id: str) -> ManagedProcess | None:
        """The process of that name, if there is one."""
        return self._processes.get(process_id)

    def get(self, process_id: str) -> ManagedProcess:
        """The process of that name.

        Raises:
            InvalidRequest: there is none.
        """
        process = self._processes.get(process_id)
        if process is None:
            raise unknown_process(process_id)
        return process

    def is_taken(self, process_id: str) -> bool:
        """Whether there is a process of that name, running or retained, or one that is being started."""
        return process_id in self._processes or process_id in self._reserved

    def require_free(self, process_id: str) -> None:
        """Raise InvalidRequest when the name is taken."""
        if self.is_taken(process_id):
            raise InvalidRequest(
                f"process {process_id} already exists", name="process_exists", field="processId"
            )

    @contextmanager
    def reserve(self, process_id: str) -> Iterator[Reservation]:
        """Hold a name while its start waits for its turn."""
        reservation = self._reserved[process_id] = Reservation(process_id)
        try:
            yield reservation
        finally:
            del self._reserved[process_id]
            reservation.over.set()

    async def wait_for_start(self, process_id: str) -> None:
        """Wait until a start of that name has happened or failed, if one waits for its turn."""
        reservation = self._reserved.get(process_id)
        if reservation is not None:
            await reservation.over.wait()

    def cancel_start(self, process_id: str) -> bool:
        """Cancel a start that is waiting. False when there is none of that name."""
        reservation = self._reserved.get(process_id)
        if reservation is None or reservation.cancelled:
            return False
        if reservation.on_cancel is None and process_id in self._processes:
            return False  # it has happened, and is about to be answered
        reservation.cancelled = True
        if reservation.on_cancel is not None:
            reservation.on_cancel()
        return True

    def start(
        self,
        process_id: str,
        make_spec: Callable[[], LaunchSpec],
        options: StartOptions,
        *,
        reserved: bool = False,
    ) -> ManagedProcess:
        """Start a process under a free name, or under one that the caller has reserved.

        Raises:
            InvalidRequest: the name is taken, or the session has ended.
            SpawnFailed: the operating system's reason why it cannot be started.
        """
        self._require_starts()
        if not reserved:
            self.require_free(process_id)
        try:
            process = self.executor.start(self._session_id, process_id, make_spec(), options, self.on_closed)
        except (OSError, ValueError) as error:
            measures.failed_starts += 1
            raise SpawnFailed(error) from None
        self._add(process)
        return process

    async def start_limited(
        self, process_id: str, spec: LaunchSpec, options: StartOptions, may_start: Callable[[], bool]
    ) -> ManagedProcess:
        """Start a process whose limits need a control group, under a reserved name.

        The caller must not be cancelled meanwhile.

        Raises:
            InvalidRequest: a limit cannot be enforced, the session has ended, or `may_start` is false by now.
            SpawnFailed: as for `start`.
        """
        self._require_starts()

        def wanted() -> bool:
            return may_start() and not (self._ended or self.executor.stopping)

        try:
            from execserver.processes.limited_start import LimitedStart  # with limits only

            start = LimitedStart(self.executor, spec, options, wanted)
            process = await start.run(self._session_id, process_id, self.on_closed)
        except (OSError, ValueError) as error:
            measures.failed_starts += 1
            raise SpawnFailed(error) from None
        if process is None:
            self._require_starts()
            raise start_cancelled(process_id)
        self._add(process)
        return process

    def discard(self, process: ManagedProcess) -> None:
        """Kill and forget a process that no client was told of. Does nothing if the session has ended."""
        if self._processes.get(process.process_id) is process:
            del self._processes[process.process_id]
            # At once: the next server would not find it, if this one died after `forget`.
            process.leader.signal_group(signal.SIGKILL)
            self.executor.tree_killer.kill_later(process)
            self.executor.forget(process)

    def _require_starts(self) -> None:
        if self._ended or self.executor.stopping:
            raise InvalidRequest(
                "the session has ended" if self._ended else "the daemon is stopping", name="stopping"
            )

    def _add(self, process: ManagedProcess) -> None:
        self._processes[process.process_id] = process
        self._numbers.add(process.number)
        self._log.debug("process started", process=process.process_id, pid=process.pid, tty=process.tty)

    def inherit(self, processes: Iterable[ManagedProcess], numbers: Iterable[int]) -> None:
        """Take over the processes of a session of the previous server.

        Args:
            processes: those that are not forgotten, oldest first.
            numbers: of all that the session ever started.
        """
        self._numbers.update(numbers)
        for process in processes:
            self._processes[process.process_id] = process

    def refuse_starts(self) -> None:
        """The session is over: start no process in it any more, not even one whose start has begun."""
        self._ended = True

    def remember_all(self, reason: ForgettingReason, at_ms: int, session_ttl_ms: int) -> None:
        """The session is about to end: remember its processes as they are, before they are killed."""
        for process in self:
            self.executor.forgotten.add(_forgotten(process, reason, at_ms, session_ttl_ms))

    async def end(self) -> list[int]:
        """The session is over: kill all its processes with their descendants. Returns the survivors' pids."""
        self.refuse_starts()
        for process in self:
            process.leader.end_for("sessionExpired")
        leaders = [process.pid for process in self if process.running]
        numbers, self._numbers = self._numbers, set()
        survivors = await self.executor.tree_killer.kill(numbers, leaders) if numbers else []
        await self._wait_for_last_events()
        for process in self:
            self.executor.forget(process)
        self._processes.clear()
        return survivors

    async def _wait_for_last_events(self) -> None:
        """Let connections of other sessions that follow a process, or wait for a read of it, see its end
        before it is forgotten.
        """
        deadline = asyncio.get_running_loop().time() + _LAST_EVENTS_SECONDS
        for process in self:
            if process.followed:
                await process.wait_closed(deadline - asyncio.get_running_loop().time())
        # A request that was woken in this turn of the loop reads in the next one.
        await asyncio.sleep(0)

    def on_closed(self, process: ManagedProcess, since: float | None = None) -> None:
        """Keep a process for a while, from now or from when it was closed (CLOCK_MONOTONIC, seconds)."""
        self._log.debug("process closed", process=process.process_id, exit_code=process.exit_code)

        def forget() -> None:
            if self._processes.get(process.process_id) is process:
                del self._processes[process.process_id]
                if not self._ended:  # else its session's end is remembered as the reason
                    closed_at = time.time() - self.executor.retention.ttl
                    remembered = _forgotten(process, "processExpired", round(closed_at * 1000))
                    self.executor.forgotten.add(remembered)
                self.executor.forget(process)

        self.executor.retention.retain(process, forget, since)


def _forgotten(
    process: ManagedProcess, reason: ForgettingReason, at_ms: int, session_ttl_ms: int | None = None
) -> ForgottenProcess:
    started = process.started
    return ForgottenProcess(
        process.process_id,
        started.session,
        started.began_at_ms,
        at_ms,
        reason,
        session_ttl_ms,
        process.exit_code,
        process.cause,
    )
