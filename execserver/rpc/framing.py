"""Framing of a byte stream: bytes in, whole messages out, by newlines or by `Content-Length`. No I/O.

The messages do not depend on how the stream was cut into pieces (`docs/protocol.md`, "Newline framing" and
"Content-Length framing").
"""

from __future__ import annotations

import re
from typing import Protocol, cast

from execprotocol.limits import MAX_LINE_BYTES

Lines = list[bytes | bytearray]
Messages = list[bytes | bytearray]

BULK_BYTES = 64 << 10
"""From this size on, a message is a large one."""

MAX_HEADERS_BYTES = 4096
"""The longest headers of one message; usually they are two short lines."""

_HEADERS_END = b"\r\n\r\n"
# Compiled by `re` when the first peer sends headers.
_HEADER = rb"([!#$%&'*+.^_`|~0-9A-Za-z-]+):[ \t]*([^\r\n\0]*)"
_CHARSET = rb"(?i);[ \t]*charset[ \t]*=[ \t]*\"?([^\";, \t]*)"


class FramingError(ValueError):
    """Further messages cannot be separated; the connection has to end.

    `messages` came before the error in the same piece and are still to be served. `answer` is the text for
    the peer, or None for no answer.
    """

    def __init__(self, reason: str, messages: Messages, answer: str | None = None) -> None:
        super().__init__(reason)
        self.messages = messages
        self.answer = answer


class Framer(Protocol):
    """Cuts a byte stream into messages."""

    @property
    def is_in_bulk(self) -> bool:
        """Whether the next bytes probably belong to a large message that has begun."""

    def feed(self, piece: bytes) -> Messages:
        """The messages that `piece` completes.

        Raises:
            FramingError: there will be no further message.
        """


class LineTooLongError(FramingError):
    """A line exceeds the limit. It is not answered, as in the reference."""

    def __init__(self, limit: int, lines: Lines) -> None:
        super().__init__(f"a line exceeds {limit} bytes", lines)


class LineFramer:
    r"""Cuts a byte stream at newlines.

    `\n` and `\r\n` both end a line and are not part of it. Lines of white space only are skipped. A line may
    have `limit` bytes, its `\n` not counted.
    """

    __slots__ = ("_begun", "_limit")

    def __init__(self, limit: int = MAX_LINE_BYTES) -> None:
        self._limit = limit
        self._begun = bytearray()  # grows in place, so a long line in small pieces stays linear

    @property
    def is_in_bulk(self) -> bool:
        """Whether a line has begun that is already long."""
        return len(self._begun) >= BULK_BYTES

    def feed(self, piece: bytes) -> Lines:
        """The lines that `piece` completes. A line in several pieces is the buffer that it was gathered in:
        another copy of 64 MiB would block the loop.

        Raises:
            LineTooLongError: a line, finished or not, is longer than the limit.
        """
        # A search for one byte is ten times faster than a split, and most pieces of a long line have no
        # newline.
        lines = cast("Lines", piece.split(b"\n") if b"\n" in piece else [piece])
        begun = self._begun
        gathered_return = begun.endswith(b"\r")
        if begun:
            begun += lines[0]
            if len(begun) > self._limit:
                raise LineTooLongError(self._limit, [])
            if len(lines) == 1:
                return []
            lines[0] = begun
            self._begun = begun = bytearray()
        if len(piece) > self._limit:
            self._refuse_long(lines)
        rest = lines.pop()
        if rest:
            begun += rest
        return _worth_serving(lines, carriage_returns=b"\r" in piece or gathered_return)

    def _refuse_long(self, lines: Lines) -> None:
        """Refuse a line above the limit that came in one piece."""
        for number, line in enumerate(lines):
            if len(line) > self._limit:
                raise LineTooLongError(self._limit, _worth_serving(lines[:number], carriage_returns=True))


class HeaderFramer:
    r"""Cuts a byte stream by `Content-Length: N\r\n\r\n`, as editors write it.

    A message may have `limit` bytes. Other headers are ignored, except a `Content-Type` with another
    character set than UTF-8.
    """

    __slots__ = ("_begun", "_headers", "_limit", "_missing")

    def __init__(self, limit: int = MAX_LINE_BYTES) -> None:
        self._limit = limit
        self._headers = b""  # the beginning of the next headers
        self._begun = bytearray()  # the beginning of a message
        self._missing = 0  # the bytes that it still lacks

    @property
    def is_in_bulk(self) -> bool:
        """Whether a message still lacks many bytes."""
        return self._missing >= BULK_BYTES

    def feed(self, piece: bytes) -> Messages:
        """The messages that `piece` completes.

        Raises:
            FramingError: headers without a usable length.
        """
        messages: Messages = []
        place = 0
        if self._missing:
            place = min(self._missing, len(piece))
            self._begun += memoryview(piece)[:place]
            self._missing -= place
            if self._missing:
                return messages
            messages.append(self._begun)
            self._begun = bytearray()
        elif self._headers:
            piece = self._headers + piece
            self._headers = b""
        while place < len(piece):
            end = piece.find(_HEADERS_END, place, place + MAX_HEADERS_BYTES)
            if end < 0:
                self._keep_headers(piece[place:], messages)
                break
            size = self._length(piece[place:end], messages)
            place = end + len(_HEADERS_END)
            if len(piece) - place < size:
                self._begun = bytearray(memoryview(piece)[place:])
                self._missing = size - len(self._begun)
                break
            messages.append(piece[place : place + size])
            place += size
        return messages

    def _keep_headers(self, begun: bytes, messages: Messages) -> None:
        line = begun.partition(b"\n")[0] if b"\n" in begun else None
        if line is not None and not line.endswith(b"\r"):
            raise _header_error("header lines end in CR LF, and an empty one follows the last", messages)
        if len(begun) >= MAX_HEADERS_BYTES:
            raise _header_error(f"the headers of a message exceed {MAX_HEADERS_BYTES} bytes", messages)
        self._headers = begun

    def _length(self, headers: bytes, messages: Messages) -> int:
        lengths = []
        for line in headers.split(b"\r\n"):
            match = re.fullmatch(_HEADER, line)
            if match is None:
                raise _header_error("a line before the message is no header", messages)
            name, value = match[1].lower(), match[2].rstrip()
            if name == b"content-length":
                lengths.append(value)
            elif name == b"content-type":
                _check_charset(value, messages)
        if len(lengths) != 1:
            raise _header_error(f"a message needs one Content-Length, this one has {len(lengths)}", messages)
        if not lengths[0].isdigit() or len(lengths[0]) > 20:
            raise _header_error("Content-Length must be a number of bytes", messages)
        size = int(lengths[0])
        if size > self._limit:
            raise _header_error(
                f"Content-Length is {size}, a message has at most {self._limit} bytes", messages
            )
        return size


def _header_error(reason: str, messages: Messages) -> FramingError:
    return FramingError(reason, messages, answer=reason)


def _check_charset(content_type: bytes, messages: Messages) -> None:
    match = re.search(_CHARSET, content_type)
    # Old clients write `utf8`.
    if match is not None and match[1].lower() not in (b"utf-8", b"utf8"):
        raise _header_error("the charset of Content-Type must be utf-8", messages)


def _worth_serving(lines: Lines, carriage_returns: bool) -> Lines:
    if carriage_returns:
        lines = [_without_return(line) for line in lines]
    return [line for line in lines if line and not line.isspace()]


def _without_return(line: bytes | bytearray) -> bytes | bytearray:
    if isinstance(line, bytes):
        return line.removesuffix(b"\r")
    if line.endswith(b"\r"):
        del line[-1:]
    return line
