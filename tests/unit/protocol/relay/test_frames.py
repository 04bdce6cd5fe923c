"""The relay's envelope against the real protobuf runtime, whose schema is built here field by field; and what
a peer must not be able to do with bytes of its own choice.
"""

from __future__ import annotations

from itertools import permutations
from typing import Any

import pytest
from google.protobuf import (  # type: ignore[import-untyped]  # its stubs are not installed
    descriptor_pb2,
    descriptor_pool,
    message_factory,
)
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
from hypothesis import example, given, settings
from hypothesis import strategies as st

from execprotocol.relay import frames
from execprotocol.relay.frames import MAX_FRAME_BYTES, PROTOCOL_ERROR, Frame, FrameError

STREAM = "3f0e5a7c-94a2-4d6e-8f2b-7a0c3e1d5b69"
Types = descriptor_pb2.FieldDescriptorProto

SCHEMA: dict[str, list[tuple[int, str, int, str]]] = {
    "Data": [
        (1, "seq", Types.TYPE_UINT32, ""),
        (2, "segment_index", Types.TYPE_UINT32, ""),
        (3, "segment_count", Types.TYPE_UINT32, ""),
        (4, "payload", Types.TYPE_BYTES, ""),
    ],
    "AckFrame": [],
    "Resume": [(1, "next_seq", Types.TYPE_UINT32, "")],
    "Reset": [(1, "reason", Types.TYPE_STRING, "")],
    "Heartbeat": [],
    "Handshake": [(1, "payload", Types.TYPE_BYTES, "")],
    "RelayMessageFrame": [
        (1, "version", Types.TYPE_UINT32, ""),
        (2, "stream_id", Types.TYPE_STRING, ""),
        (3, "ack", Types.TYPE_UINT32, ""),
        (4, "ack_bits", Types.TYPE_UINT32, ""),
        (5, "data", Types.TYPE_MESSAGE, "Data"),
        (6, "ack_frame", Types.TYPE_MESSAGE, "AckFrame"),
        (7, "resume", Types.TYPE_MESSAGE, "Resume"),
        (8, "reset", Types.TYPE_MESSAGE, "Reset"),
        (9, "heartbeat", Types.TYPE_MESSAGE, "Heartbeat"),
        (10, "handshake", Types.TYPE_MESSAGE, "Handshake"),
    ],
}
"""number, name, type and, of a message, which; the messages of the frame are its one `oneof`."""


def classes(*, shallow: bool) -> dict[str, Any]:
    """What protobuf makes of the schema.

    Args:
        shallow: what we do not look into, or read more gently than protobuf does, is just bytes there.
    """
    package = "codex.exec_server.relay.v1"
    file = descriptor_pb2.FileDescriptorProto(name="relay.proto", package=package, syntax="proto3")
    for name, members in SCHEMA.items():
        message = file.message_type.add(name=name)
        for number, member, kind, of in members:
            if shallow and kind in (Types.TYPE_MESSAGE, Types.TYPE_STRING):
                kind = Types.TYPE_BYTES
            field = message.field.add(name=member, number=number, type=kind, label=Types.LABEL_OPTIONAL)
            if of:
                field.oneof_index = 0
            if kind == Types.TYPE_MESSAGE:
                field.type_name = f".{package}.{of}"
        if any(of for *_, of in members):
            message.oneof_decl.add(name="body")
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{package}.{name}"))
        for name in SCHEMA
    }


Envelope = classes(shallow=False)["RelayMessageFrame"]
SHALLOW = classes(shallow=True)


def encoded(stream_id: str = STREAM, version: int = 1, **members: Any) -> bytes:
    """What the protobuf runtime makes of a frame."""
    encoding: bytes = Envelope(version=version, stream_id=stream_id, **members).SerializeToString()
    return encoding


def data_member(payload: bytes = b"record", seq: int = 0, index: int = 0, count: int = 1) -> dict[str, Any]:
    return {"seq": seq, "segment_index": index, "segment_count": count, "payload": payload}


