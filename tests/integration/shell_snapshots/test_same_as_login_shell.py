"""A command with a shell snapshot against the same command in a login shell: nothing may differ."""

from __future__ import annotations

import shutil
from collections.abc import Iterator

import pytest

from tests.integration.shell_snapshots.homes import Home
from tests.integration.shell_snapshots.scripts import (
    DEBIAN_BASH,
    PLAIN_BASH,
    RICH_BASH,
    RICH_ZSH,
    SCRIPTS,
    STRICT_BASH,
    ZSH_SCRIPTS,
)
from tests.support.wire import Client, spawn_stdio

BASH = "/bin/bash"
ZSH = "/bin/zsh"


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
def debian(client: Client, tmp_path_factory: pytest.TempPathFactory) -> Home:
    return Home(client, tmp_path_factory.mktemp("debian"), DEBIAN_BASH, ".profile")


@pytest.fixture(scope="module")
def strict(client: Client, tmp_path_factory: pytest.TempPathFactory) -> Home:
    return Home(client, tmp_path_factory.mktemp("strict"), STRICT_BASH)


@pytest.mark.parametrize("script", SCRIPTS.values(), ids=SCRIPTS.keys())
def test_a_script_does_the_same(script: str, rich: Home) -> None:
    snapshot = rich.run(BASH, script, snapshot=True)
    assert snapshot.obstacle is None
    assert snapshot == rich.run(BASH, script, snapshot=False)


OF_ANY_PROFILE = [
    "nothing", "last status", "last argument", "failing command", "command not found", "syntax error later",
    "flags", "options", "environment", "variables", "unset variable", "aliases", "new function",
    "descriptors", "errexit in a function", "pipefail", "background", "subshell",
    "exit runs the logout file", "source",
]  # fmt: skip


@pytest.mark.parametrize("name", OF_ANY_PROFILE)
def test_a_script_does_the_same_after_a_small_or_strict_profile(
    name: str, plain: Home, debian: Home, strict: Home
) -> None:
    for home in (plain, debian, strict):
        snapshot = home.run(BASH, SCRIPTS[name], snapshot=True)
        assert snapshot.obstacle is None
        assert snapshot == home.run(BASH, SCRIPTS[name], snapshot=False)


@pytest.fixture(scope="module")
def zsh_home(client: Client, tmp_path_factory: pytest.TempPathFactory) -> Home:
    home = Home(client, tmp_path_factory.mktemp("zsh"), RICH_ZSH, ".zprofile")
    home.file(".zlogout", "echo logged out")
    home.file("functions/mine_too", "echo loaded")
    home.program("bin/mine", "#!/bin/sh\necho mine\n")
    return home


@pytest.mark.skipif(shutil.which("zsh") is None, reason="needs zsh")
@pytest.mark.parametrize("script", ZSH_SCRIPTS.values(), ids=ZSH_SCRIPTS.keys())
def test_a_script_does_the_same_in_zsh(script: str, zsh_home: Home) -> None:
    snapshot = zsh_home.run(ZSH, script, snapshot=True)
    assert (snapshot.obstacle is None) is not script.startswith(";")
    assert snapshot == zsh_home.run(ZSH, script, snapshot=False)
