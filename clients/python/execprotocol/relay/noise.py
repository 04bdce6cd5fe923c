"""The encryption of a stream: a Noise handshake of two messages, and the channel that it opens.

Pattern hybrid IK over X25519 and ML-KEM-768, AES-256-GCM, SHA-256. The initiator is the harness, and knows
the executor's static keys; the first message has the harness's.

    before:  executor's static X25519 key, then its static ML-KEM key
    1 ──>    skem, e, es, s, ss, payload (the registry's authorization)
    2 <──    ekem, skem, e, ee, se, payload (empty, or `REJECTION`)

    e     both ephemeral public keys, in the clear
    s     both static public keys, each sealed
    es, ee, se, ss   an X25519 agreement (the first letter is the initiator's key), mixed into the key
    ekem  encapsulation to the other's ephemeral ML-KEM key: ciphertext in the clear, secret mixed into the
          key
    skem  encapsulation to the other's static ML-KEM key: ciphertext sealed (in the clear where there is no
          key yet), secret mixed into key and hash

1. No I/O, and no decision on trust: the responder returns the initiator's keys, its owner decides, and only
   then writes the second message.
2. Everything sent is hashed into the key of the next part, together with `Binding`: a message of another
   environment, registration, stream or order does not open.
3. A failed state stays failed: nothing more is read or written.
4. A nonce is used once: records are numbered per direction, big-endian behind four zero bytes, and after
   `MAX_RECORDS` none is sealed or opened.

`docs/protocol.md`, "Relay".
"""

from __future__ import annotations

import hmac
from collections.abc import Callable
from hashlib import sha256
from typing import NamedTuple

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from execprotocol.relay.keys import (
    MLKEM_CIPHERTEXT_BYTES,
    MLKEM_KEY_BYTES,
    X25519_BYTES,
    KeyPair,
    PublicKeys,
    encapsulate,
)

_NAME = b"Noise_hybridIK_25519+MLKEM768_AESGCM_SHA256"
_PROLOGUE = b"codex-exec-server-relay-noise/v1"

REJECTION = b"codex-registry-authentication-rejected/v1"
"""The payload of message 2 that rejects the initiator: the registry did not vouch for it."""

TAG_BYTES = 16
MESSAGE_1_BYTES = (
    MLKEM_CIPHERTEXT_BYTES + X25519_BYTES + MLKEM_KEY_BYTES + X25519_BYTES + MLKEM_KEY_BYTES + 3 * TAG_BYTES
)
MESSAGE_2_BYTES = 2 * MLKEM_CIPHERTEXT_BYTES + X25519_BYTES + MLKEM_KEY_BYTES + 2 * TAG_BYTES
"""Without their payloads."""

MAX_AUTHORIZATION_BYTES = 4096
MAX_RECORD_BYTES = 61_440
"""Limit of plain text: sealed and in a frame, it stays well below the limit of a WebSocket message."""

MAX_RECORDS = 1 << 32
"""In one direction of one channel."""

Buffer = bytes | bytearray | memoryview
Encapsulate = Callable[[bytes], tuple[bytes, bytes]]


class NoiseError(Exception):
    """Received data is not from the other end of this channel, or the channel is used up."""


class Binding(NamedTuple):
    """The context of a channel, which must be equal at both ends."""

    environment_id: str
    registration_id: str
    stream_id: str