def varint(number: int) -> bytes:
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*out, number])


def field(number: int, wire_type: int, content: bytes) -> bytes:
    """One field by hand, for what a runtime does not write."""
    length = varint(len(content)) if wire_type == 2 else b""
    return varint(number << 3 | wire_type) + length + content


def plain(frame: Frame) -> Frame:
    """The same frame with a payload that compares as bytes."""
    return frame._replace(payload=bytes(frame.payload))


stream_ids = st.text(st.characters(codec="ascii", categories=["L", "N"]), min_size=1, max_size=128)
numbers = st.integers(0, 2**32 - 1)
payloads = st.binary(min_size=1, max_size=500)
reasons = st.text(min_size=1, max_size=50)

ONE_OF_EACH: dict[str, tuple[bytes, dict[str, Any], Frame]] = {
    "data": (
        frames.data(STREAM, 7, b"record"),
        {"data": data_member(seq=7)},
        Frame(STREAM, "data", b"record", seq=7),
    ),
    "handshake": (
        frames.handshake(STREAM, b"message"),
        {"handshake": {"payload": b"message"}},
        Frame(STREAM, "handshake", b"message"),
    ),
    "resume": (frames.resume(STREAM), {"resume": {}}, Frame(STREAM, "resume")),
    "reset": (
        frames.reset(STREAM, PROTOCOL_ERROR),
        {"reset": {"reason": PROTOCOL_ERROR}},
        Frame(STREAM, "reset", reason=PROTOCOL_ERROR),
    ),
}


# -- both ways against the runtime


@pytest.mark.parametrize("kind", ONE_OF_EACH)
def test_what_we_encode_is_what_protobuf_encodes(kind: str) -> None:
    ours, members, _ = ONE_OF_EACH[kind]
    assert Envelope.FromString(ours) == Envelope(version=1, stream_id=STREAM, **members)
    assert Envelope.FromString(ours).WhichOneof("body") == kind


@pytest.mark.parametrize("kind", ONE_OF_EACH)
def test_a_frame_of_ours_comes_back_as_it_was(kind: str) -> None:
    ours, _, frame = ONE_OF_EACH[kind]
    assert plain(frames.decode(ours)) == frame


def test_a_reason_is_the_one_of_the_wire() -> None:
    assert PROTOCOL_ERROR == "noise_relay_protocol_error"


@given(stream_ids, numbers, payloads)
def test_any_data_frame_is_read_by_protobuf_and_from_protobuf(
    stream_id: str, seq: int, payload: bytes
) -> None:
    theirs = Envelope.FromString(frames.data(stream_id, seq, payload))
    assert (theirs.version, theirs.stream_id, theirs.data.seq) == (1, stream_id, seq)
    assert (theirs.data.segment_index, theirs.data.segment_count, theirs.data.payload) == (0, 1, payload)
    decoded = plain(frames.decode(encoded(stream_id, data=data_member(payload, seq))))
    assert decoded == Frame(stream_id, "data", payload, seq=seq)


@given(stream_ids, numbers, numbers, numbers, reasons)
def test_every_other_frame_of_protobuf_is_read_whatever_its_acks(
    stream_id: str, ack: int, bits: int, seq: int, reason: str
) -> None:
    acks = {"ack": ack, "ack_bits": bits}
    for members, frame in (
        ({"ack_frame": {}}, Frame(stream_id, "ack")),
        ({"heartbeat": {}}, Frame(stream_id, "heartbeat")),
        ({"resume": {"next_seq": seq}}, Frame(stream_id, "resume")),
        ({"reset": {"reason": reason}}, Frame(stream_id, "reset", reason=reason)),
        ({"handshake": {"payload": b"m"}}, Frame(stream_id, "handshake", b"m")),
        ({"data": data_member()}, Frame(stream_id, "data", b"record")),
    ):
        assert plain(frames.decode(encoded(stream_id, **acks, **members))) == frame


def test_a_resume_position_is_kept() -> None:
    assert Envelope.FromString(frames.resume(STREAM, 2**32 - 1)).resume.next_seq == 2**32 - 1


