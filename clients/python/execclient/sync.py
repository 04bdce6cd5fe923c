"""`execclient` for code without an event loop: the same names and arguments, and calls that block.

    from execclient.sync import connect

    with connect() as executor:
        print(executor.run(["uname", "-a"]).text)
        with executor.start(["seq", "3"]) as process:
            for stream, data in process:
                print(stream, data)

What a method does, takes and raises is said in `execclient`, of the method of the same name there.
Here it holds besides:

- A connection has a thread of its own with an event loop; the calls may come from any number of
  threads, also from one in which an event loop runs (which then stands still for so long).
- Ctrl-C in a call cancels it, as cancelling a task does: a command that `run` waits for is killed
  with all its descendants before `KeyboardInterrupt` is raised. A second Ctrl-C waits for nothing.
- A call after `close` raises `ExecutorClosed`. One under way ends with its command, which `close`
  kills, or raises that too.
- In the child of a `fork` it is closed: every call raises `ExecutorClosed`, and `close` does nothing to
  the parent's. Connect anew there. A child that outlives its parent keeps nothing of it open.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, suppress
from queue import SimpleQueue
from types import TracebackType
from typing import Any, Concatenate, ParamSpec, Protocol, Self, TypeVar, cast

import execclient as core
from execclient.arguments import AnyPath
from execclient.errors import ExecutorClosed
from execclient.filesystem import ShowProgress
from execclient.loop_thread import Call, Disposal, LoopThread
from execclient.output import Output
from execclient.process import TextChunk
from execclient.session.inbox import Chunk
from execclient.transfer import Progress

__all__ = ["Executor", "FileSystem", "Process", "TextStream", "connect"]

P = ParamSpec("P")
R = TypeVar("R")


class _Skin(Protocol):
    """What has a counterpart on a loop."""

    _thread: LoopThread[core.Executor]
    _core: Any


def _blocking(
    method: Callable[Concatenate[Any, P], Coroutine[Any, Any, R]],
) -> Callable[Concatenate[Any, P], R]:
    """The method of the same name and arguments that waits for the result."""

    @functools.wraps(method)
    def call(self: _Skin, /, *args: P.args, **kwargs: P.kwargs) -> R:
        return self._thread.call(lambda: method(self._core, *args, **kwargs))

    return _ours(call)


def _opening(
    method: Callable[Concatenate[Any, P], Coroutine[Any, Any, core.Process]], undo: Disposal[core.Process]
) -> Callable[Concatenate[Any, P], Process]:
    """As `_blocking`, for a method that gives a process."""

    @functools.wraps(method)
    def call(self: _Skin, /, *args: P.args, **kwargs: P.kwargs) -> Process:
        return Process(self._thread, self._thread.call(lambda: method(self._core, *args, **kwargs), undo))

    return _ours(call)


def _transferring(
    method: Callable[Concatenate[Any, P], Coroutine[Any, Any, R]],
) -> Callable[Concatenate[Any, P], R]:
    """As `_blocking`; `progress` is called in the thread that waits, and may make calls itself."""

    @functools.wraps(method)
    def call(self: _Skin, /, *args: P.args, **kwargs: P.kwargs) -> R:
        show = kwargs.get("progress")
        if show is None:
            return self._thread.call(lambda: method(self._core, *args, **kwargs))
        news: SimpleQueue[Progress | None] = SimpleQueue()
        kwargs["progress"] = news.put
        transfer = Call(self._thread, lambda: method(self._core, *args, **kwargs), lambda: news.put(None))
        try:
            transfer.start()
            for progress in iter(news.get, None):
                cast("ShowProgress", show)(progress)
        except BaseException:
            transfer.give_up()
            raise
        return transfer.result()

    return _ours(call)


def _ours(function: Callable[P, R]) -> Callable[P, R]:
    function.__module__ = __name__
    return function


async def _kill(process: core.Process) -> None:
    await process.terminate("tree")


def _connecting(open_: Callable[P, AbstractAsyncContextManager[core.Executor]]) -> Callable[P, Executor]:
    def connect(*args: P.args, **kwargs: P.kwargs) -> Executor:
        """Open a session with a daemon, with the arguments of `execclient.connect`.

        The result is open already. Leaving it as a context manager ends the session as leaving
        that of `execclient.connect` does; so does `Executor.close`.
        """
        thread = LoopThread(lambda: open_(*args, **kwargs))
        try:
            return Executor(thread, thread.enter())
        except BaseException:  # an interruption right after it was entered
            thread.close()
            raise

    connect.__wrapped__ = open_  # type: ignore[attr-defined]  # for `inspect.signature`
    return connect


connect = _connecting(core.connect)


class Executor:
    """A daemon that runs commands and touches files for us. Get one from `connect`.

    As a context manager it is left as that of `execclient.connect` is.
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
        """The extensions that the daemon serves, as `fs/digest` or `process/start.size`."""
        return self._core.capabilities

    @property
    def session_id(self) -> str:
        """The session, as the daemon names it."""
        return self._core.session_id

    @property
    def session_ttl(self) -> float | None:
        """Seconds for which the daemon keeps the session without a connection, and its processes with
        it; None from a daemon that does not tell.
        """
        return self._core.session_ttl

    @property
    def recoveries(self) -> int:
        """How often a lost connection was replaced."""
        return self._core.recoveries

    run = _blocking(core.Executor.run)
    start = _opening(core.Executor.start, _kill)
    attach = _opening(core.Executor.attach, core.Process.detach)
    processes = _blocking(core.Executor.processes)
    call = _blocking(core.Executor.call)

    def drop_connection(self) -> None:
        """A diagnostic: cut the connection as a fault would. Recovery begins at once."""
        self._thread.soon(self._core.drop_connection)

    def close(self) -> None:
        """End the session, as leaving the block does. May be called again.

        What is left of all that was started in it is killed, unless `connect` was told to `keep` it.
        """
        self._thread.close()

    def detach(self) -> None:
        """End the connection, and let the processes go on. May be called again.

        They go on until the daemon ends the session, `--session-ttl` seconds later, unless somebody
        resumes it: `connect(session_id=executor.session_id)`.
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

    def __del__(self) -> None:
        thread = getattr(self, "_thread", None)
        if thread is not None and not thread.closed:
            warnings.warn(
                f"an executor at {self.url} was not closed", ResourceWarning, stacklevel=2, source=self
            )
            thread.request_close()


class Process:
    """A process. Get one from `Executor.start`.

    Iterating gives its output in order, from its first byte, until it has ended. Several threads
    may iterate: each chunk goes to one of them. Leaving `with process:` kills the process if it
    still runs.
    """

    def __init__(self, thread: LoopThread[core.Executor], process: core.Process) -> None:
        self.id = process.id
        self.pid = process.pid
        self.program = process.program
        self.cwd = process.cwd
        self.tty = process.tty
        self._thread = thread
        self._core = process
        self._output = Output(thread, process)

    @property
    def session_id(self) -> str:
        """The session that owns it."""
        return self._core.session_id

    @property
    def exit_code(self) -> int | None:
        """What the process exited with, 128 + N for death by signal N; None while it runs."""
        return self._core.exit_code

    @property
    def cause(self) -> str | None:
        """Why it ended; None while it runs, and from a server that does not tell."""
        return self._core.cause

    @property
    def failure(self) -> str | None:
        """What broke the sandbox before the command began, once `wait` has found that out."""
        return self._core.failure

    @property
    def denial(self) -> Mapping[str, Any] | None:
        """Whether a sandbox was in the way, with evidence; None while the process runs."""
        return self._core.denial

    def __iter__(self) -> Iterator[Chunk]:
        return self

    def __next__(self) -> Chunk:
        """The next chunk; raises what it raises in `execclient`."""
        return self._output.take()

    def text(self, encoding: str = "utf-8", errors: str = "replace") -> TextStream:
        """The same iteration as text, each stream decoded by a decoder of its own."""
        return TextStream(self, encoding, errors)

    read = _blocking(core.Process.read)
    write = _blocking(core.Process.write)
    close_stdin = _blocking(core.Process.close_stdin)
    resize = _blocking(core.Process.resize)
    wait = _blocking(core.Process.wait)
    wait_closed = _blocking(core.Process.wait_closed)
    signal = _blocking(core.Process.signal)
    interrupt = _blocking(core.Process.interrupt)
    terminate = _blocking(core.Process.terminate)
    detach = _blocking(core.Process.detach)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._thread.call(lambda: self._core.__aexit__(kind, error, trace))
        except ExecutorClosed:
            # As there: the block's own error says more.
            if error is None and self.exit_code is None:
                raise


class TextStream:
    """The output of a process as text, as `execclient.TextStream`. Get one from `Process.text`."""

    def __init__(self, process: Process, encoding: str, errors: str) -> None:
        # The decoding is that of the core. What it awaits has come when it does, so its coroutine
        # runs from its beginning to its end without a loop.
        self._core = core.TextStream(cast("core.Process", _Awaitable(process)), encoding, errors)

    def __iter__(self) -> Iterator[TextChunk]:
        return self

    def __next__(self) -> TextChunk:
        """The next piece of text; raises what iterating the process raises."""
        step = self._core.__anext__()
        try:
            step.send(None)
        except StopIteration as end:
            return cast("TextChunk", end.value)
        except StopAsyncIteration:
            raise StopIteration from None
        finally:
            step.close()
        raise AssertionError("the decoding of text waited for something else than output")


class _Awaitable:
    """A process whose chunks are awaited, and are there: getting them blocks."""

    def __init__(self, process: Process) -> None:
        self._process = process

    def __aiter__(self) -> AsyncIterator[Chunk]:
        return self

    async def __anext__(self) -> Chunk:
        for chunk in self._process:
            return chunk
        raise StopAsyncIteration


class FileSystem:
    """Files at the executor, as `executor.fs`. Every method is that of `execclient.FileSystem`."""

    def __init__(self, thread: LoopThread[core.Executor], filesystem: core.FileSystem) -> None:
        self._thread = thread
        self._core = filesystem

    def uri(self, path: AnyPath) -> str:
        """The URI of a path, as it goes over the wire."""
        return self._core.uri(path)

    read_bytes = _blocking(core.FileSystem.read_bytes)
    write_bytes = _blocking(core.FileSystem.write_bytes)
    read_text = _blocking(core.FileSystem.read_text)
    write_text = _blocking(core.FileSystem.write_text)
    stat = _blocking(core.FileSystem.stat)
    iterdir = _blocking(core.FileSystem.iterdir)
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
