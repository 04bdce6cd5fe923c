"""Outgoing frames: heads and fragments."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from execprotocol.limits import WEBSOCKET_FRAGMENT_BYTES
from execserver.transports.websocket import fragments, header

PARTS = st.lists(st.sampled_from([0, 1, 300, 400_000, WEBSOCKET_FRAGMENT_BYTES, 2_500_000]), max_size=6)


@pytest.mark.parametrize(
    ("size", "head"),
    [
        (0, b"\x81\x00"),
        (125, b"\x81\x7d"),
        (126, b"\x81\x7e\x00\x7e"),
        (65_535, b"\x81\x7e\xff\xff"),
        (65_536, b"\x81\x7f\0\0\0\0\0\x01\0\0"),
    ],
)
def test_a_head_has_the_shortest_length_that_fits(size: int, head: bytes) -> None:
    assert header(0x81, size) == head


def parse(stream: bytes) -> list[tuple[int, bytes]]:
    frames = []
    while stream:
        opcode, size, start = stream[0], stream[1], 2
        if size == 126:
            (size,), start = struct.unpack_from(">H", stream, 2), 4
        elif size == 127:
            (size,), start = struct.unpack_from(">Q", stream, 2), 10
        frames.append((opcode, stream[start : start + size]))
        stream = stream[start + size :]
    return frames


@given(PARTS, st.booleans(), st.sampled_from([0x00, 0x01]))
def test_fragments_carry_all_bytes_in_frames_of_at_most_1_mib(
    sizes: list[int], last: bool, opcode: int
) -> None:
    parts = [bytes((number + 1,)) * size for number, size in enumerate(sizes)]

    frames = parse(b"".join(fragments(parts, opcode, last)))

    assert b"".join(payload for _, payload in frames) == b"".join(parts)
    assert all(len(payload) == WEBSOCKET_FRAGMENT_BYTES for _, payload in frames[:-1])
    assert len(frames[-1][1]) <= WEBSOCKET_FRAGMENT_BYTES
    opcodes = [opcode, *[0x00] * (len(frames) - 1)]
    opcodes[-1] |= 0x80 if last else 0
    assert [code for code, _ in frames] == opcodes
