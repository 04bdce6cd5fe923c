"""The envelope: what is a message, what is refused, and with which words."""

from __future__ import annotations

import base64
import contextlib
import json
import random
import re
import time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from execprotocol.limits import (
    MAX_JSON_BARE_BYTES,
    MAX_JSON_MEMBERS,
    MAX_JSON_QUOTES,
    MAX_JSON_VALUES,
)
from execserver.rpc import codec
from execserver.rpc.codec import Notification, ParseError, Request, Response


def refusal(data: bytes) -> str:
    with pytest.raises(ParseError) as caught:
        codec.decode(data)
    return str(caught.value)


def test_kinds_are_told_by_their_members() -> None:
    assert codec.decode(b'{"id":1,"method":"m"}') == Request(1, "m", None)
    assert codec.decode(b'{"id":"","method":"m","result":{}}') == Request("", "m", None)
    assert codec.decode(b'{"method":"m","params":5}') == Notification("m")
    assert codec.decode(b'{"id":1,"result":null}') == Response(1, None, None, False)
    assert codec.decode(b'{"id":-1,"error":{}}') == Response(-1, None, {}, True)


@pytest.mark.parametrize("number", [0, -1, 2**63 - 1, -(2**63)])
def test_ids_are_signed_64_bit_integers(number: int) -> None:
    message = codec.decode(b'{"id":%d,"method":"m"}' % number)
    assert isinstance(message, Request)
    assert message.id == number


@pytest.mark.parametrize("bad", ["1.5", "null", "true", "{}", "[]", str(2**63), str(-(2**63) - 1)])
def test_other_ids_are_refused(bad: str) -> None:
    assert "`id`" in refusal(b'{"id":%b,"method":"m"}' % bad.encode())


@pytest.mark.parametrize("data", [b"5", b"null", b"[]", b'[{"id":1,"method":"m"}]', b'"x"'])
def test_anything_but_an_object_is_refused(data: bytes) -> None:
    assert refusal(data).endswith("expected a JSON-RPC object")


def test_an_object_without_usable_members_is_refused() -> None:
    assert refusal(b"{}") == "missing field `error`"
    assert refusal(b'{"id":3}') == "missing field `error`"


def test_what_follows_the_value_is_refused() -> None:
    assert "trailing characters" in refusal(b'{"method":"m"}{"method":"m"}')


@pytest.mark.parametrize(
    ("data", "name"),
    [
        (b'{"id":7,"id":8,"method":"m"}', "id"),
        (b'{"id":7,"params":{"a":1,"b":2,"a":1},"method":"m"}', "a"),
        (b'{"id":7,"params":[{"a":{"z":1,"z":2}}],"method":"m"}', "z"),
        # Spellings that a count of `":` alone would be fooled by.
        (b'{"id":7,"params":{"a":1,"a" :1,"b":":c"},"method":"m"}', "a"),
        (b'{"id":7,"params":{"a":1,"a"\t:1},"method":"m"}', "a"),
        (b'{"id":7,"params":{"a":1,"\\u0061":1},"method":"m"}', "a"),
        (b'{"id":7,"params":{"a\\"":1,"a\\"":1},"method":"m"}', 'a"'),
    ],
)
def test_a_doubled_member_is_refused_by_name(data: bytes, name: str) -> None:
    assert refusal(data) == f"duplicate JSON object key `{name}`"


def test_strings_that_look_like_members_are_not_doubled() -> None:
    message = codec.decode(b'{"id":1,"method":"m","params":{"a":":a","b":"\\"a\\":1","c" : 1}}')
    assert message == Request(1, "m", {"a": ":a", "b": '"a":1', "c": 1})


def nested(levels: int) -> bytes:
    inner = levels - 1
    return b'{"id":1,"method":"m","params":' + b"[" * inner + b"]" * inner + b"}"


