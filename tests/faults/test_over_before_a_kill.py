"""Commands that are over when the server dies: read afterwards like before, and nothing is held for them."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from tests.faults.resuming_client import ResumingClient
from tests.faults.service import Serve, Service, descriptors, eventually
from tests.support.servers import open_files
from tests.support.wire import PATIENCE, Client, ReplyError, decode, encode

LET_GO_SECONDS = 0.3
"""After which the supervisor has let go of the ends of whatever is closed: it does so many at a time."""


def _kill(service: Service, client: Client) -> Client:
    service.signal_server(signal.SIGKILL)
    service.wait_for_new_server()
    return service.connect(client.session_id)


@pytest.mark.parametrize("tty", [False, True])
def test_a_command_that_was_over_before_the_kill_is_read_after_each_take_over(
    serve: Serve, *, tty: bool
) -> None:
    service = serve("unix", may_fail=True)
    client = service.connect()
    done = client.start("/bin/sh", "-c", "echo said; exit 3", tty=tty).wait_closed()
    whole = done.read()
    assert b"".join(decode(chunk["chunk"]) for chunk in whole["chunks"]).split() == [b"said"]
    time.sleep(LET_GO_SECONDS)
    for _ in range(3):
        client = _kill(service, client)
        assert client.process(done.id).read() == whole
    assert not service.failures()


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
    service.wait_for_new_server()
    assert session.call("process/write", line) == {"status": "accepted"}
    with pytest.raises(ReplyError, match="failed to write"):
        session.call("process/write", {**line, "writeId": "2"})
    session.cut()


def test_the_supervisor_keeps_no_end_of_what_is_closed_after_a_take_over(serve: Serve, folder: Path) -> None:
    service = serve("unix", may_fail=True)
    client = service.connect()

    def pipes() -> int:
        kinds = ("pipe:", "anon_inode:[pidfd]", "/dev/ptmx")
        return sum(link.startswith(kinds) for link in open_files(service.pid))

    before = pipes()
    # Closed by whoever holds the output longer than the leader lives.
    gate = folder / "gate"
    os.mkfifo(gate)
    late = client.shell(f"(read x <{gate}; echo late) & exit 0")
    late.wait_exited()
    assert eventually(lambda: pipes() > before, within=5)
    gate.write_text("go\n")
    late.wait_closed()
    client = _kill(service, client)
    page = client.process(late.id).read()
    assert (page["closed"], page["exitCode"]) == (True, 0)
    assert b"".join(decode(chunk["chunk"]) for chunk in page["chunks"]) == b"late\n"
    assert eventually(lambda: pipes() == before, within=5), (pipes(), before)


def test_the_supervisor_keeps_no_ends_of_what_was_closed_just_before_the_kill(serve: Serve) -> None:
    service = serve("unix", "--process-ttl", "1", may_fail=True)
    session = ResumingClient(service)
    assert eventually(lambda: descriptors(service.pid)["/memfd"] == 3, 5)
    before = descriptors(service.pid)
    for _ in range(5):
        # The output outlives the leader: the end is written down twice.
        session.start("/bin/sh", "-c", "sleep 0.2 & exit 0")
    for number in range(1, 6):
        session.client.process(f"r{number}").wait_closed()
    service.signal_server(signal.SIGKILL)
    service.wait_for_new_server()
    session.reconnect()
    assert eventually(lambda: not descriptors(service.pid) - before, PATIENCE), (
        descriptors(service.pid) - before
    )
    session.cut()
