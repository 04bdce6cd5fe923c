"""After thousands of commands everything is where it began.

Asyncio tasks cannot be counted from outside: the server logs at debug level how many remain when a session
ends, and a task that is kept also keeps its connection's descriptor or its memory, which are counted here.
"""

import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.server import ServerUnderTest
from tests.soak.commands import run_sessions
from tests.soak.resources import back_to, settled

COMMANDS = int(os.environ.get("EXECSERVER_SOAK_COMMANDS", "500"))
WARM_UP = 50
SESSION_TTL_SECONDS = 1
# Sessions expire within their TTL; killing what they left may take a loaded machine a little longer.
SETTLE_SECONDS = 30
MOST_GROWTH_MIB = 10
TIDY_SECONDS = 5


def growth_once_tidied(server: ServerUnderTest, resident: float) -> float:
    """MiB more than before, once the daemon has given memory back: a second after the last session's end."""
    deadline = time.monotonic() + TIDY_SECONDS
    while (growth := server.memory().resident - resident) > MOST_GROWTH_MIB and time.monotonic() < deadline:
        time.sleep(0.1)
    return growth


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerUnderTest]:
    command = f"{Path(sys.prefix) / 'bin' / 'execserver'} serve --listen {{listen}}"
    command += f" --session-ttl {SESSION_TTL_SECONDS}"
    with ServerUnderTest(command, "unix", tmp_path, tmp_path / "server.log") as started:
        yield started


@pytest.mark.soak
@pytest.mark.timeout(120 + COMMANDS // 10)
def test_commands_leave_nothing_behind_when_their_sessions_end(server: ServerUnderTest) -> None:
    run_sessions(server.connect, WARM_UP, seed=1)
    before = settled(server.pid, quiet_seconds=2 * SESSION_TTL_SECONDS, within=SETTLE_SECONDS)
    resident = server.memory().resident

    run_sessions(server.connect, COMMANDS, seed=2)

    left = back_to(server.pid, before, within=SETTLE_SECONDS)
    assert not left, "\n".join(left)
    growth = growth_once_tidied(server, resident)
    assert growth <= MOST_GROWTH_MIB, f"{growth:.1f} MiB more after {COMMANDS} commands"
