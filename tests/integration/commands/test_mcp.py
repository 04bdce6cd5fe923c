"""`execserver mcp` where something that it needs is not installed. All else: tests/third_party/mcp."""

from __future__ import annotations

import importlib.util
import subprocess
import sys

import pytest

from tests.integration.commands.conftest import CommandLine


@pytest.mark.skipif(importlib.util.find_spec("mcp") is not None, reason="the extra mcp is installed")
def test_without_the_sdk_there_is_the_line_that_installs_it(execserver: CommandLine) -> None:
    done = execserver("mcp")

    assert (done.returncode, done.stdout) == (125, b"")
    assert b'execserver mcp needs mcp-types: pip install "execclient[mcp]"' in done.stderr


def test_http_needs_the_rules_of_the_server() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "execclient.commands", "mcp", "--listen", "http://127.0.0.1:0"],
        capture_output=True,
        text=True,
        timeout=20,
        check=False,
    )

    assert done.returncode == 2
    assert "--listen needs the server: pip install execserver" in done.stderr
