"""Run tests as a job in the background has it: `python -m tests.background PYTEST-ARGUMENT...`

SIGINT, SIGQUIT, SIGPIPE and SIGHUP are ignored, stdin is closed, and PYTHONUNBUFFERED is set. What is tested
is a copy of the repository below /tmp, by an ordinary user if we are root, with a home folder that must stay
empty. The copy has an interpreter of its own over the packages that are installed here: it tests itself, and
nothing is installed.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
import venv
from collections.abc import Sequence
from pathlib import Path

from tests.sandbox_user import REPOSITORY, User, users

_IGNORED = (signal.SIGINT, signal.SIGQUIT, signal.SIGPIPE, signal.SIGHUP)

_NOT_COPIED = shutil.ignore_patterns(
    ".git", ".venv", ".interop", ".release", ".*_cache", ".hypothesis", "__pycache__", "dist", "site"
)

_SCRIPT = """\
#!{python}
import sys
from execserver.__main__ import main
sys.exit(main())
"""


def copy_repository(target: Path) -> Path:
    """Copy the repository to a new folder; returns the interpreter that runs the copy."""
    shutil.copytree(REPOSITORY, target, symlinks=True, ignore=_NOT_COPIED)
    environment = target / ".venv"
    venv.create(environment, symlinks=True)
    packages = Path(sysconfig.get_path("purelib", vars={"base": str(environment)}))
    # A name of this file adds a folder, and not what that folder's own such files add: not this repository.
    paths = [target, target / "clients" / "python", sysconfig.get_path("purelib")]
    (packages / "repository.pth").write_text("".join(f"{path}\n" for path in paths))
    python = environment / "bin" / "python"
    script = environment / "bin" / "execserver"
    script.write_text(_SCRIPT.format(python=python))
    script.chmod(0o755)
    return python


def run(user: User, folder: Path, arguments: Sequence[str]) -> int:
    """Test a copy in a folder of the user's own; returns what `main` does."""
    python = copy_repository(folder / "execserver")
    home = folder / "home"
    home.mkdir()
    (folder / "tmp").mkdir()
    user.give(folder)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("XDG_")}
    environment |= {"HOME": str(home), "PYTHONUNBUFFERED": "1"}
    environment |= {"USER": user.name, "LOGNAME": user.name}
    os.close(0)
    process = subprocess.Popen(
        [*user.prefix, str(python), "-m", "pytest", "-q", f"--basetemp={folder}/tmp/t", *arguments],
        cwd=folder / "execserver",
        env=environment,
        restore_signals=False,  # SIGPIPE stays ignored
        preexec_fn=lambda: [signal.signal(number, signal.SIG_IGN) for number in _IGNORED] and None,
    )
    try:
        status = process.wait()
    finally:
        process.kill()
        process.wait()
    if left := sorted(str(path.relative_to(home)) for path in home.rglob("*")):
        print(f"tests wrote to the home folder of their user: {', '.join(left)}", file=sys.stderr)
        return status or 1
    return status


def main(arguments: Sequence[str]) -> int:
    """Returns the status of pytest, or 1 if the tests left something in the home folder."""
    signal.signal(signal.SIGTERM, lambda number, _frame: sys.exit(128 + number))
    with tempfile.TemporaryDirectory(prefix="background-", dir="/tmp") as name:
        os.chmod(name, 0o755)
        return run(users()[-1], Path(name), arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
