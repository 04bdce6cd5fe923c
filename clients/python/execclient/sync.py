"""`execclient` for code without an event loop: the same names and arguments, and calls that block.

    from execclient.sync import connect

    with connect() as executor:
        print(executor.run(["uname", "-a"]).text)
        with executor.start(["seq", "3"]) as process:
            for stream, data in process:
                print(stream, data)

Each method is documented at the method of the same name in `execclient`. In addition:

- A connection has its own thread with an event loop; calls may be made from any number of threads, also from
  one in which an event loop runs (which is then blocked).
- Ctrl-C in a call cancels it, like the cancellation of a task: a command that `run` waits for is killed with
  all its descendants before `KeyboardInterrupt` is raised. A second Ctrl-C does not wait.
- A call after `close` raises `ExecutorClosed`. A call under way ends with its command, which `close` kills,
  or raises that too.
- `search` and `find` are those of `execclient.search`.
- In the child of a `fork` the executor is closed: every call raises `ExecutorClosed`, and `close` does not
  affect the parent's connection. Connect anew in the child.
"""

from __future__ import annotations

import functools
import inspect
import threading
import time
import warnings
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, contextmanager, suppress
from queue import SimpleQueue
from types import TracebackType
from typing import TYPE_CHECKING, Any, Concatenate, Generic, Literal, ParamSpec, Protocol, Self, TypeVar, cast

import execclient as core
from execclient import arguments
from execclient.arguments import AnyPath, Sandbox
from execclient.errors import ExecutorClosed, OutputGap
from execclient.loop_thread import Disposal, LoopCall, LoopThread
from execclient.output_text import MAX_LINE, LineOptions, begun
from execclient.process_control import deprecated_scope, described, late
from execclient.process_input import Communication
from execclient.results import Change, Chunk, Line, PortEvent, TextChunk
from execclient.search import find as core_find
from execclient.search import search as core_search
from execprotocol.daemon_thread import run_in_daemon_thread

if TYPE_CHECKING:
    from execclient.ports import OnError

__all__ = [
    "Executor",
    "FileSystem",
    "Forward",
    "LineStream",
    "PortEvents",
    "Process",
    "TextStream",
    "Watch",
    "connect",
    "find",
    "search",
]

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class _DecodedCore(Protocol[T_co]):
    """A stream of the core."""

    def __anext__(self) -> Coroutine[Any, Any, T_co]:
        """The next piece."""


class _Wrapper(Protocol):
    """An object with a counterpart on the loop."""

    _thread: LoopThread[core.Executor]
    _core: Any


def _blocking(
    method: Callable[Concatenate[Any, P], Coroutine[Any, Any, R]],
) -> Callable[Concatenate[Any, P], R]:
    """The method with the same name and arguments that waits for the result."""

    @functools.wraps(method)
    def call(self: _Wrapper, /, *args: P.args, **kwargs: P.kwargs) -> R:
        return self._thread.call(lambda: method(self._core, *args, **kwargs))

    return _ours(call)


def _opening(
    method: Callable[Concatenate[Any, P], Coroutine[Any, Any, core.Process]], undo: Disposal[core.Process]
) -> Callable[Concatenate[Any, P], Process]:
    """As `_blocking`, for a method that returns a process."""

    @functools.wraps(method)
    def call(self: _Wrapper, /, *args: P.args, **kwargs: P.kwargs) -> Process:
        return Process(self._thread, self._thread.call(lambda: method(self._core, *args, **kwargs), undo))

    return _ours(call)


def _watching(method: Callable[Concatenate[Any, P], core.Watch]) -> Callable[Concatenate[Any, P], Watch]:
    """The method with the same name and arguments that returns a watch for other threads."""

    @functools.wraps(method)
    def call(self: _Wrapper, /, *args: P.args, **kwargs: P.kwargs) -> Watch:
        return Watch(self._thread, method(self._core, *args, **kwargs))

    return _ours(call)


def _transferring(
    method: Callable[Concatenate[Any, P], Coroutine[Any, Any, R]],
) -> Callable[Concatenate[Any, P], R]:
    """As `_blocking`; `progress` is called in the waiting thread, and may make calls itself."""

    @functools.wraps(method)
    def call(self: _Wrapper, /, *args: P.args, **kwargs: P.kwargs) -> R:
        show = kwargs.get("progress")
        if show is None:
            return self._thread.call(lambda: method(self._core, *args, **kwargs))
        news: SimpleQueue[Any] = SimpleQueue()
        kwargs["progress"] = news.put
        transfer = LoopCall(self._thread, lambda: method(self._core, *args, **kwargs), lambda: news.put(None))
        try:
            transfer.start()
            for progress in iter(news.get, None):
                cast("Callable[[Any], None]", show)(progress)
        except BaseException:
            transfer.give_up()
            raise
        return transfer.result()

    return _ours(call)


