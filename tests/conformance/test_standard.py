"""Standard JSON-RPC 2.0 and `Content-Length` framing: what is different from the lean dialect."""

from __future__ import annotations

import fcntl
import json
import os
import struct
import termios
import time
from pathlib import Path

import pytest

from tests.conformance.endpoint import Endpoint
from tests.support.framing import with_headers
from tests.support.wire import Client, Json, SocketTransport, decode, encode, path_uri

STATUS = {"jsonrpc": "2.0", "id": 900, "method": "environment/status"}
READY = {"jsonrpc": "2.0", "id": 900, "result": {"status": "ready"}}

STANDARD_DOORS = ("stdio/standard", "unix/standard", "unix/sized", "ws/standard")

everywhere = pytest.mark.transports(*STANDARD_DOORS)
sockets = pytest.mark.transports(*STANDARD_DOORS[1:])
sized = pytest.mark.transports("unix/sized")


def exchange(client: Client, message: Json | bytes) -> Json:
    """Send something, and take the next message that comes."""
    seen = len(client.received)
    client.send_raw(message if isinstance(message, bytes) else json.dumps(message).encode())
    client.wait_until(lambda: len(client.received) > seen)
    return client.received[seen]


def error_of(client: Client, method: str, params: Json = None) -> Json:
    """The `error` member of the reply to a request that must fail."""
    reply = client.reply(client.request(method, params))
    assert "error" in reply, str(reply)[:300]
    return reply["error"]


def silent(client: Client) -> bool:
    """Whether nothing came since: the next thing to come is the answer to a fresh request."""
    return bool(exchange(client, STATUS) == READY)


# -- which dialect


@everywhere
@pytest.mark.statement("J1", "J2")
def test_every_reply_and_notification_carries_the_version(client: Client) -> None:
    process = client.shell("echo out; exit 3").wait_closed()
    error_of(client, "fs/readFile", {"path": "file:///no/such/file"})

    assert (process.output, process.exit_code) == (b"out\n", 3)
    assert {message["jsonrpc"] for message in client.received} == {"2.0"}


@pytest.mark.transports("unix", "ws")
@pytest.mark.statement("J1", "E1")
def test_the_dialect_of_the_first_message_stays(endpoint: Endpoint) -> None:
    lean = endpoint.connect()
    reply = exchange(lean, STATUS)
    assert reply == {"id": 900, "result": {"status": "ready"}}

    standard = endpoint.connect(handshake=False)
    standard.standard = True
    standard.handshake()
    without_version = exchange(standard, {"id": 1, "method": "environment/status"})
    assert without_version["error"]["code"] == -32600
    assert without_version["error"]["data"] == {"code": "invalid_request", "field": "jsonrpc"}


@pytest.mark.transports("unix", "ws")
@pytest.mark.statement("J1", "T25")
def test_what_cannot_be_understood_does_not_choose_a_dialect(newcomer: Client) -> None:
    assert exchange(newcomer, b"not json")["id"] == -1
    assert exchange(newcomer, b"[]")["id"] == -1
    assert exchange(newcomer, b'{"jsonrpc": "2.0"')["id"] == -1

    newcomer.standard = True
    newcomer.handshake()
    assert silent(newcomer)


@pytest.mark.transports("unix/standard", "ws/standard")
@pytest.mark.statement("J1", "J8")
def test_a_batch_can_come_first(newcomer: Client) -> None:
    replies = exchange(
        newcomer,
        [
            newcomer.message("initialize", {"clientName": "tests"}, id=1),
            newcomer.message("initialized"),
            newcomer.message("environment/status", id=2),
        ],
    )

    assert [reply["id"] for reply in replies] == [1, 2]
    assert replies[1]["result"] == {"status": "ready"}


# -- envelope


@sockets
@pytest.mark.statement("J3")
@pytest.mark.parametrize("identifier", [0, -7, 2**63 - 1, 1.5, "", "x", "é", None])
def test_an_id_comes_back_as_it_was(client: Client, identifier: Json) -> None:
    reply = exchange(client, STATUS | {"id": identifier})

    assert reply == READY | {"id": identifier}
    assert type(reply["id"]) is type(identifier)


