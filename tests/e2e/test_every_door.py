"""What matters of the whole daemon, by every door: transport, framing and dialect change nothing of it."""

from __future__ import annotations

import json
import os
import random
import shlex
import sys
import threading
import time
import uuid
from hashlib import sha256
from pathlib import Path

import pytest

from tests.conformance.endpoint import Endpoint, SharedServers
from tests.support.wire import (
    PATIENCE,
    Client,
    Json,
    Process,
    WebSocketTransport,
    at_most,
    decode,
    encode,
    path_uri,
    wait_gone,
)

MIB = 1 << 20
FRAGMENT_BYTES = 8 * MIB
"""A frame of a WebSocket has at most 16 MiB, a message 64."""

MISSING = "file:///no/such/file"

FAULTY: dict[str, tuple[str, Json, int, str]] = {
    "an unknown method": ("no/such/method", {}, -32601, "method_not_found"),
    "no parameters": ("process/read", {}, -32602, "invalid_params"),
    "a parameter of another type": ("process/read", {"processId": 5}, -32602, "invalid_params"),
    "a negative number": ("process/read", {"processId": "p", "afterSeq": -1}, -32602, "invalid_params"),
    "an unknown process": ("process/read", {"processId": "nobody"}, -32600, "unknown_process"),
    "another signal": ("process/signal", {"processId": "p", "signal": "hangup"}, -32602, "invalid_params"),
    "a second handshake": ("initialize", {"clientName": "again"}, -32600, "invalid_request"),
    "a missing file": ("fs/readFile", {"path": MISSING}, -32004, "not_found"),
    "a folder read as a file": ("fs/readFile", {"path": "file:///tmp"}, -32600, "invalid_request"),
    "a native path": ("fs/readFile", {"path": "/etc/hosts"}, -32602, "invalid_params"),
    "bad base64": ("fs/writeFile", {"path": MISSING, "dataBase64": "!"}, -32600, "invalid_request"),
    "a folder that is there": (
        "fs/createDirectory",
        {"path": "file:///tmp", "recursive": False},
        -32603,
        "already_exists",
    ),
    "an unknown handle": ("fs/readBlock", {"handleId": "h", "offset": 0, "len": 1}, -32004, "unknown_handle"),
    "a walk of nothing": (
        "fs/walk",
        {
            "path": "file:///tmp",
            "options": {
                "maxDepth": 1,
                "maxDirectories": 0,
                "maxEntries": 1,
                "followDirectorySymlinks": False,
            },
        },
        -32600,
        "invalid_request",
    ),
    "a parameter for a method that has none": ("environment/info", {"x": 1}, -32602, "invalid_params"),
}


def send_large(client: Client, message: Json) -> None:
    """A message of any size: a WebSocket takes it in fragments only."""
    if not isinstance(client.transport, WebSocketTransport):
        client.send(message)
        return
    payload = json.dumps(message).encode()
    pieces = [payload[place : place + FRAGMENT_BYTES] for place in range(0, len(payload), FRAGMENT_BYTES)]
    for number, piece in enumerate(pieces):
        opcode = 0 if number else WebSocketTransport.TEXT
        client.websocket.send_frame(opcode, piece, fin=number == len(pieces) - 1)


def resume(endpoint: Endpoint, session: str) -> Client:
    """Resume as the stock client does: try again while the server still sees the old connection."""
    client = endpoint.connect(handshake=False)
    deadline = time.monotonic() + PATIENCE
    while True:
        reply = client.reply(
            client.request("initialize", {"clientName": "tests", "resumeSessionId": session})
        )
        if "result" in reply:
            client.session_id = reply["result"]["sessionId"]
            client.notify("initialized")
            return client
        assert reply["error"]["code"] == -32010, reply
        assert time.monotonic() < deadline, "the old connection is never given up"
        threading.Event().wait(0.05)


