"""`process/*`: starting, reading, writing and ending processes (`docs/protocol.md`, "Processes")."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING, Annotated, Any, Literal, NotRequired, TypeAlias, TypedDict
from uuid import UUID

from msgspec import Meta, Struct

from execprotocol.limits import MAX_TERMINAL_SIDE, MAX_TIMEOUT_MS, TTY_COLUMNS, TTY_ROWS
from execprotocol.model import (
    EXTENSION,
    U16,
    U64,
    Base64Bytes,
    Params,
    PathUri,
    WireError,
    WrittenBase64,
    text,
    u64,
    wire_type,
)
from execprotocol.sandbox import SandboxContext

Stream = Literal["stdout", "stderr", "pty"]
SandboxType = Literal["none", "linuxSeccomp", "linuxLandlock", "macosSeatbelt"]
SandboxBackend = Literal["none", "bubblewrap", "landlock", "seccomp", "seatbelt"]
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
Milliseconds = Annotated[int, Meta(ge=1, le=MAX_TIMEOUT_MS)]
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
"""Of a terminal for which no other one is asked for."""


class EnvPolicy(Params):
    """How the child's environment is made from the daemon's own, in the order of the members here.

    At the end `env` is laid over the result. A pattern has `*` for any text and `?` for any one
    character, and ignores case (`docs/protocol.md`, "Environment policy").
    """

    inherit: Literal["core", "all", "none"]
    """Which of the daemon's variables to begin with; `core` are those for home, language, path, shell,
    temporary folders and the user's name."""

    ignore_default_excludes: bool
    """Whether names with KEY, SECRET or TOKEN in them stay; with false they are dropped."""

    exclude: list[str]
    """Patterns of names to drop."""

    set: dict[str, str]
    """Variables to add, by name."""

    include_only: list[str]
    """Patterns of the only names to keep, those of `set` among them; an empty list keeps all."""


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
    """The number of a signal by its name: `interrupt`, `SIGTERM`, `SIGRTMIN+3`, …; None when there is none of
    that name. Names are exact, also in their case.
    """
    return _SIGNAL_NUMBERS.get(name)


def _signal_name(value: Any) -> str:
    name = text(value)
    if signal_number(name) is None:
        raise WireError(
            f"unknown signal `{name[:40]}`, expected `interrupt` or a name such as `SIGTERM` or `SIGRTMIN+1`"
        )
    return name


def _callback_ms(value: Any) -> int:
    if u64(value) == 0:
        raise WireError("network policy decision callback timeout must be nonzero")
    return u64(value)


if TYPE_CHECKING:
    UuidText: TypeAlias = str
    ScopeId: TypeAlias = str
    SignalName: TypeAlias = str
    CallbackMs: TypeAlias = int
else:
    UuidText = wire_type(_uuid_text, str, type="string", format="uuid")
    ScopeId = wire_type(_scope_id, str, type="string", minLength=1, maxLength=256)
    SignalName = wire_type(_signal_name, str, type="string", pattern=SIGNAL_PATTERN)
    CallbackMs = wire_type(_callback_ms, int, **{**U64.schema, "minimum": 1})


class ProcessMetadata(Params):
    """Who asked for a process; for logs only."""

    thread_id: UuidText | None = None
    """The UUID of the agent's thread; null when there is none."""

    tool_call_id: str | None = None
    """The agent's name for the tool call; null when there is none."""


class SnapshotShell(Params):
    """The shell whose login state a snapshot would hold."""

    name: str
    """The kind of shell, such as `bash`."""

    path: str
    """The native path of the program."""


class ShellSnapshot(Params):
    """A wish for cached login-shell state. It is checked; the command runs without it."""

    scope_id: ScopeId
    """The name under which a snapshot is shared: 1 to 256 bytes of UTF-8."""

    shell: SnapshotShell
    """The shell that is meant."""


class ManagedNetwork(Params):
    """Which loopback ports stay reachable inside a sandbox. It matters only in one."""

    loopback_ports: list[U16] = []
    """The TCP ports of the loopback interface that may be connected to."""

    allow_local_binding: bool = False
    """Whether the process may listen on loopback."""


class NetworkProxy(Params):
    """A wish for an executor-local network proxy, which this executor does not have."""

    proxy: dict[str, Any]
    """The settings of the proxy; not looked at."""

    policy_decision_timeout_ms: CallbackMs | None = None
    """How long the proxy would wait for a decision of the client, in milliseconds, not 0; null asks
    for no decisions."""


