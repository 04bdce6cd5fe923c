"""Stdio, Unix sockets and WebSocket: listeners, their authentication, and the channels that
connections speak through.
"""

from execserver.transports.authentication import (
    AuthenticationOptions,
    Authenticator,
    ConfigurationError,
    NoAuthentication,
    authenticator_from,
)
from execserver.transports.sockets import Listener, serve_socket
from execserver.transports.stdio import serve_stdio
from execserver.transports.stream_channel import StreamChannel

__all__ = [
    "AuthenticationOptions",
    "Authenticator",
    "ConfigurationError",
    "Listener",
    "NoAuthentication",
    "StreamChannel",
    "authenticator_from",
    "serve_socket",
    "serve_stdio",
]
