"""Spawning a server process, by code that is loaded in a millisecond: the first server is spawned before the
supervisor loads the rest of itself, so that both load at the same time (`start.py`).

So the modules below `signal` and `socket` are used, which are built in or small: those two bring `enum`, and
with it ten milliseconds.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]
import _socket
import os

from execserver import membership
from execserver.supervisor import launch

TYPE_CHECKING = False  # `typing` takes longer than all of this
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

CHANNEL_VARIABLE = "EXECSERVER_CHANNEL_FD"
CHANNEL_DESCRIPTOR = 3

# Room for ten thousand messages while one side is busy; the kernel caps it by net.core.wmem_max.
_CHANNEL_BUFFER = 4 << 20


def channel_descriptors() -> tuple[int, int]:
    """Both ends of a channel: the supervisor's, which does not block, and the server's.

    Raises:
        OSError: no descriptors or memory.
    """
    pair = _socket.socketpair(_socket.AF_UNIX, _socket.SOCK_SEQPACKET)
    for end in pair:
        end.setsockopt(_socket.SOL_SOCKET, _socket.SO_SNDBUF, _CHANNEL_BUFFER)
    pair[0].setblocking(False)
    return pair[0].detach(), pair[1].detach()


def spawn(command: Sequence[str], environment: Mapping[bytes, bytes], instance: int) -> tuple[int, int]:
    """Spawn a server by a program of its own. It waits for its hello.

    Args:
        command: program and arguments.
        environment: without the channel's variable.
        instance: for its tag.

    Returns:
        Its pid, and our end of its channel.

    Raises:
        OSError: the program cannot be started.
    """

    def begin(theirs: int) -> int:
        return os.posix_spawn(
            command[0],
            list(command),
            {**environment, CHANNEL_VARIABLE.encode(): b"%d" % CHANNEL_DESCRIPTOR},
            file_actions=[
                (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                (os.POSIX_SPAWN_DUP2, 2, 1),
                (os.POSIX_SPAWN_DUP2, theirs, CHANNEL_DESCRIPTOR),
            ],
            setsid=True,  # Ctrl-C is for the supervisor
            setsigdef=_signal.valid_signals() - {_signal.SIGKILL, _signal.SIGSTOP},
            setsigmask=[],
        )

    return _start(begin, instance)


def fork(instance: int) -> tuple[int, int]:
    """Make a server of a copy of this process, which has done little yet: a new interpreter takes a fifth of
    a start to come as far as this. `copying.may_copy` says where that is the same.

    Returns:
        As `spawn`; in the copy 0 and a descriptor that is closed.

    Raises:
        OSError: there is no room for another process.
    """

    def begin(theirs: int) -> int:
        pid = os.fork()
        if pid == 0:
            os.setsid()
            launch.release_stdio()
            launch.reset_signals()
            os.environ[CHANNEL_VARIABLE] = str(theirs)
        return pid

    return _start(begin, instance)


def _start(begin: Callable[[int], int], instance: int) -> tuple[int, int]:
    """Begin a server with a channel and the tag of the instance, both of which this process lets go."""
    ours, theirs = channel_descriptors()
    tagged = membership.own_limit()
    pid = -1
    try:
        try:
            membership.set_own_tag(membership.tag_value(instance))
        except membership.TagUnavailableError as error:
            launch.say(f"orphans in their own session may outlive a killed supervisor: {error}")
        pid = begin(theirs)
    finally:
        if pid != 0:
            # An outer execserver that we run under must still find *us* by its tag.
            membership.clear_own_tag(tagged)
            os.close(theirs)
        if pid <= 0:
            os.close(ours)
    return pid, ours
