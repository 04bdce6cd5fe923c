"""The output of a process as text: pieces, and lines."""

from __future__ import annotations

import codecs
from collections import deque
from collections.abc import AsyncIterator
from functools import partial
from typing import Generic, Self, TypeVar

from execclient import arguments
from execclient.errors import ExecServerError
from execclient.results import Chunk, Line, TextChunk

MAX_LINE = 1 << 20
"""Characters of a line that wait for its end in the client."""

LineOptions = tuple[str, str, int]
"""Encoding, treatment of errors, and the longest line."""

S = TypeVar("S")
T = TypeVar("T")


class _Assembled(Generic[S, T]):
    """Makes elements of those of a source, each of one or several.

    Before the end of the source and before its errors, such as a gap, a begun element is yielded as it is.

    Args:
        source: the source.
    """

    def __init__(self, source: AsyncIterator[S]) -> None:
        self._source = source
        self._ready: deque[T] = deque()
        self._error: ExecServerError | None = None

    async def _next(self) -> T:
        while not self._ready:
            if self._error is not None:
                error, self._error = self._error, None
                raise error
            try:
                element = await anext(self._source)
            except StopAsyncIteration:
                self._flush()
                if not self._ready:
                    raise
            except ExecServerError as error:
                self._flush()
                self._error = error
            else:
                self._take(element)
        return self._ready.popleft()

    def _take(self, element: S) -> None:
        """Add an element of the source."""
        raise NotImplementedError

    def _flush(self) -> None:
        """Make what has been begun ready."""
        raise NotImplementedError


class TextStream(_Assembled[Chunk, TextChunk]):
    """The output of a process as text. Get one from `Process.text`.

    Characters are whole, even if their bytes are in different chunks. `errors` says how to decode a character
    that is cut off by the end of the output or by a gap.
    """

    def __init__(self, chunks: AsyncIterator[Chunk], encoding: str, errors: str) -> None:
        super().__init__(chunks)
        self._new_decoder = partial(codecs.getincrementaldecoder(encoding), errors)
        self._decoders: dict[str, codecs.IncrementalDecoder] = {}

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> TextChunk:
        """The next piece of text. Raises as iterating the process does."""
        return await self._next()

    def _take(self, element: Chunk) -> None:
        stream, data = element
        decoder = self._decoders.setdefault(stream, self._new_decoder())
        self._add(stream, decoder.decode(data))

    def _flush(self) -> None:
        for stream, decoder in self._decoders.items():
            self._add(stream, decoder.decode(b"", final=True))
        self._decoders.clear()

    def _add(self, stream: str, text: str) -> None:
        if text:
            self._ready.append(TextChunk(stream, text))


class LineStream(_Assembled[TextChunk, Line]):
    """The output of a process in lines. Get one from `Process.lines`.

    Lines are put together for each stream, and yielded in the order of their ends. Decoding is that of
    `TextStream`.
    """

    def __init__(self, chunks: AsyncIterator[Chunk], encoding: str, errors: str, max_line: int) -> None:
        if not arguments.count(max_line, "max_line"):
            raise ValueError("max_line is 1 or more, not 0")
        super().__init__(TextStream(chunks, encoding, errors))
        self._max_line = max_line
        self._begun: dict[str, _BegunLine] = {}

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Line:
        """The next line. Raises as iterating the process does; a line before a gap is yielded as it is."""
        return await self._next()

    def _take(self, element: TextChunk) -> None:
        stream, text = element
        *ended, rest = text.split("\n")
        begun = self._begun.get(stream)
        if begun is None:
            begun = self._begun[stream] = _BegunLine()
        for piece in ended:
            self._extend(stream, begun, piece)
            self._ready.append(Line(begun.take().removesuffix("\r"), stream))
        self._extend(stream, begun, rest)

    def _extend(self, stream: str, begun: _BegunLine, piece: str) -> None:
        while begun.size + len(piece) > self._max_line:
            room = self._max_line - begun.size
            begun.add(piece[:room])
            piece = piece[room:]
            self._ready.append(Line(begun.take(), stream, ended=False))
        begun.add(piece)

    def _flush(self) -> None:
        for stream, begun in self._begun.items():
            if begun.size:
                self._ready.append(Line(begun.take(), stream, ended=False))


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
