"""The error of this package that is not yet one of the wire."""

from __future__ import annotations


class TransferError(Exception):
    """A request or a response did not get through. The text says why, and quotes no header."""
