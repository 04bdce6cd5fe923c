"""Path URIs: `file:` URIs of absolute paths on the executor (`docs/protocol.md`, "Path URIs").

A URI is decoded to a native path, a `str` in which bytes that are not UTF-8 are surrogate escapes
(`os.fsencode` returns the exact bytes). Dot segments are resolved textually. A well-formed URI that cannot
name a path of this host (another host, a Windows drive) is decoded to `ForeignPath`, which callers refuse:
file system methods with -32600, `process/start` with -32602.
"""

from __future__ import annotations

import os
import re

from execprotocol.path_text import escaped_uri

MAX_URI = 1 << 14
"""Limit for decoding. A path has at most 4096 bytes, each of at most three characters; decoding megabytes,
also a thousand URIs of one request, would block the server for seconds."""
_TOO_LONG = "/" + "x" * 4096
"""The path of a longer URI: too long for the kernel, as the whole would be."""

# The form of nearly every URI; the general way takes ten times as long.
_PLAIN = re.compile(r"file://((?:/(?!\.\.?(?:/|\Z))[A-Za-z0-9_.\-+@,=~ ]+)+)", re.ASCII)
_PLAIN_PATH = re.compile(r"[A-Za-z0-9_.\-+@,=~/]+", re.ASCII)
# For the general way; compiled by `re` at the first use.
_SCHEME = r"([A-Za-z][A-Za-z0-9+.\-]*):"
_DRIVE = r"[A-Za-z][:|]\Z"
_ESCAPE = rb"%(?=[0-9A-Fa-f]{2})"
_ANY_DOTS = r"/(?:\.|%2[Ee]){1,2}(?:/|\Z)"
_SINGLE_DOT = frozenset({".", "%2e"})
_DOUBLE_DOT = frozenset({"..", ".%2e", "%2e.", "%2e%2e"})


class PathUriError(ValueError):
    """The text is not a path URI. The message says why."""


class ForeignPath(str):
    """A path URI that cannot name a path on this host. The string is the URI."""

    __slots__ = ()


def parse_path_uri(uri: str) -> str:
    """Decode a path URI to a native path, or to `ForeignPath`.

    A URI of more than 16384 characters is not parsed; the result is a path that is too long for the system.

    Raises:
        PathUriError: the text is relative, has another scheme, a query or a fragment,
            or holds a NUL byte.
    """
    if len(uri) > MAX_URI:
        return _TOO_LONG
    plain = _PLAIN.fullmatch(uri)
    if plain is not None:
        return plain[1]
    text = uri.strip("".join(map(chr, range(0x21)))).translate({9: None, 10: None, 13: None})
    scheme = re.match(_SCHEME, text)
    if scheme is None:
        raise PathUriError("invalid URI: relative URL without a base")
    if scheme[1].lower() != "file":
        raise PathUriError(f"unsupported path URI scheme `{scheme[1].lower()}`")
    rest, hash_mark, _ = text[scheme.end() :].partition("#")
    rest, question_mark, _ = rest.partition("?")
    if question_mark:
        raise PathUriError("query parameters are not allowed in path URIs")
    if hash_mark:
        raise PathUriError("fragments are not allowed in path URIs")
    rest = rest.replace("\\", "/")
    if rest.startswith("//"):
        host, slash, path = rest[2:].partition("/")
        if host and host.lower() != "localhost":
            return ForeignPath(uri)
        rest = slash + path
    path = rest if rest.startswith("/") else f"/{rest}"
    if re.search(_ANY_DOTS, path):
        path = "/" + "/".join(_resolve_dots(path[1:]))
    if re.match(_DRIVE, path[1:].partition("/")[0]):
        return ForeignPath(uri)
    native = _unescaped(path.encode())
    if b"\0" in native:
        raise PathUriError(f"'{uri}' is invalid on 'linux'")
    return os.fsdecode(native.rstrip(b"/") or b"/")


def _unescaped(path: bytes) -> bytes:
    """A path without backslashes, with its escapes as the bytes that they stand for.

    Python decodes `\\x41` several times as fast as a function that is called for each escape.
    """
    if b"%" not in path:
        return path
    return re.sub(_ESCAPE, rb"\\x", path).decode("unicode_escape").encode("latin-1")


def _resolve_dots(path: str) -> list[str]:
    resolved: list[str] = []
    for segment in path.split("/"):
        lowered = segment.lower()
        if lowered in _DOUBLE_DOT:
            if resolved:
                resolved.pop()
        elif lowered not in _SINGLE_DOT:
            resolved.append(segment)
    return resolved


def path_to_uri(path: str) -> str:
    """Encode an absolute native path as a path URI, byte for byte."""
    return "file://" + path if _PLAIN_PATH.fullmatch(path) else escaped_uri(path)
