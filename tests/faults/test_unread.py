"""A child that writes without end while nobody reads costs neither memory nor disk beyond its ring."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.faults.resuming_client import ResumingClient
from tests.faults.service import MIB, Fifo, Serve, Service, eventually
from tests.faults.sizes import LONG, Report
from tests.support.wire import Json, decode

GIGABYTES = 10 if LONG else 1
PARTS = 10
BLOCK_BYTES = 1 << 16
RETAINED_MIB = 64
DISK_MIB = RETAINED_MIB + 8
"""The ring, and what a file system takes besides."""
GROWTH_MIB = 16
SLOWER = 1.5
"""The second half may take that much more processor time than the first: both are of seconds, on a machine
that does other things too."""


def _resident(pid: int) -> float:
    """MiB of a process's memory."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS"):
            return int(line.split()[1]) / 1024
    raise AssertionError(f"{pid} is gone")


def _disk(service: Service) -> float:
    """MiB of disk that the files without a name take which the server has open."""
    blocks = {}
    for name in os.listdir(f"/proc/{service.server_pid}/fd"):
        link = f"/proc/{service.server_pid}/fd/{name}"
        try:
            status, target = os.stat(link), os.readlink(link)
        except FileNotFoundError:
            continue
        if target.endswith(" (deleted)") and not target.startswith("/memfd:"):
            blocks[status.st_dev, status.st_ino] = status.st_blocks
    return sum(blocks.values()) * 512 / MIB


def _processor_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@pytest.mark.timeout(600 if LONG else 120)
def test_unread_output_costs_a_ring_and_no_memory(
    serve: Serve, folder: Path, fifo: Callable[[], Fifo], report: Report
) -> None:
    service = serve("unix", "--session-ttl", "3600", "--retained-output-bytes", str(RETAINED_MIB * MIB))
    pids = service.pid, service.server_pid
    session = ResumingClient(service)
    service.settle()
    news, go = fifo(), folder / "go"
    os.mkfifo(go)
    blocks = GIGABYTES * 10**9 // PARTS // BLOCK_BYTES
    # The first part goes once around the ring, so that all the others cost the same.
    part = (
        f"dd if=/dev/zero bs={BLOCK_BYTES} count={blocks} 2>/dev/null; echo part >{news.path}; read x <{go}"
    )
    script = f"i=0; while [ $i -le {PARTS} ]; do {part}; i=$((i+1)); done; printf end; exit 3"
    child = session.start("/bin/sh", "-c", script)
    session.cut()

    resident, processor = [sum(map(_resident, pids))], []
    begin = time.monotonic()
    for _ in range(PARTS + 1):
        assert news.line(within=120) == "part"
        resident.append(sum(map(_resident, pids)))
        processor.append(sum(map(_processor_seconds, pids)))
        assert _disk(service) < DISK_MIB
        go.write_text("go\n")
    seconds = time.monotonic() - begin
    disk = _disk(service)

    session.resume()
    page = _page_at_the_end(session, child)
    total = (PARTS + 1) * blocks * BLOCK_BYTES + len(b"end")
    kept = sum(len(decode(chunk["chunk"])) for chunk in page["chunks"])
    assert page["exitCode"] == 3
    assert page["lostBytes"] + kept == total

    half = PARTS // 2
    first, second = processor[half] - processor[0], processor[2 * half] - processor[half]
    growth = max(resident) - resident[0]
    report(
        f"{total / 1e9:.1f} GB by one child in {seconds:.0f} s, no reader: server and "
        f"supervisor +{growth:.1f} MiB, disk {disk:.0f} MiB, {first:.1f} s processor time in one half "
        f"and {second:.1f} s in the other; {kept / MIB:.0f} MiB kept, the rest stated as lost"
    )
    assert growth < GROWTH_MIB
    assert second < first * SLOWER + 0.2


def _page_at_the_end(session: ResumingClient, child: str) -> Json:
    """All that is kept of a process that has closed, as one answer."""
    assert eventually(lambda: _read(session, child, after_seq=0, max_bytes=1)["closed"], within=20)
    pages = [_read(session, child, after_seq=0, max_bytes=8 * MIB)]
    while True:
        page = _read(session, child, after_seq=pages[-1]["nextSeq"] - 1, max_bytes=8 * MIB)
        if not page["chunks"]:
            return {**pages[0], "chunks": [chunk for each in pages for chunk in each["chunks"]]}
        assert "lostBytes" not in page
        pages.append(page)


def _read(session: ResumingClient, child: str, *, after_seq: int, max_bytes: int) -> Json:
    return session.call("process/read", {"processId": child, "afterSeq": after_seq, "maxBytes": max_bytes})
