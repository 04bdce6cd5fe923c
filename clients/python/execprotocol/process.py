"""`process/*`: starting, reading, writing and ending processes (`docs/protocol.md`, "Processes")."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING, Annotated, Any, Literal, NotRequired, TypeAlias, TypedDict
from uuid import UUID

from msgspec import Meta, Struct
from msgspec.structs import fields

from execprotocol.limits import (
    MAX_CPU_PERCENT,
    MAX_IO_WEIGHT,
    MAX_MEMORY_LIMIT,
    MAX_PIDS_LIMIT,
    MAX_TERMINAL_SIDE,
    MIN_MEMORY_LIMIT,
    TTY_COLUMNS,
    TTY_ROWS,
)
from execprotocol.model import (
    EXTENSION,
    U16,
    U64,
    Base64Bytes,
    Milliseconds,
    Params,
    PathUri,
    WireError,
    WrittenBase64,
    text,
    wire_type,
)
from execprotocol.network import NetworkProxy
from execprotocol.sandbox import SandboxContext

Stream = Literal["stdout", "stderr", "pty"]
SandboxType = Literal["none", "linuxSeccomp", "linuxLandlock", "macosSeatbelt"]
ExitCode = Annotated[int, Meta(ge=0, le=255)]
ExitCause = Literal[
    "normal",
    "signal",
    "terminated",
    "timeout",
    "idleTimeout",
    "sessionExpired",
    "serviceStop",
    "outOfMemory",
    "limit",
    "unknown",
]
Side = Annotated[int, Meta(ge=1, le=MAX_TERMINAL_SIDE)]


INTERRUPT = "interrupt"
"""The one name that the reference has: SIGINT."""

_SIGNALS = (
    "HUP", "INT", "QUIT", "ILL", "TRAP", "ABRT", "IOT", "BUS", "FPE", "KILL", "USR1", "SEGV", "USR2", "PIPE",
    "ALRM", "TERM", "STKFLT", "CHLD", "CLD", "CONT", "STOP", "TSTP", "TTIN", "TTOU", "URG", "XCPU", "XFSZ",
    "VTALRM", "PROF", "WINCH", "IO", "POLL", "PWR", "SYS",
)  # fmt: skip

_REAL_TIME_SIGNALS = 30
"""SIGRTMAX - SIGRTMIN: what the C library has left for programs."""

_OFFSET = rf"(?:[1-9]|[12][0-9]|{_REAL_TIME_SIGNALS})"

SIGNAL_PATTERN = (
    rf"^(?:{INTERRUPT}|SIG(?:{'|'.join(_SIGNALS)})|SIGRTMIN(?:\+{_OFFSET})?|SIGRTMAX(?:-{_OFFSET})?)$"
)
"""Every name, as a regular expression of JSON Schema."""

_SIGNAL_NUMBERS: dict[str, int] = {
    INTERRUPT: signal.SIGINT,
    **{f"SIG{name}": getattr(signal, f"SIG{name}") for name in _SIGNALS},
    "SIGRTMIN": signal.SIGRTMIN,
    "SIGRTMAX": signal.SIGRTMAX,
    **{f"SIGRTMIN+{offset}": signal.SIGRTMIN + offset for offset in range(1, _REAL_TIME_SIGNALS + 1)},
    **{f"SIGRTMAX-{offset}": signal.SIGRTMAX - offset for offset in range(1, _REAL_TIME_SIGNALS + 1)},
}


class TerminalSize(Struct, frozen=True):
    """How large a terminal is, in characters."""

    rows: Side
    """The number of lines: 1 to 65535."""

    cols: Side
    """The number of characters in a line: 1 to 65535."""


USUAL_SIZE = TerminalSize(rows=TTY_ROWS, cols=TTY_COLUMNS)
"""The size of a terminal if a request gives none."""


class EnvPolicy(Params):
    """How the child's environment is made from the daemon's own, in the order of the members here.

    `env` is then applied to the result. A pattern has `*` for any text and `?` for any one
    character, and ignores case (`docs/protocol.md`, "Environment policy").
    """

    inherit: Literal["core", "all", "none"]
    """The daemon's variables to start from; `core` are those for home, language, path, shell, temporary
    folders and the user's name."""

    ignore_default_excludes: bool
    """Whether names with KEY, SECRET or TOKEN in them stay; with false they are dropped."""

    exclude: list[str]
    """Patterns of names to drop."""

    set: dict[str, str]
    """Variables to add, by name."""

    include_only: list[str]
    """Patterns of the only names to keep, also of those in `set`; an empty list keeps all."""


