"""Errno texts in the output of programs, and the file or operation that each one is about.

The texts are those of glibc, as shells, core utilities, Python, Node, Rust, Go, Java and Ruby print them.
This module knows no policy. The number of matches and the bytes of a line around each are bounded, so that
the time is linear in the output.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

_HITS = 100
"""Matches of one text that are examined from each end of the output, where failures are printed."""
_BEFORE, _AFTER = 600, 400
"""Bytes of a line around an errno text: a minified line may be as long as the output."""

READ_ONLY, DENIED, NOT_PERMITTED, BUSY, NO_NETWORK = "EROFS", "EACCES", "EPERM", "EBUSY", "network"
EXISTS, IS_DIRECTORY, NOT_EMPTY = "EEXIST", "EISDIR", "ENOTEMPTY"

# In lower case, as glibc, Python (`[Errno N]`), Rust (`os error N`) and Node (`ENAME:`) print them.
_TEXTS = {
    b"read-only file system": READ_ONLY,
    b"[errno 30]": READ_ONLY,
    b"(os error 30)": READ_ONLY,
    b"erofs:": READ_ONLY,
    b"permission denied": DENIED,
    b"[errno 13]": DENIED,
    b"(os error 13)": DENIED,
    b"eacces:": DENIED,
    b"operation not permitted": NOT_PERMITTED,
    b"[errno 1]": NOT_PERMITTED,
    b"(os error 1)": NOT_PERMITTED,
    b"eperm:": NOT_PERMITTED,
    b" eperm ": NOT_PERMITTED,
    b"device or resource busy": BUSY,
    b"file exists": EXISTS,
    b"[errno 17]": EXISTS,
    b"(os error 17)": EXISTS,
    b"eexist:": EXISTS,
    b"is a directory": IS_DIRECTORY,
    b"[errno 21]": IS_DIRECTORY,
    b"(os error 21)": IS_DIRECTORY,
    b"eisdir:": IS_DIRECTORY,
    b"directory not empty": NOT_EMPTY,
    b"is not empty": NOT_EMPTY,
    b"is not an empty directory": NOT_EMPTY,
    b"could not resolve host": NO_NETWORK,
    b"unable to resolve host": NO_NETWORK,
    b"temporary failure in name resolution": NO_NETWORK,
    b"temporary failure resolving": NO_NETWORK,
    b"name or service not known": NO_NETWORK,
    b"getaddrinfo eai_again": NO_NETWORK,
    b"getaddrinfo enotfound": NO_NETWORK,
    b"network is unreachable": NO_NETWORK,
}

_ESCAPES = re.compile(r"\x1b(?:\[[0-9;?]*[A-Za-z]|\][^\x07\x1b]*(?:\x07|\x1b\\)?)")
_QUOTED = re.compile(r"(?<!\w)'([^']+)'|\"([^\"]+)\"|\u2018([^\u2019]+)\u2019|`([^`']+)[`']")
_QUOTES = "'\"`\u2018\u2019\u201c\u201d"
# One errno text in several spellings, as in `[Errno 13] Permission denied` and `… (os error 13)`.
_SPELLINGS = re.compile(
    r"(?:\[errno (?:1|13|17|21|30|39)\]|e(?:rofs|acces|perm|exist|isdir)\b:?|read-only file system"
    r"|permission denied|operation not permitted|device or resource busy|file (?:already )?exists"
    r"|is a directory|illegal operation on a directory|directory not empty"
    r"|\(os error (?:1|13|17|21|30|39)\)|\s)+",
    re.IGNORECASE,
)
_ERRNO_NUMBER = re.compile(r"\(\d+: $")  # apt: `(30: Read-only file system)`
_SEGMENT = re.compile(r":\s+| - ")
_FILE_WORDS = re.compile(
    r"access|chdir|chmod|copy|create|delete|directory|file|folder|from|into|link|lock|mkdir|modify|move|open"
    r"|path|read|remove|rename|rmdir|stat|symlink|to|touch|truncate|unlink|write",
    re.IGNORECASE,
)
"""Words that may precede a bare file name, and that are no file names themselves."""

_FILE_TOOLS = re.compile(
    r"\s*(?:cat|chattr|chgrp|chmod|chown|cp|ln|ls|mknod|mount|mv|rm|setcap|setfacl|touch)$"
)
_NETWORK_WORDS = re.compile(
    r"(?:^|[\s(<_.])(?:socket|connect|connection|bind|listen|dial|sendto|urlopen|getaddrinfo|tcp|udp|netlink)"
    r"(?:\(\d?\)|\(\.\.\.\))?(?: error| failed)?[\s(\[<]*$",
    re.IGNORECASE,
)
_DEV_TCP = re.compile(r"/dev/(?:tcp|udp)/[^\s:]+$")
_ELSEWHERE = re.compile(
    r"^\s*(?:remote|scp|sftp|rsync|\S+@[^\s:]+|docker):\s|error response from daemon", re.IGNORECASE
)
_WRITES = re.compile(r"can(?:no|')t create|: line \d+: |^tee: |EISDIR.*, open ")
_PYTHON_ERROR = re.compile(r"^\s*(?:PermissionError|OSError|socket\.error): \[Errno 1\] [A-Za-z ]*$")
_SOCKET_CALL = re.compile(r"\bsocket\b|\.(?:connect|bind|sendto|create_connection)\(")


def find_errno_texts(lower: bytes) -> list[tuple[int, int, str]]:
    """All errno texts as (start, end, kind), in order; of very many the first and the last.

    Args:
        lower: the output in lower case.
    """
    found = []
    for text, kind in _TEXTS.items():
        found += [(at, at + len(text), kind) for at in _places(lower, text)]
    return sorted(found)


def _places(lower: bytes, text: bytes) -> Iterator[int]:
    at = -1
    for _ in range(_HITS):
        at = lower.find(text, at + 1)
        if at < 0:
            return
        yield at
    first, at = at, len(lower)
    for _ in range(_HITS):
        at = lower.rfind(text, first + 1, at)
        if at < 0:
            return
        yield at


@dataclass(frozen=True, slots=True)
class ErrnoText:
    """An errno text and the text around it."""

    before: str
    """The part of the line before the errno text."""

    after: str
    """The part after the errno text and all its other spellings."""

    line: str
    """The line without color codes; a very long line is cut around the errno text."""

    above: Sequence[str]
    """Up to four lines above that are not blank; the nearest is last."""

    @classmethod
    def at(cls, output: bytes, start: int, end: int) -> ErrnoText:
        """The errno text from `start` to `end`."""
        far = max(0, start - _BEFORE)
        begin = max(output.rfind(b"\n", far, start) + 1, output.rfind(b"\r", far, start) + 1, far)
        before = _text(output[begin:start])
        rest = _text(output[start : end + _AFTER].partition(b"\n")[0])
        # Several spellings may follow each other: "EROFS: read-only file system, open …".
        spelled = _SPELLINGS.match(rest)
        after = rest[spelled.end() if spelled else 0 :]
        above = _text(output[max(0, begin - _BEFORE) : begin]).splitlines()
        return cls(before, after, before + rest, [line for line in above if line.strip()][-4:])

    @property
    def is_quoted(self) -> bool:
        """Whether the errno text alone is quoted: then the line is *about* the error."""
        return self.before[-1:] in tuple(_QUOTES) and self.after[:1] in tuple(_QUOTES)

    @property
    def is_about_writing(self) -> bool:
        """Whether a folder was certainly opened for writing: programs that read one report the same error."""
        return bool(_WRITES.search(self.line))

    @property
    def is_from_elsewhere(self) -> bool:
        """Whether another machine, or a daemon, reports the error."""
        return bool(_ELSEWHERE.search(self.line))


def _text(data: bytes) -> str:
    # As the file system decodes names, so that they are found in the policy's rules.
    return _ESCAPES.sub("", os.fsdecode(data))


def names_of(found: ErrnoText) -> list[str]:
    """The file names that the errno text is about, as the program printed them."""
    return [name for name in _names(found) if name and "\0" not in name]


def _names(found: ErrnoText) -> list[str]:
    names = _names_after(found.after)
    if names:
        return names
    before = _ERRNO_NUMBER.sub("", found.before).rstrip(" \t:([,")
    segments = [part for part in _SEGMENT.split(before) if part]
    for segment in reversed(segments[-2:]):
        # The first part of a longer line is the name of the program.
        if len(segments) > 1 and segment is segments[0]:
            break
        names = _names_in(segment)
        if names:
            return names
    # Rust's chain of errors: the path is in the line before "Caused by:".
    if not found.before.strip(" \t0123456789:") and found.above and found.above[-1].strip() == "Caused by:":
        return [name for line in found.above[-2:-1] for name in _names_in(line.split(": ", 1)[-1])]
    return []


def _names_after(after: str) -> list[str]:
    """`: '/a'` (Python, shells), `, open '/a'` and `, rename '/a' -> '/b'` (Node), ` @ open - /a` (Ruby)."""
    head = re.match(r"(?:\s*[:,]\s*(?:[a-z]+ )?|\s*@ \w+ - )(?=[/'\"\u2018`.])", after)
    if head is None:
        return []
    rest = after[head.end() :]
    if rest[0] in _QUOTES:
        return [name for name in _quoted(rest)[:2] if "\n" not in name]
    return [re.split(r"[\s:,;)]", rest, maxsplit=1)[0]]


def _names_in(segment: str) -> list[str]:
    quoted = _quoted(segment)
    if quoted:
        return quoted
    if segment.startswith("/"):
        return list(dict.fromkeys([segment, segment.split()[0].rstrip(",;")]))
    words = segment.split()
    names = [word.strip("(),;[]") for word in words if "/" in word.strip("(),;[]/") or word[:1] in "/."]
    last = words[-1] if words else ""
    plain = len(words) == 1 or (len(words) > 1 and _FILE_WORDS.fullmatch(words[-2]))
    if plain and last not in names and not last.isdigit() and not _FILE_WORDS.fullmatch(last):
        names.append(last)
    return [name[name.index("(") + 1 :] if "(/" in name else name for name in names]


def _quoted(text: str) -> list[str]:
    return [next(filter(None, match.groups())) for match in _QUOTED.finditer(text)]


def is_about_network(found: ErrnoText) -> bool:
    """Whether making or using a socket failed."""
    before = found.before.rstrip(" \t:")
    if _FILE_TOOLS.match(before.split(":", 1)[0]):
        return False
    if _PYTHON_ERROR.match(found.line):
        return any(_SOCKET_CALL.search(line) for line in found.above)
    return bool(_NETWORK_WORDS.search(before) or _DEV_TCP.search(before))
