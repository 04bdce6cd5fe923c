"""The `Content-Length` framer: whatever the cuts, the same messages, and a clear word when it is over."""

from __future__ import annotations

import itertools
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from execserver.rpc.framing import MAX_HEADERS_BYTES, FramingError, HeaderFramer, Messages

BODIES = st.lists(st.binary(max_size=40) | st.just(b"Content-Length: 3\r\n\r\n{}\n"))


def framed(body: bytes, headers: bytes = b"Content-Length: %d\r\n") -> bytes:
    return headers % len(body) + b"\r\n" + body


def refusal(*pieces: bytes, limit: int = 100) -> tuple[Messages, str | None]:
    """What came before the stream could not be read any further, and what the peer is told."""
    framer = HeaderFramer(limit)
    messages: Messages = []
    try:
        for piece in pieces:
            messages += framer.feed(piece)
    except FramingError as error:
        return messages + error.messages, error.answer
    pytest.fail("the stream was understood")


@given(BODIES, st.lists(st.integers(0, 400)))
def test_how_a_stream_is_cut_never_shows(bodies: list[bytes], cuts: list[int]) -> None:
    stream = b"".join(map(framed, bodies))
    places = sorted({0, len(stream), *(cut for cut in cuts if cut < len(stream))})
    framer = HeaderFramer()

    messages: Messages = []
    for start, end in itertools.pairwise(places):
        messages += framer.feed(stream[start:end])

    assert messages == bodies


@pytest.mark.parametrize(
    "headers",
    [
        b"content-length:%d\r\n",
        b"CONTENT-LENGTH: \t%d \r\n",
        b"Content-Type: application/vscode-jsonrpc; charset=utf-8\r\nContent-Length: %d\r\n",
        b'Content-Length: %d\r\nContent-Type: text/plain; charset="UTF8"\r\n',
        b"Content-Length: %d\r\nX-Other: anything: at all\r\n",
    ],
)
def test_headers_as_editors_write_them_are_understood(headers: bytes) -> None:
    assert HeaderFramer().feed(framed(b"{}", headers) * 2) == [b"{}", b"{}"]


@pytest.mark.parametrize(
    ("stream", "words"),
    [
        (b"Content-Type: a\r\n\r\n{}", "needs one Content-Length, this one has 0"),
        (b"Content-Length: 2\r\nContent-Length: 2\r\n\r\n{}", "this one has 2"),
        (b"Content-Length: two\r\n\r\n{}", "must be a number"),
        (b"Content-Length: -2\r\n\r\n{}", "must be a number"),
        (b"Content-Length: +2\r\n\r\n{}", "must be a number"),
        (b"Content-Length: \r\n\r\n{}", "must be a number"),
        (b"Content-Length: " + b"9" * 30 + b"\r\n\r\n{}", "must be a number"),
        (b"Content-Length: 101\r\n\r\n", "a message has at most 100 bytes"),
        (b"Content-Length: 2\n\n{}", "header lines end in CR LF"),
        (b"Content-Length: 2\r\nnonsense\r\n\r\n{}", "is no header"),
        (b"Content-Length: 2\r\nContent-Type: a; charset=latin-1\r\n\r\n{}", "must be utf-8"),
        (b"Content-X: " + b"x" * MAX_HEADERS_BYTES, f"exceed {MAX_HEADERS_BYTES} bytes"),
    ],
)
def test_unusable_headers_end_the_stream_and_say_why(stream: bytes, words: str) -> None:
    before, answer = refusal(framed(b"[1]") + stream)

    assert before == [b"[1]"]
    assert answer is not None
    assert words in answer


def test_a_message_of_exactly_the_limit_is_served() -> None:
    body = b"x" * 100

    assert HeaderFramer(limit=100).feed(framed(body)) == [body]


def test_headers_that_never_end_are_refused_before_they_fill_the_memory() -> None:
    _, answer = refusal(b"Content-Length: 2\r\n", *[b"X: %d\r\n" % number for number in range(1000)])

    assert answer is not None
    assert "exceed" in answer


def test_64_mib_in_small_pieces_take_no_quadratic_time() -> None:
    framer = HeaderFramer()
    size, piece = 64 << 20, b"x" * 4096
    framer.feed(b"Content-Length: %d\r\n\r\n" % size)
    began = time.perf_counter()

    for _ in range(size // len(piece) - 1):
        assert framer.feed(piece) == []
    (message,) = framer.feed(piece)

    assert len(message) == size
    assert time.perf_counter() - began < 5