def _uuid_text(value: Any) -> str:
    given = text(value)
    try:
        UUID(given)
    except ValueError:
        raise WireError(f"UUID parsing failed for threadId: `{given}`") from None
    return given


def _scope_id(value: Any) -> str:
    if not 1 <= len(text(value).encode()) <= 256:
        raise WireError("shell snapshot scope must be non-empty and at most 256 bytes")
    return text(value)


def signal_number(name: str) -> int | None:
    """The number of a signal on this host, by its case-sensitive name on the wire (P33): `interrupt`,
    `SIGTERM`, `SIGRTMIN+3`, …; None for an unknown name.
    """
    return _SIGNAL_NUMBERS.get(name)


def _signal_name(value: Any) -> str:
    name = text(value)
    if signal_number(name) is None:
        raise WireError(
            f"unknown signal `{name[:40]}`, expected `interrupt` or a name such as `SIGTERM` or `SIGRTMIN+1`"
        )
    return name


if TYPE_CHECKING:
    UuidText: TypeAlias = str
    ScopeId: TypeAlias = str
    SignalName: TypeAlias = str
else:
    UuidText = wire_type(_uuid_text, str, type="string", format="uuid")
    ScopeId = wire_type(_scope_id, str, type="string", minLength=1, maxLength=256)
    SignalName = wire_type(_signal_name, str, type="string", pattern=SIGNAL_PATTERN)


class ProcessMetadata(Params):
    """The origin of a start, for logs only."""

    thread_id: UuidText | None = None
    """The UUID of the agent's thread; null if there is none."""

    tool_call_id: str | None = None
    """The agent's name for the tool call; null if there is none."""


class SnapshotShell(Params):
    """The shell whose login state a snapshot would contain."""

    name: str
    """The kind of shell, such as `bash`."""

    path: str
    """The native path of the program."""


class ShellSnapshot(Params):
    """A request for the state of a login shell that an earlier start has left, in the place of the profile.

    It has an effect on `PATH -lc SCRIPT` without a terminal, for a bash or a zsh.
    """

    scope_id: ScopeId
    """The name under which a snapshot is shared: 1 to 256 bytes of UTF-8."""

    shell: SnapshotShell
    """The shell of the snapshot."""


class ManagedNetwork(Params):
    """The loopback ports that stay reachable in a sandbox. Without effect outside of one."""

    loopback_ports: list[U16] = []
    """The TCP ports of the loopback interface that may be connected to."""

    allow_local_binding: bool = False
    """Whether the process may listen on loopback."""


class ResourceLimits(Params, forbid_unknown_fields=True):
    """What a process and all its descendants may use together, enforced by control groups. A limit that this
    executor cannot enforce is refused, and so is an unknown member.
    """

    memory_bytes: Annotated[int, Meta(ge=MIN_MEMORY_LIMIT, le=MAX_MEMORY_LIMIT)] | None = None
    """Memory in bytes, with the page cache of their files; they get no swap beside it. When it is exhausted,
    all of them are killed, and the `cause` is `limit`. At least 1 MiB; null for no limit."""

    pids: Annotated[int, Meta(ge=1, le=MAX_PIDS_LIMIT)] | None = None
    """Processes and threads at a time; those of a sandbox itself are not counted. Above it, `fork` fails with
    EAGAIN. Null for no limit."""

    cpu_percent: Annotated[int, Meta(ge=1, le=MAX_CPU_PERCENT)] | None = None
    """Processor time, in percent of one processor: 150 is one and a half. Above it they wait. Null for no
    limit."""

    io_weight: Annotated[int, Meta(ge=1, le=MAX_IO_WEIGHT)] | None = None
    """The share of block devices while other processes use them, too; 100 is that of processes without this
    limit. Refused where no device shares its time by weight. Null for no weight."""

    wall_ms: Milliseconds | None = None
    """How long the process may run, in milliseconds, as `timeoutMs`; the `cause` is then `limit`. With both,
    the shorter one ends it. Null for no limit."""

    def values(self) -> dict[str, int]:
        """The limits that are not null, by their names on the wire."""
        found = {field.encode_name: getattr(self, field.name) for field in fields(self)}
        return {name: value for name, value in found.items() if value is not None}

    @property
    def need_group(self) -> bool:
        """Whether a control group has to enforce them."""
        return bool(self.values().keys() - {"wallMs"})


