"""The records of the ledger, and the state that they add up to.

Rules kept in this file:

1. The meaning of a record is defined once, in the fold at the end; `State.records()` is its inverse.
2. A record is an array that begins with its name. A later version may add members at the end, with defaults;
   an older version ignores them.
3. A record about an unknown or forgotten process is ignored.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal

import msgspec

from execserver.spool.forgotten import ForgettingReason, ForgottenProcess, ForgottenProcesses

REMEMBERED_WRITES = 4096
"""Write ids kept a process, the newest: as many as a server remembers
(`execprotocol.limits.REMEMBERED_WRITE_IDS`)."""

KEPT_NETWORK_DECISIONS = 1024
"""The client's decisions about hosts that are kept a session, the newest. A command that invents hosts must
not fill the ledger; above the limit the client is asked again."""

KEPT_SIZES = 1024
"""The sizes that are kept a terminal, the newest: a client that drags the edge of a window must not fill the
ledger."""

NetworkTarget = tuple[str, str, int]
"""A protocol, a host and a port."""

NetworkAnswer = tuple[Literal["allow", "deny"], str | None]
"""A client's decision and its reason."""

FOREIGN_MARK = "\0"
"""The first character of the stored id of a write from another session than the process's own."""


def stored_write_id(write_id: str, writer: str | None) -> str:
    """A write's id as it is stored: unique across sessions.

    Args:
        write_id: the client's name for it, not empty.
        writer: the session that it comes from; None for the process's own.
    """
    if writer is not None:
        return f"{FOREIGN_MARK}{writer}{FOREIGN_MARK}{write_id}"
    # Unique, for the id of a session is not empty.
    return write_id if write_id[0] != FOREIGN_MARK else FOREIGN_MARK * 2 + write_id


def _is_foreign(stored_id: str) -> bool:
    return stored_id.startswith(FOREIGN_MARK) and not stored_id.startswith(FOREIGN_MARK * 2)


class Record(msgspec.Struct, array_like=True, frozen=True):
    """A line of the ledger."""


class Service(Record, tag="service", frozen=True):
    """The properties that must not change while the service runs."""

    cwd: str
    """Where it was launched."""
    provider_id: str
    """Its id for clients."""
    servers: int = 1
    """How many servers it has had."""


class SessionOpened(Record, tag="session-opened", frozen=True):
    """A client has a session of this id."""

    id: str


class SessionTtl(Record, tag="session-ttl", frozen=True):
    """How long a session is kept without a connection."""

    id: str
    seconds: float | None
    """None for the setting of the daemon."""


class NetworkDecided(Record, tag="network-decided", frozen=True):
    """The client has decided for the session about a host."""

    session: str
    target: NetworkTarget
    answer: NetworkAnswer


class SessionEnding(Record, tag="session-ending", frozen=True):
    """All processes of the session are about to be killed; no client can resume it."""

    id: str
    at_ms: int = 0
    """Milliseconds since 1970; 0 in the records of older versions and in a compacted ledger."""
    reason: ForgettingReason = "sessionExpired"
    ttl_ms: int | None = None
    """How long it was kept without a connection."""


class SessionEnded(Record, tag="session-ended", frozen=True):
    """Nothing of the session is left."""

    id: str


class Launching(Record, tag="launching", frozen=True):
    """A process of this number may be spawned before it is recorded as started, while others are."""

    number: int


class Started(Record, tag="started", frozen=True):
    """A process was spawned. Times are those of CLOCK_MONOTONIC, in seconds."""

    number: int
    session: str
    process_id: str
    pid: int
    tty: bool
    pipe_stdin: bool
    started_at: float
    timeout_at: float | None = None
    idle_timeout: float | None = None
    digests: dict[str, str] | None = None
    """A digest of each parameter of its start, by name."""
    sandbox: dict[str, Any] | None = None
    argv: list[str] | None = None
    """The command line, cut if it is long."""
    cwd: str | None = None
    began_at_ms: int = 0
    """The start in milliseconds since 1970."""
    grace: float | None = None
    """Seconds between SIGTERM and SIGKILL at a time limit; None for SIGKILL at once."""
    limits: dict[str, int] | None = None
    """The limits in force, by their names on the wire; None without any."""
    paced: bool = False
    """Whether its output is held back rather than dropped."""
    size: tuple[int, int] | None = None
    """The rows and columns of its terminal at the start; None without a terminal, and in the records of older
    versions."""


