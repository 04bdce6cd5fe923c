"""fsspec's own suite for file systems, `fsspec.tests.abstract`. It foresees no skip that applies here."""

from __future__ import annotations

import posixpath
from collections.abc import Callable
from pathlib import Path

import pytest
from fsspec.tests.abstract import AbstractFixtures
from fsspec.tests.abstract.copy import AbstractCopyTests
from fsspec.tests.abstract.get import AbstractGetTests
from fsspec.tests.abstract.open import AbstractOpenTests
from fsspec.tests.abstract.pipe import AbstractPipeTests
from fsspec.tests.abstract.put import AbstractPutTests

from execclient.integrations.fsspec import ExecServerFileSystem


class Fixtures(AbstractFixtures):
    @pytest.fixture
    def fs(self, url: str) -> ExecServerFileSystem:
        return ExecServerFileSystem(url)

    @pytest.fixture
    def fs_join(self) -> Callable[..., str]:
        return posixpath.join

    @pytest.fixture
    def fs_path(self, tmp_path: Path) -> str:
        # Another one than the suite's local folder, which is in `tmp_path` as well.
        return str(tmp_path / "at the daemon")


class TestCopy(AbstractCopyTests, Fixtures):
    pass


class TestGet(AbstractGetTests, Fixtures):
    pass


class TestPut(AbstractPutTests, Fixtures):
    pass


class TestOpen(AbstractOpenTests, Fixtures):
    pass


class TestPipe(AbstractPipeTests, Fixtures):
    pass
