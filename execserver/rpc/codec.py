"""The codec of messages: bytes to message and back, within the limits of the wire. No I/O.

msgspec decodes at C speed. A check refuses what msgspec accepts and the wire does not: a duplicate member in
an object, too many levels, too many values. Its fast path only counts: each string of the message, name or
value, has two quotation marks. So if there are twice as many marks as decoded strings, no duplicate was
dropped. If the numbers differ (an escaped quotation mark, a duplicate), each member is checked.

A large message is surveyed before it is decoded (`_survey`). Its structure decides whether decoding takes 40
ms or ten seconds, and all other connections wait meanwhile.

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

_CUT_BYTES = 128 << 10
"""From this size on, the base64 payload is cut out before decoding, so that a string of 44 MB is neither
built nor copied."""

_PAYLOAD_WITHIN = 64 << 10
"""How far from its beginning a message is searched for a payload: behind a path and the like."""

_LARGE_BYTES = 2 * MAX_JSON_VALUES
"""Smaller messages cannot have too many values: each takes a byte and a separator."""

_NAMED_BYTES = 1 << 20
"""From this size on, an error does not name the duplicate member: to find it takes up to a tenth of a
second."""

_WINDOW_BYTES = 256 << 10
"""The piece of a message that is surveyed before limits are checked."""

_PAYLOAD = re.compile(rb'"(?:dataBase64|chunk)"[ \t\r\n]*:[ \t\r\n]*"')
_ARRAY = re.compile(rb"[ \t\r\n]*\[")
_PLACEHOLDER = os.urandom(16).hex()

_decode = msgspec.json.Decoder().decode
_encode = msgspec.json.Encoder().encode


class ParseError(ValueError):
    """The bytes are not a message; the text says why."""


class Request(msgspec.Struct):
    """A call with an answer."""

    id: int | str
    method: str
    params: Any
    trace: Mapping[str, Any] | None = None
    """W3C trace context: `traceparent`, `tracestate`."""


class Notification(msgspec.Struct):
    """A call without an answer."""

    method: str


class Response(msgspec.Struct):
    """An answer to a request of the server."""

    id: Any
    result: Any
    error: Any
    is_error: bool


DecodedMessage = Request | Notification | Response


class _Measured(NamedTuple):
    """Counts of a decoded message."""

    depth: int
    values: int
    strings: int
    """Names and string values."""


def decode(data: bytes | bytearray) -> DecodedMessage:
    """Decode one message.

    Raises:
        ParseError: not a JSON object, or one that breaks a limit or lacks usable members.
    """
    return classify(_decode_within_limits(data) if len(data) < _CUT_BYTES else decode_object(data))


def classify(members: dict[str, Any]) -> DecodedMessage:
    """The message that an object with these members is.

    Raises:
        ParseError: it lacks usable members.
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
    if is_response(members):
        _check_id(members["id"])
        return response(members)
    raise ParseError("missing field `error`")


def is_response(members: Mapping[str, Any]) -> bool:
    """Whether an object with these members is an answer."""
    return "method" not in members and "id" in members and ("result" in members or "error" in members)


def response(members: Mapping[str, Any]) -> Response:
    """The answer with these members; one with a result and an error is an error."""
    return Response(members["id"], members.get("result"), members.get("error"), "error" in members)


def decode_object(data: bytes | bytearray) -> dict[str, Any]:
    """Decode one JSON object within the limits; a large base64 payload stays a `memoryview`."""
    if len(data) >= _CUT_BYTES:
        decoded = _cut_payload(data)
        if decoded is not None:
            return decoded
    return _decode_within_limits(data)


def decode_any(data: bytes | bytearray) -> dict[str, Any] | list[Any]:
    """Decode an object, or an array (a JSON-RPC 2.0 batch), within the limits; a large base64 payload of an
    object stays a `memoryview`.

    Raises:
        ParseError: neither of them, or one that breaks a limit.
    """
    if len(data) >= _CUT_BYTES and not _ARRAY.match(data):
        return decode_object(data)
    strings = _survey(data) if len(data) >= _LARGE_BYTES else None
    value = _parse(data)
    if type(value) is not dict and type(value) is not list:
        raise ParseError("expected a JSON-RPC object or a batch of them")
    _check_limits(data, value, strings)
    return value


def encode_result(request_id: int | str, result: Any) -> bytes:
    """The reply with the result of a request."""
    if request_id.__class__ is int:
        return b'{"id":%d,"result":%b}' % (request_id, _encode(result))
    return b'{"id":%b,"result":%b}' % (_encode(request_id), _encode(result))


def encode_error(
    request_id: int | str, code: int, message: str, data: Mapping[str, str] | None = None
) -> bytes:
    """The reply with the error of a request."""
    more = b"" if data is None else b',"data":' + _encode(printable_members(data))
    return b'{"id":%b,"error":{"code":%d,"message":%b%b}}' % (
        _encode(request_id),
        code,
        _encode(printable(message)),
        more,
    )


def printable_members(data: Mapping[str, str]) -> dict[str, str]:
    """The `data` of an error, made valid for JSON."""
    return {name: printable(text) for name, text in data.items()}


def printable(text: str) -> str:
    """The text, made valid for JSON: it may quote a name with bytes that are not UTF-8."""
    return text.encode("utf-8", "replace").decode()


def encode_request(request_id: int, method: str, params: Mapping[str, Any]) -> bytes:
    """A request of the server."""
    return b'{"id":%d,"method":%b,"params":%b}' % (request_id, _encode(method), _encode(params))


def encode_notification(method: str, params: Mapping[str, Any]) -> bytes:
    """A notification."""
    return b'{"method":%b,"params":%b}' % (_encode(method), _encode(params))


def encode_json(value: Any) -> bytes:
    """Any value as JSON."""
    return _encode(value)


def _check_id(value: Any) -> None:
    kind = type(value)
    if kind is not str and not (kind is int and MIN_ID <= value <= MAX_ID):
        raise ParseError("invalid type: `id` must be a string or a signed 64-bit integer")


def check_trace(trace: Any) -> None:
    """Check the JSON types of a `trace` member, not its texts.

    Raises:
        ParseError: a type is wrong.
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
    """Check the limits that only a decoded value shows; `strings` is their number in a large message."""
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
        ParseError: the message certainly exceeds a limit.
    """
    strings = quotes = bare = commas = openings = colons = 0
    inside = escaped = False  # whether the next byte is in a string, and has an escaping backslash before it
    for start in range(0, len(data), _WINDOW_BYTES):
        end = start + _WINDOW_BYTES
        if inside and data.find(b'"', start, end) < 0 and not data.endswith(b"\\", start, end):
            escaped = False
            continue  # most of a long text: at the speed of memory
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
    """A window without its escaped quotation marks and backslashes, and whether the byte behind it is
    escaped.

    Args:
        window: a piece of a message.
        escaped: whether its first byte is escaped.
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
    """Whether a short message certainly has no duplicate member, without a look at each value.

    Each name in the text is followed by a colon, and `://` only occurs within a string. So if there are as
    many other colons as decoded names, no duplicate was dropped. Members of nested objects add colons and
    fail the check.
    """
    params = value.get("params")
    names = len(value) + (len(params) if params.__class__ is dict else 0)
    return data.count(b":") - data.count(b"://") == names


def _cut_payload(data: bytes | bytearray) -> dict[str, Any] | None:
    """Decode the message around its base64 payload; None if it has none in the right place."""
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
    """The number of names and string values in a decoded message."""
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