class StartParams(Params):
    """Start a process, on pipes or on a terminal.

    It leads a session and a process group of its own, and belongs to the session of the
    connection. Its output comes as `process/output` events, then `process/exited` and
    `process/closed`; none of them overtakes the answer. Without `tty` and `pipeStdin` its standard
    input is at end of file. After a failed start the id is free and no event comes.
    """

    extension_members = frozenset({"timeout_ms", "idle_timeout_ms", "if_exists", "size"})

    process_id: str
    """The client's own name for the process, unique within the session: any string, also an empty
    one. It is free again 80 seconds (`--process-ttl`) after `process/closed`."""

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
    """What the program sees as its own name; null for the first of `argv`."""

    env_policy: EnvPolicy | None = None
    """How to make the environment from the daemon's own; null inherits nothing."""

    sandbox: SandboxContext | None = None
    """What the process may touch; null means no limit. One that cannot be enforced here is refused."""

    enforce_managed_network: bool = False
    """Whether the network of a sandbox is limited to `managedNetwork`, by a proxy, which this executor does
    not have: refused with a sandbox, without effect without one."""

    managed_network: ManagedNetwork | None = None
    """What stays reachable in such a network; null means nothing. Without effect in this version."""

    network_proxy: NetworkProxy | None = None
    """A proxy for the process; only null is served (see `capabilities` of `environment/info`)."""

    shell_snapshot: ShellSnapshot | None = None
    """A wish for cached login-shell state; checked, otherwise without effect."""

    metadata: ProcessMetadata | None = None
    """Who asked, for logs; null when that is not told."""

    timeout_ms: Milliseconds | None = None
    """How long the process may run, in milliseconds from its start: then it is killed with all its
    descendants, whether or not a client is there. Null for ever."""

    idle_timeout_ms: Milliseconds | None = None
    """How long it may be without output and without an accepted write, in milliseconds: then it is killed
    in the same way. Null for ever."""

    if_exists: Literal["fail", "attach"] = "fail"
    """What to do when the id is taken. `fail` refuses. `attach` answers as the first start did when the
    parameters are equal, also when that process has ended, and starts nothing; otherwise it refuses, and
    names a parameter that differs. So a start may be repeated when its answer was lost. What the first
    start asked for is only known when it said `attach` too, or its connection has extension members."""

    size: TerminalSize | None = None
    """The size of the terminal; null for 24 rows and 80 columns. Refused without `tty`."""


class StartResult(TypedDict):
    """The process runs."""

    processId: str
    """The process, as the client named it."""

    sandboxType: SandboxType
    """`none` without a sandbox context, else the kind of sandbox of this platform: `linuxSeccomp`, also when
    the context limits nothing. Connections with extensions are told `linuxLandlock` apart."""

    sandboxBackend: NotRequired[Annotated[SandboxBackend, EXTENSION]]
    """What enforces the sandbox of the process; `none` when there is nothing to enforce. Only with a
    sandbox context."""

    pid: NotRequired[Annotated[int, EXTENSION]]
    """The process id of the leader on the executor, also the id of its process group. In a sandbox that of
    the program outside that made it."""

    attached: NotRequired[Annotated[Literal[True], EXTENSION]]
    """There when the process existed already and nothing was started."""


class DenialEvidence(TypedDict):
    """One sign that the sandbox stopped the command."""

    kind: Literal["signal", "file", "network"]
    """What it is about: the end by SIGSYS, a path, or the network."""

    text: str
    """The line of output that says so, at most 200 characters of it."""

    path: NotRequired[str]
    """The path that the line names and that the policy keeps out of reach."""


class Denial(TypedDict):
    """What speaks for it that the sandbox stopped a command that failed. Words alone count for nothing:
    a line of output counts when it names an error of the system together with something that the policy
    of the process really denies.
    """

    likely: bool
    """Whether anything speaks for it."""

    evidence: list[DenialEvidence]
    """What does, at most five items."""


class ReadParams(Params):
    """Read the retained output of a process behind a cursor, and its state.

    It answers at once when there is output, when the process is closed, or when it has exited and
    the cursor does not cover that; otherwise it waits for news. A process can be read for 80
    seconds (`--process-ttl`) after it closed. By default the newest 64 MiB of output are retained
    (`--retained-output-bytes`).
    """

    extension_members = frozenset({"session_id"})

    process_id: str
    """The process, as it was named in `process/start`."""

    after_seq: U64 | None = None
    """The last sequence number that the client has; null or 0 reads from the beginning."""

    max_bytes: U64 | None = None
    """The most raw bytes of output to give, though always at least one chunk; null for a page of at
    most 8 MiB."""

    wait_ms: U64 | None = None
    """How long to wait for news, in milliseconds; null or 0 answers at once."""

    session_id: str | None = None
    """The session that the process belongs to; null for the connection's own. Another one is only reached
    from a Unix socket, or with `--ws-auth`."""


