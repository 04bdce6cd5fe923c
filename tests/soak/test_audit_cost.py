"""What writing down an act costs, beside the start of a process.

`EXECSERVER_SOAK_ACTS` is the number of acts; `make soak` writes 100,000.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from execprotocol.process import StartParams
from execserver.api.audited import audited
from execserver.audit.chain import verify
from execserver.audit.trail import AuditTrail
from execserver.rpc.handlers import Caller, Encoded
from tests.conftest import StartServer

ACTS = int(os.environ.get("EXECSERVER_SOAK_ACTS", "10000"))
STARTS = 200
MOST_OF_A_START = 0.05

RESULT = Encoded(b'{"processId":"p"}')
CALLER = cast(
    "Caller",
    SimpleNamespace(
        session=SimpleNamespace(id="0" * 36), peer_proof="user", key_fingerprint=None, extensions=True
    ),
)
PARAMS = StartParams(
    process_id="p", argv=["/bin/sh", "-c", "echo hello; exit 3"], cwd="file:///tmp", env={}, tty=False
)


def cpu_seconds(act: Callable[[], object]) -> float:
    """Of this process for one call, on average."""
    begun = time.process_time()
    for _ in range(ACTS):
        act()
    return (time.process_time() - begun) / ACTS


@pytest.mark.soak
@pytest.mark.timeout(120 + ACTS // 500)
def test_acts_cost_less_than_a_twentieth_of_as_many_starts(start_server: StartServer, tmp_path: Path) -> None:
    trail = AuditTrail(str(tmp_path / "audit"), 8 << 20, stop=True)
    trail.open(wait=False)
    handler = audited({"process/start": lambda caller, params: RESULT}, trail)["process/start"]
    cost = cpu_seconds(lambda: handler(CALLER, PARAMS)) - cpu_seconds(lambda: RESULT)
    trail.close()
    assert verify(str(tmp_path / "audit")).last.n == ACTS

    # In a daemon that continues these acts.
    server = start_server(f"unix://{tmp_path}/s", "--audit-dir", str(tmp_path / "audit"))
    times = []
    with server.connect() as client:
        for number in range(STARTS):
            begun = time.perf_counter()
            client.start("/bin/true", processId=f"{number}").wait_closed()
            times.append(time.perf_counter() - begun)
    start = statistics.median(times)
    assert cost < MOST_OF_A_START * start, f"{cost * 1e6:.1f} µs of {start * 1e6:.0f} µs"
    assert verify(str(tmp_path / "audit")).last.n == ACTS + STARTS
