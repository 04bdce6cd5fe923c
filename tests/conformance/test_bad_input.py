"""Hostile input: whatever is sent, the daemon answers or ends that connection, and serves on."""

from __future__ import annotations

import contextlib
import json
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conformance.endpoint import Endpoint
from tests.support.wire import Client, Json, encode, path_uri

STATUS = {"id": 900, "method": "environment/status"}


def still_serves(endpoint: Endpoint) -> None:
    assert endpoint.connect().call("environment/status") == {"status": "ready"}


@pytest.mark.statement("E20", "T19")
@pytest.mark.parametrize("seed", range(8))
def test_random_bytes_on_a_connection(endpoint: Endpoint, seed: int) -> None:
    chance = random.Random(seed)
    client = endpoint.connect(handshake=bool(seed % 2))
    with contextlib.suppress(OSError):
        for _ in range(20):
            client.transport.send_bytes(chance.randbytes(chance.randrange(1, 5000)))
    client.close()
    still_serves(endpoint)


@pytest.mark.statement("E20", "E21", "E22", "E27")
@pytest.mark.parametrize("seed", range(4))
def test_mutilated_messages_are_each_answered(client: Client, seed: int) -> None:
    """Cut, doubled and swapped bytes of a good request: one reply for each message."""
    chance = random.Random(seed)
    good = json.dumps({"id": 900, "method": "fs/getMetadata", "params": {"path": "file:///tmp"}}).encode()
    sent = 0
    for _ in range(200):
        broken = bytearray(good)
        for _ in range(chance.randrange(1, 4)):
            at = chance.randrange(len(broken))
            match chance.randrange(3):
                case 0:
                    del broken[at : at + chance.randrange(1, 4)]
                case 1:
                    broken[at:at] = chance.choice([b'"', b"{", b"}", b",", b":", b"[", b"0", b"\\", b" "])
                case _:
                    broken[at] = chance.randrange(0x20, 0x7F)
        kind = classify(bytes(broken))
        if kind == "request":
            client.send_raw(bytes(broken))
            sent += 1
    assert sent > 50
    client.wait_until(lambda: len(client.reply_order()) >= sent + 1)
    assert client.call("environment/status") == {"status": "ready"}


def classify(payload: bytes) -> str:
    """Whether a message must be answered, or may end the connection."""
    try:
        value = json.loads(payload)
    except ValueError:
        return "request" if payload.strip() else "blank"
    if not isinstance(value, dict):
        return "request"
    fatal = ("method" in value and "id" not in value) or (
        "method" not in value and "id" in value and ("result" in value or "error" in value)
    )
    return "fatal" if fatal else "request"


@pytest.mark.statement("E25", "E20")
@pytest.mark.parametrize("text", ["[" * 1_000_000, '{"a":' * 1_000_000, "[" * 127 + "]" * 127])
def test_nesting_without_end(client: Client, text: str) -> None:
    client.send_raw(text.encode())
    assert client.failure(-1).code == -32600
    client.call("environment/status")


@pytest.mark.statement("E3", "E20")
def test_numbers_without_end(client: Client) -> None:
    for number in ("9" * 5_000, "1" * 1_000_000, "-" + "9" * 400, "1e999999999"):
        client.send_raw(f'{{"id":{number},"method":"environment/status"}}'.encode())
        assert client.failure(-1).code == -32600
    client.call("environment/status")


@pytest.mark.statement("B2", "E11")
@pytest.mark.parametrize("number", ["9" * 5_000, "1e400", "-0.0", "1e2", "18446744073709551616"])
def test_numbers_that_do_not_fit_in_parameters(client: Client, number: str) -> None:
    client.send_raw(
        f'{{"id":5,"method":"process/read","params":{{"processId":"p","waitMs":{number}}}}}'.encode()
    )
    client.wait_until(lambda: client.answered(5) or client.answered(-1))
    failure = client.failure(5 if client.answered(5) else -1)
    assert failure.code in {-32602, -32600}
    client.call("environment/status")


@pytest.mark.everywhere
@pytest.mark.statement("E10")
def test_long_and_odd_method_names(client: Client) -> None:
    for name in ("x" * 1_000_000, "\0", "ü" * 1000, "__class__", "process/start ", "../fs/readFile", "a\nb"):
        assert client.refused(name).code == -32601
    client.call("environment/status")


@pytest.mark.statement("E6", "E26")
def test_many_members_in_one_object(client: Client) -> None:
    members = {f"member{number}": number for number in range(100_000)}
    client.send({**STATUS, **members})
    assert client.result(900) == {"status": "ready"}
    client.send({**STATUS, "values": [0] * 300_000})
    assert client.failure(-1).code == -32600


@pytest.mark.statement("E23")
def test_doubled_member_at_the_end_of_a_large_message(client: Client) -> None:
    members = ",".join(f'"m{number}":{number}' for number in range(50_000))
    client.send_raw(f'{{"id":1,"method":"environment/status",{members},"m0":1}}'.encode())
    assert "duplicate JSON object key `m0`" in client.failure(-1).message


