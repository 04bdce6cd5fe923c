"""Spawning a server process, by code that is loaded in a millisecond: the first server is spawned before the
supervisor loads the rest of itself, so that both load at the same time (`start.py`).

So the modules below `signal` and `socket` are used, which are built in or small: those two bring `enum`, and
with it ten milliseconds.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]
import _socket
import os

from execserver import descendants
from execserver.supervisor import launch

TYPE_CHECKING = False  # `typing` takes longer than all of this
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

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
    ours, theirs = channel_descriptors()
    tagged = descendants.own_limit()
    pid = -1
    try:
        try:
            descendants.set_own_tag(descendants.tag_value(instance))
        except descendants.TagUnavailableError as error:
            launch.report(f"orphans in their own session may outlive a killed supervisor: {error}")
        pid = os.posix_spawn(
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
    finally:
        # An outer execserver that we run under must still find *us* by its tag.
        descendants.clear_own_tag(tagged)
        os.close(theirs)
        if pid < 0:
            os.close(ours)
    return pid, ours


class ServiceLaunch:
    """What the service was started with, taken once and set right, and the first server.

    Args:
        command: program and arguments of a server.
    """

    def __init__(self, command: Sequence[str]) -> None:
        """Take it all, and then begin the server, or it would inherit what is none of its business."""
        launch.close_inherited_descriptors()
        launch.enter_launch_folder()
        self.command = command
        self.environment: Mapping[bytes, bytes] = launch.initial_environment()
        self.instance = descendants.new_instance()
        self.other_children = launch.present_children()
        """Children that this process had before it became the supervisor (`helper & exec execserver`)."""
        self.nofile_soft = launch.raise_descriptor_limit()
        self.first: tuple[int, int] | None = None
        """Pid and channel of the first server; None where it could not be begun, which is tried again when
        everything else is ready, and said then."""
        try:
            self.first = spawn(command, self.environment, self.instance)
        except OSError:  # `contextlib` takes as long to load as all of this
            return