def test_127_levels_pass_and_128_do_not() -> None:
    codec.decode(nested(127))
    assert refusal(nested(128)).startswith("recursion limit exceeded")
    assert refusal(nested(100_000)).startswith("recursion limit exceeded")


def test_the_number_of_values_is_limited() -> None:
    # The message itself, the method, and the array are values too.
    fits = b'{"method":"m","params":[' + b",".join([b"12"] * (MAX_JSON_VALUES - 3)) + b"]}"
    codec.decode(fits)
    over = fits.replace(b"[12", b"[12,12", 1)
    assert "exceeds the limit of 262144 JSON values" in refusal(over)


def with_params(params: bytes) -> bytes:
    return b'{"id":1,"method":"m","params":%b}' % params


LONG = b"x" * (512 << 10)
"""What makes a message a large one."""


def test_a_large_message_means_what_it_says_wherever_its_escapes_are() -> None:
    chance = random.Random(15)
    for shift in range(12):  # so that each kind of end of a piece that is looked at comes up
        texts = ["".join(chance.choices(['"', "\\", ",", "[", ":", "a", "é"], k=9)) for _ in range(30_000)]
        params = {"x" * shift: texts, "\\" * 300_001: '"' * shift}
        data = with_params(json.dumps(params, ensure_ascii=False).encode())
        message = codec.decode(data)
        assert isinstance(message, Request)
        assert message.params == params


@pytest.mark.parametrize("text", [b",", b"[", b"{", b":", b"\\u00e9"])
def test_what_is_in_a_string_counts_for_no_limit(text: bytes) -> None:
    message = codec.decode(with_params(b'["%b"]' % (text * (MAX_JSON_VALUES + 1))))
    assert isinstance(message, Request)
    assert message.params == [json.loads(b'"%b"' % text) * (MAX_JSON_VALUES + 1)]


def test_the_number_of_members_is_limited() -> None:
    def members(count: int) -> bytes:
        return with_params(b'{"long":"%b",%b}' % (LONG, b",".join(b'"%d":1' % n for n in range(count - 4))))

    message = codec.decode(members(MAX_JSON_MEMBERS))
    assert isinstance(message, Request)
    assert len(message.params) == MAX_JSON_MEMBERS - 3
    assert "exceeds the limit of 131072 members of objects" in refusal(members(MAX_JSON_MEMBERS + 1))


def test_the_number_of_quotation_marks_is_limited() -> None:
    fits = with_params(b'["%b"]' % (b'\\"' * (MAX_JSON_QUOTES - 10)))
    assert isinstance(codec.decode(fits), Request)
    over = fits.replace(b'["', b'["\\"', 1)
    assert "exceeds the limit of 786432 quotation marks" in refusal(over)


def test_what_is_outside_of_strings_is_limited() -> None:
    empty = with_params(b"[]")
    bare = len(re.sub(rb'"[a-z]*"', b'"', empty))
    fits = with_params(b"[%b]" % (b" " * (MAX_JSON_BARE_BYTES - bare)))
    assert isinstance(codec.decode(fits), Request)
    assert "exceeds the limit of 16777216 bytes outside of strings" in refusal(fits.replace(b"[", b"[ ", 1))


def test_a_doubled_member_of_a_large_message_is_refused() -> None:
    doubled = b'{"a":1,"long":"%b","\\u0061":2}'
    assert refusal(with_params(doubled % LONG)) == "duplicate JSON object key `a`"
    assert refusal(with_params(doubled % (2 * LONG))) == "duplicate JSON object key"


