"""The relay's listening sockets and its certificate.

A socket passed by a service manager is used if it has the address of `--listen`: while the relay restarts,
peers wait in its backlog instead of being refused.
"""

from __future__ import annotations

import os
import socket
import ssl
from collections.abc import MutableMapping
from dataclasses import replace

from execprotocol.trust import UntrustedError, open_trusted
from execserver.relay.service.settings import ListenAddress, RelaySettings
from execserver.supervisor import activation, listener

BACKLOG = 4096
"""After a restart of the relay all its peers connect at once. The kernel caps it by somaxconn."""


class RelayListenError(Exception):
    """A listener or its certificate cannot be used. The text is for the user."""


def listen(address: ListenAddress, environment: MutableMapping[str, str]) -> socket.socket:
    """Listen on an address: on the socket that was passed to this process (sd_listen_fds(3)), or a new one.

    Args:
        address: of `--listen`.
        environment: environment variables; `LISTEN_FDS` and its companions are removed.

    Raises:
        RelayListenError: the address cannot be bound, or the passed socket has another address.
    """
    try:
        passed = activation.take_descriptors(environment)
        found = [activation.listener_on(descriptor, name) for descriptor, name in passed]
    except listener.ListenError as error:
        raise RelayListenError(str(error)) from None
    if not found:
        return bind_address("--listen", address)
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


def bind_address(flag: str, address: ListenAddress) -> socket.socket:
    """Listen on an address.

    Args:
        flag: the flag with the address, for errors.
        address: port 0 takes a free port.

    Raises:
        RelayListenError: the address cannot be bound.
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
    """The TLS context for https; None for http.

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
    """Load certificate and key for new connections. If they cannot be used, the context keeps the old ones.

    Raises:
        RelayListenError: they cannot be used.
    """
    assert settings.certificate is not None, "only called with TLS"
    assert settings.key is not None, "settings have both or neither"
    try:
        # The context opens the files again by name; other users cannot replace them meanwhile.
        os.close(open_trusted(str(settings.certificate)))
        os.close(open_trusted(str(settings.key), secret=True))
        # Tried on another context first: one that loads a certificate and then refuses its key has neither.
        # Without a password callback, OpenSSL would prompt on the terminal.
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
