"""`port/listening`: reports which sockets begin and stop to listen, by polling.

All watches of the daemon share a poll. There is none while no process of any session lives and the last one
found no listener: nothing can have changed then.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import TYPE_CHECKING

from execprotocol.errors import InternalError

if TYPE_CHECKING:
    from execprotocol.port import PortEntry

POLL_SECONDS = 0.5
"""From one poll to the next."""


class PortWatch:
    """The one watch of a connection. All methods are called on the loop's thread.

    Args:
        notify: sends an entry, and whether it has begun (true) or stopped to listen.
        wait_to_send: returns when the connection takes one more event.
        may_have_changed: whether a socket may listen although the last poll found none.
    """

    def __init__(
        self,
        notify: Callable[[PortEntry, bool], None],
        wait_to_send: Callable[[], Awaitable[None]],
        may_have_changed: Callable[[], bool],
    ) -> None:
        self._notify = notify
        self._wait_to_send = wait_to_send
        self._may_have_changed = may_have_changed
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
            # At the same moments as the other watches, to share their polls.
            await asyncio.sleep(POLL_SECONDS - loop.time() % POLL_SECONDS)
            if not before and not self._may_have_changed():
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
