from __future__ import annotations

import base64
import itertools
import json
import random
import time

import msgspec
import pytest

from execclient.connection.channel import LineSplitter, MessageTooLong
from execclient.connection.connection import decode_message

LINES = [b'{"a":1}', b"", b"x" * 1000, b"y", b"", b"z" * 70_000]
STREAM = b"".join(line + b"\n" for line in LINES)


def split(*pieces: bytes, limit: int = 1 << 20) -> list[bytes]:
    delivered: list[bytes] = []
    splitter = LineSplitter(delivered.append, limit)
    for piece in pieces:
        splitter.feed(piece)
    return delivered


def test_lines_that_come_at_once_are_lines() -> None:
    assert split(STREAM) == LINES


@pytest.mark.parametrize("size", [1, 2, 3, 7, 999, 1000, 1001, 65_536])
def test_pieces_of_any_size_make_the_same_lines(size: int) -> None:
    assert split(*(STREAM[at : at + size] for at in range(0, len(STREAM), size))) == LINES


def test_random_pieces_make_the_same_lines() -> None:
    chance = random.Random(6)
    for _ in range(50):
        cuts = sorted(chance.randrange(len(STREAM)) for _ in range(20))
        bounds = [0, *cuts, len(STREAM)]
        assert split(*(STREAM[a:b] for a, b in itertools.pairwise(bounds))) == LINES


def test_an_unfinished_line_is_not_delivered() -> None:
    assert split(b"a\nb", b"c") == [b"a"]


@pytest.mark.parametrize("pieces", [(b"123456",), (b"123456\n",), (b"123", b"456\n"), (b"1\n123456\n",)])
def test_a_line_above_the_limit_is_refused(pieces: tuple[bytes, ...]) -> None:
    with pytest.raises(MessageTooLong):
        split(*pieces, limit=5)


def test_a_line_of_just_the_limit_is_none() -> None:
    assert split(b"12345\n", b"123", b"45\n", limit=5) == [b"12345", b"12345"]


def test_nothing_is_delivered_after_a_stop_in_the_middle() -> None:
    delivered: list[bytes] = []

    def take(line: bytes) -> None:
        delivered.append(line)
        splitter.stop()

    splitter = LineSplitter(take)
    splitter.feed(b"a\nb\nc")
    splitter.feed(b"\nd\n")

    assert delivered == [b"a"]


def test_a_long_line_costs_in_proportion_to_its_length() -> None:
    def seconds(pieces: int) -> float:
        begin = time.thread_time()
        assert len(split(*[b"x" * 1024] * pieces, b"\n", limit=1 << 30)[0]) == pieces * 1024
        return time.thread_time() - begin

    short, long = min(seconds(2_000) for _ in range(5)), min(seconds(16_000) for _ in range(5))

    # Eight times the bytes; quadratic work would be sixty-four.
    assert long < 30 * short


def output_event(chunk: str, **members: object) -> dict[str, object]:
    params = {"processId": "p", "seq": 1, "stream": "stdout", "chunk": chunk, **members}
    return {"method": "process/output", "params": params}


def decoded(message: object) -> object:
    text = json.dumps(message, separators=(",", ":")).encode()
    found = decode_message(text)
    if isinstance(chunk := (found.get("params") or {}).get("chunk"), memoryview):
        found["params"]["chunk"] = bytes(chunk).decode()
    return found


@pytest.mark.parametrize(
    "message",
    [
        output_event(base64.b64encode(bytes(range(256))).decode()),
        output_event(""),
        output_event("QQ==", lostBytes=1, firstSeq=2, sessionId="s"),
        {"method": "process/output", "params": {"seq": 1, "chunk": "QQ=="}},
        {"method": "process/output", "params": {"chunk": "QQ==", "seq": 1}},
        {"method": "process/output", "params": {"later": {"x": 1, "chunk": "QQ=="}, "chunk": "Qg=="}},
        {"method": "process/output", "params": {"later": {"x": 1, "chunk": "QQ=="}, "chunk": ""}},
        {"method": "process/output", "params": {"name,": 1, 'na"me,"chunk': "x", "chunk": "Qg=="}},
        {"method": "process/output", "params": {"text": ',"chunk":"QQ==', "chunk": "Qg=="}},
        {"method": "process/output", "params": {"text": "x" * 5000, "chunk": "Qg=="}},
        {"id": 1, "result": {"chunks": [{"seq": 1, "chunk": "QQ=="}]}},
    ],
)
def test_the_short_cut_for_output_gives_what_a_json_parser_gives(message: object) -> None:
    assert decoded(message) == message


@pytest.mark.parametrize("escaped", ["AA\\/A", "\\u0051Q==", 'AA\\"A', "\\\\"])
def test_escapes_in_a_chunk_are_undone(escaped: str) -> None:
    text = b'{"method":"process/output","params":{"seq":1,"chunk":"%s"}}' % escaped.encode()

    assert decode_message(text) == json.loads(text)


def test_the_chunk_of_an_output_event_is_not_copied() -> None:
    text = json.dumps(output_event("Q" * 100_000), separators=(",", ":")).encode()

    chunk = decode_message(text)["params"]["chunk"]

    assert isinstance(chunk, memoryview)
    assert chunk.obj is text


@pytest.mark.parametrize(
    "text", [b'{"method":"process/output","params":{"seq":1,"chunk":"QQ', b'{"method":"process/output",']
)
def test_a_torn_output_event_is_an_error(text: bytes) -> None:
    with pytest.raises(msgspec.DecodeError):
        decode_message(text)