class OutputChunk(TypedDict):
    """One numbered piece of output."""

    seq: U64
    """The number of the chunk: one counter from 1 for all events of the process, without gaps."""

    stream: Stream
    """Where it was written; `pty` for everything on a terminal."""

    chunk: WrittenBase64
    """The bytes exactly as they were written, at most 1 MiB, cut anywhere, also within a character.
    Empty stands for output that is no longer retained."""


class ReadResult(TypedDict):
    """A page of retained output, and the state of the process."""

    chunks: list[OutputChunk]
    """The retained chunks behind the cursor, oldest first."""

    nextSeq: U64
    """The number that comes next: go on reading with `afterSeq` one below it."""

    exited: bool
    """Whether the leader has ended. A page without `maxBytes` that was cut says false."""

    exitCode: ExitCode | None
    """The status that the program gave, or 128 + N for death by signal N; null before `exited`."""

    closed: bool
    """Whether the leader has ended and all output has been read. A page without `maxBytes` that was
    cut says false."""

    failure: str | None
    """Why the command was never run: its sandbox could not be set up. Null otherwise."""

    sandboxDenied: bool
    """Whether a sandbox seems to have stopped the command, judged by its exit code and the words of its
    output as the agent does it; false without a sandbox."""

    denial: NotRequired[Annotated[Denial, EXTENSION]]
    """What speaks for that. Only of a process with a sandbox that has exited."""

    cause: NotRequired[Annotated[ExitCause, EXTENSION]]
    """Why the process ended, once it has: by itself (`normal`), by a signal, by a `process/terminate`, by
    `timeoutMs` or `idleTimeoutMs`, with its session, with the daemon, because memory was short or a limit
    of the system was reached. `unknown` when a crash of the daemon hides it."""

    firstSeq: NotRequired[U64]
    """The number of the oldest retained chunk; there only when output behind the cursor was lost."""

    lostBytes: NotRequired[U64]
    """How many bytes behind the cursor are no longer retained; there only when some were lost."""


class WriteParams(Params):
    """Write to the standard input or the terminal of a process.

    Bytes reach the process in the order of the requests. Up to 64 MiB wait for a process that does
    not read; beyond that the answer waits. On a terminal control characters act as keys: 0x03
    interrupts, 0x04 at the start of a line is end of file.
    """

    extension_members = frozenset({"session_id"})

    process_id: str
    """The process, as it was named in `process/start`."""

    chunk: Base64Bytes
    """The bytes to write; they may be none."""

    write_id: Annotated[str, Meta(min_length=1, extra={"error": "writeId must not be empty"})]
    """The client's own name for this write, not empty. An id that was accepted before is accepted
    again without writing, so that a write may be repeated after a lost connection; the last 4096 ids
    of a process are remembered, and of those from other sessions another 4096."""

    session_id: str | None = None
    """The session that the process belongs to; null for the connection's own. Another one is only reached
    from a Unix socket, or with `--ws-auth`."""


class WriteResult(TypedDict):
    """What became of the write."""

    status: Literal["accepted", "unknownProcess", "starting", "stdinClosed"]
    """`accepted`: the bytes are queued, though the process may never read them. `unknownProcess`: no
    process of that name. `starting`: it does not run yet. `stdinClosed`: it was started with neither
    `tty` nor `pipeStdin`, or `process/closeStdin` came before."""


class CloseStdinParams(Params):
    """End the standard input of a process: it reads what was accepted before, then end of file.

    A second time is no error, and neither is a process that has ended. One on a terminal is refused: its end
    of file is a byte, 0x04, at the start of a line.
    """

    extension_members = frozenset({"session_id"})

    process_id: str
    """The process, as it was named in `process/start`."""

    session_id: str | None = None
    """The session that the process belongs to; null for the connection's own. Another one is only reached
    from a Unix socket, or with `--ws-auth`."""


class CloseStdinResult(TypedDict):
    """What became of it."""

    status: Literal["accepted", "unknownProcess", "stdinClosed"]
    """`accepted`: no write is accepted any more, and end of file comes behind those that were.
    `unknownProcess`: no process of that name. `stdinClosed`: it was started without `pipeStdin`."""