def test_the_largest_record_fits_a_frame() -> None:
    frame = frames.data("x" * 128, 2**32 - 1, bytes(61_456))
    assert len(frame) <= MAX_FRAME_BYTES
    assert len(frames.decode(frame).payload) == 61_456


def test_of_a_number_too_large_the_lower_32_bits_count() -> None:
    """As everywhere in protobuf; of the version, too."""
    message = field(1, 0, varint(2**32 + 1)) + field(2, 2, b"stream")
    message += field(
        5, 2, field(1, 0, varint(2**64 - 2)) + field(3, 0, varint(2**63 + 1)) + field(4, 2, b"x")
    )
    assert Envelope.FromString(message).version == 1
    assert Envelope.FromString(message).data.seq == 2**32 - 2
    assert plain(frames.decode(message)) == Frame("stream", "data", b"x", seq=2**32 - 2)


# -- what a later sender may add


EXTRA = {
    "a number": field(11, 0, varint(2**64 - 1)),
    "eight bytes": field(12, 1, bytes(8)),
    "text": field(13, 2, b"00-trace-01"),
    "four bytes": field(14, 5, bytes(4)),
    "the largest field number": field(2**29 - 1, 2, b"x"),
}


@pytest.mark.parametrize("extra", EXTRA.values(), ids=EXTRA.keys())
@pytest.mark.parametrize("before", [True, False], ids=["before", "after"])
def test_an_unknown_field_is_passed_over(extra: bytes, before: bool) -> None:
    known = encoded(data=data_member(seq=3))
    message = extra + known if before else known + extra
    assert Envelope.FromString(message).data.seq == 3
    assert plain(frames.decode(message)) == Frame(STREAM, "data", b"record", seq=3)


@pytest.mark.parametrize("extra", EXTRA.values(), ids=EXTRA.keys())
@pytest.mark.parametrize(
    ("number", "content", "frame"),
    [
        (5, encoded(data=data_member())[len(encoded()) + 2 :], Frame(STREAM, "data", b"record")),
        (7, b"", Frame(STREAM, "resume")),
        (8, field(1, 2, b"why"), Frame(STREAM, "reset", reason="why")),
        (10, field(1, 2, b"m"), Frame(STREAM, "handshake", b"m")),
    ],
)
def test_an_unknown_field_inside_a_member_is_passed_over(
    extra: bytes, number: int, content: bytes, frame: Frame
) -> None:
    assert plain(frames.decode(encoded() + field(number, 2, extra + content + extra))) == frame


ALONE: dict[str, Any] = {
    "data": data_member(),
    "resume": {"next_seq": 4},
    "reset": {"reason": "why"},
    "heartbeat": {},
    "handshake": {"payload": b"m"},
}


@pytest.mark.parametrize(("first", "second"), list(permutations(ALONE, 2)))
def test_the_last_member_of_the_oneof_wins(first: str, second: str) -> None:
    tail = Envelope(**{second: ALONE[second]}).SerializeToString()
    message = encoded(**{first: ALONE[first]}) + tail
    assert Envelope.FromString(message).WhichOneof("body") == second
    assert plain(frames.decode(message)) == plain(frames.decode(encoded(**{second: ALONE[second]})))


def test_the_last_of_a_repeated_field_wins() -> None:
    message = encoded("other", data=data_member(seq=1)) + field(2, 2, STREAM.encode())
    assert Envelope.FromString(message).stream_id == STREAM
    assert frames.decode(message).stream_id == STREAM


# -- what is dropped