def _ours(function: Callable[P, R]) -> Callable[P, R]:
    function.__module__ = __name__
    return function


_HANDLERS = ("on_network_request", "on_network_decision", "on_draining")


def _in_a_thread(handler: Callable[[Any], T]) -> Callable[[Any], Coroutine[Any, Any, T]]:
    return lambda given: run_in_daemon_thread(handler, given)


async def _kill(process: core.Process) -> None:
    await process.kill()


def _connecting(open_: Callable[P, AbstractAsyncContextManager[core.Executor]]) -> Callable[P, Executor]:
    def connect(*args: P.args, **kwargs: P.kwargs) -> Executor:
        """Open a session with a daemon, with the arguments of `execclient.connect`.

        The result is open already. Leaving it as a context manager, or `Executor.close`, ends the session as
        leaving the block of `execclient.connect` does. Handlers are called in threads of their own, and may
        block and make calls.
        """
        for name in _HANDLERS:
            if (handler := kwargs.get(name)) is not None:
                arguments.check_handler(handler, name)
                kwargs[name] = _in_a_thread(cast("Callable[[Any], object]", handler))
        thread = LoopThread(lambda: open_(*args, **kwargs))
        try:
            return Executor(thread, thread.enter())
        except BaseException:  # an interruption right after the context was entered
            thread.close()
            raise

    signature = inspect.signature(open_).replace(return_annotation="Executor")
    connect.__signature__ = signature  # type: ignore[attr-defined]  # for `help`
    return connect


connect = _connecting(core.connect)


class Executor:
    """A daemon that runs commands and accesses files. Get one from `connect`.

    Leaving it as a context manager ends the session, as with `execclient.connect`.
    """

    def __init__(self, thread: LoopThread[core.Executor], executor: core.Executor) -> None:
        self.url = executor.url
        self.info = executor.info
        self.cwd = executor.cwd
        self.fs = FileSystem(thread, executor.fs)
        self._thread = thread
        self._core = executor

    @property
    def capabilities(self) -> frozenset[str]:
        """The extensions that the daemon serves, such as `fs/digest` or `process/start.size`."""
        return self._core.capabilities

    @property
    def home(self) -> str | None:
        """The home folder of the daemon's user; None if the daemon does not report it."""
        return self._core.home

    def files(self, sandbox: Sandbox | None, *, workspace: AnyPath | None = None) -> FileSystem:
        """The files within a sandbox, as `run` takes one: those of `fs.confined`; None for no limits."""
        return FileSystem(self._thread, self._core.files(sandbox, workspace=workspace))

    @property
    def session_id(self) -> str:
        """The daemon's name for the session."""
        return self._core.session_id

    @property
    def session_ttl(self) -> float | None:
        """Seconds for which the daemon keeps the session and its processes without a connection; None if the
        daemon does not report it. The daemon's `--session-ttl`, unless a client set another time by `ttl` of
        `connect`.
        """
        return self._core.session_ttl

    @property
    def closed(self) -> bool:
        """Whether the session has ended for this client: by `close` or `detach`, or because it was lost."""
        return self._core.closed

    @property
    def recoveries(self) -> int:
        """How often a lost connection was replaced."""
        return self._core.recoveries

    run = _blocking(core.Executor.run)
    start = _opening(core.Executor.start, _kill)
    attach = _opening(core.Executor.attach, core.Process.detach)
    processes = _blocking(core.Executor.processes)
    ports = _blocking(core.Executor.ports)

    def watch_ports(self, *, all_sessions: bool = False) -> PortEvents:
        """Watch on which ports processes begin and stop to listen, within `with`.

        Parameters and errors are those in `execclient`.
        """
        return PortEvents(self._thread, self._core.watch_ports(all_sessions=all_sessions))

    def forward(
        self,
        port: int,
        *,
        local_port: int | None = None,
        process: Process | str | None = None,
        session_id: str | None = None,
        on_error: OnError | None = None,
    ) -> Forward:
        """Forward a port of this machine to a port at the executor, within `with`.

        Parameters and errors are those in `execclient`; `on_error` is called in a thread of its own.
        """
        arguments.check_handler(on_error, "on_error")
        if isinstance(process, Process):
            session_id, process = session_id or process.session_id, process.id
        forward = self._core.forward(
            port,
            local_port=local_port,
            process=process,
            session_id=session_id,
            on_error=None if on_error is None else _in_a_thread(on_error),
        )
        return Forward(self._thread, forward)

    kill_trees = _blocking(core.Executor.kill_trees)
    call = _blocking(core.Executor.call)
    watch = _watching(core.Executor.watch)

    def drop_connection(self) -> None:
        """Cut the connection as a fault would, for diagnosis. Recovery begins at once."""
        self._thread.soon(self._core.drop_connection)

    def close(self) -> None:
        """End the session, as leaving the block does. May be called again.

        All processes that were started in the session are killed, unless `connect` was told to `keep` them.
        """
        self._thread.close()

    def detach(self) -> None:
        """End the connection, and let the processes run on. May be called again.

        The daemon ends the session with its processes `session_ttl` seconds later, unless a client resumes
        it: `connect(session_id=executor.session_id)`.
        """
        try:
            with suppress(ExecutorClosed):
                self._thread.call(self._core.detach)
        finally:
            self._thread.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._thread.close()

    def __repr__(self) -> str:
        return repr(self._core)

    def __del__(self) -> None:
        thread = getattr(self, "_thread", None)
        if thread is not None and not thread.closed:
            warnings.warn(
                f"an executor at {self.url} was not closed", ResourceWarning, stacklevel=2, source=self
            )
            thread.request_close()