@pytest.mark.parametrize("value", [b"{}", b"[]", b"0", b'""', b"[[]]", b'{"":{}}', b'"\\""'])
def test_a_message_of_too_many_values_is_refused_before_they_are_built(value: bytes) -> None:
    data = with_params(b"[%b0]" % ((value + b",") * ((32 << 20) // len(value))))
    began = time.process_time()
    assert "exceeds the limit of" in refusal(data)
    assert time.process_time() - began < 0.2


@pytest.mark.parametrize("trace", ["1", '"x"', '{"traceparent":5}', '{"tracestate":[]}'])
def test_a_trace_of_the_wrong_type_is_refused(trace: str) -> None:
    assert "trace" in refusal(b'{"id":1,"method":"m","trace":%b}' % trace.encode())


def test_a_large_payload_is_not_copied_into_a_string() -> None:
    payload = base64.b64encode(b"x" * 300_000).decode()
    data = json.dumps({"id": 1, "method": "m", "params": {"dataBase64": payload, "path": "p"}}).encode()
    message = codec.decode(data)
    assert isinstance(message, Request)
    assert message.params["dataBase64"] == payload.encode()
    assert isinstance(message.params["dataBase64"], memoryview)


def test_a_payload_elsewhere_or_with_escapes_is_an_ordinary_string() -> None:
    payload = "A" * 300_000
    for params in ({"deep": {"chunk": payload}}, {"chunk": payload + '"'}, [payload]):
        data = json.dumps({"id": 1, "method": "m", "params": params}).encode()
        message = codec.decode(data)
        assert isinstance(message, Request)
        assert message.params == params


def test_a_doubled_payload_is_refused() -> None:
    payload = b"A" * 300_000
    data = b'{"id":1,"method":"m","params":{"chunk":"%b","chunk":"%b"}}' % (payload, payload)
    assert refusal(data) == "duplicate JSON object key `chunk`"


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(max_size=8),
    lambda children: (
        st.lists(children, max_size=4) | st.dictionaries(st.text(max_size=6), children, max_size=4)
    ),
    max_leaves=12,
)


@given(json_values, st.booleans(), st.sampled_from([(",", ":"), (", ", " : "), (",\n", "\t: ")]))
@settings(max_examples=200, deadline=None)
def test_every_valid_message_decodes_to_what_it_says(
    params: Any, ascii_only: bool, separators: tuple[str, str]
) -> None:
    text = json.dumps(
        {"id": 1, "method": "m", "params": params}, ensure_ascii=ascii_only, separators=separators
    )
    message = codec.decode(text.encode("utf-8", "replace"))
    assert isinstance(message, Request)
    if "\ud800" not in text and "?" not in text:
        assert message.params == params


@given(st.binary(max_size=60))
@settings(max_examples=300, deadline=None)
def test_no_bytes_do_anything_but_decode_or_be_refused(data: bytes) -> None:
    with contextlib.suppress(ParseError):
        codec.decode(data)


_NAMES = st.sampled_from(["id", "params", "params", "a", "file:///a", "://", ":", '":', "\\"])
_SCALARS = st.one_of(
    st.integers(-3, 3),
    st.sampled_from(["file:///x", ":", "://", "::///", "{", 'a":1', "", "\\"]),
    st.none(),
)


@st.composite
def _objects(draw: st.DrawFn, depth: int = 2) -> str:
    """The text of an object in which members may be doubled and blanks stand anywhere."""
    pieces = []
    for _ in range(draw(st.integers(0, 4))):
        name = json.dumps(draw(_NAMES))
        if depth and draw(st.booleans()):
            value = draw(_objects(depth=depth - 1))
            value = f"[{value}]" if draw(st.booleans()) else value
        else:
            value = json.dumps(draw(_SCALARS))
        blank = draw(st.sampled_from(["", " ", "\n"]))
        pieces.append(f"{name}{blank}:{blank}{value}")
    return "{" + ",".join(pieces) + "}"


@given(_objects())
@settings(max_examples=600)
def test_doubled_members_are_found_wherever_they_stand(text: str) -> None:
    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        if len({name for name, _ in pairs}) < len(pairs):
            raise ValueError
        return dict(pairs)

    try:
        expected = json.loads(text, object_pairs_hook=unique)
    except ValueError:
        with pytest.raises(ParseError, match="duplicate"):
            codec.decode_object(text.encode())
    else:
        assert codec.decode_object(text.encode()) == expected
