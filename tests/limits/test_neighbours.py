"""Nine commands without limits beside one that takes all that it can get, within limits."""

from __future__ import annotations

import statistics
import time
from pathlib import Path

import pytest

from tests.limits.groups import MIB, PYTHON, needs_groups, start
from tests.support.wire import Client, Process

pytestmark = needs_groups

LIMITS = {"cpuPercent": 20, "pids": 32, "memoryBytes": 64 * MIB}

GREEDY = {
    "a fork bomb": "bomb() { bomb | bomb & }; bomb; sleep 60",
    "a memory hog": f"exec {PYTHON} -c 'while True: bytearray(40 << 20)'",
    "busy loops": "for _ in 1 2 3 4; do while :; do :; done & done; wait",
    "writes": "while :; do dd if=/dev/zero of=big bs=1M count=40 conv=fsync 2> /dev/null; done",
}

ROUNDS = 20
TIMES = 1.5
ATTEMPTS = 5
"""The machine has other work, too."""


def round_trips(client: Client, neighbours: list[Process], tag: str) -> float:
    """The median time from a write to the echo, in seconds, over all neighbours."""
    taken = []
    for number in range(ROUNDS):
        for process in neighbours:
            line = f"{tag} {number}\n"
            begin = time.monotonic()
            process.write(line, line)
            process.wait_output(line.encode())
            taken.append(time.monotonic() - begin)
    return statistics.median(taken)


@pytest.mark.parametrize("script", GREEDY.values(), ids=GREEDY)
def test_nine_neighbours_of_a_limited_command_hardly_notice_it(
    client: Client, script: str, tmp_path: Path
) -> None:
    neighbours = []
    for _ in range(9):
        params = client.start_params(["/bin/cat"], pipeStdin=True)
        client.call("process/start", params)
        neighbours.append(Process(client, params["processId"]))
    found = []
    for attempt in range(ATTEMPTS):
        alone = round_trips(client, neighbours, f"alone {attempt}")
        greedy = start(client, f"cd {tmp_path}; {script}", LIMITS)
        time.sleep(0.2)
        beside = round_trips(client, neighbours, f"beside {attempt}")
        greedy.terminate("tree")
        greedy.wait_closed()
        found.append(beside / alone)
        if found[-1] <= TIMES:
            break
    assert found[-1] <= TIMES, found
    for process in neighbours:
        process.terminate()
        process.wait_closed()