class LimitHit(TypedDict):
    """The limit that ended a process."""

    which: Literal["memory", "wall"]
    """`memory` for `memoryBytes`, `wall` for `wallMs`."""

    value: int
    """The limit: bytes, or milliseconds."""


class ExitUsage(TypedDict):
    """What a process with `limits` and its descendants used together. A member that the kernel does not
    count is missing.
    """

    memoryPeakBytes: NotRequired[U64]
    """The most memory at a time."""

    pidsPeak: NotRequired[U64]
    """The most processes and threads at a time."""

    cpuMs: NotRequired[U64]
    """Processor time in milliseconds."""

    limitsHit: list[Literal["memory", "pids", "cpu", "wall"]]
    """The limits that had an effect: `memory` exhausted, a `fork` that `pids` refused, a wait for `cpu`, or
    the end at `wall`."""


class StartParams(Params):
    """Start a process, on pipes or on a terminal.

    It leads a process session and a process group of its own, and belongs to the session of the
    connection. Its output is sent as `process/output` events, followed by `process/exited` and
    `process/closed`; no event is sent before the answer. Without `tty` and `pipeStdin` its standard
    input is at end of file. After a failed start the id is free and no event is sent.
    """

    extension_members = frozenset(
        {"timeout_ms", "idle_timeout_ms", "if_exists", "size", "grace_ms", "limits"}
    )

    process_id: str
    """The client's name for the process, unique within the session: any string, also an empty one. It
    is free again 80 seconds (`--process-ttl`) after `process/closed`."""

    argv: Annotated[list[str], Meta(min_length=1, extra={"error": "argv must not be empty"})]
    """The program and its arguments: at least one string, none with a NUL in it. A program without a
    slash is looked up in `PATH` of the child's environment, one with a slash is relative to `cwd`."""

    cwd: PathUri
    """The folder in which the process starts."""

    env: dict[str, str]
    """Variables by name: without `envPolicy` the whole environment of the child."""

    tty: bool
    """Whether the process gets a terminal, of 24 rows and 80 columns unless `size` says otherwise; its
    output is then the one stream `pty`, and what it reads is given by `process/write`."""

    pipe_stdin: bool = False
    """Whether standard input stays open for `process/write`; without effect with `tty`."""

    arg0: str | None = None
    """The name that the program gets as its argument 0; null for the first of `argv`."""

    env_policy: EnvPolicy | None = None
    """How to make the environment from the daemon's own; null inherits nothing."""

    sandbox: SandboxContext | None = None
    """What the process may access; null means no limit. Limits that cannot be enforced are refused."""

    enforce_managed_network: bool = False
    """Whether `networkProxy` is the only way out of the sandbox, whatever the sandbox says of the network.
    Needs `networkProxy`; without effect without a sandbox."""

    managed_network: ManagedNetwork | None = None
    """What stays reachable in such a network; null means nothing. Without effect in this version."""

    network_proxy: NetworkProxy | None = None
    """A network proxy for the process, which variables name to its programs; null for none. Without
    `enforceManagedNetwork` programs may ignore it."""

    shell_snapshot: ShellSnapshot | None = None
    """A request to restore the state of a login shell instead of running the account's profile again, where
    that makes no difference but in time (`docs/protocol.md`, "Shell snapshots")."""

    metadata: ProcessMetadata | None = None
    """The origin of the request, for logs; null if it is not given."""

    timeout_ms: Milliseconds | None = None
    """How long the process may run, in milliseconds from its start; then it is killed with all its
    descendants, whether or not a client is connected. Null for no limit."""

    idle_timeout_ms: Milliseconds | None = None
    """How long the process may go without output and without an accepted write, in milliseconds; then it
    is killed in the same way. Null for no limit."""

    if_exists: Literal["fail", "attach"] = "fail"
    """What to do if the id is in use. `fail` refuses. `attach` starts nothing and answers as the first
    start did if the parameters are equal, also if that process has ended; otherwise it refuses, and names
    a parameter that differs. So a start can be repeated if its answer was lost. The parameters of the
    first start are only known if it had `attach` too, or if its connection has extension members."""

    size: TerminalSize | None = None
    """The size of the terminal; null for 24 rows and 80 columns. Refused without `tty`."""

    grace_ms: Milliseconds | None = None
    """How long the process may clean up at `timeoutMs`, `idleTimeoutMs` or `wallMs`, in milliseconds: its
    group gets SIGTERM, and what is left of it and its descendants after that time is killed. Null kills at
    once. Refused without a limit in time."""

    limits: ResourceLimits | None = None
    """What the process and its descendants may use together; null for the executor's default."""