class OutputQueue:
    """The output of a process, fetched on its event loop and handed to other threads in batches.

    Rules kept in this class:

    1. A batch is all the waiting output: threads switch once per batch.
    2. At most one fetch is under way. An interrupted or timed-out wait leaves it running, and its output
       stays for the next call: none is lost.
    3. The queue is filled on the loop and emptied by other threads, in order.
    """

    def __init__(self, thread: LoopThread[Any], process: core.Process) -> None:
        self._thread = thread
        self._process = process
        self._waiting: deque[Chunk | OutputGap] = deque()
        self._fetch: LoopCall[bool] | None = None
        """Its result is whether it brought output; after its end or its failure there is no other."""
        self._lock = threading.Lock()
        self._listeners: set[Callable[[], object]] = set()

    def take(self) -> Chunk:
        """Wait for the next chunk, and take it.

        Raises:
            StopIteration: the output has ended.
            OutputGap: output was lost here; later output can still be taken.
            ExecServerError: no more output will arrive, because of this error.
        """
        while True:
            try:
                piece = self._waiting.popleft()
            except IndexError:
                self.wait(None)
                if self._ended():
                    raise StopIteration from None
            else:
                if isinstance(piece, OutputGap):
                    raise piece
                return piece

    def read(self, size: int) -> bytes:
        """At most `size` bytes of all streams, from the output that `wait` or `poll` found; none at the end.

        Raises as `take` does.
        """
        taken: list[bytes] = []
        room = size
        while room and self._waiting and not (taken and isinstance(self._waiting[0], OutputGap)):
            chunk = self.take()
            if len(chunk.data) > room:
                self._waiting.appendleft(Chunk(chunk.stream, chunk.data[room:], chunk.at))
            taken.append(chunk.data[:room])
            room -= len(taken[-1])
        if not taken:
            self._ended()  # raises the error of the output
        return b"".join(taken)

    def poll(self) -> bool:
        """Whether there is output, the end, or a failure; begins to fetch if not.

        Does not wait. Raises `ExecutorClosed`.
        """
        with self._lock:
            if self._waiting:
                return True
            fetch = self._fetch
            if fetch is None or fetch.done:
                if fetch is not None and not fetch.undelivered():
                    return True
                fetch = LoopCall(self._thread, self._fetch_batch, self._notify)
                # If this is interrupted here, the next call starts the fetch.
                self._fetch = fetch
        fetch.start()
        return False

    def wait(self, timeout: float | None) -> bool:
        """Wait until `poll` is true, for so many seconds or for ever; whether it is.

        With 0 it does not wait for the process, but finds all output that has arrived.
        """
        self._thread.check_elsewhere()
        deadline = None if timeout is None else time.monotonic() + timeout
        while not self.poll():
            left = None if deadline is None else deadline - time.monotonic()
            if left is not None and left <= 0:
                # One turn of the loop: a fetch that has just begun gets the waiting output.
                self._thread.call(_one_turn)
                return self.poll()
            if (fetch := self._fetch) is not None:
                fetch.wait(left)
        return True

    @contextmanager
    def listening(self, listener: Callable[[], object]) -> Iterator[None]:
        """Within the block, call `listener` on the loop's thread whenever `poll` becomes true."""
        self._listeners.add(listener)
        try:
            yield
        finally:
            self._listeners.discard(listener)

    def _notify(self) -> None:
        for listener in tuple(self._listeners):
            listener()

    def _ended(self) -> bool:
        """Whether the last fetch has found the end; raises its error."""
        fetch = self._fetch
        return not self._waiting and fetch is not None and fetch.done and not fetch.result()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of process {self._process.id}, waiting chunks: {len(self._waiting)}>"

    async def _fetch_batch(self) -> bool:
        try:
            self._waiting.append(await anext(self._process))
        except OutputGap as gap:
            self._waiting.append(gap)
        except StopAsyncIteration:
            return False
        # Nothing is awaited from here on: output that was taken is in the queue, even if this is cancelled.
        self._waiting.extend(self._process.output.take_all())
        return True