class Written(Record, tag="written", frozen=True):
    """Input was accepted; the process's stdin file is valid up to `end`."""

    number: int
    write_id: str
    end: int


class Resized(Record, tag="resized", frozen=True):
    """The size of the terminal was set."""

    number: int
    seq: int
    """The number of the newest event then; 0 before the first one."""
    at_ms: int
    """Milliseconds since 1970."""
    rows: int
    cols: int


class StdinClosed(Record, tag="stdin-closed", frozen=True):
    """No input follows the accepted one."""

    number: int


class Ending(Record, tag="ending", frozen=True):
    """The server is about to kill the process."""

    number: int
    cause: str
    tree: bool = False
    """Whether every descendant is killed too, also those of a process that has exited."""
    kill_at: float | None = None
    """When they are killed, after a SIGTERM at a time limit (CLOCK_MONOTONIC, seconds); None for at once."""


class Exited(Record, tag="exited", frozen=True):
    """The leader has ended. It may not have been reaped."""

    number: int
    code: int
    cause: str
    failure: str | None = None
    """Why the command was never run."""
    at: float = 0.0
    """Seconds of CLOCK_MONOTONIC."""
    limit: Mapping[str, Any] | None = None
    """The one of its limits that ended it."""
    usage: Mapping[str, Any] | None = None
    """What a process with limits used."""


class Closed(Record, tag="closed", frozen=True):
    """The process was closed at `at` (CLOCK_MONOTONIC, seconds). Not written if it was closed as soon as its
    leader had ended: the index has that.
    """

    number: int
    at: float


class Forgotten(Record, tag="forgotten", frozen=True):
    """Nothing of the process is kept."""

    number: int


class Numbered(Record, tag="numbered", frozen=True):
    """The numbers of a session's processes. Only in a compacted ledger."""

    session: str
    numbers: list[int]


AnyRecord = (
    Service
    | SessionOpened
    | SessionTtl
    | NetworkDecided
    | SessionEnding
    | SessionEnded
    | Launching
    | Started
    | Written
    | Resized
    | StdinClosed
    | Ending
    | Exited
    | Closed
    | Forgotten
    | Numbered
    | ForgottenProcess
)


class ProcessState(msgspec.Struct):
    """The state of one process."""

    started: Started
    write_ids: OrderedDict[str, int] = msgspec.field(default_factory=OrderedDict)
    """The newest `REMEMBERED_WRITES` ids, oldest first, each with the end of its bytes."""
    others_write_ids: OrderedDict[str, int] = msgspec.field(default_factory=OrderedDict)
    """The same for writes from other sessions."""
    accepted_end: int = 0
    """The length of the accepted input in bytes."""
    sizes: list[Resized] = msgspec.field(default_factory=list)
    """The newest `KEPT_SIZES` sizes of its terminal, oldest first."""
    stdin_closed: bool = False
    ending: str | None = None
    tree_ending: bool = False
    """Whether every descendant was about to be killed."""
    kill_at: float | None = None
    """See `Ending`."""
    exited: Exited | None = None
    closed_at: float | None = None

    @property
    def over_since(self) -> float | None:
        """When a closed process was closed (CLOCK_MONOTONIC, seconds)."""
        if self.closed_at is None and self.exited is not None:
            return self.exited.at
        return self.closed_at

    def forgotten(
        self, reason: ForgettingReason, at_ms: int = 0, session_ttl_ms: int | None = None
    ) -> ForgottenProcess:
        """The process as it is remembered. Without `at_ms`, the time is that of its end."""
        started, exited = self.started, self.exited
        if not at_ms:
            seconds = (self.over_since or started.started_at) - started.started_at
            at_ms = started.began_at_ms + round(seconds * 1000)
        return ForgottenProcess(
            started.process_id,
            started.session,
            started.began_at_ms,
            at_ms,
            reason,
            session_ttl_ms,
            None if exited is None else exited.code,
            None if exited is None else exited.cause,
        )

    def records(self) -> Iterator[AnyRecord]:
        """The shortest list of records that gives this state."""
        number = self.started.number
        yield self.started
        writes = [*self.write_ids.items(), *self.others_write_ids.items()]
        if self.others_write_ids:
            # In the order of acceptance: the last record has the length of all input.
            writes.sort(key=lambda write: write[1])
        for write_id, end in writes:
            yield Written(number, write_id, end)
        yield from self.sizes
        if self.stdin_closed:
            yield StdinClosed(number)
        if self.ending is not None:
            yield Ending(number, self.ending, self.tree_ending, self.kill_at)
        if self.exited is not None:
            yield self.exited
        if self.closed_at is not None:
            yield Closed(number, self.closed_at)