class StartResult(TypedDict):
    """The process runs."""

    processId: str
    """The client's name for the process."""

    sandboxType: SandboxType
    """`none` without a sandbox context, else the kind of sandbox of this platform: `linuxSeccomp`, also if
    the context limits nothing. Only connections with extensions get `linuxLandlock`."""

    sandboxBackend: NotRequired[Annotated[str, EXTENSION]]
    """The mechanism that enforces the sandbox: `bubblewrap`, `landlock`, `seccomp`, `seatbelt`, or the name
    of a backend that the daemon's operator has added; `none` if there is nothing to enforce. Only with a
    sandbox context."""

    pid: NotRequired[Annotated[int, EXTENSION]]
    """The process id of the leader on the executor, which is also the id of its process group. With a
    sandbox, the id of the program outside that created it."""

    attached: NotRequired[Annotated[Literal[True], EXTENSION]]
    """Present if the process existed already and nothing was started."""

    audit: NotRequired[Annotated[U64, EXTENSION]]
    """The number of the start in the daemon's audit folder. Missing if the daemon has none."""

    snapshotObstacle: NotRequired[Annotated[str, EXTENSION]]
    """Why the command runs in a login shell although there is a `shellSnapshot`: a sentence for people.
    Missing if the snapshot was restored."""


class DenialEvidence(TypedDict):
    """One indication that the sandbox stopped the command."""

    kind: Literal["signal", "file", "network"]
    """The kind of indication: death by SIGSYS, a path, or the network."""

    text: str
    """The line of output with the error, cut at 200 characters."""

    path: NotRequired[str]
    """The path in the line that the policy denies."""

    reason: NotRequired[Literal["protectedName", "readOnly", "noAccess"]]
    """Of a path. `protectedName`: it is at, in or around a name that is read-only in every writable folder
    (`.git`, `.agents`, `.codex`, `.aws`), unless an entry makes it writable. `readOnly`: no entry makes it
    writable. `noAccess`: the entries deny it, or do not allow to read it."""

    protectedPath: NotRequired[str]
    """The path of the protected name, if that is the reason."""


class Denial(TypedDict):
    """Indications that the sandbox stopped a command that failed. A line of output counts only if it
    names an error of the system together with something that the policy of the process denies.
    """

    likely: bool
    """Whether there are any indications."""

    evidence: list[DenialEvidence]
    """The indications, at most five."""


class EndedWithSandbox(TypedDict):
    """The processes that a command had left running in its sandbox when it exited, and that were ended with
    it: a sandbox with a pid namespace ends with its command.
    """

    count: U64
    """How many; above 100 they are not counted further."""

    names: list[str]
    """Their different names, as the kernel has them (15 bytes each), at most five."""


class ReadParams(Params):
    """Read the retained output of a process after a cursor, and its state.

    The answer is sent at once if there is output, if the process is closed, or if it has exited and the
    cursor is before that event; otherwise the request waits for an event. A process can be read for 80
    seconds (`--process-ttl`) after it closed. By default the newest 64 MiB of output are retained
    (`--retained-output-bytes`).
    """

    extension_members = frozenset({"session_id", "sizes"})

    process_id: str
    """The `processId` of the `process/start`."""

    after_seq: U64 | None = None
    """The last sequence number that the client has; null or 0 reads from the beginning."""

    max_bytes: U64 | None = None
    """The maximum of raw bytes of output, though always at least one chunk; null for a page of at most
    8 MiB."""

    wait_ms: U64 | None = None
    """How long to wait for an event, in milliseconds; null or 0 answers at once."""

    session_id: str | None = None
    """The session of the process; null for the connection's own. Another session is accessible only on a
    Unix socket, or with `--ws-auth`."""

    sizes: bool | None = None
    """Whether the result has the sizes of the terminal; null for false."""


