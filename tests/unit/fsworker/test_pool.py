"""The pool of workers, with real processes that are killed and stopped."""

from __future__ import annotations

import asyncio
import gc
import os
import shutil
import signal
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from execprotocol.errors import InternalError, InvalidRequest
from execserver.filesystem import operations
from execserver.fsworker.confined_files import ConfinedFiles
from execserver.fsworker.pool import MAX_WORKERS, PoolTimes, WorkerPool
from execserver.fsworker.process import WorkerProcess, spawn
from execserver.sandbox.policy import Policy
from tests.support.fs_workers import BareLauncher, policy_for
from tests.unit.fsworker.conftest import Connection, look

_SHORT = PoolTimes(silent=5.0, idle=0.3, turn=0.05, pattern=0.3)


@pytest.fixture
async def hasty(launcher: BareLauncher) -> AsyncIterator[WorkerPool]:
    """A pool whose times are short."""
    made = WorkerPool(launcher, times=_SHORT)
    yield made
    await made.close()


@pytest.fixture
def folders(tmp_path: Path) -> list[Path]:
    made = [tmp_path / str(number) for number in range(MAX_WORKERS + 2)]
    for folder in made:
        folder.mkdir()
    return made


async def _until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not condition():
            await asyncio.sleep(0.01)


def _runs(process: WorkerProcess) -> bool:
    """Whether a worker is there; the pool reaps those that are not."""
    try:
        os.kill(process.pid, 0)
    except ProcessLookupError:
        return False
    return True


def _stop(process: WorkerProcess) -> None:
    os.kill(process.pid, signal.SIGSTOP)


async def test_nothing_is_started_before_it_is_needed_and_then_it_is_kept(
    pool: WorkerPool, connection: Connection, launcher: BareLauncher, tmp_path: Path
) -> None:
    assert pool.workers == 0
    for _ in range(20):
        # Each time as a new context of a new request would make it.
        await look(connection.confined(pool, policy_for(tmp_path)), str(tmp_path))

    assert (pool.workers, len(launcher.started)) == (1, 1)


async def test_a_worker_that_is_killed_costs_its_request_and_no_other(
    pool: WorkerPool, connection: Connection, launcher: BareLauncher, tmp_path: Path
) -> None:
    confined = connection.confined(pool, policy_for(tmp_path))
    await look(confined)
    _stop(launcher.started[0])
    asked = [asyncio.ensure_future(look(confined, str(tmp_path))) for _ in range(5)]
    await asyncio.sleep(0)

    os.kill(launcher.started[0].pid, signal.SIGKILL)

    with pytest.raises(InternalError, match="fs worker ended"):
        await asked[0]
    assert [(await one)["isDirectory"] for one in asked[1:]] == [True] * 4
    assert len(launcher.started) == 2


async def test_a_worker_that_dies_idle_costs_nothing(
    pool: WorkerPool, connection: Connection, launcher: BareLauncher, tmp_path: Path
) -> None:
    confined = connection.confined(pool, policy_for(tmp_path))
    await look(confined)
    os.kill(launcher.started[0].pid, signal.SIGKILL)
    await _until(lambda: pool.workers == 0)

    await look(confined)

    assert len(launcher.started) == 2


async def test_a_worker_that_does_not_answer_is_ended(
    hasty: WorkerPool, connection: Connection, launcher: BareLauncher, tmp_path: Path
) -> None:
    confined = connection.confined(hasty, policy_for(tmp_path))
    await look(confined)
    _stop(launcher.started[0])

    with pytest.raises(InternalError, match="did not answer for 5 s and was ended"):
        await look(confined)

    await look(confined)
    await _until(lambda: not _runs(launcher.started[0]))
    assert len(launcher.started) == 2


_TAKEN_OVER = """
import os, time
def take(size):
    while size: size -= len(os.read(0, size))
take(int.from_bytes(os.read(0, 4), "little"))
os.write(0, bytes(9))  # it can work
take(int.from_bytes(os.read(0, 4), "little"))
ANSWER
"""
"""A worker that sends arbitrary data."""

