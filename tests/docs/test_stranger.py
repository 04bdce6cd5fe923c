"""A newcomer clones the repository, types `make run`, and follows the tutorial."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.docs.pages import ROOT, TUTORIAL, blocks_of
from tests.docs.reader import reader

SECONDS = 270.0
"""`make run` in a clone installs everything: about a minute, several on a loaded machine."""


@pytest.fixture
def repository(tmp_path: Path) -> Iterator[Path]:
    """A repository with the files of this work tree, committed or not."""
    if not (ROOT / ".git").exists():
        pytest.skip("these tests are not in a clone")
    folder = tmp_path / "repository"
    listed = git(ROOT, "ls-files", "--cached", "--others", "--exclude-standard", "-z")
    for name in filter(None, listed.split("\0")):
        if (ROOT / name).is_file():  # not removed meanwhile
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, folder / name)
    git(folder, "init", "--quiet")
    git(folder, "add", "--all")
    identity = ("-c", "user.name=test", "-c", "user.email=test@example.invalid", "-c", "commit.gpgsign=false")
    git(folder, *identity, "commit", "--quiet", "--no-verify", "--message", "as it is")
    yield folder
    shutil.rmtree(folder)


def git(folder: Path, *arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=folder, check=True, capture_output=True, text=True).stdout


@pytest.mark.manual
@pytest.mark.timeout(300)
def test_from_the_clone_to_the_end_of_the_tutorial(repository: Path) -> None:
    blocks = blocks_of(TUTORIAL)
    assert blocks[0].text.startswith("$ git clone REPOSITORY execserver\n$ cd execserver\n")
    assert "$ make run\n" in blocks[1].text
    with reader(programs=None, env=of_pip(), seconds=SECONDS) as one:
        one.words["REPOSITORY"] = str(repository)
        one.follow(blocks)


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