class SizeChange(TypedDict):
    """A size of a terminal, and since when it holds."""

    seq: U64
    """The number of the newest event at that time; 0 before the first one."""

    at: U64
    """The time in milliseconds since 1970."""

    rows: U16
    """The number of lines."""

    cols: U16
    """The number of characters in a line."""


class OutputChunk(TypedDict):
    """One numbered piece of output."""

    seq: U64
    """The number of the chunk: one counter from 1 for all events of the process, without gaps."""

    stream: Stream
    """The stream of the output; `pty` for everything on a terminal."""

    chunk: WrittenBase64
    """The bytes as written, at most 1 MiB, cut anywhere, also within a character. An empty chunk stands
    for output that is no longer retained."""

    at: NotRequired[Annotated[U64, EXTENSION]]
    """When the server took the bytes from the process, in milliseconds since 1970. Not in an empty chunk."""


class ReadResult(TypedDict):
    """A page of retained output, and the state of the process."""

    chunks: list[OutputChunk]
    """The retained chunks after the cursor, oldest first."""

    nextSeq: U64
    """The next number: continue with `afterSeq` one below it."""

    exited: bool
    """Whether the leader has ended. False in a page without `maxBytes` that was cut."""

    exitCode: ExitCode | None
    """The exit status, or 128 + N for death by signal N; null before `exited`."""

    closed: bool
    """Whether the leader has ended and all output has been read. False in a page without `maxBytes` that
    was cut."""

    failure: str | None
    """Why the command did not run, if its sandbox could not be set up; null otherwise."""

    sandboxDenied: bool
    """Whether a sandbox seems to have stopped the command, by its exit code and keywords in its output, as
    the agent judges it; false without a sandbox."""

    denial: NotRequired[Annotated[Denial, EXTENSION]]
    """The indications for that. Only for an exited process with a sandbox."""

    endedWithSandbox: NotRequired[Annotated[EndedWithSandbox, EXTENSION]]
    """The processes that the command had left running. Only if there were any."""

    cause: NotRequired[Annotated[ExitCause, EXTENSION]]
    """Why the process ended, once it has: by itself (`normal`), by a signal, by a `process/terminate`, by
    `timeoutMs` or `idleTimeoutMs`, with its session, with the daemon, for lack of memory, or by a limit of
    the system. `unknown` after a crash of the daemon."""

    limit: NotRequired[Annotated[LimitHit, EXTENSION]]
    """The limit that ended the process. Only if it was one of `limits`."""

    usage: NotRequired[Annotated[ExitUsage, EXTENSION]]
    """What the process and its descendants used until its end. Only for an exited process with `limits`."""

    sizes: NotRequired[Annotated[list[SizeChange], EXTENSION]]
    """The sizes of the terminal, oldest first: the one at the cursor, and each that a client has set since
    then. The newest 1024 are known. Only if `sizes` was requested, and with a terminal."""

    firstSeq: NotRequired[U64]
    """The number of the oldest retained chunk; present only if output after the cursor was lost."""

    lostBytes: NotRequired[U64]
    """How many bytes after the cursor are no longer retained; present only if some were lost."""


class WriteParams(Params):
    """Write to the standard input or the terminal of a process.

    Bytes reach the process in the order of the requests. Up to 64 MiB are queued for a process that
    does not read; beyond that the answer is delayed. On a terminal, control characters act as keys:
    0x03 interrupts, 0x04 at the start of a line is end of file.
    """

    extension_members = frozenset({"session_id", "whole_lines"})

    process_id: str
    """The `processId` of the `process/start`."""

    chunk: Base64Bytes
    """The bytes to write; may be empty."""

    write_id: Annotated[str, Meta(min_length=1, extra={"error": "writeId must not be empty"})]
    """The client's name for this write, not empty. An id that was accepted before is accepted again
    without writing, so that a write can be repeated after a lost connection. The last 4096 ids of a
    process are remembered, and another 4096 of other sessions."""

    whole_lines: bool = False
    """Whether to refuse a write to a terminal in canonical mode that would drop a part of a line, because the
    line is longer than 4,095 bytes. Nothing of such a write is queued. Without effect on a pipe."""

    session_id: str | None = None
    """The session of the process; null for the connection's own. Another session is accessible only on a
    Unix socket, or with `--ws-auth`."""


