"""The settings of `execserver relay serve`, checked before anything is bound, and the state folder.

A relay reads no configuration file and no environment variables: its command line has every setting.
"""

from __future__ import annotations

import ipaddress
import os
import re
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from execprotocol.relay.contract import ContractError, check_environment_id
from execprotocol.trust import UntrustedError, check_way
from execserver.private_folder import FolderError, lock, open_private

_PREFIX = re.compile(r"(?:/[A-Za-z0-9._~-]+)*")
"""A path that has the same form with and without percent-encoding."""

_HOST = re.compile(
    r"(?:[A-Za-z0-9](?:[A-Za-z0-9-]{0,62})(?:\.[A-Za-z0-9][A-Za-z0-9-]{0,62})*\.?|\[[0-9A-Fa-f:.]{2,45}\])"
    r"(?::[0-9]{1,5})?"
)
"""A name, an IPv4 address or a bracketed IPv6 address, with an optional port."""

MAX_HOST_CHARACTERS = 255
"""The limit of DNS."""


LOCK_NAME = "relay.lock"


class RelaySettingsError(Exception):
    """A flag has an unusable value. The text names the flag and the remedy."""


@dataclass(frozen=True, slots=True)
class ListenAddress:
    """An address to listen on: a literal IP address and port, and the path prefix of all routes."""

    scheme: str
    host: str
    port: int
    prefix: str = ""

    def url(self, port: int) -> str:
        """The address as a URL, with the bound port."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{host}:{port}{self.prefix}"


@dataclass(frozen=True, slots=True)
class RelaySettings:
    """The settings of a relay.

    Args:
        listen: the address for executors and clients.
        state_dir: the folder of tokens, control socket and lock.
        certificate: a PEM file with the chain, for https.
        key: a PEM file with its private key.
        public_url: `https://HOST/PREFIX` under which peers reach the relay, without a slash at the end;
            empty: by the `Host` header of each request.
        plain_environments: environments with a plain WebSocket (`--plain-door`).
        metrics: the address of the metrics besides the control socket; None: no other.
    """

    listen: ListenAddress
    state_dir: Path
    certificate: Path | None = None
    key: Path | None = None
    public_url: str = ""
    plain_environments: frozenset[str] = frozenset()
    metrics: ListenAddress | None = None
    log_level: str = "info"
    log_format: str = "auto"

    def __post_init__(self) -> None:
        """Refuse combinations that cannot be used.

        Raises:
            RelaySettingsError: names the flags and the remedy.
        """
        if self.listen.scheme == "https":
            if self.certificate is None or self.key is None:
                raise RelaySettingsError("--listen https://… needs --tls-cert FILE and --tls-key FILE")
        elif self.certificate is not None or self.key is not None:
            raise RelaySettingsError("--tls-cert and --tls-key are for --listen https://IP:PORT")
        elif not ipaddress.ip_address(self.listen.host).is_loopback:
            raise RelaySettingsError(
                f"--listen {self.listen.url(self.listen.port)}: tokens would be sent in the clear. "
                "Use https://… with --tls-cert and --tls-key, or listen on http://127.0.0.1:PORT behind a "
                "proxy that speaks TLS, and name its address with --public-url"
            )

    @classmethod
    def parse(
        cls,
        *,
        listen: str,
        state_dir: str,
        tls_cert: str | None = None,
        tls_key: str | None = None,
        public_url: str = "",
        plain_door: list[str] | None = None,
        metrics_listen: str | None = None,
        log_level: str = "info",
        log_format: str = "auto",
    ) -> RelaySettings:
        """Parse the values of the flags.

        Raises:
            RelaySettingsError: names the flag, the fault and the remedy.
        """
        environments = []
        for each in plain_door or ():
            try:
                environments.append(check_environment_id(each))
            except ContractError as error:
                raise RelaySettingsError(f"--plain-door {each!r}: {error}") from None
        metrics = None
        if metrics_listen is not None:
            metrics = _address("--metrics-listen", metrics_listen, ("http",))
            if metrics.prefix:
                raise RelaySettingsError("--metrics-listen takes no path: http://IP:PORT")
        return cls(
            listen=_address("--listen", listen, ("http", "https")),
            state_dir=Path(state_dir).absolute(),
            certificate=Path(tls_cert).absolute() if tls_cert is not None else None,
            key=Path(tls_key).absolute() if tls_key is not None else None,
            public_url=_public(public_url) if public_url else "",
            plain_environments=frozenset(environments),
            metrics=metrics,
            log_level=log_level,
            log_format=log_format,
        )


class StateDirError(Exception):
    """The state folder cannot be used. The text names the remedy."""


class StateDir:
    """The state folder, locked until `close`. Only its owner may use it.

    Args:
        path: absolute; created with mode 0700 if it is missing.

    Raises:
        StateDirError: other users may read or replace the folder, it belongs to another user, or another
            relay has locked it.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            check_way(str(path))
            self.descriptor = open_private(str(path))
        except (FolderError, UntrustedError) as error:
            raise StateDirError(f"--state-dir: {error}") from None
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        try:
            self._lock = os.open(LOCK_NAME, flags, 0o600, dir_fd=self.descriptor)
        except OSError as error:
            os.close(self.descriptor)
            raise StateDirError(f"--state-dir {path}: {LOCK_NAME}: {error.strerror}") from None
        if not lock(self._lock):
            holder = os.pread(self._lock, 20, 0).decode(errors="replace").strip()
            self.close()
            raise StateDirError(
                f"--state-dir {path} is in use by the relay with process id {holder or '?'}; stop it, "
                "or give this one a folder of its own"
            )
        os.ftruncate(self._lock, 0)
        os.pwrite(self._lock, f"{os.getpid()}\n".encode(), 0)

    def close(self) -> None:
        """Release the folder."""
        os.close(self._lock)
        os.close(self.descriptor)


