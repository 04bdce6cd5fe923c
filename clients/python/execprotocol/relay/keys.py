"""Key pairs of peers: X25519 and ML-KEM-768, always both.

On the wire, public keys are a JSON object of exactly three members. People compare their *fingerprint*.
`docs/protocol.md`, "Relay".
"""

from __future__ import annotations

import base64
import binascii
import secrets
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256

from cryptography.hazmat.primitives.asymmetric.mlkem import MLKEM768PrivateKey, MLKEM768PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey

SUITE = "Noise_hybridIK_X25519+MLKEM768_AESGCM_SHA256"
"""The name of the pair in JSON. The name in the handshake differs in one letter (`noise.py`)."""

X25519_BYTES = 32
MLKEM_KEY_BYTES, MLKEM_CIPHERTEXT_BYTES, MLKEM_SEED_BYTES = 1184, 1088, 64
SEED_BYTES = X25519_BYTES + MLKEM_SEED_BYTES


class InvalidKeyError(Exception):
    """A key is invalid. The message names the field, and contains no secret."""


@dataclass(frozen=True, slots=True)
class PublicKeys:
    """The public keys of a peer."""

    x25519: bytes
    mlkem768: bytes

    @property
    def fingerprint(self) -> str:
        """The SHA-256 of both keys, 64 hexadecimal digits, for pinning and for lists of allowed clients."""
        return sha256(self.x25519 + self.mlkem768).hexdigest()

    def to_json(self) -> dict[str, str]:
        """The JSON object of the wire."""
        return {
            "suite": SUITE,
            "x25519_public_key": base64.b64encode(self.x25519).decode(),
            "mlkem768_public_key": base64.b64encode(self.mlkem768).decode(),
        }

    @classmethod
    def from_json(cls, value: object, field: str) -> PublicKeys:
        """Parse the keys of a JSON value.

        Args:
            value: the object.
            field: its name, for the error.

        Raises:
            InvalidKeyError: it has other members, another suite, or an invalid key.
        """
        if not isinstance(value, dict):
            raise InvalidKeyError(
                f"`{field}` must be an object with suite, x25519_public_key and mlkem768_public_key"
            )
        members = {"suite", "x25519_public_key", "mlkem768_public_key"}
        if value.keys() != members:
            odd = ", ".join(sorted(str(name)[:40] for name in value.keys() ^ members))
            raise InvalidKeyError(
                f"`{field}` must have exactly the members {', '.join(sorted(members))}; check: {odd}"
            )
        if value["suite"] != SUITE:
            raise InvalidKeyError(f"`{field}.suite` must be {SUITE}")
        keys = cls(
            _decoded(value["x25519_public_key"], X25519_BYTES, f"{field}.x25519_public_key"),
            _decoded(value["mlkem768_public_key"], MLKEM_KEY_BYTES, f"{field}.mlkem768_public_key"),
        )
        try:
            MLKEM768PublicKey.from_public_bytes(keys.mlkem768)
        except ValueError:
            raise InvalidKeyError(f"`{field}.mlkem768_public_key` is no ML-KEM-768 public key") from None
        return keys


class KeyPair:
    """A private key of each kind.

    Args:
        x25519: for agreement.
        mlkem768: for encapsulation.
    """

    def __init__(self, x25519: X25519PrivateKey, mlkem768: MLKEM768PrivateKey) -> None:
        self._x25519 = x25519
        self._mlkem768 = mlkem768

    @classmethod
    def generate(cls) -> KeyPair:
        """Generate a new pair."""
        return cls.from_seed(secrets.token_bytes(SEED_BYTES))

    @classmethod
    def from_seed(cls, seed: bytes) -> KeyPair:
        """The pair of a seed.

        Args:
            seed: 96 bytes: the X25519 private key, then the ML-KEM seed.

        Raises:
            InvalidKeyError: the seed has another length.
        """
        if len(seed) != SEED_BYTES:
            raise InvalidKeyError(f"a key pair is made of {SEED_BYTES} bytes, not {len(seed)}")
        return cls(
            X25519PrivateKey.from_private_bytes(seed[:X25519_BYTES]),
            MLKEM768PrivateKey.from_seed_bytes(seed[X25519_BYTES:]),
        )

    @property
    def seed(self) -> bytes:
        """The argument of `from_seed`. A secret."""
        return self._x25519.private_bytes_raw() + self._mlkem768.private_bytes_raw()

    @cached_property
    def public(self) -> PublicKeys:
        """The public keys."""
        return PublicKeys(
            self._x25519.public_key().public_bytes_raw(), self._mlkem768.public_key().public_bytes_raw()
        )

    def exchange(self, x25519: bytes) -> bytes:
        """The secret shared with the owner of a public key (32 bytes).

        Raises:
            ValueError: the public key is invalid.
        """
        return self._x25519.exchange(X25519PublicKey.from_public_bytes(x25519))

    def decapsulate(self, ciphertext: bytes) -> bytes:
        """The secret that was encapsulated for this ML-KEM key (32 bytes). A forged ciphertext gives another
        secret, not an error: then opening the sealed data fails.

        Raises:
            ValueError: the ciphertext has another length.
        """
        return self._mlkem768.decapsulate(ciphertext)


def encapsulate(mlkem768: bytes) -> tuple[bytes, bytes]:
    """A new secret (32 bytes) for the owner of a public key, and its ciphertext (1088 bytes).

    Raises:
        ValueError: the public key is not an ML-KEM-768 key.
    """
    return MLKEM768PublicKey.from_public_bytes(mlkem768).encapsulate()


def _decoded(value: object, size: int, field: str) -> bytes:
    try:
        if not isinstance(value, str):
            raise ValueError
        key = base64.b64decode(value, validate=True)
        # The decoder accepts several texts for the same bytes; the wire has one.
        if len(key) != size or base64.b64encode(key).decode() != value:
            raise ValueError
    except (binascii.Error, ValueError):
        raise InvalidKeyError(f"`{field}` must be {size} bytes in padded standard base64") from None
    return key