def read_missed(process: Process, pieces: dict[int, bytes]) -> None:
    """Read everything behind the last piece that is there, page by page."""
    last = max(pieces)
    while True:
        page = process.read(last, max_bytes=100_000)
        for chunk in page["chunks"]:
            assert chunk["seq"] not in pieces, f"number {chunk['seq']} came twice"
            pieces[chunk["seq"]] = decode(chunk["chunk"])
        if not page["chunks"]:
            return
        last = page["chunks"][-1]["seq"]


def notified(process: Process) -> dict[int, bytes]:
    """The chunks that were notified, by their numbers."""
    return {
        params["seq"]: decode(params["chunk"])
        for method, params in process.log.events
        if method == "process/output"
    }


def noise(size: int, seed: int = 1) -> bytes:
    """Bytes of every value, the same each time."""
    return random.Random(seed).randbytes(size)


# -- the handshake


def test_the_handshake_says_who_we_are_and_where(client: Client, servers: SharedServers) -> None:
    assert uuid.UUID(client.session_id)
    assert set(client.initialized) == {"sessionId", "environmentInfo"}

    info = client.call("environment/info")

    assert info == client.initialized["environmentInfo"]
    assert info["platformOs"] == "linux"
    assert info["cwd"] == path_uri(servers.cwd.resolve())
    assert client.call("environment/status") == {"status": "ready"}


def test_extension_members_come_only_when_asked_for(endpoint: Endpoint) -> None:
    plain, extended = endpoint.connect(), endpoint.connect(extensions=True)

    quiet, talkative = plain.shell("exec sleep 300"), extended.shell("exec sleep 300")

    assert quiet.started == {"processId": quiet.id, "sandboxType": "none"}
    assert set(talkative.started) == {"processId", "sandboxType", "pid"}
    assert os.path.exists(f"/proc/{talkative.started['pid']}")
    assert quiet.terminate("tree") == {"running": True}
    assert talkative.terminate("tree") == {"running": True, "survivors": []}


# -- processes


def test_a_start_is_answered_then_come_output_exit_and_close(client: Client) -> None:
    params = client.start_params(("/bin/sh", "-c", "echo out; echo err >&2; exit 3"))
    handshake = len(client.received)

    number = client.request("process/start", params)
    log = client.process(params["processId"]).wait_closed().log

    arrived = client.received[handshake:]
    assert arrived[0]["id"] == number
    assert [message.get("method") for message in arrived[1:]] == [method for method, _ in log.events]
    assert log.kinds[-2:] == ["exited", "closed"]
    assert set(log.kinds[:-2]) == {"output"}
    assert log.seqs == list(range(1, len(log.seqs) + 1))
    assert {name: bytes(data) for name, data in log.streams.items()} == {
        "stdout": b"out\n",
        "stderr": b"err\n",
    }
    assert log.exit_code == 3


def test_five_megabytes_arrive_byte_for_byte_on_both_streams(client: Client, here: Path) -> None:
    out, err = noise(5_000_000, 1), noise(5_000_000, 2)
    (here / "out").write_bytes(out)
    (here / "err").write_bytes(err)

    process = client.shell(f"cat {here}/out & cat {here}/err >&2; wait").wait_closed()

    assert sha256(process.log.streams["stdout"]).digest() == sha256(out).digest()
    assert sha256(process.log.streams["stderr"]).digest() == sha256(err).digest()
    assert (process.exit_code, process.log.lost_bytes) == (0, 0)
    assert process.log.seqs == list(range(1, len(process.log.seqs) + 1))


def test_input_in_pieces_reaches_the_process_in_order(client: Client) -> None:
    pieces = [noise(size, size) for size in (1, 0, 1000, 70_000, 3, 200_000)]
    total = b"".join(pieces)
    process = client.shell(f"head -c {len(total)}; echo over", pipeStdin=True)

    statuses = [process.write(piece, f"w{number}") for number, piece in enumerate(pieces)]

    assert statuses == ["accepted"] * len(pieces)
    assert process.wait_closed().output == total + b"over\n"
    assert client.refused("process/write", {"processId": process.id, "chunk": "eA==", "writeId": "late"})