@pytest.mark.transports("unix/standard")
@pytest.mark.statement("J6")
@pytest.mark.parametrize(
    ("message", "field"),
    [
        (STATUS | {"id": True}, "id"),
        (STATUS | {"id": {}}, "id"),
        (STATUS | {"id": 2**63}, "id"),
        (STATUS | {"jsonrpc": "1.0"}, "jsonrpc"),
        (STATUS | {"jsonrpc": 2.0}, "jsonrpc"),
        (STATUS | {"method": 5}, "method"),
        ({"jsonrpc": "2.0", "id": 4}, "method"),
        (STATUS | {"params": "text"}, "params"),
        (STATUS | {"trace": 5}, "trace"),
    ],
)
def test_an_invalid_request_names_the_member_at_fault(client: Client, message: Json, field: str) -> None:
    reply = exchange(client, message)

    assert (reply["id"], reply["error"]["code"]) == (None, -32600)
    assert reply["error"]["data"] == {"code": "invalid_request", "field": field}
    assert field in reply["error"]["message"]
    assert silent(client)


@sockets
@pytest.mark.statement("J5", "J12")
@pytest.mark.parametrize(
    "data",
    [b"{", b"nonsense", b'{"a":1,"a":2}', b'"text"', b"17", b"[" * 200 + b"]" * 200, b'{"a":"\xff"}'],
)
def test_what_is_no_json_is_a_parse_error_and_the_connection_goes_on(client: Client, data: bytes) -> None:
    reply = exchange(client, data)

    assert (reply["id"], reply["error"]["code"]) == (None, -32700)
    assert reply["error"]["data"] == {"code": "parse_error"}
    assert silent(client)


@everywhere
@pytest.mark.statement("J4", "J12")
def test_what_needs_no_answer_gets_none(client: Client) -> None:
    client.notify("no/such/method", {"a": 1})
    client.notify("process/read", {"processId": "unknown"})
    client.notify("fs/readFile", {"wrong": "parameters"})
    client.send({"jsonrpc": "2.0", "id": 5, "result": {}})
    client.send({"jsonrpc": "2.0", "id": None, "error": {"code": 1, "message": "?"}})

    assert silent(client)


@everywhere
@pytest.mark.statement("J4")
def test_a_request_without_id_is_carried_out(client: Client, here: Path) -> None:
    client.notify("fs/writeFile", {"path": path_uri(here / "file"), "dataBase64": encode("written")})

    # The same path: so it comes after the write, and is the first thing that is answered.
    assert decode(client.call("fs/readFile", {"path": path_uri(here / "file")})["dataBase64"]) == b"written"
    assert len(client.received) == 2


@pytest.mark.transports("unix/standard", "ws/standard")
@pytest.mark.statement("J4", "J12")
def test_initialized_out_of_place_is_forgiven(newcomer: Client) -> None:
    newcomer.notify("initialized")
    refusal = error_of(newcomer, "environment/status")
    assert refusal["message"].startswith("client must call initialize")
    newcomer.handshake()
    assert error_of(newcomer, "initialized")["code"] == -32601
    assert silent(newcomer)


@sockets
@pytest.mark.statement("J7")
@pytest.mark.parametrize(
    ("method", "params", "code", "data"),
    [
        ("no/such/method", {}, -32601, {"code": "method_not_found"}),
        ("fs/readFile", {}, -32602, {"code": "invalid_params", "field": "path"}),
        ("fs/readFile", {"path": 5}, -32602, {"code": "invalid_params", "field": "path"}),
        ("process/read", {"processId": "nobody"}, -32600, {"code": "unknown_process", "field": "processId"}),
        ("fs/readFile", {"path": "file:///no/such/file"}, -32004, {"code": "not_found"}),
        ("fs/readBlock", {"handleId": "none", "offset": 0, "len": 1}, -32004,
         {"code": "unknown_handle", "field": "handleId"}),
        ("initialize", {"clientName": "again"}, -32600, {"code": "invalid_request"}),
        ("fs/createDirectory", {"path": "file:///", "recursive": False}, -32603, {"code": "already_exists"}),
    ],
)  # fmt: skip
def test_errors_carry_a_name_for_programs(
    client: Client, method: str, params: Json, code: int, data: Json
) -> None:
    error = error_of(client, method, params)

    assert (error["code"], error["data"]) == (code, data)


