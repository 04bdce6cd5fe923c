"""The output of a process, taken on its event loop and handed over to other threads in batches.

Rules kept in this file:

1. A batch is all that waits when somebody comes for it: threads change places once a batch.
2. At most one fetch is under way. A wait that is given up, by an interruption or a time limit,
   leaves it be, and what it brings is there for the next one: nothing is lost.
3. The queue is filled on the loop and emptied elsewhere, in order.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from execclient.errors import OutputGap
from execclient.loop_thread import Call, LoopThread
from execclient.process import Process
from execclient.session.inbox import Chunk


class Output:
    """What is still to come of a process's output."""

    def __init__(self, thread: LoopThread[Any], process: Process) -> None:
        self._thread = thread
        self._process = process
        self._waiting: deque[Chunk | OutputGap] = deque()
        self._fetch: Call[bool] | None = None
        """Gives whether it brought something; after its end or its failure there is no other."""
        self._lock = threading.Lock()
        self._listeners: set[Callable[[], object]] = set()

    def take(self) -> Chunk:
        """Wait for the next chunk, and take it.

        Raises:
            StopIteration: the output has ended.
            OutputGap: some is missing here; what follows can still be taken.
            ExecServerError: nothing more will come, and this is why.
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
        """At most `size` bytes, of all streams, of what `wait` or `poll` has found; none at the end.

        Raises as `take` does.
        """
        taken: list[bytes] = []
        room = size
        while room and self._waiting and not (taken and isinstance(self._waiting[0], OutputGap)):
            stream, data = self.take()
            if len(data) > room:
                self._waiting.appendleft(Chunk(stream, data[room:]))
            taken.append(data[:room])
            room -= len(taken[-1])
        if not taken:
            self._ended()  # raises what the output failed with
        return b"".join(taken)

    def poll(self) -> bool:
        """Whether there is something to take, or the end, or a failure; begins to fetch if not.

        Does not wait. Raises `ExecutorClosed`.
        """
        with self._lock:
            if self._waiting:
                return True
            fetch = self._fetch
            if fetch is None or fetch.done:
                if fetch is not None and not fetch.undelivered():
                    return True
                fetch = Call(self._thread, self._fetch_batch, self._tell)
                # An interruption from here on leaves it to the next one to start it.
                self._fetch = fetch
        fetch.start()
        return False

    def wait(self, timeout: float | None) -> bool:
        """Wait until `poll` says yes, for so many seconds or for ever; whether it does.

        With 0 it does not wait for the process, but finds all that has come from it.
        """
        self._thread.check_elsewhere()
        deadline = None if timeout is None else time.monotonic() + timeout
        while not self.poll():
            left = None if deadline is None else deadline - time.monotonic()
            if left is not None and left <= 0:
                # One turn of the loop: a fetch that has just begun gets what is there.
                self._thread.call(_one_turn)
                return self.poll()
            if (fetch := self._fetch) is not None:
                fetch.wait(left)
        return True

    @contextmanager
    def listening(self, tell: Callable[[], object]) -> Iterator[None]:
        """Within the block `tell` is called, on the loop's thread, whenever `poll` turns from no to yes."""
        self._listeners.add(tell)
        try:
            yield
        finally:
            self._listeners.discard(tell)

    def _tell(self) -> None:
        for tell in tuple(self._listeners):
            tell()

    def _ended(self) -> bool:
        """Whether the last fetch has found the end; raises what it failed with."""
        fetch = self._fetch
        return not self._waiting and fetch is not None and fetch.done and not fetch.result()

    async def _fetch_batch(self) -> bool:
        try:
            self._waiting.append(await anext(self._process))
        except OutputGap as gap:
            self._waiting.append(gap)
        except StopAsyncIteration:
            return False
        # Nothing is awaited from here on: what was taken is in the queue, whatever is cancelled.
        self._waiting.extend(self._process._inbox.take_all())  # noqa: SLF001 - one package
        return True


async def _one_turn() -> None:
    """Run after what was handed over before."""
