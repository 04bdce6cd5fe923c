"""`port/open`: chooses a listener and starts the stream to it.

Rules of this file:

1. Only what a descendant of the session's processes listens on is connected to. The port may change its owner
   between the look and the connection, so the owner is looked at again when it is connected.
2. A stream that is not connected is no process for the client: it is killed and forgotten if it fails.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from execprotocol.errors import InternalError, InvalidRequest, SpawnFailed, os_error_text
from execprotocol.limits import MAX_PORT_STREAMS
from execserver.launch_spec import LaunchSpec
from execserver.ports import listeners
from execserver.ports.listeners import Listener, Scanner
from execserver.processes.start_options import StartOptions, start_digests
from execserver.processes.usage import Meter

if TYPE_CHECKING:
    from execprotocol.port import PortOpenParams
    from execserver.processes.executor import Executor
    from execserver.processes.process import ManagedProcess
    from execserver.processes.store import ProcessStore

_PROGRAM = "import sys; sys.path.append(sys.argv[1]); from execserver.ports.stream import main; main()"

_FOLDER = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

_ARGV0 = "port/open"
"""What `process/list` shows as the program of a stream, before its address and port."""

_CONNECT_TO = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 - nothing is bound
_MAPPED = "::ffff:"

_PREFERRED = ("127.0.0.1", "0.0.0.0", "::1", "::")  # noqa: S104 - nothing is bound
"""Of several sockets of one process with the same port, which usually serve the same."""

_MOST_NAMED = 20

_REPORT_BYTES = 4096


class Ports:
    """The listening sockets of all processes, and the streams to them.

    Args:
        executor: runs the processes.
    """

    def __init__(self, executor: Executor) -> None:
        self._executor = executor
        scanner = Scanner()
        self._meter = Meter(lambda: scanner.find(self._descendants()))
        self.own_namespace = listeners.own_namespace()
        self._opening: WeakKeyDictionary[ProcessStore, set[str]] = WeakKeyDictionary()
        """The names of streams that are not connected yet, by the session's processes."""

    async def look(self) -> list[Listener]:
        """What all processes listen on now.

        Raises:
            InternalError: no descriptor or no memory is available.
        """
        try:
            return await self._meter.measured()
        except OSError as error:
            raise InternalError(os_error_text(error)) from None

    async def open(self, store: ProcessStore, of: ProcessStore, params: PortOpenParams) -> ManagedProcess:
        """Start a stream and return it connected.

        Args:
            store: the processes of the session that gets the stream.
            of: those of the session whose descendant listens.
            params: the request.

        Raises:
            InvalidRequest: nothing fits, too much fits, there are too many streams, or the name is taken.
            InternalError: the listener did not accept the connection.
        """
        store.require_free(params.process_id)
        opening = self._opening.setdefault(store, set())
        if len(opening.union(each.process_id for each in store if is_open_stream(each))) >= MAX_PORT_STREAMS:
            raise InvalidRequest(
                f"the session has {MAX_PORT_STREAMS} open streams: close some first",
                name="too_many_streams",
                field="processId",
            )
        opening.add(params.process_id)
        try:
            with store.reserve(params.process_id) as reservation:
                listener = choose(await self.look(), of, params)
                await self._executor.wait_for_turn()
                reservation.require_wanted()
                process, report = _start(store, params, listener)
                reservation.on_cancel = partial(process.leader.signal_group, signal.SIGKILL)
                try:
                    outcome = await _read_report(report)
                    reservation.require_wanted()
                    await self._require_connected(listener, outcome)
                    reservation.require_wanted()
                except BaseException:
                    store.discard(process)
                    raise
                return process
        finally:
            opening.discard(params.process_id)

    async def _require_connected(self, listener: Listener, report: str) -> None:
        """Raise an error unless the program reports a connection, and it is that to the listener."""
        outcome, _, rest = report.partition(" ")
        if outcome != "ok":
            if not await asyncio.to_thread(listeners.is_listening, listener):
                raise _gone(listener)  # it was seen just before its end
            reason = rest or "the program of the stream was killed"
            raise InternalError(
                f"no connection to {listener.address} port {listener.port}: {reason}",
                name="connect_failed",
                field="port",
            )
        try:
            owned = await asyncio.to_thread(self._is_owned, listener, int(rest))
        except OSError as error:
            raise InternalError(os_error_text(error)) from None
        if not owned:
            raise _gone(listener)

    def _is_owned(self, listener: Listener, peer_port: int) -> bool:
        """Whether a connection is to the listener; blocking. One that takes a single connection may be closed
        by now.
        """
        if listeners.is_listening(listener):
            return True
        members = self._descendants().get(listener.number, ())
        return listeners.has_connection(listener, peer_port, members)

    def _descendants(self) -> dict[int, set[int]]:
        """The pids of the living descendants of all processes, by number; blocking, for a thread."""
        running = {each.number: each.pid for each in self._executor.processes() if each.running}
        return self._executor.tree_killer.descendants(running)


