"""Where output is kept: on disk, and what happens when that is full."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conformance.endpoint import Endpoint
from tests.conformance.test_survive import server_pid
from tests.support.servers import open_files
from tests.support.wire import Server, decode


@pytest.mark.statement("O47")
def test_output_is_on_disk_in_files_without_a_name(endpoint: Endpoint, here: Path) -> None:
    private = endpoint.private("--spool-dir", str(here / "state"))
    client = private.connect()
    process = client.shell("head -c 3000000 /dev/zero | tr '\\0' m; read -r x", pipeStdin=True)
    process.wait_output(lambda output: len(output) == 3_000_000)
    files = [Path(link) for link in open_files(server_pid(private))]
    spooled = [file for file in files if file.is_relative_to(here / "state")]
    assert any(file.name.endswith("(deleted)") for file in spooled), files
    named = [path for path in (here / "state").rglob("*") if path.is_file()]
    assert not [path for path in named if b"mmm" in path.read_bytes()]


@pytest.mark.statement("O48", "O41")
def test_on_a_full_disk_the_newest_output_is_kept_and_the_gap_is_stated(on_a_small_disk: Server) -> None:
    with on_a_small_disk.connect() as client:
        process = client.start("/usr/bin/env", "seq", "1", "800000").wait_closed(timeout=40)
        whole = b"".join(b"%d\n" % number for number in range(1, 800_001))
        assert len(process.output) + process.log.lost_bytes == len(whole)
        page = process.read()
        kept = b"".join(decode(chunk["chunk"]) for chunk in page["chunks"])
        assert whole.endswith(kept)
        assert page["lostBytes"] == len(whole) - len(kept)
        assert 100_000 < len(kept) <= (1 << 20) + (256 << 10)
        assert page["exitCode"] == 0
        assert client.shell("echo fine").wait_closed().output == b"fine\n"
