"""Signals to this program, which are forwarded to the remote process."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Self, TypeVar

from execclient.commands.failures import CommandExit

FORWARDED = (
    signal.SIGINT,
    signal.SIGTERM,
    signal.SIGHUP,
    signal.SIGQUIT,
    signal.SIGUSR1,
    signal.SIGUSR2,
)

T = TypeVar("T")


class Signals:
    """Receives the signals of `FORWARDED`, in order of arrival, within a `with` block.

    A signal that is ignored at the start, as with `nohup` and a shell's `&`, stays ignored. If a signal came
    in the block, all are ignored after it: the exit status is then decided.
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
        # Blocked meanwhile: the default action would end the program with another status.
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
        """The next signal."""
        return await self._came.get()

    async def forward(self, send: Callable[[signal.Signals], Awaitable[None]]) -> None:
        """Send every signal on, without end."""
        while True:
            await send(await self.next())

    async def unless_signalled(self, awaitable: Awaitable[T]) -> T:
        """The result of an awaitable, while there is no process to forward signals to.

        Raises:
            CommandExit: a signal came and cancelled it; the exit status is that of a death by the signal.
        """
        work = asyncio.ensure_future(awaitable)
        came = asyncio.ensure_future(self.next())
        try:
            await asyncio.wait({work, came}, return_when=asyncio.FIRST_COMPLETED)
            if came.done() and not work.done():
                raise Signalled(came.result())
            if came.done():  # both at once: now there is a process to forward the signal to
                self._came.put_nowait(came.result())
            return await work
        finally:
            for task in (work, came):
                task.cancel()
            await asyncio.gather(work, came, return_exceptions=True)


class Signalled(CommandExit):
    """A signal ends this program."""

    def __init__(self, number: signal.Signals) -> None:
        super().__init__("", 128 + number)
