"""The HTTP proxy that the daemon's environment names, through which network proxies may connect.

The server reads its URL too, and does not load the modules of a proxy for that.
"""

from __future__ import annotations

from base64 import b64encode
from typing import NamedTuple
from urllib.parse import unquote_to_bytes, urlsplit

from execserver.network.addresses import Host, parse_host


class UpstreamProxy(NamedTuple):
    """An HTTP proxy, reached without TLS."""

    host: Host
    port: int

    headers: list[tuple[bytes, bytes]]
    """For this proxy: its credentials."""


def parse_upstream(text: str) -> UpstreamProxy:
    """Read the URL of a proxy; without a scheme it is an HTTP proxy.

    Raises:
        ValueError: it is not the URL of an HTTP proxy. The text does not show it: it may have a password.
    """
    try:
        url = urlsplit(text if "://" in text else f"http://{text}")
        host, port = parse_host(url.hostname or ""), url.port or 80
    except ValueError:
        raise ValueError("the URL of the upstream proxy has no valid host and port") from None
    if url.scheme != "http":
        raise ValueError(f"an upstream proxy is reached by http://, and not by {url.scheme}://")
    headers = []
    if url.username or url.password:
        secret = unquote_to_bytes(url.username or "") + b":" + unquote_to_bytes(url.password or "")
        headers.append((b"Proxy-Authorization", b"Basic " + b64encode(secret)))
    return UpstreamProxy(host, port, headers)
