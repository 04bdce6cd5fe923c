"""Whether the first server may be a copy of the process that becomes the supervisor. Loaded before everything
else, so it has nothing that takes long to load.
"""

from __future__ import annotations

import os
import sys

from execserver.supervisor.environment import SERVICE_MANAGER_PREFIXES

_OF_IMAGES = (b"PYTHON_VERSION", b"PYTHON_SHA256", b"PYTHON_PIP_", b"PYTHON_GET_PIP_", b"PYTHON_SETUPTOOLS_")
"""What images of containers have, and what tells an interpreter nothing."""


def may_copy() -> bool:
    """Whether a copy of this process works as a new interpreter would, started as `start.SERVER_COMMAND`: one
    with standard descriptors, without threads, that neither flags nor variables nor folders of the user's
    change, and with nothing in its environment that is for the supervisor.
    """
    names = list(os.environb)
    if any(name.startswith(SERVICE_MANAGER_PREFIXES) for name in names):
        return False
    if None in (sys.stdin, sys.stdout, sys.stderr) or len(os.listdir("/proc/self/task")) > 1:
        return False
    flags = sys.flags
    if flags.optimize or flags.dev_mode or sys.warnoptions or sys.getfilesystemencoding() != "utf-8":
        return False
    if flags.isolated:
        return True
    if any(name.startswith(b"PYTHON") and not name.startswith(_OF_IMAGES) for name in names):
        return False
    site = sys.modules.get("site")
    if site is None or site.ENABLE_USER_SITE:
        return False
    # What comes first there goes, and nothing else. Not so for `python -m`: that is the cwd, an agent's.
    return sys.path[0] == os.path.dirname(os.path.realpath(sys.argv[0]))


def forget_the_script(arguments: list[str]) -> None:
    """Let this process be as if such an interpreter had been given these arguments."""
    if not sys.flags.safe_path:
        del sys.path[0]  # the folder of the console script
    sys.argv = ["-c", *arguments]
