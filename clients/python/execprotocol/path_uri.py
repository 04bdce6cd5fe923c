"""Path URIs: `file:` URIs of absolute paths on the executor (`docs/protocol.md`, "Path URIs").

A URI is decoded to a native path, a `str` in which bytes that are no UTF-8 are
surrogate escapes (`os.fsencode` gives the exact bytes back). Dot segments are resolved
textually, before anything is looked up. A well-formed URI that can name no path of this
host (another host, a Windows drive) decodes to `ForeignPath`: the file system methods
refuse it with -32600 and `process/start` with -32602, so that is not decided here.
"""

from __future__ import annotations

import os
import re

from execprotocol.path_text import escaped_uri

MAX_URI = 1 << 16
"""A path has 4096 bytes at most, each of which may take three characters. Megabytes of them would be decoded
for seconds, in which no other client is answered.
"""
_TOO_LONG = "/" + "x" * 4096
"""What a longer URI is decoded to: the kernel refuses it as it would refuse the whole."""

# What nearly every URI looks like; the long way round costs ten times as much.
_PLAIN = re.compile(r"file://((?:/(?!\.\.?(?:/|\Z))[A-Za-z0-9_.\-+@,=~ ]+)+)", re.ASCII)
_PLAIN_PATH = re.compile(r"[A-Za-z0-9_.\-+@,=~/]+", re.ASCII)
# Of the long way; compiled by `re` when somebody goes it.
_SCHEME = r"([A-Za-z][A-Za-z0-9+.\-]*):"
_DRIVE = r"[A-Za-z][:|]\Z"
_ESCAPE = rb"%([0-9A-Fa-f]{2})"
_SINGLE_DOT = frozenset({".", "%2e"})
_DOUBLE_DOT = frozenset({"..", ".%2e", "%2e.", "%2e%2e"})


class PathUriError(ValueError):
    """The text is no path URI; the message says why."""


class ForeignPath(str):
    """A path URI that names no path on this host; the string is the URI itself."""

    __slots__ = ()


def parse_path_uri(uri: str) -> str:
    """Decode a path URI to a native path, or to `ForeignPath`.

    A URI of more than 65536 characters is decoded to a path that is too long for the system, unread.

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
    segments = _resolve_dots(rest.lstrip("/") if not rest.startswith("/") else rest[1:])
    if segments and re.match(_DRIVE, segments[0]):
        return ForeignPath(uri)
    native = re.sub(_ESCAPE, _unescaped, ("/" + "/".join(segments)).encode())
    if b"\0" in native:
        raise PathUriError(f"'{uri}' is invalid on 'linux'")
    return os.fsdecode(native.rstrip(b"/") or b"/")


def _unescaped(escape: re.Match[bytes]) -> bytes:
    return bytes.fromhex(escape[1].decode())


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