class SessionState(msgspec.Struct):
    """The state of one session."""

    numbers: list[int] = msgspec.field(default_factory=list)
    """The numbers of all its processes, also forgotten ones, which may have left descendants."""
    ttl: float | None = None
    """Seconds for which it is kept without a connection; None for the setting of the daemon."""
    network: dict[NetworkTarget, NetworkAnswer] = msgspec.field(default_factory=dict)
    """The client's decisions for the session, oldest first."""
    ending: bool = False


class State(msgspec.Struct):
    """The state that a ledger adds up to."""

    service: Service | None = None
    sessions: dict[str, SessionState] = msgspec.field(default_factory=dict)
    """Sessions that have not ended, oldest first."""
    processes: dict[int, ProcessState] = msgspec.field(default_factory=dict)
    """By number, oldest first."""
    forgotten: ForgottenProcesses = msgspec.field(default_factory=ForgottenProcesses)
    launching: set[int] = msgspec.field(default_factory=set)
    """Numbers of starts that were begun and neither completed nor given up."""
    highest: int = 0
    """The highest number that a process ever had."""
    skipped: int = 0
    """Lines that could not be decoded."""

    def apply(self, record: AnyRecord) -> None:
        """Fold one record in."""
        _FOLD[type(record)](self, record)

    def records(self) -> Iterator[AnyRecord]:
        """The shortest list of records that gives this state."""
        if self.service is not None:
            yield self.service
        for process in self.processes.values():
            yield from process.records()
        # After the processes: the list of a session's numbers is complete.
        for session, state in self.sessions.items():
            yield SessionOpened(session)
            yield Numbered(session, state.numbers)
            if state.ttl is not None:
                yield SessionTtl(session, state.ttl)
            for target, answer in state.network.items():
                yield NetworkDecided(session, target, answer)
            if state.ending:
                # Without its time: its processes are among the forgotten ones already.
                yield SessionEnding(session)
        yield from map(Launching, sorted(self.launching))
        yield from self.forgotten
        yield Numbered("", [self.highest])


def _service(state: State, record: Service) -> None:
    state.service = record


def _session_opened(state: State, record: SessionOpened) -> None:
    state.sessions[record.id] = SessionState()


def _session_ttl(state: State, record: SessionTtl) -> None:
    if (session := state.sessions.get(record.id)) is not None:
        session.ttl = record.seconds


def _network_decided(state: State, record: NetworkDecided) -> None:
    if (session := state.sessions.get(record.session)) is not None:
        keep_decision(session.network, record.target, record.answer)


def keep_decision(
    kept: dict[NetworkTarget, NetworkAnswer], target: NetworkTarget, answer: NetworkAnswer
) -> None:
    """Add a decision to those of a session, in the place of the oldest if there are too many."""
    kept.pop(target, None)
    kept[target] = answer
    if len(kept) > KEPT_NETWORK_DECISIONS:
        del kept[next(iter(kept))]


