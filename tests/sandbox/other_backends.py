"""Packages with sandbox backends, installed where only the daemons of a test find them."""

from __future__ import annotations

import os
import shutil
import sys
import sysconfig
from pathlib import Path

EXAMPLE = Path(__file__).parents[2] / "examples/sandbox_backend/execserver_crun.py"
LIARS = Path(__file__).parent / "lying_backends.py"

_BECOME = "import sys; del sys.argv[0]; from execserver.__main__ import main; sys.exit(main())"
_BECOME_EXAMPLE = (
    "import sys; '--sandbox-backend' in sys.argv or sys.argv.extend(['--sandbox-backend', 'crun']); "
    + _BECOME
)


def install(environment: Path, module: Path, **backends: str) -> tuple[str, ...]:
    """Install a module as a package with entry points, in a new virtual environment on top of our own.

    Args:
        environment: the folder of the environment, which is made.
        module: the file.
        backends: the names of classes in it by the names of their entry points.

    Returns:
        The command that becomes a daemon in that environment, to be followed by the command of a daemon.
    """
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    packages = environment / "lib" / version / "site-packages"
    packages.mkdir(parents=True)
    (environment / "bin").mkdir()
    base = Path(os.path.realpath(sys.executable))
    (environment / "pyvenv.cfg").write_text(f"home = {base.parent}\n")
    python = environment / "bin" / "python3"
    python.symlink_to(base)
    ours = sysconfig.get_path("purelib")
    (packages / "ours.pth").write_text(f"import site; site.addsitedir({ours!r})\n")
    add_package(packages, module, **backends)
    return str(python), "-I", "-c", _BECOME


def add_package(packages: Path, module: Path, **backends: str) -> None:
    """Put a module into a folder of packages, with entry points (`install`)."""
    shutil.copy(module, packages)
    information = packages / f"{module.stem}-1.0.dist-info"
    information.mkdir()
    (information / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {module.stem}\nVersion: 1.0\n")
    lines = [f"{name} = {module.stem}:{kind}" for name, kind in backends.items()]
    (information / "entry_points.txt").write_text("\n".join(["[execserver.sandbox_backends]", *lines, ""]))


def chosen(environment: Path) -> tuple[str, ...]:
    """With `EXECSERVER_TEST_BACKEND=example`: install the example (`install`), and use its backend unless
    another is named. Else nothing.
    """
    if os.environ.get("EXECSERVER_TEST_BACKEND") != "example":
        return ()
    return *install(environment, EXAMPLE, crun="Crun")[:-1], _BECOME_EXAMPLE
