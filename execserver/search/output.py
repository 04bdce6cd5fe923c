"""The output of ripgrep as it arrives: JSON lines of a search, or names that end with NUL. No I/O.

Nothing is kept but a message that has not ended, and of that at most its beginning.
"""

from __future__ import annotations

import os
import re
import string
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import msgspec
from pybase64 import b64decode, b64encode

from execprotocol.path_uri import path_to_uri

MAX_LINE_BYTES = 1 << 16
"""Of a line in a result; a longer one is cut."""

MAX_RANGES = 1000
"""Of a line in a result."""

MAX_RECORD_BYTES = 1 << 20
"""Of a message of the program; of a longer one the parts are read that a cut line has."""

_HEAD_BYTES = 6 * MAX_LINE_BYTES + (1 << 15)
"""Of a long message: a path, and a line in which each byte may have an escape of six."""

_TAIL_BYTES, _END_BYTES = 1 << 16, 256

# A quotation mark within a string has a backslash before it, so that these occur outside of strings only.
_NUMBER = b',"line_number":'
_TEXT, _BYTES = b'"lines":{"text":"', b'"lines":{"bytes":"'
_RANGE = re.compile(rb'"start":(\d+),"end":(\d+)')
_TEXT_END = b'"}' + _NUMBER

_MATCHED_AT_ONCE = 64
"""Names that are matched before other work on the loop gets its turn."""

_PLAIN = (string.ascii_letters + string.digits + "_.-+@,=~/\0").encode()
"""The characters of names whose URIs have no escapes, as in `path_uri`."""


class _Text(msgspec.Struct):
    """A text of ripgrep, in base64 if it is not UTF-8."""

    text: str | None = None
    bytes: str | None = None


class _Range(msgspec.Struct):
    start: int
    end: int


class _Stats(msgspec.Struct):
    searches: int = 0


class _Data(msgspec.Struct):
    path: _Text | None = None
    lines: _Text | None = None
    line_number: int | None = None
    submatches: list[_Range] = []
    binary_offset: int | None = None
    stats: _Stats | None = None


class _Message(msgspec.Struct):
    type: str
    data: _Data


class Found(msgspec.Struct):
    """A match, or a file for the output `files`."""

    path: bytes
    """The URI of the file, as JSON."""
    body: bytes
    """The match as JSON; empty for a file."""


class Binary(msgspec.Struct):
    """A NUL byte has ended the search of a file with matches."""

    path: bytes


class SearchOutput:
    """Parses the messages of a search.

    Args:
        wanted: whether the matches of a file are wanted, by its path.
        context_lines: how many lines of context the program prints.
        files: whether only files are wanted, without lines.
    """

    def __init__(self, wanted: Callable[[str], bool], context_lines: int, *, files: bool) -> None:
        self.searched: int | None = None
        """How many files were searched, once the search is complete."""
        self._wanted = wanted
        self._context_lines = context_lines
        self._files = files
        self._decode = msgspec.json.Decoder(_Message).decode
        self._rest = b""
        self._long: _LongMessage | None = None
        self._path: bytes | None = None
        """The file of the messages; None if it is not wanted."""
        self._match: dict[str, Any] | None = None
        """A match whose following lines may still come."""
        self._match_end = 0
        """The number of its last line."""
        self._before: list[dict[str, Any]] = []

    def add(self, data: bytes) -> Iterator[Found | Binary]:
        """What the program's next output has. Take all of it before the next call."""
        while data:
            if self._long is None:
                lines = (self._rest + data).split(b"\n")
                self._rest, data = lines.pop(), b""
                if len(self._rest) > MAX_RECORD_BYTES:
                    self._long, data, self._rest = _LongMessage(), self._rest, b""
                for line in lines:
                    yield from self._message(self._decode(line))
            else:
                end, data = self._long.add(data)
                if end:
                    message, self._long = self._long.message(), None
                    yield from self._message(message)

    def _message(self, message: _Message) -> Iterable[Found | Binary]:
        data = message.data
        if message.type == "begin":
            assert data.path is not None
            path = os.fsdecode(_raw(data.path))
            self._path = b'"%b"' % path_to_uri(path).encode() if self._wanted(path) else None
        elif message.type == "summary":
            self.searched = 0 if data.stats is None else data.stats.searches
        elif self._path is None:
            pass
        elif message.type == "match":
            return (Found(self._path, b""),) if self._files else self._matched(self._path, data)
        elif message.type == "context":
            self._add_context(data)
        elif message.type == "end":
            found = self._completed(self._path)
            self._before = []
            return found if data.binary_offset is None else (*found, Binary(self._path))
        return ()

    def _matched(self, path: bytes, data: _Data) -> Iterable[Found]:
        found = self._completed(path)
        match = _line(data)
        ranges = data.submatches
        match["ranges"] = [(each.start, each.end) for each in ranges[:MAX_RANGES]]
        if len(ranges) > MAX_RANGES:
            match["cut"] = True
        if not self._context_lines:
            return (Found(path, msgspec.json.encode(match)),)
        if self._before:
            match["before"], self._before = self._before, []
        self._match = match
        text = data.lines.text if data.lines is not None else None
        self._match_end = match["line"] + (text.rstrip("\n").count("\n") if text else 0)
        return found

    def _add_context(self, data: _Data) -> None:
        number = data.line_number or 0
        if self._match is not None and number <= self._match_end + self._context_lines:
            self._match.setdefault("after", []).append(_line(data))
        else:
            self._before.append(_line(data))

    def _completed(self, path: bytes) -> tuple[Found, ...]:
        match, self._match = self._match, None
        return () if match is None else (Found(path, msgspec.json.encode(match)),)


