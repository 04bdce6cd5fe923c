"""The lines of an audit folder, and the check of them.

Rules kept in this file:

1. A line is a JSON object with `n`, the number of the act from 1, `prev`, the hash of the line before, and at
   its end `hash`, the SHA-256 of the line without that member. So a changed line is found by itself, and a
   missing, added or moved one by the next.
2. The name of a file is the number of its first act. Beside the files is their state, `end`: the number and
   the hash of the newest line. It shows that lines are missing at the end.

Hashes do not protect from a program that can write the files and the state: it can compute all of them anew.
Such a change is found with a hash that is kept elsewhere.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec

GENESIS = "0" * 64
"""The hash before the first line."""

STATE_NAME = "end"

_FILE_NAME = re.compile(r"([0-9]{12})\.jsonl")
_HASH = re.compile(rb',"hash":"([0-9a-f]{64})"\}')
_HASH_BYTES = len(b',"hash":""}') + 64

_encode = msgspec.json.Encoder().encode


class AuditFault(Exception):
    """An audit file is not as it was written.

    Args:
        path: the file.
        line: the first line at fault, from 1; the one after the last if lines are missing at the end.
        reason: what is wrong with it.
    """

    def __init__(self, path: str, line: int, reason: str) -> None:
        super().__init__(f"{path}, line {line}: {reason}")
        self.path = path
        self.line = line
        self.reason = reason


class Link(msgspec.Struct, frozen=True):
    """The place of a line in the chain."""

    n: int = 0
    hash: str = GENESIS


class State(msgspec.Struct, frozen=True):
    """The newest line."""

    link: Link = Link()
    missed: int = 0
    """How many acts after it could not be written down."""
    unfinished: int = 0
    """How many acts are going on, and how many were when earlier servers were killed, if no line says so."""


class Verified(NamedTuple):
    """Files that are as they were written."""

    first: int
    """The number of the first act; 0 if there is none."""
    last: Link


def sealed(members: Mapping[str, Any], before: Link) -> tuple[bytes, Link]:
    """A line with its end, for the act after another one, and its place.

    Args:
        members: the act, without `n`, `prev` and `hash`.
        before: the line before.
    """
    body = _encode({"n": before.n + 1, **members, "prev": before.hash})
    digest = hashlib.sha256(body).hexdigest()
    return body[:-1] + b',"hash":"%b"}\n' % digest.encode(), Link(before.n + 1, digest)


class _Place(msgspec.Struct):
    n: int
    prev: str


def link_of(line: bytes) -> tuple[Link, str]:
    """The place of a line without its end, and the hash of the line before.

    Raises:
        ValueError: it is no line of an audit file, or was changed; the text says which.
    """
    found = _HASH.fullmatch(line[-_HASH_BYTES:])
    if found is None:
        raise ValueError("this is no line of an audit file")
    body, digest = line[:-_HASH_BYTES] + b"}", found[1].decode()
    if hashlib.sha256(body).hexdigest() != digest:
        raise ValueError("the line was changed")
    try:
        place = msgspec.json.decode(body, type=_Place)
    except msgspec.MsgspecError as error:
        raise ValueError(f"this is no line of an audit file: {error}") from None
    return Link(place.n, digest), place.prev


def file_name(first: int) -> str:
    """The name of the file that begins with an act."""
    return f"{first:012d}.jsonl"


def file_names(folder: str | int) -> list[str]:
    """The names of the files in a folder, oldest first.

    Raises:
        OSError: the folder cannot be read.
    """
    return sorted(filter(_FILE_NAME.fullmatch, os.listdir(folder)))


def decode_state(content: bytes) -> State | None:
    """The content of `end`; None if it is empty, as before the first act.

    Raises:
        ValueError: it is no state.
    """
    if not content:
        return None
    try:
        return msgspec.json.decode(content, type=State)
    except msgspec.MsgspecError as error:
        raise ValueError(f"{STATE_NAME} is no state of an audit folder: {error}") from None


def verify(path: str) -> Verified:
    """Check all files of an audit folder, or only one of them. Acts may be written meanwhile.

    Raises:
        AuditFault: a file is not as it was written.
        OSError: one cannot be read.
    """
    if not os.path.isdir(path):
        check = _Check(None)
        check.file(path)
        return Verified(check.first, check.last)
    check = _Check(_read_state(path))
    for name in file_names(path):
        check.file(f"{path}/{name}")
    check.end(path, _read_state(path))
    return Verified(check.first, check.last)


def _read_state(folder: str) -> State | None:
    path = f"{folder}/{STATE_NAME}"
    try:
        with open(path, "rb") as file:
            return decode_state(file.read(4096))
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise AuditFault(path, 1, str(error)) from None


class _Check:
    """A check of files, in their order.

    Args:
        state: the state before they were read.
    """

    def __init__(self, state: State | None) -> None:
        self._known = Link() if state is None else state.link
        self._path, self._lines = "", 0
        self._follows = False
        """Whether it is known what comes before the next line."""
        self.first, self.last = 0, Link()

    def file(self, path: str) -> None:
        """Check the next file."""
        self._path, self._lines = path, 0
        named = _FILE_NAME.fullmatch(os.path.basename(path))
        if named is not None and not self._follows:
            self.last = Link(int(named[1]) - 1)  # older files may have been moved elsewhere
            self._follows = True
        with open(path, "rb") as file:
            for line in file:
                self._lines += 1
                self._line(line)

    def _line(self, line: bytes) -> None:
        if not line.endswith(b"\n"):
            raise self._fault("the line is cut off")
        try:
            link, previous = link_of(line[:-1])
        except ValueError as error:
            raise self._fault(str(error)) from None
        before = self.last
        if self._follows and link.n > before.n + 1:
            raise self._fault(f"acts {before.n + 1} to {link.n - 1} are missing before it")
        if link.n <= before.n:
            raise self._fault(f"act {link.n} is not in its place")
        if self.first and previous != before.hash:
            raise self._fault("the line before it was written anew")
        if link.n == 1 and previous != GENESIS:
            raise self._fault("the line was written anew: it is the first act, and names another")
        if link.n == self._known.n and link.hash != self._known.hash:
            raise self._fault("the line was written anew")
        self.first = self.first or link.n
        self.last, self._follows = link, True

    def end(self, folder: str, state: State | None) -> None:
        """Compare the end with the states before and after the files were read."""
        self._path = self._path or folder
        self._lines += 1
        if state is None:
            if self.first:
                raise self._fault(f"{folder}/{STATE_NAME} is missing, which names the last act")
        elif self._known.n > self.last.n:
            raise self._fault(f"acts {self.last.n + 1} to {self._known.n} are missing at the end")
        elif self.last.n > state.link.n + 1:
            # A server that was killed has written one line more than its state says.
            self._lines -= self.last.n - state.link.n - 1
            raise self._fault(f"acts from {state.link.n + 2} on were added")

    def _fault(self, reason: str) -> AuditFault:
        return AuditFault(self._path, self._lines, reason)
