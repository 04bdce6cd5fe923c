"""`port/*`: what processes listen on, and byte streams to it (`docs/protocol.md`, "Ports")."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING

from execprotocol.errors import InvalidParams, start_differs
from execserver.processes.executor import Executor
from execserver.processes.start_options import first_difference, start_digests
from execserver.rpc.codec import encode_json
from execserver.rpc.handlers import Caller, Encoded, Handlers
from execserver.sessions.access import reach, require_proof
from execserver.sessions.registry import SessionRegistry

if TYPE_CHECKING:
    from execprotocol.port import PortEntry, PortListParams, PortOpenParams, PortOpenResult
    from execserver.ports.listeners import Listener
    from execserver.ports.opening import Ports
    from execserver.processes.process import ManagedProcess
    from execserver.sessions.session import Session

    Look = Callable[[], Awaitable[Sequence[PortEntry]]]


class PortHandlers:
    """The handlers of these methods."""

    def __init__(self, executor: Executor, sessions: SessionRegistry) -> None:
        self._executor = executor
        self._sessions = sessions
        self._made: Ports | None = None

    def table(self) -> Handlers:
        """Method name → handler."""
        return {"port/list": self.list, "port/open": self.open}

    async def list(self, caller: Caller, params: PortListParams) -> Encoded:
        """List listening sockets, and watch them from then on if wanted: a `PortListResult`."""
        if params.all_sessions:
            if params.session_id is not None:
                raise InvalidParams("give `sessionId` or `allSessions`, not both", field="sessionId")
            require_proof(caller, "allSessions")
            session_id = None
        else:
            session_id = reach(caller, self._sessions, params.session_id).id
        look = partial(self._entries, session_id)
        entries = await look()
        if params.watch is not None:
            self._watch(caller, params.watch, entries, look)
        return Encoded(encode_json({"ports": entries}))

    async def open(self, caller: Caller, params: PortOpenParams) -> Encoded:
        """Open a stream: a `PortOpenResult`."""
        store = caller.session.processes
        of = reach(caller, self._sessions, params.session_id).processes
        await store.wait_for_start(params.process_id)
        process = store.find(params.process_id)
        if process is not None and process.started.paced:
            parameter = first_difference(process.started.digests or {}, start_digests(params))
            if parameter is not None:
                raise start_differs(params.process_id, parameter)
            return Encoded(encode_json(_result(process)))
        process = await self._ports.open(store, of, params)
        # No event of a process may overtake the reply to its start.
        release = caller.session.follow(process, caller.attachment)
        return Encoded(encode_json(_result(process)), after=release, begun=True)

    @property
    def _ports(self) -> Ports:
        """Made at the first use: few daemons need it."""
        if self._made is None:
            from execserver.ports.opening import Ports

            self._made = Ports(self._executor)
        return self._made

    async def _entries(self, session_id: str | None) -> Sequence[PortEntry]:
        """What the processes of a session listen on, or of all sessions."""
        ports = self._ports
        found = await ports.look()
        entries = (
            entry
            for session in self._sessions
            if found and session_id in (None, session.id)
            for entry in _of_session(session, found, ports.own_namespace)
        )
        return sorted(entries, key=lambda entry: (entry["port"], entry["address"]))

    def _watch(self, caller: Caller, watch: bool, entries: Sequence[PortEntry], look: Look) -> None:
        from execserver.ports.port_watch import PortWatch

        def notify(entry: PortEntry, listening: bool) -> None:
            caller.notify("port/listening", {**entry, "listening": listening})

        def make() -> PortWatch:
            return PortWatch(notify, caller.wait_to_push, lambda: self._executor.live > 0)

        one = caller.own(PortWatch, make)
        if watch:
            one.begin(entries, look)
        else:
            one.close()


def _of_session(session: Session, found: Iterable[Listener], own_namespace: int) -> Iterator[PortEntry]:
    store = session.processes
    names = {process.number: process.process_id for process in store}
    for each in found:
        if each.number in store.numbers:
            yield {
                "port": each.port,
                "address": each.address,
                "family": each.family,
                "processId": names.get(each.number),
                "sessionId": session.id,
                "pid": each.pid,
                "name": each.name,
                "sandboxed": each.namespace != own_namespace,
            }


def _result(process: ManagedProcess) -> PortOpenResult:
    _, address, port = process.started.argv or ["", "", "0"]
    return {"processId": process.process_id, "address": address, "port": int(port)}