class Initiator:
    """The harness's half of the handshake.

    Args:
        own: the harness's static keys.
        executor: the executor's static keys, from the registry or a pin.
        binding: of the channel.
        ephemeral: for recorded cases only.
        encapsulate: for recorded cases only.
    """

    def __init__(
        self,
        own: KeyPair,
        executor: PublicKeys,
        binding: Binding,
        *,
        ephemeral: KeyPair | None = None,
        encapsulate: Encapsulate = encapsulate,
    ) -> None:
        self._own = own
        self._executor = executor
        self._ephemeral = KeyPair.generate() if ephemeral is None else ephemeral
        self._encapsulate = encapsulate
        self._symmetric = _Symmetric(binding, executor)
        self._next = 1

    def write_first(self, authorization: bytes) -> bytes:
        """Message 1.

        Args:
            authorization: from the registry, for the executor; at most `MAX_AUTHORIZATION_BYTES`.

        Raises:
            NoiseError: the executor's keys are invalid, the authorization is too long, or this is not the
                first call.
        """
        self._turn(1)
        if len(authorization) > MAX_AUTHORIZATION_BYTES:
            raise NoiseError(f"an authorization has at most {MAX_AUTHORIZATION_BYTES} bytes")
        state, own, ephemeral = self._symmetric, self._own, self._ephemeral
        try:
            secret, ciphertext = self._encapsulate(self._executor.mlkem768)
            parts = [state.seal(ciphertext)]
            state.mix_key_and_hash(secret)
            parts += state.show(ephemeral.public)
            state.mix_key(ephemeral.exchange(self._executor.x25519))
            parts += [state.seal(own.public.x25519), state.seal(own.public.mlkem768)]
            state.mix_key(own.exchange(self._executor.x25519))
        except ValueError:
            raise NoiseError("the executor's public keys are invalid") from None
        parts.append(state.seal(authorization))
        self._next = 2
        return b"".join(parts)

    def read_second(self, message: Buffer) -> tuple[bytes, NoiseTransport]:
        """Read message 2. Returns its payload (`REJECTION` or empty) and the channel.

        Raises:
            NoiseError: the message is invalid, or not the answer to this message 1.
        """
        self._turn(2)
        if len(message) < MESSAGE_2_BYTES:
            raise NoiseError("the second handshake message is too short")
        state, reader = self._symmetric, _Reader(message)
        try:
            ciphertext = reader.take(MLKEM_CIPHERTEXT_BYTES)
            state.mix_hash(ciphertext)
            state.mix_key(self._ephemeral.decapsulate(ciphertext))
            sealed = reader.take(MLKEM_CIPHERTEXT_BYTES + TAG_BYTES)
            state.mix_key_and_hash(self._own.decapsulate(state.open(sealed)))
            theirs = reader.public_keys(state)
            state.mix_key(self._ephemeral.exchange(theirs.x25519))
            state.mix_key(self._own.exchange(theirs.x25519))
        except ValueError:
            raise NoiseError("the second handshake message holds an invalid key") from None
        payload = state.open(reader.rest())
        ours, others = state.split()
        return payload, NoiseTransport(ours, others)

    def _turn(self, number: int) -> None:
        expected, self._next = self._next, 0
        if expected != number:
            raise NoiseError("the handshake is over, or has failed")


class Responder:
    """The executor's half of the handshake.

    Args:
        own: the executor's static keys.
        binding: of the channel.
        ephemeral: for recorded cases only.
        encapsulate: for recorded cases only.
    """

    def __init__(
        self,
        own: KeyPair,
        binding: Binding,
        *,
        ephemeral: KeyPair | None = None,
        encapsulate: Encapsulate = encapsulate,
    ) -> None:
        self._own = own
        self._ephemeral = KeyPair.generate() if ephemeral is None else ephemeral
        self._encapsulate = encapsulate
        self._symmetric = _Symmetric(binding, own.public)
        self._harness: PublicKeys
        self._harness_ephemeral: PublicKeys
        self._next = 1

    def read_first(self, message: Buffer) -> tuple[PublicKeys, bytes]:
        """Read message 1. Returns the harness's keys and authorization. It proves that the harness has the
        private X25519 key; the private ML-KEM key is proven once the harness opens message 2.

        Raises:
            NoiseError: the message is invalid, or not for this channel.
        """
        self._turn(1)
        if not MESSAGE_1_BYTES <= len(message) <= MESSAGE_1_BYTES + MAX_AUTHORIZATION_BYTES:
            raise NoiseError("the first handshake message has a wrong size")
        state, reader, own = self._symmetric, _Reader(message), self._own
        try:
            ciphertext = reader.take(MLKEM_CIPHERTEXT_BYTES)
            state.mix_hash(ciphertext)
            state.mix_key_and_hash(own.decapsulate(ciphertext))
            self._harness_ephemeral = reader.public_keys(state)
            state.mix_key(own.exchange(self._harness_ephemeral.x25519))
            self._harness = PublicKeys(
                state.open(reader.take(X25519_BYTES + TAG_BYTES)),
                state.open(reader.take(MLKEM_KEY_BYTES + TAG_BYTES)),
            )
            state.mix_key(own.exchange(self._harness.x25519))
        except ValueError:
            raise NoiseError("the first handshake message holds an invalid key") from None
        authorization = state.open(reader.rest())
        self._next = 2
        return self._harness, authorization

    def write_second(self, payload: bytes = b"") -> tuple[bytes, NoiseTransport]:
        """Write message 2. Returns it and the channel.

        Raises:
            NoiseError: the harness's keys are invalid, or `read_first` has not succeeded before.
        """
        self._turn(2)
        state, harness, theirs = self._symmetric, self._harness, self._harness_ephemeral
        try:
            secret, ciphertext = self._encapsulate(theirs.mlkem768)
            state.mix_hash(ciphertext)
            state.mix_key(secret)
            parts = [ciphertext]
            secret, ciphertext = self._encapsulate(harness.mlkem768)
            parts.append(state.seal(ciphertext))
            state.mix_key_and_hash(secret)
            parts += state.show(self._ephemeral.public)
            state.mix_key(self._ephemeral.exchange(theirs.x25519))
            state.mix_key(self._ephemeral.exchange(harness.x25519))
        except ValueError:
            raise NoiseError("the harness's public keys are invalid") from None
        parts.append(state.seal(payload))
        others, ours = state.split()
        return b"".join(parts), NoiseTransport(ours, others)

    def _turn(self, number: int) -> None:
        expected, self._next = self._next, 0
        if expected != number:
            raise NoiseError("the handshake is over, or has failed")


