"""A machine outside the sandbox, with a daemon.

A `Host` is one user's daemon with everything around it that a confined command must not reach: a process
with a secret in its environment, listeners on every kind of socket, a SysV segment. A `Tree` is a fresh
workspace with folders outside it, one for each test.

With `EXECSERVER_TEST_BACKEND=example` its sandboxes are made by the backend in `examples/sandbox_backend`.

All of it is below `/var/tmp`: all users may write there on every machine, and no policy makes it
writable, as `/tmp` is by most.
"""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import os
import secrets
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from tests.conformance.endpoint import OWN_SERVER
from tests.sandbox.other_backends import chosen
from tests.sandbox.profiles import context
from tests.sandbox_user import User, remove_tree
from tests.support.wire import Client, Json, Process, Server, path_uri

BASE = "/var/tmp"

_IPC_CREAT, _IPC_EXCL, _IPC_RMID = 0o1000, 0o2000, 0

FILES = {
    "ws/a.txt": "a\n",
    "ws/denied.txt": "denied\n",
    "ws/.env": "WORD=1\n",
    "ws/sub/deep/.env": "WORD=2\n",
    "ws/.codex/config.toml": "x = 1\n",
    "ws/.git/HEAD": "ref: refs/heads/main\n",
    "ws/.git/config": "[core]\n",
    "ws/.git/hooks/sample": "#!/bin/sh\n",
    "out/readable.txt": "readable\n",
    "out/secret.txt": "secret\n",
    "out/sdir/k": "k\n",
}
"""The initial files of every tree."""

FOLDERS = ("home", "tmpdir")


def python_folder() -> str:
    """Where a `python3` is that every user reaches, below the platform's folders if there is one there."""
    if os.access("/usr/bin/python3", os.X_OK):
        return "/usr/bin"
    return os.path.dirname(os.path.realpath(sys.executable))


@dataclass(frozen=True, slots=True)
class Tree:
    """A workspace `ws`, and outside it `out`, `home` and `tmpdir`."""

    base: Path
    user: User

    @property
    def ws(self) -> Path:
        """The workspace: working directory, and the only workspace root."""
        return self.base / "ws"

    @property
    def out(self) -> Path:
        """A folder outside."""
        return self.base / "out"

    @property
    def home(self) -> Path:
        """HOME: outside, and empty."""
        return self.base / "home"

    @property
    def tmpdir(self) -> Path:
        """TMPDIR: outside."""
        return self.base / "tmpdir"

    @property
    def env(self) -> dict[str, str]:
        """The variables of a command."""
        path = f"{python_folder()}:/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin"
        return {"PATH": path, "HOME": str(self.home), "TMPDIR": str(self.tmpdir)}

    def add(self, files: Mapping[str, str], links: Mapping[str, str] | None = None) -> None:
        """More files, by their paths below the base; links by name and text."""
        for name, text in files.items():
            path = self.base / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        for name, target in (links or {}).items():
            os.symlink(target, self.base / name)
        self.user.give(self.base)

    def context(self, permissions: Json, **members: Json) -> Json:
        """A sandbox context in this workspace."""
        return context(permissions, cwd=self.ws, roots=[self.ws], **members)

    def listing(self) -> dict[str, str]:
        """Every name below the base, with its kind and mode."""
        found = {}
        for folder, folders, files in os.walk(self.base):
            for name in (*folders, *files):
                path = os.path.join(folder, name)
                with contextlib.suppress(FileNotFoundError):  # a mount point that was just removed
                    found[os.path.relpath(path, self.base)] = oct(os.lstat(path).st_mode)
        return found


