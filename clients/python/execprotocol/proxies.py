"""The proxy through which a program dials out, given explicitly or by the usual variables.

    http://[USER:PASSWORD@]HOST[:PORT]     the proxy itself is reached in plain text
    https://…                              the proxy itself is reached over TLS
    socks5h://…, socks5://…                SOCKS5; the proxy resolves the names

The TLS of the target is inside the tunnel and is verified against the target's name: a proxy sees the
target's host and port, and no token. Credentials appear in no error, log or `repr`.

The module loads nothing of a network library: the daemon's `http/request` uses its rules, too.
`docs/protocol.md`, "Relay".
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import SplitResult, quote, unquote, urlsplit

PROXY_VARIABLE = "EXECSERVER_PROXY"

DEFAULT_PORTS = {"http": 80, "https": 443, "socks5": 1080, "socks5h": 1080}
"""By the scheme of a proxy. As curl, except for 80 (1080 in curl), which is the scheme's."""

MAX_SOCKS_CREDENTIAL = 255
"""Bytes of a user's name, and of a password, for SOCKS5."""

CREDENTIALS_REQUIRED = 407

_FORMS = "http://[USER:PASSWORD@]HOST[:PORT], https://… or socks5h://…"
_STATUS = re.compile(r"\b([1-5][0-9]{2})\b")
_UNREACHABLE = (502, 503, 504)


class ProxyFailed(OSError):
    """There is no connection through a proxy.

    The message names the proxy and its source, without credentials, and says what to change.
    """


