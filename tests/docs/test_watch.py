"""`make watch` finds what was saved, and the tests of it."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.docs.pages import ROOT
from tools.watch import changed_files, module_name, related_tests


def test_what_was_saved_since_the_last_commit_has_changed(tmp_path: Path) -> None:
    def git(*arguments: str) -> None:
        identity = ("-c", "user.name=test", "-c", "user.email=test@example.invalid")
        subprocess.run(["git", *identity, *arguments], cwd=tmp_path, check=True, capture_output=True)

    for name in ("kept.py", "edited.py", "removed.py"):
        (tmp_path / name).write_text("pass\n")
    (tmp_path / ".gitignore").write_text("*.log\n")
    git("init")
    git("add", "--all")
    git("commit", "--no-gpg-sign", "--message", "Begin")
    (tmp_path / "edited.py").write_text("import os\n")
    (tmp_path / "new.py").touch()
    (tmp_path / "new.log").touch()
    (tmp_path / "removed.py").unlink()

    before = changed_files(tmp_path)
    os.utime(tmp_path / "new.py", ns=(0, 0))

    assert set(before) == {"edited.py", "new.py"}
    assert changed_files(tmp_path) == {**before, "new.py": 0}


@pytest.mark.parametrize(
    ("path", "module"),
    [
        ("execserver/fsworker/bundle.py", "execserver.fsworker.bundle"),
        ("execserver/fsworker/__init__.py", "execserver.fsworker"),
        ("clients/python/execclient/sync.py", "execclient.sync"),
        ("tests/support/wire.py", "tests.support.wire"),
    ],
)
def test_a_file_is_known_by_its_import_name(path: str, module: str) -> None:
    assert module_name(path) == module


@pytest.mark.parametrize(
    ("path", "test"),
    [
        ("tools/watch.py", "tests/docs/test_watch.py"),
        ("tests/docs/pages.py", "tests/docs/test_blocks.py"),
        ("tests/docs/test_watch.py", "tests/docs/test_watch.py"),
        ("execserver/__init__.py", "tests/docs/test_packaging.py"),
        ("README.md", "tests/docs/test_blocks.py::test_a_page_does_what_it_says[README.md]"),
    ],
)
def test_the_tests_of_what_changed_are_run(path: str, test: str) -> None:
    assert test in related_tests([path], ROOT)


def test_nothing_runs_for_what_no_test_reads() -> None:
    assert related_tests(["CHANGELOG.md", "docs/assets/iframe-worker.js"], ROOT) == []
