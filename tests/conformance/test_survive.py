"""The server dies, and another takes over: what a client may rely on. Stdio has no part in it."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.conformance.endpoint import SOCKETS, Endpoint
from tests.conformance.test_sessions import resume
from tests.support.servers import server_of
from tests.support.wire import PATIENCE, Json, Process, decode, path_uri, wait_gone, wait_state

MIB = 1 << 20


def server_pid(endpoint: Endpoint) -> int:
    """The server below the supervisor, which has commands for children too once a server died."""
    return server_of(endpoint.server.pid, PATIENCE)


def kill_server(endpoint: Endpoint) -> None:
    pid = server_pid(endpoint)
    os.kill(pid, signal.SIGKILL)
    assert wait_gone(pid)


@contextlib.contextmanager
def without_server(endpoint: Endpoint) -> Iterator[None]:
    """The server is dead, and no other is started before the end of the block."""
    os.kill(endpoint.server.pid, signal.SIGSTOP)
    try:
        kill_server(endpoint)
        yield
    finally:
        os.kill(endpoint.server.pid, signal.SIGCONT)


def wait_for(path: Path, wanted: str = "") -> str:
    """Wait, beside the connection, for what a child writes to a file."""
    deadline = time.monotonic() + PATIENCE
    while not (path.exists() and wanted in (text := path.read_text())):
        assert time.monotonic() < deadline, f"{path} does not come"
        threading.Event().wait(0.01)
    return text


def read_to_end(process: Process, after: int = 0) -> tuple[list[Json], Json]:
    """All chunks behind a cursor until the process is closed, and the last page."""
    chunks: list[Json] = []
    while True:
        page = process.read(after, wait_ms=10_000)
        chunks += page["chunks"]
        after = page["nextSeq"] - 1
        if page["closed"]:
            return chunks, page


@pytest.fixture
def private(endpoint: Endpoint) -> Endpoint:
    """A daemon whose server may be killed."""
    return endpoint.private()


@pytest.mark.transports(*SOCKETS)
@pytest.mark.statement("H40")
def test_every_connection_ends_and_new_ones_are_served(private: Endpoint) -> None:
    clients = [private.connect(), private.connect(), private.connect(handshake=False)]
    for client in clients:
        client.call("server/health")  # accepted, and not just waiting for that
    with ThreadPoolExecutor() as threads:
        with without_server(private):
            for client in clients:
                client.wait_end()
            early = threads.submit(private.connect)
            threading.Event().wait(0.2)
            assert not early.done()
        assert early.result(PATIENCE).start("/bin/true").wait_closed().exit_code == 0


@pytest.mark.transports(*SOCKETS)
@pytest.mark.statement("H40", "H41", "H42")
def test_a_service_survives_again_and_again(private: Endpoint) -> None:
    client = private.connect()
    session, process = client.session_id, client.start("/bin/cat", pipeStdin=True)
    for number in range(1, 5):
        kill_server(private)
        client = resume(private, session)
        process = client.process(process.id)
        assert process.write(f"{number}", f"{number}") == "accepted"
        process.wait_output(f"{number}".encode())
    assert [(chunk["seq"], decode(chunk["chunk"])) for chunk in process.read()["chunks"]] == [
        (1, b"1"), (2, b"2"), (3, b"3"), (4, b"4"),
    ]  # fmt: skip


@pytest.mark.transports(*SOCKETS)
@pytest.mark.statement("X22", "H42")
def test_output_keeps_its_time_in_a_new_server(private: Endpoint) -> None:
    client = private.connect(extensions=True)
    process = client.start("/bin/cat", pipeStdin=True)
    for number in range(3):
        process.write(f"{number}", f"{number}")
        process.wait_output(f"{number}".encode())
    before = process.read()["chunks"]
    kill_server(private)

    client = resume(private, client.session_id, extensions=True)

    assert client.process(process.id).read()["chunks"] == before
    assert [decode(chunk["chunk"]) for chunk in before] == [b"0", b"1", b"2"]
    assert all(chunk["at"] > 0 for chunk in before)


@pytest.mark.transports(*SOCKETS)
@pytest.mark.statement("X23", "H42")
def test_the_sizes_of_a_terminal_are_known_to_a_new_server(private: Endpoint) -> None:
    client = private.connect(extensions=True)
    process = client.shell("echo 1; sleep 100", tty=True)
    process.wait_output(b"1\r\n")
    size = {"processId": process.id, "size": {"rows": 30, "cols": 100}}
    assert client.call("process/resize", size) == {"running": True}
    question = {"processId": process.id, "sizes": True}
    before = client.call("process/read", question)["sizes"]
    assert [each["rows"] for each in before] == [24, 30]
    kill_server(private)

    client = resume(private, client.session_id, extensions=True)

    assert client.call("process/read", question)["sizes"] == before


@pytest.mark.statement("H41")
def test_a_session_is_resumed_after_more_than_its_time_without_a_server(endpoint: Endpoint) -> None:
    private = endpoint.private("--session-ttl", "1")
    client = private.connect()
    process = client.start("/bin/cat", pipeStdin=True)
    with without_server(private):
        threading.Event().wait(1.5)
    assert not resume(private, client.session_id).process(process.id).read()["exited"]


@pytest.mark.statement("H41", "H30")
def test_the_time_of_a_session_runs_from_when_the_next_server_is_ready(endpoint: Endpoint) -> None:
    private = endpoint.private("--session-ttl", "1.5")
    client = private.connect(extensions=True)
    process = client.start("/bin/cat", pipeStdin=True)
    killed = time.monotonic()
    kill_server(private)
    private.connect()
    assert wait_gone(process.started["pid"], 1.5 + PATIENCE)
    assert time.monotonic() - killed >= 1.5
    newcomer = private.connect(handshake=False)
    params = {"clientName": "x", "resumeSessionId": client.session_id}
    assert newcomer.refused("initialize", params).message == f"unknown session id {client.session_id}"


@pytest.mark.statement("H42", "O49")
@pytest.mark.parametrize("tty", [False, True])
def test_output_of_the_meantime_is_behind_the_cursor(private: Endpoint, here: Path, tty: bool) -> None:
    first = private.connect()
    # Two of them: whoever opens one may still find the writer of the time before.
    one, two = here / "one", here / "two"
    script = f"mkfifo {one} {two}; echo before; read -r x < {one}; echo meanwhile; echo > {here}/done"
    old = first.shell(f"{script}; read -r x < {two}; echo after", tty=tty)
    old.wait_output(b"before")
    with without_server(private):
        one.write_text("go\n")
        wait_for(here / "done")
    process = resume(private, first.session_id).process(old.id)
    end = "\r\n" if tty else "\n"
    page = process.read(old.log.seqs[-1], wait_ms=10_000)
    assert b"".join(decode(chunk["chunk"]) for chunk in page["chunks"]) == f"meanwhile{end}".encode()
    two.write_text("go\n")
    process.wait_closed()
    assert process.output == f"after{end}".encode()
    chunks, _ = read_to_end(process)
    assert b"".join(decode(chunk["chunk"]) for chunk in chunks) == (
        f"before{end}meanwhile{end}after{end}".encode()
    )
    numbers = [chunk["seq"] for chunk in chunks]
    assert numbers == list(range(1, len(numbers) + 1))


@pytest.mark.transports(*SOCKETS)
@pytest.mark.statement("H42", "O5", "O1")
def test_a_flood_goes_on_without_a_byte_missing_and_no_number_has_two_meanings(private: Endpoint) -> None:
    client, count, rounds = private.connect(), 400_000, 4
    session = client.session_id
    process = client.shell(f"for i in $(seq {rounds}); do read -r n; seq 1 $n; done", pipeStdin=True)
    pieces: dict[int, bytes] = {}

    def take(chunks: list[Json]) -> None:
        for chunk in chunks:
            data = decode(chunk["chunk"])
            assert pieces.setdefault(chunk["seq"], data) == data

    def notified() -> list[Json]:
        return [params for method, params in process.log.events if method == "process/output"]

    for number in range(1, rounds):
        process.write(f"{count}\n", str(number))
        process.wait_output(lambda output: len(output) > 100_000)
        kill_server(private)
        client.wait_end()
        take(notified())
        client = resume(private, session)
        process = client.process(process.id)
        take(process.read(max(pieces))["chunks"])
    process.write(f"{count}\n", str(rounds))
    assert process.wait_closed(40).exit_code == 0
    take(notified())
    assert b"".join(pieces[seq] for seq in sorted(pieces)) == rounds * b"".join(
        b"%d\n" % number for number in range(1, count + 1)
    )
    assert process.log.lost_bytes == 0


@pytest.mark.statement("O49", "O41", "O40")
def test_what_was_dropped_stays_counted(endpoint: Endpoint) -> None:
    private = endpoint.private("--retained-output-bytes", str(MIB))
    client = private.connect()
    process = client.start("/usr/bin/env", "seq", "1", "400000").wait_closed(timeout=40)
    before = process.read()
    assert before["lostBytes"] > 0
    kill_server(private)
    assert resume(private, client.session_id).process(process.id).read() == before


@pytest.mark.statement("H43", "W2")
def test_a_write_is_known_and_is_not_written_twice(private: Endpoint) -> None:
    first = private.connect()
    old = first.start("/bin/cat", pipeStdin=True)
    old.write("x", "1")
    old.wait_output(b"x")
    kill_server(private)
    process = resume(private, first.session_id).process(old.id)
    assert process.write("x", "1") == "accepted"
    assert process.write("y", "2") == "accepted"
    process.wait_output(b"y")
    assert [decode(chunk["chunk"]) for chunk in process.read()["chunks"]] == [b"x", b"y"]


@pytest.mark.statement("H43", "W1", "W8")
def test_input_that_was_accepted_and_not_read_reaches_the_child_once(private: Endpoint, here: Path) -> None:
    first = private.connect()
    data = b"".join(b"%d\n" % number for number in range(200_000))
    script = f"mkfifo {here}/fifo; echo ready; read -r x < {here}/fifo; head -c {len(data)}; exit 4"
    old = first.shell(script, pipeStdin=True)
    old.wait_output(b"ready\n")
    for number, begin in enumerate(range(0, len(data), 100_000)):
        assert old.write(data[begin : begin + 100_000], str(number)) == "accepted"
    kill_server(private)
    process = resume(private, first.session_id).process(old.id)
    for number, begin in enumerate(range(0, len(data), 100_000)):
        assert process.write(data[begin : begin + 100_000], str(number)) == "accepted"
    (here / "fifo").write_text("go\n")
    chunks, page = read_to_end(process)
    assert b"".join(decode(chunk["chunk"]) for chunk in chunks) == b"ready\n" + data
    assert page["exitCode"] == 4


@pytest.mark.statement("H42", "H43", "Y1", "Y3")
def test_a_terminal_stays_a_terminal(private: Endpoint) -> None:
    first = private.connect()
    script = "stty -echo; trap 'echo interrupted' INT; echo ready; while :; do read -r x; stty size; done"
    old = first.shell(script, tty=True)
    old.wait_output(b"ready")
    kill_server(private)
    process = resume(private, first.session_id).process(old.id)
    process.write("\n", "1")
    process.wait_output(b"24 80\r\n")
    process.write(b"\x03", "2")
    process.wait_output(b"interrupted")
    assert process.terminate() == {"running": True}
    assert process.wait_closed().exit_code == 137


@pytest.mark.statement("H44", "O2", "O3")
@pytest.mark.parametrize("tty", [False, True])
def test_an_exit_of_the_meantime_has_its_code_and_its_place(private: Endpoint, here: Path, tty: bool) -> None:
    first = private.connect(extensions=True)
    script = f"mkfifo {here}/fifo; echo ready; read -r x < {here}/fifo; echo last; exit 6"
    old = first.shell(script, tty=tty)
    old.wait_output(b"ready")
    stopped = first.shell("kill -STOP $$; kill -SEGV $$")
    wait_state([stopped.started["pid"]], "T")
    with without_server(private):
        (here / "fifo").write_text("go\n")
        assert wait_gone(old.started["pid"])
        os.kill(stopped.started["pid"], signal.SIGCONT)
        assert wait_gone(stopped.started["pid"])
    second = resume(private, first.session_id)
    process = second.process(old.id)
    chunks, page = read_to_end(process)
    assert b"".join(decode(chunk["chunk"]) for chunk in chunks).split() == [b"ready", b"last"]
    assert (page["exited"], page["exitCode"], page["closed"]) == (True, 6, True)
    assert page["nextSeq"] == chunks[-1]["seq"] + 3
    _, page = read_to_end(second.process(stopped.id))
    assert page["exitCode"] == 128 + signal.SIGSEGV


@pytest.mark.statement("H45", "P20")
def test_a_start_that_was_not_answered_is_whole_or_nothing(private: Endpoint, here: Path) -> None:
    client = private.connect()
    session = client.session_id
    for attempt in range(5):
        pids = here / f"pids{attempt}"
        argv = ["/bin/sh", "-c", f"echo $$ >> {pids}; exec sleep 300"]
        params = client.start_params(argv, processId=f"attempt {attempt}", ifExists="attach")
        server = server_pid(private)
        client.request("process/start", params)
        threading.Event().wait(attempt * 0.0005)
        os.kill(server, signal.SIGKILL)
        assert wait_gone(server)
        client.close()
        client = resume(private, session)
        client.call("process/start", params)
        process = client.process(params["processId"])
        wait_for(pids, "\n")
        assert not process.read()["exited"]
        process.terminate()
        read_to_end(process)
        # Whatever ran beside it is gone as well.
        assert all(wait_gone(int(pid)) for pid in pids.read_text().split())


@pytest.mark.statement("H46", "H28")
def test_handles_and_watches_are_gone_with_the_server(private: Endpoint, here: Path) -> None:
    (here / "f").write_text("content")
    first = private.connect()
    first.call("fs/open", {"handleId": "h", "path": path_uri(here / "f")})
    first.call("fs/watchMissing", {"watchId": 9, "missing": [path_uri(here / "m")]})
    kill_server(private)
    second = resume(private, first.session_id)
    failure = second.refused("fs/readBlock", {"handleId": "h", "offset": 0, "len": 1})
    assert (failure.code, failure.message) == (-32004, "unknown file handle `h`")
    (here / "m").touch()
    second.call("fs/open", {"handleId": "h", "path": path_uri(here / "f")})
    watch = {"watchId": 1, "missing": [path_uri(here / "other")]}
    assert second.call("fs/watchMissing", watch) == {"watching": True}
    assert second.notifications == []


@pytest.mark.statement("H47", "P35")
def test_a_closed_process_is_kept_for_what_was_left_of_its_time(endpoint: Endpoint) -> None:
    private = endpoint.private("--process-ttl", "8")
    client = private.connect()
    begin = time.monotonic()
    old = client.shell("echo x; exit 5").wait_closed()
    threading.Event().wait(4)
    killed = time.monotonic()
    kill_server(private)
    client = resume(private, client.session_id)
    process = client.process(old.id)
    assert process.read()["exitCode"] == 5
    while "result" in (reply := client.reply(client.request("process/read", {"processId": old.id}))):
        assert reply["result"]["closed"]
        assert time.monotonic() < killed + 8, "its time began anew"
        threading.Event().wait(0.1)
    assert time.monotonic() >= begin + 8
    assert reply["error"]["message"] == f"unknown process id {old.id}"


@pytest.mark.statement("H48", "W9", "W10")
def test_the_end_of_an_input_survives(private: Endpoint, here: Path) -> None:
    client = private.connect()
    os.mkfifo(here / "go")
    old = client.shell(f"read -r x < {here}/go; exec cat", pipeStdin=True)
    data = os.urandom(2 * MIB)
    assert old.write(data, "1") == "accepted"
    assert client.call("process/closeStdin", {"processId": old.id}) == {"status": "accepted"}
    kill_server(private)
    process = resume(private, client.session_id).process(old.id)
    assert process.write("late", "2") == "stdinClosed"
    assert process.write(data, "1") == "accepted"
    (here / "go").write_text("go\n")
    chunks, page = read_to_end(process)
    assert b"".join(decode(chunk["chunk"]) for chunk in chunks) == data
    assert page["exitCode"] == 0


@pytest.mark.statement("H48", "P32")
@pytest.mark.parametrize("method", ["process/terminate", "process/signal"])
def test_a_tree_is_killed_whole_though_the_server_dies(private: Endpoint, method: str) -> None:
    client = private.connect()
    # Enough of them that the server is at work when it dies.
    script = "for i in 1 2 3 4 5 6 7 8; do setsid sleep 300 & echo $!; done; wait"
    process = client.shell(script)
    output = process.wait_output(lambda output: output.count(b"\n") == 8)
    members = {"scope": "tree"} | ({"signal": "SIGKILL"} if method == "process/signal" else {})
    client.request(method, {"processId": process.id, **members})
    client.call("server/health")
    kill_server(private)
    page = read_to_end(resume(private, client.session_id).process(process.id))[1]
    assert page["exitCode"] == 137
    assert all(wait_gone(int(pid)) for pid in output.split())


@pytest.mark.statement("H42", "Y8")
def test_a_terminal_keeps_its_size_and_can_be_resized(private: Endpoint) -> None:
    client = private.connect()
    old = client.shell("trap 'stty size' WINCH; stty size; while :; do sleep 0.02; done", tty=True)
    old.wait_output(b"24 80")
    size = {"processId": old.id, "size": {"rows": 7, "cols": 8}}
    assert client.call("process/resize", size) == {"running": True}
    old.wait_output(b"7 8")
    kill_server(private)
    client = resume(private, client.session_id)
    assert client.call("process/resize", {**size, "size": {"rows": 9, "cols": 10}}) == {"running": True}
    process = client.process(old.id)
    process.wait_output(b"9 10")
    assert client.call("process/signal", {"processId": old.id, "signal": "SIGKILL", "scope": "leader"}) == {}
    process.wait_closed()
    assert client.call("process/resize", size) == {"running": False}
