"""The output of a process as text: pieces, and lines."""

from __future__ import annotations

import codecs
from collections import deque
from collections.abc import AsyncIterator
from functools import partial
from typing import Self, TypeVar

from execclient import arguments
from execclient.errors import OutputGap
from execclient.results import Chunk, Line, TextChunk

MAX_LINE = 1 << 20
"""Characters of a line that wait for its end in the client."""

LineOptions = tuple[str, str, int]
"""Encoding, treatment of errors, and the longest line."""

T = TypeVar("T")


class TextStream:
    """The output of a process as text. Get one from `Process.text`.

    Characters are whole, even if their bytes are in different chunks. `errors` says how to decode a character
    that is cut off by the end of the output or by a gap.
    """

    def __init__(self, chunks: AsyncIterator[Chunk], encoding: str, errors: str) -> None:
        self._chunks = chunks
        self._new_decoder = partial(codecs.getincrementaldecoder(encoding), errors)
        self._decoders: dict[str, codecs.IncrementalDecoder] = {}
        self._decoded: deque[TextChunk] = deque()
        self._gap: OutputGap | None = None

    def __aiter__(self) -> AsyncIterator[TextChunk]:
        return self

    async def __anext__(self) -> TextChunk:
        """The next piece of text. Raises as iterating the process does."""
        while not self._decoded:
            if self._gap is not None:
                gap, self._gap = self._gap, None
                raise gap
            try:
                stream, data = await anext(self._chunks)
            except StopAsyncIteration:
                self._flush()
                if not self._decoded:
                    raise
            except OutputGap as gap:
                self._flush()
                self._gap = gap
            else:
                decoder = self._decoders.setdefault(stream, self._new_decoder())
                self._add(stream, decoder.decode(data))
        return self._decoded.popleft()

    def _flush(self) -> None:
        for stream, decoder in self._decoders.items():
            self._add(stream, decoder.decode(b"", final=True))
        self._decoders.clear()

    def _add(self, stream: str, text: str) -> None:
        if text:
            self._decoded.append(TextChunk(stream, text))


class LineStream:
    """The output of a process in lines. Get one from `Process.lines`.

    Lines are put together for each stream, and yielded in the order of their ends. Decoding is that of
    `TextStream`.
    """

    def __init__(self, chunks: AsyncIterator[Chunk], encoding: str, errors: str, max_line: int) -> None:
        if not arguments.count(max_line, "max_line"):
            raise ValueError("max_line is 1 or more, not 0")
        self._text = TextStream(chunks, encoding, errors)
        self._max_line = max_line
        self._begun: dict[str, _BegunLine] = {}
        self._lines: deque[Line] = deque()
        self._gap: OutputGap | None = None

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Line:
        """The next line. Raises as iterating the process does; a line before a gap is yielded as it is."""
        while not self._lines:
            if self._gap is not None:
                gap, self._gap = self._gap, None
                raise gap
            try:
                stream, text = await anext(self._text)
            except StopAsyncIteration:
                self._flush()
                if not self._lines:
                    raise
            except OutputGap as gap:
                self._flush()
                self._gap = gap
            else:
                self._add(stream, text)
        return self._lines.popleft()

    def _add(self, stream: str, text: str) -> None:
        *ended, rest = text.split("\n")
        begun = self._begun.get(stream)
        if begun is None:
            begun = self._begun[stream] = _BegunLine()
        for piece in ended:
            self._extend(stream, begun, piece)
            line = begun.take()
            self._lines.append(Line(line.removesuffix("\r"), stream))
        self._extend(stream, begun, rest)

    def _extend(self, stream: str, begun: _BegunLine, piece: str) -> None:
        while begun.size + len(piece) > self._max_line:
            room = self._max_line - begun.size
            begun.add(piece[:room])
            piece = piece[room:]
            self._lines.append(Line(begun.take(), stream, ended=False))
        begun.add(piece)

    def _flush(self) -> None:
        for stream, begun in self._begun.items():
            if begun.size:
                self._lines.append(Line(begun.take(), stream, ended=False))


def begun(lines: T, options: LineOptions, asked: LineOptions) -> T:
    """The lines that an earlier call of `Process.lines` has begun, and a later one continues.

    Raises:
        ValueError: the calls have different options: text that has arrived would be lost.
    """
    if asked != options:
        raise ValueError(f"lines() was begun with {options}, and continues with these, not with {asked}")
    return lines


class _BegunLine:
    """A line whose end has not arrived."""

    __slots__ = ("_pieces", "size")

    def __init__(self) -> None:
        self._pieces: list[str] = []
        self.size = 0

    def add(self, piece: str) -> None:
        if piece:
            self._pieces.append(piece)
            self.size += len(piece)

    def take(self) -> str:
        line = "".join(self._pieces)
        self._pieces.clear()
        self.size = 0
        return line