REFUSED: dict[str, bytes] = {
    "nothing": b"",
    "no version": encoded(version=0, data=data_member()),
    "another version": encoded(version=2, data=data_member()),
    "no stream": encoded("", data=data_member()),
    "a stream of 129 bytes": encoded("x" * 129, data=data_member()),
    "a stream of 65 letters of two bytes": encoded("é" * 65, data=data_member()),
    "a stream with a blank before": encoded(" a", data=data_member()),
    "a stream with a blank after": encoded("a ", data=data_member()),
    "a stream with a newline after": encoded("a\n", data=data_member()),
    "a stream that is not UTF-8": field(1, 0, b"\x01") + field(2, 2, b"\xff\xfe") + field(6, 2, b""),
    "no member": encoded(),
    "data without payload": encoded(data=data_member(b"")),
    "data of segment 1": encoded(data=data_member(index=1)),
    "data of no segment": encoded(data=data_member(count=0)),
    "data of two segments": encoded(data=data_member(count=2)),
    "the version as text": field(1, 2, b"\x01") + encoded(version=0, data=data_member()),
    "the stream as a number": field(1, 0, b"\x01") + field(2, 0, b"\x01") + field(6, 2, b""),
    "the data as a number": encoded() + field(5, 0, b"\x01"),
    "a field number of zero": encoded(data=data_member()) + field(0, 0, b"\x01"),
    "a field number above 2**29": encoded(data=data_member()) + varint(1 << 32 | 1 << 3) + b"\x02",
    "a group": encoded(data=data_member()) + field(11, 3, b"") + field(12, 4, b""),
    "the end of a group": encoded(data=data_member()) + field(11, 4, b""),
    "an unknown wire type": encoded(data=data_member()) + field(11, 6, b""),
    "a number of eleven bytes": encoded(data=data_member()) + varint(11 << 3) + b"\xff" * 10 + b"\x01",
    "a length beyond the end": encoded() + varint(5 << 3 | 2) + varint(2**31) + b"x",
    "an inner length beyond the member": encoded() + field(5, 2, varint(4 << 3 | 2) + varint(20) + b"x"),
    "a length that is huge": encoded() + varint(5 << 3 | 2) + varint(2**63),
}


@pytest.mark.statement("R41")
@pytest.mark.parametrize("message", REFUSED.values(), ids=REFUSED.keys())
def test_what_is_no_frame_is_refused(message: bytes) -> None:
    with pytest.raises(FrameError):
        frames.decode(message)


def test_a_stream_id_may_have_128_bytes_and_inner_blanks() -> None:
    for stream_id in ("x" * 128, "é" * 64, "a b"):
        assert frames.decode(encoded(stream_id, heartbeat={})).stream_id == stream_id


def test_a_reset_counts_whatever_its_reason() -> None:
    assert frames.decode(encoded(reset={})) == Frame(STREAM, "reset")
    broken = encoded() + field(8, 2, field(1, 2, b"a\xffb"))
    assert frames.decode(broken).reason == "a\ufffdb"
    assert frames.decode(encoded(reset={"reason": "x" * 100_000})).reason == "x" * 200


def test_an_empty_handshake_is_a_frame_that_no_handshake_will_accept() -> None:
    assert plain(frames.decode(encoded(handshake={}))) == Frame(STREAM, "handshake", b"")


@pytest.mark.parametrize(("number", "kind"), [(8, "reset"), (10, "handshake")])
def test_the_last_of_a_repeated_inner_field_wins(number: int, kind: str) -> None:
    frame = plain(frames.decode(encoded() + field(number, 2, field(1, 2, b"first") + field(1, 2, b"last"))))
    assert (frame.kind, frame.payload or frame.reason.encode()) == (kind, b"last")


@pytest.mark.parametrize("kind", ONE_OF_EACH)
def test_a_frame_that_is_cut_is_refused_or_what_protobuf_makes_of_it(kind: str) -> None:
    whole = ONE_OF_EACH[kind][0]
    refused = 0
    for length in range(len(whole)):
        try:
            decoded = frames.decode(whole[:length])
        except FrameError:
            refused += 1
            continue
        theirs = Envelope.FromString(whole[:length])
        assert (theirs.stream_id, theirs.WhichOneof("body")) == (decoded.stream_id, decoded.kind)
    assert refused >= len(whole) - 2


READ_INTO = ("data", "handshake", "reset")


