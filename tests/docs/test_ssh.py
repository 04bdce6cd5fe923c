"""The page about other machines, followed with an sshd that stands for the other machine."""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from execclient import SessionLost
from execclient.sync import connect
from tests.docs.pages import ROOT, blocks_of
from tests.docs.reader import reader
from tests.support.ssh_server import PROGRAMS, OtherMachine, missing_programs, ssh_server

PAGE = ROOT / "docs" / "how-to" / "ssh.md"
pytestmark = pytest.mark.manual

THIS = "tests/docs/test_ssh.py"

THEIR_SOCKET = "/run/user/1000/execserver/execserver.sock"


@pytest.fixture
def build_host() -> Iterator[OtherMachine]:
    if pwd.getpwuid(os.geteuid()).pw_shell.endswith(("nologin", "/false")):
        pytest.skip("the account of these tests may not log in")
    missing = missing_programs()
    assert not missing, f"{', '.join(missing)}: missing; `make ssh-server` installs openssh"
    with ssh_server() as machine:
        yield machine


@pytest.fixture
def ssh(build_host: OtherMachine, tmp_path: Path) -> Path:
    """The folder of an `ssh` that reads the configuration of the test, and is ssh otherwise."""
    program = tmp_path / "ssh"
    program.write_text(f'#!/bin/sh\nexec {shutil.which("ssh")} -F {build_host.configuration} "$@"\n')
    program.chmod(0o755)
    return tmp_path


def test_what_the_page_says_works_over_a_real_ssh(build_host: OtherMachine, ssh: Path) -> None:
    blocks = blocks_of(PAGE)
    ours = [block for block in blocks if (block.place or "").startswith(THIS) or block.title is not None]
    assert len(ours) == 4
    server = build_host.daemon()
    try:
        with reader(env={"PATH": f"{ssh}:{PROGRAMS}:{os.environ['PATH']}"}) as one:
            one.words = {THEIR_SOCKET: str(build_host.home / "daemon.sock"), **one.words}
            one.follow([replace(block, place=None, reason="") for block in ours])
    finally:
        assert server.stop() == 0
    assert (build_host.home / "note-from-afar.txt").read_text() == "written over ssh\n"


def test_a_tunnel_that_breaks_costs_the_connection_and_nothing_else(
    build_host: OtherMachine, ssh: Path, tmp_path: Path
) -> None:
    server = build_host.daemon()
    folder = Path(tempfile.mkdtemp(prefix="here-"))
    try:
        with tunnel(ssh / "ssh", server.url, folder):
            executor = connect(f"unix://{folder}/socket", keep=True)
            process = executor.start(
                ["sh", "-c", "echo begun; until test -e go; do sleep 0.05; done; echo ended"]
            )
            assert next(process).data == b"begun\n"
        with pytest.raises(SessionLost, match="the daemon has ended"):
            next(process)
        executor.close()
        (build_host.home / "go").touch()
        with (
            tunnel(ssh / "ssh", server.url, folder),
            connect(f"unix://{folder}/socket", session_id=executor.session_id) as again,
        ):
            output = b"".join(data for _, data in again.attach(process.id))
        assert output == b"begun\nended\n"
    finally:
        shutil.rmtree(folder)
        assert server.stop() == 0


@contextlib.contextmanager
def tunnel(ssh: Path, url: str, folder: Path) -> Iterator[None]:
    """The daemon's socket as one of ours, as the page says."""
    control = [str(ssh), "-S", f"{folder}/control"]
    forward = ["-fNM", "-o", "ExitOnForwardFailure=yes", "-o", "StreamLocalBindUnlink=yes"]
    there = url.removeprefix("unix://")
    # ssh keeps its standard error when it goes to the background: a pipe would not end.
    subprocess.run(
        [*control, *forward, "-L", f"{folder}/socket:{there}", "build-host"], check=True, timeout=40
    )
    try:
        yield
    finally:
        subprocess.run([*control, "-O", "exit", "build-host"], check=True, timeout=40)
