"""Git that is trusted unasked, against folders that are made to have it run something."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from execclient.govern.policy import known_safe
from execclient.tools.environment import exec_environment

Git = Callable[..., subprocess.CompletedProcess[bytes]]

READING = ["status --ignore-submodules=all", "diff --ignore-submodules=all", "log", "show", "branch"]


@pytest.fixture
def git(tmp_path: Path) -> Git:
    """Runs git in a folder, in an environment of its own."""

    def run(*words: str, cwd: Path, env: Mapping[str, str] = {}) -> subprocess.CompletedProcess[bytes]:
        environment = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "GIT_CONFIG_NOSYSTEM": "1", **env}
        return subprocess.run(["git", *words], cwd=cwd, env=environment, capture_output=True, check=False)

    return run


@pytest.fixture
def command(tmp_path: Path) -> Path:
    """A program that leaves a file `ran` behind."""
    program = tmp_path / "command"
    program.write_text(f"#!/bin/sh\n: > {tmp_path}/ran\n")
    program.chmod(0o755)
    return program


def plant(folder: Path, command: Path) -> None:
    """What looks like a bare repository, and has a work tree for which git runs a command."""
    for name in ("objects", "refs"):
        (folder / name).mkdir(parents=True)
    (folder / "HEAD").write_text("ref: refs/heads/main\n")
    (folder / "config").write_text(
        f"[core]\nrepositoryformatversion = 0\nbare = false\nworktree = .\nfsmonitor = {command}\n"
    )


@pytest.mark.parametrize("place", [".", "sub", "sub/deeper"])
def test_a_planted_bare_repository_runs_its_command_without_the_tools_environment_only(
    place: str, git: Git, command: Path, tmp_path: Path
) -> None:
    ran, work = tmp_path / "ran", tmp_path / "work"
    plant(work / place, command)
    if place != ".":
        git("init", "-q", cwd=work)

    git("status", cwd=work / place)
    assert ran.exists()
    ran.unlink()

    refused = git("status", cwd=work / place, env=exec_environment())
    assert (refused.returncode, ran.exists()) == (128, False)
    assert b"safe.bareRepository" in refused.stderr

    refused = git("-c", "safe.bareRepository=explicit", "status", cwd=work / place)
    assert (refused.returncode, ran.exists()) == (128, False)


def test_a_replaced_submodule_runs_its_command_unless_git_ignores_submodules(
    git: Git, command: Path, tmp_path: Path
) -> None:
    ran, work = tmp_path / "ran", tmp_path / "work"
    identity = ("-c", "user.name=x", "-c", "user.email=x")
    for folder in (work, work / "sub"):
        folder.mkdir()
        git("init", "-q", cwd=folder)
    git(*identity, "commit", "-qm", "x", "--allow-empty", cwd=work / "sub")
    git("add", "sub", cwd=work)
    git(*identity, "commit", "-qm", "x", cwd=work)
    git("config", "core.fsmonitor", str(command), cwd=work / "sub")

    for subcommand in ("status", "diff"):
        git(subcommand, cwd=work, env=exec_environment())
        assert ran.exists()
        ran.unlink()

        ignoring = git(subcommand, "--ignore-submodules=all", cwd=work, env=exec_environment())
        assert (ignoring.returncode, ran.exists()) == (0, False)


@pytest.mark.parametrize("words", READING)
def test_git_is_safe_only_where_a_bare_repository_has_to_be_named(words: str) -> None:
    assert not known_safe(["git", *words.split()])
    assert known_safe(["git", *words.split()], explicit_repositories=True)
    assert known_safe(["git", "-c", "safe.bareRepository=explicit", *words.split()])
    assert known_safe(["git", words.split()[0]], parity=True)


@pytest.mark.parametrize(
    "words",
    [
        "status",
        "diff",
        "status --ignore-submodules",
        "status --ignore-submodules=dirty",
        "diff --ignore-submodules=none",
        "diff --ignore-submodules=untracked --stat",
        "log -p --submodule",
        "log -p --submodule=diff",
        "show --subm=log",
        "-c safe.bareRepository=all log",
        "-c safe.bareRepository=explicit -c core.pager=x log",
        "--no-pager -c core.pager=x log",
        "-c log",
    ],
)
def test_git_is_not_safe_where_it_enters_submodules_or_is_told_other_settings(words: str) -> None:
    assert not known_safe(["git", *words.split()], explicit_repositories=True)
