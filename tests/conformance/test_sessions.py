"""Sessions: detaching, resuming, expiring. Stdio has no part in it: its end is the server's."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conformance.endpoint import Endpoint
from tests.support.wire import (
    Client,
    ConnectionEndedError,
    Json,
    SocketTransport,
    decode,
    encode,
    path_uri,
)


def resume(endpoint: Endpoint, session: str, *, extensions: bool = False) -> Client:
    """Resume as the stock client does: try again while the server still sees the old connection."""
    client = endpoint.connect(handshake=False)
    deadline = time.monotonic() + 20
    while True:
        params: Json = {"clientName": "tests", "resumeSessionId": session}
        if extensions:
            params["extensions"] = {"execserver": 1}
        reply = client.reply(client.request("initialize", params))
        if "result" in reply:
            assert reply["result"]["sessionId"] == session
            client.session_id = session
            client.notify("initialized")
            return client
        assert reply["error"]["code"] == -32010, reply
        assert time.monotonic() < deadline, "the old connection is never given up"
        threading.Event().wait(0.05)


@pytest.mark.statement("H20", "H24", "H25", "H26", "H27", "W2")
def test_resume_goes_on_where_it_was(endpoint: Endpoint) -> None:
    first = endpoint.connect()
    old = first.start("/bin/cat", pipeStdin=True)
    old.write("x", "1")
    old.wait_output(b"x")
    first.close()

    second = resume(endpoint, first.session_id)
    process = second.process(old.id)
    assert process.write("x", "1") == "accepted"
    assert process.write("y", "2") == "accepted"
    process.wait_output(b"y")
    assert [(params["seq"], decode(params["chunk"])) for _, params in process.log.events] == [(2, b"y")]
    assert [decode(chunk["chunk"]) for chunk in process.read(0)["chunks"]] == [b"x", b"y"]


@pytest.mark.statement("H24", "H25")
def test_output_of_the_meantime_is_read_not_notified(endpoint: Endpoint, here: Path) -> None:
    first = endpoint.connect()
    script = f"echo before; read -r go < {here}/fifo; echo meanwhile; echo over > {here}/done; read -r x"
    old = first.shell(f"mkfifo {here}/fifo; {script}", pipeStdin=True)
    old.wait_output(b"before\n")
    first.close()
    (here / "fifo").write_text("go\n")
    deadline = time.monotonic() + 20
    while not (here / "done").exists():
        assert time.monotonic() < deadline
        threading.Event().wait(0.02)

    second = resume(endpoint, first.session_id)
    process = second.process(old.id)
    page = process.read(1, wait_ms=10_000)
    assert [(chunk["seq"], decode(chunk["chunk"])) for chunk in page["chunks"]] == [(2, b"meanwhile\n")]
    process.write("x\n", "1")
    process.wait_closed()
    assert process.log.kinds == ["exited", "closed"]
    assert process.log.seqs == [3, 4]


@pytest.mark.statement("H24", "H25", "O23")
def test_process_that_ended_meanwhile_can_be_read(endpoint: Endpoint) -> None:
    first = endpoint.connect()
    old = first.shell("echo begun; read -r x; exit 6", pipeStdin=True)
    old.wait_output(b"begun")
    first.send(
        {
            "id": "last",
            "method": "process/write",
            "params": {"processId": old.id, "chunk": encode("x\n"), "writeId": "1"},
        }
    )
    first.result("last")
    first.close()
    process = resume(endpoint, first.session_id).process(old.id)
    page = process.read(0)
    while not page["closed"]:
        page = process.read(page["nextSeq"] - 1, wait_ms=5000)
    assert page["exitCode"] == 6
    assert process.read(0)["nextSeq"] == 4


@pytest.mark.statement("H26")
def test_notifications_go_on_without_a_read(endpoint: Endpoint) -> None:
    first = endpoint.connect()
    old = first.shell("while sleep 0.02; do echo tick; done")
    old.wait_output(b"tick")
    first.close()
    process = resume(endpoint, first.session_id).process(old.id)
    process.wait_output(lambda output: output.count(b"tick") > 5)
    seqs = process.log.seqs
    assert seqs == list(range(seqs[0], seqs[0] + len(seqs)))
    process.terminate()


@pytest.mark.statement("H26", "H25", "O1")
def test_reads_and_notifications_make_one_whole_over_many_cuts(endpoint: Endpoint, here: Path) -> None:
    client = endpoint.connect()
    session = client.session_id
    counting = f"i=0; until test -e {here}/enough; do i=$((i + 1)); echo line $i; sleep 0.005; done"
    process = client.shell(f"{counting}; echo end")
    pieces: dict[int, bytes] = {}
    numbers: set[int] = set()
    held = True

    def take(events: list[tuple[str, Json]]) -> None:
        for method, params in events:
            numbers.add(params["seq"])
            if method == "process/output":
                data = decode(params["chunk"])
                assert not (held and params["seq"] in pieces)
                assert pieces.setdefault(params["seq"], data) == data

    for _ in range(5):
        count = len(process.log.events)
        client.wait_until(lambda process=process, count=count: len(process.log.events) > count + 5)  # type: ignore[misc]
        client.close()
        take(process.log.events)
        begin = time.monotonic()
        client = resume(endpoint, session)
        process = client.process(process.id)
        for chunk in process.read(max(pieces))["chunks"]:
            assert chunk["seq"] not in pieces
            pieces[chunk["seq"]] = decode(chunk["chunk"])
        # What is notified from here on is behind the page, if that was answered within 250 ms.
        held = time.monotonic() - begin < 0.25
    (here / "enough").touch()
    process.wait_closed()
    take(process.log.events)
    whole = b"".join(pieces[seq] for seq in sorted(pieces))
    lines = whole.count(b"line")
    assert whole == b"".join(b"line %d\n" % i for i in range(1, lines + 1)) + b"end\n"
    numbers |= set(pieces)
    assert sorted(numbers) == list(range(1, len(pieces) + 3))


@pytest.mark.statement("H22")
def test_there_is_no_take_over(endpoint: Endpoint) -> None:
    owner = endpoint.connect()
    other = endpoint.connect(handshake=False)
    params = {"clientName": "x", "resumeSessionId": owner.session_id}
    failure = other.refused("initialize", params)
    assert failure.code == -32010
    assert failure.message == f"session {owner.session_id} is already attached to another connection"
    other.handshake()
    assert other.session_id != owner.session_id
    owner.call("environment/status")


@pytest.mark.statement("H3", "H21")
def test_unknown_session_then_a_new_one(endpoint: Endpoint) -> None:
    client = endpoint.connect(handshake=False)
    for session in ("", "nobody", "00000000-0000-0000-0000-000000000000"):
        failure = client.refused("initialize", {"clientName": "x", "resumeSessionId": session})
        assert (failure.code, failure.message) == (-32600, f"unknown session id {session}")
    client.handshake()
    client.call("environment/status")


@pytest.mark.statement("H23")
@pytest.mark.transports("ws")
def test_half_open_connection_gives_the_session_up(endpoint: Endpoint) -> None:
    lost = endpoint.connect()
    process = lost.start("/bin/cat", pipeStdin=True)
    lost.websocket.answer_pings = False
    client = resume(endpoint, lost.session_id)
    assert not client.process(process.id).read()["exited"]
    lost.wait_end()


@pytest.mark.statement("H23", "H22")
@pytest.mark.transports("ws")
def test_connection_that_answers_keeps_the_session(endpoint: Endpoint) -> None:
    owner = endpoint.connect()
    other = endpoint.connect(handshake=False)
    params = {"clientName": "x", "resumeSessionId": owner.session_id}
    assert other.refused("initialize", params).code == -32010
    deadline = time.monotonic() + 6
    while time.monotonic() < deadline:
        owner.call("environment/status")
        threading.Event().wait(0.2)
    assert owner.websocket.pings >= 1
    assert other.refused("initialize", params).code == -32010


@pytest.mark.statement("H28", "G13")
def test_handles_and_watches_are_gone(endpoint: Endpoint, here: Path) -> None:
    (here / "f").write_text("content")
    first = endpoint.connect()
    first.call("fs/open", {"handleId": "h", "path": path_uri(here / "f")})
    first.call("fs/watchMissing", {"watchId": 9, "missing": [path_uri(here / "m")]})
    first.close()
    second = resume(endpoint, first.session_id)
    failure = second.refused("fs/readBlock", {"handleId": "h", "offset": 0, "len": 1})
    assert (failure.code, failure.message) == (-32004, "unknown file handle `h`")
    result = second.call("fs/watchMissing", {"watchId": 1, "missing": [path_uri(here / "m")]})
    assert result == {"watching": True}
    (here / "m").touch()
    second.wait_until(lambda: second.notifications)
    assert [note["params"] for note in second.notifications] == [{"watchId": 1}]


@pytest.mark.statement("H29")
def test_initialized_is_needed_again(endpoint: Endpoint) -> None:
    first = endpoint.connect()
    process = first.start("/bin/cat", pipeStdin=True)
    first.close()
    second = endpoint.connect(handshake=False)
    params = {"clientName": "x", "resumeSessionId": first.session_id}
    deadline = time.monotonic() + 10
    while "error" in second.reply(second.request("initialize", params)):
        assert time.monotonic() < deadline
    failure = second.refused("process/read", {"processId": process.id})
    assert failure.message == "client must send initialized before using exec methods"
    second.notify("initialized")
    assert not second.process(process.id).read()["exited"]


def _close_politely(client: Client) -> None:
    client.close()


def _reset(client: Client) -> None:
    assert isinstance(client.transport, SocketTransport)
    client.transport.reset()


def _violate(client: Client) -> None:
    client.notify("no/such/notification")
    client.wait_end()


def _half_a_message(client: Client) -> None:
    client.transport.send_bytes(b'{"id":1,"met' if _is_line(client) else b"\x81\xfe\x10")
    client.close()


def _is_line(client: Client) -> bool:
    return type(client.transport) is SocketTransport


@pytest.mark.statement("H20", "H31", "E31", "T19", "T44")
@pytest.mark.parametrize("end", [_close_politely, _reset, _violate, _half_a_message])
def test_session_survives_any_end_of_its_connection(
    endpoint: Endpoint, end: Callable[[Client], None]
) -> None:
    client = endpoint.connect()
    session = client.session_id
    process = client.start("/bin/cat", pipeStdin=True)
    for attempt in range(1, 4):
        end(client)
        client = resume(endpoint, session)
        process = client.process(process.id)
        assert process.write(f"{attempt}", str(attempt)) == "accepted"
        process.wait_output(b"%d" % attempt)
    assert [decode(chunk["chunk"]) for chunk in process.read(0)["chunks"]] == [b"1", b"2", b"3"]


@pytest.mark.statement("T44")
@pytest.mark.transports("ws")
@pytest.mark.parametrize("payload", [b"", b"\x03\xe8", b"\x03\xe8bye"])
def test_close_frame_detaches(endpoint: Endpoint, payload: bytes) -> None:
    client = endpoint.connect()
    process = client.start("/bin/cat", pipeStdin=True)
    client.websocket.send_frame(client.websocket.CLOSE, payload)
    client.wait_end()
    assert not resume(endpoint, client.session_id).process(process.id).read()["exited"]


@pytest.mark.statement("H31", "H30")
def test_time_starts_anew_at_each_end(endpoint: Endpoint) -> None:
    private = endpoint.private("--session-ttl", "4")
    client = private.connect()
    session = client.session_id
    process = client.start("/bin/cat", pipeStdin=True)
    begin = time.monotonic()
    while time.monotonic() - begin < 4:
        client.close()
        threading.Event().wait(1.5)
        client = resume(private, session)
        assert not client.process(process.id).read()["exited"]


@pytest.mark.statement("H30")
def test_attached_session_does_not_expire(endpoint: Endpoint) -> None:
    client = endpoint.private("--session-ttl", "1", "--process-ttl", "1").connect()
    process = client.start("/bin/cat", pipeStdin=True)
    process.read(wait_ms=1500)
    assert process.write("still", "1") == "accepted"
    process.wait_output(b"still")


@pytest.mark.statement("H20")
def test_resume_of_a_session_that_owns_nothing(endpoint: Endpoint) -> None:
    client = endpoint.connect()
    client.close()
    again = resume(endpoint, client.session_id)
    again.start("/bin/true").wait_closed()


@pytest.mark.statement("H20", "H22")
def test_only_one_of_many_gets_the_session(endpoint: Endpoint) -> None:
    owner = endpoint.connect()
    owner.start("/bin/cat", pipeStdin=True)
    owner.close()
    rivals = [endpoint.connect(handshake=False) for _ in range(8)]
    params = {"clientName": "x", "resumeSessionId": owner.session_id}
    deadline = time.monotonic() + 10
    winners: list[Client] = []
    while not winners:
        assert time.monotonic() < deadline
        sent = [(rival, rival.request("initialize", params)) for rival in rivals]
        winners = [rival for rival, number in sent if "result" in rival.reply(number)]
    assert len(winners) == 1


@pytest.mark.statement("O44", "H24")
def test_detached_process_is_not_held_back(endpoint: Endpoint, here: Path) -> None:
    private = endpoint.private("--retained-output-bytes", "1048576")
    first = private.connect()
    old = first.shell(f"echo go; seq 1 2000000; echo over > {here}/done; read -r x", pipeStdin=True)
    old.wait_output(b"go")
    first.close()
    deadline = time.monotonic() + 30
    while not (here / "done").exists():
        assert time.monotonic() < deadline, "the child was held back"
        threading.Event().wait(0.02)
    process = resume(private, first.session_id).process(old.id)
    page = process.read(0)
    kept = b"".join(decode(chunk["chunk"]) for chunk in page["chunks"])
    total = len(b"go\n") + sum(len(str(number)) + 1 for number in range(1, 2_000_001))
    assert page["lostBytes"] + len(kept) == total
    assert kept.endswith(b"\n2000000\n")


def test_connection_error_is_told(endpoint: Endpoint) -> None:
    """The test client itself: waiting on a connection that ends is an error, not a hang."""
    client = endpoint.connect()
    client.notify("no/such/notification")
    with pytest.raises(ConnectionEndedError):
        client.reply("never")