class ResizeParams(Params):
    """Set the size of a process's terminal, and tell its foreground group by SIGWINCH if it changed.

    An unknown process is refused, and one without a terminal.
    """

    extension_members = frozenset({"session_id"})

    process_id: str
    """The process, as it was named in `process/start`."""

    size: TerminalSize
    """How large the terminal is from now on."""

    session_id: str | None = None
    """The session that the process belongs to; null for the connection's own. Another one is only reached
    from a Unix socket, or with `--ws-auth`."""


class ResizeResult(TypedDict):
    """What was found."""

    running: bool
    """Whether the leader was still running; if not, nothing was done."""


class SignalParams(Params):
    """Send a signal to the process group of a process, to its leader, or to all that came of it.

    In a sandbox it goes to the command inside, and SIGKILL ends the sandbox whatever the scope. It is no
    error when the process has ended or is unknown.
    """

    extension_members = frozenset({"scope", "session_id"})

    process_id: str
    """The process, as it was named in `process/start`."""

    signal: SignalName
    """`interrupt`, which is SIGINT, or the name of any signal: `SIGHUP`, `SIGTERM`, `SIGUSR1`, `SIGSTOP`,
    `SIGCONT`, `SIGWINCH`, `SIGRTMIN` to `SIGRTMIN+30`, and so on; the case counts."""

    scope: Literal["group", "leader", "tree"] = "group"
    """`group` is the process group of the leader, while that runs. `leader` is the leader alone. `tree` is
    the leader and every descendant, also one that moved to a session of its own and one whose leader has
    ended."""

    session_id: str | None = None
    """The session that the process belongs to; null for the connection's own. Another one is only reached
    from a Unix socket, or with `--ws-auth`."""


class SignalResult(TypedDict):
    """What was found, on connections that asked; nothing on others."""

    status: NotRequired[Annotated[Literal["delivered", "alreadyExited", "unknownProcess"], EXTENSION]]
    """`delivered`: it was sent, or will be as soon as the sandbox has the command running. `alreadyExited`:
    there was nobody to send it to. `unknownProcess`: no process of that name."""


class TerminateParams(Params):
    """Kill a process with SIGKILL: its process group, or every descendant that it ever had.

    It never waits for other requests of the process, and cancels a start that is not finished.
    """

    extension_members = frozenset({"scope", "session_id"})

    process_id: str
    """The process, as it was named in `process/start`; an unknown one is no error."""

    scope: Literal["group", "tree"] = "group"
    """`group` kills the process group while its leader runs. `tree` kills every descendant, also one
    that moved to a session of its own and one whose leader has ended."""

    session_id: str | None = None
    """The session that the process belongs to; null for the connection's own. Another one is only reached
    from a Unix socket, or with `--ws-auth`."""


class TerminateResult(TypedDict):
    """What was found."""

    running: bool
    """Whether the leader was still running."""

    survivors: NotRequired[Annotated[list[int], EXTENSION]]
    """With the scope `tree`: the process ids of what could not be killed, normally none."""


class ListParams(Params):
    """List the processes of a session, or of all: those that run, and those that are still kept."""

    session_id: str | None = None
    """The session to list; null for the connection's own. Another one is only reached from a Unix socket, or
    with `--ws-auth`."""

    all_sessions: bool = False
    """Whether to list those of every session; under the same condition, and not with `sessionId`."""

    argv: bool = False
    """Whether to tell what was asked to be run, and where. Command lines may have secrets in them."""


class WrittenSize(TypedDict):
    """How large a terminal is, in characters."""

    rows: U16
    """The number of lines."""

    cols: U16
    """The number of characters in a line."""


class ProcessEntry(TypedDict):
    """What is known of one process."""

    processId: str
    """The process, as it was named in `process/start`."""

    sessionId: str
    """The session that it belongs to."""

    pid: int
    """The process id of the leader on the executor, also when that has ended."""

    state: Literal["running", "exited", "closed"]
    """`running` while the leader lives, `exited` while only its output is held open, then `closed`."""

    tty: bool
    """Whether it was started with a terminal."""

    size: NotRequired[WrittenSize]
    """The size of the terminal, as long as it is open."""

    startedAtMs: U64
    """When it was started, in milliseconds since 1970, by the clock of the executor then."""

    ageMs: U64
    """How long ago that is, in milliseconds, whatever happened to that clock."""

    exitCode: ExitCode | None
    """The status that the program gave, or 128 + N for death by signal N; null while it runs."""

    cause: ExitCause | None
    """Why it ended, as in `process/exited`; null while it runs."""

    lastSeq: U64
    """The number of its newest event; 0 when there was none yet."""

    retainedBytes: U64
    """How many bytes of its output are kept."""

    cpuSeconds: Annotated[float, Meta(ge=0)] | None
    """Processor time of the leader and its living descendants, with that of their children that ended
    and were waited for; null when nothing of it lives."""

    rssBytes: U64 | None
    """Resident memory of the leader and its living descendants; null when nothing of it lives."""

    processCount: U64 | None
    """How many these are; null when there is none."""

    argv: list[str] | None
    """What was asked to be run, cut at 4096 characters; null unless `argv` asked for it."""

    cwd: str | None
    """Where, as a native path; null unless `argv` asked for it."""


