"""The relay's listening sockets, and the certificate that they show.

A socket that a service manager opened and keeps is used if it has the address of `--listen`: while the relay
is started anew, peers wait in its backlog instead of being refused.
"""

from __future__ import annotations

import os
import socket
import ssl
from collections.abc import MutableMapping
from dataclasses import replace

from execprotocol.trust import UntrustedError, open_trusted
from execserver.relay.service.settings import ListenAddress, RelaySettings
from execserver.supervisor import activation, listeners

BACKLOG = 4096
"""After a restart of the relay all its peers come at once; the kernel caps it by somaxconn."""


class RelayListenError(Exception):
    """Something cannot be served on, with a text for the user."""


def listen(address: ListenAddress, environment: MutableMapping[str, str]) -> socket.socket:
    """Serve on an address: on the socket that was passed to this process (sd_listen_fds(3)), or on a new one.

    Args:
        address: of `--listen`.
        environment: `LISTEN_FDS` and its companions, which are taken out.

    Raises:
        RelayListenError: not possible, or what was passed is something else.
    """
    try:
        passed = activation.take_descriptors(environment)
        found = [activation.listener_on(descriptor, name) for descriptor, name in passed]
    except listeners.ListenError as error:
        raise RelayListenError(str(error)) from None
    if not found:
        return bind("--listen", address)
    asked = replace(address, scheme="ws", prefix="").url(address.port)  # as the listener calls itself
    other = next((each for each in found if each.url != asked), found[1] if len(found) > 1 else None)
    if other is not None:
        raise RelayListenError(
            f"the service manager passed a socket that listens on {other.url.removeprefix('ws://')}, and "
            f"--listen says {address.url(address.port)}: it must pass one socket, with that address"
        )
    (given,) = found
    listening = socket.socket(fileno=os.dup(given.descriptors[0]))
    given.close()
    listening.setblocking(False)
    return listening


def bind(flag: str, address: ListenAddress) -> socket.socket:
    """Listen on an address.

    Args:
        flag: that named it, for errors.
        address: where; port 0 takes a free one.

    Raises:
        RelayListenError: not possible.
    """
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    listening = socket.socket(family, socket.SOCK_STREAM)
    try:
        # A restart must not wait for old connections in TIME_WAIT.
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((address.host, address.port))
        listening.listen(BACKLOG)
        listening.setblocking(False)
    except OSError as error:
        listening.close()
        raise RelayListenError(f"{flag} {address.url(address.port)}: {error.strerror}") from None
    return listening


def tls_context(settings: RelaySettings) -> ssl.SSLContext | None:
    """What the listener needs for https; None without.

    Raises:
        RelayListenError: the certificate or its key cannot be used.
    """
    if settings.certificate is None:
        return None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    load_certificate(context, settings)
    return context


def load_certificate(context: ssl.SSLContext, settings: RelaySettings) -> None:
    """Read certificate and key, for connections from now on. The old ones stay when they cannot be used.

    Raises:
        RelayListenError: they cannot be, and why.
    """
    assert settings.certificate is not None, "only called with TLS"
    assert settings.key is not None, "settings have both or neither"
    try:
        # TLS opens them by their names once more: no other user can put other files there.
        os.close(open_trusted(str(settings.certificate)))
        os.close(open_trusted(str(settings.key), secret=True))
        # Tried elsewhere first: a context that has taken a certificate and then refuses the key beside it has
        # none at all. A password would be asked for on a terminal that nobody watches.
        for each in (ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), context):
            each.load_cert_chain(settings.certificate, settings.key, password=_no_password)
    except ssl.SSLError as error:
        reason = error.reason or "not a certificate chain and its key, in PEM"
        raise RelayListenError(
            f"--tls-cert {settings.certificate}, --tls-key {settings.key}: {reason}"
        ) from None
    except (UntrustedError, OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise RelayListenError(
            f"--tls-cert {settings.certificate}, --tls-key {settings.key}: {reason}"
        ) from None


def _no_password() -> str:
    raise ValueError("the key has a password; give one without, in a file that only the relay can read")
