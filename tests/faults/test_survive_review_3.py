"""What is left half done when a server dies, or its memory is full, at an awkward moment."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from execserver.processes.survival import Survival
from execserver.supervisor.keeping import Kept
from execserver.supervisor.registration import ARENA, LEDGER, PROCESS, SERVICE
from tests.faults.matrix.scene import marked
from tests.faults.resuming_client import ResumingClient
from tests.faults.service import Serve, Service, children, eventually
from tests.sandbox.profiles import at, context, restricted, special
from tests.support.wire import Client, ReplyError, decode, encode

KILLED = 128 + signal.SIGKILL
INPUT_AT_ITS_END = "exec 3<&0; (cat <&3; echo end) & exit 3"
"""Its leader ends at once; what it leaves behind ends with the input."""


def _descriptors(pid: int) -> Counter[str]:
    found: Counter[str] = Counter()
    for name in os.listdir(f"/proc/{pid}/fd"):
        with contextlib.suppress(OSError):
            found[os.readlink(f"/proc/{pid}/fd/{name}").partition(":")[0]] += 1
    return found


def _ledger_full(service: Service) -> None:
    """No file of the server may become any larger, as when there is no memory."""
    hard = resource.prlimit(service.server_pid, resource.RLIMIT_FSIZE)[1]
    resource.prlimit(service.server_pid, resource.RLIMIT_FSIZE, (1, hard))


def _stopped(service: Service) -> bool:
    for pid in children(service.pid):
        with contextlib.suppress(OSError):
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T":
                return True
    return False


@contextlib.contextmanager
def _slow_supervisor(service: Service) -> Iterator[None]:
    """It tells the server of no end meanwhile."""
    os.kill(service.pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(service.pid, signal.SIGCONT)


# ------------------------------------------------------------------ input


def test_who_inherited_the_input_hears_of_its_end_when_the_leader_is_gone(serve: Serve) -> None:
    client = serve("unix").connect()
    process = client.shell(INPUT_AT_ITS_END, pipeStdin=True).wait_closed(10)
    assert process.output == b"end\n"
    assert process.exit_code == 3


@pytest.mark.parametrize("times", [1, 2])
def test_he_hears_of_it_when_the_server_dies_just_after_the_exit(serve: Serve, times: int) -> None:
    service = serve("unix", may_fail=True, env={"EXECSERVER_FAULT_POINT": "after-exit-journal"})
    session = ResumingClient(service)
    # One of the two outputs is at its end.
    process = session.start("/bin/sh", "-c", f"exec 2>&-; {INPUT_AT_ITS_END}", pipeStdin=True)
    assert eventually(lambda: _stopped(service), 10)
    for _ in range(times):
        service.signal_server(signal.SIGKILL)
        service.successor()
        session.reconnect()
    handle = session.client.process(process)
    assert eventually(lambda: bool(handle.read()["closed"]), 10)
    page = handle.read()
    assert [decode(chunk["chunk"]) for chunk in page["chunks"]] == [b"end\n"]
    assert page["exitCode"] == 3
    session.cut()


def test_an_accepted_write_is_accepted_again_when_the_process_is_closed_and_the_server_another(
    serve: Serve,
) -> None:
    service = serve("unix", may_fail=True)
    session = ResumingClient(service)
    process = session.start("/bin/sh", "-c", "read line", pipeStdin=True)
    line = {"processId": process, "chunk": encode(b"x\n"), "writeId": "1"}
    assert session.call("process/write", line) == {"status": "accepted"}
    session.client.process(process).wait_closed()
    service.signal_server(signal.SIGKILL)
    service.successor()
    assert session.call("process/write", line) == {"status": "accepted"}
    with pytest.raises(ReplyError, match="failed to write"):
        session.call("process/write", {**line, "writeId": "2"})
    session.cut()


# ------------------------------------------------------------------ descriptors


def test_the_supervisor_keeps_no_ends_of_what_was_closed_just_before_the_kill(serve: Serve) -> None:
    service = serve("unix", "--process-ttl", "1", may_fail=True)
    session = ResumingClient(service)
    assert eventually(lambda: _descriptors(service.pid)["/memfd"] == 3, 5)
    before = _descriptors(service.pid)
    for _ in range(5):
        # The output outlives the leader: the end is written down twice.
        session.start("/bin/sh", "-c", "sleep 0.2 & exit 0")
    for number in range(1, 6):
        session.client.process(f"r{number}").wait_closed()
    service.signal_server(signal.SIGKILL)
    service.successor()
    session.reconnect()
    assert eventually(lambda: not _descriptors(service.pid) - before, 4), _descriptors(service.pid) - before
    session.cut()


def test_the_end_of_an_inherited_session_leaves_no_descriptor(serve: Serve) -> None:
    service = serve("unix", "--session-ttl", "1", may_fail=True)
    session = ResumingClient(service)
    before = _descriptors(service.server_pid)["anon_inode"]
    for _ in range(20):
        session.start("/bin/sleep", "600")
    service.signal_server(signal.SIGKILL)
    session.cut()
    service.successor()
    assert eventually(lambda: _descriptors(service.server_pid)["anon_inode"] > before + 10, 5)
    with _slow_supervisor(service):
        assert eventually(lambda: "session ended" in service.log, 5)
    assert eventually(lambda: _descriptors(service.server_pid)["anon_inode"] <= before, 5), (
        before,
        _descriptors(service.server_pid),
    )


def test_the_end_of_an_inherited_session_leaves_no_mount_point(serve: Serve, folder: Path) -> None:
    service = serve("unix", "--session-ttl", "1", may_fail=True)
    session = ResumingClient(service)
    spaces = [folder / f"ws{number}" for number in range(5)]
    for space in spaces:
        space.mkdir()
        permissions = restricted(special("root", "read"), at(space, "write"))
        session.start("/bin/sleep", "600", cwd=f"file://{space}", sandbox=context(permissions, cwd=space))
    assert eventually(lambda: all((space / ".git").exists() for space in spaces), 5)
    service.signal_server(signal.SIGKILL)
    session.cut()
    service.successor()
    assert eventually(lambda: service.log.count("ready") >= 2, 5)
    with _slow_supervisor(service):
        assert eventually(lambda: "session ended" in service.log, 5)
    assert eventually(lambda: not any(list(space.iterdir()) for space in spaces), 8), [
        list(space.iterdir()) for space in spaces
    ]
    assert not any(list(space.iterdir()) for space in spaces)


# ------------------------------------------------------------------ a kill half done


@pytest.mark.parametrize("cause", ["terminated", "timeout"])
def test_a_kill_that_a_server_died_over_is_finished(serve: Serve, cause: str) -> None:
    service = serve("unix", may_fail=True)
    session = ResumingClient(service)
    process = session.start("/bin/sleep", "600")
    row = session.follow(process, lambda data, lost: None)
    service.signal_server(signal.SIGSTOP)
    _write_down(service, f'["ending",1,"{cause}"]')
    service.signal_server(signal.SIGKILL)
    service.successor()
    session.finish(row, within=10)
    assert row.exit_code == KILLED
    session.cut()


def _write_down(service: Service, record: str) -> None:
    folder = f"/proc/{service.server_pid}/fd"
    (name,) = (fd for fd in os.listdir(folder) if "memfd:ledger" in os.readlink(f"{folder}/{fd}"))
    with open(f"{folder}/{name}", "ab") as ledger:
        ledger.write(f"{record}\n".encode())


# ------------------------------------------------------------------ no memory for the ledger


def test_a_start_that_cannot_be_written_down_leaves_nothing_running(serve: Serve) -> None:
    service = serve("unix", may_fail=True, env={"EXECSERVER_FAULT_POINT": "after-spawn:2"})
    client = service.connect()
    client.start("/bin/echo", "warm").wait_closed()
    mark = f"7{os.getpid()}{time.monotonic_ns() % 1000}"
    script = f"(setsid sleep {mark} &) ; exec sleep {mark}"
    number = client.request("process/start", client.start_params(["/bin/sh", "-c", script]))
    assert eventually(lambda: len(marked(mark)) == 2, 10)
    assert eventually(lambda: _stopped(service), 10)
    _ledger_full(service)
    service.signal_server(signal.SIGCONT)
    with pytest.raises(ReplyError):
        client.result(number)
    assert marked(mark) == []
    client.close()


def test_a_process_ends_when_its_end_cannot_be_written_down(serve: Serve) -> None:
    service = serve("unix", may_fail=True)
    client: Client = service.connect()
    process = client.start("/bin/sleep", "600")
    _ledger_full(service)
    assert process.terminate()["running"]
    process.wait_closed()
    assert process.exit_code == KILLED
    assert service.server_lives
    session = client.session_id
    service.signal_server(signal.SIGKILL)
    client.close()
    service.successor()
    # What nobody could write down, nobody can tell.
    page = service.connect(session).process(process.id).read()
    assert (page["exited"], page["exitCode"], page["closed"]) == (True, 255, True)


# ------------------------------------------------------------------ the service itself


def test_a_server_that_died_between_ledger_and_index_had_not_begun() -> None:
    assert not Survival.has_begun([])
    for slot in (LEDGER, ARENA):
        fd = os.memfd_create("half")
        assert not Survival.has_begun([Kept(SERVICE, slot, [fd])])
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(fd)
    assert Survival.has_begun([Kept(SERVICE, LEDGER, []), Kept(SERVICE, ARENA, [])])
    assert Survival.has_begun([Kept(SERVICE, LEDGER, []), Kept(1, PROCESS, [])])
