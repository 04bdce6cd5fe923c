"""The start of the service: the first server is there before anything else, and loads what it needs while
the supervisor loads itself, binds and claims its record.

That server knows nothing until its hello comes, and does nothing but load until then. If the supervisor finds
that it cannot serve, it kills it: no client has seen anything of it.
"""

from __future__ import annotations

import os
import sys

from execserver import descendants
from execserver.supervisor import launch, spawning
from execserver.supervisor.environment import initial_environment

TYPE_CHECKING = False  # as in `spawning.py`
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

# -I: neither PYTHON* variables nor the cwd (an agent's workspace!) may give the server its modules.
# Not -m, which takes 2 ms longer. What is loaded now stays: to have the collector look through it again and
# again takes a fifteenth of a start. The server lets it work again once it is there.
_PROGRAM = "import gc, sys; gc.disable(); from execserver.cli import main; sys.exit(main(sys.argv[1:]))"
SERVER_COMMAND = (sys.executable, "-I", "-X", "utf8", "-c", _PROGRAM)


class Launched:
    """What the service was started with, taken once and set right, and the first server.

    Args:
        command: program and arguments of a server.
    """

    def __init__(self, command: Sequence[str]) -> None:
        """Take it all, and then begin the server, or it would inherit what is none of its business."""
        launch.close_inherited_descriptors()
        launch.enter_launch_folder()
        self.command = command
        self.environment: Mapping[bytes, bytes] = initial_environment()
        self.instance = descendants.new_instance()
        self.strangers = launch.present_children()
        """Children that this process had before it became the supervisor (`helper & exec execserver`)."""
        self.nofile_soft = launch.raise_descriptor_limit()
        self.first: tuple[int, int] | None = None
        """Pid and channel of the first server; None where it could not be begun, which is tried again when
        everything else is ready, and said then."""
        try:
            self.first = spawning.spawn(command, self.environment, self.instance)
        except OSError:  # `contextlib` takes as long to load as all of this
            return


def run(argv: Sequence[str], server_command: Sequence[str] = SERVER_COMMAND) -> int:
    """Run the service to its end.

    Args:
        argv: what follows `serve` on the command line.
        server_command: program and first arguments of a server; `serve` and `argv` are added.

    Returns:
        The exit code.
    """
    passed: list[tuple[int, str]] = []
    if "LISTEN_PID" in os.environ:
        from execserver.supervisor.activation import take_descriptors
        from execserver.supervisor.listeners import ListenError

        try:
            passed = take_descriptors(os.environ)
        except ListenError as error:
            launch.say(str(error))
            return error.exit_code
    launched = Launched([*server_command, "serve", *argv])
    from execserver.supervisor import program

    return program.run(argv, launched, passed)
