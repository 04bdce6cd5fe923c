"""`session/end`: a client that is done leaves nothing behind, and one that only goes leaves everything."""

from __future__ import annotations

import os
import signal
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conformance.endpoint import EVERY_DOOR, Endpoint
from tests.conformance.test_sessions import resume
from tests.faults.service import eventually
from tests.sandbox.profiles import READ_ROOT, WRITE_WORKSPACE, context, restricted
from tests.support.background import DAEMON, IN_BACKGROUND, Left
from tests.support.servers import open_files, server_of
from tests.support.wire import PATIENCE, Client, Json, alive, at_most, path_uri, wait_state

THERE_IS_NONE = "unknown session id"


@pytest.fixture
def left() -> Iterator[Left]:
    """Something to leave running."""
    left = Left()
    yield left
    left.kill()


def in_background(left: Left) -> str:
    """A script that leaves it running and exits."""
    return IN_BACKGROUND.format(sleep=left.sleep)


def confined(folder: Path) -> Json:
    """Members of a start in a sandbox that may write to a folder."""
    permissions = restricted(READ_ROOT, WRITE_WORKSPACE)
    return {"cwd": path_uri(folder), "sandbox": context(permissions, cwd=folder, roots=[folder])}


def end(client: Client) -> None:
    """End the session, and see the connection end behind the answer."""
    assert client.call("session/end", {}) == {}
    client.wait_end()


# -- what ends


@pytest.mark.transports(*EVERY_DOOR)
@pytest.mark.statement("H50", "H53")
def test_a_child_whose_leader_has_exited_ends_with_the_session(endpoint: Endpoint, left: Left) -> None:
    client = endpoint.connect()
    process = client.shell(in_background(left)).wait_closed()
    assert process.exit_code == 0
    left.wait_running()
    end(client)
    assert not left.pids


@pytest.mark.statement("H50")
def test_a_daemon_that_went_its_own_way_ends_with_the_session(client: Client, left: Left) -> None:
    client.start(sys.executable, "-I", "-c", DAEMON, *left.argv).wait_closed()
    left.wait_running()
    end(client)
    assert not left.pids


@pytest.mark.statement("H50")
def test_what_is_stopped_ends_with_the_session(client: Client, left: Left) -> None:
    client.shell(in_background(left)).wait_closed()
    pids = left.wait_running()
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    wait_state(pids, "T")
    end(client)
    assert not left.pids


@pytest.mark.statement("H50")
def test_what_runs_in_a_sandbox_ends_with_the_session(client: Client, left: Left, here: Path) -> None:
    client.start(*left.argv, **confined(here))
    client.shell(f"{left.sleep} & {left.sleep}", **confined(here))
    left.wait_running(3)
    end(client)
    assert not left.pids
    assert eventually(lambda: not list(here.iterdir()), PATIENCE), "what the sandbox had put there"


@pytest.mark.statement("H50")
def test_many_processes_of_every_kind_end_with_the_session(client: Client, left: Left, here: Path) -> None:
    for _ in range(5):
        client.start(*left.argv, tty=True)
        client.start(*left.argv, pipeStdin=True)
        client.shell(f"trap '' TERM HUP INT; {left.sleep} & {left.sleep}")
        client.shell(in_background(left))
        client.shell(f"trap '' HUP; setsid {left.sleep} & exit 0", tty=True)
        client.start(sys.executable, "-I", "-c", DAEMON, *left.argv)
        client.start(*left.argv, **confined(here))
    left.wait_running(5 * 8)
    end(client)
    assert not left.pids


@pytest.mark.statement("H50", "P35")
def test_a_child_of_a_process_that_is_not_kept_any_more_ends_with_the_session(
    endpoint: Endpoint, left: Left
) -> None:
    client = endpoint.private("--process-ttl", "0.2").connect()
    process = client.shell(in_background(left)).wait_closed()
    left.wait_running()

    def is_forgotten() -> bool:
        return "error" in client.reply(client.request("process/read", {"processId": process.id}))

    assert eventually(is_forgotten, PATIENCE)
    assert left.pids
    end(client)
    assert not left.pids