class Victim:
    """A process of the user that commands inside may neither see nor signal."""

    NAME = "guardvictim"
    SECRET = "GUARDSECRET"

    def __init__(self, user: User) -> None:
        self._user = user
        self._process = self._start()

    def _start(self) -> subprocess.Popen[bytes]:
        # The shell waits for a line that never comes, and ends with its pipe if we are killed.
        return subprocess.Popen(
            ["/bin/sh", "-c", "read line", self.NAME],
            stdin=subprocess.PIPE,
            env={self.SECRET: "hidden", "PATH": "/usr/bin:/bin"},
            cwd="/",
            user=self._user.uid if self._user.prefix else None,
            group=self._user.gid if self._user.prefix else None,
            extra_groups=[] if self._user.prefix else None,
            start_new_session=True,
        )

    @property
    def pid(self) -> int:
        """Its pid; a new one if something killed it."""
        if self._process.poll() is not None:
            self.end()
            self._process = self._start()
        return self._process.pid

    def end(self) -> None:
        """End it."""
        self._process.kill()
        self._process.wait()
        assert self._process.stdin is not None
        self._process.stdin.close()


class Listeners:
    """Sockets of every kind outside, and a SysV segment."""

    def __init__(self, folder: Path) -> None:
        self.abstract = f"guard-{os.getpid()}-{secrets.token_hex(4)}"
        self.path = str(folder / "sock")
        self._sockets = [
            self._stream(socket.AF_INET, ("127.0.0.1", 0)),
            self._stream(socket.AF_UNIX, f"\0{self.abstract}"),
            self._stream(socket.AF_UNIX, self.path),
            self._datagram(f"\0{self.abstract}d"),
            self._datagram(f"{self.path}d"),
        ]
        for name in (self.path, f"{self.path}d"):
            os.chmod(name, 0o666)
        self.port: int = self._sockets[0].getsockname()[1]
        self._threads = [
            threading.Thread(target=self._serve, args=(each,), daemon=True) for each in self._sockets
        ]
        for thread in self._threads:
            thread.start()
        self.key = secrets.randbits(30) | 1
        """Of the SysV segment."""
        self._segment = _segment(self.key)

    @staticmethod
    def _stream(family: int, address: str | tuple[str, int]) -> socket.socket:
        listener = socket.socket(family)
        listener.bind(address)
        listener.listen(64)
        return listener

    @staticmethod
    def _datagram(address: str) -> socket.socket:
        receiver = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        receiver.bind(address)
        return receiver

    @staticmethod
    def _serve(endpoint: socket.socket) -> None:
        """Accept and read everything, so that a full backlog never makes an operation fail."""
        with contextlib.suppress(OSError):
            while True:
                if endpoint.type == socket.SOCK_STREAM:
                    endpoint.accept()[0].close()
                elif not endpoint.recv(4096):
                    return  # shut down; no test sends an empty datagram

    def end(self) -> None:
        """Close them, and remove the segment."""
        for endpoint in self._sockets:
            with contextlib.suppress(OSError):
                endpoint.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join()
        for endpoint in self._sockets:
            endpoint.close()
        ctypes.CDLL(None).shmctl(self._segment, _IPC_RMID, None)


def _segment(key: int) -> int:
    """Make the SysV segment."""
    library = ctypes.CDLL(None, use_errno=True)
    number: int = library.shmget(key, ctypes.c_size_t(4096), _IPC_CREAT | _IPC_EXCL | 0o666)
    assert number >= 0, "a SysV segment cannot be made"
    return number


@dataclass(repr=False)
class Done:
    """The result of a command."""

    process: Process
    exit_code: int
    output: bytes
    denied: bool
    sandbox_type: str
    read: Json
    """The answer to `process/read`, extension members included."""

    def __repr__(self) -> str:
        return f"exit {self.exit_code}: {self.output[-400:].decode(errors='replace')}"


