"""What processes use together, and measurements that are shared."""

from __future__ import annotations

import asyncio
import os
import subprocess
import threading

import pytest

from execserver import descendants
from execserver.processes.usage import Meter, Usage, measure


def test_members_are_measured_together_and_the_dead_do_not_count() -> None:
    with subprocess.Popen(["sleep", "60"]) as child, subprocess.Popen(["true"]) as gone:
        gone.wait()
        both = measure({7: [os.getpid(), child.pid], 8: [gone.pid]})
        alone = measure({7: [child.pid]})
        child.kill()
    assert both[7].count == 2
    assert both[7].rss_bytes > alone[7].rss_bytes > 0
    assert both[8] == Usage(0.0, 0, 0)


def test_children_belong_to_the_number_of_their_leader() -> None:
    instance = descendants.new_instance()
    with subprocess.Popen(["sh", "-c", "sleep 60 & echo up; wait"], stdout=subprocess.PIPE) as leader:
        assert leader.stdout is not None
        leader.stdout.readline()
        found = descendants.descendants_by_number(instance, {3: leader.pid})
        for pid in found[3]:
            os.kill(pid, 9)
    assert leader.pid in found[3]
    assert len(found[3]) == 2


async def test_requests_that_come_together_share_a_pass() -> None:
    passes, go = 0, threading.Event()

    def slow() -> dict[int, Usage]:
        nonlocal passes
        passes += 1
        number = passes
        go.wait(10)
        return {1: Usage(0.0, number, 1)}

    meter = Meter(slow)
    first = asyncio.create_task(meter.measured())
    while not passes:
        await asyncio.sleep(0)
    later = [asyncio.create_task(meter.measured()) for _ in range(100)]
    await asyncio.sleep(0)
    later[0].cancel()
    go.set()
    assert (await first)[1].rss_bytes == 1
    results = await asyncio.gather(*later[1:])
    assert {result[1].rss_bytes for result in results} == {2}, (
        "what came during a pass is answered by the next"
    )
    assert passes == 2


async def test_a_pass_that_fails_is_not_the_last() -> None:
    outcomes = iter((OSError("no"), None))

    def measure_once() -> dict[int, Usage]:
        error = next(outcomes)
        if error is not None:
            raise error
        return {}

    meter = Meter(measure_once)
    with pytest.raises(OSError, match="no"):
        await meter.measured()
    assert await meter.measured() == {}
