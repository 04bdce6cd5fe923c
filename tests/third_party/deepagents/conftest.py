"""Sandboxes of these tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from execclient import connect
from execclient.integrations.deepagents import ExecServerSandbox


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out with `--chaos` what has no daemon."""
    if config.getoption("--chaos"):
        without = [item for item in items if "TestDeepagents" in item.nodeid]
        items[:] = [item for item in items if item not in without]
        config.hook.pytest_deselected(items=without)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A workspace."""
    path = tmp_path / "work"
    path.mkdir()
    return path


@pytest.fixture
def backend(url: str, folder: Path) -> Iterator[ExecServerSandbox]:
    """A sandbox with this workspace."""
    with ExecServerSandbox(connect(url), root_dir=folder) as sandbox:
        yield sandbox
