"""The keys that leave a terminal without ending what runs in it."""

from __future__ import annotations

DEFAULT = "ctrl-p,ctrl-q"
"""As docker."""

_CONTROL = "@abcdefghijklmnopqrstuvwxyz[\\]^_"
"""The characters that Ctrl makes 0 to 31 of, in that order."""


def parse(text: str) -> bytes:
    """The bytes of keys like `ctrl-p,ctrl-q`: single characters, or `ctrl-` and one of them. Empty for none.

    Raises:
        ValueError: there is no such key.
    """
    return b"".join(_key(name) for name in text.split(",")) if text else b""


def _key(name: str) -> bytes:
    modifier, dash, key = name.rpartition("ctrl-")
    if not modifier and dash and len(key) == 1 and key.lower() in _CONTROL:
        return bytes([_CONTROL.index(key.lower())])
    if len(name) == 1 and name.isascii():
        return name.encode()
    raise ValueError(f"no key: {name!r}; a key is a character, or ctrl- and a letter or one of @[\\]^_")


class Detached(Exception):
    """The keys were typed."""


class DetachKeys:
    """Looks for them in what is typed.

    The first of them is held back until the next key tells whether it was meant.
    """

    def __init__(self, keys: bytes) -> None:
        self._keys = keys
        self._held = b""

    def feed(self, typed: bytes) -> tuple[bytes, bool]:
        """What is to be passed on, and whether the keys came, after which nothing is passed on."""
        if not self._keys:
            return typed, False
        passed = bytearray()
        for key in typed:
            self._held += bytes([key])
            while not self._keys.startswith(self._held):
                passed += self._held[:1]
                self._held = self._held[1:]
            if self._held == self._keys:
                return bytes(passed), True
        return bytes(passed), False
