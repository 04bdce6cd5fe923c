"""The exit statuses of `execserver mcp` in `docs/reference/command-line.md`."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

EXECSERVER = str(Path(sys.executable).with_name("execserver"))


@pytest.mark.without_chaos
@pytest.mark.parametrize(
    ("where", "status", "words"),
    [
        (None, 0, ""),
        ("unix:///nonexistent/s", 69, "Start a daemon with: execserver serve"),
        ("ftp://x", 125, "cannot connect to 'ftp://x'"),
    ],
    ids=["end of input", "no daemon", "wrong URL"],
)
def test_the_status_tells_how_the_server_ended(
    url: str, tmp_path: Path, where: str | None, status: int, words: str
) -> None:
    done = subprocess.run(
        [EXECSERVER, "mcp", "--url", where or url],
        env={**os.environ, "XDG_STATE_HOME": str(tmp_path / "state")},
        cwd=tmp_path,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )
    assert (done.returncode, done.stdout) == (status, "")
    assert words in done.stderr
