"""`port/listening`: reports what begins and ends to listen, by looking twice a second.

All watches of the daemon share a look. None is made while no process of any session lives: then there is
nothing to report but what ended, which the last look sees.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import TYPE_CHECKING

from execprotocol.errors import InternalError

if TYPE_CHECKING:
    from execprotocol.port import PortEntry

LOOK_SECONDS = 0.5


class PortWatch:
    """The one watch of a connection. All methods are called on the loop's thread.

    Args:
        notify: sends an entry that has begun (true) or ended to listen.
        wait_to_send: returns when the connection takes one more event.
        worth_a_look: whether something may have changed since the last look found entries, or none.
    """

    def __init__(
        self,
        notify: Callable[[PortEntry, bool], None],
        wait_to_send: Callable[[], Awaitable[None]],
        worth_a_look: Callable[[], bool],
    ) -> None:
        self._notify = notify
        self._wait_to_send = wait_to_send
        self._worth_a_look = worth_a_look
        self._task: asyncio.Task[None] | None = None

    def begin(self, entries: Iterable[PortEntry], look: Callable[[], Awaitable[Iterable[PortEntry]]]) -> None:
        """Report from now on what differs from these entries.

        Args:
            entries: what was answered.
            look: finds what there is now.
        """
        self.close()
        self._task = asyncio.get_running_loop().create_task(self._run(_by_key(entries), look))

    def close(self) -> None:
        """Report nothing any more."""
        if self._task is not None:
            self._task.cancel()
            self._task = None

    async def _run(
        self, before: dict[object, PortEntry], look: Callable[[], Awaitable[Iterable[PortEntry]]]
    ) -> None:
        loop = asyncio.get_running_loop()
        while True:
            # At the same moments as the other watches, to share their looks.
            await asyncio.sleep(LOOK_SECONDS - loop.time() % LOOK_SECONDS)
            if not before and not self._worth_a_look():
                continue
            try:
                now = _by_key(await look())
            except InternalError:
                continue  # no descriptors are available now
            await self._wait_to_send()
            for key, entry in before.items():
                if key not in now:
                    self._notify(entry, False)
            for key, entry in now.items():
                if key not in before:
                    self._notify(entry, True)
            before = now


def _by_key(entries: Iterable[PortEntry]) -> dict[object, PortEntry]:
    """By all that identifies a listener: which of several processes has it open may change."""
    return {
        (each["address"], each["port"], each["sessionId"], each["processId"], each["sandboxed"]): each
        for each in entries
    }
