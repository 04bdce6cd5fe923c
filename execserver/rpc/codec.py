"""The envelope of the lean dialect: bytes to message and back. Pure.

One decoder at C speed does the parsing, and a scan refuses what it lets through: the same
member twice in one object, too much depth, too many values. The scan's fast path only counts:
every string of the message, name or value, has two quotation marks, so when there are twice as
many as strings were decoded, no member was dropped for its twin. Whatever does not add up (an
escaped quotation mark, a doubled member) is looked at member by member.

A large message is looked at before it is decoded (`_survey`), since what it is made of decides whether
that takes 40 ms or ten seconds, and all other connections wait meanwhile.

`docs/protocol.md`, "Envelope".
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec

from execprotocol.limits import (
    MAX_JSON_BARE_BYTES,
    MAX_JSON_DEPTH,
    MAX_JSON_MEMBERS,
    MAX_JSON_QUOTES,
    MAX_JSON_VALUES,
)

MAX_ID, MIN_ID = 2**63 - 1, -(2**63)

_EXCISE_BYTES = 128 << 10
"""From this size on, the base64 payload is cut out before the decoding: a string of 44 MB is
neither built nor copied."""

_PAYLOAD_WITHIN = 64 << 10
"""How far from the beginning a payload is looked for: behind a path and the like."""

_LARGE_BYTES = 2 * MAX_JSON_VALUES
"""Only from this size on a message can have too many values: each takes a byte, and a separator."""

_NAMED_BYTES = 1 << 20
"""From this size on it is not said which member is doubled: finding it takes up to a tenth of a second."""

_WINDOW_BYTES = 256 << 10
"""What is looked at in one piece, before a limit that is exceeded shows."""

_PAYLOAD = re.compile(rb'"(?:dataBase64|chunk)"[ \t\r\n]*:[ \t\r\n]*"')
_ARRAY = re.compile(rb"[ \t\r\n]*\[")
_PLACEHOLDER = os.urandom(16).hex()

_decode = msgspec.json.Decoder().decode
_encode = msgspec.json.Encoder().encode


class ParseError(ValueError):
    """The bytes are no message; the text says why."""


class Request(msgspec.Struct):
    """A call that wants an answer."""

    id: int | str
    method: str
    params: Any
    trace: Mapping[str, Any] | None = None
    """W3C trace context: `traceparent`, `tracestate`."""


class Notification(msgspec.Struct):
    """A call that wants none."""

    method: str


class Response(msgspec.Struct):
    """The answer to a request of ours."""

    id: Any


Message = Request | Notification | Response


class _Measured(NamedTuple):
    """What a decoded message has of everything."""

    depth: int
    values: int
    strings: int
    """Names and string values."""


def decode(data: bytes | bytearray) -> Message:
    """Decode one message.

    Raises:
        ParseError: it is no JSON object, breaks a limit, or has no usable members.
    """
    return classify(_decode_within_limits(data) if len(data) < _EXCISE_BYTES else decode_object(data))


def classify(members: dict[str, Any]) -> Message:
    """What the members of an object make it.

    Raises:
        ParseError: it has no usable members.
    """
    trace = None
    if "trace" in members:
        trace = members["trace"]
        check_trace(trace)
    if "method" in members:
        method = members["method"]
        if method.__class__ is not str:
            raise ParseError("invalid type: `method` must be a string")
        if "id" not in members:
            return Notification(method)
        request_id = members["id"]
        if request_id.__class__ is not str:
            _check_id(request_id)
        return Request(request_id, method, members.get("params"), trace)
    has_id = "id" in members
    if has_id and ("result" in members or "error" in members):
        _check_id(members["id"])
        return Response(members["id"])
    raise ParseError("missing field `error`")


def decode_object(data: bytes | bytearray) -> dict[str, Any]:
    """Decode one JSON object within the limits; a large base64 payload stays a `memoryview`."""
    if len(data) >= _EXCISE_BYTES:
        excised = _excise_payload(data)
        if excised is not None:
            return excised
    return _decode_within_limits(data)


def decode_any(data: bytes | bytearray) -> dict[str, Any] | list[Any]:
    """Decode an object, or an array as a standard client may send it, within the limits; a large
    base64 payload of an object stays a `memoryview`.

    Raises:
        ParseError: it is neither, or breaks a limit.
    """
    if len(data) >= _EXCISE_BYTES and not _ARRAY.match(data):
        return decode_object(data)
    strings = _survey(data) if len(data) >= _LARGE_BYTES else None
    value = _parse(data)
    if type(value) is not dict and type(value) is not list:
        raise ParseError("expected a JSON-RPC object or a batch of them")
    _check_limits(data, value, strings)
    return value


def encode_result(request_id: int | str, result: Any) -> bytes:
    """The reply to a request, from its result."""
    if request_id.__class__ is int:
        return b'{"id":%d,"result":%b}' % (request_id, _encode(result))
    return b'{"id":%b,"result":%b}' % (_encode(request_id), _encode(result))


def encode_error(
    request_id: int | str, code: int, message: str, data: Mapping[str, str] | None = None
) -> bytes:
    """The reply to a request that failed."""
    more = b"" if data is None else b',"data":' + _encode(printable_members(data))
    return b'{"id":%b,"error":{"code":%d,"message":%b%b}}' % (
        _encode(request_id),
        code,
        _encode(printable(message)),
        more,
    )


def printable_members(data: Mapping[str, str]) -> dict[str, str]:
    """The `data` of an error as JSON can carry it."""
    return {name: printable(text) for name, text in data.items()}


def printable(text: str) -> str:
    """The text as JSON can carry it: it may quote a name with bytes that are no UTF-8."""
    return text.encode("utf-8", "replace").decode()


def encode_notification(method: str, params: Mapping[str, Any]) -> bytes:
    """A notification."""
    return b'{"method":%b,"params":%b}' % (_encode(method), _encode(params))


def encode_json(value: Any) -> bytes:
    """Any value of a result."""
    return _encode(value)


def _check_id(value: Any) -> None:
    kind = type(value)
    if kind is not str and not (kind is int and MIN_ID <= value <= MAX_ID):
        raise ParseError("invalid type: `id` must be a string or a signed 64-bit integer")


def check_trace(trace: Any) -> None:
    """Whether a `trace` member has the right JSON types; texts are not looked at.

    Raises:
        ParseError: it has not.
    """
    if trace is None:
        return
    if not isinstance(trace, dict):
        raise ParseError("invalid type: `trace` must be an object")
    for name in ("traceparent", "tracestate"):
        if not isinstance(trace.get(name), (str, type(None))):
            raise ParseError(f"invalid type: `trace.{name}` must be a string")


def _decode_within_limits(data: bytes | bytearray) -> dict[str, Any]:
    strings = _survey(data) if len(data) >= _LARGE_BYTES else None
    value = _parse(data)
    if type(value) is not dict:
        raise ParseError("expected a JSON-RPC object")
    _check_limits(data, value, strings)
    return value


def _parse(data: bytes | bytearray) -> Any:
    try:
        return _decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ParseError(str(error)) from None
    except RecursionError:
        raise _too_deep() from None


def _check_limits(data: bytes | bytearray, value: dict[str, Any] | list[Any], strings: int | None) -> None:
    """Check what only a decoded value shows; `strings` are those of a large message."""
    if strings is not None:
        _check_large(data, value, strings)
        return
    if len(data) <= 2 * MAX_JSON_DEPTH and type(value) is dict and _is_plain(data, value):
        return
    if len(data) > 2 * MAX_JSON_DEPTH and data.count(b"{") + data.count(b"[") > MAX_JSON_DEPTH:
        measured = _measure(value)
        if measured.depth > MAX_JSON_DEPTH:
            raise _too_deep()
        decoded = measured.strings
    else:
        decoded = _count_strings(value)
    if data.count(b'"') != 2 * decoded:
        _refuse_duplicates(data)


def _check_large(data: bytes | bytearray, value: dict[str, Any] | list[Any], strings: int) -> None:
    measured = _measure(value)
    if measured.depth > MAX_JSON_DEPTH:
        raise _too_deep()
    if measured.values > MAX_JSON_VALUES:
        raise _too_many(MAX_JSON_VALUES, "JSON values")
    if measured.strings != strings:
        if len(data) < _NAMED_BYTES:
            _refuse_duplicates(data)
        raise ParseError("duplicate JSON object key")


def _survey(data: bytes | bytearray) -> int:
    """The number of strings in a message that is not decoded yet.

    Raises:
        ParseError: it certainly exceeds a limit.
    """
    strings = quotes = bare = commas = openings = colons = 0
    inside = escaped = False  # whether the next byte is in a string, and has an escaping backslash before it
    for start in range(0, len(data), _WINDOW_BYTES):
        end = start + _WINDOW_BYTES
        if inside and data.find(b'"', start, end) < 0 and not data.endswith(b"\\", start, end):
            escaped = False
            continue  # most of a long text goes this way, at the speed of memory
        window = bytes(memoryview(data)[start:end])
        quotes += window.count(b'"')
        if quotes > MAX_JSON_QUOTES:
            raise _too_many(MAX_JSON_QUOTES, "quotation marks")
        window, escaped = _without_escapes(window, escaped)
        pieces = window.split(b'"')  # every other one is in a string
        strings += (len(pieces) - inside) // 2
        structure = b'"'.join(pieces[inside::2])
        inside ^= len(pieces) % 2 == 0
        bare += len(structure)
        if bare > MAX_JSON_BARE_BYTES:
            raise _too_many(MAX_JSON_BARE_BYTES, "bytes outside of strings")
        commas += structure.count(b",")
        openings += structure.count(b"[") + structure.count(b"{")
        colons += structure.count(b":")
        if max(commas, openings) > MAX_JSON_VALUES:
            raise _too_many(MAX_JSON_VALUES, "JSON values")
        if colons > MAX_JSON_MEMBERS:
            raise _too_many(MAX_JSON_MEMBERS, "members of objects")
    return strings


def _without_escapes(window: bytes, escaped: bool) -> tuple[bytes, bool]:
    """Text without its escaped quotation marks and backslashes, and whether what follows it is escaped.

    Args:
        window: some of a message.
        escaped: whether its first byte is.
    """
    if escaped:
        window = window[1:]
    if b"\\" not in window:
        return window, False
    escapes_next = (len(window) - len(window.rstrip(b"\\"))) % 2 == 1
    return window.replace(b"\\\\", b"").replace(b'\\"', b""), escapes_next


def _too_deep() -> ParseError:
    return ParseError(f"recursion limit exceeded: more than {MAX_JSON_DEPTH} levels")


def _too_many(limit: int, things: str) -> ParseError:
    return ParseError(f"JSON-RPC message exceeds the limit of {limit} {things}")


def _is_plain(data: bytes | bytearray, value: dict[str, Any]) -> bool:
    """Whether a short message certainly has no member twice: a quick look, without one at each value.

    Each name in the text has a colon behind it, and `://` only ever stands within a string. So if the other
    colons are as many as names were decoded, none was dropped. Members of further objects are too many, too.
    """
    params = value.get("params")
    names = len(value) + (len(params) if params.__class__ is dict else 0)
    return data.count(b":") - data.count(b"://") == names


def _excise_payload(data: bytes | bytearray) -> dict[str, Any] | None:
    """Decode the message around its base64 payload, or None when it has none in the right place."""
    found = _PAYLOAD.search(data, 0, _PAYLOAD_WITHIN)
    if found is None:
        return None
    start = found.end()
    end = data.find(b'"', start)
    if end < start or data.find(b"\\", start, end) >= 0:
        return None
    value = _decode_within_limits(data[:start] + _PLACEHOLDER.encode() + data[end:])
    params = value.get("params")
    payload = memoryview(data)[start:end]
    if isinstance(params, dict):
        for name in ("dataBase64", "chunk"):
            if params.get(name) == _PLACEHOLDER:
                params[name] = payload
                return value
    return None


def _count_strings(value: Any) -> int:
    """Names and string values in a decoded message."""
    count = 0
    pending = [value]
    while pending:
        item = pending.pop()
        if item.__class__ is dict:
            count += len(item)
            item = item.values()
        for child in item:
            kind = child.__class__
            if kind is str:
                count += 1
            elif kind is dict or kind is list:
                pending.append(child)
    return count


def _measure(value: dict[str, Any] | list[Any]) -> _Measured:
    values, strings, depth = 1, 0, 0
    level: list[Any] = [value]
    while level:
        depth += 1
        below: list[Any] = []
        for item in level:
            values += len(item)
            if item.__class__ is dict:
                strings += len(item)
            for child in item.values() if item.__class__ is dict else item:
                kind = child.__class__
                if kind is str:
                    strings += 1
                elif kind is dict or kind is list:
                    below.append(child)
        level = below
    return _Measured(depth, values, strings)


def _refuse_duplicates(data: bytes | bytearray) -> None:
    def unique(pairs: list[tuple[str, Any]]) -> None:
        seen: set[str] = set()
        for name, _ in pairs:
            if name in seen:
                raise ParseError(f"duplicate JSON object key `{name}`")
            seen.add(name)

    json.loads(data, object_pairs_hook=unique)
