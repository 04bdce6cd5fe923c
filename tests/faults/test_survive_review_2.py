"""What is closed when the server dies is there afterwards like what runs, however often that happens."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from tests.faults.service import Serve, Service, eventually
from tests.support.wire import Client, decode, encode

LET_GO_SECONDS = 0.3
"""After which the supervisor has let go of the ends of whatever is closed: it does so many at a time."""


def _kill(service: Service, client: Client) -> Client:
    service.signal_server(signal.SIGKILL)
    service.successor()
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


def test_a_stop_in_the_middle_of_an_upgrade_waits_for_no_answer(serve: Serve) -> None:
    service = serve("unix", may_fail=True)
    client = service.connect()
    idle = client.start("/bin/sleep", "600", pipeStdin=True)
    chunk = encode(bytes(16 << 20))
    writes = [
        client.request("process/write", {"processId": idle.id, "chunk": chunk, "writeId": str(number)})
        for number in range(6)
    ]
    client.result(writes[-2])
    service.process.send_signal(signal.SIGHUP)
    assert eventually(lambda: '"upgrading"' in service.log, within=10)
    assert not client.answered(writes[-1])
    begin = time.monotonic()
    service.process.send_signal(signal.SIGTERM)
    assert service.process.wait(20) == 0
    assert time.monotonic() - begin < 5
    assert '"stopping"' in service.log, "what ends in order leaves no mount points"


def test_the_supervisor_keeps_no_end_of_what_is_closed_after_a_take_over(serve: Serve, folder: Path) -> None:
    service = serve("unix", may_fail=True)
    client = service.connect()

    def pipes() -> int:
        entries = Path(f"/proc/{service.pid}/fd").iterdir()
        found = 0
        for entry in entries:
            try:
                found += os.readlink(entry).startswith(("pipe:", "anon_inode:[pidfd]", "/dev/ptmx"))
            except FileNotFoundError:
                continue
        return found

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
