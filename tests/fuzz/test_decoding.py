"""Mutated messages through the decoders alone, as Hypothesis picks them: every refusal is one of ours, and
how a stream is cut changes nothing.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from execprotocol.errors import InvalidParams
from execprotocol.methods import METHODS
from execserver.rpc import codec
from execserver.rpc.codec import ParseError, Request
from execserver.rpc.framing import Framer, FramingError, HeaderFramer, LineFramer
from execserver.rpc.params import decode_params
from tests.fuzz.mutations import Mutator, load
from tests.support.framing import with_headers
from tests.support.wire import Json

MESSAGES = 10
EXAMPLES = int(os.environ.get("EXECSERVER_FUZZ_MESSAGES", "10000")) // MESSAGES
FOLDER = Path("/tmp/fuzz-x/files")
SEEDS = {dialect: load(dialect) for dialect in ("lean", "standard")}

chances = st.integers(0, 2**64 - 1).map(random.Random)


def mutated(chance: random.Random, dialect: str) -> list[bytes]:
    mutator = Mutator(SEEDS[dialect], chance, FOLDER)
    return [mutator.message() for _ in range(MESSAGES)]


def with_strict_json(message: bytes) -> Json:
    """What the standard library makes of it; it allows more than JSON does, so what it refuses is none."""
    return json.loads(message.decode())


@pytest.mark.timeout(600)
@pytest.mark.parametrize("dialect", SEEDS)
@given(chance=chances)
@settings(max_examples=EXAMPLES, deadline=None)
def test_a_message_is_decoded_or_refused_in_our_words(dialect: str, chance: random.Random) -> None:
    for message in mutated(chance, dialect):
        try:
            value = codec.decode_any(message)
        except ParseError:
            with pytest.raises(ParseError):
                codec.decode(message)
            continue
        assert with_strict_json(message) == value
        try:
            decoded = codec.decode(message)
        except ParseError:
            continue
        if isinstance(decoded, Request) and decoded.method in METHODS:
            with contextlib.suppress(InvalidParams):
                decode_params(METHODS[decoded.method], decoded.params)


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("framer", "frame"), [(LineFramer, lambda message: message + b"\n"), (HeaderFramer, with_headers)]
)
@given(chance=chances)
@settings(max_examples=EXAMPLES, deadline=None)
def test_how_a_stream_is_cut_changes_no_message(
    framer: Callable[[], Framer], frame: Callable[[bytes], bytes], chance: random.Random
) -> None:
    stream = bytearray(b"".join(map(frame, mutated(chance, "standard"))))
    if chance.random() < 0.5:
        stream[chance.randrange(len(stream))] ^= 1 << chance.randrange(8)
    cuts = sorted(chance.randrange(len(stream) + 1) for _ in range(chance.randrange(30)))
    pieces = [bytes(stream[start:end]) for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True)]

    assert fed(framer(), pieces) == fed(framer(), [bytes(stream)])


def fed(framer: Framer, pieces: list[bytes]) -> tuple[list[bytes], bool]:
    """All messages, and whether the stream was refused."""
    messages: list[bytes] = []
    for piece in pieces:
        try:
            messages += map(bytes, framer.feed(piece))
        except FramingError as error:
            return messages + list(map(bytes, error.messages)), True
    return messages, False
