"""A command with a shell snapshot against the same command in a login shell: nothing may differ."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.integration.shell_snapshots.homes import Home
from tests.integration.shell_snapshots.scripts import PLAIN_BASH, RICH_BASH, SCRIPTS, STRICT_BASH
from tests.support.wire import Client, spawn_stdio

BASH = "/bin/bash"


@pytest.fixture(scope="module")
def client(environment: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    with spawn_stdio((), environment, tmp_path_factory.mktemp("cwd")).handshake(extensions=True) as client:
        yield client


@pytest.fixture(scope="module")
def rich(client: Client, tmp_path_factory: pytest.TempPathFactory) -> Home:
    home = Home(client, tmp_path_factory.mktemp("rich"), RICH_BASH)
    home.file(".bash_logout", "echo logged out")
    home.program("bin/mine", "#!/bin/sh\necho mine\n")
    return home


@pytest.fixture(scope="module")
def plain(client: Client, tmp_path_factory: pytest.TempPathFactory) -> Home:
    return Home(client, tmp_path_factory.mktemp("plain"), PLAIN_BASH)


@pytest.fixture(scope="module")
def strict(client: Client, tmp_path_factory: pytest.TempPathFactory) -> Home:
    return Home(client, tmp_path_factory.mktemp("strict"), STRICT_BASH)


@pytest.mark.parametrize("script", SCRIPTS.values(), ids=SCRIPTS.keys())
def test_a_script_does_the_same(script: str, rich: Home, plain: Home, strict: Home) -> None:
    for home in (rich, plain, strict):
        snapshot = home.run(BASH, script, snapshot=True)
        assert snapshot.obstacle is None
        assert snapshot == home.run(BASH, script, snapshot=False)
