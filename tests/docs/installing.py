"""What `make dist` builds, and environments that have it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from tests.docs.pages import ROOT

INSTALL_SECONDS = 110.0
"""Building takes five seconds and installing twenty, with a filled cache and a machine to itself."""

CONSTRAINTS = ("--constraint", ROOT / "constraints.txt")


class Wheels(NamedTuple):
    """What `make dist` has built."""

    client: Path
    server: Path


def run(*argv: str | Path, folder: Path, status: int = 0, variables: Mapping[str, str] | None = None) -> str:
    """What the command prints. Of this environment it sees only how to reach the package index."""
    environment = {"HOME": str(folder), "PATH": "/usr/local/bin:/usr/bin:/bin", "LANG": "C.UTF-8", **of_pip()}
    done = subprocess.run(
        [*map(str, argv)],
        cwd=folder,
        env={**environment, **(variables or {})},
        capture_output=True,
        text=True,
        timeout=INSTALL_SECONDS,
        check=False,
    )
    assert done.returncode == status, f"{argv}:\n{done.stdout}{done.stderr}"
    return done.stdout if status == 0 else done.stderr


def dist(folder: Path, source: Path) -> None:
    """Build sdist and wheel of a source into a folder, as `make dist` does."""
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", folder, source, folder=source)


def make_dist(folder: Path) -> Wheels:
    """`make dist`."""
    run("make", "--directory", ROOT, "dist", f"DIST={folder}", folder=folder)
    (client,), (server,) = folder.glob("execclient-*.whl"), folder.glob("execserver-*.whl")
    assert len(list(folder.glob("*.tar.gz"))) == 2
    return Wheels(client, server)


def fill_wheelhouse(folder: Path, wheels: Wheels, *others: str) -> None:
    """Put both wheels and all that they need into a folder that every user can read, in place of an index."""
    pip = (sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check")
    run(*pip, "wheel", "--wheel-dir", folder, *CONSTRAINTS, *wheels, *others, folder=folder)
    folder.chmod(0o755)
    for file in folder.iterdir():
        file.chmod(0o644)


def environment(folder: Path, *wanted: str | Path) -> Path:
    """The programs of a new environment that has what is wanted, and not even pip."""
    run(sys.executable, "-m", "venv", "--without-pip", folder / "venv", folder=folder)
    programs = folder / "venv" / "bin"
    pip = (sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check")
    run(*pip, "--python", programs / "python", "install", *CONSTRAINTS, *wanted, folder=folder)
    return programs


def of_pip() -> dict[str, str]:
    """How this machine reaches the package index, and what it fetched before: no part of the tutorial."""
    home = Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config")
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    names = (
        "PIP_",
        "SSL_CERT",
        "HTTP_PROXY",
        "HTTPS_PROXY",
        "NO_PROXY",
        "http_proxy",
        "https_proxy",
        "no_proxy",
    )
    found = {name: value for name, value in os.environ.items() if name.startswith(names)}
    if (home / "pip" / "pip.conf").is_file():
        found.setdefault("PIP_CONFIG_FILE", str(home / "pip" / "pip.conf"))
    return {**found, "PIP_CACHE_DIR": found.get("PIP_CACHE_DIR", str(cache / "pip"))}
