"""The network proxy of one process, served on listeners until it is cancelled."""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import NamedTuple

from execserver.network.rules import Decider, NetworkDecision, ProxyPolicy


class Listeners(NamedTuple):
    """The sockets of a proxy, bound and listening; they may belong to another network namespace."""

    http: socket.socket
    """Plain HTTP requests and CONNECT."""

    socks: socket.socket | None
    """SOCKS5; null if the settings do not enable it."""


async def serve(
    listeners: Listeners,
    policy: ProxyPolicy,
    asks: Decider | None,
    report: Callable[[NetworkDecision], None],
) -> None:
    """Serve a proxy until the task is cancelled; then close its listeners and connections.

    Args:
        listeners: owned from now on.
        policy: what is permitted.
        asks: called for hosts without a verdict, if `policy.decision_timeout_s` is set. An answer of `allow`
            or `deny` is kept for the life of the proxy.
        report: called with each decision; it must not block.
    """
    raise NotImplementedError
