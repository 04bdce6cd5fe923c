"""Envelope: ids, kinds, parameters, and what is answered when a message is wrong."""

from __future__ import annotations

import json

import pytest

from tests.support.wire import Client, Json

READY = {"status": "ready"}
STATUS = {"id": 900, "method": "environment/status"}


def still_serves(client: Client) -> None:
    assert client.call("environment/status") == READY


def parse_error(client: Client, payload: bytes) -> str:
    """The text of the parse error that a message gets; the connection must go on."""
    client.send_raw(payload)
    failure = client.failure(-1)
    assert failure.code == -32600
    still_serves(client)
    return failure.message


@pytest.mark.everywhere
@pytest.mark.statement("E1", "D4")
def test_reply_has_id_and_result_and_nothing_else(client: Client) -> None:
    client.send({"id": 5, "method": "environment/status"})
    assert client.reply(5) == {"id": 5, "result": READY}


@pytest.mark.statement("E1")
@pytest.mark.parametrize("version", ["2.0", "1.0", 2, None, {"a": []}])
def test_jsonrpc_member_is_ignored(client: Client, version: Json) -> None:
    client.send({"jsonrpc": version, **STATUS})
    assert client.reply(900) == {"id": 900, "result": READY}


@pytest.mark.statement("E1")
def test_another_version_in_the_first_message_makes_nothing_standard(newcomer: Client) -> None:
    newcomer.send({"jsonrpc": "1.0", "id": 1, "method": "initialize", "params": {"clientName": "x"}})
    assert "jsonrpc" not in newcomer.reply(1)


@pytest.mark.statement("E2")
@pytest.mark.parametrize("number", ["abc", "", "1", "ü\n", 0, -1, 2**63 - 1, -(2**63)])
def test_id_is_echoed_with_its_type(client: Client, number: str | int) -> None:
    client.send({"id": number, "method": "environment/status"})
    assert client.reply(number) == {"id": number, "result": READY}


@pytest.mark.statement("E3")
@pytest.mark.parametrize(
    "number", ["1.5", "1.0", "1e3", "null", "true", "[]", "{}", "9223372036854775808", "-9223372036854775809"]
)
def test_other_ids_are_parse_errors(client: Client, number: str) -> None:
    parse_error(client, b'{"id":%s,"method":"environment/status"}' % number.encode())


@pytest.mark.statement("E4")
def test_ids_may_be_used_again(client: Client) -> None:
    for _ in range(2):
        client.send({"id": 7, "method": "environment/status"})
    assert [client.reply(7), client.reply(7)] == [{"id": 7, "result": READY}] * 2


@pytest.mark.statement("E5", "E6")
def test_method_with_id_is_a_request_whatever_else_is_there(client: Client) -> None:
    client.send({"id": 8, "method": "environment/status", "result": {}, "error": 1, "extra": [1]})
    assert client.reply(8) == {"id": 8, "result": READY}


@pytest.mark.statement("E6")
def test_unknown_members_are_ignored_at_any_depth(client: Client) -> None:
    process = client.start(
        "/bin/true", future={"a": [1]}, metadata={"toolCallId": "c", "more": {}}, sandbox=None
    )
    assert process.wait_closed().exit_code == 0


@pytest.mark.everywhere
@pytest.mark.statement("E7")
def test_positional_parameters(client: Client) -> None:
    failure = client.refused("process/read", ["nobody", None, None, None])
    assert (failure.code, failure.message) == (-32600, "unknown process id nobody")


@pytest.mark.statement("E7", "E11")
@pytest.mark.parametrize("params", [["nobody"], [], ["p", 0, 1, 2, 3, 4], "text", 5, True, None])
def test_parameters_of_another_shape_do_not_decode(client: Client, params: Json) -> None:
    client.send({"id": 6, "method": "process/read", "params": params})
    assert client.failure(6).code == -32602


