"""An sshd that stands for another machine: it is this one, in a home of its own."""

from __future__ import annotations

import contextlib
import getpass
import os
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.support.wire import Server

SSHD = "/usr/sbin/sshd"
HOST = "build-host"
"""Its name for ssh."""

PROGRAMS = Path(__file__).parents[2] / ".venv" / "bin"


@dataclass(frozen=True)
class OtherMachine:
    """The machine that `ssh build-host` leads to."""

    home: Path
    configuration: Path
    """The configuration of ssh that knows it."""
    port: int

    def daemon(self) -> Server:
        """A daemon that stays there."""
        environment = {"HOME": str(self.home), "PATH": os.environ["PATH"], "EXECSERVER_CONFIG": ""}
        return Server(f"unix://{self.home}/daemon.sock", env=environment, cwd=self.home)

    def ssh(self, port: int | None = None) -> list[str]:
        """The command line of ssh to it, also through another port of this machine."""
        return ["ssh", "-F", str(self.configuration), "-p", str(port or self.port), HOST]


def missing_programs() -> list[str]:
    """The programs of openssh that are not here; `make ssh-server` installs them."""
    return [program for program in ("ssh", "ssh-keygen", SSHD) if shutil.which(program) is None]


@contextlib.contextmanager
def ssh_server() -> Iterator[OtherMachine]:
    """An sshd that lets in one key, and a configuration of ssh that knows it as `build-host`."""
    folder = Path(tempfile.mkdtemp(prefix="other-"))  # short: sockets have paths of 107 bytes
    try:
        for key in ("host", "user"):
            subprocess.run(
                ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / key)], check=True
            )
        (folder / "home").mkdir()
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        (folder / "sshd_config").write_text(
            f"ListenAddress 127.0.0.1:{port}\nHostKey {folder}/host\nPidFile none\nUsePAM no\n"
            "StrictModes no\n"
            f"AuthorizedKeysFile {folder}/user.pub\nPasswordAuthentication no\nPermitRootLogin yes\n"
            f"ForceCommand cd {folder}/home && export HOME={folder}/home EXECSERVER_CONFIG= "
            f'PATH={PROGRAMS}:/usr/bin:/bin && exec sh -c "$SSH_ORIGINAL_COMMAND"\n'
        )
        known = (folder / "host.pub").read_text()
        (folder / "known_hosts").write_text(f"{HOST} {known}")
        (folder / "ssh_config").write_text(
            f"Host {HOST}\nHostName 127.0.0.1\nPort {port}\nUser {getpass.getuser()}\n"
            f"IdentityFile {folder}/user\nIdentitiesOnly yes\nBatchMode yes\nHostKeyAlias {HOST}\n"
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
            yield OtherMachine(folder / "home", folder / "ssh_config", port)
        finally:
            sshd.terminate()
            sshd.wait(20)
            if sshd.stderr is not None:
                sshd.stderr.close()
    finally:
        shutil.rmtree(folder)
