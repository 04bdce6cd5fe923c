"""Each host runs a command, waits through a long one, and reads on after its server was killed."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path
from typing import Any

import pytest
from mcp import Client, StdioServerParameters, stdio_client

from tests.third_party.mcp_hosts.hosts import Codex, Home, HostError, Inspector
from tests.third_party.mcp_hosts.scripted_model import Item, Outputs, call, serving

SECONDS = 75
"""Longer than hosts wait for a call."""
LONG = f"sleep {SECONDS}; echo awake"

END = "exit 7"
COUNT = f"for i in $(seq 1 40); do echo line $i; sleep 0.2; done; {END}"
COUNTED = "".join(f"line {i}\n" for i in range(1, 41))

TOOLS = "mcp__execserver"


def output_of(result: dict[str, Any]) -> str:
    """The output of the command in an answer."""
    output: str = result["output"].partition("\nOutput:\n")[2]
    return output


async def read_to_end(inspector: Inspector, session: str) -> tuple[str, dict[str, Any]]:
    """All output of a session, and the last answer."""
    output = ""
    while True:
        result = await inspector.call("write_stdin", session_id=session)
        output += output_of(result)
        if result["exitCode"] is not None:
            return output, result
        assert result["processId"] == str(session), result


async def inspector_waits(home: Home) -> str:
    inspector = Inspector(home, "--keep")  # its server ends with each request
    first = await inspector.call("exec_command", cmd=LONG, login="false", yield_time_ms=30_000)
    output, _ = await read_to_end(inspector, first["processId"])
    return output_of(first) + output


async def codex_waits(home: Home) -> str:
    def script(outputs: Outputs) -> Item | None:
        last = f"call-{len(outputs)}"
        if not outputs:
            return call("call-1", "exec_command", TOOLS, cmd=LONG, login=False)
        result = codex.result(last)
        if result["exitCode"] is not None:
            return None
        session = int(result["processId"])
        return call(
            f"call-{len(outputs) + 1}", "write_stdin", TOOLS, session_id=session, yield_time_ms=40_000
        )

    with serving(script) as model:
        codex = Codex(home, model)
        await codex.run()
    return "".join(output_of(codex.result(each)) for each in model.outputs)


async def client_waits(home: Home) -> str:
    command, *args = home.server()
    environment = {"EXECSERVER_URL": home.url, "PATH": os.environ["PATH"], "HOME": str(home.folder)}
    server = StdioServerParameters(command=command, args=args, env=environment, cwd=home.workspace)
    async with Client(stdio_client(server)) as client:
        result = await client.call_tool("exec_command", {"cmd": LONG, "login": False})
        output = output_of(result.structured_content)
        while result.structured_content["exitCode"] is None:
            session = int(result.structured_content["processId"])
            result = await client.call_tool("write_stdin", {"session_id": session})
            output += output_of(result.structured_content)
    return output


@pytest.mark.timeout(240)
async def test_each_host_waits_through_a_long_command(url: str, tmp_path: Path) -> None:
    begin = time.monotonic()
    outputs = await asyncio.gather(
        inspector_waits(Home.made(tmp_path / "inspector", url)),
        codex_waits(Home.made(tmp_path / "codex", url)),
        client_waits(Home.made(tmp_path / "client", url)),
    )
    assert list(outputs) == ["awake\n"] * 3
    assert time.monotonic() - begin >= SECONDS


async def inspector_reads_on(home: Home) -> str:
    inspector = Inspector(home, "--keep")
    # It runs on until it is found: of a call without an answer only that can be read on.
    command = f"touch begun; {COUNT.removesuffix(END)} until test -e found; do sleep 0.1; done; {END}"
    calling = asyncio.create_task(inspector.call("exec_command", cmd=command, login="false"))
    while not (home.workspace / "begun").exists():
        assert not calling.done(), calling.result()
        await asyncio.sleep(0.1)
    home.kill_server()
    with pytest.raises(HostError):
        await calling
    listed = await inspector.request("tools/call", "--tool-name", "list_sessions")
    (content,) = listed["content"]
    session = content["text"].split(":")[0].removeprefix("session_id ")
    (home.workspace / "found").touch()
    output, result = await read_to_end(inspector, session)
    assert result["exitCode"] == 7
    return output


async def codex_reads_on(home: Home) -> str:
    """Codex starts a server once in a conversation. A conversation that is resumed has a new one."""
    begun: list[int] = []

    def script(outputs: Outputs) -> Item | None:
        number = len(outputs) + 1
        if number == 1:
            return call("call-1", "exec_command", TOOLS, cmd=COUNT, login=False, yield_time_ms=1000)
        if number == 2:
            begun.append(int(codex.result("call-1")["processId"]))
            time.sleep(0.5)  # the answer is here, and the state written
            home.kill_server()
        if number == 4 and not resumed:
            return None
        if number > 4 and codex.result(f"call-{number - 1}")["exitCode"] is not None:
            return None
        return call(f"call-{number}", "write_stdin", TOOLS, session_id=begun[0], yield_time_ms=30_000)

    resumed = False
    with serving(script) as model:
        codex = Codex(home, model)
        await codex.run()
        assert "Transport closed" in model.outputs["call-2"]
        assert "Transport closed" in model.outputs["call-3"]
        resumed = True
        await codex.run("resume", "--last")
    assert len(home.pids) == 2
    read = [codex.result(each) for each in model.outputs if each not in ("call-2", "call-3")]
    assert read[-1]["exitCode"] == 7
    return "".join(map(output_of, read))


@pytest.mark.timeout(240)
async def test_each_host_reads_on_after_its_server_was_killed(url: str, tmp_path: Path) -> None:
    outputs = await asyncio.gather(
        inspector_reads_on(Home.made(tmp_path / "inspector", url)),
        codex_reads_on(Home.made(tmp_path / "codex", url)),
    )
    assert list(outputs) == [COUNTED] * 2


async def test_the_inspector_finds_no_fault_with_the_tools(url: str, tmp_path: Path) -> None:
    inspector = Inspector(Home.made(tmp_path / "inspector", url))
    listed = await inspector.request("tools/list", "--strict")
    assert {"exec_command", "write_stdin", "apply_patch", "read_file"} <= {
        each["name"] for each in listed["tools"]
    }
    done = await inspector.call("exec_command", cmd="echo $((6 * 7))", login="false")
    assert (output_of(done), done["exitCode"]) == ("42\n", 0)
