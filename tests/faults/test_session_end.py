"""`session/end` leaves nothing, whatever becomes of the server over it."""

from __future__ import annotations

import contextlib
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.faults.resuming_client import ResumingClient
from tests.faults.service import Serve, Service, Watched, eventually
from tests.sandbox.profiles import at, context, restricted, special
from tests.support.background import DAEMON, IN_BACKGROUND, Left
from tests.support.wire import Client, ReplyError

WITHIN = 10.0
MANY = 100

Grow = Callable[[Any], list[Watched]]


@pytest.fixture
def left() -> Iterator[Left]:
    """Something to leave running."""
    left = Left()
    yield left
    left.kill()


def leave(client: Client | ResumingClient, left: Left) -> None:
    """Start what leaves it behind in the two ways that a group does not show."""
    client.start("/bin/sh", "-c", IN_BACKGROUND.format(sleep=left.sleep))
    client.start(sys.executable, "-I", "-c", DAEMON, *left.argv)
    left.wait_running(2)


def is_stopped(service: Service) -> bool:
    """Whether the server has reached the point at which it stops."""
    state = Path(f"/proc/{service.server_pid}/stat").read_text().rpartition(") ")[2][0]
    return state == "T"


def test_every_kind_of_descendant_ends_and_others_do_not(
    serve: Serve, transport: str, tree: Grow, bystander: Callable[[], bool]
) -> None:
    service = serve(transport)
    client = service.connect()
    descendants = tree(client)
    assert client.call("session/end") == {}
    assert not [each.name for each in descendants if not each.ended()]
    assert bystander()


@pytest.mark.over("unix", "ws")
def test_a_session_that_a_server_took_over_ends_with_everything(
    serve: Serve, transport: str, left: Left, folder: Path
) -> None:
    service = serve(transport, may_fail=True)
    session = ResumingClient(service)
    leave(session, left)
    space = folder / "ws"
    space.mkdir()
    permissions = restricted(special("root", "read"), at(space, "write"))
    session.start(*left.argv, cwd=f"file://{space}", sandbox=context(permissions, cwd=space))
    left.wait_running(3)
    service.signal_server(signal.SIGKILL)
    service.wait_for_new_server()
    session.reconnect()
    assert len(left.pids) == 3

    assert session.client.call("session/end") == {}
    assert not left.pids
    assert eventually(lambda: not list(space.iterdir()), WITHIN), list(space.iterdir())
    with pytest.raises(ReplyError, match="unknown session id"):
        session.reconnect()


@pytest.mark.parametrize("after", [0, 0.002, 0.01, 0.05])
def test_the_next_server_ends_a_session_whose_server_died_over_it(
    serve: Serve, left: Left, after: float
) -> None:
    service = serve("unix", may_fail=True)
    session = ResumingClient(service)
    leave(session, left)
    session.start(
        "/bin/sh", "-c", f"n=0; while [ $n -lt {MANY} ]; do setsid {left.sleep} & n=$((n+1)); done; wait"
    )
    left.wait_running(2 + MANY)
    session.client.request("session/end")
    time.sleep(after)
    service.signal_server(signal.SIGKILL)
    service.wait_for_new_server()
    # What was not read has to be said again, as after any lost connection.
    with contextlib.suppress(ReplyError):
        session.reconnect()
        session.client.call("session/end")
    with pytest.raises(ReplyError, match="unknown session id"):
        session.reconnect()
    assert eventually(lambda: not left.pids, WITHIN), left.pids


def test_the_end_holds_once_it_is_written_down(serve: Serve, left: Left) -> None:
    service = serve("unix", may_fail=True, env={"EXECSERVER_FAULT_POINT": "session-ending"})
    session = ResumingClient(service)
    leave(session, left)
    session.client.request("session/end")
    assert eventually(lambda: is_stopped(service), WITHIN)
    assert len(left.pids) == 2
    service.signal_server(signal.SIGKILL)
    service.wait_for_new_server()
    with pytest.raises(ReplyError, match="unknown session id"):
        session.reconnect()
    assert eventually(lambda: not left.pids, WITHIN), left.pids


def test_sessions_that_end_leave_no_descriptor(serve: Serve) -> None:
    service = serve("unix")
    service.settle()
    before = service.descriptors
    for _ in range(20):
        client = service.connect()
        for _ in range(5):
            client.start("/bin/sh", "-c", "head -c 100000 /dev/zero; sleep 600 &")
        client.call("session/end")
    assert eventually(lambda: service.descriptors <= before, WITHIN), (before, service.descriptors)