class WriteResult(TypedDict):
    """The result of the write."""

    status: Literal["accepted", "unknownProcess", "starting", "stdinClosed"]
    """`accepted`: the bytes are queued, though the process may never read them. `unknownProcess`: there
    is no process of that id. `starting`: the process does not run yet. `stdinClosed`: the process was
    started with neither `tty` nor `pipeStdin`, or its standard input was closed."""


class CloseStdinParams(Params):
    """End the standard input of a process, which reads end of file after all accepted writes.

    It is no error if the input is closed or the process has ended. A process on a terminal is refused: write
    the byte 0x04 at the start of a line.
    """

    extension_members = frozenset({"session_id"})

    process_id: str
    """The `processId` of the `process/start`."""

    session_id: str | None = None
    """The session of the process; null for the connection's own. Another session is accessible only on a
    Unix socket, or with `--ws-auth`."""


class CloseStdinResult(TypedDict):
    """The result of closing."""

    status: Literal["accepted", "unknownProcess", "stdinClosed"]
    """`accepted`: further writes are refused, and end of file follows the accepted ones. `unknownProcess`:
    there is no process of that id. `stdinClosed`: the process was started without `pipeStdin`."""


class ResizeParams(Params):
    """Set the size of a process's terminal. If it changed, the foreground process group gets SIGWINCH.

    An unknown process and a process without a terminal are refused.
    """

    extension_members = frozenset({"session_id"})

    process_id: str
    """The `processId` of the `process/start`."""

    size: TerminalSize
    """The new size of the terminal."""

    session_id: str | None = None
    """The session of the process; null for the connection's own. Another session is accessible only on a
    Unix socket, or with `--ws-auth`."""


class ResizeResult(TypedDict):
    """The state of the process."""

    running: bool
    """Whether the leader was still running; otherwise nothing was done."""


class SignalParams(Params):
    """Send a signal to the process group of a process, to its leader, or to all its descendants.

    In a sandbox the command inside gets the signal, and SIGKILL ends the sandbox whatever the scope. It is no
    error if the process has ended or is unknown.
    """

    extension_members = frozenset({"scope", "session_id"})

    process_id: str
    """The `processId` of the `process/start`."""

    signal: SignalName
    """`interrupt`, which is SIGINT, or the name of any signal: `SIGHUP`, `SIGTERM`, `SIGUSR1`, `SIGSTOP`,
    `SIGCONT`, `SIGWINCH`, `SIGRTMIN` to `SIGRTMIN+30`, and so on; case-sensitive."""

    scope: Literal["group", "leader", "tree"] = "group"
    """`group` is the process group of the leader, while the leader runs. `leader` is the leader alone.
    `tree` is the leader and every descendant, also after `setsid` and after the end of the leader."""

    session_id: str | None = None
    """The session of the process; null for the connection's own. Another session is accessible only on a
    Unix socket, or with `--ws-auth`."""


class SignalResult(TypedDict):
    """The result on connections with extensions; empty on others."""

    status: NotRequired[Annotated[Literal["delivered", "alreadyExited", "unknownProcess"], EXTENSION]]
    """`delivered`: the signal was sent, or will be as soon as the sandbox runs the command.
    `alreadyExited`: no process was left. `unknownProcess`: there is no process of that id."""


class TerminateParams(Params):
    """Kill a process with SIGKILL: its process group, or every descendant that it ever had.

    It does not wait for other requests of the process, and cancels a start that is not finished.
    """

    extension_members = frozenset({"scope", "session_id"})

    process_id: str
    """The `processId` of the `process/start`; an unknown one is no error."""

    scope: Literal["group", "tree"] = "group"
    """`group` kills the process group while its leader runs. `tree` kills every descendant, also after
    `setsid` and after the end of the leader."""

    session_id: str | None = None
    """The session of the process; null for the connection's own. Another session is accessible only on a
    Unix socket, or with `--ws-auth`."""


class TerminateResult(TypedDict):
    """The result of the kill."""

    running: bool
    """Whether the leader was still running."""

    survivors: NotRequired[Annotated[list[int], EXTENSION]]
    """With the scope `tree`: the ids of processes that could not be killed, normally none."""


