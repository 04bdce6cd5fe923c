"""Faults: real daemons, one a test, that are starved, cut, flooded and killed.

`serve` starts one on the transport of the run; a test that takes `transport` runs over all three,
unless `@pytest.mark.over("unix", "ws")` picks some. Whatever a test does, its daemons end with it,
and none may have logged a failure of its own.
"""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.faults.service import Fifo, Serve, Service, Watched
from tests.faults.sizes import LONG, Report
from tests.sandbox_user import remove_tree
from tests.support.noise import Noise, noise_watched

EVERYWHERE = ("stdio", "unix", "ws")

# Every member of the tree says `NAME PID` into the fifo when it is what its name says.
TREE = """
say() { echo "$1 $2" >FIFO; }
say leader $$
(setsid sh -c 'echo session $$ >FIFO; exec sleep 600' &)
(setsid sh -c '(sh -c "echo double \\$\\$ >FIFO; exec sleep 600" &)' &)
(env -i /usr/bin/setsid /bin/sh -c 'echo bare $$ >FIFO; exec sleep 600' &)
(setsid sh -c 'trap "" TERM HUP INT; echo stubborn $$ >FIFO; while :; do sleep 1; done' &)
setsid sh -c 'echo stopped $$ >FIFO; kill -STOP $$; exec sleep 600' &
exec sleep 600
"""
TERMINAL_TREE = """
set -m
sleep 600 & echo job $! >FIFO
sleep 600 & echo job $! >FIFO
echo shell $$ >FIFO
wait
"""
TREE_SIZE = 9


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "over(*names): run over these transports")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "transport" in metafunc.fixturenames:
        chosen = metafunc.definition.get_closest_marker("over")
        metafunc.parametrize("transport", chosen.args if chosen else EVERYWHERE)


@pytest.fixture
def folder() -> Iterator[Path]:
    """Short: a Unix socket's path has 107 bytes."""
    path = Path(tempfile.mkdtemp(prefix="faults-"))
    yield path
    remove_tree(path)


@pytest.fixture
def serve(folder: Path) -> Iterator[Serve]:
    """Start a daemon: `serve("unix", "--flag", launcher=[…])`. It must end well unless `may_fail`."""
    services: list[tuple[Service, bool]] = []

    def start(transport: str, *flags: str, may_fail: bool = False, **options: Any) -> Service:
        service = Service(transport, folder, *flags, **options)
        services.append((service, may_fail))
        return service

    yield start
    troubles = []
    for service, may_fail in services:
        failures = service.failures()
        try:
            status = service.end()
        except Exception as error:
            troubles.append(f"did not stop: {error}")
            continue
        if not may_fail and (status or failures):
            troubles.append(f"status {status}: {failures}")
    assert not troubles, troubles


@pytest.fixture
def fifo(folder: Path) -> Iterator[Callable[[], Fifo]]:
    """Make a fifo: `fifo()`."""
    made: list[Fifo] = []

    def make() -> Fifo:
        made.append(Fifo(folder / f"fifo{len(made)}"))
        return made[-1]

    yield make
    for each in made:
        each.close()


@pytest.fixture
def watch() -> Iterator[Callable[[str, int], Watched]]:
    """Watch a process; what still lives at the end of the test is killed."""
    watched: list[Watched] = []

    def begin(name: str, pid: int) -> Watched:
        watched.append(Watched(name, pid))
        return watched[-1]

    yield begin
    for process in watched:
        process.kill()
        process.close()


@pytest.fixture
def tree(
    folder: Path, fifo: Callable[[], Fifo], watch: Callable[[str, int], Watched]
) -> Callable[[Any], list[Watched]]:
    """Grow every kind of descendant in the session of a client: `tree(client)`."""

    def grow(client: Any) -> list[Watched]:
        news = fifo()
        client.shell(TREE.replace("FIFO", str(news.path)))
        client.start(
            "/bin/bash", "--norc", "-i", "-c", TERMINAL_TREE.replace("FIFO", str(news.path)), tty=True
        )
        lines = [news.line().split() for _ in range(TREE_SIZE)]
        return [watch(name, int(pid)) for name, pid in lines]

    return grow


@pytest.fixture
def bystander() -> Iterator[Callable[[], bool]]:
    """A process of nobody's service; says whether it lives."""
    process = subprocess.Popen(["/bin/sleep", "600"], start_new_session=True)
    yield lambda: process.poll() is None
    process.kill()
    process.wait()


@pytest.fixture
def noise() -> Iterator[Noise]:
    """What latencies of this test may owe to the machine."""
    with noise_watched() as watched:
        yield watched


@pytest.fixture
def report(capfd: pytest.CaptureFixture[str]) -> Report:
    """Print a line of figures, in the long form only: `report("3 cuts …")`."""

    def tell(line: str) -> None:
        if LONG:
            with capfd.disabled():
                print(f"\n{line}", flush=True)

    return tell
