"""The tools do not know where their executor is: the same calls to a child, by a socket and by a relay."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from execclient.govern.sandbox import DangerFullAccess
from execclient.tools.payloads import CustomPayload
from tests.support.toolsets import Make

pytestmark = pytest.mark.parametrize("url", ["stdio", "unix", "relay"], indirect=True)

PATCH = """*** Begin Patch
*** Update File: a.txt
@@
-hello
+hello again
*** End Patch
"""


async def test_a_call_needs_no_change_for_a_remote_executor(make: Make, workspace: Path) -> None:
    tools = make(sandbox=DangerFullAccess())
    code = "import sys; print(sys.argv[1:]); sys.stderr.write(open('a.txt').read()); sys.exit(3)"

    ran = await tools.call("shell", {"command": [sys.executable, "-c", code, "two words", "ü\n"]})
    patched = await tools.call("apply_patch", CustomPayload(PATCH))
    begun = await tools.call(
        "exec_command", {"cmd": "read line; echo $line; exit 5", "login": False, "tty": True,
                         "yield_time_ms": 250}
    )  # fmt: skip
    assert begun.process_id is not None
    ended = await tools.call(
        "write_stdin", {"session_id": int(begun.process_id), "chars": "typed\n", "yield_time_ms": 20_000}
    )

    assert (ran.exit_code, ran.stdout, ran.stderr) == (3, "['two words', 'ü\\n']\n", "hello\n")
    assert (patched.success, (workspace / "a.txt").read_text()) == (True, "hello again\n")
    assert (ended.exit_code, ended.aggregated_output) == (5, "typed\r\ntyped\r\n")


async def test_a_sandbox_holds_for_a_remote_executor(make: Make, workspace: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    writing = {"command": ["sh", "-c", f"echo in > made; cat made; echo out > {outside}"]}

    confined = await make().call("shell", writing)

    assert (workspace / "made").read_text() == "in\n"
    assert not outside.exists()
    assert confined.stdout == "in\n"
    assert confined.failure is not None
    assert confined.failure.kind == "denied"
    assert confined.record.decided is not None
    assert confined.record.decided.sandbox_type == "linuxSeccomp"

    free = await make(sandbox=DangerFullAccess()).call("shell", writing)

    assert (free.success, outside.read_text()) == (True, "out\n")
    assert free.record.decided is not None
    assert free.record.decided.sandbox_type == "none"