async def _one_turn() -> None:
    """Run after the calls handed over before."""


class Process:
    """A process. Get one from `Executor.start`.

    Iterating yields the output in order, from its first byte, until it has ended. Several threads may
    iterate: each chunk goes to one of them. Leaving `with process:` kills the process if it still runs, and
    waits for its exit, some seconds at most.
    """

    def __init__(self, thread: LoopThread[core.Executor], process: core.Process) -> None:
        self.id = process.id
        self.pid = process.pid
        self.audit = process.audit
        self.program = process.program
        self.cwd = process.cwd
        self.tty = process.tty
        self.snapshot_obstacle = process.snapshot_obstacle
        self._thread = thread
        self._core = process
        self._lines: tuple[LineStream, LineOptions] | None = None
        self.output = OutputQueue(thread, process)
        """The waiting output. Internal: it may change between versions."""

    @property
    def session_id(self) -> str:
        """The session that owns it."""
        return self._core.session_id

    @property
    def exit_code(self) -> int | None:
        """128 + N for death by signal N, 124 after a time limit; None while the process runs."""
        return self._core.exit_code

    @property
    def returncode(self) -> int | None:
        """`exit_code`, under the name that `subprocess` has, where a death by signal N is -N."""
        return self._core.exit_code

    def poll(self) -> int | None:
        """The exit code if the process has exited, None otherwise, without waiting."""
        return self._core.exit_code

    @property
    def cause(self) -> str | None:
        """Why the process ended; None while it runs, or if the server does not report causes."""
        return self._core.cause

    @property
    def limit(self) -> Mapping[str, Any] | None:
        """The one of its `limits` that ended the process: `which` (`memory`, `wall`) and its `value`."""
        return self._core.limit

    @property
    def failure(self) -> str | None:
        """Why the sandbox failed before the command began; known after `wait`."""
        return self._core.failure

    @property
    def denial(self) -> Mapping[str, Any] | None:
        """Whether the sandbox denied something, with evidence; None while the process runs."""
        return self._core.denial

    @property
    def ended_with_sandbox(self) -> Mapping[str, Any] | None:
        """The processes that the command left running and its sandbox ended: `count` and `names`."""
        return self._core.ended_with_sandbox

    def __iter__(self) -> Iterator[Chunk]:
        return self

    def __next__(self) -> Chunk:
        """The next chunk. Raises as in `execclient`."""
        return self.output.take()

    def text(self, encoding: str = "utf-8", errors: str = "replace") -> TextStream:
        """The same iteration as text. Each stream has its own decoder."""
        return TextStream(self, encoding, errors)

    def lines(
        self, encoding: str = "utf-8", errors: str = "replace", *, max_line: int = MAX_LINE
    ) -> LineStream:
        """The same iteration as whole lines of text. Parameters and errors are those in `execclient`."""
        options = (encoding, errors, max_line)
        self._lines = self._lines or (LineStream(self, *options), options)
        return begun(*self._lines, options)

    @property
    def communication(self) -> Communication:
        """What `communicate` has sent and received. Internal: it may change between versions."""
        return self._core.communication

    def communicate(
        self,
        input: bytes | str | None = None,  # noqa: A002 - as in `subprocess`
        timeout: float | None = None,
    ) -> tuple[bytes, bytes]:
        """Write the input, close the standard input, and read to the end; the standard output and error.

        Parameters and errors are those in `execclient`.
        """
        communication = self.communication
        self._thread.call(lambda: communication.begin(input))
        # From here, and not on the loop: the queue may have output that was not taken yet.
        timeout = arguments.waiting(timeout)
        end = None if timeout is None else time.monotonic() + timeout
        while self.output.wait(None if end is None else end - time.monotonic()):
            try:
                communication.add(self.output.take())
            except OutputGap as gap:
                communication.add(gap)
            except StopIteration:
                return self._thread.call(communication.result)
        assert timeout is not None
        raise late(self, timeout, "end")

    read = _blocking(core.Process.read)
    write = _blocking(core.Process.write)
    close_stdin = _blocking(core.Process.close_stdin)
    resize = _blocking(core.Process.resize)
    wait = _blocking(core.Process.wait)
    wait_closed = _blocking(core.Process.wait_closed)
    linger = _blocking(core.Process.linger)
    signal = _blocking(core.Process.signal)
    interrupt = _blocking(core.Process.interrupt)
    send_signal = _blocking(core.Process.send_signal)

    def terminate(self, scope: Literal["group", "tree"] | None = None) -> bool:
        """Send SIGTERM to the process group. Parameters and errors are those in `execclient`."""
        if scope is not None:
            deprecated_scope(scope)
            running = self.exit_code is None
            self._thread.call(lambda: self._core.kill(scope))
            return running
        return self._thread.call(self._core.terminate)

    kill = _blocking(core.Process.kill)
    detach = _blocking(core.Process.detach)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._thread.call(lambda: self._core.__aexit__(kind, error, trace))
        except ExecutorClosed:
            # The error of the block is more useful.
            if error is None and self.exit_code is None:
                raise

    def __repr__(self) -> str:
        return described(self)


