"""A file system over the daemon, and a folder for each test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from execclient.integrations.fsspec import ExecServerFileSystem


@pytest.fixture
def fs(url: str) -> ExecServerFileSystem:
    """In the default sandbox. fsspec keeps the instance for all tests, as in a long-lived program."""
    return ExecServerFileSystem(url)


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """A folder that the default sandbox lets a client change. No part of a file is left behind in it."""
    folder = tmp_path / "folder"
    folder.mkdir()
    yield folder
    assert [path for path in folder.rglob(".*") if "execserver" in path.name or "part" in path.name] == []
