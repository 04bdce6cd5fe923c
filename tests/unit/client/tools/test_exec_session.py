"""What is collected of a process: characters, gaps, listeners."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from execclient.errors import OutputGap, SessionLost
from execclient.process_control import linger
from execclient.results import Chunk
from execclient.session.inbox import Inbox, Piece
from execclient.tools.exec_session import ExecSession, half_character


class Connected:
    """A session whose connection stays."""

    async def connected(self) -> object:
        return self


class FakeProcess:
    """A process whose output is put into its inbox by hand."""

    id = "p"

    def __init__(self) -> None:
        self.output = Inbox("p", None)

    exit_code = property(lambda self: self.output.exit_code)

    def __aiter__(self) -> AsyncIterator[Chunk]:
        return self

    async def __anext__(self) -> Chunk:
        return await self.output.take()

    async def linger(self) -> None:
        await linger(Connected(), self.output)  # type: ignore[arg-type]

    async def wait(self) -> int:
        return await self.output.until_exited()

    def put(self, *pieces: Piece) -> None:
        for piece in pieces:
            self.output._add(piece)
        self.output._wake()

    def end(self, *, closed: bool = True) -> None:
        self.output.exit_code, self.output.closed = 0, closed
        self.output._wake()


Made = tuple[FakeProcess, ExecSession]


@pytest.fixture
def made() -> Callable[..., Made]:
    def make(**options: Any) -> Made:
        process = FakeProcess()
        return process, ExecSession(process, **options)  # type: ignore[arg-type]

    return make


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


@pytest.mark.parametrize("character", ["é", "€", "😀"])
async def test_a_character_waits_for_its_last_byte_and_comes_once(
    made: Callable[..., Made], character: str
) -> None:
    process, session = made()
    data = f"a{character}".encode()

    taken = []
    for byte in data:
        process.put(Chunk("stdout", bytes([byte])))
        await settle()
        taken.append(session.take().text())
    process.end()
    await session.finished.wait()

    assert taken == ["a", *([""] * (len(data) - 2)), character]
    assert session.take().total_bytes == 0


async def test_half_a_character_at_the_end_of_all_output_is_shown(made: Callable[..., Made]) -> None:
    process, session = made()
    process.put(Chunk("stdout", b"a\xc3"))
    await settle()

    assert session.take().text() == "a"
    process.end()
    await session.finished.wait()
    assert session.take().text() == "�"


async def test_half_a_character_behind_a_gap_of_the_buffer_waits_too(made: Callable[..., Made]) -> None:
    process, session = made()
    process.put(Chunk("stdout", b"x" * (2 << 20) + b"\xe2\x82"))
    await settle()

    first = session.take()
    process.put(Chunk("stdout", b"\xac"))
    await settle()

    assert first.omitted_bytes > 0
    assert (first.tail[-1:], session.take().text()) == (b"x", "€")
    process.end()
    await session.finished.wait()


@pytest.mark.parametrize(
    "data", [b"", b"abc", "é".encode(), "😀".encode(), b"\xff", b"\x80" * 5, b"\xc3\xa9a", b"\xf5"]
)
def test_what_is_whole_or_no_character_at_all_waits_for_nothing(data: bytes) -> None:
    assert half_character(data) == b""


async def test_gaps_are_counted_and_told_once(made: Callable[..., Made]) -> None:
    process, session = made()
    process.put(OutputGap(3), Chunk("stdout", b"a"), OutputGap(None), OutputGap(4))
    await settle()

    assert session.take_lost() == (7, True)
    assert session.take_lost() == (0, False)
    process.end()
    await session.finished.wait()


@pytest.mark.parametrize(
    ("pieces", "output", "lost"),
    [
        ([Chunk("stdout", b"abcdef")], b"def", 0),
        ([Chunk("stdout", b"ab"), Chunk("stderr", b"c"), Chunk("stdout", b"def")], b"def", 0),
        ([OutputGap(2), Chunk("stdout", b"cdef")], b"def", 0),
        ([OutputGap(5), Chunk("stdout", b"f")], b"f", 2),
    ],
    ids=["in a chunk", "between chunks", "behind a gap", "in a gap"],
)
async def test_a_session_that_is_resumed_begins_where_the_other_one_was(
    made: Callable[..., Made], pieces: list[Piece], output: bytes, lost: int
) -> None:
    process, session = made(begin=3)
    process.put(*pieces)
    await settle()

    assert (session.take().data(), session.take_lost().size) == (output, lost)
    assert session.position == 6
    process.end()
    await session.finished.wait()


async def test_the_position_is_before_half_a_character(made: Callable[..., Made]) -> None:
    process, session = made()
    process.put(Chunk("stdout", b"a\xe2\x82"))
    await settle()

    session.take()
    assert session.position == 1
    process.end()
    await session.finished.wait()


async def test_what_waits_when_a_process_is_lost_is_taken_all_the_same(made: Callable[..., Made]) -> None:
    process, session = made()
    await settle()

    process.put(Chunk("stdout", b"the last of it"))
    process.output.fail(SessionLost("gone"))
    await session.finished.wait()

    assert session.take().text() == "the last of it"
    assert isinstance(session.failure, SessionLost)


async def test_what_comes_after_the_end_is_dropped(made: Callable[..., Made]) -> None:
    process, session = made()
    process.put(Chunk("stdout", b"before"))
    process.end()
    await session.finished.wait()

    process.put(Chunk("stdout", b"after"), OutputGap(1))

    assert process.output.take_all() == []
    assert session.take().text() == "before"


async def test_a_listener_that_fails_hears_no_more_and_the_output_is_kept(made: Callable[..., Made]) -> None:
    heard: list[bytes] = []

    def fail(stream: str, data: bytes) -> None:
        heard.append(data)
        raise RuntimeError("full disk")

    process, session = made(listener=fail)
    process.put(Chunk("stdout", b"a"), Chunk("stdout", b"b"))
    process.end()
    await session.finished.wait()

    assert heard == [b"a"]
    assert session.take().text() == "ab"


async def test_the_last_listener_hears_and_then_the_one_before(made: Callable[..., Made]) -> None:
    heard: list[tuple[str, bytes]] = []

    def listener(name: str) -> Callable[[str, bytes], None]:
        return lambda stream, data: heard.append((name, data))

    first, second = listener("first"), listener("second")
    process, session = made(listener=first)
    session.listen(second)
    for data, gone in ((b"a", second), (b"b", first), (b"c", first)):
        process.put(Chunk("stdout", data))
        await settle()
        session.unlisten(gone)
    process.end()
    await session.finished.wait()

    assert heard == [("second", b"a"), ("first", b"b")]
