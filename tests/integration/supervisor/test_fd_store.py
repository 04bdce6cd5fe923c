"""Descriptors that a server stored are there for the next one, whatever happens in between."""

from __future__ import annotations

import os
import signal
import time
from functools import partial
from pathlib import Path

import pytest

from tests.integration.supervisor.conftest import LIMIT_S, Start
from tests.integration.supervisor.fd_store_service import FdStoreService, eventually, gone, zombie
from tests.support.servers import open_files
from tests.support.wire import wait_state

LAZY_S = 0.05


def descriptors(pid: int) -> int:
    """The number of a supervisor's descriptors, without those of /proc that it opens for a moment."""
    return sum(not link.startswith("/proc/") for link in open_files(pid))


def has_at_most(pid: int, count: int) -> bool:
    return descriptors(pid) <= count


def text_of(path: Path) -> str:
    return path.read_text() if path.exists() else ""


def switches(pid: int) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("voluntary_ctxt_switches"):
            return int(line.split()[1])
    raise LookupError(pid)


def test_stored_descriptors_come_back_in_order_after_a_kill(start: Start, folder: Path) -> None:
    service = FdStoreService(start, folder)
    service.call("keep", 0, 1, "ledger")
    service.call("keep", 7, 1, "first", "second", "third")
    service.call("keep", 7, 2, "ring")
    service.call("keep", 1 << 40, 255, "far")
    kept = {
        "0": {"1": ["ledger"]},
        "7": {"1": ["first", "second", "third"], "2": ["ring"]},
        str(1 << 40): {"255": ["far"]},
    }
    for _ in range(3):
        service.kill()
        assert service.call("handed") == kept


def test_a_slot_is_replaced_emptied_and_released_with_its_number(start: Start, folder: Path) -> None:
    service = FdStoreService(start, folder)
    service.kill()
    service.call("pid")
    before = descriptors(service.pid)
    service.call("keep", 1, 1, "old", "old too")
    service.call("keep", 1, 1, "new")
    service.call("keep", 1, 2, "emptied")
    service.call("keep", 1, 2)
    service.call("keep", 2, 1, "released")
    service.call("keep", 2, 2, "released")
    service.call("release", 2)
    service.call("release", 99)
    service.kill()
    assert service.call("handed") == {"1": {"1": ["new"]}}
    assert descriptors(service.pid) == before + 1
    service.call("release", 1, True)
    eventually(lambda: descriptors(service.pid) == before)


def test_thousands_are_handed_over_and_none_is_inherited(start: Start, folder: Path) -> None:
    service = FdStoreService(start, folder)
    service.call("keep_many", 3000)
    for _ in range(2):
        service.kill()
        begin = time.monotonic()
        assert service.call("handed_count") == [3000, 9000]
        assert time.monotonic() - begin < LIMIT_S
    pid = service.call("run", 5000, "exec sleep 600")
    eventually(lambda: Path(f"/proc/{pid}/comm").read_text() == "sleep\n")
    # The new program opens and closes its libraries.
    eventually(lambda: sorted(os.listdir(f"/proc/{pid}/fd")) == ["0", "1", "2"])


def test_a_message_sent_just_before_the_death_arrives(start: Start, folder: Path) -> None:
    service = FdStoreService(start, folder)
    for number in range(1, 21):
        service.call("keep_and_die", number, 1, f"last words {number}")
    assert service.call("handed") == {str(number): {"1": [f"last words {number}"]} for number in range(1, 21)}


def test_a_process_lives_on_and_its_exit_is_told_until_it_is_confirmed(start: Start, folder: Path) -> None:
    service = FdStoreService(start, folder)
    pid = service.call("run", 3, "kill -STOP $$; exit 9")
    wait_state([pid], "T")
    service.kill()
    assert service.call("handed") == {"3": {"0": ["anon_inode", "pipe"]}}
    assert service.call("exits") == []
    os.kill(pid, signal.SIGCONT)
    assert service.call("exits", 1) == [[3, 9 << 8]]
    for _ in range(2):
        service.kill()
        assert zombie(pid)
        assert service.call("exits") == [[3, 9 << 8]]
    service.call("reaped", 3)
    eventually(lambda: gone(pid))
    service.kill()
    assert service.call("exits") == []
    # The descriptors are another matter: there may be output to read.
    assert service.call("handed") == {"3": {"0": ["anon_inode", "pipe"]}}


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_an_exit_while_no_server_lives_is_told_to_the_next(
    start: Start, folder: Path, number: signal.Signals
) -> None:
    service = FdStoreService(start, folder, "serve", "exit 1", "exit 1", "serve")
    pid = service.call("run", 3, "exec sleep 600")
    service.kill()
    os.kill(pid, number)
    eventually(lambda: zombie(pid))
    assert service.call("exits") == [[3, number.value]]
    service.call("release", 3)
    eventually(lambda: gone(pid))


def test_a_process_that_the_dead_server_had_not_reaped_is_told_with_its_code(
    start: Start, folder: Path
) -> None:
    service = FdStoreService(start, folder)
    pids = [service.call("run", number, f"exit {number}") for number in range(1, 21)]
    for pid in pids:
        service.call("wait_zombie", pid)
    service.kill()
    assert service.call("exits") == [[number, number << 8] for number in range(1, 21)]
    for number in range(1, 21):
        service.call("reaped", number)
    eventually(lambda: all(map(gone, pids)))


