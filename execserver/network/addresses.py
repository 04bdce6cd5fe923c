"""Hosts as commands write them, in one notation, and which addresses are local."""

from __future__ import annotations

import ipaddress
import re
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network
from typing import NamedTuple

Address = IPv4Address | IPv6Address

_NAME = re.compile(r"(?:[a-z0-9_-]{1,63}\.)*[a-z0-9_-]{1,63}\Z")
_NUMBER = re.compile(r"(?:[0-9]+|0x[0-9a-f]*)\Z")
_PORT = re.compile(r"[0-9]{1,5}\Z")

# IANA's registries of special addresses, with multicast. `ipaddress` has them too, but not the same ones in
# each version of Python, and counts multicast as global.
_LOCAL_V4 = tuple(
    map(
        IPv4Network,
        (
            "0.0.0.0/8",
            "10.0.0.0/8",
            "100.64.0.0/10",
            "127.0.0.0/8",
            "169.254.0.0/16",
            "172.16.0.0/12",
            "192.0.0.0/24",
            "192.0.2.0/24",
            "192.88.99.0/24",
            "192.168.0.0/16",
            "198.18.0.0/15",
            "198.51.100.0/24",
            "203.0.113.0/24",
            "224.0.0.0/3",
        ),
    )
)
_GLOBAL_V6 = IPv6Network("2000::/3")
# Teredo and 6to4 have an IPv4 address inside, which a tunnel of the host would connect to.
_LOCAL_V6 = tuple(map(IPv6Network, ("2001::/23", "2001:db8::/32", "2002::/16", "3fff::/20")))
_NAT64 = IPv6Network("64:ff9b::/96")


class HostError(ValueError):
    """A host that is neither a name nor an address. The text is for the client of the proxy."""


class Host(NamedTuple):
    """A host in the notation in which it is judged, reported and connected to."""

    text: str
    """The name in lower case without its final dot, or the address without brackets."""

    address: Address | None = None
    """The address, if it is one."""

    is_ambiguous: bool = False
    """Whether the resolver may take the name for an IPv4 address, such as `127.1`, `0x7f.1`, `2130706433`."""


def parse_host(text: str) -> Host:
    """Read the host of a request or a rule.

    An IPv6 address may have brackets. Names outside ASCII are encoded by IDNA.

    Raises:
        HostError: it is neither a name nor an address.
    """
    if text.startswith("["):
        if not text.endswith("]"):
            raise HostError("an IPv6 address needs both brackets")
        return _ipv6(text[1:-1])
    if ":" in text:
        return _ipv6(text)
    name = (text if text.isascii() else _idna(text)).lower().removesuffix(".")
    try:
        address = IPv4Address(name)
    except ValueError:
        pass
    else:
        return Host(str(address), address)
    if len(name) > 253 or not _NAME.match(name):
        raise HostError("a host is a name of letters, digits, hyphens and dots, or an IP address")
    return Host(name, is_ambiguous=_NUMBER.match(name.rpartition(".")[2]) is not None)


def _ipv6(text: str) -> Host:
    try:
        # A zone names an interface of the host, which a client of the proxy has no business with.
        address = IPv6Address(text) if "%" not in text else None
    except ValueError:
        address = None
    if address is None:
        raise HostError("the IPv6 address is not valid")
    mapped = address.ipv4_mapped
    # Before Python 3.13 its text has hexadecimal digits.
    return Host(str(address) if mapped is None else f"::ffff:{mapped}", address)


def _idna(text: str) -> str:
    import idna  # 15 ms, and hardly ever needed

    try:
        return idna.encode(text, uts46=True).decode("ascii")
    except (idna.IDNAError, UnicodeError):
        raise HostError("the name cannot be encoded by IDNA") from None


def split_port(text: str) -> tuple[str, int | None]:
    """Split `host:port`, `[address]:port` or a host alone; the host is not checked.

    Raises:
        HostError: the port is not a number of 1 to 65,535.
    """
    host, colon, port = text.rpartition(":")
    if not colon or text.endswith("]") or (":" in host and not host.endswith("]")):
        return text, None
    if not _PORT.match(port) or not 0 < int(port) < 65_536:
        raise HostError("a port is a number from 1 to 65535")
    return host, int(port)


def is_local(address: Address) -> bool:
    """Whether an address is none of the public internet's.

    Private, loopback, link-local, shared and multicast addresses are local, also inside an IPv6 address, and
    all that IANA keeps for documentation, tests and protocols.
    """
    if isinstance(address, IPv4Address):
        return any(address in network for network in _LOCAL_V4)
    inside = address.ipv4_mapped
    if address in _NAT64:
        inside = IPv4Address(int(address) & 0xFFFF_FFFF)
    if inside is not None:
        return is_local(inside)
    return address not in _GLOBAL_V6 or any(address in network for network in _LOCAL_V6)


def is_local_host(host: Host) -> bool:
    """Whether a host is local by its text: a local address, or `localhost`."""
    return host.text == "localhost" if host.address is None else is_local(host.address)


def unmapped(address: Address) -> Address:
    """The IPv4 address that is mapped into an IPv6 address: connections to either reach the same host."""
    return (address.ipv4_mapped if isinstance(address, IPv6Address) else None) or address


def address_of(sockaddr_host: str) -> Address:
    """The address in the first item of a socket address, without its zone."""
    return ipaddress.ip_address(sockaddr_host.partition("%")[0])