@pytest.mark.statement("H50", "H9")
def test_another_session_goes_on(endpoint: Endpoint, left: Left) -> None:
    client, other = endpoint.connect(), endpoint.connect()
    kept = other.start(*left.argv)
    left.wait_running()
    client.start("/bin/sleep", "300")
    end(client)
    assert left.pids
    assert kept.terminate() == {"running": True}


@pytest.mark.everywhere
@pytest.mark.statement("H50", "E8")
def test_a_session_without_processes_ends_at_once(endpoint: Endpoint) -> None:
    sent: tuple[Json, ...] = ({}, None)
    for params in sent:
        client = endpoint.connect()
        with at_most(10):
            assert client.call("session/end", params) == {}
            client.wait_end()


# -- what is known of it afterwards


@pytest.mark.statement("H51", "H21")
def test_an_ended_session_cannot_be_resumed(endpoint: Endpoint) -> None:
    client = endpoint.connect()
    end(client)
    late = endpoint.connect(handshake=False)
    params = {"clientName": "tests", "resumeSessionId": client.session_id}
    refusal = late.refused("initialize", params)
    assert (refusal.code, THERE_IS_NONE in refusal.message) == (-32600, True)


@pytest.mark.transports("unix", "unix-ws")
@pytest.mark.statement("H51", "L5", "L11", "X8")
def test_an_observer_is_told_of_the_end(endpoint: Endpoint) -> None:
    owner, other = endpoint.connect(), endpoint.connect(extensions=True)
    process = owner.start("/bin/sleep", "300")
    there = {"sessionId": owner.session_id, "processId": process.id}
    other.call("process/subscribe", there)
    end(owner)
    seen = other.process(process.id).wait_closed()
    assert [(name, params.get("cause")) for name, params in seen.log.events] == [
        ("process/exited", "sessionExpired"),
        ("process/closed", None),
    ]
    assert THERE_IS_NONE in other.refused("process/read", there).message


@pytest.mark.statement("H51")
def test_the_ends_of_its_processes_come_before_the_answer(client: Client) -> None:
    processes = [client.start("/bin/sleep", "300") for _ in range(20)]
    reads = [client.request("process/read", {"processId": each.id, "waitMs": 60_000}) for each in processes]
    ending = client.request("session/end")
    client.result(ending)
    assert client.reply_order()[-1] == ending
    for process, read in zip(processes, reads, strict=True):
        assert process.log.kinds == ["exited", "closed"]
        assert client.result(read)["exitCode"] == 137
    last = client.received.index(next(each for each in client.received if each.get("id") == ending))
    assert last == len(client.received) - 1


@pytest.mark.transports("unix", "ws")
@pytest.mark.statement("H51", "H53")
def test_output_and_handles_are_let_go_of(endpoint: Endpoint, here: Path) -> None:
    private = endpoint.private()
    witness, client = private.connect(), private.connect()
    (here / "file").write_text("text")
    client.call("fs/open", {"handleId": "h", "path": path_uri(here / "file")})
    client.shell("head -c 3000000 /dev/zero; exec sleep 300").wait_output(
        lambda output: len(output) == 3_000_000
    )
    assert witness.call("server/health")["retainedOutputBytes"] == 3_000_000
    end(client)
    assert witness.call("server/health")["retainedOutputBytes"] == 0
    server = server_of(private.server.pid, PATIENCE)
    assert eventually(lambda: str(here / "file") not in open_files(server), PATIENCE)


# -- requests around it