class ListResult(TypedDict):
    """What there is."""

    processes: list[ProcessEntry]
    """The processes, in the order in which they were started."""


class SubscribeParams(Params):
    """Follow a process of another session: its events behind a number come on this connection, too.

    The events have the member `sessionId`, and end with `process/closed`. A connection that does not take
    them in time loses some, as told by `lostBytes`, and holds up nobody. The subscription ends with
    the connection; a second one for the same process takes the place of the first.
    """

    session_id: str
    """The session of the process, which is not the connection's own. It is only reached from a Unix socket,
    or with `--ws-auth`."""

    process_id: str
    """The process, as it was named in `process/start`."""

    after_seq: U64 = 0
    """The last number that the client has; 0 for everything that is kept."""

    interactive: bool = False
    """Whether this connection may resize the terminal of the process from now on, as its owner may,
    until another one subscribes so."""


class SubscribeResult(TypedDict):
    """The state of the process before the events that follow."""

    nextSeq: U64
    """The number that the next event will have."""

    exited: bool
    """Whether the leader has ended."""

    exitCode: ExitCode | None
    """The status that the program gave, or 128 + N for death by signal N; null while it runs."""

    closed: bool
    """Whether it has ended and all output has been read."""

    tty: bool
    """Whether it was started with a terminal."""

    size: NotRequired[WrittenSize]
    """The size of the terminal, as long as it is open."""

    pid: int
    """The process id of the leader on the executor."""


class UnsubscribeParams(Params):
    """Follow a process of another session no longer.

    No event of it comes behind the answer. It is no error when nothing was followed.
    """

    session_id: str
    """The session of the process."""

    process_id: str
    """The process, as it was named in `process/start`."""


class OutputEvent(TypedDict):
    """A process wrote something."""

    processId: str
    """The process, as it was named in `process/start`."""

    sessionId: NotRequired[str]
    """The session of the process; there only when it is another one than the connection's own, and the event
    comes for a `process/subscribe`."""

    seq: U64
    """The number of the event: one counter from 1 for all events of the process, without gaps."""

    stream: Stream
    """Where it was written; `pty` for everything on a terminal."""

    chunk: WrittenBase64
    """The bytes exactly as they were written, at most 1 MiB, cut anywhere, also within a character.
    Empty stands for output that was dropped because this connection did not take it in time."""

    lostBytes: NotRequired[U64]
    """How many bytes were dropped before this chunk; there only when some were lost."""

    firstSeq: NotRequired[U64]
    """The number of the first chunk behind the gap; there only when some output was lost."""


class ExitedEvent(TypedDict):
    """The leader of a process has ended.

    It comes once. Descendants may still write output.
    """

    processId: str
    """The process, as it was named in `process/start`."""

    sessionId: NotRequired[str]
    """The session of the process; there only when it is another one than the connection's own, and the event
    comes for a `process/subscribe`."""

    seq: U64
    """The number of the event, in one count with those of the output."""

    exitCode: ExitCode
    """The status that the program gave, or 128 + N for death by signal N."""

    sandboxDenied: bool
    """Whether a sandbox seems to have stopped the command, judged by its exit code and the words of its
    output as the agent does it; false without a sandbox."""

    denial: NotRequired[Annotated[Denial, EXTENSION]]
    """What speaks for that. Only of a process with a sandbox that has exited."""

    cause: NotRequired[Annotated[ExitCause, EXTENSION]]
    """Why the process ended: by itself (`normal`), by a signal, by a `process/terminate`, by
    `timeoutMs` or `idleTimeoutMs`, with its session, with the daemon, because memory was short or a limit
    of the system was reached. `unknown` when a crash of the daemon hides it."""


class ClosedEvent(TypedDict):
    """A process has ended, and so has its output.

    It comes once, and is the last event of the process. A descendant that holds the output open
    delays it, but not on a terminal.
    """

    processId: str
    """The process, as it was named in `process/start`."""

    sessionId: NotRequired[str]
    """The session of the process; there only when it is another one than the connection's own, and the event
    comes for a `process/subscribe`."""

    seq: U64
    """The number of the event, the highest of the process."""