_BYTE_BY_BYTE = """
os.write(0, bytes([0]) + (1 << 20).to_bytes(8, "little"))
while True:
    os.write(0, b"x")
    time.sleep(0.05)
"""

_LONG_ERROR = """
body = b"-32603" + bytes(3) + b"x" * (8 << 20)
body = bytes([1]) + len(body).to_bytes(8, "little") + body
while body: body = body[os.write(0, body):]
"""


class TakenOver(BareLauncher):
    """Starts workers that give one answer."""

    def __init__(self, answer: str) -> None:
        super().__init__()
        self._answer = answer

    def start(self, policy: Policy) -> WorkerProcess:
        return spawn([sys.executable, "-I", "-c", _TAKEN_OVER.replace("ANSWER", self._answer)])


async def test_a_worker_that_answers_byte_by_byte_does_not_keep_its_place(connection: Connection) -> None:
    pool = WorkerPool(TakenOver(_BYTE_BY_BYTE), times=PoolTimes(silent=4.0))

    async with asyncio.timeout(30):
        with pytest.raises(InternalError, match="did not answer for 4 s"):
            await look(connection.confined(pool, policy_for()))

    await pool.close()


async def test_of_an_error_of_a_worker_no_more_is_told_than_errors_have(connection: Connection) -> None:
    pool = WorkerPool(TakenOver(_LONG_ERROR))

    with pytest.raises(InternalError, match="xxx") as refused:
        await look(connection.confined(pool, policy_for()))

    assert len(refused.value.message) <= 64 << 10
    await pool.close()


async def test_an_idle_worker_ends(
    hasty: WorkerPool, connection: Connection, launcher: BareLauncher, tmp_path: Path
) -> None:
    await look(connection.confined(hasty, policy_for(tmp_path)))

    await _until(lambda: hasty.workers == 0 and not _runs(launcher.started[0]))

    await look(connection.confined(hasty, policy_for(tmp_path)))
    assert len(launcher.started) == 2


async def test_a_fifth_policy_takes_the_place_of_the_one_that_was_idle_for_longest(
    pool: WorkerPool, connection: Connection, launcher: BareLauncher, folders: list[Path]
) -> None:
    files = [connection.confined(pool, policy_for(folder)) for folder in folders]
    for number in (0, 1, 2, 3, 0):
        await look(files[number])
    assert len(launcher.started) == MAX_WORKERS

    await look(files[4])

    assert pool.workers == MAX_WORKERS
    await _until(lambda: not _runs(launcher.started[1]))
    assert [_runs(process) for process in launcher.started] == [True, False, True, True, True]


async def test_when_all_are_busy_a_policy_waits_for_a_place(
    pool: WorkerPool, connection: Connection, launcher: BareLauncher, folders: list[Path]
) -> None:
    files = [connection.confined(pool, policy_for(folder)) for folder in folders]
    for number in range(MAX_WORKERS):
        await look(files[number])
    for process in launcher.started:
        _stop(process)
    asked = [asyncio.ensure_future(look(one)) for one in files]
    await asyncio.sleep(0.1)
    assert len(launcher.started) == MAX_WORKERS

    os.kill(launcher.started[2].pid, signal.SIGCONT)

    assert (await asked[2])["isDirectory"]
    assert (await asked[4])["isDirectory"]
    assert (await asked[5])["isDirectory"]
    assert pool.workers == MAX_WORKERS
    assert not any(asked[number].done() for number in (0, 1, 3))
    for number in (0, 1, 3):
        os.kill(launcher.started[number].pid, signal.SIGCONT)
        await asked[number]


async def test_policies_that_never_stop_asking_leave_places_to_others(
    hasty: WorkerPool, connection: Connection, folders: list[Path]
) -> None:
    done = asyncio.Event()

    async def keep_asking(files: ConfinedFiles) -> None:
        while not done.is_set():
            await asyncio.gather(*(look(files) for _ in range(10)))

    busy = [
        asyncio.ensure_future(keep_asking(connection.confined(hasty, policy_for(folder))))
        for folder in folders[:MAX_WORKERS]
    ]
    await asyncio.sleep(0.2)

    async with asyncio.timeout(30):
        for folder in folders[MAX_WORKERS:]:
            assert (await look(connection.confined(hasty, policy_for(folder))))["isDirectory"]

    done.set()
    await asyncio.gather(*busy)


