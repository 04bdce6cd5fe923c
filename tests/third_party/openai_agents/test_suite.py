"""The SDK's own tests of `UnixLocalSandboxClient`, on our client.

They are in the source distribution of the SDK, which the Makefile unpacks. `substitute.py` puts our classes
into the place of the SDK's, and selects the tests of the interface.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.pages import ROOT

SDIST = ROOT / ".integrations/openai_agents/sdist"

FILES = (
    "integration_tests/test_runner_pause_resume.py",
    "test_run_cwd.py",
    "test_unix_local.py",
    "test_workspace_jsonl_sink.py",
)

SELECTED = 33
SKIPPED = 1 + (os.geteuid() == 0)
"""By the SDK: a file system that folds case is needed, and a user whom permissions stop."""


@pytest.mark.timeout(900)
def test_the_sdk_finds_its_own_sandbox_in_ours(url: str) -> None:
    done = subprocess.run(
        [
            *(sys.executable, "-m", "pytest", "-p", "substitute", "-p", "no:cacheprovider"),
            *("-q", "-c", os.devnull, "--rootdir", str(SDIST), "-o", "asyncio_mode=auto"),
            *("-W", "ignore", "--tb=short", "--timeout=200"),
            *(f"tests/sandbox/{name}" for name in FILES),
        ],
        cwd=SDIST,
        env={
            **os.environ,
            "EXECSERVER_URL": url,
            "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), str(SDIST)]),
        },
        capture_output=True,
        text=True,
        check=False,
    )
    print(done.stdout[-20_000:], done.stderr)
    assert done.returncode == 0
    counts = {word: int(number) for number, word in re.findall(r"(\d+) (passed|skipped)", done.stdout)}
    assert counts == {"passed": SELECTED - SKIPPED, "skipped": SKIPPED}