class ListParams(Params):
    """List the processes of one or all sessions: running ones, and ended ones that are still kept."""

    session_id: str | None = None
    """The session to list; null for the connection's own. Another session is accessible only on a Unix
    socket, or with `--ws-auth`."""

    all_sessions: bool = False
    """Whether to list the processes of every session; under the same condition, and not with `sessionId`."""

    argv: bool = False
    """Whether to include command lines and working folders. Command lines may contain secrets."""


class WrittenSize(TypedDict):
    """How large a terminal is, in characters."""

    rows: U16
    """The number of lines."""

    cols: U16
    """The number of characters in a line."""


class ProcessEntry(TypedDict):
    """The state of one process."""

    processId: str
    """The `processId` of the `process/start`."""

    sessionId: str
    """The session of the process."""

    pid: int
    """The process id of the leader on the executor, also after its end."""

    state: Literal["running", "exited", "closed"]
    """`running` while the leader runs, `exited` while its output is still open, then `closed`."""

    tty: bool
    """Whether the process has a terminal."""

    size: NotRequired[WrittenSize]
    """The size of the terminal, while it is open."""

    startedAtMs: U64
    """When the process was started, in milliseconds since 1970, by the executor's clock at that time."""

    ageMs: U64
    """How long ago that was, in milliseconds, by a monotonic clock."""

    exitCode: ExitCode | None
    """The exit status, or 128 + N for death by signal N; null while the leader runs."""

    cause: ExitCause | None
    """Why the process ended, as in `process/exited`; null while it runs."""

    lastSeq: U64
    """The number of the newest event; 0 before the first one."""

    retainedBytes: U64
    """How many bytes of its output are retained."""

    cpuSeconds: Annotated[float, Meta(ge=0)] | None
    """Processor time of the leader and its living descendants, including their children that ended and
    were waited for; null if none lives."""

    rssBytes: U64 | None
    """Resident memory of the leader and its living descendants; null if none lives."""

    processCount: U64 | None
    """The number of these processes; null if there are none."""

    limits: NotRequired[dict[str, int]]
    """Its limits, with those that the executor added, by the names in `limits` of `process/start`; present
    only if it has any."""

    usage: NotRequired[ExitUsage]
    """What the process and its descendants used so far, or until it ended; present only with `limits`."""

    argv: list[str] | None
    """The command line, cut at 4096 characters; null without `argv` in the request."""

    cwd: str | None
    """The working folder as a native path; null without `argv` in the request."""


class ListResult(TypedDict):
    """The list of processes."""

    processes: list[ProcessEntry]
    """The processes, in the order of their starts."""


class ListForgottenParams(Params):
    """List processes that the daemon no longer keeps: why, since when, and how they ended.

    Those of all sessions over a Unix socket, or over WebSocket with `--ws-auth`, else those of the
    connection's own session. The daemon remembers the newest 1,000 of each `reason` for a day, as long as the
    service runs; but none with a `processId` of more than 256 characters.
    """

    process_id: str | None = None
    """The `processId` of the processes to list; null for all."""


class ForgottenEntry(TypedDict):
    """A process that is no longer kept."""

    processId: str
    """The `processId` of the `process/start`."""

    sessionId: str
    """The session of the process."""

    reason: Literal["sessionExpired", "sessionEnded", "processExpired"]
    """`sessionExpired` if no client resumed its session in time, `sessionEnded` if a client ended the session
    (`session/end`), `processExpired` if the process had been closed for `--process-ttl`."""

    startedAtMs: U64
    """When the process was started, in milliseconds since 1970, by the executor's clock at that time."""

    atMs: U64
    """When its session ended, or with `processExpired` when it was closed, by the same clock."""

    agoMs: U64
    """How long ago that is, in milliseconds."""

    sessionTtlMs: U64 | None
    """How long its session was kept without a connection, in milliseconds; null with `processExpired`."""

    exitCode: ExitCode | None
    """The exit status, or 128 + N for death by signal N; null if the process was killed with its session."""

    cause: ExitCause | None
    """Why the process ended, as in `process/exited`; null if it was killed with its session."""


class ListForgottenResult(TypedDict):
    """The list of forgotten processes."""

    processes: list[ForgottenEntry]
    """The processes, in the order of `atMs`."""