async def test_a_connection_with_many_requests_does_not_hold_up_another(
    pool: WorkerPool, connection: Connection, launcher: BareLauncher, tmp_path: Path
) -> None:
    policy, other = policy_for(tmp_path), Connection()
    greedy = connection.confined(pool, policy)
    await look(greedy)
    _stop(launcher.started[0])
    many = [asyncio.ensure_future(look(greedy)) for _ in range(500)]
    await asyncio.sleep(0)
    modest = asyncio.ensure_future(look(other.confined(pool, policy)))
    await asyncio.sleep(0)
    os.kill(launcher.started[0].pid, signal.SIGCONT)

    await modest

    assert sum(one.done() for one in many) < 20
    await asyncio.gather(*many)
    other.close()


async def test_requests_of_a_connection_that_is_gone_are_not_made(
    pool: WorkerPool, connection: Connection, launcher: BareLauncher, tmp_path: Path
) -> None:
    leaving = Connection()
    confined = leaving.confined(pool, policy_for(tmp_path))
    await look(confined)
    _stop(launcher.started[0])
    asked = [
        asyncio.ensure_future(
            confined.run(operations.create_directory, str(tmp_path / str(number)), False, None)
        )
        for number in range(5)
    ]
    await asyncio.sleep(0.05)

    leaving.close()
    os.kill(launcher.started[0].pid, signal.SIGCONT)

    for one in asked:
        with pytest.raises(asyncio.CancelledError):
            await one
    await look(connection.confined(pool, policy_for(tmp_path)))
    # The first had begun; it may be done or not.
    assert set(os.listdir(tmp_path)) <= {"0"}
    assert len(launcher.started) == 1


async def test_a_worker_whose_folder_was_made_anew_is_replaced(
    pool: WorkerPool, connection: Connection, launcher: BareLauncher, tmp_path: Path
) -> None:
    workspace, later = tmp_path / "workspace", tmp_path / "later"
    workspace.mkdir()
    confined = connection.confined(pool, policy_for(workspace, later))
    await look(confined)

    # Kept for a while, so that the new one cannot get its inode.
    workspace.rename(tmp_path / "old")
    workspace.mkdir()
    await look(confined)
    assert len(launcher.started) == 2
    later.mkdir()
    await look(confined)
    assert len(launcher.started) == 3
    shutil.rmtree(workspace)
    await look(confined)
    assert len(launcher.started) == 4
    await look(confined)
    assert len(launcher.started) == 4


async def test_folders_that_can_hang_are_looked_at_in_a_thread(
    launcher: BareLauncher, connection: Connection, tmp_path: Path
) -> None:
    pool = WorkerPool(launcher, can_hang=lambda: True)
    workspace = tmp_path / "workspace"
    workspace.mkdir()
    confined = connection.confined(pool, policy_for(workspace))
    found = await asyncio.gather(*(look(confined) for _ in range(20)))
    assert len(found) == 20

    workspace.rename(tmp_path / "old")
    workspace.mkdir()
    await look(confined)

    assert len(launcher.started) == 2
    os.kill(launcher.started[1].pid, signal.SIGKILL)
    await _until(lambda: pool.workers == 0)
    await look(confined)
    await pool.close()


async def test_a_worker_with_patterns_does_not_grow_old(
    hasty: WorkerPool, connection: Connection, launcher: BareLauncher, tmp_path: Path
) -> None:
    confined = connection.confined(hasty, policy_for(tmp_path, deny=["/nothing/*.key"]))
    await look(confined)
    await look(confined)
    assert len(launcher.started) <= 2
    before = len(launcher.started)
    await asyncio.sleep(_SHORT.pattern)

    await look(confined)

    assert len(launcher.started) == before + 1


