"""The wheels, and all that they and their installers need, in place of an index."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.docs.installing import fill_wheelhouse, make_dist


@pytest.fixture(scope="session")
def wheelhouse(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with both wheels and all that they need, and pip for the environments of pipx."""
    with tempfile.TemporaryDirectory(prefix="wheelhouse-", dir="/tmp") as name:
        fill_wheelhouse(Path(name), make_dist(tmp_path_factory.mktemp("dist")), "pip")
        yield Path(name)
