"""What is answered before the server is loaded is what the server would have taken, and answered so."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from execserver.first_answer import _encode, _plain_initialize
from execserver.host import Host
from execserver.protocol.methods import METHODS
from execserver.rpc import envelope
from execserver.rpc.dialect import speaks_standard
from execserver.rpc.params import decode_params

PLAIN = '{"id":1,"method":"initialize","params":{"clientName":"agent"}}'


@pytest.mark.parametrize(
    ("line", "request_id"),
    [
        (PLAIN, 1),
        (PLAIN + "\r", 1),
        ("  " + PLAIN + "\t", 1),
        ('{"params": {"clientName": ""}, "method": "initialize", "id": "a"}', "a"),
        ('{"id":0,"method":"initialize","params":{"clientName":"é","resumeSessionId":null}}', 0),
        ('{"id":9223372036854775807,"method":"initialize","params":{"clientName":"a"}}', 2**63 - 1),
    ],
)
def test_a_plain_request_is_known_by_its_id(line: str, request_id: int | str) -> None:
    assert _plain_initialize(line.encode()) == request_id


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"null",
        b"[]",
        b"[" * 100_000,
        PLAIN.encode()[:-1],
        PLAIN.encode() + b"{}",
        b"Content-Length: 62",
        PLAIN.replace('"id":1', '"id":1.0').encode(),
        PLAIN.replace('"id":1', '"id":true').encode(),
        PLAIN.replace('"id":1', '"id":null').encode(),
        PLAIN.replace('"id":1', '"id":-1').encode(),
        PLAIN.replace('"id":1', '"id":9223372036854775808').encode(),
        PLAIN.replace('"id":1', '"id":1,"id":1').encode(),
        PLAIN.replace('"id":1', '"id":1,"jsonrpc":"2.0"').encode(),
        PLAIN.replace('"id":1', '"id":1,"trace":null').encode(),
        PLAIN.replace('"id":1,', "").encode(),
        PLAIN.replace("initialize", "initialized").encode(),
        PLAIN.replace("initialize", r"initializ\u0065").encode(),
        PLAIN.replace("agent", r"\ud800").encode(),
        PLAIN.replace("agent", "\udc80").encode(errors="surrogateescape"),
        PLAIN.replace("agent", "\n").encode(),
        PLAIN.replace('"agent"', "1").encode(),
        PLAIN.replace('"agent"', "NaN").encode(),
        PLAIN.replace('"agent"', '"a","resumeSessionId":"b"').encode(),
        PLAIN.replace('"agent"', '"a","extensions":{"execserver":1}').encode(),
        PLAIN.replace('"agent"', '"a","more":1').encode(),
        PLAIN.replace('{"clientName":"agent"}', "{}").encode(),
        PLAIN.replace('{"clientName":"agent"}', "[]").encode(),
        PLAIN.replace('{"clientName":"agent"}', "null").encode(),
    ],
)
def test_everything_else_is_left_to_the_server(line: bytes) -> None:
    assert _plain_initialize(line) is None


_names = st.sampled_from(
    ["id", "method", "initialize", "params", "clientName", "resumeSessionId", "jsonrpc", "a"]
)
_others = ["1", "-0", "1e3", "null", "true", *"{}[],:\\é\x7f\0 \t"]
_pieces = _names.map(json.dumps) | st.sampled_from(_others)


@given(st.lists(st.tuples(st.integers(0, len(PLAIN)), st.integers(0, 8), _pieces), max_size=3))
def test_what_is_taken_the_server_takes_and_means_the_same(edits: list[tuple[int, int, str]]) -> None:
    text = PLAIN
    for place, removed, piece in edits:
        text = text[:place] + piece + text[place + removed :]
    line = text.encode()
    request_id = _plain_initialize(line)
    if request_id is None:
        return
    request = envelope.decode(line.strip())
    assert isinstance(request, envelope.Request)
    assert (request.id, request.method, request.trace) == (request_id, "initialize", None)
    params: Any = decode_params(METHODS["initialize"], request.params)
    assert (params.resume_session_id, params.extensions) == (None, None)
    assert not speaks_standard(json.loads(line))


_facts = st.recursive(
    st.booleans() | st.integers() | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(max_size=3), inner),
)


@given(_facts)
def test_json_is_written_as_the_server_writes_it(value: object) -> None:
    assert _encode(value).encode() == msgspec.json.encode(value)


def test_the_facts_of_this_host_are_written_as_the_server_writes_them() -> None:
    info = Host().info()
    assert _encode(info).encode() == envelope.encode_json(info)