def is_open_stream(process: ManagedProcess) -> bool:
    """Whether a process is a stream that has not ended."""
    return process.started.paced and not process.closed


def choose(found: Iterable[Listener], of: ProcessStore, params: PortOpenParams) -> Listener:
    """The listener that a request means.

    Args:
        found: what all processes listen on.
        of: the processes of the session that is meant.
        params: the request.

    Raises:
        InvalidRequest: none fits, or those of several processes.
    """
    own = [each for each in found if each.number in of.numbers]
    names = {process.number: process.process_id for process in of}
    fitting = [
        each
        for each in own
        if each.port == params.port
        and params.address in (None, each.address)
        and params.of_process in (None, names.get(each.number))
    ]
    if not fitting:
        others = f"these do: {_named(own, names)}" if own else "none listens on a TCP port"
        wanted = f"port {params.port}" if params.address is None else f"{params.address} port {params.port}"
        raise InvalidRequest(
            f"no process of the session listens on {wanted}; {others}", name="not_listening", field="port"
        )
    if len({each.number for each in fitting}) > 1:
        raise InvalidRequest(
            f"several processes listen on port {params.port}: choose one by `ofProcess` or `address`; "
            f"{_named(fitting, names)}",
            name="ambiguous_listener",
            field="ofProcess",
        )
    return min(fitting, key=_preference)


def _preference(listener: Listener) -> tuple[int, Listener]:
    known = listener.address in _PREFERRED
    return (_PREFERRED.index(listener.address) if known else len(_PREFERRED)), listener


def _named(found: Sequence[Listener], names: Mapping[int, str]) -> str:
    texts = []
    for each in found[:_MOST_NAMED]:
        name = names.get(each.number)
        texts.append(f"{each.address} port {each.port} of process {name or 'that is no longer kept'}")
    return ", ".join(texts) + (", …" if len(found) > _MOST_NAMED else "")


def _gone(listener: Listener) -> InvalidRequest:
    return InvalidRequest(
        f"{listener.name or 'the process'} no longer listens on {listener.address} port {listener.port}",
        name="not_listening",
        field="port",
    )


def _start(store: ProcessStore, params: PortOpenParams, listener: Listener) -> tuple[ManagedProcess, int]:
    """Start the program. Returns the process, and the end of a pipe for `_read_report`."""
    opened: list[int] = []
    report = None
    try:
        report, end = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        opened.append(end)
        namespace = listeners.open_namespace(listener)
        if namespace is not None:
            opened.append(namespace)
        process = store.start(
            params.process_id,
            partial(_spec, listener, opened),
            _options(listener, start_digests(params)),
            reserved=True,
        )
    except BaseException as error:
        if report is not None:
            os.close(report)
        if isinstance(error, (FileNotFoundError, ProcessLookupError)):
            raise _gone(listener) from None
        if isinstance(error, OSError):
            raise SpawnFailed(error) from None
        raise
    finally:
        for descriptor in opened:
            os.close(descriptor)
    return process, report


def _spec(listener: Listener, shared: Sequence[int]) -> LaunchSpec:
    """Args:
    listener: to connect to.
    shared: the descriptor for the report, and that of the network namespace if it is another one.
    """
    address = _CONNECT_TO.get(listener.address, listener.address)
    if address.startswith(_MAPPED) and "." in address:
        mapped = address.removeprefix(_MAPPED)
        address = _CONNECT_TO.get(mapped, mapped)
    numbers = (listener.port, shared[0], shared[1] if len(shared) > 1 else -1)
    arguments = (sys.executable, "-I", "-S", "-c", _PROGRAM, _FOLDER, address, *map(str, numbers))
    return LaunchSpec(sys.executable, arguments, "/", {}, pipe_stdin=True, shared=tuple(shared))


def _options(listener: Listener, digests: dict[str, str]) -> StartOptions:
    return StartOptions(None, None, digests, [_ARGV0, listener.address, str(listener.port)], "/", paced=True)


async def _read_report(descriptor: int) -> str:
    """All that the program writes until it closes the pipe, which takes it ten seconds at most. The pipe is
    closed here too.
    """
    loop = asyncio.get_running_loop()
    text, complete = bytearray(), loop.create_future()

    def read() -> None:
        data = os.read(descriptor, _REPORT_BYTES)
        text.extend(data)
        if not data and not complete.done():
            complete.set_result(None)

    loop.add_reader(descriptor, read)
    try:
        await complete
    finally:
        loop.remove_reader(descriptor)
        os.close(descriptor)
    return text.decode("utf-8", "replace")
