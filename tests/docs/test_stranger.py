"""A newcomer clones the repository and follows the tutorial; another installs it and follows the README."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.docs.installing import of_pip
from tests.docs.pages import ROOT, TUTORIAL, blocks_of
from tests.docs.reader import reader
from tests.sandbox_user import NEW_HOME, User, new_account, remove_tree

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


@pytest.mark.manual
@pytest.mark.timeout(300)
def test_a_new_account_follows_the_readme(wheelhouse: Path) -> None:
    """Where the tests run as root, the account exists for the processes of this test alone."""
    home = Path(tempfile.mkdtemp(prefix="home-"))  # short: the default socket lies in it
    user = new_account(home)
    user.give(home)
    environment = {
        "HOME": str(NEW_HOME if user.prefix else home),
        "USER": user.name,
        "LOGNAME": user.name,
        "SHELL": "/bin/bash",
        "LANG": "C.UTF-8",
        "PATH": f"{sys.base_prefix}/bin:/usr/local/bin:/usr/bin:/bin",
        "PIP_NO_INDEX": "1",
        "PIP_FIND_LINKS": str(wheelhouse),
    }
    follow = (sys.executable, "-m", "tests.docs.newcomer", "README.md", "tests/docs/test_stranger.py")
    try:
        done = subprocess.run(
            [*user.prefix, *follow], cwd=ROOT, env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
        assert not processes_of(user)
    finally:
        for process in processes_of(user):
            process.kill()
        remove_tree(home)


def processes_of(user: User) -> list[psutil.Process]:
    """What a user of a new account has left; nothing is known of one that the tests run as."""
    every = psutil.process_iter(["uids"]) if user.prefix else ()
    return [each for each in every if each.info["uids"].real == user.uid]