def test_a_process_registered_and_ended_around_the_death_is_never_reaped_unseen(
    start: Start, folder: Path
) -> None:
    service = FdStoreService(start, folder)
    for number in range(1, 31):
        service.call("run_and_die", number, "exit 5")
    assert sorted(service.call("exits", 30)) == [[number, 5 << 8] for number in range(1, 31)]


def test_a_core_dump_is_told_as_the_kernel_says_it(start: Start, folder: Path) -> None:
    service = FdStoreService(start, folder)
    pid = service.call("run", 1, "cd /; ulimit -c 0; kill -STOP $$; kill -SEGV $$")
    wait_state([pid], "T")
    service.kill()
    os.kill(pid, signal.SIGCONT)
    ((number, status),) = service.call("exits", 1)
    assert (number, os.waitstatus_to_exitcode(status)) == (1, -signal.SIGSEGV)


def test_orphans_are_reaped_while_kept_processes_wait_for_their_confirmation(
    start: Start, folder: Path
) -> None:
    service = FdStoreService(start, folder)
    kept = service.call("run", 1, "exit 4")
    service.call("wait_zombie", kept)
    service.kill()
    assert service.call("exits", 1) == [[1, 4 << 8]]
    for number in range(2, 7):
        orphan_file = folder / f"orphan-{number}"
        service.call("run", number, f"sh -c 'echo $$ >{orphan_file}; exec sleep 0.1' & exit 0")
        orphan = int(eventually(partial(text_of, orphan_file)))
        eventually(partial(gone, orphan))
        assert zombie(kept)


def test_a_process_that_was_released_alive_is_reaped_like_an_orphan(start: Start, folder: Path) -> None:
    service = FdStoreService(start, folder)
    pid = service.call("run", 1, "exec sleep 600")
    service.kill()
    assert "1" in service.call("handed")
    kept = descriptors(service.pid)
    service.call("release", 1, True)
    eventually(lambda: descriptors(service.pid) < kept)
    os.kill(pid, signal.SIGKILL)
    eventually(lambda: gone(pid))
    assert service.call("exits") == []


@pytest.mark.parametrize("plan", ["kill", "kill-amid 1", "kill-amid 7"])
def test_a_hand_over_that_is_interrupted_twice_is_begun_again(start: Start, folder: Path, plan: str) -> None:
    service = FdStoreService(start, folder, "serve", plan, plan, "serve")
    for number in range(1, 21):
        service.call("keep", number, 1, f"text {number}")
    pid = service.call("run", 21, "exit 2")
    service.call("wait_zombie", pid)
    service.kill()
    handed = service.call("handed")
    assert handed.pop("21") == {"0": ["anon_inode", "pipe"]}
    assert handed == {str(number): {"1": [f"text {number}"]} for number in range(1, 21)}
    assert service.call("exits") == [[21, 2 << 8]]


def test_many_registrations_cost_one_wake_up_and_the_look_after_it(start: Start, folder: Path) -> None:
    service = FdStoreService(start, folder)
    counts, taken = [], []
    for _ in range(5):
        time.sleep(3 * LAZY_S)
        before = switches(service.pid)
        taken.append(service.call("keep_many", 100))
        time.sleep(3 * LAZY_S)
        counts.append(switches(service.pid) - before)
    # One for the first message, one 50 ms later; now and then one for the look at the server.
    assert sorted(counts)[2] <= 3
    assert sorted(taken)[2] < LAZY_S * 1000


def test_a_nudge_ends_the_wait(start: Start, folder: Path) -> None:
    service = FdStoreService(start, folder)
    waits = []
    for number in range(1, 12):
        before = descriptors(service.pid)
        service.call("keep", number, 1, "x")
        begin = time.monotonic()
        service.call("release", number, True)
        eventually(partial(has_at_most, service.pid, before))
        waits.append(time.monotonic() - begin)
    assert sorted(waits)[len(waits) // 2] < LAZY_S / 2


def test_a_full_channel_is_waited_for_and_nothing_is_lost(start: Start, folder: Path) -> None:
    service = FdStoreService(start, folder)
    # Several times what the largest buffer takes.
    assert service.call("keep_many", 5_500) > 0
    service.kill()
    assert service.call("handed_count") == [5_500, 16_500]


def test_a_number_that_does_not_fit_is_dropped_said_and_the_others_stay(start: Start, folder: Path) -> None:
    service = FdStoreService(start, folder)
    before = descriptors(service.pid)
    service.call("keep", 1, 1, *["fits"] * 100)
    eventually(lambda: descriptors(service.pid) >= before + 100)
    service.call("limit_descriptors", service.pid, 64 + 4)
    service.call("keep", 2, 1, "half fits")
    service.call("keep", 2, 2, *["much"] * 10)
    service.call("keep", 2, 3, "late")
    assert "number 2 of the server would not survive the server" in service.service.error_line()
    service.call("keep", 3, 1, "fits too")
    service.kill()
    assert service.call("handed") == {"1": {"1": ["fits"] * 100}, "3": {"1": ["fits too"]}}
    service.call("release", 2)
    service.call("keep", 2, 1, "again")
    service.kill()
    assert service.call("handed")["2"] == {"1": ["again"]}
