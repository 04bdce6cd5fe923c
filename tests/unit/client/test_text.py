from __future__ import annotations

import base64

import pytest

from execclient import OutputGap, Process, TextChunk
from execclient.connection.address import UnixTarget
from execclient.session.inbox import Inbox
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
        UnixTarget("unix:///none", "/none"), call_timeout=1.0, recovery_timeout=1.0, client_name=""
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
