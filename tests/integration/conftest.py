"""Daemons that the tests of a module share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.conformance.endpoint import SharedServers, serving


@pytest.fixture(scope="module")
def shared_servers(
    environment: dict[str, str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[SharedServers]:
    """Daemons for one module, one for each transport. Their working directory is no test's own."""
    yield from serving(SharedServers(environment, tmp_path_factory.mktemp("launch")))
