"""Mutated messages by the thousand: no crash, no hang, no leak.

    make fuzz                                      200,000 messages over each framing
    EXECSERVER_FUZZ_MESSAGES=2000000 make fuzz     more
    EXECSERVER_FUZZ_SEED=7 make fuzz               others

A failure names its seed and its round, and how to have it again.
"""

from __future__ import annotations

import os
import time
from dataclasses import replace

import pytest

from execserver.filesystem.blocking import MAX_THREADS
from tests.fuzz.daemon import daemon
from tests.fuzz.link import KINDS
from tests.fuzz.rounds import Fuzzing
from tests.soak.resources import back_to, settled

COUNT = int(os.environ.get("EXECSERVER_FUZZ_MESSAGES", "10000"))
SEED = int(os.environ.get("EXECSERVER_FUZZ_SEED", "1"))
FIRST_ROUND = int(os.environ.get("EXECSERVER_FUZZ_FIRST_ROUND", "0"))

WARM_UP = 2000
"""Messages until every library is loaded and every pool is filled."""

MOST_GROWTH_MIB = 40.0
"""Of the resident memory, after the warm-up. Replies of some MiB come and go; a leak of 250 bytes a
message would be 48 MiB in 200,000."""


@pytest.mark.timeout(120 + COUNT // 100)
@pytest.mark.parametrize("name", KINDS)
def test_mutated_messages_are_answered_and_leave_nothing(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with daemon(name) as (service, folder):
        fuzzing = Fuzzing(name, service, folder, SEED)
        number = FIRST_ROUND
        while fuzzing.sent < WARM_UP:
            fuzzing.round(number)
            number += 1
        fuzzing.close()
        before = settled(service.pid, quiet_seconds=0.5, within=20)
        full_pools = {pid: threads + MAX_THREADS for pid, threads in before.threads.items()}
        resident, began, begun = service.resident, time.monotonic(), fuzzing.sent

        while fuzzing.sent < WARM_UP + COUNT:
            fuzzing.round(number)
            number += 1
        fuzzing.close()
        seconds = time.monotonic() - began
        left = back_to(service.pid, replace(before, threads=full_pools), within=20)

        with capsys.disabled():
            sent, grown = fuzzing.sent - begun, service.resident - resident
            print(
                f"\n{name}: {sent} messages in {seconds:.0f} s, {fuzzing.ended} connections ended,", end=" "
            )
            print(f"{resident:.0f} MiB resident grew by {grown:.0f}")
        assert left == []
        assert service.server_lives
        assert grown < MOST_GROWTH_MIB