@pytest.mark.statement("E8")
@pytest.mark.parametrize("method", ["environment/info", "environment/status"])
def test_methods_without_parameters(client: Client, method: str) -> None:
    client.send({"id": 61, "method": method, "params": None})
    client.result(61)
    client.call(method)
    client.call(method, {})
    for other in ({"a": 1}, [], [1], "x", 5, False):
        assert client.refused(method, other).code == -32602


@pytest.mark.statement("E9")
@pytest.mark.parametrize(
    "trace",
    [None, {}, {"traceparent": "nonsense"}, {"traceparent": None, "tracestate": "a=b"}, {"other": 1}],
)
def test_trace_is_taken(client: Client, trace: Json) -> None:
    client.send({**STATUS, "trace": trace})
    assert client.result(900) == READY


@pytest.mark.statement("E9")
@pytest.mark.parametrize("trace", ['"text"', "5", '{"traceparent":5}', '{"tracestate":{}}'])
def test_trace_of_another_type_is_a_parse_error(client: Client, trace: str) -> None:
    parse_error(client, b'{"id":7,"method":"environment/status","trace":%s}' % trace.encode())


@pytest.mark.everywhere
@pytest.mark.statement("E10")
def test_unknown_method_is_named(client: Client) -> None:
    failure = client.refused("no/such/thing", {"a": 1})
    assert failure.code == -32601
    assert "no/such/thing" in failure.message
    assert "stub" not in failure.message


@pytest.mark.statement("E10", "E12")
def test_unknown_method_comes_before_the_handshake_check(newcomer: Client) -> None:
    for method in ("no/such/thing", "process/output", "initialized", ""):
        assert newcomer.refused(method).code == -32601


@pytest.mark.statement("E11", "E12")
@pytest.mark.parametrize(
    "method",
    [
        "initialize",
        "environmentConfig/read",
        "capabilityRoots/discoverV1",
        "capabilities/discoverV2",
        "process/start",
        "process/read",
        "process/write",
        "process/signal",
        "process/terminate",
        "fs/readFile",
        "fs/writeFile",
        "fs/createDirectory",
        "fs/getMetadata",
        "fs/canonicalize",
        "fs/readDirectory",
        "fs/walk",
        "fs/remove",
        "fs/copy",
        "fs/open",
        "fs/readBlock",
        "fs/writeBlock",
        "fs/close",
        "fs/watchMissing",
        "http/request",
    ],
)
def test_missing_field_is_named_even_before_initialize(newcomer: Client, method: str) -> None:
    failure = newcomer.refused(method, {})
    assert failure.code == -32602
    assert failure.message.startswith("missing field `")


@pytest.mark.statement("E11", "P3")
def test_first_missing_field_of_a_start_is_named(client: Client) -> None:
    whole = {"processId": "p", "argv": ["/bin/true"], "cwd": "file:///", "env": {}, "tty": False}
    for name in whole:
        params = {other: value for other, value in whole.items() if other != name}
        failure = client.refused("process/start", params)
        assert (failure.code, failure.message) == (-32602, f"missing field `{name}`")
    failure = client.refused("process/start", whole | {"argv": []})
    assert (failure.code, failure.message) == (-32602, "argv must not be empty")


@pytest.mark.statement("E11")
@pytest.mark.parametrize(
    "wrong",
    [
        {"processId": 5},
        {"argv": "/bin/true"},
        {"argv": [5]},
        {"env": {"A": 1}},
        {"env": []},
        {"tty": "no"},
        {"tty": 0},
        {"pipeStdin": None},
        {"arg0": 1},
        {"sandbox": 5},
        {"metadata": {"threadId": "no uuid"}},
        {"metadata": {"toolCallId": 5}},
        {"enforceManagedNetwork": 1},
        {"managedNetwork": {"loopbackPorts": [65536]}},
    ],
)
def test_types_are_strict(client: Client, wrong: dict[str, Json]) -> None:
    assert client.refused("process/start", client.start_params(["/bin/true"], **wrong)).code == -32602


@pytest.mark.statement("B2")
@pytest.mark.parametrize("number", [-1, 0.5, 2**64, "1", True])
@pytest.mark.parametrize("name", ["afterSeq", "maxBytes", "waitMs"])
def test_numbers_are_unsigned_integers(client: Client, name: str, number: Json) -> None:
    assert client.refused("process/read", {"processId": "p", name: number}).code == -32602


