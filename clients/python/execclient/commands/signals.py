"""The signals that we get are meant for the process that we stand for."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Self, TypeVar

from execclient.commands.failures import Failure

FORWARDED = (
    signal.SIGINT,
    signal.SIGTERM,
    signal.SIGHUP,
    signal.SIGQUIT,
    signal.SIGUSR1,
    signal.SIGUSR2,
)

Result = TypeVar("Result")


class Signals:
    """Takes these signals, in the order in which they come, as long as the block lasts.

    One that we were started to ignore, as `nohup` and a shell's `&` have it, stays ignored. Once one
    came, all of them are ignored after the block: the end has begun, and its status stands.
    """

    def __init__(self) -> None:
        self._came: asyncio.Queue[signal.Signals] = asyncio.Queue()
        self._taken: list[signal.Signals] = []
        self._any_came = False

    def __enter__(self) -> Self:
        loop = asyncio.get_running_loop()
        for number in FORWARDED:
            if signal.getsignal(number) is not signal.SIG_IGN:
                loop.add_signal_handler(number, self._take, number)
                self._taken.append(number)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        loop = asyncio.get_running_loop()
        # Blocked meanwhile: the default in between would end us with another status.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, self._taken)
        for number in self._taken:
            loop.remove_signal_handler(number)
            if self._any_came:
                signal.signal(number, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def _take(self, number: signal.Signals) -> None:
        self._any_came = True
        self._came.put_nowait(number)

    async def next(self) -> signal.Signals:
        """The next one."""
        return await self._came.get()

    async def forward(self, send: Callable[[signal.Signals], Awaitable[None]]) -> None:
        """Hand them on, for ever."""
        while True:
            await send(await self.next())

    async def unless_signalled(self, awaitable: Awaitable[Result]) -> Result:
        """Its result; a signal cancels it, when there is nobody yet, or no more, to hand it on to.

        Raises:
            Failure: a signal came; we exit as if it had killed us.
        """
        work = asyncio.ensure_future(awaitable)
        came = asyncio.ensure_future(self.next())
        try:
            await asyncio.wait({work, came}, return_when=asyncio.FIRST_COMPLETED)
            if came.done() and not work.done():
                raise Signalled(came.result())
            if came.done():  # both at once: there is a process now to forward it to
                self._came.put_nowait(came.result())
            return await work
        finally:
            for task in (work, came):
                task.cancel()
            await asyncio.gather(work, came, return_exceptions=True)


class Signalled(Failure):
    """A signal ended us."""

    def __init__(self, number: signal.Signals) -> None:
        super().__init__("", 128 + number)
