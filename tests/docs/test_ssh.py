"""The page about other machines, followed with an sshd that stands for the other machine."""

from __future__ import annotations

import contextlib
import getpass
import os
import pwd
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from execclient import SessionLost
from execclient.sync import connect
from tests.docs.pages import ROOT, blocks_of
from tests.docs.reader import reader
from tests.support.wire import Server

PAGE = ROOT / "docs" / "how-to" / "ssh.md"
SSHD = "/usr/sbin/sshd"
pytestmark = pytest.mark.manual

THIS = "tests/docs/test_ssh.py"

THEIR_SOCKET = "/run/user/1000/execserver/execserver.sock"
PROGRAMS = ROOT / ".venv" / "bin"


@dataclass(frozen=True)
class OtherMachine:
    """Where `ssh build-host` leads to: this machine, in a home of its own."""

    home: Path
    configuration: Path

    def daemon(self) -> Server:
        """A daemon that stays there."""
        environment = {"HOME": str(self.home), "PATH": os.environ["PATH"], "EXECSERVER_CONFIG": ""}
        return Server(f"unix://{self.home}/daemon.sock", env=environment, cwd=self.home)


@pytest.fixture
def build_host() -> Iterator[OtherMachine]:
    if pwd.getpwuid(os.geteuid()).pw_shell.endswith(("nologin", "/false")):
        pytest.skip("the account of these tests may not log in")
    """An sshd that lets in one key, and a configuration of ssh that knows it as `build-host`."""
    missing = [program for program in ("ssh", "ssh-keygen", SSHD) if shutil.which(program) is None]
    assert not missing, f"{', '.join(missing)}: missing; `make ssh-server` installs openssh"
    folder = Path(tempfile.mkdtemp(prefix="other-"))  # short: sockets have paths of 107 bytes
    for key in ("host", "user"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / key)], check=True)
    (folder / "home").mkdir()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    (folder / "sshd_config").write_text(
        f"ListenAddress 127.0.0.1:{port}\nHostKey {folder}/host\nPidFile none\nUsePAM no\nStrictModes no\n"
        f"AuthorizedKeysFile {folder}/user.pub\nPasswordAuthentication no\nPermitRootLogin yes\n"
        f"ForceCommand cd {folder}/home && export HOME={folder}/home EXECSERVER_CONFIG= "
        f'PATH={PROGRAMS}:/usr/bin:/bin && exec sh -c "$SSH_ORIGINAL_COMMAND"\n'
    )
    known = (folder / "host.pub").read_text()
    (folder / "known_hosts").write_text(f"[127.0.0.1]:{port} {known}")
    (folder / "ssh_config").write_text(
        f"Host build-host\nHostName 127.0.0.1\nPort {port}\nUser {getpass.getuser()}\n"
        f"IdentityFile {folder}/user\nIdentitiesOnly yes\nBatchMode yes\n"
        f"UserKnownHostsFile {folder}/known_hosts\n"
    )
    with contextlib.suppress(PermissionError):
        os.makedirs("/run/sshd", exist_ok=True)  # sshd will not start without, as root
    sshd = subprocess.Popen(
        [SSHD, "-D", "-e", "-f", str(folder / "sshd_config")], stderr=subprocess.PIPE, text=True
    )
    try:
        assert sshd.stderr is not None
        for line in sshd.stderr:
            if "Server listening" in line:
                break
        else:
            raise AssertionError("sshd does not start")
        yield OtherMachine(folder / "home", folder / "ssh_config")
    finally:
        sshd.terminate()
        sshd.wait(20)
        if sshd.stderr is not None:
            sshd.stderr.close()
        shutil.rmtree(folder)


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
