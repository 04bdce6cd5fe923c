"""The settings: the only place for their names, types, units, limits, defaults and descriptions.

**To add a setting, add a field to `Settings`.** The flag (`session_ttl` → `--session-ttl`), its help, the
variable (`EXECSERVER_SESSION_TTL`), the key of the file, its error texts, `execserver config show` and
`docs/reference/settings.md` (after `make schemas`) follow from it, and the tests of priority cover every
field. A field is `bool`, `int`, `float`, `str`, `Path`, a `Literal` of strings, one of these or None, or a
tuple of strings, which is a flag that may be repeated. Rules for *several* settings are checked where they
are used (`transports/authentication.py`, `preflight.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec

from execprotocol.relay.pools import MAX_CAPACITY, MAX_NAME, parse_labels
from execserver.limits.settings import LimitSettings, parsed
from execserver.processes.executor import ExecutorLimits
from execserver.relay.executor.options import RemoteOptions
from execserver.sandbox.options import SandboxOptions
from execserver.supervisor.listener import ListenError
from execserver.supervisor.listeners import listeners_from
from execserver.supervisor.remote import check_environment_id, check_pool, check_registry_url
from execserver.transports.authentication import DEFAULT_CLOCK_SKEW_SECONDS, AuthenticationOptions

if TYPE_CHECKING:
    from pathlib import Path

PREFIX = "EXECSERVER_"

GENERAL, WEBSOCKET, REMOTE, LIMITS, SANDBOX, LOGS = (
    "service",
    "WebSocket listeners",
    "remote executors",
    "limits",
    "sandboxes",
    "logs, on stderr",
)

_LIMITS = ExecutorLimits()
_TEN_YEARS = 10 * 365 * 24 * 3600
"""Longer waits overflow the clocks of timers, and are certainly a mistake."""


class SettingsError(Exception):
    """Some settings cannot be used. `problems` has a sentence for each, with its place and the accepted
    values.
    """

    def __init__(self, problems: list[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = problems


def _option(
    description: str,
    *,
    group: str,
    metavar: str | None = None,
    unit: str | None = None,
    unset: str | None = None,
    secret: bool = False,
    ge: float | None = None,
    gt: float | None = None,
    lt: float | None = None,
    check: Callable[[Any], Any] | None = None,
) -> Mapping[str, Any]:
    """The description of a field of `Settings`, for its annotation. Only `options.py` evaluates it: the
    server does not need it.

    Args:
        description: half a sentence in small letters, for the help and the reference page.
        group: the heading in both.
        metavar: the placeholder of the value in the help; None for switches and choices.
        unit: of a number, in words ("seconds"), for error texts and the reference page.
        unset: the effect of None or an empty value, for the same.
        secret: whether the value is never shown.
        ge: the least accepted number.
        gt: the lower bound of a number, not accepted itself.
        lt: the upper bound of a number, not accepted itself.
        check: takes a value of the right type and returns it in its final form, or raises a ValueError whose
            text says what is accepted.
    """
    words = {"description": description, "group": group, "metavar": metavar, "unit": unit, "unset": unset}
    limits = {name: limit for name, limit in (("ge", ge), ("gt", gt), ("lt", lt)) if limit is not None}
    return {**words, "secret": secret, "limits": limits, "check": check}


def _listen_urls(value: tuple[str, ...]) -> tuple[str, ...]:
    try:
        listeners_from(value)
    except ListenError as error:
        raise ValueError(str(error)) from None
    return value


def _registry_url(value: str) -> str:
    try:
        return check_registry_url(value)
    except ListenError as error:
        raise ValueError(str(error)) from None


def _proxy_url(value: str) -> str:
    # Here, because few daemons have a proxy.
    from execprotocol.proxies import check_proxy_url

    return check_proxy_url(value)


def _environment_id(value: str) -> str:
    try:
        return check_environment_id(value)
    except ListenError as error:
        raise ValueError(str(error)) from None


def _pool(value: str) -> str:
    try:
        return check_pool(value)
    except ListenError as error:
        raise ValueError(str(error)) from None


def _labels(value: tuple[str, ...]) -> tuple[str, ...]:
    parse_labels(value)
    return value


def _command_limits(value: tuple[str, ...]) -> tuple[str, ...]:
    parsed(value)
    return value


def _backend_name(value: str) -> str:
    if not value or value in ("none", "seccomp", "seatbelt"):
        raise ValueError("auto, bubblewrap, landlock, or the name of a backend from an installed package")
    return value


def _name(path: Path | None) -> str | None:
    return None if path is None else str(path)


_DEFAULT_LIMIT = _option(
    "a limit of each command with its descendants, unless its start asks for another: memory=SIZE "
    "(512M), pids=N, cpu=PERCENT (100 is one processor), io=WEIGHT, wall=SECONDS",
    group=LIMITS,
    metavar="NAME=VALUE",
    check=_command_limits,
    unset="none",
)
_MAX_LIMIT = _option(
    "the greatest limit that a start may ask for, in the same form, and the limit of one that asks for none",
    group=LIMITS,
    metavar="NAME=VALUE",
    check=_command_limits,
    unset="none",
)
_SANDBOXED_ONLY = _option("default_limit is for commands in a sandbox only", group=LIMITS)


class _ConnectionSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of how clients reach the daemon, and of when it lets them go."""

    listen: Annotated[
        tuple[str, ...],
        _option(
            "where to listen: unix:///PATH, ws://IP:PORT (a literal address, [v6] in brackets; port 0: a "
            "free one, printed on stdout), or stdio",
            group=GENERAL,
            metavar="URL",
            check=_listen_urls,
            unset="execserver.sock in $XDG_RUNTIME_DIR/execserver, $XDG_STATE_HOME/execserver or "
            "~/.local/state/execserver, by the first of these variables that is set",
        ),
    ] = ()
    drain_grace: Annotated[
        float,
        _option(
            "how long SIGTERM lets the sessions go on, while new ones are refused, before it ends the "
            "service; a second SIGTERM ends it at once",
            group=GENERAL,
            metavar="S",
            unit="seconds",
            ge=0,
            lt=_TEN_YEARS,
        ),
    ] = 0.0
    concurrent_requests: Annotated[
        int | None,
        _option(
            "requests of a connection that run at a time; 1: strictly one after the other",
            group=GENERAL,
            metavar="N",
            unset="no limit; the order is kept where it can be observed",
            ge=1,
        ),
    ] = None
    ws_auth: Annotated[
        Literal["capability-token", "signed-bearer-token"] | None,
        _option(
            "the credentials that a client must present", group=WEBSOCKET, unset="nothing, on loopback only"
        ),
    ] = None
    ws_token_file: Annotated[
        Path | None,
        _option(
            "the file with the capability token, of at least 6 bytes; not accessible to other users",
            group=WEBSOCKET,
            metavar="FILE",
        ),
    ] = None
    ws_token_sha256: Annotated[
        str | None,
        _option(
            "the token's SHA-256 digest in hexadecimal, instead of the token",
            group=WEBSOCKET,
            metavar="HEX",
            secret=True,
        ),
    ] = None
    ws_shared_secret_file: Annotated[
        Path | None,
        _option(
            "the file with the key of signed bearer tokens (HS256), of at least 32 bytes; not accessible to "
            "other users",
            group=WEBSOCKET,
            metavar="FILE",
        ),
    ] = None
    ws_issuer: Annotated[
        str | None,
        _option("the `iss` that signed tokens must have", group=WEBSOCKET, metavar="TEXT", unset="any"),
    ] = None
    ws_audience: Annotated[
        str | None,
        _option("the `aud` that signed tokens must have", group=WEBSOCKET, metavar="TEXT", unset="any"),
    ] = None
    ws_max_clock_skew_seconds: Annotated[
        int | None,
        _option(
            "tolerance for `exp` and `nbf` of signed tokens",
            group=WEBSOCKET,
            metavar="N",
            unit="seconds",
            unset=f"{DEFAULT_CLOCK_SKEW_SECONDS}",
            ge=0,
        ),
    ] = None
    ws_host: Annotated[
        tuple[str, ...],
        _option(
            "a name that the Host header may have, besides literal addresses",
            group=WEBSOCKET,
            metavar="NAME",
            unset="none",
        ),
    ] = ()
    allow_unauthenticated: Annotated[
        bool, _option("serve WebSockets without ws_auth on other addresses than loopback", group=WEBSOCKET)
    ] = False
    remote: Annotated[
        str | None,
        _option(
            "the registry through which clients reach this daemon, which dials out to its relay: "
            "https://HOST[:PORT][/PREFIX], http:// on loopback only; without `listen` there is no other "
            "listener",
            group=REMOTE,
            metavar="URL",
            check=_registry_url,
        ),
    ] = None
    environment_id: Annotated[
        str | None,
        _option(
            "the name of this daemon in the registry: letters, digits, - and _, at most 256",
            group=REMOTE,
            metavar="ID",
            check=_environment_id,
        ),
    ] = None
    pool: Annotated[
        str | None,
        _option(
            "instead of environment_id: the pool of this daemon, from which the relay chooses a daemon for "
            f"each client: letters, digits, - and _, at most {MAX_NAME}",
            group=REMOTE,
            metavar="NAME",
            check=_pool,
        ),
    ] = None
    label: Annotated[
        tuple[str, ...],
        _option(
            "with pool: a property that clients can ask for, NAME=VALUE or NAME",
            group=REMOTE,
            metavar="NAME[=VALUE]",
            check=_labels,
            unset="none",
        ),
    ] = ()
    capacity: Annotated[
        int | None,
        _option(
            "with pool: how many sessions the relay gives this daemon, those without a connection included",
            group=REMOTE,
            metavar="N",
            unset="any number",
            ge=1,
            lt=MAX_CAPACITY + 1,
        ),
    ] = None
    remote_token_file: Annotated[
        Path | None,
        _option(
            "the file with the executor's token, read at each request, not accessible to other users; or set "
            "the variable EXECSERVER_REMOTE_TOKEN to the token",
            group=REMOTE,
            metavar="FILE",
        ),
    ] = None
    remote_token_stdin: Annotated[
        bool, _option("the executor's token is the first line of standard input", group=REMOTE)
    ] = False
    remote_key_file: Annotated[
        Path | None,
        _option(
            "the file with the key that identifies this executor to clients; created if missing (mode 0600)",
            group=REMOTE,
            metavar="FILE",
            unset="a new key at each start of the service",
        ),
    ] = None
    remote_allowed_clients: Annotated[
        Path | None,
        _option(
            "the file with the key fingerprints of admitted clients, one a line; read again when it changes",
            group=REMOTE,
            metavar="FILE",
            unset="all clients that the registry vouches for",
        ),
    ] = None
    remote_exit_on_refusal: Annotated[
        bool,
        _option(
            "end the service when the registry refuses it for good (a wrong token); otherwise it retries",
            group=REMOTE,
        ),
    ] = False
    proxy: Annotated[
        str | None,
        _option(
            "the proxy for dialling out to the registry and its relay: http://[USER:PASSWORD@]HOST[:PORT], "
            "https:// or socks5h://; a password belongs in EXECSERVER_PROXY or the configuration file, as "
            "other users can see flags",
            group=REMOTE,
            metavar="URL",
            unset="HTTPS_PROXY, HTTP_PROXY, ALL_PROXY and NO_PROXY",
            secret=True,
            check=_proxy_url,
        ),
    ] = None


