"""Frames of the rendezvous: one protobuf message in each WebSocket message.

The schema is small and frozen, so it is encoded and decoded here, and tested against protobuf's own runtime.
Unknown members are skipped, for later versions. A relay forwards the received bytes and never encodes a
frame again.

    RelayMessageFrame: 1 version = 1, 2 stream_id, 3 ack, 4 ack_bits, and one of
        5 data {1 seq, 2 segment_index, 3 segment_count, 4 payload}, 6 ack_frame, 7 resume {1 next_seq},
        8 reset {1 reason}, 9 heartbeat, 10 handshake {1 payload}

`docs/protocol.md`, "Relay".
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache
from typing import Literal, NamedTuple

MAX_FRAME_BYTES = 256 << 10
"""Limit of a WebSocket message. The stock peers drop the socket above it."""

MAX_STREAM_ID_BYTES = 128
MAX_REASON_CHARACTERS = 200
"""A longer reason of a reset is cut: it goes into logs."""

PROTOCOL_ERROR = "noise_relay_protocol_error"
"""The reason of an executor's reset for any fault of a stream."""

Kind = Literal["data", "ack", "resume", "reset", "heartbeat", "handshake"]

_KINDS: dict[int, Kind] = {5: "data", 6: "ack", 7: "resume", 8: "reset", 9: "heartbeat", 10: "handshake"}
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_VERSION = b"\x08\x01"
_VARINT_BYTES = rb"([\x80-\xff]{0,4}[\x00-\x7f])"
_USUAL_DATA = re.compile(
    rb"\x08\x01\x12\x24([0-9A-Za-z-]{36})\x2a"  # version, a UUID's length, the UUID, data
    + _VARINT_BYTES
    + rb"(?:\x08"  # seq, left out when 0
    + _VARINT_BYTES
    + rb")?\x18\x01\x22"  # segment_count, payload
    + _VARINT_BYTES,
    re.DOTALL,
)
"""The head of a data frame as all peers write it: twice as fast as decoding member by member."""


class FrameError(Exception):
    """The message is not a valid frame, and is to be dropped. Other frames are not affected."""


class Frame(NamedTuple):
    """One frame. Data has `payload` and `seq`, a handshake `payload`, a reset `reason`."""

    stream_id: str
    kind: Kind
    payload: memoryview | bytes = b""
    seq: int = 0
    reason: str = ""


def decode(message: bytes) -> Frame:
    """Decode a frame. Its payload is a view of the message, not a copy.

    Raises:
        FrameError: it is undecodable or empty, or has another version, no stream id, or data in segments.
    """
    usual = _USUAL_DATA.match(message)
    if usual is not None:
        place, size = usual.end(), len(message)
        # If the lengths do not lead to the end of the message, it is another frame.
        if place < size and usual[4] == _varint(size - place) and usual[2] == _varint(size - usual.end(2)):
            seq = _read_varint(usual[3], 0)[0] & 0xFFFFFFFF if usual[3] is not None else 0
            return Frame(str(usual[1], "ascii"), "data", memoryview(message)[place:], seq)
    return _decode_any(message)


def _decode_any(message: bytes) -> Frame:
    """Decode a frame with any members in any order."""
    view = memoryview(message)
    version = 0
    stream_id: bytes | memoryview = b""
    kind: Kind | None = None
    body: memoryview = view[:0]
    for field, value in _fields(view):
        if field == 1 and isinstance(value, int):
            version = value & 0xFFFFFFFF
        elif field == 2 and not isinstance(value, int):
            stream_id = value
        elif field in _KINDS and not isinstance(value, int):
            # protobuf would merge a repeated member; peers do not send that.
            kind, body = _KINDS[field], value
    if version != 1:
        raise FrameError(f"a frame of version {version}")
    if kind is None:
        raise FrameError("a frame with nothing in it that is known here")
    name = _stream_id(stream_id)
    if kind == "data":
        return _data(name, body)
    if kind == "handshake":
        return Frame(name, kind, _only_member(body))
    if kind == "reset":
        text = bytes(_only_member(body)).decode(errors="replace")
        return Frame(name, kind, reason=text[:MAX_REASON_CHARACTERS])
    return Frame(name, kind)


