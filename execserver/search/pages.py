"""Builds the pages of searches as JSON, from what is found. No I/O."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from execserver.search.output import Binary, Found, GlobOutput, Names, SearchOutput


class PageLimits(msgspec.Struct, frozen=True):
    """The limits of a page."""

    found: int
    size: int
    """In bytes."""
    seconds: float


class SearchPages:
    """Builds the pages of `fs/search`."""

    full = "matches"

    def __init__(self, output: SearchOutput) -> None:
        self.found = self.size = 0
        self._output = output
        self._files: list[bytes] = []
        self._path = b""
        self._matches: list[bytes] = []
        self._binary = False

    def items(self, data: bytes) -> Iterator[Found | Binary]:
        """What is found in more output."""
        return self._output.add(data)

    def take(self, item: Found | Binary, limits: PageLimits) -> str | None:
        """Add an item to the page; the limit that it is beyond, if it is."""
        new = item.path != self._path
        size = (len(item.path) + 30) * new + (len(item.body) + 1 if isinstance(item, Found) else 16)
        if isinstance(item, Found) and self.found >= limits.found:
            return self.full
        if self.found and self.size + size > limits.size:
            return "bytes"
        if new:
            self._end_file()
            self._path = item.path
        self.size += size
        if isinstance(item, Binary):
            self._binary = True
        else:
            self.found += 1
            if item.body:
                self._matches.append(item.body)
        return None

    def finish(self, truncated: str | None, cursor: str | None, unread: list[str]) -> bytes:
        """The page as JSON; the next one begins."""
        self._end_file()
        searched = self._output.searched if truncated is None else None
        files, self._files = self._files, []
        self.found = self.size = 0
        return b'{"files":[%b],%b,"searchedFiles":%b}' % (
            b",".join(files),
            _page_members(truncated, cursor, unread),
            msgspec.json.encode(searched),
        )

    @property
    def complete(self) -> bool:
        """Whether the program has come to its end by itself."""
        return self._output.searched is not None

    def _end_file(self) -> None:
        if self._path:
            binary = b',"binary":true' if self._binary else b""
            matches = b",".join(self._matches)
            self._files.append(b'{"path":%b,"matches":[%b]%b}' % (self._path, matches, binary))
        self._path, self._matches, self._binary = b"", [], False


class GlobPages:
    """Builds the pages of `fs/glob`."""

    full = "files"
    complete = False

    def __init__(self, output: GlobOutput) -> None:
        self.found = self.size = 0
        self._output = output
        self._paths: list[bytes] = []

    def items(self, data: bytes) -> Iterator[Names]:
        """What is found in more output."""
        return self._output.add(data)

    def take(self, item: Names, limits: PageLimits) -> str | None:
        """Add files to the page; the limit that the remaining ones are beyond, if there are any."""
        size = len(item.body) + 1
        if self.found + item.count <= limits.found and self.size + size <= limits.size:
            self._paths.append(item.body)
            self.found += item.count
            self.size += size
            return None
        uris = item.body[1:-1].split(b'","')
        for taken, uri in enumerate(uris):
            full = self.found >= limits.found
            size = self.size + len(uri) + 3
            if full or (size > limits.size and self.found):
                item.body, item.count = b'"%b"' % b'","'.join(uris[taken:]), len(uris) - taken
                return self.full if full else "bytes"
            self.found += 1
            self.size = size
            self._paths.append(b'"%b"' % uri)
        return None

    def finish(self, truncated: str | None, cursor: str | None, unread: list[str]) -> bytes:
        """The page as JSON; the next one begins."""
        paths, self._paths = self._paths, []
        self.found = self.size = 0
        return b'{"paths":[%b],%b}' % (b",".join(paths), _page_members(truncated, cursor, unread))


def _page_members(truncated: str | None, cursor: str | None, unread: list[str]) -> bytes:
    members = {"truncated": truncated, "cursor": cursor, "unread": unread}
    return msgspec.json.encode(members)[1:-1]