@sockets
@pytest.mark.statement("J7", "X15")
def test_a_failed_start_says_what_is_missing(client: Client) -> None:
    error = error_of(client, "process/start", client.start_params(["/no/such"]))

    assert error["data"] == {
        "code": "spawn_failed",
        "field": "argv",
        "path": "/no/such",
        "reason": "the program /no/such does not exist",
    }


@pytest.mark.transports("unix/standard")
@pytest.mark.statement("J7")
def test_texts_and_numbers_of_errors_are_those_of_the_lean_dialect(
    client: Client, endpoint: Endpoint
) -> None:
    endpoint.standard = False
    lean = endpoint.connect()
    for method, params in (
        ("fs/readFile", {"path": "file:///no/such/file"}),
        ("process/start", {"processId": "p"}),
        ("process/start", client.start_params(["/no/such/program"])),
        ("fs/readDirectory", {"path": "relative"}),
        ("nothing", {}),
    ):
        refusal = lean.refused(method, params)
        error = error_of(client, method, params)
        assert (error["code"], error["message"]) == (refusal.code, refusal.message)


@pytest.mark.transports("unix/standard")
@pytest.mark.statement("J6")
def test_null_stands_for_no_parameters(client: Client) -> None:
    assert exchange(client, STATUS | {"params": None}) == READY
    assert exchange(client, STATUS | {"params": []}) == READY
    assert exchange(client, STATUS | {"params": {}}) == READY


@pytest.mark.transports("unix/standard")
@pytest.mark.statement("J13")
def test_a_trace_is_taken(client: Client) -> None:
    trace = {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "tracestate": None}

    assert exchange(client, STATUS | {"trace": trace}) == READY
    assert exchange(client, STATUS | {"trace": None}) == READY


@pytest.mark.transports("unix/standard", "unix", "ws/standard", "ws")
@pytest.mark.statement("J14")
def test_discover_answers_strangers_with_the_openrpc_document(newcomer: Client) -> None:
    document = newcomer.call("rpc.discover")

    assert document["openrpc"].startswith("1.")
    assert "process/start" in [method["name"] for method in document["methods"]]


# -- batches


@everywhere
@pytest.mark.statement("J8")
def test_the_replies_of_a_batch_come_in_one_array_in_its_order(client: Client, here: Path) -> None:
    (here / "file").write_bytes(b"content")
    replies = exchange(
        client,
        [
            client.message(
                "process/start", client.start_params(["/bin/echo", "x"], processId="a"), id="start"
            ),
            client.message("process/read", {"processId": "a", "waitMs": 5000}, id="read"),
            client.message("environment/status", id="status"),
            client.message("fs/readFile", {"path": path_uri(here / "file")}, id="file"),
            client.message("fs/readFile", {"path": "file:///no/such/file"}, id="missing"),
        ],
    )

    assert [reply["id"] for reply in replies] == ["start", "read", "status", "file", "missing"]
    assert replies[0]["result"]["processId"] == "a"
    assert decode(replies[1]["result"]["chunks"][0]["chunk"]) == b"x\n"
    assert decode(replies[3]["result"]["dataBase64"]) == b"content"
    assert replies[4]["error"]["data"] == {"code": "not_found"}


@sockets
@pytest.mark.statement("J8")
def test_the_writes_of_a_batch_keep_their_order_and_the_rest_of_the_connection_too(
    client: Client, here: Path
) -> None:
    target = path_uri(here / "file")
    write = [
        client.message("fs/writeFile", {"path": target, "dataBase64": encode(str(number))}, id=number)
        for number in range(50)
    ]
    following = client.message("fs/readFile", {"path": target}, id="read")
    client.send_all(write, following)

    assert decode(client.result("read")["dataBase64"]) == b"49"