def test_a_write_that_is_sent_again_is_not_written_twice(client: Client) -> None:
    process = client.start("/bin/cat", pipeStdin=True)

    for chunk, write_id in (("a", "1"), ("a", "1"), ("b", "2")):
        assert process.write(chunk, write_id) == "accepted"

    assert process.wait_output(b"b") == b"ab"


def test_a_terminal_ends_its_input_with_control_d(client: Client) -> None:
    process = client.shell("stty size; exec cat", tty=True)
    process.wait_output(b"24 80\r\n")

    process.write("line\n", "1")
    process.write("\x04", "2")

    assert process.wait_closed().exit_code == 0
    assert process.output == b"24 80\r\nline\r\nline\r\n"
    assert set(process.log.streams) == {"pty"}


def test_a_terminal_is_interrupted_by_control_c(client: Client) -> None:
    # A shell that is about to read when the signal comes would read on.
    script = (
        "import signal; signal.pthread_sigmask(signal.SIG_BLOCK, {2}); print('ready', flush=True); "
        "signal.sigwait({2}); print('caught', flush=True); raise SystemExit(7)"
    )
    process = client.shell(f"exec {shlex.quote(sys.executable)} -c {shlex.quote(script)}", tty=True)
    process.wait_output(b"ready\r\n")

    process.write("\x03", "1")

    assert process.wait_closed().exit_code == 7
    assert b"caught" in process.output


def test_processes_are_interrupted_and_terminated(client: Client) -> None:
    patient, stubborn = (
        client.shell("echo ready; exec sleep 300"),
        client.shell("trap '' INT; echo ready; exec sleep 300"),
    )
    patient.wait_output(b"ready")
    stubborn.wait_output(b"ready")

    assert [patient.interrupt(), stubborn.interrupt()] == [{}, {}]
    assert patient.wait_closed().exit_code == 130
    assert stubborn.terminate() == {"running": True}
    assert stubborn.wait_closed().exit_code == 137
    assert stubborn.terminate() == {"running": False}


def test_a_waiting_read_delays_no_other_request(client: Client) -> None:
    process = client.start("/bin/cat", pipeStdin=True)
    waiting = client.request("process/read", {"processId": process.id, "afterSeq": 0, "waitMs": 50_000})

    assert client.call("environment/status") == {"status": "ready"}
    assert client.call("fs/getMetadata", {"path": "file:///"})["isDirectory"]
    assert not client.answered(waiting)
    process.write("news", "1")

    page = client.result(waiting)
    assert [(chunk["seq"], decode(chunk["chunk"])) for chunk in page["chunks"]] == [(1, b"news")]
    assert (page["nextSeq"], page["exited"], page["closed"]) == (2, False, False)


# -- sessions


@pytest.mark.sockets
def test_a_resumed_session_catches_up_without_a_byte_lost_or_doubled(endpoint: Endpoint, here: Path) -> None:
    os.mkfifo(here / "go")
    os.mkfifo(here / "done")
    meanwhile = b"".join(b"%d\n" % number for number in range(1, 50_001))
    script = f"""echo before; read -r word <{here}/go; seq 1 50000
        echo done >{here}/done; read -r word; echo after; exit 5"""
    first = endpoint.connect()
    started = first.shell(script, pipeStdin=True)
    started.wait_output(b"before\n")
    first.close()
    (here / "go").write_text("now\n")
    assert (here / "done").read_text() == "done\n"

    second = resume(endpoint, first.session_id)
    process = second.process(started.id)
    pieces = notified(started)
    read_missed(process, pieces)
    process.write("on\n", "w")
    process.wait_closed()
    for number, data in notified(process).items():
        assert pieces.setdefault(number, data) == data

    assert second.session_id == first.session_id
    assert b"".join(pieces[number] for number in sorted(pieces)) == b"before\n" + meanwhile + b"after\n"
    assert sorted(pieces) == list(range(1, len(pieces) + 1))
    assert process.exit_code == 5


