"""No descriptor left: the daemon refuses, lives, and goes on when there is room again."""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.faults.service import Serve, Service, Watched, eventually, with_descriptors
from tests.support.wire import Process, ReplyError

LIMIT = 300
GONE_SECONDS = 2.0

Tree = Callable[[Any], list[Watched]]


@pytest.fixture
def fill() -> Iterator[Callable[[Service], Callable[[], None]]]:
    """Take every descriptor of a daemon by connections that say nothing; gives what gives them back."""
    with contextlib.ExitStack() as everything:

        def fill_table(service: Service) -> Callable[[], None]:
            mine = everything.enter_context(contextlib.ExitStack())
            for _ in range(LIMIT + 20):
                connection = mine.enter_context(socket.socket(socket.AF_UNIX))
                connection.setblocking(False)
                connection.connect(str(service.path))
            assert eventually(lambda: service.descriptors >= LIMIT, within=10)
            return mine.close

        yield fill_table


Fill = Callable[[Service], Callable[[], None]]


@pytest.mark.over("unix", "ws")
def test_a_start_without_descriptors_is_refused_and_works_again_later(transport: str, serve: Serve) -> None:
    client = serve(transport, launcher=with_descriptors(LIMIT)).connect()
    running: list[Process] = []
    refusal: ReplyError | None = None
    while refusal is None and len(running) < LIMIT:
        try:
            running.append(client.start("/bin/sleep", "600", processId=f"p{len(running)}"))
        except ReplyError as error:
            refusal = error
    assert refusal is not None
    assert (refusal.code, refusal.message.endswith("Too many open files (os error 24)")) == (-32603, True)
    assert running

    refused = f"p{len(running)}"
    running[0].terminate()
    running[0].wait_closed()
    client.start("/bin/echo", "again", processId=refused).wait_output(b"again\n")


def test_connections_that_fill_the_table_neither_kill_nor_spin_the_daemon(serve: Serve, fill: Fill) -> None:
    service = serve("unix", launcher=with_descriptors(LIMIT))
    client = service.connect()
    process = client.start("/bin/cat", pipeStdin=True)
    give_back = fill(service)
    service.settle()
    before = service.cpu_seconds
    until = time.monotonic() + 1.5
    while time.monotonic() < until:
        time.sleep(0.1)
    assert service.cpu_seconds - before < 0.2
    process.write("still here\n", "1")
    process.wait_output(b"still here\n")
    refusal = client.refused("process/start", client.start_params(["/bin/true"]))
    assert "Too many open files" in refusal.message
    give_back()
    service.connect().start("/bin/echo", "hello").wait_output(b"hello\n")


def test_a_session_that_ends_while_the_table_is_full_leaves_nothing(
    serve: Serve, fill: Fill, tree: Tree
) -> None:
    service = serve("unix", "--session-ttl", "1", launcher=with_descriptors(LIMIT))
    client = service.connect()
    members = tree(client)
    give_back = fill(service)
    client.close()
    deadline = time.monotonic() + 1 + 0.5 + GONE_SECONDS
    survivors = [each.name for each in members if not each.ended(deadline - time.monotonic())]
    give_back()
    assert survivors == []


def test_a_tree_is_killed_while_the_table_is_full(serve: Serve, fill: Fill, tree: Tree) -> None:
    service = serve("unix", launcher=with_descriptors(LIMIT))
    client = service.connect()
    members = tree(client)
    fill(service)
    for name in ("p1", "p2"):  # as a client names its first two
        client.call("process/terminate", {"processId": name, "scope": "tree"})
    deadline = time.monotonic() + GONE_SECONDS
    assert [each.name for each in members if not each.ended(deadline - time.monotonic())] == []


def test_the_death_of_the_supervisor_ends_everything_while_the_table_is_full(
    serve: Serve, fill: Fill, tree: Tree
) -> None:
    service = serve("unix", may_fail=True, launcher=with_descriptors(LIMIT))
    members = tree(service.connect())
    fill(service)
    before = service.cpu_seconds
    service.process.kill()
    deadline = time.monotonic() + GONE_SECONDS
    survivors = [each.name for each in members if not each.ended(deadline - time.monotonic())]
    ended = eventually(lambda: not service.server_lives, GONE_SECONDS)
    spent = service.cpu_seconds - before if service.server_lives else 0
    assert (survivors, ended) == ([], True), f"processor time spent: {spent:.1f} s"


def test_a_stop_ends_everything_while_the_table_is_full(
    serve: Serve, fill: Fill, tree: Tree, folder: Path
) -> None:
    service = serve("unix", launcher=with_descriptors(LIMIT))
    members = tree(service.connect())
    fill(service)
    service.process.terminate()
    deadline = time.monotonic() + GONE_SECONDS
    assert [each.name for each in members if not each.ended(deadline - time.monotonic())] == []


def test_every_command_has_the_descriptor_limit_that_the_daemon_was_started_with(serve: Serve) -> None:
    """The daemon raises its own; a command must not begin to run before it has the old one back."""
    client = serve("unix", launcher=["prlimit", "--nofile=1024:4096"]).connect()
    limits = [client.shell("ulimit -n").wait_closed().output for _ in range(150)]
    assert set(limits) == {b"1024\n"}
