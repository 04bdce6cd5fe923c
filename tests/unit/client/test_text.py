from __future__ import annotations

import base64

import pytest

from execclient import OutputGap, Process, SessionLost, TextChunk
from execclient.connection.address import UnixTarget
from execclient.session.inbox import Inbox
from execclient.session.network import NetworkAnswers, NetworkHandlers
from execclient.session.session import Session

TEXT = "aß€𝄞z"
"""Characters of one, two, three, four and one bytes."""


def process(*pieces: tuple[str, bytes], lost_before: int | None = None) -> Process:
    """A process that has written these pieces and closed; output was lost before the piece of that index."""
    inbox = Inbox("p", None)
    for index, (stream, data) in enumerate(pieces):
        lost = {"lostBytes": 1} if index == lost_before else {}
        chunk = base64.b64encode(data).decode()
        inbox.push("process/output", {"seq": index + 1, "stream": stream, "chunk": chunk, **lost})
    inbox.push("process/closed", {"seq": len(pieces) + 1})
    never_opened = Session(
        UnixTarget("unix:///none", "/none"),
        call_timeout=1.0,
        recovery_timeout=1.0,
        client_name="",
        network=NetworkAnswers(NetworkHandlers()),
    )
    return Process(never_opened, inbox)


async def text_of(made: Process, stream: str) -> str:
    return "".join([text async for name, text in made.text() if name == stream])


ENCODED = TEXT.encode()


@pytest.mark.parametrize("first", range(len(ENCODED) + 1))
@pytest.mark.parametrize("second", range(len(ENCODED) + 1))
async def test_characters_are_whole_wherever_their_bytes_are_split(first: int, second: int) -> None:
    begin, end = sorted((first, second))
    pieces = (ENCODED[:begin], ENCODED[begin:end], ENCODED[end:])

    made = process(*(("stdout", piece) for piece in pieces))

    assert await text_of(made, "stdout") == TEXT


async def test_each_stream_has_a_decoder_of_its_own() -> None:
    made = process(("stdout", b"\xe2"), ("stderr", b"\xc3"), ("stdout", b"\x82\xac"), ("stderr", b"\x9f"))

    assert [chunk async for chunk in made.text()] == [TextChunk("stdout", "€"), TextChunk("stderr", "ß")]


async def test_bytes_that_are_cut_off_by_the_end_become_a_replacement_character() -> None:
    assert await text_of(process(("pty", b"ok\xe2\x82")), "pty") == "ok\ufffd"


async def test_a_gap_is_told_after_what_was_before_it_and_no_character_spans_it() -> None:
    stream = process(("stdout", b"a\xe2"), ("stdout", b"\xacb"), lost_before=1).text()

    assert (await anext(stream)).text == "a"
    assert (await anext(stream)).text == "\ufffd"
    with pytest.raises(OutputGap):
        await anext(stream)
    assert (await anext(stream)).text == "\ufffdb"


async def test_another_encoding_can_be_named() -> None:
    stream = process(("stdout", "ü".encode("latin-1"))).text("latin-1")

    assert [text async for _, text in stream] == ["ü"]


# -- lines


async def lines_of(made: Process, max_line: int = 1 << 20) -> list[tuple[str, str, bool]]:
    return [(line.stream, str(line), line.ended) async for line in made.lines(max_line=max_line)]


@pytest.mark.parametrize("place", range(14))
async def test_lines_are_whole_wherever_their_bytes_are_split(place: int) -> None:
    data = "é\r\n\nzwei\nx".encode()

    made = process(("stdout", data[:place]), ("stdout", data[place:]))

    assert await lines_of(made) == [
        *(("stdout", "é", True), ("stdout", "", True), ("stdout", "zwei", True), ("stdout", "x", False))
    ]


async def test_lines_of_one_stream_are_not_mixed_with_those_of_the_other() -> None:
    made = process(("stdout", b"a"), ("stderr", b"1\n2"), ("stdout", b"b\nc"), ("stderr", b"3\n"))

    assert await lines_of(made) == [
        *(("stderr", "1", True), ("stdout", "ab", True), ("stderr", "23", True), ("stdout", "c", False))
    ]


async def test_only_a_line_feed_ends_a_line() -> None:
    text = "a\rb\x0bc\x0c\x1cd\u2028e\x85f"

    assert await lines_of(process(("stdout", f"{text}\n".encode()))) == [("stdout", text, True)]


@pytest.mark.parametrize(
    ("data", "lines"),
    [
        (b"abc\n", [("abc", True)]),
        (b"abcd\n", [("abc", False), ("d", True)]),
        (b"abcdefgh", [("abc", False), ("def", False), ("gh", False)]),
        (b"abcdef\nx\n", [("abc", False), ("def", True), ("x", True)]),
    ],
)
async def test_a_long_line_comes_in_pieces(data: bytes, lines: list[tuple[str, bool]]) -> None:
    whole = process(("pty", data))
    in_bytes = process(*(("pty", bytes([byte])) for byte in data))

    for made in (whole, in_bytes):
        assert await lines_of(made, 3) == [("pty", text, ended) for text, ended in lines]


async def test_a_line_that_a_gap_cuts_is_two_pieces_around_it() -> None:
    stream = process(("stdout", b"whole\nbeg"), ("stdout", b"end\n"), lost_before=1).lines()

    assert [await anext(stream), await anext(stream)] == ["whole", "beg"]
    with pytest.raises(OutputGap):
        await anext(stream)
    assert [line async for line in stream] == ["end"]


async def test_a_begun_line_comes_before_the_error_that_ends_the_output() -> None:
    inbox = Inbox("p", None)
    chunk = base64.b64encode(b"whole\nbeg").decode()
    inbox.push("process/output", {"seq": 1, "stream": "stdout", "chunk": chunk})
    inbox.fail(SessionLost("gone"))
    stream = Process(process()._session, inbox).lines()

    assert [await anext(stream), await anext(stream)] == ["whole", "beg"]
    for _ in range(2):
        with pytest.raises(SessionLost):
            await anext(stream)


async def test_lines_that_are_left_continue_where_they_were() -> None:
    made = process(("stdout", b"ready\nnext\nbeg"), ("stdout", b"un\nlast"))
    seen = []
    for _ in range(5):
        async for line in made.lines():
            seen.append(line)
            break
    assert seen == ["ready", "next", "begun", "last"]
    with pytest.raises(ValueError, match="and continues with these"):
        made.lines("latin-1")


@pytest.mark.parametrize("limit", [0, -1, 2.5, None])
def test_a_limit_of_lines_that_cannot_be_is_refused(limit: object) -> None:
    with pytest.raises((TypeError, ValueError), match="max_line is "):
        process().lines(max_line=limit)  # type: ignore[arg-type]
