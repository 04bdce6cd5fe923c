"""The table of descriptors has its size before there are threads, which would make the loop wait for it."""

from __future__ import annotations

import subprocess
import sys

import pytest

from execserver.memory import DESCRIPTOR_TABLE_ENTRIES as ENTRIES

PROGRAM = """
import os, resource, sys
from execserver.memory import widen_descriptor_table
limit = int(sys.argv[1])
soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
before = set(os.listdir("/proc/self/fd"))
if len(sys.argv) > 2:
    kept = os.dup2(1, int(sys.argv[2]))
    before.add(sys.argv[2])
widen_descriptor_table()
assert set(os.listdir("/proc/self/fd")) == before, "a descriptor was left, or closed"
if len(sys.argv) > 2:
    assert os.path.samestat(os.fstat(kept), os.fstat(1))
print(next(line.split()[1] for line in open("/proc/self/status") if line.startswith("FDSize:")))
"""


def entries(*arguments: int) -> int:
    """How many entries the table of a process has that has widened it."""
    command = [sys.executable, "-c", PROGRAM, *map(str, arguments)]
    return int(subprocess.run(command, capture_output=True, check=True, text=True, timeout=60).stdout)


def test_there_is_room_for_thousands_from_the_start() -> None:
    assert entries(ENTRIES) == ENTRIES


@pytest.mark.parametrize("limit", [64, 300])
def test_with_a_lower_limit_there_is_room_for_what_is_allowed(limit: int) -> None:
    assert limit <= entries(limit) < ENTRIES


def test_a_descriptor_that_is_open_stays_what_it_is() -> None:
    assert entries(ENTRIES, ENTRIES - 1) == ENTRIES
