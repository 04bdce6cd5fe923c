"""mini-swe-agent itself, without its banner and without the settings of this account."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator

import pytest

# Read when the package is imported.
os.environ["MSWEA_SILENT_STARTUP"] = "1"
_FOLDER = tempfile.TemporaryDirectory(prefix="mswea-")
os.environ["MSWEA_GLOBAL_CONFIG_DIR"] = _FOLDER.name


@pytest.fixture(scope="session", autouse=True)
def settings_folder() -> Iterator[None]:
    """Remove the folder for settings at the end."""
    yield
    _FOLDER.cleanup()
