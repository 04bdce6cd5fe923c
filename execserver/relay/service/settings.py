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


_NATS_PREFIX = re.compile(r"[A-Za-z0-9_-]{1,32}")


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
class NatsSettings:
    """How a relay or a command reaches the NATS cluster of a fleet.

    Args:
        servers: the URLs, `nats://HOST:PORT` or `tls://HOST:PORT`, all with the same scheme.
        credentials: a file of NATS (.creds), or with one line: an nkey seed, USER:PASSWORD or a token.
        ca: the PEM file of the authorities that sign the servers' certificates; None: those of the system.
        certificate: a PEM file with the chain of this relay, if the servers ask for one.
        key: a PEM file with its private key.
        prefix: of all subjects and buckets: fleets with different prefixes may share a cluster.
        replicas: of each bucket; None: 3 in a cluster, 1 at a single server.
    """

    servers: tuple[str, ...]
    credentials: Path | None = None
    ca: Path | None = None
    certificate: Path | None = None
    key: Path | None = None
    prefix: str = "execserver"
    replicas: int | None = None

    @property
    def tls(self) -> bool:
        """Whether the servers must speak TLS."""
        return self.servers[0].startswith("tls://")

    @classmethod
    def parse(
        cls,
        servers: str | None,
        *,
        creds: str | None = None,
        ca: str | None = None,
        cert: str | None = None,
        key: str | None = None,
        prefix: str = "execserver",
        replicas: int | None = None,
    ) -> NatsSettings:
        """Parse the values of the flags `--nats…`.

        Args:
            servers: of `--nats`; None: it is missing.
            creds: of `--nats-creds`; and so on.
            ca: a path.
            cert: a path.
            key: a path.
            prefix: letters, digits, - and _.
            replicas: 1, 3 or 5.

        Raises:
            RelaySettingsError: names the flag, the fault and the remedy.
        """
        if servers is None:
            raise RelaySettingsError("the flags --nats-… are for --nats URL")
        urls = tuple(_nats_url(each.strip()) for each in servers.split(","))
        if len({each.partition(":")[0] for each in urls}) > 1:
            raise RelaySettingsError("--nats: all servers must have the same scheme, nats:// or tls://")
        if not urls[0].startswith("tls://") and (ca or cert or key):
            raise RelaySettingsError("--nats-ca, --nats-cert and --nats-key are for --nats tls://HOST:PORT")
        if (cert is None) != (key is None):
            raise RelaySettingsError("--nats-cert FILE and --nats-key FILE go together")
        if _NATS_PREFIX.fullmatch(prefix) is None:
            raise RelaySettingsError(
                f"--nats-prefix {prefix!r} is not accepted; give up to 32 letters, digits, - and _"
            )
        if replicas is not None and replicas not in (1, 3, 5):
            raise RelaySettingsError(f"--nats-replicas must be 1, 3 or 5, not {replicas}")
        return cls(urls, _path(creds), _path(ca), _path(cert), _path(key), prefix, replicas)


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
        nats: the cluster that this relay shares with others; None: it shares nothing.
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
    nats: NatsSettings | None = None

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
        nats: NatsSettings | None = None,
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
            certificate=_path(tls_cert),
            key=_path(tls_key),
            public_url=_public(public_url) if public_url else "",
            plain_environments=frozenset(environments),
            metrics=metrics,
            log_level=log_level,
            log_format=log_format,
            nats=nats,
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


def _path(text: str | None) -> Path | None:
    return None if text is None else Path(text).absolute()


def _nats_url(text: str) -> str:
    if "@" in text:
        raise RelaySettingsError(
            "--nats takes no user or password, which other users could read in the list of processes: "
            "--nats-creds names a file with them"
        )
    problem = (
        f"--nats {text!r} is not accepted; give nats://HOST:PORT or tls://HOST:PORT, with commas between"
    )
    try:
        parts = urlsplit(text)
        port = parts.port or 4222
    except ValueError:
        raise RelaySettingsError(problem) from None
    host = parts.netloc.removesuffix(f":{parts.port}")
    strange = parts.path.strip("/") or parts.query or parts.fragment
    if parts.scheme not in ("nats", "tls") or strange or not is_host(host):
        raise RelaySettingsError(problem)
    return f"{parts.scheme}://{host}:{port}"


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