class Forward:
    """A port of this machine that leads to a port at the executor. Get one from `Executor.forward`.

    It listens within `with`. Connections are served by the thread of the executor's connection.
    """

    def __init__(self, thread: LoopThread[core.Executor], forward: core.Forward) -> None:
        self.remote_port = forward.remote_port
        self._thread = thread
        self._core = forward

    @property
    def port(self) -> int:
        """The port of this machine; 0 before the block is entered."""
        return self._core.port

    @property
    def url(self) -> str:
        """The URL of a web server behind the port."""
        return self._core.url

    @property
    def connections(self) -> int:
        """How many connections are open."""
        return self._core.connections

    close = _blocking(core.Forward.close)

    def __enter__(self) -> Self:
        self._thread.call(self._core.__aenter__, core.Forward.close)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with suppress(ExecutorClosed):  # which has closed the port, too
            self._thread.call(self._core.close)

    def __repr__(self) -> str:
        return repr(self._core)


class PortEvents:
    """What begins and stops to listen at the executor. Get one from `Executor.watch_ports`.

    Iterating waits for the next `PortEvent`, as in `execclient`.
    """

    def __init__(self, thread: LoopThread[core.Executor], events: core.PortEvents) -> None:
        self._thread = thread
        self._core = events

    def __enter__(self) -> Self:
        self._thread.call(self._core.__aenter__)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with suppress(ExecutorClosed):
            self._thread.call(lambda: self._core.__aexit__(kind, error, trace))

    def __iter__(self) -> Iterator[PortEvent]:
        return self

    def __next__(self) -> PortEvent:
        """The next event. Raises as in `execclient`."""
        return self._thread.call(self._core.__anext__)


class _Decoded(Generic[T]):
    """Text that a stream of the core decodes."""

    # The chunks that the core awaits have arrived by then: its coroutine runs from beginning to end without a
    # loop.
    _core: _DecodedCore[T]

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> T:
        """The next piece of text. Raises as iterating the process does."""
        step = self._core.__anext__()
        try:
            step.send(None)
        except StopIteration as end:
            return cast("T", end.value)
        except StopAsyncIteration:
            raise StopIteration from None
        finally:
            step.close()
        raise AssertionError("the decoding of text awaited something other than output")


class TextStream(_Decoded[TextChunk]):
    """The output of a process as text, as `execclient.TextStream`. Get one from `Process.text`."""

    def __init__(self, process: Process, encoding: str, errors: str) -> None:
        self._core = core.TextStream(_Awaitable(process), encoding, errors)


class LineStream(_Decoded[Line]):
    """The output of a process in lines, as `execclient.LineStream`. Get one from `Process.lines`."""

    def __init__(self, process: Process, encoding: str, errors: str, max_line: int) -> None:
        self._core = core.LineStream(_Awaitable(process), encoding, errors, max_line)