@pytest.mark.statement("B2")
def test_largest_number_is_taken(client: Client) -> None:
    process = client.start("/bin/true").wait_closed()
    assert process.read(2**64 - 1, 2**64 - 1, 2**64 - 1)["chunks"] == []


@pytest.mark.statement("B1")
@pytest.mark.parametrize("text", ["!!!", "_-8=", "YQ", "YQ=", "Y Q=", "YQ==\n", 5, None, ["YQ=="]])
def test_base64_is_strict(client: Client, text: Json) -> None:
    params = {"processId": "p", "chunk": text, "writeId": "1"}
    assert client.refused("process/write", params).code == -32602


@pytest.mark.statement("E13", "X4")
def test_results_and_events_have_no_other_members(client: Client) -> None:
    process = client.shell("echo x", processId="plain")
    process.wait_closed()
    assert process.started == {"processId": "plain", "sandboxType": "none"}
    assert set(process.read()) == {
        "chunks",
        "nextSeq",
        "exited",
        "exitCode",
        "closed",
        "failure",
        "sandboxDenied",
    }
    members = {method: set(params) for method, params in process.log.events}
    assert members == {
        "process/output": {"processId", "seq", "stream", "chunk"},
        "process/exited": {"processId", "seq", "exitCode", "sandboxDenied"},
        "process/closed": {"processId", "seq"},
    }
    assert process.terminate() == {"running": False}
    assert process.terminate("tree") == {"running": False}


# -- parse errors


@pytest.mark.everywhere
@pytest.mark.statement("E20")
def test_text_that_is_no_json(client: Client) -> None:
    parse_error(client, b"{not json")
    parse_error(client, b'{"id":1')


@pytest.mark.statement("E21")
@pytest.mark.parametrize(
    "payload",
    [b"5", b'"x"', b"null", b"true", b"[]", b"[1]", b'[{"id":1,"method":"environment/status"}]'],
)
def test_value_that_is_no_object(client: Client, payload: bytes) -> None:
    assert "expected a JSON-RPC object" in parse_error(client, payload)


@pytest.mark.statement("E21")
def test_nothing_in_an_array_is_carried_out(client: Client) -> None:
    client.send([{"id": "a", "method": "environment/status"}, {"id": "b", "method": "environment/status"}])
    client.failure(-1)
    still_serves(client)
    assert not client.answered("a")
    assert not client.answered("b")


@pytest.mark.statement("E22")
@pytest.mark.parametrize(
    "payload", [b"{}", b'{"id":3}', b'{"params":{}}', b'{"id":3,"method":5}', b'{"method":null}']
)
def test_object_that_is_no_message(client: Client, payload: bytes) -> None:
    parse_error(client, payload)


@pytest.mark.statement("E23")
@pytest.mark.parametrize(
    ("payload", "name"),
    [
        (b'{"id":7,"id":8,"method":"environment/status"}', "id"),
        (b'{"id":7,"method":"process/read","params":{"processId":"a","processId":"a"}}', "processId"),
        (b'{"id":7,"method":"x","params":{"deep":[{"b":1,"b":1}]}}', "b"),
        (b'{"id":7,"method":"x","params":{"b":1,"\\u0062":1}}', "b"),
    ],
)
def test_member_twice_in_an_object(client: Client, payload: bytes, name: str) -> None:
    assert f"duplicate JSON object key `{name}`" in parse_error(client, payload)


@pytest.mark.statement("E23")
def test_same_member_in_two_objects_is_fine(client: Client) -> None:
    client.send_raw(b'{"id":7,"method":"environment/status","x":[{"b":1},{"b":1,"c":{"b":2}}],"b":0}')
    assert client.result(7) == READY


@pytest.mark.statement("E24", "T37")
def test_two_values_in_one_message(client: Client) -> None:
    one = json.dumps(STATUS).encode()
    assert "trailing characters" in parse_error(client, one + one)
    assert "trailing characters" in parse_error(client, one + b"x")
    assert not client.answered(900)