def is_host(text: str) -> bool:
    """Whether a text can be the host of a URL that the relay hands out."""
    if len(text) > MAX_HOST_CHARACTERS or _HOST.fullmatch(text) is None:
        return False
    if text.startswith("["):
        address, _, rest = text[1:].partition("]")
        try:
            ipaddress.IPv6Address(address)
        except ValueError:
            return False
        text = f"x{rest}"
    _, colon, port = text.partition(":")
    return not colon or 0 < int(port) < 65536


def _address(flag: str, text: str, schemes: tuple[str, ...]) -> ListenAddress:
    forms = ", ".join(f"{scheme}://IP:PORT" for scheme in schemes)
    problem = RelaySettingsError(
        f"{flag} {text!r} is not accepted; give a literal address and a port: {forms} "
        "([v6] in brackets, port 0 for any)"
    )
    try:
        parts = urlsplit(text)
        host, port = parts.hostname, parts.port
        address = ipaddress.ip_address(host or "")
    except ValueError:
        raise problem from None
    strange = parts.query or parts.fragment or "@" in parts.netloc or "%" in parts.netloc
    if parts.scheme not in schemes or port is None or strange:
        raise problem
    return ListenAddress(parts.scheme, str(address), port, _prefix(flag, parts.path))


def _prefix(flag: str, path: str) -> str:
    prefix = path.rstrip("/")
    if _PREFIX.fullmatch(prefix) is None or {".", ".."} & set(prefix.split("/")):
        raise RelaySettingsError(
            f"{flag}: the path {path!r} may have letters, digits and . _ ~ - between slashes"
        )
    return prefix


def _public(text: str) -> str:
    problem = RelaySettingsError(
        f"--public-url {text!r} is not accepted; give https://HOST[:PORT][/PATH], "
        "as peers are to reach the relay"
    )
    try:
        parts = urlsplit(text)
    except ValueError:
        raise problem from None
    if parts.scheme not in ("http", "https") or not is_host(parts.netloc) or parts.query or parts.fragment:
        raise problem
    return f"{parts.scheme}://{parts.netloc}{_prefix('--public-url', parts.path)}"
