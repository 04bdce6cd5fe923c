"""Backends from installed packages, in a daemon whose setting names one."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.sandbox.host import Host
from tests.sandbox.other_backends import LIARS, install
from tests.sandbox.outside import wait_for
from tests.sandbox.profiles import READ_ONLY, WORKSPACE, WORKSPACE_WITHOUT_TMP
from tests.support.wire import ReplyError, encode, path_uri

MakeHost = Callable[..., Host]


@pytest.fixture
def installed(tmp_path: Path) -> tuple[str, ...]:
    """What becomes a daemon with the lying backends and the honest one."""
    return install(tmp_path / "environment", LIARS, Honest="Honest", FilesOnly="FilesOnly")


def test_a_backend_that_lies_confines_nothing_and_so_nothing_is_run_in_it(
    make_host: MakeHost, installed: tuple[str, ...], tmp_path: Path
) -> None:
    host = make_host("--sandbox-backend", "FilesOnly", prefix=installed)
    tree = host.tree()
    sandbox = tree.context(WORKSPACE)
    before = tree.listing()
    with pytest.raises(ReplyError, match=r"FilesOnly runs but does not confine: it shares .*: net") as caught:
        host.shell(tree, "echo x > new", sandbox)
    assert caught.value.code == -32600
    write = {"path": path_uri(tree.ws / "new"), "dataBase64": encode("x")}
    with pytest.raises(ReplyError, match="FilesOnly runs but does not confine"):
        host.client.call("fs/writeFile", {**write, "sandbox": sandbox})
    assert tree.listing() == before
    assert host.shell(tree, "echo x > new").exit_code == 0
    host.client.call("fs/writeFile", write)
    report = subprocess.run(
        [*installed, "execserver", "doctor", "--json", "--sandbox-backend", "FilesOnly"],
        env=host.env,
        stdout=subprocess.PIPE,
        check=False,
    )
    checks = {check["name"]: check for check in json.loads(report.stdout)["checks"]}
    assert report.returncode == 1
    assert checks["sandbox backend"]["status"] == "missing"
    assert "does not confine" in checks["sandbox"]["cause"]


def test_a_backend_that_confines_runs_commands_and_file_requests(
    make_host: MakeHost, installed: tuple[str, ...]
) -> None:
    host = make_host("--sandbox-backend", "Honest", prefix=installed)
    tree = host.tree()
    sandbox = tree.context(WORKSPACE_WITHOUT_TMP)
    started = host.start(tree, ["/bin/sh", "-c", f"echo 1 > new; echo 2 > {tree.out}/new"], sandbox)
    assert started.started["sandboxBackend"] == "Honest"
    done = host.finish(started)
    assert done.exit_code != 0
    assert done.read["denial"]["evidence"]
    assert (tree.ws / "new").read_text() == "1\n"
    assert not (tree.out / "new").exists()
    terminal = host.shell(tree, "test -t 0 && trap 'exit 7' INT && kill -INT $$", sandbox, tty=True)
    assert terminal.exit_code == 7
    wait_for(lambda: not _folders(host, tree.ws), "the end of both sandboxes")
    with pytest.raises(ReplyError, match="Read-only file system"):
        host.client.call(
            "fs/writeFile",
            {"path": path_uri(tree.ws / "n"), "dataBase64": encode("x"), "sandbox": tree.context(READ_ONLY)},
        )


def _folders(host: Host, workspace: Path) -> list[str]:
    """What sandboxes need on the host: folders of their own, and mount points."""
    state = host.base / "daemon/state/execserver"
    own = [name for name in os.listdir(state) if name.startswith("sandbox-")]
    return own + [name for name in os.listdir(workspace) if name == ".agents"]
