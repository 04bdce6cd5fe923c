"""Work that nobody waits for any more ends early, in the daemon's threads and in the fs worker."""

from __future__ import annotations

from execprotocol.errors import InternalError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Protocol

    class Stop(Protocol):
        """Says whether the reason for some work is gone; a `threading.Event` is one."""

        def is_set(self) -> bool:
            """Whether to give up."""


class Abandoned(InternalError):
    """The connection has ended, and with it the reason for some work. Nobody sees this error."""

    def __init__(self) -> None:
        super().__init__("the connection has ended")


def give_up_if(stop: Stop) -> None:
    """Abandon work that nobody waits for any more.

    Raises:
        Abandoned: `stop` is set.
    """
    if stop.is_set():
        raise Abandoned
