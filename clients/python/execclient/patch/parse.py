"""Parses the text of a patch. No file is read, and paths are only text.

Each line is read once: the time is linear in the text. Two rules decide what is a marker. Between the files
of a patch, and in a file that is added or deleted, a line is compared without the blanks around it; within an
update, an indented line is content, so that a patch can change text that looks like a patch. The last line is
`*** End Patch`, indented or not.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from execclient.patch.errors import PatchSyntaxError

WHITESPACE = (
    "\t\n\v\f\r \x85\xa0\u1680" + "".join(map(chr, range(0x2000, 0x200B))) + "\u2028\u2029\u202f\u205f\u3000"
)
"""Unicode's White_Space. Python's `strip()` also strips the separators U+001C to U+001F."""

MARK = "\ufeff"
"""The byte order mark, which some editors and shells put in front of a text."""

BEGIN = "*** Begin Patch"
END = "*** End Patch"
ENVIRONMENT = "*** Environment ID:"
ADD = "*** Add File: "
DELETE = "*** Delete File: "
UPDATE = "*** Update File: "
MOVE = "*** Move to: "
END_OF_FILE = "*** End of File"
CHUNK = "@@"
CHUNK_WITH_CONTEXT = "@@ "

_HEADERS = (ADD, DELETE, UPDATE)
_CONTENT = frozenset(("", " ", "+", "-"))
"""The first character of a line of a chunk; none for an unchanged empty line."""

_HERE_DOCUMENT_STARTS = ("<<EOF", "<<'EOF'", '<<"EOF"')
_HERE_DOCUMENT_END = "EOF"
_SHORTEST_HERE_DOCUMENT = 4
"""In lines: its own two, and the first and the last line of a patch."""


class Chunk(NamedTuple):
    """One place of an update: old lines and new lines."""

    context: str | None
    """A line of the file somewhere before the chunk."""
    body: str
    """The lines of the chunk with their marks: one or more."""
    at_end: bool
    """Whether the chunk must be at the end of the file."""
    line: int
    """The first line of the chunk in the patch, from 1."""

    @property
    def marks(self) -> str:
        """A character for each line: a blank for an unchanged, `-` for a removed, `+` for an added line."""
        return "".join([line[:1] or " " for line in self.body.split("\n")])

    @property
    def old_lines(self) -> tuple[str, ...]:
        """The lines before the change."""
        return tuple([line[1:] for line in self.body.split("\n") if line[:1] != "+"])

    @property
    def new_lines(self) -> tuple[str, ...]:
        """The lines after the change."""
        return tuple([line[1:] for line in self.body.split("\n") if line[:1] != "-"])


@dataclass(frozen=True, slots=True)
class AddFile:
    """A file to create or to replace. Every line of `content` ends with a line feed."""

    path: str
    content: str
    line: int


@dataclass(frozen=True, slots=True)
class DeleteFile:
    """A file to remove."""

    path: str
    line: int


@dataclass(frozen=True, slots=True)
class UpdateFile:
    """A file to change and perhaps to move."""

    path: str
    move_to: str | None
    chunks: tuple[Chunk, ...]
    line: int


Hunk = AddFile | DeleteFile | UpdateFile


@dataclass(frozen=True, slots=True)
class Patch:
    """A patch: one hunk for each file, in order."""

    hunks: tuple[Hunk, ...]
    environment_id: str | None = None


def parse_patch(text: str) -> Patch:
    """Parse a patch, plain or in the here-document that some models put around it.

    Raises:
        PatchSyntaxError: the text is no patch; the error has the line.
    """
    if not text.isascii():
        _require_unicode(text)
    return _Parser(_without_here_document(_split(text))).parse()


def _require_unicode(text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        found = f"U+{ord(text[error.start]):04X}"
        raise PatchSyntaxError(
            f"the text holds {found}, half of a surrogate pair, which no file can"
        ) from None


def _split(text: str) -> list[str]:
    trimmed = text.strip(WHITESPACE + MARK)
    return trimmed.replace("\r\n", "\n").split("\n") if trimmed else []


def _without_here_document(lines: list[str]) -> list[str]:
    try:
        _check_envelope(lines)
    except PatchSyntaxError:
        if (
            len(lines) < _SHORTEST_HERE_DOCUMENT
            or lines[0] not in _HERE_DOCUMENT_STARTS
            or not lines[-1].endswith(_HERE_DOCUMENT_END)
        ):
            raise
        lines = lines[1:-1]
        _check_envelope(lines)
    return lines


def _check_envelope(lines: list[str]) -> None:
    if lines and lines[0].strip(WHITESPACE + MARK) != BEGIN:
        raise PatchSyntaxError(f"The first line of the patch must be '{BEGIN}'")
    if not lines or lines[-1].strip(WHITESPACE) != END:
        raise PatchSyntaxError(f"The last line of the patch must be '{END}'")


class _Parser:
    """Parses the lines between the first and the last."""

    def __init__(self, lines: list[str]) -> None:
        self._lines = lines
        self._at = 1
        self._last = len(lines) - 1

    def parse(self) -> Patch:
        hunks: list[Hunk] = []
        environment_id: str | None = None
        while self._at < self._last:
            header = self._lines[self._at].strip(WHITESPACE)
            if header == END:
                self._require_blank_rest()
            elif not hunks and header.startswith(ENVIRONMENT):
                environment_id = self._environment(header, environment_id)
            elif header.startswith(ADD):
                hunks.append(self._add(header.removeprefix(ADD)))
            elif header.startswith(DELETE):
                hunks.append(DeleteFile(header.removeprefix(DELETE), self._number))
                self._at += 1
            elif header.startswith(UPDATE):
                hunks.append(self._update(header.removeprefix(UPDATE)))
            else:
                raise PatchSyntaxError(
                    f"'{header}' is not a valid hunk header. Valid hunk headers: "
                    f"'{ADD}{{path}}', '{DELETE}{{path}}', '{UPDATE}{{path}}'",
                    self._number,
                )
        return Patch(tuple(hunks), environment_id)

    @property
    def _number(self) -> int:
        return self._at + 1

    def _require_blank_rest(self) -> None:
        if any(line.strip(WHITESPACE) for line in self._lines[self._at + 1 : self._last]):
            raise PatchSyntaxError(f"The last line of the patch must be '{END}'")
        self._at = self._last

    def _environment(self, header: str, known: str | None) -> str:
        if known is not None:
            raise PatchSyntaxError("apply_patch environment_id cannot be specified more than once")
        name = header.removeprefix(ENVIRONMENT).strip(WHITESPACE)
        if not name:
            raise PatchSyntaxError("apply_patch environment_id cannot be empty")
        self._at += 1
        return name

    def _add(self, path: str) -> AddFile:
        lines, start = self._lines, self._at + 1
        end = start
        while end < self._last and lines[end][:1] == "+":
            end += 1
        content = "".join([f"{line[1:]}\n" for line in lines[start:end]])
        hunk = AddFile(path, content, self._number)
        self._at = end
        return hunk

    def _update(self, path: str) -> UpdateFile:
        lines, last, first = self._lines, self._last, self._number
        update = _Update()
        at = first
        while True:
            start = at
            while at < last and lines[at][:1] in _CONTENT:
                at += 1
            if at > start:
                update.content(lines[start:at], start + 1)
            line = lines[at]
            # Nearly every marker is a bare `@@`; a patch may have one for every other line.
            bare = CHUNK if line == CHUNK else line.rstrip(WHITESPACE)
            if at == last or bare == END or bare.startswith(_HEADERS):
                update.require_content(path, first, END if at == last else bare, at + 1)
                self._at = at
                return UpdateFile(path, update.move_to, tuple(update.chunks), first)
            update.marker(line, bare, at + 1)
            at += 1


class _Update:
    """The state of an update while it is parsed: content, and the markers between."""

    def __init__(self) -> None:
        self.chunks: list[Chunk] = []
        self.move_to: str | None = None
        self._head: tuple[str | None, int] | None = None
        """Context and line number of a chunk without content so far."""
        self._closed = False
        """Whether the last chunk is at the end of the file: only another chunk may follow."""

    def content(self, lines: list[str], number: int) -> None:
        if self._closed:
            for at, line in enumerate(lines, number):
                if line.rstrip(WHITESPACE):
                    raise _no_chunk_start(line, at)
            return
        context, first = self._head or (None, number)
        self.chunks.append(Chunk(context, "\n".join(lines), False, first))
        self._head = None

    def marker(self, line: str, bare: str, number: int) -> None:
        if bare == CHUNK or bare.startswith(CHUNK_WITH_CONTEXT):
            if self._head is not None:
                raise _no_content(line, number)
            self._head = (None if bare == CHUNK else bare[len(CHUNK_WITH_CONTEXT) :], number)
            self._closed = False
        elif self._closed:
            if bare:
                raise _no_chunk_start(line, number)
        elif bare == END_OF_FILE:
            self._end_of_file(number)
        elif self._head is None and self.chunks:
            raise _no_chunk_start(line, number)
        elif self._head is None and self.move_to is None and bare.startswith(MOVE):
            self.move_to = bare.removeprefix(MOVE)
        else:
            raise _no_content(line, number)

    def _end_of_file(self, number: int) -> None:
        if self._head is not None:
            raise PatchSyntaxError("Update hunk does not contain any lines", number)
        if self.chunks:
            self.chunks[-1] = self.chunks[-1]._replace(at_end=True)
            self._closed = True

    def require_content(self, path: str, first: int, bare: str, number: int) -> None:
        if self._head is not None:
            if bare == END:
                raise PatchSyntaxError("Update hunk does not contain any lines", number)
            raise _no_content(bare, number)
        if not self.chunks:
            raise PatchSyntaxError(f"Update file hunk for path '{path}' is empty", first)


def _no_content(line: str, number: int) -> PatchSyntaxError:
    return PatchSyntaxError(
        f"Unexpected line found in update hunk: '{line}'. Every line should start with "
        "' ' (context line), '+' (added line), or '-' (removed line)",
        number,
    )


def _no_chunk_start(line: str, number: int) -> PatchSyntaxError:
    return PatchSyntaxError(
        f"Expected update hunk to start with a {CHUNK} context marker, got: '{line}'", number
    )
