"""Requests that come again and again mean what they meant the first time, and nothing else does."""

from __future__ import annotations

import json
from typing import Any, cast

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from execserver.protocol.filesystem import PathParams
from execserver.protocol.methods import METHODS
from execserver.rpc import envelope
from execserver.rpc.params import NOTHING, decode_params
from execserver.rpc.repeats import MAX_REMEMBERED, MAX_SEEN_ONCE, REPEATED_METHODS, Repeats


def request(number: int | str = 1, path: str = "/etc/hosts", more: str = "") -> bytes:
    return f'{{"id":{number},"method":"fs/getMetadata","params":{{"path":"file://{path}"}}{more}}}'.encode()


def taught(*messages: bytes) -> Repeats:
    repeats = Repeats()
    for message in messages * 2:
        assert repeats.find(message) is None
    return repeats


def test_the_third_of_a_kind_is_known_under_its_own_id() -> None:
    repeats = taught(request(1))

    known = repeats.find(request(77))
    assert known is not None
    assert known[:2] == (77, "fs/getMetadata")
    assert isinstance(known[2], PathParams)
    assert known[2].path == "/etc/hosts"
    assert repeats.find(request(78, "/etc/passwd")) is None


def test_a_poll_that_comes_again_is_known_and_one_from_further_on_is_not() -> None:
    def poll(number: int, after: int) -> bytes:
        cursor = f'"processId":"p","afterSeq":{after},"maxBytes":65536,"waitMs":1000'
        return f'{{"id":{number},"method":"process/read","params":{{{cursor}}}}}'.encode()

    repeats = taught(poll(1, 7))

    known = repeats.find(poll(2, 7))
    assert known is not None
    number, method, params = known
    assert (number, method) == (2, "process/read")
    assert msgspec.structs.asdict(cast("Any", params)) == {
        "process_id": "p",
        "after_seq": 7,
        "max_bytes": 65536,
        "wait_ms": 1000,
        "session_id": None,
    }
    assert repeats.find(poll(3, 8)) is None


@pytest.mark.parametrize("method", ["environment/info", "environment/status"])
@pytest.mark.parametrize("params", ["", ',"params":null', ',"params":{}'])
def test_requests_without_parameters_are_always_known(method: str, params: str) -> None:
    message = f'{{"id":2,"method":"{method}"{params}}}'.encode()
    decoded = envelope.decode(message)
    assert isinstance(decoded, envelope.Request)
    assert decode_params(METHODS[method], decoded.params) is NOTHING

    repeats = Repeats()
    assert repeats.find(message) == (2, method, NOTHING)
    for number in range(2 * MAX_REMEMBERED):
        for _ in range(2):
            repeats.find(request(1, f"/file/{number}"))
    assert repeats.find(message) == (2, method, NOTHING)


@pytest.mark.parametrize(
    "message",
    [
        request("01"),
        request("-1"),
        request("1.0"),
        request('"1"'),
        request(10**18),
        b" " + request(),
        request(more=',"trace":{"traceparent":null}'),
        request(more=',"id":3'),
        request(more=',"method":"fs/remove"'),
        request(path="relative").replace(b"file://relative", b"relative"),
        request()[:-1],
        request() + b"x",
        b'{"id":1,"result":{}}',
        b'{"id":1,"method":"fs/remove","params":{"path":"file:///etc/hosts"}}',
        b'{"id":1,"method":"fs/getMetadataX","params":{"path":"file:///etc/hosts"}}',
    ],
)
def test_what_is_unusual_or_wrong_is_never_known(message: bytes) -> None:
    repeats = taught(request())

    for _ in range(4):
        assert repeats.find(message) is None


def test_a_doubled_member_is_refused_every_time() -> None:
    message = b'{"id":1,"method":"fs/getMetadata","params":{"path":"file:///a","path":"file:///b"}}'
    repeats = Repeats()

    for _ in range(4):
        assert repeats.find(message) is None
        with pytest.raises(envelope.ParseError, match="duplicate"):
            envelope.decode(message)


def test_only_so_much_is_remembered() -> None:
    repeats = Repeats()
    for number in range(3 * MAX_SEEN_ONCE):
        for _ in range(2):
            repeats.find(request(1, f"/file/{number}"))
        assert len(repeats._known) <= MAX_REMEMBERED
    for number in range(3 * MAX_SEEN_ONCE):
        repeats.find(request(1, f"/once/{number}"))
        assert len(repeats._once) <= MAX_SEEN_ONCE


NUMBERS = st.one_of(st.none(), st.integers(-1, 2**64), st.just("7"))
READS = st.fixed_dictionaries(
    {"processId": st.one_of(st.text(st.characters(exclude_categories=["Cs"]), max_size=8), st.none())},
    optional={"afterSeq": NUMBERS, "maxBytes": NUMBERS, "waitMs": NUMBERS, "unknown": NUMBERS},
)
PATHS = st.text(st.characters(exclude_categories=["Cs"]), max_size=12).map(lambda text: "/" + text)


@given(
    st.integers(0, 2**63 - 1),
    st.sampled_from([*REPEATED_METHODS, "fs/remove"]),
    st.one_of(st.none(), st.fixed_dictionaries({"path": PATHS.map("file://".__add__)}), READS, st.just({})),
    st.booleans(),
)
def test_what_is_known_is_what_decoding_gives(number: int, method: str, params: object, tight: bool) -> None:
    members = {"id": number, "method": method} | ({} if params is None else {"params": params})
    message = json.dumps(members, separators=(",", ":") if tight else None).encode()
    repeats = Repeats()

    for _ in range(3):
        known = repeats.find(message)
    if known is None:
        return
    decoded = envelope.decode(message)
    assert isinstance(decoded, envelope.Request)
    assert known == (decoded.id, decoded.method, decode_params(METHODS[decoded.method], decoded.params))
