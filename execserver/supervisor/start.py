"""The start of the service: the first server is there before anything else, and loads what it needs while
the supervisor loads itself, binds and claims its record.

That server knows nothing until its hello comes, and does nothing but load until then. If the supervisor finds
that it cannot serve, it kills it: no client has seen anything of it.
"""

from __future__ import annotations

import os
import sys

from execserver.supervisor import launch
from execserver.supervisor.spawning import ServiceLaunch

TYPE_CHECKING = False  # as in `spawning.py`
if TYPE_CHECKING:
    from collections.abc import Sequence

# -I: neither PYTHON* variables nor the cwd (an agent's workspace!) may give the server its modules.
# Not -m, which takes 2 ms longer. What is loaded now stays: to have the collector look through it again and
# again takes a fifteenth of a start. The server lets it work again once it is there.
_PROGRAM = "import gc, sys; gc.disable(); from execserver.cli import main; sys.exit(main(sys.argv[1:]))"
SERVER_COMMAND = (sys.executable, "-I", "-X", "utf8", "-c", _PROGRAM)


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
        from execserver.supervisor.listener import ListenError

        try:
            passed = take_descriptors(os.environ)
        except ListenError as error:
            launch.report(str(error))
            return error.exit_code
    launched = ServiceLaunch([*server_command, "serve", *argv])
    from execserver.supervisor import program

    return program.run(argv, launched, passed)