class NoiseTransport:
    """The channel after the handshake: seals and opens records, numbered in each direction.

    Args:
        sending: the key for sent records.
        receiving: the key for received records.
    """

    __slots__ = ("_received", "_receiving", "_sending", "_sent")

    def __init__(self, sending: bytes, receiving: bytes) -> None:
        self._sending: AESGCM | None = AESGCM(sending)
        self._receiving: AESGCM | None = AESGCM(receiving)
        self._sent = self._received = 0

    def seal(self, record: Buffer) -> bytes:
        """Seal the next record, which makes it `TAG_BYTES` longer. Never seal a record twice.

        Raises:
            NoiseError: the channel is used up.
        """
        number = self._sent
        if number >= MAX_RECORDS:
            raise NoiseError("the channel has carried as many records as it may")
        assert self._sending is not None
        self._sent = number + 1
        return self._sending.encrypt(_nonce(number), record, None)

    def open(self, ciphertext: Buffer) -> bytes:
        """Open the next record of the other end.

        Raises:
            NoiseError: it is not the next record; nothing can be read after it.
        """
        number = self._received
        if self._receiving is None or number >= MAX_RECORDS:
            raise NoiseError("the channel has failed, or has carried as many records as it may")
        try:
            record = self._receiving.decrypt(_nonce(number), ciphertext, None)
        except (InvalidTag, ValueError):
            self._receiving = None
            raise NoiseError(
                "a record does not open: it was changed, lost, or is not of this channel"
            ) from None
        self._received = number + 1
        return record


class _Symmetric:
    """Noise's symmetric state: hash, chaining key, and the cipher for parts of handshake messages."""

    def __init__(self, binding: Binding, executor: PublicKeys) -> None:
        self._chain = self._hash = sha256(_NAME).digest()
        self._cipher: AESGCM | None = None
        self._count = 0
        fields = (_PROLOGUE, *(field.encode() for field in binding))
        self.mix_hash(b"".join(len(field).to_bytes(8) + field for field in fields))
        self.mix_hash(executor.x25519)
        self.mix_hash(executor.mlkem768)

    def mix_hash(self, data: Buffer) -> None:
        digest = sha256(self._hash)
        digest.update(data)
        self._hash = digest.digest()

    def mix_key(self, secret: bytes) -> None:
        self._chain, key = _derive(self._chain, secret, 2)
        self._cipher, self._count = AESGCM(key), 0

    def mix_key_and_hash(self, secret: bytes) -> None:
        self._chain, mixed, key = _derive(self._chain, secret, 3)
        self.mix_hash(mixed)
        self._cipher, self._count = AESGCM(key), 0

    def show(self, keys: PublicKeys) -> list[bytes]:
        """Mix in public keys that are sent in the clear."""
        self.mix_hash(keys.x25519)
        self.mix_hash(keys.mlkem768)
        return [keys.x25519, keys.mlkem768]

    def seal(self, part: bytes) -> bytes:
        sealed = part
        if self._cipher is not None:
            sealed = self._cipher.encrypt(_nonce(self._count), part, self._hash)
            self._count += 1
        self.mix_hash(sealed)
        return sealed

    def open(self, sealed: Buffer) -> bytes:
        assert self._cipher is not None, "every sealed part comes behind a key"
        try:
            part = self._cipher.decrypt(_nonce(self._count), sealed, self._hash)
        except InvalidTag:
            raise NoiseError("a handshake message does not open: changed, or not for this channel") from None
        self._count += 1
        self.mix_hash(sealed)
        return part

    def split(self) -> list[bytes]:
        """The keys of the initiator's and of the responder's records."""
        return _derive(self._chain, b"", 2)


class _Reader:
    """Cuts a message whose length was checked into parts."""

    def __init__(self, message: Buffer) -> None:
        self._rest = bytes(message)

    def take(self, count: int) -> bytes:
        part, self._rest = self._rest[:count], self._rest[count:]
        return part

    def public_keys(self, state: _Symmetric) -> PublicKeys:
        """Read public keys that were sent in the clear."""
        keys = PublicKeys(self.take(X25519_BYTES), self.take(MLKEM_KEY_BYTES))
        state.show(keys)
        return keys

    def rest(self) -> bytes:
        return self._rest


def _derive(chain: bytes, secret: bytes, count: int) -> list[bytes]:
    """Noise's HKDF: `count` keys of 32 bytes."""
    temporary = hmac.digest(chain, secret, "sha256")
    keys: list[bytes] = []
    for number in range(1, count + 1):
        keys.append(hmac.digest(temporary, (keys[-1] if keys else b"") + bytes((number,)), "sha256"))
    return keys


def _nonce(number: int) -> bytes:
    return number.to_bytes(12)
