"""The drain of a service: the server opens no new sessions, and perhaps the service ends with the last one.

The supervisor keeps this state, so that the next server has it after a crash or an upgrade. It begins by a
command (`execserver drain`) or, with `--drain-grace`, by SIGTERM, which also ends the service. Of the server
it needs one thing: the number of sessions, reported at the begin of a drain and at each end of a session.

`docs/how-to/long-running-services.md`, "Drain a daemon".
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from execserver.supervisor.loop import Loop

ANSWER_S = 10.0
"""The time for a server that is ready to report its sessions, before a service that is to end does so: its
loop hangs, which is also why a watchdog sends SIGTERM."""


class Drain:
    """The state of a drain, and its end.

    Args:
        loop: the supervisor's loop.
        send: sends a message to the server if there is one, which is then ready or will be.
        stop: ends the service; called once with the reason if it is not that no session is left.
    """

    def __init__(
        self,
        loop: Loop,
        send: Callable[[Mapping[str, object]], None],
        stop: Callable[[str | None], None],
    ) -> None:
        self._loop = loop
        self._send = send
        self._stop = stop
        self._ends_at: float | None = None
        self.is_active = False
        """Whether the server opens no new sessions."""
        self.sessions: int | None = None
        """The number of sessions as the server has reported it; None until it has."""

    @property
    def ends_service(self) -> bool:
        """Whether the service ends when no session is left, or at the end of the grace."""
        return self._ends_at is not None

    def begin(self) -> None:
        """Open no new sessions from now on (idempotent)."""
        if not self.is_active:
            self.is_active = True
            self._send(self.message())

    def end_service(self, grace: float) -> None:
        """Open no new sessions, and end the service with the last one.

        Args:
            grace: seconds until the service ends in any case.
        """
        self.is_active = True
        self.sessions = None
        self._ends_at = time.monotonic() + grace
        self._loop.call_in(grace, self._grace_over)
        self._send(self.message())

    def cancel(self) -> None:
        """Open new sessions again (idempotent). Call it only if the drain does not end the service."""
        if self.is_active:
            self.is_active, self.sessions = False, None
            self._send({"type": "drain", "active": False, "endsInMs": None})

    def message(self) -> Mapping[str, object]:
        """The message for the server, after which it reports its sessions."""
        if self.ends_service:
            self._loop.call_in(ANSWER_S, self._answer_missing)
        left = None if self._ends_at is None else max(0, round((self._ends_at - time.monotonic()) * 1000))
        return {"type": "drain", "active": True, "endsInMs": left}

    def report(self, sessions: int) -> None:
        """The server has this number of sessions."""
        if not self.is_active:
            return  # sent before the cancellation arrived
        self.sessions = sessions
        self._loop.cancel(self._answer_missing)
        if sessions == 0 and self.ends_service:
            self._stop(None)

    def server_lost(self) -> None:
        """The server is dead; the next one reports anew."""
        self._loop.cancel(self._answer_missing)

    def _answer_missing(self) -> None:
        self._stop(f"the server has not answered for {ANSWER_S:g} s")

    def _grace_over(self) -> None:
        left = "an unknown number of" if self.sessions is None else str(self.sessions)
        self._stop(f"the drain grace is over with {left} sessions left")
