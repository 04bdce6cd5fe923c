"""The server scenarios of `@modelcontextprotocol/conformance` that are about any server.

The other scenarios call tools, prompts and resources of the server that the suite was written for, by name:
`tools-call-*`, `json-schema-2020-12`, `elicitation-*`, `server-sse-polling`, `prompts-*`, `resources-*`,
`completion-complete` and `logging-set-level`. What they are about is in the other modules here, where this
server has it. 0.1.13 is the last version that runs with Node 20.
"""

from __future__ import annotations

import subprocess

import pytest

from tests.docs.pages import ROOT
from tests.third_party.mcp.conftest import Serve

PROGRAM = ROOT / ".integrations/mcp/conformance/node_modules/.bin/conformance"

pytestmark = pytest.mark.parametrize("mode", ["legacy"], indirect=True)  # 2025-11-25 and before


SCENARIOS = (
    "server-initialize",
    "ping",
    "tools-list",
    "server-sse-multiple-streams",
    "dns-rebinding-protection",
)


def test_the_server_conforms(serve: Serve) -> None:
    url = serve()
    for scenario in SCENARIOS:
        done = subprocess.run(
            [PROGRAM, "server", "--url", url, "--scenario", scenario],
            capture_output=True,
            text=True,
            timeout=50,
            check=False,
        )
        assert done.returncode == 0, f"{scenario}: {done.stdout}"
        assert " 0 failed, 0 warnings" in done.stdout, f"{scenario}: {done.stdout}"
