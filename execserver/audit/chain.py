"""The lines of an audit file, and the check of whole files.

Rules kept in this file:

1. A line is a JSON object with `n`, the number of the act from 1, `prev`, the hash of the line before, and at
   its end `hash`, the SHA-256 of the line without that member. So a changed line is found by itself, and a
   missing, added or moved one by the next.
2. Beside the newest file is its state, `FILE.end`: the number and the hash of the newest line. It shows that
   lines are missing at the end.

Hashes do not protect from a program that can write both files: it can compute all of them anew. Such a change
is found with a hash that is kept elsewhere.
"""

from __future__ import annotations

import glob
import hashlib
import os
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec

GENESIS = "0" * 64
"""The hash before the first line."""

STATE_SUFFIX = ".end"
NUMBER_DIGITS = 12
"""In the names of earlier files: FILE.000000000001 begins with act 1."""

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
    if _HASH.fullmatch(line[-_HASH_BYTES:]) is None:
        raise ValueError("this is no line of an audit file")
    body = line[:-_HASH_BYTES] + b"}"
    digest = line[-_HASH_BYTES:][len(b',"hash":"') : -len(b'"}')].decode()
    if hashlib.sha256(body).hexdigest() != digest:
        raise ValueError("the line was changed")
    try:
        place = msgspec.json.decode(body, type=_Place)
    except msgspec.MsgspecError as error:
        raise ValueError(f"this is no line of an audit file: {error}") from None
    return Link(place.n, digest), place.prev


def read_state(path: str) -> Link | None:
    """The state beside an audit file; None if there is none.

    Raises:
        OSError: it cannot be read.
        ValueError: it is no state.
    """
    try:
        with open(path + STATE_SUFFIX, "rb") as file:
            return msgspec.json.decode(file.read(4096), type=Link)
    except FileNotFoundError:
        return None
    except msgspec.MsgspecError as error:
        raise ValueError(f"{path}{STATE_SUFFIX} is no state of an audit file: {error}") from None


def earlier_files(path: str) -> list[str]:
    """The files that were replaced by a new one for their size, oldest first."""
    return sorted(glob.glob(glob.escape(path) + "." + "[0-9]" * NUMBER_DIGITS))


def verify(path: str) -> Verified:
    """Check an audit file, with the earlier files beside it and its state.

    Raises:
        AuditFault: one of them is not as it was written.
        OSError: one cannot be read.
    """
    first, last = 0, Link()
    lines = 0
    for name in (*earlier_files(path), path):
        lines = 0
        with open(name, "rb") as file:
            for lines, line in enumerate(file, 1):
                last = _checked(name, lines, line, last if first else None)
                first = first or last.n
    _check_end(path, lines, last)
    return Verified(first, last)


def _checked(path: str, number: int, line: bytes, before: Link | None) -> Link:
    if not line.endswith(b"\n"):
        raise AuditFault(path, number, "the line is cut off")
    try:
        link, previous = link_of(line[:-1])
    except ValueError as error:
        raise AuditFault(path, number, str(error)) from None
    if before is None:
        # Old files may have been moved elsewhere.
        if link.n == 1 and previous != GENESIS:
            raise AuditFault(
                path, number, "the line was written anew: it is the first act, and names another"
            )
        return link
    if link.n > before.n + 1:
        raise AuditFault(path, number, f"acts {before.n + 1} to {link.n - 1} are missing before it")
    if link.n <= before.n:
        raise AuditFault(path, number, f"act {link.n} is not in its place")
    if previous != before.hash:
        raise AuditFault(path, number, "the line before it was written anew")
    return link


def _check_end(path: str, lines: int, last: Link) -> None:
    try:
        state = read_state(path)
    except ValueError as error:
        raise AuditFault(path, lines + 1, str(error)) from None
    if state is None:
        if lines or os.path.getsize(path):
            raise AuditFault(path, lines + 1, f"{path}{STATE_SUFFIX} is missing, which names the last act")
    elif state.n > last.n:
        raise AuditFault(path, lines + 1, f"acts {last.n + 1} to {state.n} are missing at the end")
    elif state.n == last.n and state.hash != last.hash:
        raise AuditFault(path, lines, "the line was written anew")
    # A server that is killed between the two has written one line more than its state says.
    elif state.n < last.n - 1:
        raise AuditFault(
            path, lines, f"acts {state.n + 2} to {last.n} were added: the last one was {state.n}"
        )
