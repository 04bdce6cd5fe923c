"""No descriptor left: the daemon refuses, lives, and goes on when there is room again."""

from __future__ import annotations

import contextlib
import itertools
import os
import resource
import secrets
import signal
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.faults.matrix.scene import marked
from tests.faults.service import Serve, Service, Watched, a_child_is_stopped, eventually, with_descriptors
from tests.faults.sizes import GONE_SECONDS
from tests.support.wire import Process, ReplyError

LIMIT = 300
MANY = 100
"""More than a daemon with that limit keeps in reserve."""

Tree = Callable[[Any], list[Watched]]


@pytest.fixture
def fill() -> Iterator[Callable[[Service], Callable[[], None]]]:
    """Take every descriptor of a daemon by connections that say nothing; gives what gives them back."""
    with contextlib.ExitStack() as everything:

        def fill_table(service: Service) -> Callable[[], None]:
            mine = everything.enter_context(contextlib.ExitStack())
            # What it opens for good a moment after its start would take the last ones, and a low one that it
            # has for a moment stay free instead: the limit below would be under that, and of no use.
            service.settle()
            for _ in range(LIMIT + 20):
                connection = mine.enter_context(socket.socket(socket.AF_UNIX))
                connection.setblocking(False)
                connection.connect(str(service.path))
            # A daemon accepts no peer that it has no descriptors to check, so two stay free: take them.
            assert eventually(lambda: lowest_free(service) >= LIMIT - 2, within=10)
            mine.enter_context(only_descriptors_below(service, LIMIT - 2))
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


@contextlib.contextmanager
def only_descriptors_below(service: Service, limit: int) -> Iterator[None]:
    """The server gets none with that number or a higher one meanwhile."""
    before = resource.prlimit(service.server_pid, resource.RLIMIT_NOFILE)
    resource.prlimit(service.server_pid, resource.RLIMIT_NOFILE, (limit, before[1]))
    yield
    with contextlib.suppress(ProcessLookupError):  # a test may have ended it
        resource.prlimit(service.server_pid, resource.RLIMIT_NOFILE, before)


def lowest_free(service: Service) -> int:
    """The lowest number that stays free for 0.2 s: one in use for a moment would hide a lower one."""
    looks: list[int] = []
    while len(looks) < 10 or len(set(looks[-10:])) > 1:
        time.sleep(0.02)
        taken = {int(name) for name in os.listdir(f"/proc/{service.server_pid}/fd")}
        looks.append(next(number for number in itertools.count() if number not in taken))
    return looks[-1]


def test_connections_are_served_while_no_descriptor_is_permitted(serve: Serve, transport: str) -> None:
    service = serve(transport)
    client = service.connect()
    process = client.start("/bin/cat", pipeStdin=True)
    with only_descriptors_below(service, 0):  # poll(2) fails then
        for _ in range(2):
            assert client.call("process/read", {"processId": process.id})["exited"] is False
    process.terminate()
    process.wait_closed()


@pytest.mark.parametrize("reserved", [True, False])
@pytest.mark.parametrize("tty", [True, False])
def test_a_start_that_is_refused_over_a_running_command_leaves_nothing_of_it(
    serve: Serve, reserved: bool, tty: bool
) -> None:
    service = serve("unix", env={"EXECSERVER_FAULT_POINT": "before-pidfd:2"})
    client = service.connect()
    client.start("/bin/echo", "warm").wait_closed()
    service.settle()
    mark = f"6{secrets.randbelow(10**8):08}"
    script = f"(setsid sleep {mark} &); (env -i /usr/bin/setsid sleep {mark} &); exec sleep {mark}"
    params = client.start_params(["/bin/sh", "-c", script], tty=tty)
    number = client.request("process/start", params)
    assert eventually(lambda: len(marked(mark)) == 3, within=10)
    assert eventually(lambda: a_child_is_stopped(service), within=10)
    # Without them no process can be found before there are descriptors again.
    with only_descriptors_below(service, lowest_free(service) if reserved else 0):
        service.signal_server(signal.SIGCONT)
        with pytest.raises(ReplyError, match="os error 24"):
            client.result(number)
        assert not reserved or marked(mark) == []
    assert eventually(lambda: marked(mark) == [], within=10), marked(mark)
    client.start("/bin/echo", "again", processId=params["processId"]).wait_output(b"again\n")


@pytest.mark.parametrize("tty", [True, False])
def test_a_command_that_has_its_pipes_is_not_refused_for_want_of_one_more(serve: Serve, tty: bool) -> None:
    """It would have to be killed, and may have done something already that another try does again."""
    service = serve("unix", env={"EXECSERVER_FAULT_POINT": "before-spawn:2"})
    client = service.connect()
    client.start("/bin/echo", "warm").wait_closed()
    service.settle()
    params = client.start_params(["/bin/echo", "once"], tty=tty)
    number = client.request("process/start", params)
    assert eventually(lambda: a_child_is_stopped(service), within=10)
    with only_descriptors_below(service, lowest_free(service)):
        service.signal_server(signal.SIGCONT)
        client.result(number)
    client.process(params["processId"]).wait_output(b"once")


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


def test_a_tree_larger_than_the_spare_descriptors_is_stopped_and_killed_while_the_table_is_full(
    serve: Serve, fill: Fill
) -> None:
    service = serve("unix", launcher=with_descriptors(LIMIT))
    client = service.connect()
    mark = f"6{secrets.randbelow(10**8):08}"
    grow = f"n=0; while [ $n -lt {MANY} ]; do setsid sleep {mark} & n=$((n+1)); done; wait"
    tree = {"processId": client.start("/bin/sh", "-c", grow).id, "scope": "tree"}
    assert eventually(lambda: len(marked(mark)) == MANY, within=20)
    fill(service)
    client.call("process/signal", {**tree, "signal": "SIGSTOP"})
    assert eventually(lambda: {_state(pid) for pid in marked(mark)} == {"T"}, within=10)
    client.call("process/terminate", tree)
    assert eventually(lambda: not marked(mark), within=10), len(marked(mark))


def _state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0]


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