class SubscribeParams(Params):
    """Follow a process of another session: its events after a number are sent on this connection, too.

    The events have the member `sessionId`, and end with `process/closed`. A slow connection loses events,
    as reported by `lostBytes`, and does not delay other connections. The subscription ends with the
    connection; a second one for the same process replaces the first.
    """

    session_id: str
    """The session of the process, other than the connection's own. It is accessible only on a Unix socket,
    or with `--ws-auth`."""

    process_id: str
    """The `processId` of the `process/start`."""

    after_seq: U64 = 0
    """The last sequence number that the client has; 0 for all retained output."""

    interactive: bool = False
    """Whether this connection may resize the terminal of the process, like its owner, until another
    connection subscribes interactively."""


class SubscribeResult(TypedDict):
    """The state of the process before the events that follow."""

    nextSeq: U64
    """The number that the next event will have."""

    exited: bool
    """Whether the leader has ended."""

    exitCode: ExitCode | None
    """The exit status, or 128 + N for death by signal N; null while the leader runs."""

    closed: bool
    """Whether the leader has ended and all output has been read."""

    tty: bool
    """Whether the process has a terminal."""

    size: NotRequired[WrittenSize]
    """The size of the terminal, while it is open."""

    pid: int
    """The process id of the leader on the executor."""


class UnsubscribeParams(Params):
    """Stop following a process of another session.

    No event of it is sent after the answer. It is no error if there is no subscription.
    """

    session_id: str
    """The session of the process."""

    process_id: str
    """The `processId` of the `process/start`."""


class OutputEvent(TypedDict):
    """A process wrote something."""

    processId: str
    """The `processId` of the `process/start`."""

    sessionId: NotRequired[str]
    """The session of the process; present only in events for a `process/subscribe`, if it is not the
    connection's own session."""

    seq: U64
    """The number of the event: one counter from 1 for all events of the process, without gaps."""

    stream: Stream
    """The stream of the output; `pty` for everything on a terminal."""

    chunk: WrittenBase64
    """The bytes as written, at most 1 MiB, cut anywhere, also within a character. An empty chunk stands
    for output that was dropped because this connection was too slow."""

    at: NotRequired[Annotated[U64, EXTENSION]]
    """When the server took the bytes from the process, in milliseconds since 1970. Not in an empty chunk."""

    lostBytes: NotRequired[U64]
    """How many bytes were dropped before this chunk; present only if some were lost."""

    firstSeq: NotRequired[U64]
    """The number of the first chunk after the gap; present only if some output was lost."""


class ExitedEvent(TypedDict):
    """The leader of a process has ended.

    Sent once. Descendants may still write output.
    """

    processId: str
    """The `processId` of the `process/start`."""

    sessionId: NotRequired[str]
    """The session of the process; present only in events for a `process/subscribe`, if it is not the
    connection's own session."""

    seq: U64
    """The number of the event, from the same counter as the output."""

    exitCode: ExitCode
    """The exit status, or 128 + N for death by signal N."""

    sandboxDenied: bool
    """Whether a sandbox seems to have stopped the command, by its exit code and keywords in its output, as
    the agent judges it; false without a sandbox."""

    denial: NotRequired[Annotated[Denial, EXTENSION]]
    """The indications for that. Only for an exited process with a sandbox."""

    endedWithSandbox: NotRequired[Annotated[EndedWithSandbox, EXTENSION]]
    """The processes that the command had left running. Only if there were any."""

    cause: NotRequired[Annotated[ExitCause, EXTENSION]]
    """Why the process ended: by itself (`normal`), by a signal, by a `process/terminate`, by `timeoutMs`
    or `idleTimeoutMs`, with its session, with the daemon, for lack of memory on the machine, or by a limit:
    one of `limits`, which `limit` then names, or one of the system. `unknown` after a crash of the daemon."""

    limit: NotRequired[Annotated[LimitHit, EXTENSION]]
    """The limit that ended the process. Only if it was one of `limits`."""

    usage: NotRequired[Annotated[ExitUsage, EXTENSION]]
    """What the process and its descendants used until then. Only for a process with `limits`."""


class ClosedEvent(TypedDict):
    """A process and its output have ended.

    Sent once, as the last event of the process. A descendant that keeps the output open delays it, but
    not on a terminal.
    """

    processId: str
    """The `processId` of the `process/start`."""

    sessionId: NotRequired[str]
    """The session of the process; present only in events for a `process/subscribe`, if it is not the
    connection's own session."""

    seq: U64
    """The number of the event, the highest of the process."""
