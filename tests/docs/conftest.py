"""The manual's site and the wheels, built once for all tests that read them."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.docs.installing import Wheels, fill_wheelhouse, make_dist
from tests.docs.pages import ROOT


def build(root: Path, site: Path) -> subprocess.CompletedProcess[str]:
    """Build the site of a repository, as `make docs` does."""
    # Not --quiet: what is not logged is not counted as a warning either.
    return subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(site)],
        cwd=root,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("manual") / "site"
    done = build(ROOT, folder)
    assert done.returncode == 0, done.stderr
    assert "WARN" not in done.stderr
    return folder


@pytest.fixture(scope="session")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Wheels:
    """Both wheels."""
    return make_dist(tmp_path_factory.mktemp("dist"))


@pytest.fixture(scope="session")
def wheelhouse(wheels: Wheels) -> Iterator[Path]:
    """A folder with both wheels and all that they need; every user can read it."""
    with tempfile.TemporaryDirectory(prefix="wheelhouse-", dir="/tmp") as name:
        fill_wheelhouse(Path(name), wheels)
        yield Path(name)