def test_the_end_of_a_session_leaves_no_process(forgetful_endpoint: Endpoint) -> None:
    client = forgetful_endpoint.connect(extensions=True)
    script = "setsid sleep 300 & echo $!; exec sleep 300"
    process = client.shell(script)
    descendant = int(process.wait_output(b"\n"))

    client.close()

    assert wait_gone(process.started["pid"])
    assert wait_gone(descendant)


# -- files


def test_a_large_file_is_written_and_read_whole_and_in_blocks(client: Client, here: Path) -> None:
    data = noise(20 * MIB)
    path = path_uri(here / "large")

    send_large(
        client,
        client.message("fs/writeFile", {"path": path, "dataBase64": encode(data)}, id="write"),
    )

    assert client.result("write") == {}
    assert client.call("fs/getMetadata", {"path": path})["size"] == len(data)
    assert decode(client.call("fs/readFile", {"path": path})["dataBase64"]) == data
    client.call("fs/open", {"handleId": "h", "path": path})
    blocks = client.pipeline(
        *(("fs/readBlock", {"handleId": "h", "offset": block * MIB, "len": MIB}) for block in range(21))
    )
    replies = [client.result(number) for number in blocks]
    assert b"".join(decode(reply["chunk"]) for reply in replies) == data
    assert [reply["eof"] for reply in replies] == [False] * 20 + [True]
    digest = client.shell(f"sha256sum <{here}/large").wait_closed().output
    assert digest.split()[0].decode() == sha256(data).hexdigest()


def test_a_file_lives_its_whole_life(client: Client, here: Path) -> None:
    folder, copy = here / "a folder", here / "ä copy"
    client.call("fs/createDirectory", {"path": path_uri(folder)})
    client.call("fs/open", {"handleId": "w", "path": path_uri(folder / "f"), "mode": "replace"})
    client.call("fs/writeBlock", {"handleId": "w", "offset": 3, "chunk": encode("def")})
    client.call("fs/writeBlock", {"handleId": "w", "offset": 0, "chunk": encode("abc")})
    client.call("fs/close", {"handleId": "w"})

    client.call(
        "fs/copy",
        {"sourcePath": path_uri(folder), "destinationPath": path_uri(copy), "recursive": True},
    )
    client.call("fs/remove", {"path": path_uri(folder)})

    listed = client.call("fs/readDirectory", {"path": path_uri(here)})["entries"]
    assert listed == [{"fileName": "ä copy", "isDirectory": True, "isFile": False}]
    assert client.call("fs/canonicalize", {"path": path_uri(copy / "f")}) == {"path": path_uri(copy / "f")}
    assert (copy / "f").read_bytes() == b"abcdef"


def test_a_walk_lists_a_tree_breadth_first(client: Client, here: Path) -> None:
    for folder in ("b/deep/er", "a", ".hidden"):
        (here / folder).mkdir(parents=True)
        (here / folder / "file").touch()
    options = {"maxDepth": 2, "maxDirectories": 50, "maxEntries": 50, "followDirectorySymlinks": False}

    walk = client.call(
        "fs/walk", {"path": path_uri(here), "options": options | {"pruneHiddenDirectories": True}}
    )

    listed = [
        (entry["path"].removeprefix(path_uri(here) + "/"), entry["kind"][0]) for entry in walk["entries"]
    ]
    assert listed == [
        (".hidden", "d"),
        ("a", "d"),
        ("b", "d"),
        ("a/file", "f"),
        ("b/deep", "d"),
        ("b/deep/er", "d"),
    ]
    assert (walk["errors"], walk["truncated"]) == ([], False)


# -- faults


