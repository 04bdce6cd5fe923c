"""A session that a server took over and that ends there leaves nothing, as one that it began itself."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path

from tests.faults.resuming_client import ResumingClient
from tests.faults.service import Serve, Service, descriptors, eventually
from tests.sandbox.profiles import at, context, restricted, special
from tests.support.wire import PATIENCE


@contextlib.contextmanager
def _slow_supervisor(service: Service) -> Iterator[None]:
    """It tells the server of no end meanwhile."""
    os.kill(service.pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(service.pid, signal.SIGCONT)


def test_the_end_of_an_inherited_session_leaves_no_descriptor(serve: Serve) -> None:
    service = serve("unix", "--session-ttl", "5", may_fail=True)
    session = ResumingClient(service)
    service.settle()
    before = descriptors(service.server_pid)["anon_inode"]
    for _ in range(20):
        session.start("/bin/sleep", "600")
    service.signal_server(signal.SIGKILL)
    session.cut()
    service.wait_for_new_server()
    assert eventually(lambda: descriptors(service.server_pid)["anon_inode"] > before + 10, PATIENCE)
    with _slow_supervisor(service):
        assert eventually(lambda: "session ended" in service.log, PATIENCE), service.log
    assert eventually(lambda: descriptors(service.server_pid)["anon_inode"] <= before, PATIENCE), (
        before,
        descriptors(service.server_pid),
    )


def test_the_end_of_an_inherited_session_leaves_no_mount_point(serve: Serve, folder: Path) -> None:
    service = serve("unix", "--session-ttl", "1", may_fail=True)
    session = ResumingClient(service)
    spaces = [folder / f"ws{number}" for number in range(5)]
    for space in spaces:
        space.mkdir()
        permissions = restricted(special("root", "read"), at(space, "write"))
        session.start("/bin/sleep", "600", cwd=f"file://{space}", sandbox=context(permissions, cwd=space))
    assert eventually(lambda: all((space / ".git").exists() for space in spaces), PATIENCE)
    # The log lags behind: the next server's is to be told from this one's.
    assert eventually(lambda: "ready" in service.log, PATIENCE)
    service.signal_server(signal.SIGKILL)
    session.cut()
    service.wait_for_new_server()
    assert eventually(lambda: service.log.count("ready") >= 2, PATIENCE)
    with _slow_supervisor(service):
        assert eventually(lambda: "session ended" in service.log, PATIENCE), service.log
    assert eventually(lambda: not any(list(space.iterdir()) for space in spaces), 8), [
        list(space.iterdir()) for space in spaces
    ]
    assert not any(list(space.iterdir()) for space in spaces)
