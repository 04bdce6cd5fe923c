"""The rules of the daemon's TCP listeners for another HTTP server of this installation: `execserver mcp`."""

from __future__ import annotations

import socket
from collections.abc import Collection, Iterable
from http import HTTPStatus

from execserver.local_peers import tcp_fault
from execserver.transports.authentication import AuthenticationOptions, Credentials, Folder
from execserver.transports.http_upgrade import Decision, Head, HttpPage, PageContent, decide

_PATH = "/"
_ADMITTED = {_PATH: HttpPage(lambda head: PageContent())}

CONFINED = (
    "this listener asks for no credentials, and takes no client from a sandbox or a container: {fault}. "
    "Start the server with --ws-auth, and give the client its token"
)


class HttpGuard:
    """Decides on requests: by `Origin`, `Host`, credentials, and without these by the peer.

    Args:
        options: the `--ws-…` options.
        base: the folder of relative file names.
        host_names: the names that `Host` may have besides literal addresses and `localhost`.

    Raises:
        ConfigurationError: as `authenticator_from`.
    """

    def __init__(self, options: AuthenticationOptions, base: Folder, host_names: Collection[str]) -> None:
        self._credentials = Credentials(options, base)
        # No name server is asked for it, so no web page can give it another address.
        self._host_names = {"localhost", *(name.lower() for name in host_names)}

    @property
    def required(self) -> bool:
        """Whether clients must present credentials."""
        return self._credentials.required

    def refusal(self, headers: Iterable[tuple[str, str]], peer: socket.socket) -> tuple[int, str] | None:
        """The status and the text of the refusal; None if the request is admitted.

        Without credentials this takes some milliseconds; for any thread.

        Args:
            headers: the headers of the request, their names in small letters.
            peer: the accepted socket.
        """
        given = tuple(headers)
        # A page of this very server is none of another site. The protocol's own tests send such an `Origin`.
        own = {("origin", f"http://{value}") for name, value in given if name == "host"}
        head = Head("GET", _PATH, "1.1", tuple(each for each in given if each not in own))
        decision = decide(head, self._credentials, self._host_names, pages=_ADMITTED)
        assert isinstance(decision, Decision)  # the page is shown at once
        if decision.status is not HTTPStatus.OK:
            return decision.status, decision.response.partition(b"\r\n\r\n")[2].decode()
        if self.required:
            return None
        try:
            fault = tcp_fault(peer)
        except OSError as error:
            return HTTPStatus.SERVICE_UNAVAILABLE, f"the peer cannot be looked at ({error.strerror})"
        return None if fault is None else (HTTPStatus.FORBIDDEN, CONFINED.format(fault=fault))
