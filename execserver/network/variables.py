"""The variables by which programs find a network proxy: names and values are exactly the reference's."""

from __future__ import annotations

from typing import NamedTuple

_HTTP = (
    "HTTP_PROXY",
    "HTTPS_PROXY",
    "WS_PROXY",
    "WSS_PROXY",
    "http_proxy",
    "https_proxy",
    "ws_proxy",
    "wss_proxy",
    "npm_config_proxy",
    "npm_config_http_proxy",
    "npm_config_https_proxy",
    "NPM_CONFIG_PROXY",
    "NPM_CONFIG_HTTP_PROXY",
    "NPM_CONFIG_HTTPS_PROXY",
    "YARN_HTTP_PROXY",
    "YARN_HTTPS_PROXY",
    "BUNDLE_HTTP_PROXY",
    "BUNDLE_HTTPS_PROXY",
    "PIP_PROXY",
    "DOCKER_HTTP_PROXY",
    "DOCKER_HTTPS_PROXY",
)

_ANY = ("ALL_PROXY", "all_proxy", "FTP_PROXY", "ftp_proxy")
"""These name the SOCKS proxy if there is one."""

_WITHOUT = ("NO_PROXY", "no_proxy", "npm_config_noproxy", "NPM_CONFIG_NOPROXY", "BUNDLE_NO_PROXY")

_LOCAL = "localhost,127.0.0.1,::1,10.0.0.0/8,172.16.0.0/12,192.168.0.0/16"
"""Connected to without the proxy if local addresses are permitted: the namespace of a sandbox has its own
loopback, and nothing else."""


class Ports(NamedTuple):
    """The ports of a proxy on 127.0.0.1, as the command sees them."""

    http: int
    socks: int | None
    """None without SOCKS5."""


def proxy_variables(ports: Ports, *, allow_local_binding: bool) -> dict[str, str]:
    """The variables for a command; they replace those of the same names.

    Args:
        ports: where the proxy listens.
        allow_local_binding: the setting of that name.
    """
    http = f"http://127.0.0.1:{ports.http}"
    anything = http if ports.socks is None else f"socks5h://127.0.0.1:{ports.socks}"
    return {
        **dict.fromkeys(_HTTP, http),
        **dict.fromkeys(_ANY, anything),
        **dict.fromkeys(_WITHOUT, _LOCAL if allow_local_binding else ""),
        "CODEX_NETWORK_PROXY_ACTIVE": "1",
        "CODEX_NETWORK_ALLOW_LOCAL_BINDING": "1" if allow_local_binding else "0",
        "NODE_USE_ENV_PROXY": "1",
        "ELECTRON_GET_USE_PROXY": "true",
    }