@pytest.mark.statement("E25")
@pytest.mark.parametrize(("opening", "closing"), [(b"[", b"]"), (b'{"a":', b"}")])
def test_depth(client: Client, opening: bytes, closing: bytes) -> None:
    def nested(levels: int) -> bytes:
        inside = opening * levels + b"0" + closing * levels
        return b'{"id":9,"method":"environment/status","x":%s}' % inside

    client.send_raw(nested(126))
    assert client.result(9) == READY
    assert "recursion limit exceeded" in parse_error(client, nested(127))
    parse_error(client, nested(100_000))


@pytest.mark.statement("E26")
def test_number_of_values(client: Client) -> None:
    def message(values: int) -> bytes:
        # The object, its id, its method and the array are four of them.
        return b'{"id":9,"method":"environment/status","x":[%s]}' % b",".join([b"0"] * (values - 4))

    client.send_raw(message(262_144))
    assert client.result(9) == READY
    assert "262144" in parse_error(client, message(262_145))


@pytest.mark.statement("E26")
@pytest.mark.parametrize(
    ("piece", "served", "limit"),
    [(b'"%d":0,', 131_068, "131072 members"), (b'"%d":"\\"\\"\\"\\"\\"",', 80_000, "786432 quotation marks")],
)
def test_what_a_large_message_is_made_of(client: Client, piece: bytes, served: int, limit: str) -> None:
    def message(pieces: int) -> bytes:
        many = b"".join(piece % number for number in range(pieces))
        return b'{"id":9,"method":"environment/status","x":{%s"":"%s"}}' % (many, b"x" * (512 << 10))

    client.send_raw(message(served))
    assert client.result(9) == READY
    assert limit in parse_error(client, message(served + 40_000))


@pytest.mark.statement("E27")
@pytest.mark.parametrize(
    "payload",
    [
        b'\xef\xbb\xbf{"id":1,"method":"environment/status"}',
        b'{"id":1,"method":"environment/status","x":"a\x00b"}',
        b'{"id":1,"method":"environment/status","x":"a\tb"}',
        b'{"id":1,"method":"environment/status","x":"\\ud800"}',
        b'{"id":1,"method":"environment/status","x":"\\x"}',
        b'{"id":1,"method":"environment/status","x":NaN}',
        b'{"id":1,"method":"environment/status","x":Infinity}',
        b'{"id":1,"method":"environment/status","x":[1,]}',
        b'{"id":1,"method":"environment/status",}',
        b'{"id":01,"method":"environment/status"}',
        b"{'id':1,'method':'environment/status'}",
        b'{"id":1,"method":"environment/status"/* */}',
        b'{"id":+1,"method":"environment/status"}',
        b'{"id":1,"method":"environment/status","x":.5}',
        b'{"id":1,"method":"environment/status","x":1.}',
    ],
)
def test_text_that_json_does_not_allow(client: Client, payload: bytes) -> None:
    parse_error(client, payload)


# -- fatal input


@pytest.mark.everywhere
@pytest.mark.statement("E30", "E5")
@pytest.mark.parametrize(
    "message",
    [
        {"method": "foo/bar"},
        {"method": "environment/status"},
        {"method": "initialize", "params": {"clientName": "x"}},
        {"id": 77, "result": {}},
        {"id": -1, "error": {"code": -1, "message": "x"}},
    ],
)
def test_fatal_input_ends_the_connection(client: Client, message: Json) -> None:
    before = len(client.received)
    client.send_all(message, STATUS)
    client.wait_end()
    assert len(client.received) == before


@pytest.mark.everywhere
@pytest.mark.statement("E30")
def test_initialized_before_initialize_ends_the_connection(newcomer: Client) -> None:
    newcomer.send_all(
        {"method": "initialized"}, {"id": 1, "method": "initialize", "params": {"clientName": "x"}}
    )
    newcomer.wait_end()
    assert newcomer.received == []
