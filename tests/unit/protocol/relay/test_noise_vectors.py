"""Handshakes that were recorded, replayed byte for byte without the peer: with the stock executor, the stock
agent, and between our own halves. `tests/interop/record_noise.py` made them; what is in them, says
`tests/data/relay/README.md`.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from execprotocol.relay import frames
from execprotocol.relay.keys import KeyPair, PublicKeys
from execprotocol.relay.noise import REJECTION, Binding, Initiator, NoiseTransport, Responder
from execprotocol.relay.sealed_stream import InitiatorStream

FOLDER = Path(__file__).parents[3] / "data" / "relay"
VECTORS: dict[str, Any] = {path.stem: json.loads(path.read_text()) for path in sorted(FOLDER.glob("*.json"))}
WITH_OUR_INITIATOR = [name for name, vector in VECTORS.items() if "seed" in vector["initiator"]]
WITH_OUR_RESPONDER = [name for name, vector in VECTORS.items() if "seed" in vector["responder"]]


def raw(text: str) -> bytes:
    return base64.b64decode(text, validate=True)


def pair(half: Any, name: str = "seed") -> KeyPair:
    return KeyPair.from_seed(raw(half[name]))


def public(half: Any) -> PublicKeys:
    return pair(half).public if "seed" in half else PublicKeys.from_json(half["public"], "public")


def recorded(half: Any) -> Callable[[bytes], tuple[bytes, bytes]]:
    """Encapsulates what was encapsulated then, in the same order."""
    left = [(raw(one["secret"]), raw(one["ciphertext"])) for one in half["encapsulations"]]
    return lambda _key: left.pop(0)


def initiator(vector: Any) -> Initiator:
    half = vector["initiator"]
    return Initiator(
        pair(half),
        public(vector["responder"]),
        Binding(**vector["binding"]),
        ephemeral=pair(half, "ephemeral_seed"),
        encapsulate=recorded(half),
    )


def responder(vector: Any) -> Responder:
    half = vector["responder"]
    return Responder(
        pair(half),
        Binding(**vector["binding"]),
        ephemeral=pair(half, "ephemeral_seed"),
        encapsulate=recorded(half),
    )


def assert_records_replay(transport: NoiseTransport, sent: Any, received: Any) -> None:
    for one in sent:
        assert transport.seal(raw(one["record"])) == raw(one["ciphertext"])
    for one in received:
        assert transport.open(raw(one["ciphertext"])) == raw(one["record"])


def test_all_recordings_are_there() -> None:
    assert set(VECTORS) == {"own_halves", "stock_executor", "stock_executor_rejected", "stock_harness"}
    assert set(WITH_OUR_INITIATOR) == {"own_halves", "stock_executor", "stock_executor_rejected"}
    assert set(WITH_OUR_RESPONDER) == {"own_halves", "stock_harness"}


@pytest.mark.parametrize("name", WITH_OUR_INITIATOR)
def test_our_initiator_writes_and_reads_what_was_recorded(name: str) -> None:
    vector = VECTORS[name]
    ours = initiator(vector)
    assert ours.write_first(vector["authorization"].encode()) == raw(vector["message_1"])
    payload, transport = ours.read_second(raw(vector["message_2"]))
    assert payload == raw(vector["payload_2"])
    assert_records_replay(transport, vector["up"], vector["down"])


def test_our_stream_makes_and_opens_the_frames_of_what_was_recorded() -> None:
    vector = VECTORS["stock_executor"]
    stream_id = vector["binding"]["stream_id"]
    opened: list[bytes] = []
    stream = InitiatorStream(stream_id, opened.append, initiator(vector))
    assert stream.opening_frames(vector["authorization"])[1] == frames.handshake(
        stream_id, raw(vector["message_1"])
    )
    assert stream.frame_received(frames.handshake(stream_id, raw(vector["message_2"])))
    for number, one in enumerate(vector["up"]):
        stream.outgoing.put_raw(raw(one["record"]))
        assert stream.next_frame() == frames.data(stream_id, number, raw(one["ciphertext"]))
    for number, one in enumerate(vector["down"]):
        stream.frame_received(frames.data(stream_id, number, raw(one["ciphertext"])))
    assert opened == [raw(one["record"]) for one in vector["down"]]


@pytest.mark.parametrize("name", WITH_OUR_RESPONDER)
def test_our_responder_reads_and_writes_what_was_recorded(name: str) -> None:
    vector = VECTORS[name]
    ours = responder(vector)
    harness, authorization = ours.read_first(raw(vector["message_1"]))
    assert harness == public(vector["initiator"])
    assert authorization.decode() == vector["authorization"]
    message, transport = ours.write_second(raw(vector["payload_2"]))
    assert message == raw(vector["message_2"])
    assert_records_replay(transport, vector["down"], vector["up"])


@pytest.mark.parametrize("name", ["stock_executor", "stock_harness"])
def test_the_stock_peer_said_something_on_the_channel(name: str) -> None:
    vector = VECTORS[name]
    side = vector["down" if name == "stock_executor" else "up"]
    messages = [raw(one["record"]) for one in side]
    assert len(messages) >= 2
    for message in messages:
        assert int.from_bytes(message[:4]) == len(message) - 4
        assert isinstance(json.loads(message[4:]), dict)


def test_the_stock_executor_says_a_refusal_in_its_second_message() -> None:
    assert raw(VECTORS["stock_executor_rejected"]["payload_2"]) == REJECTION