def as_protobuf_reads_it(message: bytes) -> Frame | None:
    """Our rules, on top of a decoder that is not ours."""
    try:
        outer = SHALLOW["RelayMessageFrame"].FromString(message)
        body = outer.WhichOneof("body")
        inner: Any = (
            SHALLOW[body.capitalize()].FromString(getattr(outer, body)) if body in READ_INTO else None
        )
        stream_id = outer.stream_id.decode()
    except (DecodeError, UnicodeDecodeError):
        return None
    if outer.version != 1 or body is None or not 1 <= len(outer.stream_id) <= 128:
        return None
    if stream_id != stream_id.strip():
        return None
    if body == "data":
        whole = (inner.segment_index, inner.segment_count) == (0, 1) and inner.payload
        return Frame(stream_id, body, inner.payload, seq=inner.seq) if whole else None
    if body == "handshake":
        return Frame(stream_id, body, inner.payload)
    if body == "reset":
        return Frame(stream_id, body, reason=inner.reason.decode(errors="replace")[:200])
    return Frame(stream_id, "ack" if body == "ack_frame" else body)


def as_we_read_it(message: bytes) -> Frame | None:
    try:
        return plain(frames.decode(message))
    except FrameError:
        return None


@given(st.binary(max_size=200))
@example(b"\x08\x01\x12\x01a\x2a\x00")
@settings(max_examples=200)
def test_any_bytes_are_read_as_protobuf_reads_them_or_refused(message: bytes) -> None:
    assert as_we_read_it(message) in (None, as_protobuf_reads_it(message))


numbers_on_the_wire = st.one_of(st.integers(0, 1), st.integers(0, 2**64 - 1)).map(varint)
texts = st.sampled_from([b"", b"x", b"text", b" x", b"\xff"])
inner_fields = st.one_of(
    st.builds(field, st.integers(1, 5), st.just(0), numbers_on_the_wire),
    st.builds(field, st.integers(1, 5), st.just(2), texts),
    st.builds(field, st.integers(1, 5), st.just(5), st.binary(min_size=4, max_size=4)),
)
whole_data = st.builds(
    lambda seq, payload: field(1, 0, varint(seq)) + b"\x18\x01" + field(4, 2, payload), numbers, texts
)
inner_members = st.one_of(st.lists(inner_fields, max_size=4).map(b"".join), whole_data)
outer_fields = st.one_of(
    st.builds(field, st.integers(1, 12), st.just(2), st.one_of(inner_members, texts)),
    st.builds(field, st.integers(3, 12), st.just(0), numbers_on_the_wire),
    st.builds(field, st.integers(1, 12), st.just(1), st.binary(min_size=8, max_size=8)),
)


@given(st.lists(outer_fields, max_size=6))
@settings(max_examples=200)
def test_any_run_of_fields_is_read_as_protobuf_reads_them(members: list[bytes]) -> None:
    message = field(1, 0, b"\x01") + field(2, 2, b"stream") + b"".join(members)
    assert as_we_read_it(message) == as_protobuf_reads_it(message)


@given(st.lists(st.one_of(outer_fields, st.binary(max_size=4)), max_size=6))
@settings(max_examples=200)
def test_fields_with_bytes_between_them_are_read_as_protobuf_reads_them_or_refused(
    members: list[bytes],
) -> None:
    message = field(1, 0, b"\x01") + field(2, 2, b"stream") + b"".join(members)
    assert as_we_read_it(message) in (None, as_protobuf_reads_it(message))


@given(st.sampled_from(sorted(ONE_OF_EACH)), st.data())
@settings(max_examples=200)
def test_a_frame_with_a_changed_byte_is_read_as_protobuf_reads_it_or_refused(
    kind: str, data: st.DataObject
) -> None:
    message = bytearray(ONE_OF_EACH[kind][0])
    message[data.draw(st.integers(0, len(message) - 1))] ^= data.draw(st.integers(1, 255))
    assert as_we_read_it(bytes(message)) in (None, as_protobuf_reads_it(bytes(message)))
