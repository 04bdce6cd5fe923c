"""Which proxy a request goes through, by the variables of the environment. Pure.

`HTTP_PROXY`, `HTTPS_PROXY`, `ALL_PROXY` and `NO_PROXY`, each also in small letters; the capital one wins.
`docs/protocol.md`, "HTTP".
"""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from urllib.parse import unquote_to_bytes

import msgspec

from execserver.http.request import Target, UrlError, as_browsers_read


class ProxyError(Exception):
    """The proxy of a request cannot be used."""


class Proxy(msgspec.Struct, frozen=True):
    """An HTTP proxy, itself reached by http or https."""

    scheme: str
    host: str
    port: int
    credentials: tuple[bytes, bytes] | None


class Proxies:
    """The choice that an environment makes."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        every = _value(environment, "ALL_PROXY")
        # A CGI program gets the header `Proxy` of its client as HTTP_PROXY.
        plain = "" if "REQUEST_METHOD" in environment else _value(environment, "HTTP_PROXY")
        self._urls = {"http": plain or every, "https": _value(environment, "HTTPS_PROXY") or every}
        self._exceptions = [
            entry for part in _value(environment, "NO_PROXY").split(",") if (entry := part.strip())
        ]

    def of(self, target: Target) -> Proxy | None:
        """The proxy for a target, or None to connect to it directly.

        Raises:
            ProxyError: the proxy is of a kind that is not there.
        """
        url = self._urls[target.scheme]
        if not url or any(_matches(entry, target.host) for entry in self._exceptions):
            return None
        return _parse(url)


def _value(environment: Mapping[str, str], name: str) -> str:
    return environment.get(name, environment.get(name.lower(), "")).strip()


def _parse(text: str) -> Proxy | None:
    try:
        url = as_browsers_read(text if "://" in text else f"http://{text}")
    except UrlError:
        return None
    if url.scheme.startswith("socks"):
        raise ProxyError(
            "the executor's environment names a SOCKS proxy, and only HTTP proxies are supported"
        )
    if url.scheme not in ("http", "https") or not url.host or not url.port:
        return None
    credentials = None
    if url.username or url.password:
        credentials = unquote_to_bytes(url.username or ""), unquote_to_bytes(url.password or "")
    return Proxy(url.scheme, url.host.strip("[]"), url.port, credentials)


def _matches(entry: str, host: str) -> bool:
    """Whether an entry of `NO_PROXY` is about a host: `*`, an address, a network, or a name, which
    stands for the names below it too.
    """
    if entry == "*":
        return True
    try:
        address = ipaddress.ip_address(host.strip("[]"))
    except ValueError:
        name = entry.lower().removeprefix(".")
        return host == name or host.endswith(f".{name}")
    try:
        return address in ipaddress.ip_network(entry, strict=False)
    except ValueError:
        return False
