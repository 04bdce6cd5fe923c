"""Whether the first server may be a copy of the process that becomes the supervisor. Loaded before everything
else, so it has nothing that takes long to load.
"""

from __future__ import annotations

import os
import sys

SERVICE_MANAGER_PREFIXES = (b"LISTEN_", b"WATCHDOG_", b"NOTIFY_SOCKET")
"""sd_listen_fds(3), sd_watchdog_enabled(3), sd_notify(3): what only the supervisor answers."""


def may_copy() -> bool:
    """Whether a copy of this process is what a new interpreter would be, started as `start.SERVER_COMMAND`:
    one that neither variables nor the cwd (an agent's workspace!) give its modules, and with nothing in its
    environment that is for the supervisor.
    """
    names = list(os.environb)
    if any(name.startswith(SERVICE_MANAGER_PREFIXES) for name in names):
        return False
    if sys.getfilesystemencoding() != "utf-8":
        return False
    if sys.flags.isolated:
        return True
    # PYTHON_VERSION and its like, which images of containers have, tell an interpreter nothing.
    if any(name.startswith(b"PYTHON") and name[6:7] != b"_" for name in names):
        return False
    site = sys.modules.get("site")
    if site is None or site.ENABLE_USER_SITE:
        return False
    return sys.path[0] == os.path.dirname(os.path.realpath(sys.argv[0])) != os.getcwd()


def forget_the_script(arguments: list[str]) -> None:
    """Let this process be as if such an interpreter had been given these arguments."""
    if not sys.flags.safe_path:
        del sys.path[0]  # the folder of the console script
    sys.argv = ["-c", *arguments]