def _session_ending(state: State, record: SessionEnding) -> None:
    session = state.sessions.get(record.id)
    if session is None or session.ending:
        return
    session.ending = True
    if record.at_ms:
        for number in session.numbers:
            if (process := state.processes.get(number)) is not None:
                state.forgotten.add(process.forgotten(record.reason, record.at_ms, record.ttl_ms))


def _session_ended(state: State, record: SessionEnded) -> None:
    state.sessions.pop(record.id, None)


def _launching(state: State, record: Launching) -> None:
    state.launching.add(record.number)
    state.highest = max(state.highest, record.number)


def _started(state: State, record: Started) -> None:
    state.launching.discard(record.number)
    state.processes[record.number] = ProcessState(record)
    state.highest = max(state.highest, record.number)
    session = state.sessions.get(record.session)
    if session is not None and (not session.numbers or session.numbers[-1] < record.number):
        session.numbers.append(record.number)


def _numbered(state: State, record: Numbered) -> None:
    state.highest = max(state.highest, *record.numbers, 0)
    if (session := state.sessions.get(record.session)) is not None:
        session.numbers = list(record.numbers)


def _forgotten(state: State, record: Forgotten) -> None:
    state.launching.discard(record.number)
    process = state.processes.pop(record.number, None)
    if process is None or process.over_since is None:
        return
    session = state.sessions.get(process.started.session)
    if session is not None and not session.ending:
        state.forgotten.add(process.forgotten("processExpired"))


def _forgotten_process(state: State, record: ForgottenProcess) -> None:
    state.forgotten.add(record)


def _of_process(fold: Callable[[ProcessState, Any], None]) -> Callable[[State, Any], None]:
    def apply(state: State, record: Any) -> None:
        process = state.processes.get(record.number)
        if process is not None:
            fold(process, record)

    return apply


def _written(process: ProcessState, record: Written) -> None:
    ids = process.others_write_ids if _is_foreign(record.write_id) else process.write_ids
    ids[record.write_id] = record.end
    ids.move_to_end(record.write_id)
    if len(ids) > REMEMBERED_WRITES:
        ids.popitem(last=False)
    process.accepted_end = record.end


def _resized(process: ProcessState, record: Resized) -> None:
    keep_size(process.sizes, record)


def keep_size(kept: list[Resized], record: Resized) -> None:
    """Add a size to those of a terminal, in the place of the oldest if there are too many."""
    kept.append(record)
    if len(kept) > KEPT_SIZES:
        del kept[0]


def _stdin_closed(process: ProcessState, _record: StdinClosed) -> None:
    process.stdin_closed = True


def _ending(process: ProcessState, record: Ending) -> None:
    # The first reason counts (`processes/exit_cause.py`).
    if process.ending is None:
        process.ending = record.cause
        process.kill_at = record.kill_at
    process.tree_ending |= record.tree


def _exited(process: ProcessState, record: Exited) -> None:
    # A new server that finds the unreaped leader records its exit a second time.
    if process.exited is None:
        process.exited = record


def _closed(process: ProcessState, record: Closed) -> None:
    process.closed_at = record.at


_FOLD: dict[type[AnyRecord], Callable[[State, Any], None]] = {
    Service: _service,
    SessionOpened: _session_opened,
    SessionTtl: _session_ttl,
    NetworkDecided: _network_decided,
    SessionEnding: _session_ending,
    SessionEnded: _session_ended,
    Launching: _launching,
    Started: _started,
    Numbered: _numbered,
    Forgotten: _forgotten,
    ForgottenProcess: _forgotten_process,
    Written: _of_process(_written),
    Resized: _of_process(_resized),
    StdinClosed: _of_process(_stdin_closed),
    Ending: _of_process(_ending),
    Exited: _of_process(_exited),
    Closed: _of_process(_closed),
}
