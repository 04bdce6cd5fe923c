"""`fs/search`, `fs/glob`, `fs/endSearch`: lines by their text, files by their name (`docs/protocol.md`,
"Search").
"""

from __future__ import annotations

from typing import Annotated, Literal, NotRequired, TypedDict

from msgspec import Meta

from execprotocol.filesystem import PathParams
from execprotocol.limits import (
    MAX_CONTEXT_LINES,
    MAX_CURSOR_CHARACTERS,
    MAX_FOUND,
    MAX_GLOB_CHARACTERS,
    MAX_GLOBS,
    MAX_NAME_CHARACTERS,
    MAX_PATTERN_CHARACTERS,
    MAX_SEARCH_ID_CHARACTERS,
    MAX_SEARCH_MS,
    MAX_SEARCH_PAGE_BYTES,
    MAX_UNREAD,
)
from execprotocol.model import U64, Params, WrittenBase64, WrittenUri, stated

Pattern = Annotated[str, Meta(min_length=1, max_length=MAX_PATTERN_CHARACTERS)]
Glob = Annotated[str, Meta(min_length=1, max_length=MAX_GLOB_CHARACTERS)]
FolderName = Annotated[str, Meta(min_length=1, max_length=MAX_NAME_CHARACTERS)]
SearchId = Annotated[str, Meta(min_length=1, max_length=MAX_SEARCH_ID_CHARACTERS)]
PageBytes = Annotated[int, Meta(ge=1, le=MAX_SEARCH_PAGE_BYTES)]
PageMilliseconds = Annotated[int, Meta(ge=1, le=MAX_SEARCH_MS)]
FoundLimit = Annotated[int, Meta(ge=1, le=MAX_FOUND)]


class _SearchedTree(PathParams, kw_only=True):
    # So that `sandbox` is the last member by position here, too.
    extension_members = frozenset(
        {"exclude_dirs", "hidden", "ignore_rules", "max_bytes", "time_ms", "cursor", "search_id"}
    )

    exclude_dirs: Annotated[list[FolderName], Meta(max_length=MAX_GLOBS)] = []
    """Names of folders that are not entered, at any depth below `path`; no globs, no slashes."""

    hidden: bool = False
    """Whether files and folders are searched whose names begin with a dot."""

    ignore_rules: bool = True
    """Whether the rules of .gitignore, .ignore, .rgignore and .git/info/exclude apply, also outside of a git
    repository."""

    max_bytes: PageBytes = 1 << 20
    """The largest size of the page: 1 to 16777216 bytes of JSON. A page has at least one entry."""

    time_ms: PageMilliseconds = 15_000
    """The longest time for the page, in milliseconds: 1 to 600000."""

    cursor: Annotated[str, Meta(max_length=MAX_CURSOR_CHARACTERS)] | None = None
    """The `cursor` of the page before; null begins a search. All parameters but the limits of the page must
    be those of the first page."""

    search_id: SearchId | None = None
    """The client's name for the search: 1 to 64 characters, of no other open search of the session. With it
    the first page can be repeated, too, and `fs/endSearch` can end the search. Null for none."""


class SearchParams(_SearchedTree):
    """Search files for lines with a text, page by page. Links are followed for `path` only.

    A file is searched up to its first NUL byte. A page can be repeated until the next one is requested.
    """

    pattern: Pattern
    """The text: 1 to 65536 characters. A newline needs `regex` and `multiline`."""

    regex: bool = False
    """Whether `pattern` is a regular expression, with the syntax of Rust's crate `regex`."""

    ignore_case: bool = False
    """Whether case does not matter."""

    multiline: bool = False
    """Whether a match may span lines; only with `regex`."""

    globs: Annotated[list[Glob], Meta(max_length=MAX_GLOBS)] = []
    """The files that are searched: those that one of the globs matches. Empty for all."""

    context_lines: Annotated[int, Meta(ge=0, le=MAX_CONTEXT_LINES)] = 0
    """How many lines before and after each match are in the result: 0 to 20."""

    output: Literal["lines", "files"] = "lines"
    """`lines` for all matches; `files` for the files that have one, without their lines."""

    max_matches: FoundLimit = 1000
    """How many matches, or files for the output `files`, the page has: 1 to 100000."""


class GlobParams(_SearchedTree):
    """Find files by name, page by page. Links are followed for `path` only, and are not found.

    A page can be repeated until the next one is requested.
    """

    globs: Annotated[list[Glob], Meta(min_length=1, max_length=MAX_GLOBS)]
    """The files: those that one of the globs matches."""

    max_files: FoundLimit = 10_000
    """How many files the page has: 1 to 100000."""


class EndSearchParams(Params):
    """End a search, whose requests are answered with an error. It is no error if it has ended."""

    search_id: SearchId
    """The `searchId` of the search."""


class FoundLine(TypedDict):
    """A line with a match, or several lines if one match spans them."""

    line: U64
    """The number of the (first) line, counted from 1."""

    text: NotRequired[str]
    """The line without its end; absent if it is not UTF-8."""

    textBase64: NotRequired[WrittenBase64]
    """The bytes of the line without its end, if they are not UTF-8."""

    ranges: list[Annotated[list[U64], stated(minItems=2, maxItems=2)]]
    """Where the matches begin and end, in bytes from the beginning of the line."""

    cut: NotRequired[bool]
    """True if the line is too long and has its beginning only, and only the first of its ranges. Absent
    otherwise."""

    before: NotRequired[list[ContextLine]]
    """The lines before, if `contextLines` asks for them, without those that an earlier match has."""

    after: NotRequired[list[ContextLine]]
    """The lines after, up to the next match."""


class ContextLine(TypedDict):
    """A line near a match."""

    line: U64
    """The number of the line."""

    text: NotRequired[str]
    """The line without its end; absent if it is not UTF-8."""

    textBase64: NotRequired[WrittenBase64]
    """The bytes of the line without its end, if they are not UTF-8."""

    cut: NotRequired[bool]
    """True if the line is too long and has its beginning only. Absent otherwise."""


class SearchedFile(TypedDict):
    """A file with matches. A page begins with the file that the page before ended with, if it has more."""

    path: WrittenUri
    """The file, below the `path` of the request."""

    matches: list[FoundLine]
    """Its lines with matches, in their order; empty for the output `files`."""

    binary: NotRequired[bool]
    """True if a NUL byte has ended the search of the file; the matches before it may be of no use. Absent
    otherwise."""


class SearchResult(TypedDict):
    """A page of a search."""

    files: list[SearchedFile]
    """The files with matches, in no order; all of a file's matches follow each other."""

    truncated: Literal["matches", "bytes", "time"] | None
    """The limit that ended the page: `maxMatches`, `maxBytes` or `timeMs`. Null if the search is complete."""

    cursor: str | None
    """Continues the search after this page; null if it is complete."""

    unread: Annotated[list[str], stated(maxItems=MAX_UNREAD)]
    """Messages about files and folders that could not be read until now; at most 20."""

    searchedFiles: U64 | None
    """How many files were searched; null while the search is not complete."""


class GlobResult(TypedDict):
    """A page of files."""

    paths: list[WrittenUri]
    """The files, below the `path` of the request, in no order."""

    truncated: Literal["files", "bytes", "time"] | None
    """The limit that ended the page: `maxFiles`, `maxBytes` or `timeMs`. Null if all files were found."""

    cursor: str | None
    """Continues the search after this page; null if it is complete."""

    unread: Annotated[list[str], stated(maxItems=MAX_UNREAD)]
    """Messages about folders that could not be read until now; at most 20."""
