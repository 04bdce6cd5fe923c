"""The start of the service: spawns the first server before anything else.

So the server loads its modules while the supervisor loads its own, binds and claims its record. The server
only loads until it gets its hello. If the supervisor cannot serve, it kills the server, which no client has
seen yet.
"""

from __future__ import annotations

import os
import sys

from execserver.supervisor import launch
from execserver.supervisor.spawning import ServiceLaunch

TYPE_CHECKING = False  # as in `spawning.py`
if TYPE_CHECKING:
    from collections.abc import Sequence

# -I: the server's modules must not come from PYTHON* variables or the cwd (an agent's workspace!). Not -m,
# which takes 2 ms longer. No garbage collection while modules load, which would take a fifteenth of the
# start; the server enables it afterwards.
_PROGRAM = "import gc, sys; gc.disable(); from execserver.cli import main; sys.exit(main(sys.argv[1:]))"
SERVER_COMMAND = (sys.executable, "-I", "-X", "utf8", "-c", _PROGRAM)


def run(argv: Sequence[str], server_command: Sequence[str] = SERVER_COMMAND) -> int:
    """Run the service to its end.

    Args:
        argv: the command line after `serve`.
        server_command: program and first arguments of a server; `serve` and `argv` are added.

    Returns:
        The exit code.
    """
    passed: list[tuple[int, str]] = []
    if "LISTEN_PID" in os.environ:
        from execserver.supervisor.activation import take_descriptors
        from execserver.supervisor.listener import ListenError

        try:
            passed = take_descriptors(os.environ)
        except ListenError as error:
            launch.report(str(error))
            return error.exit_code
    launched = ServiceLaunch([*server_command, "serve", *argv])
    from execserver.supervisor import program

    return program.run(argv, launched, passed)