async def test_a_worker_that_starts_slowly_is_new_enough_for_the_request_that_waited_for_it(
    connection: Connection, tmp_path: Path
) -> None:
    class Slow(BareLauncher):
        async def __call__(self, policy: Policy) -> WorkerProcess:
            await asyncio.sleep(2 * _SHORT.pattern)
            return await super().__call__(policy)

    launcher = Slow()
    pool = WorkerPool(launcher, times=_SHORT)
    async with asyncio.timeout(30):
        await look(connection.confined(pool, policy_for(tmp_path, deny=["/nothing/*.key"])))
    assert len(launcher.started) == 1
    await pool.close()


async def test_a_tree_is_read_with_patterns_that_were_looked_for_just_now(
    pool: WorkerPool, connection: Connection, launcher: BareLauncher, tmp_path: Path
) -> None:
    (tmp_path / "tree").mkdir()
    confined = connection.confined(pool, policy_for(tmp_path, deny=["/nothing/*.key"]))
    await look(confined)
    await confined.run(operations.copy, str(tmp_path / "tree"), str(tmp_path / "copied"), True, False, False)

    assert len(launcher.started) == 2
    plain = connection.confined(pool, policy_for(tmp_path))
    await look(plain)
    await plain.run(operations.copy, str(tmp_path / "tree"), str(tmp_path / "again"), True, False, False)
    assert len(launcher.started) == 3


async def test_a_sandbox_that_cannot_be_made_is_told_and_tried_again(
    connection: Connection, tmp_path: Path
) -> None:
    reasons: list[str] = []
    working: list[WorkerProcess] = []

    async def launch(policy: Policy) -> WorkerProcess:
        if len(reasons) < 1:
            return spawn(["/bin/sh", "-c", "echo bwrap: no namespaces here >&2"])
        working.append(await BareLauncher()(policy))
        return working[-1]

    pool = WorkerPool(launch, start_failed=reasons.append)
    confined = connection.confined(pool, policy_for(tmp_path))
    asked = [asyncio.ensure_future(look(confined)) for _ in range(3)]
    for one in asked:
        with pytest.raises(InvalidRequest, match=r"^failed to prepare process sandbox: .*no namespaces here"):
            await one
    assert len(reasons) == 1

    assert (await look(confined))["isDirectory"]
    await pool.close()


async def test_a_refusal_of_the_launch_reaches_the_client_as_it_is(
    connection: Connection, tmp_path: Path
) -> None:
    async def launch(policy: Policy) -> WorkerProcess:
        raise InvalidRequest("failed to prepare process sandbox: nothing works; buy a kernel")

    pool = WorkerPool(launch)
    for _ in range(3):
        with pytest.raises(InvalidRequest, match="buy a kernel"):
            await look(connection.confined(pool, policy_for(tmp_path)))
    assert pool.workers == 0
    await pool.close()


async def test_closing_ends_all_workers_even_stopped_ones(
    launcher: BareLauncher, connection: Connection, folders: list[Path]
) -> None:
    gc.collect()  # what earlier tests left open
    before = len(os.listdir("/proc/self/fd"))
    pool = WorkerPool(launcher)
    files = [connection.confined(pool, policy_for(folder)) for folder in folders[:3]]
    for one in files:
        await look(one)
    _stop(launcher.started[0])
    asked = asyncio.ensure_future(look(files[0]))
    await asyncio.sleep(0)

    await pool.close(seconds=30)

    with pytest.raises(InternalError, match="was ended"):
        await asked
    assert not any(_runs(process) for process in launcher.started)
    with pytest.raises(InternalError, match="stopping"):
        await look(files[1])
    assert len(os.listdir("/proc/self/fd")) == before


async def test_many_deaths_leave_no_descriptor_and_no_zombie(
    pool: WorkerPool, connection: Connection, launcher: BareLauncher, tmp_path: Path
) -> None:
    confined = connection.confined(pool, policy_for(tmp_path))
    await look(confined)
    before = len(os.listdir("/proc/self/fd"))

    for _ in range(8):
        os.kill(launcher.started[-1].pid, signal.SIGKILL)
        await _until(lambda: pool.workers == 0)
        await look(confined)
    await _until(lambda: not any(_runs(process) for process in launcher.started[:-1]))

    assert len(os.listdir("/proc/self/fd")) == before
