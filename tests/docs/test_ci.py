"""`.ci/run` checks manual, integrations, fleets and console when their inputs changed, and when it cannot
know.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.docs.pages import ROOT

RUN = ".ci/run"


class Clone:
    """A repository with one page, one module and `.ci/run`, and a `make` that logs its arguments."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._log = folder / "made"
        program = folder / "bin" / "make"
        program.parent.mkdir(parents=True)
        program.write_text(f'#!/bin/sh\necho "$@" >> {self._log}\ntest "$1" != "$FAIL"\n')
        program.chmod(0o755)
        self._repository = folder / "repository"
        for name in (RUN, "docs/index.md", "execserver/__init__.py"):
            copy = self._repository / name
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, copy)
        self.git("init", "--quiet", "--initial-branch", "main")
        self.change("README.md")

    def git(self, *arguments: str) -> None:
        identity = (
            "-c",
            "user.name=test",
            "-c",
            "user.email=test@example.invalid",
            "-c",
            "commit.gpgsign=false",
        )
        subprocess.run(["git", *identity, *arguments], cwd=self._repository, check=True, capture_output=True)

    def change(self, name: str) -> None:
        (self._repository / name).parent.mkdir(parents=True, exist_ok=True)
        with (self._repository / name).open("a") as file:
            file.write("# a line\n")
        self.git("add", "--all")
        self.git("commit", "--quiet", "--message", f"Change {name}")

    def run(self, *, fail: str = "") -> list[str]:
        """What is made, in order."""
        self._log.write_text("")
        path = f"{self._folder / 'bin'}:{os.environ['PATH']}"
        done = subprocess.run([self._repository / RUN], env={"PATH": path, "FAIL": fail}, check=False)
        assert (done.returncode == 0) == (not fail)
        return self._log.read_text().split()


@pytest.fixture
def clone(tmp_path: Path) -> Clone:
    return Clone(tmp_path)


ALWAYS = ["test", "interop"]
WITH_DOCS = ["test", "docs-check", "interop"]
WITH_INTEGRATIONS = ["test", "integrations", "interop"]
WITH_FLEET = ["test", "fleet", "interop"]
WITH_CONSOLE = ["test", "console-tests", "interop"]
TYPESCRIPT = ["typescript", "typescript-probe-short"]
WITH_TYPESCRIPT = ["test", *TYPESCRIPT, "interop"]
ALL = ["test", "fleet", "console-tests", "docs-check", *TYPESCRIPT, "integrations", "interop"]


def test_all_is_checked_when_the_history_is_unknown(clone: Clone) -> None:
    assert clone.run() == ALL


@pytest.mark.parametrize(
    ("changed", "made"),
    [
        ("execserver/__init__.py", ALWAYS),
        ("docs/index.md", WITH_DOCS),
        ("execserver/relay/__init__.py", WITH_FLEET),
        ("pyproject.toml", ["test", "fleet", "console-tests", "docs-check", "interop"]),
        ("clients/console/src/main.ts", WITH_CONSOLE),
        ("clients/typescript/package.json", WITH_TYPESCRIPT),
        ("schemas/error.json", WITH_TYPESCRIPT),
        ("tests/third_party/chaos.py", WITH_INTEGRATIONS),
        ("clients/python/execclient/integrations/acp.py", WITH_INTEGRATIONS),
        ("clients/python/pyproject.toml", ["test", "console-tests", "docs-check", "integrations", "interop"]),
    ],
)
def test_a_branch_is_compared_with_where_it_left_main(clone: Clone, changed: str, made: list[str]) -> None:
    clone.git("update-ref", "refs/remotes/origin/main", "HEAD")
    clone.change(changed)

    assert clone.run() == made


def test_main_itself_is_compared_with_what_last_passed(clone: Clone) -> None:
    clone.run()
    clone.change("execserver/__init__.py")
    clone.git("update-ref", "refs/remotes/origin/main", "HEAD")

    assert clone.run() == ALWAYS


@pytest.mark.parametrize(
    ("changed", "check"),
    [
        ("docs/index.md", "docs-check"),
        ("tests/third_party/chaos.py", "integrations"),
        ("deploy/README.md", "fleet"),
        ("tests/console/host.py", "console-tests"),
    ],
)
def test_a_failed_check_runs_again(clone: Clone, changed: str, check: str) -> None:
    clone.run()
    clone.change(changed)
    assert clone.run(fail=check) == ["test", check]
    clone.change("execserver/__init__.py")

    assert clone.run() == ["test", check, "interop"]
