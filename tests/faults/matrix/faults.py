"""What happens to a service in some state, and how it has to come out of that.

A fault is applied while the server stands still (or at any moment, in states without a point), and lasts
until its context ends. `after` is called outside: it judges a service that ended, and brings a client back to
one that goes on.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from tests.faults.matrix.scene import DISK_KIB, Scene
from tests.support.wire import Client, SocketTransport

SHORTAGE_SECONDS = 0.3
"""For which disk or table stay full."""


class Fault(ABC):
    """One row of the matrix."""

    ends = False
    """Whether the service is to end by it."""

    @abstractmethod
    def apply(self, scene: Scene) -> AbstractContextManager[None]:
        """Do it; the server goes on inside the context."""

    def after(self, scene: Scene, marks: Sequence[str]) -> None:
        """The server went on: come back to it, or see that it ended.

        Raises:
            AssertionError: it is not what it should be.
        """
        scene.session.reconnect()

    def options(self, folder: Path) -> dict[str, Any]:
        """How the service must be started for this."""
        return {}


class KillServer(Fault):
    """SIGKILL to the server: the supervisor starts another."""

    @contextlib.contextmanager
    def apply(self, scene: Scene) -> Iterator[None]:
        scene.service.signal_server(signal.SIGKILL)
        scene.service.wait_for_new_server()
        yield


class KillSupervisor(Fault):
    """SIGKILL to the supervisor: the server ends everything, and itself."""

    ends = True

    @contextlib.contextmanager
    def apply(self, scene: Scene) -> Iterator[None]:
        scene.service.process.kill()
        yield

    def after(self, scene: Scene, marks: Sequence[str]) -> None:
        scene.is_gone(-signal.SIGKILL, marks=marks)


class KillBoth(Fault):
    """SIGKILL to both at once: what they leave behind is swept by the next start."""

    ends = True

    @contextlib.contextmanager
    def apply(self, scene: Scene) -> Iterator[None]:
        # A stopped supervisor cannot do its work between the two.
        scene.service.process.send_signal(signal.SIGSTOP)
        scene.service.signal_server(signal.SIGKILL)
        scene.service.process.kill()
        scene.service.process.wait()
        yield

    def after(self, scene: Scene, marks: Sequence[str]) -> None:
        scene.is_swept(marks=marks)


class KillClient(Fault):
    """SIGKILL to the process that has the connection: its session waits for it."""

    @contextlib.contextmanager
    def apply(self, scene: Scene) -> Iterator[None]:
        scene.kill_client()
        yield


class CutConnection(Fault):
    """A reset in the middle of whatever is on its way."""

    def options(self, folder: Path) -> dict[str, Any]:
        return {"transport": "ws"}

    @contextlib.contextmanager
    def apply(self, scene: Scene) -> Iterator[None]:
        scene.session.cut(_reset)
        yield


class StopService(Fault):
    """SIGTERM to the supervisor: everything ends in order."""

    ends = True

    @contextlib.contextmanager
    def apply(self, scene: Scene) -> Iterator[None]:
        scene.service.process.terminate()
        yield

    def after(self, scene: Scene, marks: Sequence[str]) -> None:
        scene.is_gone(0, marks=marks)


class FullDisk(Fault):
    """No room where the spool is, for a while."""

    def options(self, folder: Path) -> dict[str, Any]:
        disk = folder / "disk"
        disk.mkdir()
        unshare = ["unshare", "--mount"] if os.geteuid() == 0 else ["unshare", "--mount", "--map-root-user"]
        mount = f'mount -t tmpfs -o size={DISK_KIB}k,mode=700 tmpfs {disk} && exec "$@"'
        return {"launcher": [*unshare, "/bin/sh", "-c", mount, "sh"], "spool": disk / "spool"}

    @contextlib.contextmanager
    def apply(self, scene: Scene) -> Iterator[None]:
        # As the service sees it: the mount is in a namespace of its own.
        filler = Path(f"/proc/{scene.service.pid}/root{scene.folder}/disk/filler")
        with filler.open("wb", buffering=0) as file, contextlib.suppress(OSError):
            while True:
                file.write(bytes(4096))
        scene.may_lose = True
        yield
        time.sleep(SHORTAGE_SECONDS)
        filler.unlink()

    def after(self, scene: Scene, marks: Sequence[str]) -> None:
        if scene.session.client.ended:  # before the shortage, which does not end a connection
            scene.session.resume()


class FullTable(Fault):
    """No descriptor for the server, for a while."""

    @contextlib.contextmanager
    def apply(self, scene: Scene) -> Iterator[None]:
        with scene.table_full():
            yield
            time.sleep(SHORTAGE_SECONDS)

    def after(self, scene: Scene, marks: Sequence[str]) -> None:
        if scene.session.client.ended:  # before the shortage, which does not end a connection
            scene.session.resume()
            if scene.service.server_ended(0):  # it could not take over, and the next one has room
                scene.service.wait_for_new_server()


def _reset(client: Client) -> None:
    assert isinstance(client.transport, SocketTransport)
    with contextlib.suppress(OSError):  # of a session that is detached already
        client.transport.reset()


FAULTS: Sequence[type[Fault]] = (
    KillServer,
    KillSupervisor,
    KillBoth,
    KillClient,
    CutConnection,
    StopService,
    FullDisk,
    FullTable,
)