class Settings(_ConnectionSettings, frozen=True, kw_only=True):
    """The settings of one daemon. `effective.load` reads and checks them."""

    retained_output_bytes: Annotated[
        int,
        _option(
            "output kept for each process; above it, the oldest output is dropped",
            group=LIMITS,
            metavar="N",
            unit="bytes",
            ge=0,
        ),
    ] = _LIMITS.retained_output_bytes
    spool_max_bytes: Annotated[
        int,
        _option(
            "output kept on disk for all processes; above it, the process with the most output is trimmed "
            "first",
            group=LIMITS,
            metavar="N",
            unit="bytes",
            ge=1,
        ),
    ] = _LIMITS.spool_max_bytes
    # Measured in the reference: 80 s.
    session_ttl: Annotated[
        float,
        _option(
            "how long a session without a connection is kept, with all of its processes; hours are fine",
            group=LIMITS,
            metavar="S",
            unit="seconds",
            gt=0,
            lt=_TEN_YEARS,
        ),
    ] = 80.0
    max_session_ttl: Annotated[
        float,
        _option(
            "the longest time without a connection that a client may ask for its session (`run --detach "
            "--ttl`); never less than session_ttl",
            group=LIMITS,
            metavar="S",
            unit="seconds",
            gt=0,
            lt=_TEN_YEARS,
        ),
    ] = 7 * 24 * 3600.0
    process_ttl: Annotated[
        float,
        _option(
            "how long a closed process stays readable",
            group=LIMITS,
            metavar="S",
            unit="seconds",
            gt=0,
            lt=_TEN_YEARS,
        ),
    ] = _LIMITS.process_ttl
    proxy_connections: Annotated[
        int,
        _option(
            "how many connections a command may have at once through its network proxy; further ones are "
            "answered with status 503",
            group=LIMITS,
            metavar="N",
            ge=1,
            lt=1_000_000,
        ),
    ] = _LIMITS.proxy_connections
    proxy_max_bytes: Annotated[
        int | None,
        _option(
            "how much a command may send and receive through its network proxy; then each connection ends",
            group=LIMITS,
            metavar="N",
            unit="bytes",
            unset="no limit",
            ge=1,
        ),
    ] = _LIMITS.proxy_max_bytes
    stdio_spin_us: Annotated[
        int,
        _option(
            "on stdio, poll for the next request this long before sleeping: shorter round trips for more CPU "
            "time; 0 is off",
            group=LIMITS,
            metavar="N",
            unit="microseconds",
            ge=0,
        ),
    ] = 0
    default_limit: Annotated[tuple[str, ...], _DEFAULT_LIMIT] = ()
    max_limit: Annotated[tuple[str, ...], _MAX_LIMIT] = ()
    default_limit_sandboxed_only: Annotated[bool, _SANDBOXED_ONLY] = False
    spool_dir: Annotated[
        Path | None,
        _option(
            "the folder for output on disk and records of open sandboxes; private (mode 0700), created if "
            "missing",
            group=GENERAL,
            metavar="DIR",
            unset="$RUNTIME_DIRECTORY, else $XDG_STATE_HOME/execserver, else ~/.local/state/execserver",
        ),
    ] = None
    audit_dir: Annotated[
        Path | None,
        _option(
            "the folder that each act of a client is written down in, a line of JSON with the hash of the "
            "line before (`execserver audit verify`); created if missing (mode 0700), for one daemon",
            group=GENERAL,
            metavar="DIR",
            unset="acts are not written down",
        ),
    ] = None
    audit_max_bytes: Annotated[
        int,
        _option(
            "the size at which a file of the audit folder is followed by a new one",
            group=GENERAL,
            metavar="N",
            unit="bytes",
            ge=1,
        ),
    ] = 64 << 20
    audit_failure: Annotated[
        Literal["stop", "warn"],
        _option(
            "while acts cannot be written down, as on a full disk: stop (refuse acts) or warn (log it, and "
            "count the missing lines in the next one)",
            group=GENERAL,
        ),
    ] = "stop"
    require_sandbox: Annotated[
        bool,
        _option(
            "refuse commands and changes of files without a sandbox that limits files; the daemon does not "
            "start where it cannot confine",
            group=SANDBOX,
        ),
    ] = False
    sandbox_backend: Annotated[
        str,
        _option(
            "what makes sandboxes: auto (bubblewrap, and Landlock if that is allowed), bubblewrap, landlock, "
            "or the name of a backend from an installed package, which is code in the daemon",
            group=SANDBOX,
            metavar="NAME",
            check=_backend_name,
        ),
    ] = "auto"
    bubblewrap: Annotated[
        Path | None,
        _option(
            "the program that makes sandboxes",
            group=SANDBOX,
            metavar="FILE",
            unset="the first `bwrap` in PATH, where only root can write, and the system's folders",
        ),
    ] = None
    allow_landlock: Annotated[
        bool,
        _option(
            "where bubblewrap does not work, use Landlock and seccomp for the policies that they can "
            "enforce: those without denied or read-only paths below wider ones",
            group=SANDBOX,
        ),
    ] = False
    log_level: Annotated[
        Literal["debug", "info", "warning", "error"], _option("the lowest level that is logged", group=LOGS)
    ] = "info"
    log_format: Annotated[
        Literal["auto", "json", "text", "console"],
        _option(
            "the format of log lines; auto: text if stderr is a terminal, else json; console is an earlier "
            "name of text",
            group=LOGS,
        ),
    ] = "auto"

    @property
    def authentication(self) -> AuthenticationOptions:
        """The `ws_…` options for authentication."""
        return AuthenticationOptions(
            ws_auth=self.ws_auth,
            ws_token_file=_name(self.ws_token_file),
            ws_token_sha256=self.ws_token_sha256,
            ws_shared_secret_file=_name(self.ws_shared_secret_file),
            ws_issuer=self.ws_issuer,
            ws_audience=self.ws_audience,
            ws_max_clock_skew_seconds=self.ws_max_clock_skew_seconds,
        )

    @property
    def remote_options(self) -> RemoteOptions:
        """The options for `remote`."""
        return RemoteOptions(
            remote=self.remote,
            environment_id=self.environment_id,
            pool=self.pool,
            label=self.label,
            capacity=self.capacity,
            remote_token_file=_name(self.remote_token_file),
            remote_token_stdin=self.remote_token_stdin,
            remote_key_file=_name(self.remote_key_file),
            remote_allowed_clients=_name(self.remote_allowed_clients),
            remote_exit_on_refusal=self.remote_exit_on_refusal,
            proxy=self.proxy,
        )

    @property
    def command_limits(self) -> LimitSettings | None:
        """The limits of commands; None without any."""
        only = self.default_limit_sandboxed_only
        return LimitSettings.of(self.default_limit, self.max_limit, sandboxed_only=only)

    @property
    def limits(self) -> ExecutorLimits:
        """The limits of the executor."""
        return ExecutorLimits(
            retained_output_bytes=self.retained_output_bytes,
            spool_max_bytes=self.spool_max_bytes,
            process_ttl=self.process_ttl,
            proxy_connections=self.proxy_connections,
            proxy_max_bytes=self.proxy_max_bytes,
        )

    @property
    def sandboxes(self) -> SandboxOptions:
        """The options for sandboxes."""
        return SandboxOptions(
            bubblewrap=_name(self.bubblewrap),
            allow_landlock=self.allow_landlock,
            spool_dir=_name(self.spool_dir),
            backend=self.sandbox_backend,
        )
