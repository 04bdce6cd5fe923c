"""No memory for the ledger: no command runs that a new server would not know of."""

from __future__ import annotations

import os
import resource
import signal
import time

import pytest

from tests.faults.matrix.scene import marked
from tests.faults.service import Serve, Service, a_child_is_stopped, eventually
from tests.support.wire import Client, ReplyError

KILLED = 128 + signal.SIGKILL


def _ledger_full(service: Service) -> None:
    """No file of the server may become any larger, as when there is no memory."""
    hard = resource.prlimit(service.server_pid, resource.RLIMIT_FSIZE)[1]
    resource.prlimit(service.server_pid, resource.RLIMIT_FSIZE, (1, hard))


def test_a_start_that_cannot_be_written_down_leaves_nothing_running(serve: Serve) -> None:
    service = serve("unix", may_fail=True, env={"EXECSERVER_FAULT_POINT": "after-spawn:2"})
    client = service.connect()
    client.start("/bin/echo", "warm").wait_closed()
    mark = f"7{os.getpid()}{time.monotonic_ns() % 1000}"
    script = f"(setsid sleep {mark} &) ; exec sleep {mark}"
    number = client.request("process/start", client.start_params(["/bin/sh", "-c", script]))
    assert eventually(lambda: len(marked(mark)) == 2, 10)
    assert eventually(lambda: a_child_is_stopped(service), 10)
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
    service.wait_for_new_server()
    # What nobody could write down, nobody can tell.
    page = service.connect(session).process(process.id).read()
    assert (page["exited"], page["exitCode"], page["closed"]) == (True, 255, True)


def test_a_time_to_live_that_cannot_be_written_down_is_refused_and_not_in_force(serve: Serve) -> None:
    service = serve("unix", may_fail=True)
    client = service.connect()
    assert client.call("session/setTtl", {"ttlMs": 3_600_000}) == {"sessionTtlMs": 3_600_000}
    _ledger_full(service)
    failure = client.refused("session/setTtl", {"ttlMs": 7_200_000})
    assert (failure.code, "os error" in failure.message) == (-32603, True)
    service.signal_server(signal.SIGKILL)
    client.close()
    service.wait_for_new_server()
    again = service.connect(handshake=False).handshake(client.session_id, extensions=True)
    assert again.initialized["sessionTtlMs"] == 3_600_000