class Host:
    """One user's daemon, a connection to it, and what is around it.

    `prefix` is a command that becomes the daemon, to start it under other circumstances.
    """

    def __init__(
        self, user: User, *flags: str, env: Mapping[str, str] | None = None, prefix: Sequence[str] = ()
    ) -> None:
        self.user = user
        self._prefix = (*user.prefix, *prefix)
        self._names = itertools.count(1)
        with contextlib.ExitStack() as stack:
            self.base = Path(tempfile.mkdtemp(prefix="confine-", dir=BASE))
            stack.callback(remove_tree, self.base)
            self.base.chmod(0o755)
            for name in ("daemon", "daemon/state", "daemon/home"):
                (self.base / name).mkdir(mode=0o700)
            user.give(self.base)
            self.listeners = Listeners(self.base)
            stack.callback(self.listeners.end)
            self.victim = Victim(user)
            stack.callback(self.victim.end)
            self.flags = flags
            self.env = {
                "PATH": "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin",
                "HOME": str(self.base / "daemon" / "home"),
                "CODEX_HOME": str(self.base / "daemon" / "home"),
                "XDG_STATE_HOME": str(self.base / "daemon" / "state"),
                "EXECSERVER_CONFIG": "",
                "SHELL": "/bin/sh",
                "TMPDIR": "/tmp",
                "LANG": "C.UTF-8",
                **(env or {}),
            }
            self._prefix = (*self._prefix, *chosen(self.base / "environment"))
            self.server = self._start()
            stack.callback(self._stop)
            self.client = self.server.connect(extensions=True)
            stack.callback(self._disconnect)
            self._ends = stack.pop_all()

    def _start(self) -> Server:
        return Server(
            # The Unix socket is for the daemon's own user, and another executor has none.
            "ws://127.0.0.1:0" if self.user.prefix or not OWN_SERVER else f"unix://{self.base}/daemon/socket",
            *self.flags,
            env=self.env,
            cwd=self.base / "daemon",
            prefix=self._prefix,
        )

    def _stop(self) -> None:
        # Not while an exception is on its way: it says more than the status does.
        status = self.server.stop()
        assert status in (0, -9), f"the daemon ended with {status}"

    def _disconnect(self) -> None:
        self.client.close()

    def restart(self) -> None:
        """Start a new daemon after one was killed."""
        self.client.close()
        self.server.stop()
        self.server = self._start()
        self.client = self.server.connect(extensions=True)

    def end(self) -> None:
        """End everything and remove what was made."""
        self._ends.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    # -- trees

    def tree(self) -> Tree:
        """A fresh one."""
        base = self.base / f"t{next(self._names)}"
        base.mkdir()
        for name in ("ws", "out", *FOLDERS):
            (base / name).mkdir()
        tree = Tree(base, self.user)
        tree.add(FILES)
        return tree

    # -- commands

    def start(self, tree: Tree, argv: Sequence[str], sandbox: Json = None, **members: Json) -> Process:
        """Start a command in the workspace, in a sandbox unless that is `None`."""
        given = {"cwd": path_uri(tree.ws), "env": tree.env, "sandbox": sandbox, **members}
        return self.client.start(*argv, **given)

    def finish(self, process: Process, timeout: float = 30) -> Done:
        """Wait for the end of a command; everything about it."""
        process.wait_closed(timeout)
        read = process.read()
        assert process.exit_code is not None
        return Done(
            process,
            process.exit_code,
            process.output,
            read["sandboxDenied"],
            process.started["sandboxType"],
            read,
        )

    def run(self, tree: Tree, argv: Sequence[str], sandbox: Json = None, **members: Json) -> Done:
        """Start a command and wait for its end."""
        return self.finish(self.start(tree, argv, sandbox, **members))

    def shell(self, tree: Tree, script: str, sandbox: Json = None, **members: Json) -> Done:
        """Run a script of `/bin/sh`."""
        return self.run(tree, ["/bin/sh", "-c", script], sandbox, **members)

    def python(self, tree: Tree, script: str, sandbox: Json = None, **members: Json) -> Done:
        """Run a script of Python."""
        return self.run(tree, ["python3", "-c", script], sandbox, **members)

    def another_client(self) -> Client:
        """One more connection, in a session of its own."""
        return self.server.connect(extensions=True)