class _Awaitable:
    """A process whose chunks can be awaited, by blocking calls."""

    def __init__(self, process: Process) -> None:
        self._process = process

    def __aiter__(self) -> AsyncIterator[Chunk]:
        return self

    async def __anext__(self) -> Chunk:
        for chunk in self._process:
            return chunk
        raise StopAsyncIteration


class Watch:
    """The changes below a path, from the moment when the block is entered. Get one from `Executor.watch`.

    Iteration ends when the watch has ended; `ended` has the reason. Ctrl-C in a wait loses no change.
    """

    def __init__(self, thread: LoopThread[core.Executor], watch: core.Watch) -> None:
        self.path = watch.path
        self._thread = thread
        self._core = watch
        self._waiting: deque[Change] = deque()

    @property
    def mode(self) -> Literal["inotify", "polling"] | None:
        """How the daemon notices changes; None before the block."""
        return self._core.mode

    @property
    def ended(self) -> str | None:
        """Why the watch has ended; None while it is active."""
        return self._core.ended

    @property
    def message(self) -> str | None:
        """For people: why it has ended, and the way out."""
        return self._core.message

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Change:
        """The next change. Raises as `execclient.Watch` does."""
        if not self._waiting:
            self._thread.call(lambda: self._fetch(None))
        if not self._waiting:
            raise StopIteration
        return self._waiting.popleft()

    def batch(self, timeout: float | None = None) -> list[Change]:
        """All changes that have arrived; waits for the first, as `execclient.Watch.batch`."""
        self._thread.call(lambda: self._fetch(0 if self._waiting else timeout))
        return [self._waiting.popleft() for _ in range(len(self._waiting))]

    async def _fetch(self, timeout: float | None) -> None:  # noqa: ASYNC109 - as in `batch`
        # On the loop, with nothing awaited in between: what was taken is kept, even if this is cancelled.
        self._waiting.extend(await self._core.batch(timeout))

    def close(self) -> None:
        """End the watch, as leaving the block does. May be called again."""
        with suppress(ExecutorClosed):
            self._thread.call(self._core.close)

    def __enter__(self) -> Self:
        self._thread.call(self._core.__aenter__, core.Watch.close)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return repr(self._core)


class FileSystem:
    """Files at the executor, as `executor.fs`. Every method is that of `execclient.FileSystem`."""

    def __init__(self, thread: LoopThread[core.Executor], filesystem: core.FileSystem) -> None:
        self._thread = thread
        self._core = filesystem

    def uri(self, path: AnyPath) -> str:
        """The URI of a path, as it goes over the wire."""
        return self._core.uri(path)

    def confined(self, sandbox: Sandbox, *, workspace: AnyPath | None = None) -> FileSystem:
        """The same files within a sandbox. Parameters and errors are those in `execclient`."""
        return FileSystem(self._thread, self._core.confined(sandbox, workspace=workspace))

    def __repr__(self) -> str:
        return repr(self._core)

    read_bytes = _blocking(core.FileSystem.read_bytes)
    write_bytes = _blocking(core.FileSystem.write_bytes)
    read_text = _blocking(core.FileSystem.read_text)
    write_text = _blocking(core.FileSystem.write_text)
    stat = _blocking(core.FileSystem.stat)
    iterdir = _blocking(core.FileSystem.iterdir)
    scandir = _blocking(core.FileSystem.scandir)
    mkdir = _blocking(core.FileSystem.mkdir)
    chmod = _blocking(core.FileSystem.chmod)
    utime = _blocking(core.FileSystem.utime)
    remove = _blocking(core.FileSystem.remove)
    copy = _blocking(core.FileSystem.copy)
    rename = _blocking(core.FileSystem.rename)
    exists = _blocking(core.FileSystem.exists)
    is_dir = _blocking(core.FileSystem.is_dir)
    is_file = _blocking(core.FileSystem.is_file)
    walk = _blocking(core.FileSystem.walk)
    resolve = _blocking(core.FileSystem.resolve)
    digest = _blocking(core.FileSystem.digest)
    download = _transferring(core.FileSystem.download)
    upload = _transferring(core.FileSystem.upload)
    download_tree = _transferring(core.FileSystem.download_tree)
    upload_tree = _transferring(core.FileSystem.upload_tree)


search = _blocking(core_search)
find = _blocking(core_find)
