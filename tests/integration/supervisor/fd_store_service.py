"""A service with a server that follows the test's commands."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.integration.supervisor.conftest import Service, Start
from tests.support import fd_store_server

PATIENCE = 20.0


def eventually(what: Callable[[], Any], seconds: float = PATIENCE) -> Any:
    """Wait until something is true, and return it."""
    deadline = time.monotonic() + seconds
    while not (result := what()):
        assert time.monotonic() < deadline, "it did not come about"
        time.sleep(0.002)
    return result


def zombie(pid: int) -> bool:
    """Whether a process has ended and is not reaped."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return False


def gone(pid: int) -> bool:
    """Whether a process is reaped."""
    return not os.path.exists(f"/proc/{pid}")


class FdStoreService:
    """A service whose servers follow a plan."""

    def __init__(self, start: Start, folder: Path, *plan: str, **options: Any) -> None:
        self.folder = folder
        self.plan = folder / "plan"
        self.plan.write_text("\n".join(plan))
        self.path = folder / "door"
        self.service: Service = start(
            *("--listen", f"unix://{self.path}", "--plan", str(self.plan)),
            server=fd_store_server,
            start_new_session=True,
            **options,
        )
        assert self.service.url() == f"unix://{self.path}"
        self.pid = self.service.pid

    def send(self, *command: Any) -> socket.socket:
        """Send a command to the current server, or to the next one if there is none."""
        client = socket.socket(socket.AF_UNIX)
        client.settimeout(PATIENCE)
        client.connect(str(self.path))
        with contextlib.suppress(BrokenPipeError):  # it died just now: `answer` finds the end
            client.sendall(json.dumps(command).encode())
        return client

    def call(self, *command: Any) -> Any:
        """Send a command, and return the reply."""
        return self.answer(self.send(*command))

    def answer(self, client: socket.socket) -> Any:
        """The reply to a command; None if the server died of it."""
        with client:
            text = b""
            try:
                while not text.endswith(b"\n"):
                    piece = client.recv(65536)
                    if not piece:
                        return None
                    text += piece
            except ConnectionResetError:
                return None
            return json.loads(text)

    def kill(self) -> int:
        """SIGKILL the server; returns its pid when it has ended."""
        pid = int(self.call("pid"))
        os.kill(pid, signal.SIGKILL)
        eventually(lambda: gone(pid))
        return pid