@dataclass(frozen=True, slots=True)
class Proxy:
    """A proxy.

    Attributes:
        scheme: `http`, `https` or `socks5h`.
        host: its name or address, without brackets.
        port: its port.
        source: the option or variable that named it, for people.
        credentials: user and password; None without.
    """

    scheme: str
    host: str
    port: int
    source: str
    credentials: tuple[str, str] | None = field(default=None, repr=False)

    @property
    def shown(self) -> str:
        """Its URL without credentials."""
        return f"{self.scheme}://{self._authority}"

    @property
    def is_socks(self) -> bool:
        """Whether it is a SOCKS5 proxy."""
        return self.scheme == "socks5h"

    @property
    def url(self) -> str:
        """Its URL with the credentials."""
        if self.credentials is None:
            return self.shown
        user, password = (quote(part, safe="") for part in self.credentials)
        return f"{self.scheme}://{user}:{password}@{self._authority}"

    @property
    def _authority(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    def unreachable(self, why: str) -> ProxyFailed:
        """The error if the proxy itself cannot be connected to."""
        return ProxyFailed(
            f"cannot reach the proxy {self.shown}: {why}. It is from {self.source}; a host that needs no "
            "proxy goes into NO_PROXY"
        )

    def refusal(self, text: str) -> ProxyFailed:
        """The error if the proxy did not open a tunnel.

        Args:
            text: of the library. If a status is in it, it decides the message.
        """
        found = _STATUS.search(text)
        status = int(found[1]) if found is not None else 0
        if status == CREDENTIALS_REQUIRED:
            lacks = "wants credentials" if self.credentials is None else "does not accept the credentials"
            return ProxyFailed(
                f"the proxy {self.shown} {lacks} (407): give them in {self.source}, as "
                f"{self.scheme}://USER:PASSWORD@HOST:PORT"
            )
        if status in _UNREACHABLE:
            return ProxyFailed(f"the proxy {self.shown} cannot reach the host ({status})")
        if status:
            return ProxyFailed(
                f"the proxy {self.shown} refuses to connect to the host ({status}): have its operator "
                f"allow CONNECT to the host and port, or change {self.source}"
            )
        return ProxyFailed(f"the proxy {self.shown} opened no tunnel: {text or 'it hung up'}")


class ProxyVariables:
    """`HTTP_PROXY`, `HTTPS_PROXY`, `ALL_PROXY` and `NO_PROXY`, each also in small letters; capitals have
    priority.

    An entry of `NO_PROXY` is `*`, an address, a network, or a name, which covers the names below it, too.

    Args:
        environment: the variables.
    """

    def __init__(self, environment: Mapping[str, str]) -> None:
        # A CGI program gets the header `Proxy` of its client as HTTP_PROXY.
        plain = "" if "REQUEST_METHOD" in environment else _value(environment, "HTTP_PROXY")
        self._values = {
            "HTTP_PROXY": plain,
            "HTTPS_PROXY": _value(environment, "HTTPS_PROXY"),
            "ALL_PROXY": _value(environment, "ALL_PROXY"),
        }
        self._exceptions = _value(environment, "NO_PROXY").replace(",", " ").split()

    def of(self, scheme: str, host: str) -> tuple[str, str] | None:
        """The variable for a target, and its value; None to connect directly.

        Args:
            scheme: `http` or `https`.
            host: in lower case; an IPv6 address may have brackets.
        """
        if any(_matches(entry, host) for entry in self._exceptions):
            return None
        for name in (f"{scheme.upper()}_PROXY", "ALL_PROXY"):
            if self._values[name]:
                return name, self._values[name]
        return None


class Proxies:
    """Chooses the proxy of each connection.

    Args:
        explicit: the URL that was given for all connections; None or empty: the variables decide.
        source: the option that `explicit` is from, for errors.
        environment: the variables.

    Raises:
        ValueError: `explicit` is invalid. The text does not quote it.
    """

    def __init__(self, explicit: str | None, source: str, environment: Mapping[str, str]) -> None:
        self._explicit = _parsed(explicit, source) if explicit else None
        self._variables = ProxyVariables(environment)

    def of(self, url: SplitResult) -> Proxy | None:
        """The proxy for a URL of `http`, `https`, `ws` or `wss`; None to connect directly.

        Loopback addresses and `localhost` have none: to a proxy they mean its own machine, and a token that
        is sent unencrypted because its way does not leave this machine would reach another one.

        Raises:
            ProxyFailed: a variable for this URL is invalid.
        """
        host = url.hostname or ""
        if _is_loopback(host):
            return None
        if self._explicit is not None:
            return self._explicit
        found = self._variables.of("https" if url.scheme in ("https", "wss") else "http", host)
        if found is None:
            return None
        try:
            return _parsed(found[1], found[0])
        except ValueError as error:
            raise ProxyFailed(str(error)) from None


def check_proxy_url(url: str) -> str:
    """Return the URL of a proxy if it is valid.

    Raises:
        ValueError: the URL is invalid. The text does not quote it.
    """
    _parsed(url)
    return url


def _parsed(text: str, source: str = "") -> Proxy:
    try:
        parts = urlsplit(text if "://" in text else f"http://{text}")
        host, port = parts.hostname, parts.port
    except ValueError:
        host = port = parts = None
    if (
        parts is None
        or not host
        or port == 0
        or parts.scheme not in DEFAULT_PORTS
        or parts.path not in ("", "/")
        or parts.query
        or parts.fragment
        or any(not "!" <= character <= "~" for character in text)
    ):
        # Not shown, because it may contain a password.
        raise ValueError(f"{source} must be the URL of a proxy, {_FORMS}".lstrip())
    credentials = None
    if parts.username or parts.password:
        credentials = unquote(parts.username or ""), unquote(parts.password or "")
    scheme = "socks5h" if parts.scheme == "socks5" else parts.scheme
    if scheme == "socks5h" and credentials is not None:
        for each in credentials:
            # The libraries raise anything for others, and an error may quote a character.
            if len(each) > MAX_SOCKS_CREDENTIAL or not each.isascii():
                raise ValueError(
                    f"{source} must have a user and a password of at most {MAX_SOCKS_CREDENTIAL} ASCII "
                    "characters each, as it names a SOCKS5 proxy".lstrip()
                )
    return Proxy(scheme, host, port or DEFAULT_PORTS[scheme], source, credentials)


def _value(environment: Mapping[str, str], name: str) -> str:
    return environment.get(name, environment.get(name.lower(), "")).strip()


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _matches(entry: str, host: str) -> bool:
    """Whether an entry of `NO_PROXY` covers a host."""
    if entry == "*":
        return True
    try:
        address = ipaddress.ip_address(host.strip("[]"))
    except ValueError:
        name = entry.lower().removeprefix(".")
        return host == name or host.endswith(f".{name}")
    try:
        return address in ipaddress.ip_network(entry.strip("[]"), strict=False)
    except ValueError:
        return False
