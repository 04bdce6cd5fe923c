"""The protocol of execserver, as both sides know it: messages, errors, limits, path URIs."""

__version__ = "0.2.0"
"""Of the distribution `execclient`. The server has the same version, and requires it."""
