"""Folders for workspaces."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    """The client runs on asyncio."""
    return "asyncio"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder for workspaces."""
    made = tmp_path / "workspaces"
    made.mkdir()
    return made