class _LongMessage:
    """A message that is too long to be kept: a line of megabytes."""

    def __init__(self) -> None:
        self._head = b""
        self._tail: bytes | None = None
        """From the number of the line on; None before it."""
        self._end = b""

    def add(self, data: bytes) -> tuple[bool, bytes]:
        """Whether the message ends in these bytes, and what follows it."""
        data, newline, rest = data.partition(b"\n")
        if len(self._head) < _HEAD_BYTES:
            self._head += data[: _HEAD_BYTES - len(self._head)]
        if self._tail is None:
            seen = self._end + data
            place = seen.find(_NUMBER)
            if place >= 0:
                self._tail = seen[place : place + _TAIL_BYTES]
        elif len(self._tail) < _TAIL_BYTES:
            self._tail += data[: _TAIL_BYTES - len(self._tail)]
        self._end = (self._end + data[-_END_BYTES:])[-_END_BYTES:]
        return bool(newline), rest

    def message(self) -> _Message:
        """The message with the beginning of its line."""
        tail = self._tail or _NUMBER
        number = re.match(rb"\d+", tail[len(_NUMBER) :])
        ranges = _RANGE.findall(tail, 0) or _RANGE.findall(self._end)[-1:]
        data = _Data(
            lines=self._lines(),
            line_number=int(number[0]) if number else 0,
            submatches=[_Range(int(begin), int(end)) for begin, end in ranges],
        )
        return _Message("context" if self._head.startswith(b'{"type":"context"') else "match", data)

    def _lines(self) -> _Text:
        place = self._head.find(_TEXT)
        if place < 0:
            place = self._head.find(_BYTES) + len(_BYTES)
            encoded = self._head[place : place + 4 * (MAX_LINE_BYTES // 3 + 1)].partition(b'"')[0]
            return _Text(bytes=encoded.decode())
        # Not by an expression for a string: it takes a quarter of a second for a head without an end.
        text = self._head[place + len(_TEXT) :].partition(_TEXT_END)[0]
        for cut in range(8):  # the head may end within a character
            try:
                return _Text(text=msgspec.json.decode(b'"%b"' % text[: len(text) - cut], type=str))
            except (msgspec.DecodeError, UnicodeDecodeError):
                continue
        return _Text(text="")


def _raw(text: _Text) -> bytes:
    return text.text.encode() if text.text is not None else b64decode(text.bytes or "")


def _line(data: _Data) -> dict[str, Any]:
    """The members of a line in a result."""
    assert data.lines is not None
    found: dict[str, Any] = {"line": data.line_number or 0}
    text = data.lines.text
    if text is None:
        raw = b64decode(data.lines.bytes or "").removesuffix(b"\n").removesuffix(b"\r")
        found["textBase64"] = b64encode(raw[:MAX_LINE_BYTES]).decode()
        cut = len(raw) > MAX_LINE_BYTES
    else:
        found["text"] = text = text.removesuffix("\n").removesuffix("\r")
        cut = len(text) > MAX_LINE_BYTES // 4 and len(raw := text.encode()) > MAX_LINE_BYTES
        if cut:
            found["text"] = raw[:MAX_LINE_BYTES].decode("utf-8", "ignore")
    if cut:
        found["cut"] = True
    return found


class Names(msgspec.Struct):
    """URIs of files, as JSON with commas between them. None of them has a quotation mark or a backslash."""

    body: bytes
    count: int


class GlobOutput:
    """Parses the names that `rg --files` prints.

    Args:
        prefix: what all of them begin with: the searched folder and a slash.
        wanted: an expression for the rest of the wanted names.
        only_hidden_differ: whether all names are wanted, if no name in them begins with a dot.
    """

    def __init__(self, prefix: str, wanted: re.Pattern[str], *, only_hidden_differ: bool) -> None:
        self._prefix = os.fsencode(prefix)
        self._begin = len(prefix)
        self._wanted = wanted
        self._only_hidden_differ = only_hidden_differ
        self._dots = self._prefix.count(b"/.")
        self._rest = b""

    def add(self, data: bytes) -> Iterator[Names]:
        """The wanted names that end in these bytes. Take all of them before the next call."""
        names, _, self._rest = (self._rest + data).rpartition(b"\0")
        if not names:
            return
        count = names.count(b"\0") + 1
        plain = not names.translate(None, _PLAIN)
        all_wanted = self._only_hidden_differ and names.count(b"/.") == self._dots * count
        if plain and all_wanted:
            yield Names(b'"file://%b"' % names.replace(b"\0", b'","file://'), count)
            return
        found = names.split(b"\0")
        match, begin = self._wanted.fullmatch, self._begin
        for first in range(0, count, _MATCHED_AT_ONCE):
            part = found[first : first + _MATCHED_AT_ONCE]
            if not all_wanted:
                texts = os.fsdecode(b"\0".join(part)).split("\0")
                part = [name for name, text in zip(part, texts, strict=True) if match(text, begin)]
            if not part:
                continue
            if plain:
                yield Names(b'"file://%b"' % b'","file://'.join(part), len(part))
            else:
                uris = [path_to_uri(os.fsdecode(name)).encode() for name in part]
                yield Names(b'"%b"' % b'","'.join(uris), len(part))
