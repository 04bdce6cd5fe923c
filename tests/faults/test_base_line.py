"""What is forgotten leaves nothing: neither descriptors, in the server and in the supervisor, nor files."""

from __future__ import annotations

import signal
from collections import Counter
from pathlib import Path

import pytest

from tests.faults.resuming_client import EventRow, ResumingClient
from tests.faults.service import Serve, Service, eventually, state_files
from tests.support.servers import open_files
from tests.support.wire import encode

EACH = 6
FORGOTTEN_SECONDS = 10.0


def _held(service: Service) -> dict[str, Counter[str]]:
    """Descriptors of both processes, by what they are: names without numbers."""
    held = {}
    for name, pid in (("supervisor", service.pid), ("server", service.server_pid)):
        links = Counter[str]()
        for link in open_files(pid):
            if link.startswith("/proc/"):
                continue  # watched from the first sandbox on, whenever that is
            links[link.partition("[" if link.startswith(("pipe:", "socket:")) else " (")[0]] += 1
        held[name] = links
    return held


def _start_all(session: ResumingClient) -> list[EventRow]:
    """Commands of each kind that wait for a line, and have output before and after it."""
    script = 'echo here; read line; echo "$line"; exit 3'
    rows = []
    for _ in range(EACH):
        for members in ({"tty": True}, {"pipeStdin": True}):
            name = session.start("/bin/sh", "-c", script, **members)
            rows.append(session.follow(name, lambda data, lost: None))
    return rows


def _end_all(session: ResumingClient, rows: list[EventRow]) -> None:
    for row in rows:
        write = {"processId": row.process_id, "chunk": encode("go\n"), "writeId": "go"}
        assert session.call("process/write", write) == {"status": "accepted"}
    session.finish(*rows)
    assert [row.exit_code for row in rows] == [3] * len(rows)


@pytest.mark.parametrize("kills", [0, 1, 3])
def test_commands_that_are_forgotten_leave_no_descriptor_and_no_file(
    kills: int, serve: Serve, folder: Path
) -> None:
    service = serve("unix", "--process-ttl", "1", may_fail=kills > 0)
    session = ResumingClient(service)
    if kills:
        # A new server has other descriptors than the first one, and is compared with a new server.
        service.signal_server(signal.SIGKILL)
        service.wait_for_new_server()
        session.reconnect()
    _end_all(session, _start_all(session))
    known = {"processId": "r1", "afterSeq": 0}

    def forgotten() -> bool:
        return "error" in session.client.reply(session.client.request("process/read", known))

    assert eventually(forgotten, FORGOTTEN_SECONDS)
    service.settle()
    before, files = _held(service), state_files(folder)
    rows = _start_all(session)
    for _ in range(kills):
        service.signal_server(signal.SIGKILL)
        service.wait_for_new_server()
        session.reconnect()
    _end_all(session, rows)
    left: dict[str, Counter[str]] = {}

    def none_left() -> bool:
        left.clear()
        left.update({name: held - before[name] for name, held in _held(service).items()})
        return not any(left.values())

    assert eventually(none_left, FORGOTTEN_SECONDS), left
    assert eventually(lambda: state_files(folder) == files, FORGOTTEN_SECONDS), state_files(folder)
