"""Cancellation of long work whose connection has ended, in the daemon's threads and in fs workers."""

from __future__ import annotations

from execprotocol.errors import InternalError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Protocol

    class StopFlag(Protocol):
        """Tells whether some work is cancelled; a `threading.Event` is one."""

        def is_set(self) -> bool:
            """Whether the work is cancelled."""


class RequestCancelled(InternalError):
    """The connection that requested some work has ended. No client receives this error."""

    def __init__(self) -> None:
        super().__init__("the connection has ended")


def raise_if_cancelled(stop: StopFlag) -> None:
    """Stop work that was cancelled.

    Raises:
        RequestCancelled: `stop` is set.
    """
    if stop.is_set():
        raise RequestCancelled