@everywhere
@pytest.mark.statement("J8", "J4")
def test_notifications_in_a_batch_are_not_answered(client: Client) -> None:
    client.send([client.message("environment/status"), client.message("no/such/method")])
    client.send([{"jsonrpc": "2.0", "id": 1, "result": {}}])
    assert silent(client)

    assert exchange(client, [client.message("environment/status"), STATUS]) == [READY]


@sockets
@pytest.mark.statement("J9")
def test_a_bad_element_harms_no_other(client: Client) -> None:
    replies = exchange(client, [1, STATUS, {"foo": "boo"}, [], STATUS | {"id": 901}])

    assert [reply["id"] for reply in replies] == [None, 900, None, None, 901]
    assert [reply.get("error", {}).get("code") for reply in replies] == [-32600, None, -32600, -32600, None]


@sockets
@pytest.mark.statement("J9")
def test_an_empty_or_too_long_array_is_one_error(client: Client, here: Path) -> None:
    write = client.message("fs/writeFile", {"path": path_uri(here / "file"), "dataBase64": ""})
    for batch in ([], [write] * 101):
        reply = exchange(client, batch)
        assert (reply["id"], reply["error"]["code"]) == (None, -32600)
        assert "1 to 100" in reply["error"]["message"]
    assert not (here / "file").exists()
    assert len(exchange(client, [STATUS | {"id": number} for number in range(100)])) == 100


@pytest.mark.transports("unix/standard", "ws/standard")
@pytest.mark.statement("J10")
def test_a_batch_that_asks_for_too_much_is_told_to_ask_alone(client: Client, here: Path) -> None:
    (here / "large").write_bytes(bytes(3 << 20))
    (here / "medium").write_bytes(bytes(700 << 10))
    read = [client.message("fs/readFile", {"path": path_uri(here / "medium")}, id=f"m{n}") for n in range(30)]
    large = client.message("fs/readFile", {"path": path_uri(here / "large")}, id="large")

    replies = exchange(client, [*read, large])

    refused = [reply for reply in replies if "error" in reply]
    assert refused[-1]["id"] == "large"
    assert {reply["error"]["data"]["code"] for reply in refused} == {"reply_too_large"}
    assert 15 <= len(replies) - len(refused) <= 18
    assert (
        len(decode(client.call("fs/readFile", {"path": path_uri(here / "large")})["dataBase64"])) == 3 << 20
    )


@everywhere
@pytest.mark.statement("J11")
def test_no_event_comes_before_the_reply_to_its_start(client: Client) -> None:
    starts = [
        client.message("process/start", client.start_params(["/bin/echo", "x"], processId=f"p{n}"), id=n)
        for n in range(20)
    ]
    client.send([*starts, client.message("process/read", {"processId": "p19", "waitMs": 3000}, id="read")])
    client.wait_until(lambda: all(client.log(f"p{n}").closed for n in range(20)))

    assert isinstance(client.received[1], list)  # behind the reply to initialize
    for number in range(20):
        assert client.log(f"p{number}").seqs == [1, 2, 3]


@pytest.mark.transports("unix/standard")
@pytest.mark.statement("J8")
def test_with_one_request_at_a_time_a_batch_is_carried_out_one_by_one(endpoint: Endpoint) -> None:
    client = endpoint.private("--concurrent-requests", "1").connect()
    client.start("/bin/cat", processId="cat", tty=True)
    begun = [
        client.message("process/read", {"processId": "cat", "waitMs": 400}, id="read"),
        client.message(
            "process/write", {"processId": "cat", "chunk": encode("x\n"), "writeId": "1"}, id="write"
        ),
    ]

    client.send_raw(json.dumps(begun).encode())
    # What the terminal echoes may come before.
    client.wait_until(lambda: any(isinstance(message, list) for message in client.received))
    replies = next(message for message in client.received if isinstance(message, list))

    assert [reply["id"] for reply in replies] == ["read", "write"]
    # The write waited for the read, so the read waited for nothing.
    assert replies[0]["result"]["chunks"] == []


# -- Content-Length framing