def data(stream_id: str, seq: int, payload: bytes) -> bytes:
    """A frame with one sealed record.

    Args:
        stream_id: of the stream.
        seq: 0, 1, 2 … in each direction, below 2**32.
        payload: not empty.
    """
    # segment_index is 0, which protobuf leaves out; segment_count 1.
    head = (b"\x08" + _varint(seq) if seq else b"") + b"\x18\x01\x22" + _varint(len(payload))
    size = len(head) + len(payload)
    return b"".join((_begin(stream_id), b"\x2a", _varint(size), head, payload))


def handshake(stream_id: str, payload: bytes) -> bytes:
    """A frame with a handshake message."""
    body = b"\x0a" + _varint(len(payload)) + payload
    return _begin(stream_id) + b"\x52" + _varint(len(body)) + body


def resume(stream_id: str, next_seq: int = 0) -> bytes:
    """The first frame of a harness, which claims the stream id."""
    body = b"\x08" + _varint(next_seq) if next_seq else b""
    return _begin(stream_id) + b"\x3a" + _varint(len(body)) + body


def reset(stream_id: str, reason: str) -> bytes:
    """The last frame of a stream. The reason must not be empty."""
    text = reason.encode()
    body = b"\x0a" + _varint(len(text)) + text
    return _begin(stream_id) + b"\x42" + _varint(len(body)) + body


def printable(text: str, most: int) -> str:
    """The printable ones of the first `most` characters, for errors and logs: no control codes."""
    return "".join(character for character in text[:most] if character.isprintable())


@lru_cache(maxsize=256)  # for the streams that send now
def _begin(stream_id: str) -> bytes:
    name = stream_id.encode()
    return _VERSION + b"\x12" + _varint(len(name)) + name


def _stream_id(raw: bytes | memoryview) -> str:
    if not 1 <= len(raw) <= MAX_STREAM_ID_BYTES:
        raise FrameError(f"a stream id has 1 to {MAX_STREAM_ID_BYTES} bytes")
    try:
        name = str(raw, "utf-8")
    except UnicodeDecodeError:
        raise FrameError("a stream id that is no UTF-8") from None
    if name != name.strip():
        raise FrameError("a stream id with blanks around it")
    return name


def _data(name: str, body: memoryview) -> Frame:
    seq = index = count = 0
    payload: memoryview | bytes = b""
    for field, value in _fields(body):
        if isinstance(value, int):
            if field == 1:
                seq = value & 0xFFFFFFFF
            elif field == 2:
                index = value & 0xFFFFFFFF
            elif field == 3:
                count = value & 0xFFFFFFFF
        elif field == 4:
            payload = value
    if index != 0 or count != 1 or not payload:
        raise FrameError("data that is empty or comes in segments")
    return Frame(name, "data", payload, seq)


def _only_member(body: memoryview) -> memoryview | bytes:
    """Member 1; if it is repeated, the last one, as in protobuf."""
    member: memoryview | bytes = b""
    for field, value in _fields(body):
        if field == 1 and not isinstance(value, int):
            member = value
    return member


def _fields(view: memoryview) -> Iterator[tuple[int, int | memoryview]]:
    """The members of a message: numbers, and bytes as views. Members of other types are checked and skipped.

    Raises:
        FrameError: the message is cut, or is not protobuf.
    """
    place, end = 0, len(view)
    while place < end:
        key, place = _read_varint(view, place)
        field, wire = key >> 3, key & 7
        if not 0 < field < 1 << 29:
            raise FrameError(f"a member with the number {field}")
        if wire == _VARINT:
            value, place = _read_varint(view, place)
            yield field, value
            continue
        if wire == _BYTES:
            size, place = _read_varint(view, place)
        elif wire in (_FIXED64, _FIXED32):
            size = 8 if wire == _FIXED64 else 4
        else:
            raise FrameError(f"a member of the unknown wire type {wire}")
        if size > end - place:
            raise FrameError("the frame ends within a member")
        if wire == _BYTES:
            yield field, view[place : place + size]
        place += size


def _read_varint(view: memoryview | bytes, place: int) -> tuple[int, int]:
    value = shift = 0
    try:
        while True:
            byte = view[place]
            place += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value & 0xFFFFFFFFFFFFFFFF, place
            shift += 7
            if shift > 63:
                raise FrameError("a number of more than ten bytes")
    except IndexError:
        raise FrameError("the frame ends within a number") from None


def _varint(value: int) -> bytes:
    if value < 0x80:
        return bytes((value,))
    encoded = bytearray()
    while value >= 0x80:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)