@pytest.mark.statement("H52", "H50")
def test_starts_around_it_leave_nothing(client: Client, left: Left, here: Path) -> None:
    def start(**members: Json) -> tuple[str, Json]:
        return "process/start", client.start_params(left.argv, **members)

    # More than are begun in one turn of the loop, and some that look at the disk first.
    before = [start(**(confined(here) if n % 5 == 0 else {})) for n in range(30)]
    after = [start(**(confined(here) if n % 5 == 0 else {})) for n in range(30)]
    *numbers, ending = client.pipeline(*before, ("session/end", {}))
    numbers += client.pipeline(*after)
    assert client.result(ending) == {}
    client.wait_end()
    assert not left.pids
    assert eventually(lambda: not list(here.iterdir()), PATIENCE), "what sandboxes had put there"
    refused = [client.reply(number) for number in numbers if client.answered(number)]
    texts = {reply["error"]["message"] for reply in refused if "error" in reply}
    assert texts <= {"the session has ended"}


@pytest.mark.statement("H52")
def test_a_start_behind_it_is_refused(client: Client, left: Left) -> None:
    client.start("/bin/sleep", "300")  # so that the end takes a moment
    ending, starting, again = client.pipeline(
        ("session/end", {}), ("process/start", client.start_params(left.argv)), ("session/end", {})
    )
    refusal = client.failure(starting)
    assert (refusal.code, "the session has ended" in refusal.message) == (-32600, True)
    assert client.result(ending) == client.result(again) == {}
    assert not left.pids


@pytest.mark.statement("H52")
@pytest.mark.parametrize("before", [False, True])
def test_a_watch_behind_it_is_refused(client: Client, here: Path, before: bool) -> None:
    watch = {"path": path_uri(here), "sandbox": None}
    if before:
        client.call("fs/watch", {**watch, "watchId": "first"})
    client.start("/bin/sleep", "300")  # so that the end takes a moment
    ending, watching = client.pipeline(("session/end", {}), ("fs/watch", {**watch, "watchId": "second"}))
    refusal = client.failure(watching)
    assert (refusal.code, refusal.message) == (-32600, "the session has ended")
    assert client.result(ending) == {}


@pytest.mark.statement("H53", "H52")
def test_what_was_asked_before_is_answered(client: Client, here: Path) -> None:
    client.start("/bin/sleep", "300")
    (here / "large").write_bytes(bytes(20_000_000))
    writing, digest, ending = client.pipeline(
        ("fs/writeFile", {"path": path_uri(here / "small"), "dataBase64": "eA=="}),
        ("fs/digest", {"path": path_uri(here / "large")}),
        ("session/end", {}),
    )
    assert client.result(writing) == client.result(ending) == {}
    assert client.result(digest)["size"] == 20_000_000
    client.wait_end()
    assert (here / "small").read_text() == "x"


@pytest.mark.statement("H53")
def test_a_request_that_takes_long_does_not_hold_the_connection(client: Client) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}/"
        client.request("http/request", {"method": "GET", "url": url, "requestId": "r"})
        with at_most(5):
            end(client)


@pytest.mark.transports("ws", "unix-ws", "relay")
@pytest.mark.statement("H53")
def test_a_websocket_is_closed_as_normal(endpoint: Endpoint) -> None:
    client = endpoint.connect()
    end(client)
    if endpoint.transport != "relay":
        assert client.websocket.close_code == 1000


@pytest.mark.statement("H4", "H5", "H6")
def test_it_needs_the_handshake(newcomer: Client) -> None:
    refusal = "client must {} before using session methods"
    assert refusal.format("call initialize") in newcomer.refused("session/end").message
    newcomer.call("initialize", {"clientName": "tests"})
    assert refusal.format("send initialized") in newcomer.refused("session/end").message


@pytest.mark.statement("E8", "H55")
def test_it_takes_no_parameters(endpoint: Endpoint, left: Left) -> None:
    client, other = endpoint.connect(), endpoint.connect()
    other.start(*left.argv)
    left.wait_running()
    assert client.refused("session/end", {"sessionId": other.session_id}).code == -32602
    assert left.pids
    end(client)
    assert left.pids
    end(other)


