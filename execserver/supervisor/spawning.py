"""Spawns server processes, in a module that loads in a millisecond.

The first server is spawned before the supervisor loads its other modules, so that both load at the same time
(`start.py`). So this module uses the built-in modules below `signal` and `socket`: these two import
`enum`, which takes ten milliseconds.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]
import _socket
import os

from execserver import descendants
from execserver.supervisor import launch

TYPE_CHECKING = False  # importing `typing` takes longer than everything here
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

CHANNEL_VARIABLE = "EXECSERVER_CHANNEL_FD"
CHANNEL_DESCRIPTOR = 3

# Space for ten thousand messages while one side is busy; the kernel caps it by net.core.wmem_max.
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
    """Spawn a server process, which waits for its hello.

    Args:
        command: program and arguments.
        environment: without the channel's variable.
        instance: the number for its tag.

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
            setsid=True,  # only the supervisor gets Ctrl-C
            setsigdef=_signal.valid_signals() - {_signal.SIGKILL, _signal.SIGSTOP},
            setsigmask=[],
        )
    finally:
        # An outer execserver, if there is one, must still find *this* process by its own tag.
        descendants.clear_own_tag(tagged)
        os.close(theirs)
        if pid < 0:
            os.close(ours)
    return pid, ours


class ServiceLaunch:
    """The cleaned-up state at the start of the service, and the first server.

    Args:
        command: program and arguments of a server.
    """

    def __init__(self, command: Sequence[str]) -> None:
        """Clean up, then spawn the server, which would inherit leaked descriptors otherwise."""
        launch.close_inherited_descriptors()
        launch.enter_launch_folder()
        self.command = command
        self.environment: Mapping[bytes, bytes] = launch.initial_environment()
        self.instance = descendants.new_instance()
        self.other_children = launch.present_children()
        """Children that this process had before it became the supervisor (`helper & exec execserver`)."""
        self.nofile_soft = launch.raise_descriptor_limit()
        self.first: tuple[int, int] | None = None
        """Pid and channel of the first server; None if it could not be spawned. The supervisor then tries
        again when everything else is ready, and reports the error."""
        try:
            self.first = spawn(command, self.environment, self.instance)
        except OSError:  # no `contextlib.suppress`: importing it takes as long as everything here
            return
