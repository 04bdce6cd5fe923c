"""Base64 as the wire has it: the standard alphabet with padding, and nothing that does not belong there."""

from __future__ import annotations

import pybase64


def decode_base64(text: bytes | memoryview) -> bytes:
    """The bytes that a text stands for.

    Raises:
        ValueError: it stands for none; the message says why.
    """
    data = pybase64.b64decode(text, validate=True)
    if text[-1:] == b"=" and pybase64.b64encode(data[-(len(data) % 3) :]) != bytes(text[-4:]):
        # The decoder drops what does not fill a byte; such a text was cut or made by mistake.
        raise ValueError("bits are left over at the end")
    return data
