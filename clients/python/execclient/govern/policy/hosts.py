"""The host of a network rule: a name or an address, with or without a port.

Schemes, paths and wildcards are refused, so that nobody takes a rule about one host for one about many.
"""

from __future__ import annotations

from typing import NamedTuple


class Host(NamedTuple):
    """A host as rules keep it."""

    name: str
    """In lower case, without the dot of the root and without brackets."""
    port: int | None
    """As it was written: nobody says that there is such a port."""


def parse_host(text: str) -> Host:
    """Read a host: `example.com`, `example.com:443`, `10.0.0.1`, `::1`, `[::1]:80`.

    Args:
        text: blanks around it do not count.

    Raises:
        ValueError: it is something else; the message begins with `network_rule host`.
    """
    given = text.strip()
    if any(mark in given for mark in ("/", "?", "#")):
        raise ValueError("network_rule host must be a hostname or IP literal (without scheme or path)")
    name, port = _bracketed(given, text) if given.startswith("[") else _split(given)
    name = name.rstrip(".").strip().lower()
    if not name:
        raise ValueError("network_rule host cannot be empty")
    if "*" in name:
        raise ValueError("network_rule host must be a specific host; wildcards are not allowed")
    if any(character.isspace() for character in name):
        raise ValueError("network_rule host cannot contain whitespace")
    return Host(name, port)


def _bracketed(given: str, text: str) -> tuple[str, int | None]:
    name, closed, rest = given[1:].partition("]")
    if not closed:
        raise ValueError("network_rule host has an invalid bracketed IPv6 literal")
    if not rest:
        return name, None
    if not (rest.startswith(":") and _is_number(rest[1:])):
        raise ValueError(f"network_rule host contains an unsupported suffix: {text}")
    return name, int(rest[1:])


def _split(given: str) -> tuple[str, int | None]:
    """An address of IPv6 has more than one colon, and no port without brackets."""
    name, _, port = given.partition(":")
    return (name, int(port)) if name and _is_number(port) else (given, None)


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= _LONGEST_PORT


_LONGEST_PORT = 9
"""Digits. No port has more than five; a rule about one that cannot be is harmless, a huge number is not."""