def test_faults_are_told_in_the_same_words(client: Client, endpoint: Endpoint, lean: Client) -> None:
    for fault, (method, params, code, name) in FAULTY.items():
        error = client.reply(client.request(method, params))["error"]
        plain = lean.reply(lean.request(method, params))["error"]

        assert set(plain) == {"code", "message"}, fault
        assert {key: error[key] for key in plain} == plain, fault
        assert error["code"] == code, fault
        if endpoint.standard:
            assert error["data"]["code"] == name, fault
        else:
            assert set(error) == {"code", "message"}, fault


def test_a_message_that_is_no_json_is_answered_and_harms_nothing(client: Client, endpoint: Endpoint) -> None:
    client.send_raw(b'{"id": 1, "method":')

    error = client.reply(None if endpoint.standard else -1)["error"]

    assert error["code"] == (-32700 if endpoint.standard else -32600)
    assert client.call("environment/status") == {"status": "ready"}


# -- many, and slow ones


def test_two_hundred_requests_at_once_are_all_answered(client: Client, here: Path) -> None:
    (here / "file").write_bytes(b"content")
    reads: list[tuple[str, Json]] = [("fs/readFile", {"path": path_uri(here / "file")})] * 50
    starts: list[tuple[str, Json]] = [
        ("process/start", client.start_params(("/bin/true",))) for _ in range(20)
    ]
    statuses: list[tuple[str, Json]] = [("environment/status", None)] * 80
    faults: list[tuple[str, Json]] = [("fs/readFile", {"path": MISSING})] * 50
    handshake = len(client.reply_order())

    numbers = client.pipeline(*reads, *starts, *statuses, *faults)
    results = [client.result(number) for number in numbers[:150]]
    failures = [client.failure(number).code for number in numbers[150:]]

    assert results[:50] == [{"dataBase64": encode("content")}] * 50
    assert [result["processId"] for result in results[50:70]] == [params["processId"] for _, params in starts]
    assert results[70:] == [{"status": "ready"}] * 80
    assert failures == [-32004] * 50
    assert sorted(client.reply_order()[handshake:], key=str) == sorted(numbers, key=str)


@pytest.mark.sockets
@pytest.mark.not_relayed("a relay holds 80 MiB for a client and then drops it, see the next test")
def test_a_slow_reader_delays_no_other_connection(endpoint: Endpoint, here: Path) -> None:
    data = noise(4 * MIB)
    (here / "file").write_bytes(data)
    slow, quick = endpoint.connect(), endpoint.connect()
    slow.pause()
    numbers = slow.pipeline(*[("fs/readFile", {"path": path_uri(here / "file")})] * 10)
    flood = slow.request("process/start", slow.start_params(("/bin/cat", "/dev/zero")))

    with at_most(20):
        for _ in range(20):
            quick.call("environment/status")
        assert quick.shell("echo quick").wait_closed().output == b"quick\n"

    slow.resume()
    for number in numbers:
        assert sha256(decode(slow.result(number)["dataBase64"])).digest() == sha256(data).digest()
    flooding = slow.process(slow.result(flood)["processId"])
    assert flooding.terminate() == {"running": True}


@pytest.mark.relayed
def test_a_relay_drops_a_slow_reader_and_delays_no_other_connection(endpoint: Endpoint) -> None:
    slow, quick = endpoint.connect(), endpoint.connect()
    flooding = slow.start("/bin/cat", "/dev/zero")
    slow.pause()

    # Whoever does not read is not told either, so ask who is known.
    relay = endpoint.relay
    dropped = 'execserver_relay_closed_sockets_total{reason="slow_consumer"}'
    before = relay.metrics()[dropped]
    with at_most(20):
        while relay.metrics()[dropped] == before:
            with at_most(20):
                quick.call("environment/status")
    assert quick.shell("echo quick").wait_closed().output == b"quick\n"

    slow.resume()
    slow.wait_end()
    again = resume(endpoint, slow.session_id)
    process = again.process(flooding.id)
    assert process.read(max_bytes=10)["lostBytes"] > 0
    assert process.terminate() == {"running": True}
    assert process.wait_closed().exit_code == 137