@pytest.mark.transports("stdio/sized", "unix/sized")
@pytest.mark.statement("T20", "T21")
def test_headers_in_are_answered_by_headers_out(client: Client) -> None:
    assert client.shell("echo x").wait_closed().output == b"x\n"


@sized
@pytest.mark.statement("T20", "T21")
@pytest.mark.parametrize(
    "headers",
    [
        b"content-length: %d\r\n\r\n",
        b"CONTENT-LENGTH:%d\r\n\r\n",
        b"\r\n Content-Type: application/vscode-jsonrpc; charset=utf-8\r\nContent-Length: %d\r\n\r\n",
        b"Content-Length: %d\r\nX-Whatever: 1\r\n\r\n",
    ],
)
def test_headers_are_taken_as_clients_write_them(newcomer: Client, headers: bytes) -> None:
    body = json.dumps(newcomer.message("initialize", {"clientName": "tests"}, id=1)).encode()
    data = headers % len(body) + body
    for byte in data:
        newcomer.transport.send_bytes(bytes((byte,)))

    assert "sessionId" in newcomer.result(1)


@pytest.mark.transports("unix")
@pytest.mark.statement("T25", "T20")
def test_the_lean_dialect_works_behind_headers_too(endpoint: Endpoint) -> None:
    client = endpoint.server.connect(sized=True)
    endpoint.clients.append(client)

    assert client.call("environment/status") == {"status": "ready"}


@sized
@pytest.mark.statement("T22")
def test_a_message_of_64_mib_is_served_and_one_byte_more_ends_the_connection(client: Client) -> None:
    def padded(size: int) -> bytes:
        head = b'{"jsonrpc":"2.0","id":900,"method":"environment/status","padding":"'
        return head + b"x" * (size - len(head) - 2) + b'"}'

    assert exchange(client, padded(64 << 20)) == READY
    client.transport.send_bytes(b"Content-Length: %d\r\n\r\n" % ((64 << 20) + 1))
    reply = client.reply(None)
    assert reply["error"]["code"] == -32700
    assert "at most 67108864 bytes" in reply["error"]["message"]
    client.wait_end()


@pytest.mark.transports("stdio/sized", "unix/sized")
@pytest.mark.statement("T23")
def test_unusable_headers_say_why_and_end_the_connection(client: Client) -> None:
    status = json.dumps(STATUS).encode()
    client.transport.send_bytes(with_headers(status) + b"Content-Length: many\r\n\r\n{}")

    assert client.reply(900) == READY
    reply = client.reply(None)
    assert reply["error"]["data"] == {"code": "parse_error"}
    assert "Content-Length must be a number" in reply["error"]["message"]
    client.wait_end()


@sized
@pytest.mark.statement("T24")
def test_a_file_that_shrinks_while_it_is_sent_leaves_the_framing_whole(client: Client, here: Path) -> None:
    size = 64 << 20
    (here / "file").write_bytes(b"\1" * size)
    assert isinstance(client.transport, SocketTransport)
    client.pause()
    # The reader thread is at its read already: one reply lets it see that it is to pause.
    client.request("environment/status")
    number = client.request("fs/readFile", {"path": path_uri(here / "file")})
    _wait_for_bytes(client.transport)
    os.truncate(here / "file", size // 2)
    client.resume()

    data = decode(client.result(number, timeout=40)["dataBase64"])
    assert size // 4 <= len(data) < size
    assert set(data) == {1}
    assert silent(client)


def _wait_for_bytes(transport: SocketTransport) -> None:
    """Wait until the stream has begun: more is there to be read than a small reply has."""
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        waiting = fcntl.ioctl(transport.socket, termios.FIONREAD, b"\0\0\0\0")
        if struct.unpack("i", waiting)[0] > 100_000:
            return
        time.sleep(0.005)
    raise TimeoutError("the stream did not begin")


@sized
@pytest.mark.statement("T25")
def test_the_parse_errors_of_a_stranger_are_standard_behind_headers(newcomer: Client) -> None:
    reply = exchange(newcomer, b"nonsense")

    assert (reply["id"], reply["error"]["code"]) == (None, -32700)
    newcomer.handshake()
    assert silent(newcomer)