@pytest.mark.statement("P2", "O26", "E11")
def test_text_that_is_no_unicode_scalar(client: Client) -> None:
    client.send_raw(b'{"id":1,"method":"process/read","params":{"processId":"\\ud83d"}}')
    assert client.failure(-1).code == -32600
    client.send_raw(b'{"id":1,"method":"process/read","params":{"processId":"\\ud83d\\ude00"}}')
    assert client.failure(1).message == "unknown process id 😀"


@pytest.mark.statement("P5", "P7", "I5")
def test_arguments_beyond_what_the_system_takes(client: Client) -> None:
    failure = client.refused("process/start", client.start_params(["/bin/true", "x" * (4 << 20)]))
    assert failure.code == -32603
    assert "os error 7" in failure.message
    failure = client.refused("process/start", client.start_params(["/" + "x" * 5000]))
    assert failure.code == -32603
    many = client.start_params(["/bin/true"], env={f"V{number}": "x" * 1000 for number in range(5000)})
    assert client.refused("process/start", many).code == -32603
    assert client.start("/bin/true").wait_closed().exit_code == 0


@pytest.mark.statement("P2")
def test_environment_names_that_are_odd(client: Client) -> None:
    """A name with `=` or an empty one is passed on or refused, never a crash."""
    for env in ({"A=B": "x"}, {"": "x"}):
        reply = client.reply(client.request("process/start", client.start_params(["/bin/true"], env=env)))
        assert "result" in reply or reply["error"]["code"] == -32603
    client.call("environment/status")


@pytest.mark.statement("I4", "U1")
@pytest.mark.parametrize("method", ["fs/getMetadata", "fs/readFile", "fs/canonicalize", "fs/readDirectory"])
def test_paths_beyond_what_the_system_takes(client: Client, method: str) -> None:
    for path in ("file:///" + "n" * 256, "file:///" + "d/" * 3000):
        assert client.refused(method, {"path": path}).code in {-32603, -32004}
    failure = client.refused(method, {"path": "file:///" + "x" * (1 << 20)})
    assert failure.code == -32603


@pytest.mark.statement("E4", "S15")
def test_same_id_ten_thousand_times(client: Client) -> None:
    client.send_all(*([{**STATUS, "id": "same"}] * 10_000))
    for _ in range(10_000):
        assert client.result("same") == {"status": "ready"}


@pytest.mark.statement("S16", "P13")
def test_hundreds_of_connections(endpoint: Endpoint) -> None:
    clients = [endpoint.connect() for _ in range(100)]
    numbers = [client.request("environment/status") for client in clients]
    for client, number in zip(clients, numbers, strict=True):
        assert client.result(number) == {"status": "ready"}
    assert len({client.session_id for client in clients}) == 100


@pytest.mark.statement("H4", "E30")
def test_connection_that_never_says_anything(endpoint: Endpoint) -> None:
    silent = [endpoint.connect(handshake=False) for _ in range(20)]
    still_serves(endpoint)
    for client in silent:
        assert not client.ended


def _flood_of_errors(client: Client) -> None:
    for _ in range(2000):
        client.send_raw(b"{")


def _flood_of_starts(client: Client) -> None:
    for _ in range(300):
        client.request("process/start", client.start_params(["/no/such/program"]))


def _flood_of_opens(client: Client) -> None:
    for number in range(1000):
        client.request("fs/open", {"handleId": str(number), "path": "file:///etc/passwd"})


@pytest.mark.everywhere
@pytest.mark.statement("S15", "G5", "P8", "E20")
@pytest.mark.parametrize("flood", [_flood_of_errors, _flood_of_starts, _flood_of_opens])
def test_floods_are_answered(client: Client, flood: Callable[[Client], None]) -> None:
    flood(client)
    assert client.call("environment/status") == {"status": "ready"}
    assert client.start("/bin/true").wait_closed().exit_code == 0


@pytest.mark.statement("G10", "F10")
def test_largest_block_and_a_file_near_the_limit_of_a_message(client: Client, here: Path) -> None:
    content = encode(b"k" * (11 << 20))
    client.call("fs/writeFile", {"path": path_uri(here / "big"), "dataBase64": content}, 40)
    assert (here / "big").stat().st_size == 11 << 20


@pytest.mark.statement("E11", "E12")
def test_every_method_with_every_wrong_shape(client: Client) -> None:
    shapes: list[Json] = [None, [], {}, 5, "x", True, [[]], {"path": None}, {"processId": None}, [None] * 20]
    methods = (
        "process/start",
        "process/read",
        "process/write",
        "process/signal",
        "process/terminate",
        "fs/readFile",
        "fs/writeFile",
        "fs/walk",
        "fs/copy",
        "fs/open",
        "fs/readBlock",
        "fs/close",
        "fs/watchMissing",
        "http/request",
        "environmentConfig/read",
        "capabilities/discoverV2",
    )
    for method in methods:
        for shape in shapes:
            client.send({"id": "x", "method": method, "params": shape})
            assert client.failure("x").code == -32602, (method, shape)