@pytest.mark.statement("D3", "X10")
def test_it_is_announced_to_those_that_ask(endpoint: Endpoint) -> None:
    asking, other = endpoint.connect(extensions=True), endpoint.connect()
    capabilities = asking.initialized["environmentInfo"]["capabilities"]
    assert "session/end" in capabilities["execserver"]
    assert "execserver" not in other.initialized["environmentInfo"]["capabilities"]


@pytest.mark.transports("unix/standard", "ws/standard", "stdio/standard", "relay/standard")
@pytest.mark.statement("J4", "J8", "H50", "H53")
def test_in_a_batch_and_as_a_notification(endpoint: Endpoint, left: Left) -> None:
    client = endpoint.connect()
    batch = [
        client.message("process/start", client.start_params(left.argv), id="start"),
        client.message("session/end", {}, id="end"),
    ]
    client.send(batch)
    assert client.result("start")["sandboxType"] == "none"
    assert client.result("end") == {}
    client.wait_end()
    assert not left.pids

    client = endpoint.connect()
    client.start(*left.argv)
    left.wait_running()
    client.notify("session/end")
    client.wait_end()
    assert not left.pids


@pytest.mark.transports("unix", "ws")
@pytest.mark.statement("S12", "H50")
def test_one_request_at_a_time(endpoint: Endpoint, left: Left) -> None:
    client = endpoint.private("--concurrent-requests", "1").connect()
    client.shell(in_background(left)).wait_closed()
    left.wait_running()
    numbers = client.pipeline(
        ("environment/status", None),
        ("process/start", client.start_params(left.argv)),
        ("session/end", {}),
        ("process/start", client.start_params(left.argv)),
    )
    assert client.result(numbers[2]) == {}
    client.wait_end()
    assert client.reply_order()[-len(numbers) :] == numbers
    assert not left.pids


# -- the connection ends


@pytest.mark.statement("H54")
def test_a_connection_that_ends_before_the_answer_ends_the_session_all_the_same(
    endpoint: Endpoint, left: Left
) -> None:
    client = endpoint.connect()
    client.shell(in_background(left)).wait_closed()
    pids = left.wait_running()
    client.request("session/end")
    client.close()
    assert eventually(lambda: not any(map(alive, pids)), PATIENCE)
    late = endpoint.connect(handshake=False)
    params = {"clientName": "tests", "resumeSessionId": client.session_id}
    assert THERE_IS_NONE in late.refused("initialize", params).message


@pytest.mark.transports("ws", "unix-ws")
@pytest.mark.parametrize("code", [None, 1000, 1001, 1002, 1011, 1012, 3000, 4999])
@pytest.mark.statement("T44", "H55", "H24")
def test_a_close_frame_alone_keeps_the_session(endpoint: Endpoint, left: Left, code: int | None) -> None:
    client = endpoint.connect()
    client.shell(in_background(left)).wait_closed()
    left.wait_running()
    websocket = client.websocket
    websocket.send_frame(websocket.CLOSE, b"" if code is None else code.to_bytes(2))
    client.wait_end()
    assert left.pids
    end(resume(endpoint, client.session_id))
    assert not left.pids


@pytest.mark.statement("H55", "H24")
def test_a_connection_that_is_cut_keeps_the_session(endpoint: Endpoint, left: Left) -> None:
    client = endpoint.connect()
    client.shell(in_background(left)).wait_closed()
    left.wait_running()
    client.close()
    assert left.pids
    end(resume(endpoint, client.session_id))
    assert not left.pids


@pytest.mark.statement("H55")
def test_a_session_ends_for_the_connection_that_resumed_it(endpoint: Endpoint, left: Left) -> None:
    first = endpoint.connect()
    first.shell(in_background(left)).wait_closed()
    left.wait_running()
    first.close()
    second = resume(endpoint, first.session_id)
    second.start(*left.argv, processId="second")
    left.wait_running(2)
    end(second)
    assert not left.pids
